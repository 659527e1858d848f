"""The programs in examples/documents train like one process and give the results of the founding documents."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy_network import train_step

from spmdsim.dialects.session import use_world

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "documents"


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch):
    """Make the examples importable, and forget their modules after each test."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in (
        "operator_parallel",
        "advanced_operator_parallel",
        "two_dimensional_sbp",
        "paddle_split",
        "paddle_training",
    ):
        sys.modules.pop(name, None)


def single_process_losses(steps: int, factor: int = 8) -> list[float]:
    """Return the losses of the tutorial's network in one process, with plain numpy and equal first values.

    Each rank has equal rows, and the gradients of eight ranks are summed. So one process takes steps of ``factor`` times the
    rate. The rank's slice of a weight equals the slice of the full weight, because only sums are used.
    """
    import spmdsim.dialects.mindspore as ms
    from spmdsim import LockStep
    from spmdsim.core import Mesh
    from spmdsim.dialects.mindspore import nn

    ms.set_seed(1)
    with use_world(LockStep(1)):
        cell = nn.Cell()
        for i, shape in enumerate([(784, 512), (512, 512), (512, 10)], 1):
            setattr(cell, f"fc{i}_weight", ms.Parameter(ms.initializer("normal", shape, ms.float32)))
        weights = [p.place(Mesh((1,), ("one",))(None, None)).full() for p in cell.get_parameters()]
    import operator_parallel

    ms.set_seed(1)
    data = iter(operator_parallel.create_dataset(32))
    losses = []
    for _ in range(steps):
        image, label = next(data)
        losses.append(train_step(weights, image.reshape(32, 784), label, factor * 1e-2))
    return losses


@pytest.mark.ranks(8)
def test_operator_parallel_trains_like_one_process(world, capsys):
    import advanced_operator_parallel
    import operator_parallel

    expected = single_process_losses(12)
    with use_world(world):
        simple = operator_parallel.train(steps=12)
        advanced = operator_parallel.train(advanced_operator_parallel.Network, steps=12)
    np.testing.assert_allclose(simple, expected, rtol=2e-6)
    np.testing.assert_allclose(advanced, expected, rtol=2e-6)
    printed = capsys.readouterr().out
    assert "epoch: 0, step: 10, loss is " + str(np.float32(simple[10])) in printed


@pytest.mark.ranks(8)
def test_the_programs_print_the_size_of_a_step(world, capsys):
    """A single process with a rate larger by the printed number takes equal steps."""
    import advanced_operator_parallel
    import operator_parallel

    from spmdsim.dialects.mindspore import AutoParallel

    with use_world(world):
        losses = operator_parallel.run(steps=3)
        assert advanced_operator_parallel.run is operator_parallel.run
    printed = capsys.readouterr().out
    if 0 in world.ranks:
        factor = int(re.search(r"a step is (\d+) times the single process's \(docs/losses.md\)", printed)[1])
        np.testing.assert_allclose(losses, single_process_losses(3, factor), rtol=2e-6)
        assert losses[2] != pytest.approx(single_process_losses(3, 1)[2], rel=1e-3)
    else:
        assert "single process" not in printed
    assert "times the single process's" in " ".join(AutoParallel.__doc__.split())


@pytest.mark.ranks(8)
@pytest.mark.parametrize("mode", ["sharding_propagation", "recursive_programming"])
def test_searched_strategies_train_like_one_process(world, mode):
    import operator_parallel

    expected = single_process_losses(4)
    with use_world(world):
        losses = operator_parallel.train(steps=4, parallel_mode=mode)
    np.testing.assert_allclose(losses, expected, rtol=2e-6)


@pytest.mark.ranks(4)
def test_two_dimensional_sbp(world):
    """Rows of the device array have equal data, namely the data of ranks 0 and 1."""
    import two_dimensional_sbp

    import spmdsim.dialects.oneflow as flow

    with use_world(world):
        flow.manual_seed(5)
        x, pred = two_dimensional_sbp.main()
        drawn = [
            np.random.default_rng([6, rank]).normal(size=(1, 2, 8)).astype(np.float32) for rank in range(2)
        ]
        assert x.shape == (2, 2, 8) and x.sbp == (flow.sbp.broadcast, flow.sbp.split(0))
        np.testing.assert_array_equal(x.numpy(), np.concatenate(drawn))
        for rank, shard in zip(world.ranks, x.to_local().shards):
            np.testing.assert_array_equal(shard, drawn[rank % 2])
        assert pred.shape == (2, 2, 2) and pred.sbp == x.sbp


