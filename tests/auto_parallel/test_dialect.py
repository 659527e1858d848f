"""MindSpore's AutoParallel trains the tutorial's network with found strategies as with configured ones."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
from spmdsim import record
from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.mindspore.common.initializer import initializer
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError


class Network(nn.Cell):
    def __init__(self, configured: bool) -> None:
        super().__init__()
        self.w1 = ms.Parameter(initializer("normal", [64, 128], ms.float32))
        self.w2 = ms.Parameter(initializer("normal", [128, 10], ms.float32))
        self.matmul1 = ops.MatMul().shard(((1, 1), (1, 4))) if configured else ops.MatMul()
        self.relu = ops.ReLU()
        self.matmul2 = ops.MatMul()

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul1(x, self.w1)), self.w2)


def losses(mode: str, configured: bool) -> tuple[list[float], set[str]]:
    """Return the losses of three steps, and the strategies of the products in the last step."""
    ms.set_seed(1)
    net = Network(configured)
    optimizer = nn.SGD(net.trainable_params(), 1e-1)
    loss_fn = nn.CrossEntropyLoss()
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)

    def step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return loss

    run = AutoParallel(step, parallel_mode=mode)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 64)).astype("f4"), rng.integers(0, 10, 32).astype("i4")
    values = [float(run(x, y)) for _ in range(2)]
    with record() as trace:
        values.append(float(run(x, y)))
    return values, {event.strategy for event in trace.operators if event.name.startswith("matmul")}


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "mode, configured", [("recursive_programming", False), ("sharding_propagation", True)]
)
def test_found_strategies_give_the_losses_of_configured_ones(world, mode, configured):
    with use_world(world):
        expected, _ = losses("semi_auto", False)
        values, strategies = losses(mode, configured)
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    assert values[0] > values[-1]
    assert strategies and "replicated" not in strategies


def test_unknown_modes_are_refused():
    with pytest.raises(InputError, match="no parallel_mode is called 'magic'"):
        AutoParallel(lambda x: x, parallel_mode="magic")
