"""Placing steps return the slices of the global array in lock step and under MPI."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from spmdsim import record
from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.errors import PlanError, WorldError
from spmdsim.redistribution.implementations.rank_transfers import group_transfers
from spmdsim.worlds import LockStep

DTYPES = [
    *("float32", "float64", "float16", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    ml_dtypes.bfloat16,
    "S3",
    "longdouble",
]
SHAPES = [(8, 8), (7, 13), (3, 1), (1, 5), (0, 4), (2, 0)]


def values(shape, dtype="float32", seed=0):
    numbers = np.random.default_rng(seed).integers(0, 100, shape)
    return (numbers % 2 == 0) if dtype == "bool" else numbers.astype(dtype)


def meshes(n):
    """Return the meshes of n ranks with up to three axes and a mesh of reversed ranks."""
    every_mesh = [Mesh((n,), ("a",))]
    every_mesh += [Mesh((p, n // p), ("a", "b")) for p in range(2, n) if n % p == 0]
    every_mesh += [Mesh((2, 2, 2), ("a", "b", "c"))] if n == 8 else []
    return [*every_mesh, Mesh((n,), ("a",), range(n - 1, -1, -1))]


def shards(world, layout, array):
    return [array[layout.slices(array.shape, rank)] for rank in world.ranks]


def check(world, step, array, inputs=None):
    """Run a step; check every shard against its slice of the global array."""
    inputs = shards(world, step.src, array) if inputs is None else inputs
    copies = [shard.copy() for shard in inputs]
    results = world.run(step, inputs)
    assert len(results) == len(world.ranks)
    for rank, before, shard, result in zip(world.ranks, copies, inputs, results):
        wanted = array[step.dst.slices(array.shape, rank)]
        if rank not in step.dst.mesh:
            wanted = np.zeros((0,) * array.ndim, array.dtype)
        assert result.dtype == array.dtype
        assert result.shape == wanted.shape
        assert result.flags.c_contiguous
        assert np.array_equal(result, wanted), (step, rank)
        assert np.array_equal(shard, before), "the input was changed"


def placing_steps(mesh, shape):
    """Yield single-collective steps between layouts of a matrix that move the last or all axes."""
    last, every, back = mesh.axes[-1], mesh.axes, mesh.axes[::-1]
    yield Step("all_gather", (last,), mesh(last, None), mesh(None, None), shape)
    yield Step("all_gather", (last,), mesh(None, last), mesh(None, None), shape)
    yield Step("all_gather", every, mesh(every, None), mesh(None, None), shape)
    yield Step("all_gather", every, mesh(None, back), mesh(None, None), shape)
    yield Step("all_to_all", (last,), mesh(last, None), mesh(None, last), shape)
    yield Step("all_to_all", (last,), mesh(None, last), mesh(last, None), shape)
    yield Step("all_to_all", every, mesh(every, None), mesh(back, None), shape)
    yield Step("all_to_all", every, mesh(back, None), mesh(None, every), shape)
    yield Step("slice", (last,), mesh(None, None), mesh(last, None), shape)
    yield Step("slice", (last,), mesh(None, None), mesh(None, last), shape)
    yield Step("slice", every, mesh(None, None), mesh(back, None), shape)
    if len(every) > 1:
        first = mesh.axes[0]
        yield Step("all_gather", (last,), mesh((first, last), None), mesh(first, None), shape)
        yield Step("all_gather", (last,), mesh(first, last), mesh(first, None), shape)
        yield Step("all_gather", every, mesh(first, last), mesh(None, None), shape)
        yield Step("all_to_all", (last,), mesh((first, last), None), mesh(first, last), shape)
        yield Step("all_to_all", (first, last), mesh(first, last), mesh(last, first), shape)
        yield Step("slice", (last,), mesh(first, None), mesh((first, last), None), shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_placing_steps_are_right_on_every_mesh(world, shape):
    for mesh in meshes(world.size):
        for step in placing_steps(mesh, shape):
            check(world, step, values(shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_placing_steps_are_right_for_every_element_type(world, dtype):
    mesh = meshes(world.size)[-2 if world.size > 2 else 0]
    for shape in ((7, 13), (8, 8)):
        for step in placing_steps(mesh, shape):
            check(world, step, values(shape, dtype))


@pytest.mark.parametrize("order", ["fortran", "strided", "reversed"])
def test_inputs_need_not_be_contiguous(world, order):
    shape, mesh = (7, 13), Mesh((world.size,), ("a",))
    for step in placing_steps(mesh, shape):
        array = values(shape)
        inputs = shards(world, step.src, array)
        if order == "fortran":
            inputs = [np.asfortranarray(g) for g in inputs]
        elif order == "strided":
            inputs = [np.repeat(np.repeat(g, 2, 0), 2, 1)[::2, ::2] for g in inputs]
        else:
            inputs = [g[::-1].copy()[::-1] for g in inputs]
        check(world, step, array, inputs)


def test_placing_steps_of_0_1_and_3_dims_are_right(world):
    n = world.size
    mesh = Mesh((n,), ("a",))
    check(world, Step("all_gather", ("a",), mesh("a"), mesh(None), (2 * n + 1,)), values((2 * n + 1,)))
    for src, dst in itertools.permutations([("a", None, None), (None, "a", None), (None, None, "a")], 2):
        shape = (5, 6, 7)
        check(world, Step("all_to_all", ("a",), mesh(*src), mesh(*dst), shape), values(shape))
    scalar = Step("exchange", (), mesh(), mesh(), ())
    check(world, scalar, values(()))


@pytest.mark.parametrize("shape", [(8, 6), (5, 7), (1, 3), (0, 2)], ids=str)
def test_an_exchange_is_right_between_any_layouts_and_meshes(world, shape):
    n = world.size
    layouts = [layout for mesh in meshes(n) for layout in all_layouts(mesh)]
    if n > 1:  # meshes of some of the ranks: overlapping, disjoint, in another order
        half = max(1, n // 2)
        layouts += all_layouts(Mesh((half,), ("x",)))
        layouts += all_layouts(Mesh((n - half,), ("x",), range(n - 1, half - 1, -1)))
    chosen = np.random.default_rng(n).permutation(len(layouts) ** 2)[:60]
    for pair in chosen:
        src, dst = layouts[pair // len(layouts)], layouts[pair % len(layouts)]
        check(world, Step("exchange", (), src, dst, shape), values(shape))


def all_layouts(mesh):
    """Return every layout of a matrix that has no pending axes."""
    layouts = []
    for places in itertools.product((None, 0, 1), repeat=len(mesh.axes)):
        axes = [[a for a, p in zip(mesh.axes, places) if p == dim] for dim in (0, 1)]
        for rows in itertools.permutations(axes[0]):
            layouts += [mesh(rows, columns) for columns in itertools.permutations(axes[1])]
    return layouts


@pytest.mark.parametrize("shape", [(5, 7), (), (0, 3), (1,)], ids=str)
def test_an_exchange_from_one_rank_broadcasts(world, shape):
    n, replicated = world.size, (None,) * len(shape)
    everyone, others = Mesh((n,), ("a",)), Mesh((max(1, n - 1),), ("a",), range(min(1, n - 1), n))
    for root in range(n):
        for mesh in (everyone, others):
            step = Step("exchange", (), Mesh((1,), ("one",), (root,))(*replicated), mesh(*replicated), shape)
            array = values(shape)
            inputs = [
                array if rank == root else np.zeros((0,) * len(shape), array.dtype) for rank in world.ranks
            ]
            for rank, result in zip(world.ranks, world.run(step, inputs)):
                if rank in mesh:
                    np.testing.assert_array_equal(result, array)
                else:
                    assert result.shape == (0,) * len(shape)


@pytest.mark.ranks(4, 8)
def test_an_exchange_does_not_mix_pending_terms(world):
    mesh, shape = Mesh((2, world.size // 2), ("p", "a")), (6, 5)
    step = Step("exchange", (), mesh("a", None, partial="p"), mesh(None, "a", partial="p"), shape)
    halves = [values(shape, seed=coordinate) for coordinate in (0, 1)]
    terms = [halves[mesh.coords(rank)[0]] for rank in world.ranks]
    inputs = [a[step.src.slices(shape, r)] for r, a in zip(world.ranks, terms)]
    for rank, array, result in zip(world.ranks, terms, world.run(step, inputs)):
        np.testing.assert_array_equal(result, array[step.dst.slices(shape, rank)])


@pytest.mark.ranks(2, 4, 8)
def test_steps_of_more_elements_than_mpi_can_count_are_right(world, monkeypatch):
    """A small limit makes every step send several messages."""
    if isinstance(world, LockStep):
        pytest.skip("there is no limit without MPI")
    from spmdsim.worlds.mpi import messages

    monkeypatch.setattr(messages, "MAX_COUNT", 5)
    for mesh in meshes(world.size):
        for step in placing_steps(mesh, (7, 13)):
            check(world, step, values((7, 13)))
        src, dst = mesh(mesh.axes, None), mesh(None, mesh.axes[::-1])
        check(world, Step("exchange", (), src, dst, (7, 13)), values((7, 13)))


@pytest.mark.parametrize(
    "choice",
    [
        {"first": ("gather rows", "typed"), "chunk": ((2, 100),)},
        {"first": ("gather rows", "packed"), "chunk": ((2, 1 << 30),)},
        {"first": ("gather typed", "typed")},
        {"first": ("messages", "gather, unpack", "typed")},
    ],
    ids=["types and small chunks", "packed and whole", "types for all", "messages"],
)
def test_every_implementation_that_places_boxes_returns_equal_shards(world, monkeypatch, choice):
    """The fastest implementation of one MPI library must be right with others too."""
    if isinstance(world, LockStep):
        pytest.skip("there is one implementation without MPI")
    from dataclasses import replace

    monkeypatch.setattr(world, "choices", replace(world.choices, **choice))
    for mesh in meshes(world.size):
        for shape, dtype in (((8, 16), "float32"), ((7, 13), ml_dtypes.bfloat16)):
            for step in placing_steps(mesh, shape):
                check(world, step, values(shape, dtype))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("columns, call", [(8, "Allgather"), (7, "Allgatherv")])
def test_equal_blocks_are_gathered_by_allgather(world, monkeypatch, columns, call):
    if isinstance(world, LockStep):
        pytest.skip("there are no calls without MPI")
    from dataclasses import replace

    monkeypatch.setattr(world, "choices", replace(world.choices, first=("gather, unpack",)))
    mesh = Mesh((2, 2), ("a", "b"))
    step = Step("all_gather", ("a", "b"), mesh("a", "b"), mesh(None, None), (4, columns))
    with record() as trace:
        check(world, step, values(step.shape))
    assert [event.way for event in trace.collectives] == [call]


@pytest.mark.ranks(2, 4, 8)
def test_equal_blocks_are_exchanged_in_one_plain_call(world):
    """Ranks must agree on it, because they would wait in different calls otherwise."""
    n = world.size
    mesh = Mesh((n,), ("a",))
    plain = Step("all_to_all", ("a",), mesh(None, "a", None), mesh("a", None, None), (n, n, 3))
    strided = Step("all_to_all", ("a",), mesh(None, "a"), mesh("a", None), (2 * n, n))
    uneven = Step("all_to_all", ("a",), mesh(None, "a", None), mesh("a", None, None), (n, n + 1, 3))
    other = Mesh((n,), ("a",), tuple(range(n - 1, -1, -1)))
    turned = Step("all_to_all", ("a",), other(None, "a", None), other("a", None, None), (n, n, 3))
    for step, expected in ((plain, True), (strided, False), (uneven, False), (turned, False)):
        assert {group_transfers(step, rank).swapped for rank in range(n)} == {expected}
        check(world, step, values(step.shape))


def test_a_slice_of_contiguous_rows_is_a_view_and_another_a_copy(world):
    mesh, array = Mesh((world.size,), ("a",)), values((16, 16))
    inputs = [array for _ in world.ranks]
    rows = world.run(Step("slice", ("a",), mesh(None, None), mesh("a", None), array.shape), inputs)
    columns = world.run(Step("slice", ("a",), mesh(None, None), mesh(None, "a"), array.shape), inputs)
    assert all(np.shares_memory(r, array) for r in rows)
    assert world.size == 1 or not any(np.shares_memory(c, array) for c in columns)


def test_thousands_of_ranks_in_lock_step_share_equal_results():
    world, shape = LockStep(2048), (4096, 3)
    mesh = Mesh((32, 64), ("a", "b"))
    array = values(shape)
    step = Step("all_gather", ("b",), mesh(("a", "b"), None), mesh("a", None), shape)
    inputs = [array[step.src.slices(shape, rank)] for rank in world.ranks]
    results = world.run(step, inputs)
    assert len({id(result) for result in results}) == 32
    for rank in (0, 63, 64, 2047):
        np.testing.assert_array_equal(results[rank], array[step.dst.slices(shape, rank)])


def test_a_step_whose_group_lacks_source_blocks_is_refused(world):
    if world.size % 2 or world.size == 2:
        pytest.skip("needs two axes")
    mesh = Mesh((2, world.size // 2), ("a", "b"))
    step = Step("all_gather", ("a",), mesh(("a", "b"), None), mesh("b", None), (16, 2))
    with pytest.raises(PlanError, match="does not hold the box"):
        world.run(step, shards(world, step.src, values((16, 2))))


def test_a_mesh_larger_than_the_world_is_refused_with_both_numbers(world):
    mesh = Mesh((world.size + 1,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (9,))
    with pytest.raises(WorldError, match=rf"needs rank {world.size}, but the world has {world.size} rank"):
        world.run(step, [np.zeros(1) for _ in world.ranks])


def test_a_shard_that_does_not_fit_its_layout_is_refused(world):
    mesh = Mesh((world.size,), ("a",))
    step = Step("all_gather", ("a",), mesh("a", None), mesh(None, None), (world.size, 2))
    with pytest.raises(
        WorldError, match=r"the shard of rank \d+ must have shape \(1, 2\) in .*, got \(3, 2\)"
    ):
        world.run(step, [np.zeros((3, 2)) for _ in world.ranks])
    with pytest.raises(WorldError, match=r"^0 shards were|^shards must be one per rank, [0-9]+, got 0$"):
        world.run(step, [])