@pytest.mark.ranks(4)
def test_local_to_global_checks_and_overwrites(world):
    import spmdsim.dialects.oneflow as flow
    from spmdsim.dialects.oneflow.sbp import OneFlowError

    placement = flow.placement("cpu", [[0, 1], [2, 3]])
    with use_world(world):
        local = flow.LocalTensor([np.full((2, 2), rank, np.int64) for rank in world.ranks])
        with pytest.raises(OneFlowError, match="must have placement and sbp"):
            local.to_global(placement)
        copied = local.to_global(placement, (flow.sbp.broadcast, flow.sbp.split(0)), copy=True)
        assert [int(x[0, 0]) for x in local.shards] == list(world.ranks)
        np.testing.assert_array_equal(copied.numpy()[:, 0], [0, 0, 1, 1])
        local.to_global(placement, (flow.sbp.broadcast, flow.sbp.split(0)))
        assert [int(x[0, 0]) for x in local.shards] == [rank % 2 for rank in world.ranks]
        uneven = flow.LocalTensor([np.zeros((1 + rank, 2)) for rank in world.ranks])
        with pytest.raises(OneFlowError, match="balanced split"):
            uneven.to_global(flow.placement("cpu", range(4)), flow.sbp.split(0))
        with pytest.raises(OneFlowError, match="got local tensor"):
            local.to_local()
        partial = copied.to_global(sbp=(flow.sbp.partial_sum, flow.sbp.split(0)))
        assert partial.sbp[0] == flow.sbp.partial_sum
        np.testing.assert_array_equal(partial.numpy(), copied.numpy())


@pytest.mark.ranks(4)
def test_grad_sbp_places_the_gradient(world):
    import spmdsim.dialects.oneflow as flow
    from spmdsim import record

    placement = flow.placement("cpu", range(4))
    with use_world(world):
        x = flow.tensor(np.ones((4, 4)), placement, flow.sbp.broadcast).requires_grad_()
        w = flow.tensor(np.ones((4, 8)), placement, flow.sbp.split(1))
        y = flow.matmul(x.to_global(sbp=flow.sbp.broadcast, grad_sbp=flow.sbp.split(0)), w)
        with record() as trace:
            y.backward(flow.tensor(np.ones((4, 8)), placement, flow.sbp.split(1)))
        assert trace.counts() == {"reduce_scatter": 1, "all_gather": 1}
        np.testing.assert_array_equal(x.grad.numpy(), np.full((4, 4), 8.0))


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("padding_row", [True, False])
def test_paddle_split_embedding(world, padding_row):
    import spmdsim.dialects.paddle as paddle
    from spmdsim import record

    table = np.arange(64, dtype=np.float32).reshape(8, 8)
    ids = np.array([[0, 3, 6, 1], [4, 7, 2, 5]] * 5)
    with use_world(world):
        paddle.distributed.fleet.init(is_collective=True)
        with record() as trace:
            y = paddle.distributed.split(
                ids, (8, 8), "embedding", num_partitions=2, weight_attr=table, padding_row=padding_row
            )
        np.testing.assert_array_equal(y.full(), table[ids])
        assert trace.counts() == {"all_reduce": 1}
        assert trace.nbytes(world.ranks[0]) == ids.size * 8 * 4


@pytest.mark.ranks(2)
def test_paddle_split_linear_adds_the_bias_once(world):
    import spmdsim.dialects.paddle as paddle

    x, w = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]), np.arange(1.0, 13).reshape(3, 4).T
    w = np.hstack([w, w[:, :1]])
    bias = np.array([100.0, 200, 300, 400])
    with use_world(world):
        paddle.distributed.fleet.init(is_collective=True)
        for axis in (0, 1):
            call = dict(
                size=(4, 4), operation="linear", axis=axis, num_partitions=2, weight_attr=w, bias_attr=bias
            )
            np.testing.assert_array_equal(paddle.distributed.split(x, **call).full(), x @ w + bias)
            open_end = paddle.distributed.split(x, **call, gather_out=False)
            if axis == 0:
                assert open_end.layout.partial_axes == ("mp",)
                np.testing.assert_array_equal(open_end.full(), x @ w)  # partial products have no bias
            else:
                assert open_end.layout.cuts == (1, 2)
                np.testing.assert_array_equal(open_end.full(), x @ w + bias)


@pytest.mark.ranks(2)
def test_paddle_document_and_its_checks(world):
    import paddle_split

    import spmdsim.dialects.paddle as paddle

    with use_world(world):
        data, out = paddle_split.main()
        assert out.shape == (10, 4, 8) and data.shape == (10, 4)
        with pytest.raises(AssertionError, match="divisible by num_partitions"):
            paddle.distributed.split(data, (7, 8), "embedding", num_partitions=2)


