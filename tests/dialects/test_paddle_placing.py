"""Paddle's tensors, parameters and layers on meshes are new leaves, keep types and pending sums, and train."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.paddle as paddle
import spmdsim.dialects.paddle.distributed as dist
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, LayoutError, UsageTypeError

X = np.arange(12, dtype="f4").reshape(4, 3) - 5
UP, DOWN = np.linspace(-1, 1, 18, dtype="f4").reshape(3, 6), np.linspace(2, -1, 12, dtype="f4").reshape(6, 2)


def make_mesh():
    return dist.ProcessMesh([0, 1], dim_names=["x"])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("placement", [dist.Replicate(), dist.Shard(0)], ids=str)
def test_a_sharded_tensor_is_a_new_tensor(world, placement):
    """The source of a sharded tensor keeps its stop_gradient and gets no gradient."""
    with use_world(world):
        source = paddle.to_tensor(X)
        trained = dist.shard_tensor(source, make_mesh(), [placement], stop_gradient=False)
        assert source.stop_gradient and not trained.stop_gradient
        again = dist.shard_tensor(trained, make_mesh(), [placement])
        assert again is not trained and not again.stop_gradient
        again.stop_gradient = True
        assert not trained.stop_gradient
        leaf = paddle.to_tensor(X, stop_gradient=False)
        moved = dist.shard_tensor(leaf * 2, make_mesh(), [placement])
        (moved * 3).sum().backward()
        assert leaf.grad is None and moved.is_leaf
        np.testing.assert_array_equal(moved.grad.numpy(), np.full_like(X, 3))


@pytest.mark.ranks(2)
def test_sharded_tensors_have_the_requested_type(world):
    with use_world(world):
        for data in (X, X.tolist(), paddle.to_tensor(X)):
            y = dist.shard_tensor(data, make_mesh(), [dist.Shard(0)], dtype="float64")
            assert y.dtype == np.float64
            np.testing.assert_array_equal(y.numpy(), X)
        assert dist.shard_tensor(X.astype("i4"), make_mesh(), [dist.Shard(0)]).dtype == np.int32
        for integers in (X.astype("i4"), paddle.to_tensor(X.astype("i4"))):
            with pytest.raises(UsageTypeError, match="a tensor of int32 has no gradient"):
                dist.shard_tensor(integers, make_mesh(), [dist.Shard(0)], stop_gradient=False)
        with pytest.raises(LayoutError, match=r"S\(2\) on axis 'x' is out of range"):
            dist.shard_tensor(paddle.to_tensor(X), make_mesh(), [dist.Shard(2)])


@pytest.mark.ranks(2)
def test_a_sharded_parameter_is_a_parameter(world):
    """The layer lists a sharded parameter, the optimiser trains it, and it keeps its placements."""
    with use_world(world):
        layer = paddle.nn.Linear(3, 6, weight_attr=UP)
        original = layer.weight
        layer.weight = dist.shard_tensor(original, make_mesh(), [dist.Shard(1)])
        layer.bias = dist.shard_tensor(layer.bias, make_mesh(), [dist.Replicate()], stop_gradient=True)
        assert [p.name for p in layer.parameters()] == [original.name, layer.bias.name]
        assert layer.weight.placements == [dist.Shard(1)] and original.layout.cuts == (1, 1)
        assert not layer.weight.stop_gradient and layer.bias.stop_gradient
        optimizer = paddle.optimizer.SGD(0.5, parameters=layer.parameters())
        for _ in range(2):
            layer(X).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        wanted = UP - X.sum(0)[:, None]
        np.testing.assert_allclose(layer.weight.numpy(), wanted, rtol=1e-5)
        assert layer.weight.placements == [dist.Shard(1)]
        np.testing.assert_array_equal(original.numpy(), UP)
        np.testing.assert_array_equal(layer.bias.numpy(), np.zeros(6))
        assert (
            dist.shard_tensor(layer.weight, make_mesh(), [dist.Shard(0)], dtype="float64").dtype == np.float64
        )


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", ["kRedSum", "kRedMax", "kRedMin", "kRedAvg"])
def test_tensors_become_pending_and_are_reduced_again(world, kind):
    """Replicated and split tensors become pending and are reduced to their values; gradients pass through."""
    mesh = dist.ProcessMesh([[0, 1], [2, 3]], dim_names=["x", "y"])
    pending = dist.Partial(getattr(dist.ReduceType, kind))
    with use_world(world):
        for placements in (
            [dist.Replicate()] * 2,
            [dist.Shard(0), dist.Replicate()],
            [dist.Shard(1), dist.Shard(0)],
        ):
            leaf = dist.shard_tensor(X, mesh, placements, stop_gradient=False)
            y = dist.reshard(leaf, mesh, [dist.Replicate(), pending])
            assert y.placements == [dist.Replicate(), pending]
            np.testing.assert_array_equal(y.numpy(), X)
            reduced = dist.reshard(y, mesh, [dist.Shard(0), dist.Replicate()])
            np.testing.assert_array_equal(reduced.numpy(), X)
            (reduced * 2).sum().backward()
            np.testing.assert_array_equal(leaf.grad.numpy(), np.full_like(X, 2))
        tensor = dist.shard_tensor(paddle.to_tensor(X), mesh, [pending, dist.Replicate()])
        assert tensor.placements == [pending, dist.Replicate()]
        np.testing.assert_array_equal(tensor.numpy(), X)


@pytest.mark.ranks(2)
def test_a_pending_sum_is_on_the_first_rank(world):
    with use_world(world):
        y = dist.reshard(dist.shard_tensor(X, make_mesh(), [dist.Replicate()]), make_mesh(), [dist.Partial()])
        for rank, shard in zip(world.ranks, y.shards):
            np.testing.assert_array_equal(shard, X if rank == 0 else 0 * X)
        with pytest.raises(
            UsageTypeError,
            match="reshard: dist_tensor must be a tensor, got a ndarray; nearest: shard_tensor",
        ):
            dist.reshard(X, make_mesh(), [dist.Replicate()])


@pytest.mark.ranks(2)
def test_tensors_from_functions_are_unsharded(world):
    with use_world(world):
        ones = dist.dtensor_from_fn(paddle.ones, make_mesh(), [dist.Shard(0)], shape=[4, 3], dtype="float64")
        assert ones.placements == [dist.Shard(0)] and ones.dtype == np.float64
        replicated = dist.unshard_dtensor(ones)
        assert replicated.placements == [dist.Replicate()]
        np.testing.assert_array_equal(replicated.numpy(), np.ones((4, 3)))


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.up = paddle.nn.Linear(3, 6, weight_attr=UP)
        self.down = paddle.nn.Linear(6, 2, weight_attr=DOWN)

    def forward(self, x):
        return self.down(paddle.nn.functional.relu(self.up(x)))


def train_with_numpy(steps, rate=0.01):
    """Return the losses of ``steps`` steps in float64, and the last weight of `Net.up`."""
    x, up, down, a, b = X.astype("f8"), UP.astype("f8"), DOWN.astype("f8"), np.zeros(6), np.zeros(2)
    losses = []
    for _ in range(steps):
        h = x @ up + a
        r = np.maximum(h, 0)
        y = r @ down + b
        losses.append((y**2).mean())
        dy = 2 * y / y.size
        dh = dy @ down.T * (h > 0)
        down, b, up, a = (
            down - rate * r.T @ dy,
            b - rate * dy.sum(0),
            up - rate * x.T @ dh,
            a - rate * dh.sum(0),
        )
    return losses, up


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sharded", [True, False])
def test_shard_layer_places_parameters_inputs_and_outputs(world, sharded):
    """Layers are split by columns, then by rows, and losses equal those of one process."""
    names = []

    def lay_out(name, layer, mesh):
        names.append(name)
        if name == "up":
            layer.weight = dist.shard_tensor(layer.weight, mesh, [dist.Shard(1)])
            layer.bias = dist.shard_tensor(layer.bias, mesh, [dist.Shard(0)])
        elif name == "down":
            layer.weight = dist.shard_tensor(layer.weight, mesh, [dist.Shard(0)])

    with use_world(world):
        net = dist.shard_layer(
            Net(), make_mesh(), lay_out if sharded else None,
            lambda inputs, mesh: [dist.shard_tensor(x, mesh, [dist.Replicate()]) for x in inputs],
            lambda output, mesh: dist.reshard(output, mesh, [dist.Replicate()]),
        )  # fmt: skip
        assert names == (["", "up", "down"] if sharded else [])
        assert net.up.weight.placements == [dist.Shard(1) if sharded else dist.Replicate()]
        assert net.down.bias.placements == [dist.Replicate()]
        optimizer = dist.shard_optimizer(paddle.optimizer.SGD(0.01, parameters=net.parameters()))
        losses = []
        for _ in range(3):
            y = net(paddle.to_tensor(X))
            assert y.placements == [dist.Replicate()]
            loss = (y * y).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        wanted, up = train_with_numpy(3)
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)
        np.testing.assert_allclose(net.up.weight.numpy(), up, rtol=1e-3, atol=1e-5)
        with pytest.raises(
            UsageTypeError, match=r"`process_mesh` is not `dist\.ProcessMesh` type but a list"
        ):
            dist.shard_layer(Net(), [0, 1])
        with pytest.raises(InputError, match="shard_fn must be None here"):
            dist.shard_optimizer(optimizer, lay_out)


@pytest.mark.ranks(2)
def test_variables_are_placed_during_a_run(world):
    with use_world(world):
        paddle.enable_static()
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            x = paddle.static.data("x", [-1, 3])
            y = dist.reshard(
                dist.shard_tensor(x, make_mesh(), [dist.Shard(0)]) * 2, make_mesh(), [dist.Partial()]
            )
            exe = paddle.static.Executor()
            (result,) = exe.run(feed={"x": X}, fetch_list=[y], return_numpy=False)
            assert result.placements == [dist.Partial()]
            np.testing.assert_array_equal(result.numpy(), 2 * X)
