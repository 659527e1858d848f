"""MindSpore's redistributions support any rank list and order of axes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from spmdsim.core import Mesh
from spmdsim.redistribution import plan
from tests.redistribution.test_mindspore import check_data, mindspore_plan


@pytest.mark.parametrize(
    "ranks", [[*range(8, 16)], [3, 1, 4, 0, 7, 6, 2, 5], [9, 7, 5, 3, 1, 8, 6, 4]], ids=str
)
def test_redistributions_on_any_rank_list_reach_their_target(ranks: list[int]) -> None:
    shape = (16, 16)
    layouts: list[tuple[tuple[int, ...], list[Any]]] = [
        ((2, 4), [[1, 0], -1]),
        ((2, 4), [[0, 1], -1]),
        ((1, 4, 2), [[0, 1], -1]),
        ((4, 2), [0, -1]),
        ((2, 2, 2), [[0, 2, 1], -1]),
        ((2, 2, 2), [-1, [1, 0, 2]]),
        ((8,), [0, -1]),
    ]
    groups = set()
    for one, other in itertools.permutations(layouts, 2):
        theirs = mindspore_plan((*one, shape), (*other, shape), ranks=ranks)
        check_data(theirs)
        groups |= {tuple(op.args[:-1]) for op in theirs.operators() if op.name == "AllConcat"}
    assert {*itertools.chain(*groups)} <= {*ranks} and len(groups) > 3


def test_a_plan_on_other_ranks_reports_its_first_rank_by_default() -> None:
    mesh = Mesh((2, 4), ("a", "b"), [11, 8, 13, 10, 15, 12, 9, 14])
    theirs = plan(mesh("a", "b"), mesh(None, ("b", "a")), (16, 16), style="mindspore")
    assert theirs.operators() == theirs.operators(11) and theirs.nbytes() == theirs.nbytes(11) > 0
    assert set(theirs.to_dict()["operators"]) == {str(rank) for rank in range(8, 16)}
