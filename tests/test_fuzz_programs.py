"""Random programs compute the results of NumPy, with random operators, layouts, types, gradients and optimisers.

The tests run for seconds, and ``scripts/fuzz_programs.sh`` runs for hours. A failure prints the program and the seed and
rank count that run it again.
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
from spmdsim.worlds import MPIWorld

TORCH = torch_backend()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_programs_in_lock_step_equal_numpy(first):
    with np.errstate(all="ignore"):
        for seed in range(first, first + 20):
            Program(seed, ranks_of(seed)).check(LockStep(ranks_of(seed)), TORCH)


@pytest.mark.filterwarnings("ignore::spmdsim.redistribution.guard.GatheringWarning")
def test_repeated_and_compiled_calls_have_identical_bits():
    compiled = []
    with np.errstate(all="ignore"):
        for seed in range(12):
            calls = Again(seed, ranks_of(seed))
            calls.check(LockStep(ranks_of(seed)))
            compiled.append(calls.compiled)
    assert sum(compiled) > 40


@pytest.mark.mpi
@pytest.mark.ranks(4, 8)
def test_programs_on_real_ranks_equal_numpy(world):
    assert isinstance(world, MPIWorld)
    with np.errstate(all="ignore"):
        for seed in range(4):
            Program(seed, world.size).check(world)
        Again(0, world.size).check(world)


def test_programs_draw_all_operations_and_mostly_values_of_several_elements():
    names, sizes = set(), []
    for seed in range(600):
        program = Program(seed, ranks_of(seed))
        names.update(program.drawn)
        sizes += [value.true.size for value in program.values]
        if len(names) == len(OPERATIONS):
            break
    assert names == {make.__name__ for make in OPERATIONS}
    assert np.mean(np.array(sizes) > 1) > 0.7


def test_a_float32_result_as_float64_has_the_tolerance_of_float32():
    # Reference runs with noise may agree by chance, but the rounding error of float32 remains.
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


def test_a_result_below_the_smallest_float16_may_be_zero():
    # The product of eight probabilities underflows in float16.
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
        broken.op, broken.__wrapped__ = getattr(ops, name).op, broken  # Methods call the wrapped function.
        for module in (
            "spmdsim.ops",
            "spmdsim.arrays.symbols.ops",
        ):  # Methods keep the functions that they looked up.
            monkeypatch.setattr(f"{module}.{name}", broken)
    with pytest.raises((WrongError, ValueError)), np.errstate(all="ignore"):
        for seed in range(200):
            Program(seed, ranks_of(seed)).check(LockStep(ranks_of(seed)))


def test_a_wrong_element_and_a_wrong_type_of_a_shard_are_named():
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
