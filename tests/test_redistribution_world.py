"""A random sample of layout pairs in the world at hand: lock step here, real ranks under mpirun."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from scripts import redistribution_proof as proof
from spmdsim.layout import Layout, Mesh
from spmdsim.redistribution import plan
from spmdsim.redistribution.every import every_layout, every_mesh
from spmdsim.redistribution.step import Step
from spmdsim.trace import record

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
    """All meshes of the world, and some of other orders and subsets of its ranks."""
    ranks = list(range(size))
    odd = [Mesh((size,), ("all",), ranks[::-1])]
    if size > 2:
        odd += [Mesh((size // 2,), ("half",), ranks[: size // 2]), Mesh((2,), ("two",), [size - 1, 1])]
    return [*every_mesh(size), *odd]


def cases(size: int, count: int) -> list[tuple[Layout, Layout, tuple[int, ...], tuple[int, ...] | None]]:
    choose = random.Random(size)
    found = []
    for _ in range(count):
        shape = choose.choice(SHAPES)
        to_shape = RESHAPES[shape] if choose.random() < 0.2 else None
        before = choose.choice(meshes(size))
        after = before if choose.random() < 0.6 else choose.choice(meshes(size))
        src = choose.choice(every_layout(before, len(shape), partial=choose.random() < 0.4))
        dst = choose.choice(every_layout(after, len(to_shape or shape)))
        found.append((src, dst, shape, to_shape))
    return found


@pytest.mark.ranks(2, 4, 8)
def test_any_layout_reaches_any_layout(world: Any) -> None:
    for number, (src, dst, shape, to_shape) in enumerate(cases(world.size, 200)):
        dtype = DTYPES[number % len(DTYPES)]
        pieces, whole = proof.contributions(src, shape, number)
        nothing = np.zeros((0,) * len(shape), dtype)
        given = [
            pieces[proof.contribution(src, r)][src.slices(shape, r)].astype(dtype)
            if r in src.mesh
            else nothing
            for r in world.ranks
        ]
        kept = [array.copy() for array in given]
        found = plan(src, dst, shape, dtype, to_shape=to_shape)
        with record() as trace:
            after = proof.run(world, found, given)
        target = whole.reshape(to_shape or shape).astype(dtype)
        for array, rank in zip(after, world.ranks):
            if rank in dst.mesh:
                wanted = target[dst.slices(target.shape, rank)]
                assert array.shape == wanted.shape and np.array_equal(array, wanted), (src, dst, shape, rank)
        assert all(np.array_equal(a, b) for a, b in zip(given, kept))
        assert [trace.planned(rank) for rank in world.ranks] == [found.nbytes(rank) for rank in world.ranks]
        assert all(event.nbytes == event.due for event in trace.events), str(trace)


@pytest.mark.ranks(4, 8)
@pytest.mark.parametrize("rows", [8, 520, 4096], ids=["small", "medium", "composed"])
def test_reductions_into_parts_of_what_ranks_hold(world: Any, rows: int) -> None:
    """Blocks that are not all of the source, not in its order, the same for several ranks, or on another mesh."""
    mesh, other = Mesh((2, world.size // 2), ("a", "b")), Mesh((world.size // 2, 2), ("c", "d"))
    src, shape = mesh(None, None, partial="a"), (rows, 24)
    pieces, whole = proof.contributions(src, shape, rows)
    targets = [
        mesh("b", "a"),
        mesh(("a", "b"), None),
        mesh(None, ("b", "a")),
        mesh("a", None),
        other("c", "d"),
    ]
    for dtype in (np.int64, np.float32, np.int16):
        given = [pieces[proof.contribution(src, rank)].astype(dtype) for rank in world.ranks]
        for dst in targets:
            step = Step("reduce_scatter", ("a",), src, dst, shape, "sum")
            for algorithm in (None, "pairwise"):
                with record() as trace:
                    after = world.run(step, given, algorithm)
                for array, rank in zip(after, world.ranks):
                    assert np.array_equal(array, whole[dst.slices(shape, rank)].astype(dtype)), (
                        dst,
                        algorithm,
                    )
                assert [trace.planned(rank) for rank in world.ranks] == [
                    step.nbytes(rank, np.dtype(dtype).itemsize) for rank in world.ranks
                ]
