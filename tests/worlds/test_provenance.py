"""Tensors have one provenance number on all ranks; words explain numbers that differ."""

from __future__ import annotations

import random
import re
from contextlib import nullcontext

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, compile, matmul, ops, record
from spmdsim.bounded import MOST
from spmdsim.errors import WorldError
from spmdsim.worlds.provenance import Provenance

#: Functions of two square tensors.
PAIRS = (
    matmul,
    ops.multiply,
    ops.add,
    lambda a, b: a.T + b,
    lambda a, b: ops.relu(a) * 2 - b,
    lambda a, b: matmul(a, ops.sum(b, 0, keepdims=True).T) * b,
    lambda a, b: (a * b)[:, :1] + a,
)


def random_mesh(draw: random.Random, ranks: int) -> Mesh:
    """Return a mesh of random ranks in random order with at least one axis of size 1."""
    size = draw.randint(1, ranks)
    shape = draw.sample([size, 1, *[1] * draw.randrange(2)], k=2)
    shape = shape if size in shape else [size, *shape]
    return Mesh(tuple(shape), tuple("abc"[: len(shape)]), draw.sample(range(ranks), size))


@pytest.mark.mpi
@pytest.mark.ranks(2, 3, 4)
def test_values_and_gradients_have_one_provenance_on_all_ranks(world):
    outside = 0
    for seed in range(40):
        draw = random.Random(seed * 8 + world.size)
        mesh = random_mesh(draw, world.size)
        dims = [[], []]
        for axis in mesh.axes:
            draw.choice([*dims, []]).append(axis)
        x = Tensor.from_global(np.ones((4, 4)), mesh(*map(tuple, dims)), world, requires_grad=True)
        values = [x]
        # Recording a trace runs other code, which must derive equal provenance numbers.
        with record() if seed % 3 == 0 and 0 in world.ranks else nullcontext():
            for _ in range(draw.randint(1, 4)):
                a, b = draw.choices(values[-2:], k=2)
                values.append(draw.choice(PAIRS)(a, b))
            ops.sum(values[-1]).backward()
        provenance_numbers = [value.provenance_number for value in (*values, x.grad)]
        assert 0 not in provenance_numbers
        assert all(other == provenance_numbers for other in world.gather_objects([provenance_numbers])), (
            seed,
            mesh,
        )
        x.grad.full()
        outside += mesh.size < world.size
    assert outside >= 10


@pytest.mark.mpi
@pytest.mark.ranks(2, 3)
def test_compiled_functions_have_one_provenance_on_all_ranks(world):
    mesh = Mesh((1,), ("a",), (world.size - 1,))
    x = Tensor.from_global(np.arange(4.0), mesh("a"), world, requires_grad=True)

    @compile
    def run(x):
        total = ops.sum(x * 2) + 1
        (total * ops.max(x) + total).backward()
        return total

    for _ in range(4):
        x.grad = None
        total = run(x)
        provenance_numbers = [total.provenance_number, x.grad.provenance_number]
        assert all(other == provenance_numbers for other in world.gather_objects([provenance_numbers]))
        assert total.item() == 13


