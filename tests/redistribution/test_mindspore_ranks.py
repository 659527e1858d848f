"""MindSpore's reshards support any rank list and device count, and refuse invalid layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from mindspore_offline import (
    needed_ranks,
    operator_map,
    reshard_map,
    stack,
    written_slice,
)
from mindspore_slices import apply

from spmdsim.core import Mesh
from spmdsim.dialects.imitations.mindspore.map_layouts import MapLayout, expand_tuples, infer_operators, unify
from spmdsim.dialects.imitations.mindspore.map_operators import operators
from spmdsim.errors import PlanError
from spmdsim.redistribution import plan
from tests.redistribution.test_mindspore import box


@pytest.mark.parametrize(
    "ranks", [[*range(8, 16)], [3, 1, 4, 0, 7, 6, 2, 5], [9, 7, 5, 3, 1, 8, 6, 4]], ids=str
)
def test_reshards_on_any_rank_list_reach_their_target(ranks: list[int]) -> None:
    """Merged concats depend on the positions of ranks in the list."""
    shape = (16, 16)
    full_array = np.arange(16 * 16).reshape(shape)
    layouts: list[tuple[tuple[int, ...], list[int | list[int]]]] = [
        ((2, 4), [[1, 0], -1]),
        ((2, 4), [[0, 1], -1]),
        ((1, 4, 2), [[0, 1], -1]),
        ((4, 2), [0, -1]),
        ((2, 2, 2), [[0, 2, 1], -1]),
        ((2, 2, 2), [-1, [1, 0, 2]]),
        ((8,), [0, -1]),
    ]
    merged = 0
    for one, other in itertools.permutations(layouts, 2):
        before, after = (expand_tuples(matrix, entries, shape) for matrix, entries in (one, other))
        slices = {r: full_array.reshape(before.shape)[box(before, i)] for i, r in enumerate(ranks)}
        slices = {r: s.reshape(written_slice((*one, shape))) for r, s in slices.items()}
        for rank in ranks[:3]:
            op_map = reshard_map((*one, shape), (*other, shape), rank, ranks)
            wanted = full_array.reshape(after.shape)[box(after, ranks.index(rank))]
            slice_of_rank = apply(op_map, slices)[rank]
            assert slice_of_rank.shape == written_slice((*other, shape)), (one, other)
            assert np.array_equal(slice_of_rank.ravel(), wanted.ravel()), (one, other)
            groups = [len(op.args) - 1 for op in op_map.get(rank, []) if op.name == "AllConcat"]
            merged += one[0] == (2, 2, 2) and max(groups, default=0) > 2
    assert merged


def test_a_reshard_to_more_devices_repeats_the_source() -> None:
    full_array = np.arange(64).reshape(8, 8)
    slices = {rank: full_array[rank % 4 * 2 :][:2] for rank in range(8)}
    for rank in range(8):
        op_map = reshard_map(([4], [0, -1], [8, 8]), ([8], [-1, 0], [8, 8]), rank)
        np.testing.assert_array_equal(apply(op_map, slices)[rank], full_array[:, rank : rank + 1])


def test_layouts_may_be_lists() -> None:
    one, other = [[2, 4], [0, -1], [8, 8]], [[2, 2, 2], [1, -1], [8, 8]]
    before, after = MapLayout((2, 4), (0, -1), (8, 8)), MapLayout((2, 2, 2), (1, -1), (8, 8))
    assert operators(one, other, 3) == operators(before, after, 3)
    assert operator_map(one, other) == operator_map(before, after)
    assert unify(one, other) == unify(before, after)
    assert needed_ranks(one, other, 3) == needed_ranks(before, after, 3)
    with pytest.raises(PlanError, match="a device matrix, a map and a shape"):
        operators([[2, 4], [0, -1]], [[2, 4], [0, -1]], 0)


def test_a_plan_on_other_ranks_reports_its_first_rank_by_default() -> None:
    mesh = Mesh((2, 4), ("a", "b"), [11, 8, 13, 10, 15, 12, 9, 14])
    theirs = plan(mesh("a", "b"), mesh(None, ("b", "a")), (16, 16), style="mindspore")
    assert theirs.operators() == theirs.operators(11) and theirs.nbytes() == theirs.nbytes(11) > 0
    assert set(theirs.to_dict()["operators"]) == {str(rank) for rank in range(8, 16)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reshard_map(([8], [0, -1], [8, 8]), ([8], [-1, 1], [8, 8]), 0), "names 1"),
        (
            lambda: reshard_map(([8], [0, 0], [8, 8]), ([8], [-1, 0], [8, 8]), 0),
            "must name each axis at most once",
        ),
        (lambda: reshard_map(([8], [0, -1], [8, 8]), ([8], [0], [8, 8]), 0), "one entry per dim"),
        (lambda: reshard_map(([8], [0, -1], [8, 8]), ([8], [-1, 0], [8, 8]), 9), "rank 9 is not in"),
        (lambda: reshard_map(([8], [0], [8]), ([8], [-1], [8]), 0, [0, 1, 2]), "8 ranks, each once"),
        (lambda: operators(MapLayout((4,), (0,), (8,)), MapLayout((8,), (0,), (8,)), 0), "4 and 8 devices"),
        (lambda: unify(MapLayout((4,), (1,), (8,)), MapLayout((4,), (0,), (8,))), "names 1"),
        (lambda: infer_operators((4,), (0, -1), (0,)), "equally long"),
        (
            lambda: needed_ranks(MapLayout((4,), (0,), (8,)), MapLayout((4,), (-1,), (8,)), 4),
            "rank 4 is none",
        ),
        (lambda: stack(operator_map(MapLayout((4,), (0,), (8,)), MapLayout((4,), (-1,), (8,))), 5), "rank 5"),
    ],
)
def test_invalid_layouts_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        call()
