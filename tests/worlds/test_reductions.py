"""Reducing and filling steps equal NumPy's reductions of global arrays in lock step and under MPI."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import ml_dtypes
import numpy as np
import pytest

from spmdsim.collectives import algorithms
from spmdsim.core import Mesh
from spmdsim.core.elements import fold, identity
from spmdsim.core.step import Step
from spmdsim.errors import WorldError

FLOATS = ["float64", "float32", "float16", ml_dtypes.bfloat16]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
NUMPY |= {"all": np.logical_and, "any": np.logical_or}

CASES = [(d, op) for d in FLOATS for op in ("sum", "prod", "max", "min", "avg")]
CASES += [(d, op) for d in INTEGERS for op in ("sum", "prod", "max", "min")]
CASES += [(d, op) for d in ("complex64", "complex128") for op in ("sum", "prod", "avg")]
CASES += [("bool", op) for op in ("all", "any", "max", "min")]


def values(shape, dtype, seed):
    """Return small random numbers whose sums and products are exact in every dtype; `seed` is the rank."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 4, shape) > 0
    low = 0 if np.dtype(dtype).kind == "u" else -2
    return rng.integers(low, 3, shape).astype(dtype)


def expected(op, arrays):
    if op == "avg":
        return (
            reduce(np.add, arrays).astype("c16" if arrays[0].dtype.kind == "c" else "f8") / len(arrays)
        ).astype(arrays[0].dtype)
    if arrays[0].dtype.kind == "b":
        op = {"max": "any", "min": "all"}.get(op, op)
    with np.errstate(over="ignore"):
        return reduce(NUMPY[op], arrays)


def reducing_steps(mesh, shape, op):
    """Yield reductions over the last axis and over all axes; other axes may split a dim or be pending."""
    last, every = mesh.axes[-1], mesh.axes
    for axes in dict.fromkeys([(last,), every]):
        src = mesh(None, None, partial=dict.fromkeys(axes, op))
        yield Step("all_reduce", axes, src, mesh(None, None), shape, op)
        yield Step("reduce_scatter", axes, src, mesh(axes, None), shape, op)
        yield Step("reduce_scatter", axes, src, mesh(None, axes), shape, op)
        yield Step("reduce_scatter", axes, src, mesh(axes[::-1], None), shape, op)
    if len(every) > 1:
        first = mesh.axes[0]
        both = mesh(None, None, partial={first: op, last: op})
        yield Step("reduce_scatter", (first, last), both, mesh(first, last), shape, op)
        yield Step("all_reduce", (last,), mesh(first, None, partial={last: op}), mesh(first, None), shape, op)
        half_reduced = mesh(None, last, partial={first: op})
        yield Step("reduce_scatter", (last,), both, half_reduced, shape, op)
        split = mesh(None, first, partial={last: op})
        yield Step("reduce_scatter", (last,), split, mesh(None, (first, last)), shape, op)


def check(world, step, dtype, same=True):
    """Run a step on one array per rank; check each result against NumPy's reduction of its group."""
    everyone = [values(step.shape, dtype, seed=rank) for rank in range(world.size)]
    shards = [np.ascontiguousarray(everyone[r][step.src.slices(step.shape, r)]) for r in world.ranks]
    copies = [g.copy() for g in shards]
    for rank, before, shard, result in zip(world.ranks, copies, shards, world.run(step, shards)):
        reduced = expected(step.op, [everyone[m] for m in step.group(rank)])
        wanted = reduced[step.dst.slices(step.shape, rank)]
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        assert result.flags.c_contiguous
        if same:
            assert np.array_equal(result, wanted), (step, rank, result, wanted)
        else:
            np.testing.assert_allclose(result.astype("c16"), wanted.astype("c16"), rtol=1e-2)
        assert np.array_equal(shard, before), "the input was changed"


