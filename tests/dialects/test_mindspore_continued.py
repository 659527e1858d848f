"""The documents' programs trained on (examples/documents/operator_parallel_continued.py), on eight ranks as on one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from spmdsim import LockStep
from spmdsim.dialects.session import use_world

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "documents"


@pytest.fixture
def continued(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import operator_parallel_continued

    yield operator_parallel_continued
    for name in ("operator_parallel_continued", "operator_parallel", "chained_matmul", "layout_slices"):
        sys.modules.pop(name, None)


def adam(steps):
    """The chain's training with numpy, from the same first values."""
    import chained_matmul

    import spmdsim.dialects.mindspore as ms

    ms.set_seed(1)
    with use_world(LockStep(1)):
        net = chained_matmul.Chain(((1, 1), (1, 1)), ((1, 1), (1, 1)))
        net.get_parameters()
        weights = [p.asnumpy().astype(np.float64) for p in (net.w, net.y)]
    x = np.arange(32 * 64).reshape(32, 64) / 2048
    y, losses, state = x[:, :16] * 2, [], [[0.0, 0.0], [0.0, 0.0]]
    for k in range(1, steps + 1):
        error = x @ weights[0] @ weights[1] - y
        losses.append((error**2).mean())
        slope = 2 * error / error.size
        for i, g in enumerate((x.T @ slope @ weights[1].T, (x @ weights[0]).T @ slope)):
            m, v = state[i] = [0.9 * state[i][0] + 0.1 * g, 0.999 * state[i][1] + 0.001 * g * g]
            rate = 1e-2 * np.sqrt(1 - 0.999**k) / (1 - 0.9**k)
            weights[i] = weights[i] - rate * m / (np.sqrt(v) + 1e-8)
    return losses


@pytest.mark.ranks(8)
def test_the_slices_and_operators_that_run_by_them(world, continued, capsys):
    """The document's numbers: strides 8, 4, 4, 2, 1; 8, 4, 4, 1; 4, 4, 2, 1 of the coordinates, written out."""
    with use_world(world):
        numbers, slices = continued.layout_slices.main()
        weight, losses = continued.by_slices()
    assert numbers == [[0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 1, 5, 2, 6, 3, 7], [0, 0, 2, 2, 1, 1, 3, 3]]
    of_shard = ([0, 4, 2, 6, 1, 5, 3, 7], [0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 2, 2, 3, 3])
    for rank, pieces in zip(world.ranks, zip(*[x.shards for x in slices])):
        assert pieces[0].ravel().tolist() == [of_shard[0][rank]] and pieces[1].ravel().tolist() == [
            of_shard[1][rank]
        ]
        first = 4 * (of_shard[2][rank] // 2) + of_shard[2][rank] % 2  # the dim between the two is not cut
        assert pieces[2].ravel().tolist() == [first, first + 2]
    assert losses == [11.5, 2.875, 0.71875, 0.1796875], "the distance to ones is halved by every step"
    (held,) = continued.layout_slices.full
    assert all(
        weight.layout.bounds(weight.shape, rank) == held.bounds(weight.shape, rank) for rank in range(8)
    )


@pytest.mark.ranks(8)
def test_the_chained_products_train_as_one_process_does(world, continued):
    with use_world(world):
        losses = continued.chain(6)
    np.testing.assert_allclose(losses, adam(6), rtol=2e-4)
    assert losses[-1] < losses[0]


@pytest.mark.ranks(8)
def test_the_tutorial_trains_on_as_one_process_does(world, continued):
    def on(where):
        with use_world(where):
            network = continued.operator_parallel.Network
            if where.size == 1:  # the tutorial's cuts are of eight ranks
                monkey = continued.operator_parallel.Network = type(
                    "One", (network,), {"__init__": without_cuts(network)}
                )
                assert monkey is not network
            try:
                return continued.tutorial(4)
            finally:
                continued.operator_parallel.Network = network

    losses, accuracy, kept = on(world)
    alone, expected, _ = on(LockStep(1))
    np.testing.assert_allclose(losses, alone, rtol=1e-4)
    assert abs(accuracy - expected) <= 2 / 128
    assert kept == {"fc1_weight": (8, 1), "fc2_weight": (8, 1), "fc3_weight": (1, 1)}  # the last is of 20 KB


def without_cuts(network):
    from spmdsim.dialects.mindspore import ops

    def __init__(self):
        network.__init__(self)
        self.matmul1, self.matmul2, self.relu1, self.relu2 = (
            ops.MatMul(),
            ops.MatMul(),
            ops.ReLU(),
            ops.ReLU(),
        )

    return __init__
