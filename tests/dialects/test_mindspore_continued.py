"""The programs of examples/documents/operator_parallel_continued.py train equally on 1 and 8 ranks."""

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


def compute_chain_losses(steps):
    """Return the losses of the chain's training with numpy's Adam, one per step, from equal first values."""
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
def test_slices_of_layouts_equal_the_numbers_of_the_document(world, continued, capsys):
    """The slices follow the strides of the document, and operators compute with these slices.

    The coordinates have the strides 8, 4, 4, 2, 1; then 8, 4, 4, 1; then 4, 4, 2, 1.
    """
    with use_world(world):
        numbers, slices = continued.layout_slices.main()
        weight, losses = continued.by_slices()
    assert numbers == [[0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 1, 5, 2, 6, 3, 7], [0, 0, 2, 2, 1, 1, 3, 3]]
    shard_numbers = ([0, 4, 2, 6, 1, 5, 3, 7], [0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 2, 2, 3, 3])
    for rank, rank_slices in zip(world.ranks, zip(*[x.shards for x in slices])):
        assert rank_slices[0].ravel().tolist() == [shard_numbers[0][rank]] and rank_slices[
            1
        ].ravel().tolist() == [shard_numbers[1][rank]]
        first = (
            4 * (shard_numbers[2][rank] // 2) + shard_numbers[2][rank] % 2
        )  # the dim in between is not cut
        assert rank_slices[2].ravel().tolist() == [first, first + 2]
    assert losses == [11.5, 2.875, 0.71875, 0.1796875], "the distance to ones is halved by every step"
    (full_layout,) = continued.layout_slices.full
    assert all(
        weight.layout.bounds(weight.shape, rank) == full_layout.bounds(weight.shape, rank)
        for rank in range(8)
    )


@pytest.mark.ranks(8)
def test_the_chained_products_train_as_in_one_process(world, continued):
    with use_world(world):
        losses = continued.chain(6)
    np.testing.assert_allclose(losses, compute_chain_losses(6), rtol=2e-4)
    assert losses[-1] < losses[0]


@pytest.mark.ranks(8)
def test_the_tutorial_continues_training_as_in_one_process(world, continued):
    def train_tutorial(training_world):
        """Return losses, accuracy and cuts of the optimizer's state after four steps in a world."""
        with use_world(training_world):
            network = continued.operator_parallel.Network
            if training_world.size == 1:  # the tutorial's cuts need eight ranks
                replacement = continued.operator_parallel.Network = type(
                    "One", (network,), {"__init__": without_cuts(network)}
                )
                assert replacement is not network
            try:
                return continued.tutorial(4)
            finally:
                continued.operator_parallel.Network = network

    losses, accuracy, state_cuts = train_tutorial(world)
    expected_losses, expected_accuracy, _ = train_tutorial(LockStep(1))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert abs(accuracy - expected_accuracy) <= 2 / 128
    assert state_cuts == {
        "fc1_weight": (8, 1),
        "fc2_weight": (8, 1),
        "fc3_weight": (1, 1),
    }  # the last weight has 20 KB, less than the threshold


def without_cuts(network):
    """Return an ``__init__`` that replaces the operators of the network by operators without a strategy."""
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