def meshes(n):
    every_mesh = [Mesh((n,), ("a",)), Mesh((n,), ("a",), range(n - 1, -1, -1))]
    return every_mesh + [Mesh((p, n // p), ("a", "b")) for p in range(2, n) if n % p == 0]


@pytest.mark.parametrize("dtype, op", CASES, ids=lambda case: getattr(case, "__name__", str(case)))
def test_reductions_are_right_for_every_element_type(world, dtype, op):
    for mesh in meshes(world.size)[-2:]:
        for step in reducing_steps(mesh, (5, 7), op):
            check(world, step, dtype, same=op != "avg")


@pytest.mark.parametrize("shape", [(8, 8), (7, 13), (1, 3), (0, 4), (3, 0), (64, 129)], ids=str)
def test_reductions_are_right_for_every_shape(world, shape):
    for mesh in meshes(world.size):
        for step in reducing_steps(mesh, shape, "sum"):
            check(world, step, "float32")


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("shape", [(16, 8), (7, 13), (1, 2)], ids=str)
@pytest.mark.parametrize("small_block", [0, 1 << 20], ids=["in chunks", "at once"])
def test_composed_reductions_are_right(world, monkeypatch, shape, dtype, small_block):
    """Small thresholds and chunks force composed reductions in several chunks with a remainder."""
    if hasattr(world, "choices"):
        small = replace(
            world.choices,
            compose_all_reduce=((2, 0),),
            compose_reduce_scatter=((2, 0),),
            chunk=((2, 64),),
            gather_reduce=0,
            small_block=small_block,
        )
        monkeypatch.setattr(world, "choices", small)
    for mesh in meshes(world.size):
        for step in reducing_steps(mesh, shape, "sum"):
            check(world, step, dtype)


@pytest.mark.ranks(2, 4, 8)
def test_reductions_of_more_elements_than_mpi_can_count_are_right(world, monkeypatch):
    if hasattr(world, "comm"):
        from spmdsim.worlds.mpi import messages

        monkeypatch.setattr(messages, "MAX_COUNT", 5)
    for step in reducing_steps(Mesh((world.size,), ("a",)), (7, 13), "sum"):
        check(world, step, "float32")


def test_scalars_are_reduced(world):
    mesh = Mesh((world.size,), ("a",))
    step = Step("all_reduce", ("a",), mesh(partial="a"), mesh(), (), "sum")
    for result in world.run(step, [np.array(rank + 1.0) for rank in world.ranks]):
        assert result.shape == () and result == world.size * (world.size + 1) / 2


def test_integers_are_exact_beyond_the_precision_of_floats(world):
    mesh, big = Mesh((world.size,), ("a",)), 2**60 + 1
    step = Step("all_reduce", ("a",), mesh(None, partial="a"), mesh(None), (3,), "sum")
    for result in world.run(step, [np.full(3, big if rank == 0 else 1) for rank in world.ranks]):
        assert result.tolist() == [big + world.size - 1] * 3


@pytest.mark.parametrize("dtype", ["int8", "uint16"])
@pytest.mark.parametrize("count", [3, 100_000])
def test_small_integers_wrap_around_at_any_length(world, count, dtype):
    """Sums wrap around like NumPy's; an MPI library may saturate long arrays in vector units."""
    mesh, largest = Mesh((world.size,), ("a",)), np.iinfo(dtype).max
    pending = mesh(None, partial="a")
    for step in (
        Step("all_reduce", ("a",), pending, mesh(None), (count,), "sum"),
        Step("reduce_scatter", ("a",), pending, mesh("a"), (count,), "sum"),
    ):
        for result in world.run(step, [np.full(count, largest, dtype) for _ in world.ranks]):
            wanted = np.full(1, world.size * int(largest)).astype(dtype)
            assert (result == wanted).all()


def test_a_nan_stays_in_a_maximum(world):
    mesh = Mesh((world.size,), ("a",))
    step = Step("all_reduce", ("a",), mesh(None, partial={"a": "max"}), mesh(None), (2,), "max")
    for nan_rank in (0, world.size - 1):
        shards = [np.array([np.nan if rank == nan_rank else 1, 5.0]) for rank in world.ranks]
        for result in world.run(step, shards):
            assert np.isnan(result[0]) and result[1] == 5


@pytest.mark.ranks(8)
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("method", [None, "ring", "recursive_doubling", "pairwise", "shared"])
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_16_bit_sums_are_rounded_once(world, dtype, method, size):
    """Rounding after each addition would keep 256 + 7 * 0.75 at 256 in bfloat16; the exact sum is 261.25."""
    mesh = Mesh((8,), ("a",))
    if method == "shared":
        world.use(replicated="shared")
    for collective, dst in (("all_reduce", mesh(None)), ("reduce_scatter", mesh("a"))):
        named = method if method in [algorithm.name for algorithm in algorithms(collective)] else None
        step = Step(collective, ("a",), mesh(None, partial="a"), dst, (size,), "sum")
        big = 256 if dtype != "float16" else 2048
        shards = [np.full(size, big if rank == 0 else 0.75, np.float32).astype(dtype) for rank in world.ranks]
        for result in world.run(step, shards, named):
            assert result.dtype == dtype
            assert (result == np.float32(big + 5.25).astype(dtype)).all()
            assert result[0] != big


@pytest.mark.parametrize(
    "dtype, op, words",
    [
        ("complex64", "max", "complex numbers have no order"),
        ("bool", "sum", "reduce with 'any' or 'all'"),
        ("int32", "avg", "convert to a float"),
        ("float32", "any", "reduces bools"),
        ("S2", "sum", "sum reduces numbers and bools, but got"),
    ],
)
def test_reductions_without_meaning_are_refused_in_one_line(world, dtype, op, words):
    mesh = Mesh((world.size,), ("a",))
    step = Step("all_reduce", ("a",), mesh(None, partial={"a": op}), mesh(None), (2,), op)
    with pytest.raises(WorldError, match=words) as error:
        world.run(step, [np.zeros(2, dtype) for _ in world.ranks])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16], ids=str)
def test_reducing_a_filled_tensor_returns_its_values(world, op, dtype):
    check_fill(world, op, dtype)


@pytest.mark.parametrize("dtype, op", [("int8", "max"), ("int8", "min"), ("uint16", "prod"), ("bool", "all")])
def test_filled_integers_and_bools_reduce_to_their_values(world, dtype, op):
    check_fill(world, op, dtype)


def check_fill(world, op, dtype):
    """Fill replicas into a pending layout and check that reducing them returns the values."""
    shape = (5, 6)
    array = values(shape, dtype, seed=1)
    for mesh in meshes(world.size):
        last = mesh.axes[-1]
        for src in (mesh(None, None), mesh(last, None), mesh(None, mesh.axes)):
            other_axes = [[a for a in entry if a != last] for entry in src.dims]
            pending = mesh(*other_axes, partial={last: op})
            shards = [array[src.slices(shape, r)] for r in world.ranks]
            filled = world.run(Step("fill", (last,), src, pending, shape, op), shards)
            back = Step("all_reduce", (last,), pending, pending.reduced, shape, op)
            for rank, result in zip(world.ranks, world.run(back, filled)):
                wanted = array[pending.slices(shape, rank)]
                np.testing.assert_allclose(result.astype("f8"), wanted.astype("f8"), rtol=1e-2)


def test_identity_elements_change_nothing():
    for dtype, op in CASES:
        array = values((4,), dtype, seed=3)
        if op != "avg":
            neutral = np.full(4, identity(op, np.dtype(dtype)))
            assert neutral.dtype == array.dtype
            assert np.array_equal(fold(op, [neutral, array]), array), (dtype, op)
            assert np.array_equal(fold(op, [array, neutral]), array), (dtype, op)


def test_fold_into_given_memory_leaves_its_operands():
    parts = [np.full(3, k, np.float16) for k in (1, 2, 3)]
    out = np.empty(3, np.float16)
    assert fold("sum", parts, out) is out
    assert out.tolist() == [6, 6, 6] and [p[0] for p in parts] == [1, 2, 3]
    assert fold("max", parts).tolist() == [3, 3, 3]
    parts, out = [np.full(3, k, np.float32) for k in (1, 2, 3)], np.empty(3, np.float32)
    assert fold("sum", parts, out) is out and out.tolist() == [6, 6, 6]
