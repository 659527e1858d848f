"""The documents' programs trained on (examples/documents/operator_parallel_continued.py), on eight ranks as on one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from spmdsim import LockStep
from spmdsim.dialects.session import use_world

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "documents"


@pytest.fixture
def continued(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import operator_parallel_continued

    yield operator_parallel_continued
    for name in ("operator_parallel_continued", "operator_parallel", "chained_matmul"):
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
            weights[i] = weights[i] - 1e-2 * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    return losses


@pytest.mark.ranks(8)
def test_the_slices_and_an_operator_that_runs_by_them(world, continued):
    with use_world(world):
        numbers, found = continued.slices()
        assert numbers == [0, 4, 2, 6, 1, 5, 3, 7]
        x = np.maximum(np.arange(-4, 4).reshape(1, 2, 1, 2, 2), 0).ravel()
        for rank, shard in zip(world.ranks, found.shards):
            assert shard.ravel().tolist() == [x[numbers[rank]]]


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
