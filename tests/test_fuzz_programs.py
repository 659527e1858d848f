"""Random whole programs equal plain arrays: operators, layouts, types, worlds, gradients, optimisers at once.

A few seconds of what ``scripts/fuzz_programs.sh`` does for hours. A failure prints the program; its seed and ranks
run it again.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from fuzzing.again import Again
from fuzzing.backends import torch_backend
from fuzzing.operations import OPERATIONS, Operation
from fuzzing.placement import misplaced, place, random_layout
from fuzzing.program import UNITS, Program, WrongError, ranks_of

from spmdsim import LockStep, Mesh, ops
from spmdsim.arrays import symbols
from spmdsim.worlds import MPIWorld

TORCH = torch_backend()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_programs_in_lock_step(first):
    with np.errstate(all="ignore"):
        for seed in range(first, first + 20):
            Program(seed, ranks_of(seed)).check(LockStep(ranks_of(seed)), TORCH)


@pytest.mark.filterwarnings("ignore::spmdsim.redistribution.guard.GatheringWarning")
def test_calls_in_other_surroundings_have_the_same_bits():
    compiled = []
    with np.errstate(all="ignore"):
        for seed in range(12):
            calls = Again(seed, ranks_of(seed))
            calls.check(LockStep(ranks_of(seed)))
            compiled.append(calls.compiled)
    assert sum(compiled) > 40


@pytest.mark.mpi
@pytest.mark.ranks(4, 8)
def test_programs_on_real_ranks(world):
    assert isinstance(world, MPIWorld)
    with np.errstate(all="ignore"):
        for seed in range(4):
            Program(seed, world.size).check(world)
        Again(0, world.size).check(world)


def test_all_operations_are_drawn():
    """Programs reach every operation that is declared, and most values have several elements."""
    names, sizes = set(), []
    for seed in range(600):
        program = Program(seed, ranks_of(seed))
        names.update(program.drawn)
        sizes += [value.true.size for value in program.values]
        if len(names) == len(OPERATIONS):
            break
    assert names == {make.__name__ for make in OPERATIONS}
    assert np.mean(np.array(sizes) > 1) > 0.7


def test_what_was_rounded_stays_rounded():
    """A float32 result as float64 may still be off by a float32 rounding, wherever the moved runs happened to agree."""
    program = Program(0, 4)
    leaf = program.values[program.leaf((200,), np.dtype("f4"))]
    leaf.noisy = [leaf.true]
    for text, reference in [
        ("exp", lambda p, x: p.exp(x)),
        ("negative", lambda p, x: -x),
        ("astype(float64)", lambda p, x: x * 1.0),
    ]:
        program._append(Operation(text, (len(program.values) - 1,), ops.exp, reference))
    widened = program.values[-1]
    assert widened.dtype == np.float64 and not widened.exact
    assert (widened.tolerance >= UNITS["float32"] * np.abs(widened.true)).all()


def test_what_is_below_the_smallest_number_may_be_lost():
    """A product of eight probabilities is 0 in float16."""
    program = Program(0, 4)
    program.values, program.float = [], np.dtype("f2")
    leaf = program.values[program.leaf((8,), np.dtype("f2"))]
    leaf.true, leaf.exact = np.linspace(0.03, 0.07, 8), False
    leaf.noisy = [leaf.true]
    program._append(Operation("prod", (0,), ops.prod, lambda p, x: x.prod()))
    product = program.values[-1]
    assert 0 < product.true < 1e-9 and np.float16(product.true) == 0
    assert product.tolerance >= product.true


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("sum", lambda x, dims, keepdims: ops.max(x, dims, keepdims)),
        ("tanh", lambda x: ops.tanh(x) * 1.001),
        ("transpose", None),
    ],
)
def test_a_wrong_operator_is_noticed(monkeypatch, name, broken):
    if broken is None:
        monkeypatch.setattr(
            "fuzzing.placement.indices", lambda layout, shape, rank: np.ix_(*[[0]] * len(shape))
        )
    else:
        broken.op, broken.__wrapped__ = getattr(ops, name).op, broken  # methods call what is inside
        for room in (symbols.ops, ops):  # methods keep what they have loaded
            monkeypatch.setattr(room, name, broken)
    with pytest.raises((WrongError, ValueError)), np.errstate(all="ignore"):
        for seed in range(200):
            Program(seed, ranks_of(seed)).check(LockStep(ranks_of(seed)))


def test_a_wrong_element_is_named():
    """One element of one rank's piece, and a type that is not the tensor's."""
    rng = random.Random(0)
    mesh, value = Mesh((2, 2), ("a", "b")), np.arange(24.0).reshape(4, 6)
    tensor = place(value, mesh("a", "b"), LockStep(4), False, 0)
    assert misplaced(tensor, value, 0.0) is None
    tensor.shards[3] = tensor.shards[3].copy()
    tensor.shards[3][0, 0] += 1
    assert "on rank 3: 16.0 for 15.0 at (0, 0), 1 of 6 wrong" in (misplaced(tensor, value, 0.5) or "")
    tensor.shards[3] = tensor.shards[3].astype("f4")
    assert "float32 of a float64 tensor" in (misplaced(tensor, value, 0.5) or "")
    pending = place(value, random_layout(rng, mesh, 2, ("sum",)), LockStep(4), False, 1)
    assert misplaced(pending, value, 0.0) is None
