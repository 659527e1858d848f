"""The lower bound equals the number of elements that a rank needs and does not own."""

from __future__ import annotations

import itertools

import pytest

from spmdsim import Mesh, plan
from spmdsim.core import Layout, Partial, Replicate, Shard
from spmdsim.redistribution.bound.lower_bound import lower_bound


def share(indices: list[int], parts: int, position: int) -> list[int]:
    """Return a block of a list that is divided into `parts` blocks, the longer blocks first."""
    lengths = [len(range(k, len(indices), parts)) for k in range(parts)]
    start = sum(lengths[:position])
    return indices[start : start + lengths[position]]


def elements(layout: Layout, shape: tuple[int, ...], coordinates: dict[str, int]) -> set[tuple[int, ...]]:
    indices = [list(range(n)) for n in shape]
    for dim, entry in enumerate(layout.dims):
        for axis in entry:
            indices[dim] = share(
                indices[dim], dict(zip(layout.mesh.axes, layout.mesh.shape))[axis], coordinates[axis]
            )
    return set(itertools.product(*indices))


def placed(mesh: Mesh, choices: list) -> list[Layout]:
    return [
        Layout.from_placements(mesh, list(p), 2) for p in itertools.product(choices, repeat=len(mesh.axes))
    ]


@pytest.mark.parametrize("sizes", [(4,), (3,), (2, 2), (2, 3)])
@pytest.mark.parametrize("shape", [(4, 6), (5, 3)])
def test_the_bound_equals_the_number_of_missing_elements(sizes, shape):
    mesh = Mesh(sizes, ("a", "b")[: len(sizes)])
    layouts = placed(mesh, [Replicate(), Shard(0), Shard(1)])
    places = [dict(zip(mesh.axes, p)) for p in itertools.product(*map(range, sizes))]
    for src, dst in itertools.product(layouts, repeat=2):
        missing = [len(elements(dst, shape, at) - elements(src, shape, at)) for at in places]
        assert lower_bound(src, dst, shape).ranks.tolist() == missing
        assert lower_bound(src, dst, shape)[:2] == (max(missing), sum(missing))
        assert [plan(src, dst, shape, "f8").lower_bound(rank) for rank in range(mesh.size)] == [
            8 * m for m in missing
        ]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_bound_of_sums_equals_a_count_by_hand(ranks):
    """A sum of `n` contributions for `N` owners has `(n - 1) + (N - 1)` receptions per element."""
    mesh = Mesh((ranks,), ("a",))
    pending, shape = Layout.from_placements(mesh, [Partial()], 1), (30,)
    everywhere, split = mesh(None), mesh("a")
    assert lower_bound(pending, everywhere, shape)[:2] == (60 * (ranks - 1) // ranks, 60 * (ranks - 1))
    assert lower_bound(pending, split, shape)[:2] == (30 * (ranks - 1) // ranks, 30 * (ranks - 1))
    assert lower_bound(pending, split, shape).ranks.tolist() == [30 * (ranks - 1) // ranks] * ranks