class NumberedLockStep(LockStep):
    """A lock-step world whose tensors have provenance numbers like those of real ranks."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.provenance = Provenance()


def numbered(value: float = 0.0):
    """Return a lock-step world with provenance numbers and a tensor of 8 elements in it."""
    world = NumberedLockStep(2)
    return world, Tensor.from_global(np.arange(8.0) + value, Mesh((2,), ("a",))("a"), world)


SELECTIONS = {
    "mask": lambda x, t: x[x > t],
    "nonzero": lambda x, t: ops.nonzero(x > t)[0],
    "argwhere": lambda x, t: np.argwhere(x > t),
    "extract": lambda x, t: np.extract(x > t, x),
    "where": lambda x, t: np.where(x > t)[0],
    "operand of the mask": lambda x, t: (x * t)[x > 3],
    "unique": lambda x, t: ops.unique_values(x * t),
    "gradient": lambda x, t: gradient_of_selection(x, t),
}


def gradient_of_selection(x: Tensor, t: float) -> Tensor:
    leaf = Tensor(x.world, x.meta, x.stored_shards, True, provenance_number=x.provenance_number)
    ops.sum(leaf[x > t] * 2).backward()
    return leaf.grad


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
def test_selected_entries_have_the_provenance_of_operand_and_mask(select):
    world, x = numbered()
    world.provenance_number = lambda meta: 17  # so that equal selections have equal numbers
    first, again, other = select(x, 2.0), select(x, 2.0), select(x, 3.0)
    assert first.provenance_number == again.provenance_number != 0
    assert other.provenance_number not in (first.provenance_number, 17)


def describe_tensors(*tensors):
    """Return the description of two tensors, each a rank's provenance and a number, in the ranks' error."""
    pytest.importorskip("mpi4py")
    from boards import call, log_on, make_boards

    logs = [log_on(board, history=provenance) for board, (provenance, _) in zip(make_boards(2), tensors)]
    for log, (_, number) in zip(logs, tensors):
        call(log, tensor=number)
    logs[1].publish_tensor(0)
    with pytest.raises(WorldError) as error:
        logs[0].compare()
    name, line = r"rank \d: all_gather of  , a to b, ", r", at boards\.py:\d+"
    match = re.fullmatch(f".* in its tensor; {name}(.*){line}; {name}(.*){line}", str(error.value))
    assert match is not None, error.value
    return match.groups()


def describe_results(*programs):
    """Return a description of the differing tensor of each program; each runs in a world of its own."""
    results = []
    for program in programs:
        world, x = numbered()
        x.provenance_number = 5
        results.append((world.provenance, program(x).provenance_number))
    return describe_tensors(*results)


def test_the_last_different_operator_is_described_with_its_line_on_all_sides():
    relu, tanh = describe_results(lambda x: ops.relu(x) + 1, lambda x: ops.tanh(x) + 1)
    assert relu.startswith("from a tensor computed by relu at test_provenance.py:")
    assert tanh.startswith("from a tensor computed by tanh at test_provenance.py:")


def test_a_different_number_or_parameter_is_described():
    factors = [2.0, 3.0]
    two, three = describe_results(*[lambda x, factor=factor: ops.exp(x * factor) for factor in factors])
    assert "computed by multiply at" in two and two.endswith("from the number 2.0")
    assert three.endswith("from the number 3.0")
    wide, narrow = describe_results(
        *[lambda x, axis=axis: ops.sum(ops.reshape(x, (2, 4)), axis) for axis in (0, 1)]
    )
    assert "sum(dims=[0]" in wide and "sum(dims=[1]" in narrow


def test_unknown_tensors_are_described_by_their_provenance_numbers():
    world, _ = numbered()
    words = describe_tensors((world.provenance, 0xABC), (world.provenance, 0xDEF))
    assert words == ("a tensor computed otherwise (number 0abc)", "a tensor computed otherwise (number 0def)")
    assert 0xABC not in world.provenance and [*world.provenance.ancestors(0xABC)] == [(0xABC, "")]


def test_a_gradient_is_described_with_its_forward_call():
    def gradient(function):
        def program(x):
            leaf = Tensor(x.world, x.meta, x.stored_shards, True, provenance_number=x.provenance_number)
            ops.sum(function(leaf)).backward()
            return leaf.grad

        return program

    relu, tanh = describe_results(gradient(ops.relu), gradient(ops.tanh))
    assert "relu.backward at test_provenance.py:" in relu and ", of the call at test_provenance.py:" in tanh


def test_the_latest_operators_and_all_source_tensors_are_known():
    world, _ = numbered()
    world.provenance.note(3, "tensor", parameters=("f64[8]", 1))
    for number in range(10, 10 + 3 * MOST):
        world.provenance.note(number, "relu", (3,))
    assert 3 in world.provenance and number in world.provenance and number - MOST + 1 in world.provenance
    assert 10 not in world.provenance and sum(map(len, world.provenance._computed)) <= 2 * MOST
    assert dict(world.provenance.ancestors(number))[3].startswith(
        "tensor f64[8], number 1 of its kind, made at"
    )
