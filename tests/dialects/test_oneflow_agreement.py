"""OneFlow's errors name ranks that disagree, and global tensors that cannot have the requested placement and sbp."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
from spmdsim.dialects.oneflow.rank_agreement import (
    check_same,
    list_call_facts,
    report_different_code,
    report_unsupported_transition,
)
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import use_world
from spmdsim.errors import PlanError, WorldError
from spmdsim.worlds import LockStep

S0, S1, B = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast


def make_placement(*ranks):
    return flow.placement("cpu", list(ranks))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            list_call_facts(make_placement(1, 0), S0, np.ones(2)),
            "same input placement. Inconsistent parallel description: rank 0 has",
        ),
        (
            list_call_facts(make_placement(0, 1), B, np.ones(2)),
            r"same input sbp: rank 0 has S\(0\), rank 1 has B",
        ),
        (
            list_call_facts(make_placement(0, 1), S0, np.zeros(2)),
            "Each rank must have same input sequence or numpy array",
        ),
        (list_call_facts(make_placement(0, 1), S0, np.ones(3)), "rank 1 has shape .3,."),
        (
            list_call_facts(make_placement(0, 1), S0, np.ones(2, "f4")),
            "same dtype: rank 0 has float64, rank 1 has float32",
        ),
    ],
)
def test_the_first_rank_that_differs_is_named(other, words):
    same = list_call_facts(make_placement(0, 1), S0, np.ones(2))
    check_same(LockStep(3), [same] * 3)
    with pytest.raises(OneFlowError, match=words):
        check_same(LockStep(3), [same, other, same])


@pytest.mark.ranks(2)
def test_real_ranks_with_different_arguments_are_refused(world):
    """Real ranks may pass different arguments; a process that owns all ranks passes equal ones."""
    owns_all_ranks = len(world.ranks) == world.size
    rank = world.ranks[0]
    with use_world(world):
        calls = [
            (lambda: flow.tensor(np.full(4, float(rank)), make_placement(0, 1), S0), "same input sequence"),
            (lambda: flow.tensor(np.ones(4), make_placement(0, 1), B if rank else S0), "same input sbp"),
            (
                lambda: flow.tensor(np.ones(4), make_placement(*[[0, 1], [1, 0]][rank]), S0),
                "Inconsistent parallel",
            ),
            (lambda: flow.randn(2, 2).to_global(make_placement(0, 1), B if rank else S0), "same input sbp"),
        ]
        for call, words in calls:
            if owns_all_ranks:
                call()
                continue
            with pytest.raises(OneFlowError, match=words):
                call()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: x.to_global(make_placement(0, 5)),
            "rank must be less than world size! .* has rank 5, but 2 ranks",
        ),
        (lambda x: flow.tensor(np.ones(4), make_placement(0, 7), S0), "rank must be less than world size"),
        (lambda x: x.to_global(sbp=flow.sbp.split(2)), r"range of \[0, 2\), but got 2"),
        (lambda x: flow.tensor(np.ones((1, 4)), make_placement(0, 1), S0), "Expected size at split axis"),
        (
            lambda x: flow.tensor(np.ones((4, 1)), make_placement(0, 1), S0).to_global(sbp=S1),
            "Expected size at split axis",
        ),
        (
            lambda x: flow.add(x, flow.tensor(np.ones((4, 4)), make_placement(0), B)),
            "at least two placements",
        ),
        (lambda x: x.to_local().to_local(), "Expected global tensor for to_local but got local tensor!"),
    ],
)
def test_errors_have_the_texts_of_oneflow(call, words, world):
    with use_world(world):
        x = flow.tensor(np.ones((4, 4)), make_placement(0, 1), S0)
        with pytest.raises(OneFlowError, match=words):
            call(x)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("sbp", "words"),
    [
        (S0, "Sizes of tensors in dimension 0 must be same or match balanced split distribution"),
        (S1, "must match except in dimension 1. Expected size 2 but got size 4 for tensor on rank 1!"),
        (B, "must match. Expected size 2 but got size 4 for tensor on rank 1!"),
    ],
)
def test_local_tensors_that_do_not_fit_are_refused(sbp, words, world):
    with use_world(world):
        local = flow.LocalTensor([np.zeros((2 * (1 + rank), 4)) for rank in world.ranks])
        with pytest.raises(OneFlowError, match=words):
            local.to_global(make_placement(0, 1), sbp)
        mixed = flow.LocalTensor([np.zeros((2, 4), ["f4", "f8"][rank]) for rank in world.ranks])
        with pytest.raises(OneFlowError, match="at least two dtypes, float32 and float64"):
            mixed.to_global(make_placement(0, 1), S0)


@pytest.mark.ranks(2)
def test_an_unchanged_placement_returns_the_tensor_itself(world):
    with use_world(world):
        x = flow.tensor(np.ones((4, 4)), make_placement(0, 1), S0)
        assert x.to_global(sbp=S0) is x and x.to_global(make_placement(0, 1)) is x
        assert x.to_global(sbp=S0, copy=True) is not x
        assert x.to_global(sbp=B).sbp == (B,)


def test_different_code_and_unsupported_transitions_are_reported():
    words = r"Maybe executing different code in different ranks.* rank 1 called"
    with pytest.raises(OneFlowError, match=words), report_different_code():
        raise WorldError("rank 1 called something else")
    with use_world(LockStep(2)):
        x = flow.tensor(np.ones((4, 4)), make_placement(0, 1), S0)
    words = r"global-to-global not supported. from_nd_sbp: S\(0\), to_nd_sbp: B, from_placement: .*: no way"
    with (
        pytest.raises(OneFlowError, match=words),
        report_unsupported_transition(x, (make_placement(0, 1), B)),
    ):
        raise PlanError("no way")
