"""Random plans return the right data in lock step and on real ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from every_layout import every_layout, every_mesh

from scripts import redistribution_proof as proof
from spmdsim import Tensor, record
from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.step_counts import sent_nbytes

SHAPES = [(16, 8), (7, 5), (1, 3), (12,), (4, 6, 5), (0, 3), ()]
RESHAPES = {
    (16, 8): (4, 32),
    (7, 5): (35,),
    (12,): (3, 4),
    (4, 6, 5): (8, 15),
    (1, 3): (3,),
    (0, 3): (3, 0),
    (): (1,),
}
DTYPES = [np.int64, np.int32, np.float32, np.float64, np.int16]


def meshes(size: int) -> list[Mesh]:
    """Return all meshes of the world, and meshes of reversed ranks and of subsets."""
    ranks = list(range(size))
    odd = [Mesh((size,), ("all",), ranks[::-1])]
    if size > 2:
        odd += [Mesh((size // 2,), ("half",), ranks[: size // 2]), Mesh((2,), ("two",), [size - 1, 1])]
    return [*every_mesh(size), *odd]


def cases(size: int, count: int) -> list[tuple[Layout, Layout, tuple[int, ...], tuple[int, ...] | None]]:
    choose = random.Random(size)
    pairs = []
    for _ in range(count):
        shape = choose.choice(SHAPES)
        to_shape = RESHAPES[shape] if choose.random() < 0.2 else None
        before = choose.choice(meshes(size))
        after = before if choose.random() < 0.6 else choose.choice(meshes(size))
        src = choose.choice(every_layout(before, len(shape), partial=choose.random() < 0.4))
        dst = choose.choice(every_layout(after, len(to_shape or shape)))
        pairs.append((src, dst, shape, to_shape))
    return pairs


@pytest.mark.ranks(2, 4, 8)
def test_any_layout_reaches_any_layout(world: Any) -> None:
    for number, (src, dst, shape, to_shape) in enumerate(cases(world.size, 200)):
        dtype = DTYPES[number % len(DTYPES)]
        terms, total = proof.contributions(src, shape, number)
        nothing = np.zeros((0,) * len(shape), dtype)
        shards = [
            terms[proof.contribution(src, r)][src.slices(shape, r)].astype(dtype)
            if r in src.mesh
            else nothing
            for r in world.ranks
        ]
        copies = [array.copy() for array in shards]
        route = plan(src, dst, shape, dtype, to_shape=to_shape)
        with record() as trace:
            after = proof.run(world, route, shards)
        target = total.reshape(to_shape or shape).astype(dtype)
        for array, rank in zip(after, world.ranks):
            if rank in dst.mesh:
                wanted = target[dst.slices(target.shape, rank)]
                assert array.shape == wanted.shape and np.array_equal(array, wanted), (src, dst, shape, rank)
        assert all(np.array_equal(a, b) for a, b in zip(shards, copies))
        assert [trace.planned(rank) for rank in world.ranks] == [route.nbytes(rank) for rank in world.ranks]
        assert all(event.nbytes == event.due for event in trace.events), str(trace)


@pytest.mark.ranks(4, 8)
@pytest.mark.parametrize("rows", [8, 520, 4096], ids=["small", "medium", "composed"])
def test_reductions_into_other_blocks_are_right(world: Any, rows: int) -> None:
    """Blocks cover part of the source, in any order, on several ranks or on another mesh."""
    mesh, other = Mesh((2, world.size // 2), ("a", "b")), Mesh((world.size // 2, 2), ("c", "d"))
    src, shape = mesh(None, None, partial="a"), (rows, 24)
    terms, total = proof.contributions(src, shape, rows)
    targets = [
        mesh("b", "a"),
        mesh(("a", "b"), None),
        mesh(None, ("b", "a")),
        mesh("a", None),
        other("c", "d"),
    ]
    for dtype in (np.int64, np.float32, np.int16):
        shards = [terms[proof.contribution(src, rank)].astype(dtype) for rank in world.ranks]
        for dst in targets:
            step = Step("reduce_scatter", ("a",), src, dst, shape, "sum")
            for algorithm in (None, "pairwise"):
                with record() as trace:
                    after = world.run(step, shards, algorithm)
                for array, rank in zip(after, world.ranks):
                    assert np.array_equal(array, total[dst.slices(shape, rank)].astype(dtype)), (
                        dst,
                        algorithm,
                    )
                assert [trace.planned(rank) for rank in world.ranks] == [
                    step.nbytes(rank, np.dtype(dtype).itemsize) for rank in world.ranks
                ]


#: Mesh, source, pending axes, target and axes that stay pending of sums that several ranks add.
DIRECT = [
    ((2, 2, 2), ("-", "a"), "b", ("b", "c"), None),
    ((2, 4), ("-", "a"), "b", ("a", "b"), None),
    ((2, 2, 2), ("-", "a"), "bc", ("-", "b"), "c"),
    ((2, 2, 2), ("bc", "-"), "a", ("cb", "-"), None),
]


def direct_steps(shape: tuple[int, int]) -> list[Step]:
    """Return direct reductions on eight ranks, also between disjoint and overlapping meshes."""
    moves = []
    for sizes, src, pending, dst, remaining_axis in DIRECT:
        mesh = Mesh(sizes, ("a", "b", "c")[: len(sizes)])
        one, other = ([None if e == "-" else tuple(e) for e in dims] for dims in (src, dst))
        partial = {} if remaining_axis is None else {remaining_axis: "sum"}
        moves.append(
            (mesh(*one, partial=dict.fromkeys(pending, "sum")), Layout(mesh, mesh(*other).dims, partial))
        )
    four, other_mesh = Mesh((4,), ("x",), [0, 1, 2, 3]), Mesh((2, 2), ("y", "z"), [7, 3, 5, 4])
    moves += [
        (four(None, None, partial="x"), other_mesh("z", "y")),
        (other_mesh("y", None, partial="z"), four(None, "x")),
    ]
    return [DirectReduction("reduce_exchange", (), src, dst, shape, "sum") for src, dst in moves]


@pytest.mark.ranks(8)
@pytest.mark.parametrize("shape", [(64, 64), (7, 13)])
@pytest.mark.parametrize(
    "op,dtype", [("sum", "i8"), ("sum", "f4"), ("avg", "f8"), ("max", "f4"), ("any", "?")]
)
def test_direct_reductions_are_right(world: Any, shape: tuple[int, int], op: str, dtype: str) -> None:
    """Results, bytes and placement are right on every rank."""
    combine = {"sum": np.sum, "avg": np.mean, "max": np.max, "any": np.any}[op]
    for step in direct_steps(shape):
        src, dst = (
            Layout(one.mesh, one.dims, dict.fromkeys(one.partial_axes, op)) for one in (step.src, step.dst)
        )
        step = DirectReduction("reduce_exchange", (), src, dst, shape, op)
        count = src.mesh.axis_size(*src.partial_axes)
        terms = np.random.default_rng(1).integers(-9, 9, (count, *shape)).astype(dtype)
        nothing = np.zeros((0, 0), dtype)
        shards = [
            np.ascontiguousarray(terms[proof.contribution(src, r)][src.slices(shape, r)])
            if r in src.mesh
            else nothing
            for r in world.ranks
        ]
        with record() as trace:
            after = world.run(step, shards)
        for array, rank in zip(after, world.ranks):
            if rank not in dst.mesh:
                continue
            own_terms = terms
            if dst.partial:  # select the terms of this rank along the remaining axis
                last = src.mesh.size_of[src.partial_axes[-1]]
                own_terms = terms[proof.contribution(src, rank) % last :: last]
            wanted = combine(own_terms, axis=0)[dst.slices(shape, rank)]
            np.testing.assert_allclose(array, wanted, rtol=1e-6)
        itemsize = np.dtype(dtype).itemsize
        assert [trace.planned(rank) for rank in world.ranks] == [
            step.nbytes(r, itemsize) for r in world.ranks
        ]
        assert all(event.nbytes == event.due for event in trace.events), str(trace)
        assert all(
            event.sent == tuple(sent_nbytes(step, rank, itemsize) for rank in world.ranks)
            for event in trace.events
        )


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "dtype,op", [("f8", "sum"), ("f2", "sum"), ("i4", "max"), ("f4", "avg"), ("?", "any")]
)
def test_tensors_become_pending(world: Any, dtype: str, op: str) -> None:
    """The value of each element is on one rank along a pending axis; gradients pass through."""
    mesh, other = Mesh((2, 2), ("a", "b")), Mesh((4,), ("x",))
    full_array = (np.arange(15) % 4).reshape(5, 3).astype(dtype)
    for src in (mesh(None, None), mesh("a", None), mesh(("b", "a"), None), other(None, "x")):
        for dims, axes in (((None, None), "ab"), (("b", None), "a"), ((None, "a"), "b")):
            dst = Layout(mesh, dims, dict.fromkeys(axes, op))
            x = Tensor.from_global(full_array, src, world)
            with record() as trace:
                y = x.to(dst)
            assert y.layout == dst and (any(src.dims) or not trace.nbytes())
            np.testing.assert_array_equal(y.full(), full_array)
            np.testing.assert_array_equal(y.reshape((3, 5), dst).full(), full_array.reshape(3, 5))
            if np.dtype(dtype).kind == "f":
                z = Tensor.from_global(full_array, src, world, requires_grad=True)
                (z.to(dst) * full_array).sum().backward()
                np.testing.assert_array_equal(z.grad.full(), full_array)