@pytest.mark.ranks(2, 8)
def test_paddle_training(world, capsys):
    """The layers of the document learn like the single card's layers, step by step."""
    import paddle_training

    with use_world(world):
        losses, single = paddle_training.main(steps=12)
    np.testing.assert_allclose(losses, single, rtol=1e-5)
    assert losses[-1] < losses[0] / 2
    if 0 in world.ranks:
        assert f"step 10  split {losses[10]:.4f}  single card {single[10]:.4f}" in capsys.readouterr().out


@pytest.mark.ranks(8)
def test_chained_products_insert_the_collectives_of_the_document(world, capsys):
    import chained_matmul

    with use_world(world):
        counts = list(chained_matmul.main().values())
    assert counts == [{"all_gather": 1}, {"all_to_all": 1, "all_reduce": 1}]


@pytest.mark.ranks(4)
def test_paddle_layers(world):
    import spmdsim.dialects.paddle as paddle
    from spmdsim import Mesh, Tensor, record

    mesh = Mesh((1, 4), ("dp", "mp"))
    with use_world(world):
        words = paddle.VocabParallelEmbedding(16, 8)
        column, row = paddle.ColumnParallelLinear(8, 12, gather_output=False), paddle.RowParallelLinear(12, 8)
        ids = Tensor.from_global(np.arange(6).reshape(2, 3), mesh(None, None), world)
        with record() as trace:
            y = row(column(words(ids)))
        assert trace.counts() == {"all_reduce": 2}
        e = words.weight.full()[np.arange(6).reshape(2, 3)]
        expected = e @ column.weight.full() @ row.weight.full()
        np.testing.assert_allclose(y.full(), expected, rtol=1e-5, atol=1e-6)
        logits = Tensor.from_global(np.tile(np.arange(16.0), (3, 1)), mesh(None, "mp"), world)
        labels = Tensor.from_global(np.array([0, 5, 15]), mesh(None), world)
        losses = paddle.ParallelCrossEntropy()(logits, labels)
        shifted = np.log(np.exp(np.arange(16.0) - 15).sum()) + 15
        np.testing.assert_allclose(losses.full(), shifted - np.array([0, 5, 15]), rtol=1e-12)


@pytest.mark.ranks(4)
def test_mindspore_primitives_against_numpy(world):
    import spmdsim.dialects.mindspore as ms
    from spmdsim.dialects.mindspore import ops

    rng = np.random.default_rng(0)
    x, b, w = rng.normal(size=(8, 4)), rng.normal(size=4), rng.normal(size=(4, 6))
    ids = np.array([[3, 0], [7, 5]])
    norm = np.sqrt((x**2).sum(1, keepdims=True))
    cases = [
        (ops.BiasAdd().shard(((2, 2), (2,))), (x, b), x + b),
        (ops.PReLU().shard(((2, 2), (2,))), (x, b), np.where(x > 0, x, x * b)),
        (ops.L2Normalize(1).shard(((4, 1),)), (x,), x / norm),
        (ops.Gather().shard(((4, 1), (1, 1))), (x, ids, 0), x[ids]),
        (ops.Gather().shard(((1, 4), (1, 1))), (x, ids % 4, 1), x[:, ids % 4]),
        (ops.MatMul(transpose_b=True).shard(((2, 2), (1, 2))), (x, w.T.copy()), x @ w),
        (ops.ReduceMean(keep_dims=True).shard(((2, 2),)), (x, 1), x.mean(1, keepdims=True)),
        (ops.ReduceMax().shard(((2, 2),)), (x, 0), x.max(0)),
        (ops.Transpose().shard(((2, 2),)), (x, (1, 0)), x.T),
        (ops.Softmax().shard(((4, 1),)), (x,), np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        (ops.Reshape(), (x, (2, -1)), x.reshape(2, 16)),
        (ops.Cast(), (x, ms.float32), x.astype(np.float32)),
        (ops.Add().shard(((2, 1), (2, 2))), (x[:, :1].copy(), x), x[:, :1] + x),
    ]
    with use_world(world):
        for primitive, operands, expected in cases:
            np.testing.assert_allclose(
                primitive(*operands).full(), expected, rtol=1e-6, err_msg=str(primitive)
            )
        with pytest.raises(RuntimeError, match="8"):
            ops.ReLU().shard(((3, 1),))(x)
        with pytest.raises(RuntimeError, match="only the first two dims of the indices"):
            ops.Gather().shard(((1, 2), (2, 1)))(x, ids % 4, 1)
        with pytest.raises(RuntimeError, match="out_strategy"):
            ops.MatMul().shard(((2, 1), (1, 2)), ((1, 2),))(x, w)
        with pytest.raises(RuntimeError, match="evenly into 4 pieces"):
            ops.OneHot().shard(((4, 4), (), ()))(ids[0], 4)
