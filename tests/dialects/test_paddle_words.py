"""Frequent names of Paddle programs work besides the document's split: fleet, layers, placements, optimisers."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.paddle as paddle
from spmdsim import LockStep, Mesh, Tensor, nn, ops, record
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.distributed.fleet.layers import mpu
from spmdsim.dialects.paddle.distributed.fleet.meta_parallel import ColumnParallelLinear, RowParallelLinear
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError

RNG = np.random.default_rng(0)
X, W, BIAS = RNG.normal(size=(8, 4)), RNG.normal(size=(4, 6)), RNG.normal(size=6)


def strategy(**degrees):
    settings = fleet.DistributedStrategy()
    settings.hybrid_configs = degrees
    return settings


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "degrees, partitions", [({}, 4), (dict(mp_degree=2), 2), (dict(dp_degree=4, mp_degree=1), 1)]
)
def test_layers_are_split_by_the_degrees_of_fleet(world, degrees, partitions):
    with use_world(world):
        fleet.init(is_collective=True, strategy=strategy(**degrees))
        group = fleet.get_hybrid_communicate_group()
        assert group.get_model_parallel_world_size() == partitions
        assert group.get_data_parallel_world_size() == 4 // partitions
        assert group.get_model_parallel_rank() == world.ranks[0] % partitions
        column = ColumnParallelLinear(4, 8, has_bias=True, gather_output=False)
        assert column.weight.layout.cuts == (1, partitions) and column.bias.layout.cuts == (partitions,)
        assert mpu.ColumnParallelLinear is ColumnParallelLinear


@pytest.mark.ranks(4)
def test_degrees_that_do_not_fit_are_refused(world):
    with use_world(world):
        with pytest.raises(InputError, match=r"dp_degree \* mp_degree is 3 \* 2, but 4 ranks"):
            fleet.init(strategy=strategy(dp_degree=3, mp_degree=2))
        with pytest.raises(InputError, match=r"pp_degree=2 is not covered.*nearest: pp_degree=1"):
            fleet.init(strategy=strategy(mp_degree=2, pp_degree=2))
    with use_world(LockStep(1)), pytest.raises(InputError, match="spmdsim launch -n N"):
        fleet.init(strategy=strategy(mp_degree=2))


@pytest.mark.ranks(2)
def test_layers_with_given_values(world):
    """The third argument is weight_attr, and a column-parallel layer has no bias by default, as in Paddle."""
    values = paddle.nn.initializer.Assign(W)
    with use_world(world):
        fleet.init(is_collective=True)
        column = ColumnParallelLinear(4, 6, paddle.ParamAttr("w", values))
        assert column.bias is None and column.weight.name == "w"
        np.testing.assert_allclose(column(X.astype("f4")).numpy(), X @ W, rtol=1e-4)
        row = RowParallelLinear(4, 6, paddle.nn.initializer.Constant(0.5), True)
        np.testing.assert_allclose(row(X.astype("f4")).numpy(), (X @ np.full((4, 6), 0.5)), rtol=1e-4)
        words = paddle.VocabParallelEmbedding(4, 6, weight_attr=W)
        np.testing.assert_array_equal(words(paddle.to_tensor([3, 0])).numpy(), W[[3, 0]])
        with pytest.raises(InputError, match=r"must have its shape \(4, 6\), got \(6,\)"):
            RowParallelLinear(4, 6, BIAS)
        with pytest.raises(InputError, match="mp_group must be None"):
            RowParallelLinear(4, 6, mp_group=object())
        with pytest.raises(AssertionError, match="must be divisible"):
            RowParallelLinear(5, 6)
        paddle.seed(1)
        first, second = (ColumnParallelLinear(4, 6).weight.numpy() for _ in range(2))
        assert not np.array_equal(first, second)
        paddle.seed(1)
        np.testing.assert_array_equal(ColumnParallelLinear(4, 6).weight.numpy(), first)


@pytest.mark.ranks(2)
def test_split_takes_attributes(world):
    with use_world(world):
        fleet.init(is_collective=True)
        paddle.enable_static()
        y = paddle.distributed.split(
            X, (4, 6), "linear", axis=1, num_partitions=2,
            weight_attr=paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(W)), bias_attr=BIAS,
        )  # fmt: skip
        np.testing.assert_allclose(y.numpy(), X @ W + BIAS, rtol=1e-4)


@pytest.mark.ranks(4)
def test_cross_entropy_of_split_classes(world):
    """Ignored labels have the loss 0, and losses have the shape of labels."""
    logits = RNG.normal(size=(6, 8))
    labels = np.array([0, 7, -100, 3, 4, 1])
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels.clip(0)]
    losses[2] = 0
    with use_world(world):
        mesh = paddle.ProcessMesh([0, 1, 2, 3], dim_names=["mp"])
        x = paddle.distributed.shard_tensor(logits, mesh, [paddle.Shard(1)])
        loss = paddle.ParallelCrossEntropy(ignore_index=-100)
        np.testing.assert_allclose(loss(x, labels).numpy(), losses, rtol=1e-12)
        np.testing.assert_allclose(loss(x, labels[:, None]).numpy(), losses[:, None], rtol=1e-12)
        with pytest.raises(
            InputError, match="Expected input_dims - 1 = label_dims or input_dims == label_dims"
        ):
            loss(x, labels[:, None, None])


@pytest.mark.ranks(4)
def test_reshard_changes_the_placements(world):
    with use_world(world):
        dist = paddle.distributed
        mesh = dist.ProcessMesh([[0, 1], [2, 3]], dim_names=["x", "y"])
        a = dist.shard_tensor(paddle.to_tensor(X), mesh, [dist.Shard(0), dist.Replicate()])
        assert a.layout.cuts == (2, 1)
        b = dist.reshard(a, mesh, [dist.Replicate(), dist.Shard(1)])
        assert b.layout.cuts == (1, 2)
        np.testing.assert_array_equal(b.numpy(), X)
        shards = [np.full((2, 2), rank // 2) for rank in world.ranks]
        c = dist.dtensor_from_local(shards, mesh, [dist.Shard(0), dist.Replicate()])
        np.testing.assert_array_equal(c.numpy()[:, 0], [0, 0, 1, 1])


class MLP(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = paddle.VocabParallelEmbedding(8, 8, name="words")
        self.up = ColumnParallelLinear(8, 16, has_bias=True, gather_output=False, name="up")
        self.act = paddle.nn.GELU()
        self.down = RowParallelLinear(16, 8, input_is_parallel=True, name="down")

    def forward(self, ids):
        return self.down(self.act(self.up(self.words(ids))))


def losses(training_world, make_optimizer):
    """Return the losses of four steps of `MLP` in a world, and the collectives of the last backward pass."""
    with use_world(training_world):
        fleet.init(is_collective=True)
        model = fleet.distributed_model(MLP())
        optimizer = fleet.distributed_optimizer(make_optimizer(parameters=model.parameters()))
        loss_fn, values = paddle.nn.CrossEntropyLoss(), []
        ids = paddle.to_tensor(np.arange(8))
        for _ in range(4):
            loss = loss_fn(model(ids), ids)
            with record() as trace:
                loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            values.append(float(loss.numpy()))
        return values, trace.counts()


@pytest.mark.ranks(4)
def test_training_equals_one_process(world):
    """Losses equal those of one process.

    Forward, the embedding and the row-parallel layer reduce once each. Backward, Megatron's f reduces once.
    """
    for make in (
        lambda parameters: paddle.optimizer.Momentum(0.1, 0.9, parameters),
        lambda parameters: paddle.optimizer.AdamW(0.01, parameters=parameters),
    ):
        (expected, expected_counts), (losses_of_ranks, counts) = (
            losses(LockStep(1), make),
            losses(world, make),
        )
        assert expected[-1] < expected[0] and expected_counts == {}
        np.testing.assert_allclose(losses_of_ranks, expected, rtol=1e-5)
        assert counts == {"all_reduce": 1}


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "name, options, decay, decoupled",
    [("Adam", {}, 0, False), ("Adam", {"weight_decay": 0.3}, 0.3, False), ("AdamW", {}, 0.01, True),
     ("AdamW", {"weight_decay": 0.3}, 0.3, True)],
)  # fmt: skip
def test_adam_and_its_weight_decay(world, name, options, decay, decoupled):
    """Steps equal those of the package's Adam, which other tests compare with its formula."""
    ours, theirs = (
        Tensor.from_global(X, Mesh((2,), ("mp",))("mp", None), world, requires_grad=True) for _ in range(2)
    )
    for optimizer, x in (
        (nn.Adam([ours], 0.1, epsilon=1e-8, weight_decay=decay, decoupled=decoupled), ours),
        (getattr(paddle.optimizer, name)(0.1, 0.9, 0.999, 1e-8, [theirs], **options), theirs),
    ):
        for _ in range(3):
            nn.backward(ops.sum(ops.square(x)))
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(theirs.full(), ours.full(), rtol=1e-12)


@pytest.mark.ranks(2)
def test_a_gradient_of_a_product(world):
    with use_world(world):
        w = paddle.to_tensor(X, stop_gradient=False)
        paddle.sum(paddle.multiply(w, w)).backward()
        np.testing.assert_allclose(w.grad.numpy(), 2 * X)


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("error")
def test_constants_have_the_type_of_the_tensor_and_do_not_depend_on_its_elements(world):
    with use_world(world):
        for array in (np.float32([1, np.inf, np.nan]), np.int32([1, 2]), np.array([True, False])):
            x = paddle.to_tensor(array)
            for result, number in (
                (paddle.zeros_like(x), 0), (paddle.ones_like(x), 1), (paddle.full_like(x, 1), 1)
            ):  # fmt: skip
                wanted = np.full(array.shape, number, array.dtype)
                np.testing.assert_array_equal(result.numpy(), wanted, strict=True)
