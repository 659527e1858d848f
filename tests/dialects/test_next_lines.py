"""Methods of the original systems' tensors, parameters and cells give numpy's results, and missing ones get a hint."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim import record
from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import use_world

X = np.random.default_rng(8).normal(size=(4, 6))


@pytest.mark.ranks(2)
def test_mindspores_parameters_and_cells(world):
    with use_world(world):
        assert ms.tensor([1, 2], ms.float32).dtype == ms.Tensor([1, 2], dtype=ms.float32).dtype == np.float32
        p = ms.Parameter(X.copy(), name="p")
        assert (p.ndim, p.size, p.is_init, p.layerwise_parallel) == (2, 24, False, False)
        assert p.init_data() is p.data is p
        np.testing.assert_allclose(p.T.asnumpy(), X.T)
        np.testing.assert_allclose(p[1].asnumpy(), X[1])
        np.testing.assert_allclose(p.sum().asnumpy(), X.sum())
        assert p.is_init and (p.clone().asnumpy() == X).all() and (p.clone("zeros").asnumpy() == 0).all()
        net = nn.SequentialCell(nn.Dense(6, 4), nn.ReLU(), nn.Dense(4, 2))
        assert [x.name for x in net.trainable_params()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert [name for name, _ in net.cells_and_names()] == ["", "0", "1", "2"]
        with pytest.raises(AttributeError, match=r"not covered.*nearest: .*expand_dims"):
            ms.Tensor(X).expand_dim(0)
        with pytest.raises(ValueError, match="must have one element"):
            ms.Tensor(X).item()


@pytest.mark.ranks(2)
def test_local_tensors_compute_with_the_array_of_each_rank(world):
    with use_world(world):
        array = flow.randn(2, 3)  # other numbers on each rank
        np.testing.assert_allclose(array.exp().sum().numpy(), np.exp(array.numpy()).sum(), rtol=1e-5)
        x = flow.tensor(X)
        assert x.requires_grad is False and x.grad is None and x.requires_grad_(False) is x
        for wrong, message in (
            (lambda: x.backward(), "does not require grad"), (lambda: x.requires_grad_(), "local tensors have no gradients here; nearest"),
            (lambda: x.placement, "Only global tensors have 'placement'"), (lambda: x.sbp, "Only global tensors have 'sbp'"),
            (lambda: x.item(), "one element"),
            *((lambda y=y: y.to_global("cpu", flow.sbp.broadcast), "^placement must be a oneflow.placement, got 'cpu'; nearest: placement")
              for y in (x, flow.tensor(X, flow.placement("cpu", [0, 1]), flow.sbp.broadcast))),
        ):  # fmt: skip
            with pytest.raises(OneFlowError, match=message):
                wrong()
        with pytest.raises(AttributeError, match="nearest"):
            x.add_(1)


@pytest.mark.ranks(2)
def test_programs_of_paddle_record_methods(world):
    with use_world(world):
        paddle.enable_static()
        main = paddle.static.Program()
        with paddle.static.program_guard(main):
            x = paddle.static.data("x", [4, 6], "float64")
            y = paddle.norm(paddle.stack([x.unsqueeze(0).squeeze(0), paddle.ones_like(x)]).clip(0, 1))
        (result,) = paddle.static.Executor().run(main, feed={"x": X}, fetch_list=[y])
        paddle.disable_static()
        np.testing.assert_allclose(result, np.linalg.norm(np.stack([X, np.ones_like(X)]).clip(0, 1)))


@pytest.mark.ranks(2)
def test_no_grad_and_set_grad_enabled_switch_gradients_off(world):
    with use_world(world):
        x = flow.tensor(X, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0)).requires_grad_()
        with flow.no_grad():
            assert not (x * 2).requires_grad and not flow.is_grad_enabled()
            with flow.enable_grad():
                assert (x * 2).requires_grad
        flow.set_grad_enabled(False)
        assert not x.exp().requires_grad
        with flow.set_grad_enabled(True):
            assert x.exp().requires_grad
        assert not flow.is_grad_enabled()
        flow.set_grad_enabled(True)
        assert flow.no_grad()(lambda: x.exp())().requires_grad is False and x.exp().requires_grad


@pytest.mark.ranks(2)
def test_names_beside_the_documents(world):
    """Versions, values and shards have the original systems' names; missing names get a hint in one line."""
    import spmdsim

    assert ms.__version__ == flow.__version__ == paddle.__version__ == spmdsim.__version__
    with use_world(world):
        p = ms.Parameter(ms.initializer("ones", [4, 6], ms.float32), name="w")
        assert (p.value().asnumpy() == 1).all() and p.value() is p.value
        assert (ms.initializer("zeros", [3], ms.float32).init_data().asnumpy() == np.zeros(3)).all()
        split = paddle.distributed.shard_tensor(
            X, paddle.ProcessMesh([0, 1], dim_names=["x"]), [paddle.Shard(0)]
        )
        rank = world.ranks[0]
        assert (split._local_value().numpy() == X[2 * rank : 2 * rank + 2]).all() and split.is_dist()
        assert split.placements == [paddle.Shard(0)] and split.process_mesh.process_ids == [0, 1]
        from spmdsim.dialects.mindspore.train.callback import LossMonitor

        assert (
            LossMonitor is ms.train.LossMonitor and split._local_shape == [4 // world.size, 6] and len(p) == 4
        )
        paddle.enable_static()
        twice = paddle.to_tensor(X) * 2
        (result,) = paddle.static.Executor().run(fetch_list=[twice.name])
        paddle.disable_static()
        assert (result == 2 * X).all()
        target = flow.placement("cpu", [0, 1]), flow.sbp.broadcast
        layer = flow.nn.Linear(6, 2).to_global(*target)
        assert layer.to("cuda") is layer.cuda() is layer.cpu() is layer
        assert not layer.requires_grad_(False).weight.requires_grad
        assert layer.requires_grad_().weight.requires_grad
        row = flow.tensor(X, *target)[0]
        assert (float(row[1]), int(row[1] * 10)) == (X[0, 1], int(X[0, 1] * 10))
        for wrong, nearest in (
            (lambda: ms.vjp, "value_and_grad"), (lambda: ops.Size, "ndim"), (lambda: ms.Tensor(X).grad, "value_and_grad"),
            (lambda: paddle.to_tensor(X).set_value(X), "paddle.assign"), (lambda: flow.sbp.partial, "partial_sum"),
        ):  # fmt: skip
            with pytest.raises(AttributeError, match=f"is not covered by this dialect; nearest: .*{nearest}"):
                wrong()
        with pytest.raises(TypeError, match=r"tensors are values; nearest: flow\.where"):
            row[0] = 1.0
        with pytest.raises(AttributeError, match="a tensor has no attribute '_local_value'"):
            flow.tensor(X)._local_value()


#: Texts in the documentation of MindSpore -> the array that prints so.
SHOWN_BY_MINDSPORE = {
    "Tensor(shape=[2, 2], dtype=Float32, value=\n[[ 1.00000000e+00,  2.00000000e+00],\n [ 3.00000000e+00, -4.50000000e+00]])": np.float32([[1, 2], [3, -4.5]]),
    "Tensor(shape=[3], dtype=Int64, value= [ 1, -2, 30])": np.array([1, -2, 30]), "Tensor(shape=[], dtype=Float32, value= 2.5)": np.float32(2.5),
    "Tensor(shape=[2], dtype=Bool, value= [ True, False])": np.array([True, False]), "Tensor(shape=[1], dtype=Float16, value= [ 1.5000e+00])": np.float16([1.5]),
}  # fmt: skip
SHOWN_BY_PADDLE = {
    "Tensor(shape=[2, 2], dtype=float32, place=Place(cpu), stop_gradient=True,\n       [[ 1.        ,  2.        ],\n        [ 3.        , -4.50000000]])": np.float32([[1, 2], [3, -4.5]]),
    "Tensor(shape=[3], dtype=int64, place=Place(cpu), stop_gradient=True,\n       [ 1, -2, 30])": np.array([1, -2, 30]),
    "Tensor(shape=[], dtype=float32, place=Place(cpu), stop_gradient=True,\n       2.50000000)": np.float32(2.5),
    "Tensor(shape=[2000], dtype=float32, place=Place(cpu), stop_gradient=True,\n       [0., 0., 0., ..., 0., 0., 0.])": np.zeros(2000, "f4"),
}  # fmt: skip


@pytest.mark.ranks(2)
def test_results_print_as_in_the_original_systems(world):
    with use_world(world):
        for text, array in SHOWN_BY_MINDSPORE.items():
            assert repr(ms.Tensor(array)) == text and str(ms.Tensor(array)) == str(array)
        for text, array in SHOWN_BY_PADDLE.items():
            assert repr(paddle.to_tensor(array)) == str(paddle.to_tensor(array)) == text
        assert repr(ops.relu(X.astype("f4"))).startswith("Tensor(shape=[4, 6], dtype=Float32, value=\n[[ ")
        assert repr(paddle.nn.Linear(2, 2).weight).startswith(
            "Parameter containing:\nTensor(shape=[2, 2], dtype=float32, place"
        )
        assert "Parameter (name=w, shape=(2,), dtype=Float32, requires" in repr(
            ms.Parameter(ms.initializer(1, [2]), name="w")
        )


@pytest.mark.ranks(2, 4)
def test_one_rank_prints_its_shard_without_communication(world):
    """A process prints the shards of its own ranks, so in lock step it prints the full tensor."""
    with use_world(world):
        rank_count, rank = world.size, world.ranks[0]
        split = paddle.distributed.shard_tensor(
            X, paddle.ProcessMesh([*range(rank_count)], dim_names=["x"]), [paddle.Shard(0)]
        )
        relu = ops.ReLU().shard(((rank_count, 1),))(X)
        with record() as trace:
            if rank == 0:
                texts = repr(split), repr(relu), str(relu)
        if rank == 0:
            range_text = f"rank 0 has [0:{4 // rank_count}, 0:6]"
            owns_one_shard = len(world.ranks) < rank_count
            assert (
                all((range_text in text) == owns_one_shard for text in texts)
                and all(("GlobalDense" in texts[0], texts[2] == str(np.maximum(X, 0)))) != owns_one_shard
            )
            assert f"{X[0, 0]:.8f}" in texts[0] and (f"{X[3, 5]:.8f}" in texts[0]) != owns_one_shard
        assert not trace.counts()
