"""MindSpore programs train with hsdp, set memory sizes, run functions by strategies, and mix tensors and parameters."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
from spmdsim import record
from spmdsim.dialects.mindspore import mint, nn, ops, runtime
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, UsageTypeError

RNG = np.random.default_rng(0)
X, Y, W, V = (RNG.normal(size=shape) for shape in ((8, 16), (8, 8), (16, 8), (8, 8)))


def train(configure=lambda net: None, cuts=((2, 1), (1, 2)), rate=0.1, count=3):
    """Train on the squares of a product's errors and return the network and its two parameters.

    Args:
        configure: function that sets options of the ``AutoParallel`` network.
        cuts: strategy of the first product.
        rate: learning rate.
        count: number of steps.
    """
    w, v = ms.Parameter(W, name="w"), ms.Parameter(V, name="v")
    first, second, loss = ops.MatMul().shard(cuts), ops.MatMul(), nn.MSELoss()
    optimizer = nn.Momentum([w, v], rate, 0.9)
    grad = ms.value_and_grad(lambda x, y: loss(second(first(x, w), v), y), None, optimizer.parameters)

    def step(x, y):
        value, gradients = grad(x, y)
        optimizer(gradients)
        return value

    net = AutoParallel(step)
    net.dataset_strategy("full_batch")
    configure(net)
    for _ in range(count):
        net(ms.Tensor(X), ms.Tensor(Y))
    return net, w, v


def train_with_numpy(rate=0.1, count=3):
    """Return the weights after ``count`` steps of `train`, computed with numpy."""
    w, v, moments = W.copy(), V.copy(), [0.0, 0.0]
    for _ in range(count):
        slope = 2 * (X @ w @ v - Y) / Y.size
        moments = [0.9 * m + g for m, g in zip(moments, (X.T @ slope @ v.T, (X @ w).T @ slope))]
        w, v = w - rate * moments[0], v - rate * moments[1]
    return w, v


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "shard_size, cuts", [(-1, {"w": (2, 2), "v": (4, 1)}), (2, {"w": (2, 2), "v": (2, 1)})]
)
def test_hsdp_stores_shards_and_trains_equally(world, shard_size, cuts):
    """Dim 0 of a parameter is split again over the ranks that own equal slices.

    Each half of the columns of w is on two ranks, and v is replicated on four ranks.
    """

    def set_hsdp(net):
        net.hsdp(shard_size, threshold=0, optimizer_level="level2")

    with use_world(world):
        _, w, v = train(set_hsdp)
        for parameter, expected in zip((w, v), train_with_numpy()):
            assert parameter.layout.cuts == cuts[parameter.name]
            np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-6)
        with record() as plain:
            train(count=1)
        with record() as shared:
            train(set_hsdp, count=1)
        assert "reduce_scatter" not in plain.counts() and shared.counts()["reduce_scatter"] == 2
        assert shared.counts()["all_gather"] >= plain.counts().get("all_gather", 0) + 2
        _, w, v = train(lambda net: net.hsdp(threshold=1))  # both have 1 KB at most
        assert (w.layout.cuts, v.layout.cuts) == ((2, 2), (1, 1))
        if shard_size == -1:
            fixed = ms.Parameter(V, name="u", parallel_optimizer=False)
            net = AutoParallel(lambda x: ops.MatMul()(x, fixed))
            set_hsdp(net)
            net(ms.Tensor(Y))
            assert fixed.layout.cuts == (1, 1)


@pytest.mark.ranks(2)
def test_hsdp_refuses_wrong_options(world):
    with use_world(world):
        net = AutoParallel(lambda x: x)
        for wrong, message in (
            ((0,), r"shard_size must be -1 or in 1\.\.2"), ((3,), "the number of ranks, got 3"), ((True,), "shard_size"),
            ((-1, -1), "threshold must be an integer"), ((-1, 64, "level4"), "one of level1, level2, level3"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=message):
                net.hsdp(*wrong)
        with pytest.raises(InputError, match="one stage here, got 2"):
            net.pipeline(stages=2)


@pytest.mark.ranks(4)
def test_levels_of_hsdp_have_their_collectives(world):
    """Level 1 reduces both gradients, and level 2 scatters them instead.

    Level 3 gathers a parameter again if a gradient reads it.
    """
    with use_world(world):
        counts = {}
        for level in (1, 2, 3):
            with record() as trace:
                _, w, v = train(lambda net: net.hsdp(threshold=0, optimizer_level=f"level{level}"), count=1)
            counts[level] = trace.counts()
            for parameter, expected in zip((w, v), train_with_numpy(count=1)):
                np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-9)
                assert parameter.layout.cuts == ((2, 2) if parameter is w else (4, 1))
        assert (
            counts[1]["all_reduce"] == counts[2].get("all_reduce", 0) + 2
            and "reduce_scatter" not in counts[1]
        )
        assert counts[2]["reduce_scatter"] == counts[3]["reduce_scatter"] == 2
        # Only v is gathered again, because only the gradient of x reads w, and no parameter needs it.
        assert counts[1]["all_gather"] == counts[2]["all_gather"] == counts[3]["all_gather"] - 1


def test_sizes_of_memory_are_checked():
    runtime.set_memory("2GB", "2GB", "28.5GB", "O1", "0GB")
    for wrong, kind in (
        (dict(max_size="28MB"), InputError), (dict(max_size="0GB"), InputError), (dict(max_size=28), UsageTypeError),
        (dict(optimize_level="O9"), InputError),
    ):  # fmt: skip
        with pytest.raises(kind):
            runtime.set_memory(**wrong)


@pytest.mark.ranks(2)
def test_a_function_with_a_strategy_runs_by_it(world):
    with use_world(world):
        product = ms.parallel.shard(mint.matmul, in_strategy=((1, 2), (2, 1)))
        with record() as trace:
            product(X, W).full()
        assert trace.counts()["all_reduce"] == 1
        with pytest.raises(InputError, match=r"a function of one operator, got flatten; nearest: \.shard on"):
            ms.parallel.shard(mint.flatten, ((2, 1),))
        with pytest.raises(RuntimeError, match="shard"):
            ms.parallel.shard(mint.matmul, ((1, 3), (3, 1)))(X, W)


def test_symbols_take_tensors_left_of_parameters():
    x, w = np.full((4, 3), 2, np.float32), np.full(3, 3, np.float32)
    parameter, square = (
        ms.Parameter(ms.Tensor(w), "w"),
        ms.Parameter(ms.Tensor(np.ones((3, 3), np.float32)), "v"),
    )
    for symbol in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow):
        np.testing.assert_allclose(symbol(ms.Tensor(x), parameter).asnumpy(), symbol(x, w))
    np.testing.assert_allclose((ms.Tensor(x) @ square).asnumpy(), x @ np.ones((3, 3), np.float32))
