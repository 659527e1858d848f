"""An operator that keeps no split warns once per line of the gathered bytes and a remedy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Op, Rule, Tensor, forbid_redistribution, ops, record
from spmdsim.errors import PlanError
from spmdsim.redistribution.guard import GatheringWarning, RedistributionWarning, guards

MESH = Mesh((4,), ("r",))


SORT = Op("sort_all", Rule.parse("a -> a", whole="a"), np.sort)


def test_gathering_warns_once_per_line_with_its_bytes():
    world = LockStep(4)
    with pytest.warns(GatheringWarning) as caught:
        for size in (8, 8, 12):
            x = Tensor.from_global(np.arange(size, 0.0, -1), MESH("r"), world)
            assert SORT(x).full()[0] == 1.0
    assert len(caught) == 1 and caught[0].filename == __file__
    words = str(caught[0].message)
    assert (
        "sort_all cannot keep how f64[8] S(0) is split: everything is gathered, 48 bytes to a rank" in words
    )
    assert "'a -> a'" in words and ".shard" in words


def test_requested_moves_and_kept_splits_do_not_warn():
    world = LockStep(4)
    x, replicated = (Tensor.from_global(np.ones(8), layout, world) for layout in (MESH("r"), MESH(None)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SORT(x.to(MESH(None)))
        SORT(replicated)
        ops.relu(x) + ops.relu(replicated)
        1.0 / ops.sum(x)  # the sum is pending and not split
        x[1:] + x[:-1]
        assert x[3].full() == 1  # one element


def test_the_innermost_block_decides_if_operators_may_move_operands():
    x = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("a",))("a", None), LockStep(2))
    before = len(guards)
    with forbid_redistribution():
        with forbid_redistribution("allow"):
            ops.matmul(x, x)
        with forbid_redistribution("warn"), pytest.warns(RedistributionWarning, match="matmul would move"):
            ops.matmul(x, x)
        with pytest.raises(PlanError, match="matmul would move an operand of shape"):
            ops.matmul(x, x)
    with forbid_redistribution("allow"), forbid_redistribution(), pytest.raises(PlanError):
        ops.matmul(x, x)
    assert len(guards) == before and ops.matmul(x, x).shape == (4, 4)


@pytest.mark.parametrize("count", [1, 9, 1000])
def test_each_distinct_row_is_received_once(count):
    """The id `count` is padding: its row is 0, and no rank receives it."""
    mesh, world, received = Mesh((2,), ("r",)), LockStep(2), 0
    rows = np.arange(1.0, 2 * count + 1).reshape(count, 2)
    table = Tensor.from_global(rows, mesh("r", None), world)
    for seed in range(12):
        choices = [0, count // 3, count // 2, count - 1, count][: 4 + seed % 2]
        ids = np.random.default_rng(seed).choice(choices, (2, 1 + seed // 2))
        with record() as trace:
            taken = ops.embedding(
                Tensor.from_global(ids, mesh(None, None), world), table, rows="owned", padding=count
            )
        np.testing.assert_array_equal(taken.full(), np.concatenate([rows, [[0.0, 0.0]]])[ids])
        for rank, (owned, _) in enumerate(table.layout.slices(rows.shape, rank) for rank in range(2)):
            missing = {*ids.flat} - {count, *range(count)[owned]}
            assert trace.nbytes(rank) == 2 * 8 * len(missing), (seed, rank)
            received += len(missing)
    assert received > 10 or count == 1
