"""Names of MindSpore and Paddle besides operators work: element types, groups, callbacks, initialisers and layers."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.mindspore.dataset as ds
import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim import LockStep, Tensor
from spmdsim.dialects import jax
from spmdsim.dialects.mindspore import communication, nn, ops, train
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.session import use_world
from spmdsim.errors import SpmdError

X = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)


@pytest.mark.ranks(2)
def test_random_numbers_are_identical_on_all_ranks(world):
    with use_world(world):
        for seed, draws in (
            (ms.set_seed, (lambda: ops.rand(40, 50), lambda: ops.randn(40, 50), lambda: ops.randint(0, 5, (40, 50)))),
            (paddle.seed, (lambda: paddle.uniform([40, 50]), lambda: paddle.normal(1.0, 2.0, [40, 50]), lambda: paddle.randperm(2000))),
        ):  # fmt: skip
            for draw in draws:
                seed(3)
                first, other = draw().numpy(), draw().numpy()
                seed(3)
                assert (draw().numpy() == first).all() and (other != first).any()
                assert len({*world.gather_objects([first.tobytes()] * len(world.ranks), "test")}) == 1
        assert set(np.unique(ops.randint(0, 5, (40, 50)))) == {*range(5)}
        assert (
            -1 <= paddle.uniform([2000]).numpy().min() < -0.9 < 0.9 < paddle.uniform([2000]).numpy().max() < 1
        )
        assert abs(paddle.normal(1.0, 2.0, [2000]).numpy().mean() - 1) < 0.3
        assert sorted(paddle.randperm(9).tolist()) == [*range(9)] and paddle.empty([2, 3]).shape == (2, 3)
        assert paddle.is_tensor(paddle.ones([1])) and not paddle.is_tensor(X)


def test_rows_are_transformed_one_by_one():
    change = ds.transforms.Compose([ds.transforms.TypeCast(np.int32), lambda row: row * 2])
    rows = ds.NumpySlicesDataset(([1.5, 2.5],), column_names=["x"], shuffle=False).map(change, "x")
    assert isinstance(rows, ds.Dataset) and [int(row[0]) for row in rows] == [2, 4]


class _RecordingCallback(train.Callback):
    def __init__(self, stop=100):
        self.calls, self.stop = [], stop

    def on_train_begin(self, run_context):
        self.calls.append("begin")

    def epoch_begin(self, run_context):
        self.calls.append("epoch")

    def on_train_step_end(self, run_context):
        state = run_context.original_args()
        self.calls.append((state.cur_epoch_num, state.cur_step_num, state.batch_num, state.epoch_num))
        assert np.asarray(state.net_outputs).size == 1 and isinstance(run_context, train.RunContext)
        if state.cur_step_num == self.stop:
            run_context.request_stop()

    def end(self, run_context):
        self.calls.append("end")


@pytest.mark.ranks(2)
def test_callbacks_are_called_as_in_mindspore(world, capsys):
    with use_world(world):
        rows = ds.NumpySlicesDataset((X, X[:, :1]), column_names=["x", "y"], shuffle=False).batch(2)
        cell = nn.Dense(6, 1)
        model = train.Model(cell, nn.MSELoss(), nn.SGD(cell.trainable_params(), 0.01))
        callback = _RecordingCallback()
        model.train(2, rows, [callback, train.LossMonitor(2)])
        assert callback.calls == [
            "begin",
            "epoch",
            (1, 1, 2, 2),
            (1, 2, 2, 2),
            "epoch",
            (2, 3, 2, 2),
            (2, 4, 2, 2),
            "end",
        ]
        printed = capsys.readouterr().out
        assert "epoch: 1 step: 2, loss is " in printed and "epoch: 2 step: 2, loss is " in printed
        stopping = _RecordingCallback(stop=3)
        model.train(5, rows, callbacks=stopping)
        assert stopping.calls[-2:] == [(2, 3, 2, 5), "end"]


#: The start of an error -> a wrong call, and another text in the error.
WRONG_CALLS = {
    "Layout: argument 'device_matrix' is given": (lambda: ms.Layout((2,), ("a",), device_matrix=(2,)), "called as Layout(device_matrix, alias_name"),
    "Dense: argument 'out_channels' is missing": (lambda: nn.Dense(2), "called as Dense(in_channels, out_channels"),
    "Dense has no argument 'bias'": (lambda: nn.Dense(2, 3, bias=False), "did you mean 'has_bias'"),
    "learning_rate must be a number": (lambda: rate("a"), "got 'a'; nearest: 0.1"),
    "params must be an iterable of parameters": (lambda: nn.SGD(nn.Dense(2, 2), 0.1), "net.trainable_params()"),
    "grads must be a list with one gradient per parameter": (lambda: rate()(1), "got 1"),
    "Identity.construct has no argument 'y'": (lambda: AutoParallel(nn.Identity())(y=X), "it takes x"),
    "AutoParallel passes inputs by their place": (lambda: AutoParallel(lambda x, *, y=1: x)(X, y=2), "the function accepts y by name only"),
    "from_numpy: array must be an array": (lambda: ms.from_numpy([1]), "got a list"),
    "no context setting is called 'modee'": (lambda: ms.set_context(modee=1), "did you mean 'mode'"),
    "no device_target is called 'Ascent'": (lambda: ms.set_device("Ascent"), "did you mean 'Ascend'"),
    "no backend is called 'hcl'": (lambda: communication.init("hcl"), "did you mean 'hccl'"),
    "ParamAttr has no argument 'foo'": (lambda: paddle.ParamAttr(foo=1), "it takes name, initializer"),
    "SGD has no argument 'lr'": (lambda: paddle.optimizer.SGD(lr=0.1), "it takes learning_rate"),
    "matmul: argument 'y' is missing": (lambda: paddle.matmul(X), "called as matmul(x, y"),
    "Softmax has no argument 'dim'": (lambda: paddle.nn.Softmax(dim=1), "it takes axis"),
    "optimizer got an empty parameter list": (lambda: flow.optim.SGD([], lr=0.1), "model.parameters()"),
    "params must be a list of parameters, got a dict": (lambda: flow.optim.Adam([{"params": []}]), "one optimizer per group"),
    "params must be a list of parameters, got a int": (lambda: flow.optim.SGD(3), "model.parameters()"),
    "StridedSlice: strides must be positive here": (lambda: ops.StridedSlice()(X, (0,), (4,), (0,)), "got (0,)"),
    "Split: output_num must be positive and divide 4, the size of axis 0": (lambda: ops.Split(0, 0)(X), "got 0"),
    "placement: ranks must be nested lists": (lambda: flow.placement("cpu", {0: [0, 1]}), "nearest: [0, 1]"),
    "sub has no argument 'alpha'": (lambda: flow.sub(flow.tensor(X), flow.tensor(X), alpha=2), "it takes input, other"),
    "data must be numbers or truth values": (lambda: ms.Tensor("a"), "'a'"),
    "layout: mesh must be a Mesh and spec must be P(...)": (lambda: jax.layout("x", None, 1), "None"),
    "split: split_size_or_sections must be an integer": (lambda: flow.split(flow.tensor(X), "2"), "got '2'"),
    "chunk: chunks must be an integer of 1 or more": (lambda: flow.chunk(flow.tensor(X), None), "got None"),
    "indices_or_sections must be an integer": (lambda: flow.hsplit(flow.tensor(X), 1.5), "got 1.5"),
    "data must be nested lists": (lambda: paddle.to_tensor([[1, 2], [3]]), "of equal lengths"),
    "no element type is called 'float33'": (lambda: paddle.ones([2]).astype("float33"), "did you mean 'float32'"),
    "shape must have integers": (lambda: paddle.ones([2, -1]), "integers of 0 or more"),
    "shape must have integers of 0 or more": (lambda: paddle.zeros("a"), "got 'a'"),
    "tensors must be a list or tuple of tensors, got a": (lambda: flow.cat(flow.tensor(X), 0), "[x, x], 0"),
    "placement must be a oneflow.placement": (lambda: flow.layout("cpu", flow.sbp.broadcast, 2), "got 'cpu'"),
    "no element type is called 'float65'": (lambda: flow.zeros(2, dtype="float65"), "did you mean 'float64'"),
    "parameters must be a list or tuple of parameters": (lambda: paddle.optimizer.Adam(0.1, parameters=paddle.nn.Linear(2, 2)), "got a Linear"),
    "parameters must be a list or tuple of parameters, got a int": (lambda: paddle.optimizer.SGD(parameters=3), ""),
    "parameters in groups are not covered": (lambda: paddle.optimizer.SGD(parameters=[{"params": []}]), "ParamAttr(learning_rate="),
}  # fmt: skip
LAYOUT = ms.Layout((2,), ("a",))


def rate(value=0.1):
    return nn.SGD(nn.Dense(2, 2).trainable_params(), value)


@pytest.mark.parametrize("start", WRONG_CALLS)
def test_wrong_calls_get_one_line(start):
    call, detail = WRONG_CALLS[start]
    with pytest.raises(SpmdError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(start) and detail in message and "\n" not in message


def test_a_misspelled_attribute_of_a_cell_gets_a_hint():
    cell = nn.Dense(2, 2)
    with pytest.raises(
        AttributeError, match="'Dense' object has no attribute 'wieght'; nearest: weight"
    ) as caught:
        _ = cell.wieght
    assert (
        not isinstance(caught.value, SpmdError) and not hasattr(cell, "foo") and getattr(cell, "_foo", 1) == 1
    )


def test_networks_print_as_in_the_original_systems():
    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.flatten = nn.Flatten()
            self.layers = nn.SequentialCell(
                nn.Dense(784, 512, activation="relu"), nn.Dropout(p=0.1), nn.Dense(512, 10, has_bias=False)
            )
            self.product = ops.MatMul()

    assert repr(Network()) == """Network<
  (flatten): Flatten<>
  (layers): SequentialCell<
    (0): Dense<
      input_channels=784, output_channels=512, has_bias=True, activation=ReLU<>
      (activation): ReLU<>
      >
    (1): Dropout<p=0.1>
    (2): Dense<input_channels=512, output_channels=10>
    >
  >"""  # fmt: skip
    paddle_nn = paddle.nn
    layers = paddle_nn.Sequential(
        paddle_nn.Embedding(4, 8, padding_idx=0), paddle_nn.LayerNorm(8), ("two", paddle_nn.LayerList([paddle_nn.Linear(8, 2), paddle_nn.Softmax()])),
        paddle_nn.Dropout(0.1), paddle_nn.CrossEntropyLoss(), paddle.ColumnParallelLinear(8, 2),
    )  # fmt: skip
    assert (
        repr(layers)
        == """Sequential(
  (0): Embedding(4, 8, padding_idx=0, sparse=False)
  (1): LayerNorm(normalized_shape=[8], epsilon=1e-05)
  (two): LayerList(
    (0): Linear(in_features=8, out_features=2, dtype=float32)
    (1): Softmax(axis=-1)
  )
  (3): Dropout(p=0.1, axis=None, mode=upscale_in_train)
  (4): CrossEntropyLoss()
  (5): ColumnParallelLinear()
)"""
    )
    paths = "0.weight 1.weight 1.bias two.0.weight two.0.bias 5.weight"
    assert [*layers.state_dict()] == paths.split()


# -- Paddle ------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_initialisers_and_lists_of_layers(world):
    with use_world(world):
        paddle.seed(1)
        for initial, mean_and_deviation in (
            (paddle.nn.initializer.Normal(1.0, 2.0), (1.0, 2.0)), (paddle.nn.initializer.Uniform(0.0, 2.0), (1.0, 2 / 12**0.5)),
            (paddle.nn.initializer.XavierUniform(), (0.0, (2 / 512) ** 0.5)), (paddle.nn.initializer.XavierNormal(), (0.0, (2 / 512) ** 0.5)),
        ):  # fmt: skip
            values = paddle.create_parameter([256, 256], default_initializer=initial).numpy()
            np.testing.assert_allclose((values.mean(), values.std()), mean_and_deviation, atol=0.02)
        layers = paddle.nn.LayerList([paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 1)])
        assert [*dict(layers.named_parameters())] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        outer = paddle.nn.Layer()
        assert outer.add_sublayer("inner", layers) is layers is next(outer.children())
        assert [path for path, _ in outer.named_sublayers()] == ["inner", "inner.0", "inner.1"]
        layers.eval()
        assert not layers[0].training


def test_split_gives_each_rank_equal_shards():
    """Shards of `split` are equal blocks: rows of embeddings, rows or columns of linear layers.

    Paddle's document adds a row of padding to the N / p rows of each rank.
    """
    split = paddle.split_layout((8, 4), "embedding", num_partitions=2)
    assert isinstance(split, paddle.SplitLayout)
    for operation, axis, cuts in (("embedding", 0, (2, 1)), ("linear", 0, (2, 1)), ("linear", 1, (1, 2))):
        assert paddle.split_layout((8, 4), operation, axis, 2).weight.cuts == cuts
    with use_world(LockStep(2)) as world:
        table = Tensor.from_global(np.arange(32.0).reshape(8, 4), split.weight, world)
        rows = paddle.distributed.with_padding_rows(table, split)
        for padded_shard, shard in zip(rows.shards, table.shards):
            np.testing.assert_array_equal(padded_shard, np.vstack([shard, np.zeros(4)]))


@pytest.mark.ranks(2)
def test_norms_and_dropout(world):
    layers, operations = paddle.nn, paddle.nn.functional
    with use_world(world):
        x = paddle.to_tensor(X, stop_gradient=False)
        layer = layers.LayerNorm(
            [4, 6], epsilon=1e-3, weight_attr=layers.initializer.Constant(2.0), bias_attr=False
        )
        np.testing.assert_allclose(
            layer(x).numpy(), 2 * (X - X.mean()) / np.sqrt(X.var() + 1e-3), rtol=1e-4, atol=1e-5
        )
        paddle.sum(layer(x) * x).backward()
        assert layer.weight.grad.shape == [4, 6] and layer.bias is None
        with pytest.raises(
            ValueError, match=r"normalized_shape is \[3\], expected input with shape \[\*, 3\]"
        ):
            layers.LayerNorm(3)(x)
        half, ones = layers.Dropout(0.5), paddle.ones([64, 64])
        first, other = half(ones).numpy(), half(ones).numpy()
        assert {*np.unique(first)} == {0.0, 2.0} and (first != other).any()
        assert len({*world.gather_objects([first.tobytes()] * len(world.ranks))}) == 1
        half.eval()
        assert (half(ones).numpy() == 1).all()
        later = {"p": 0.5, "mode": "downscale_in_infer"}
        assert (operations.dropout(ones, training=False, **later).numpy() == 0.5).all()
        assert {*np.unique(operations.dropout(ones, **later).numpy())} == {0.0, 1.0}
        assert (operations.dropout(ones, 1.0).numpy() == 0).all()
        for wrong in ({"p": 2}, {"mode": "x"}, {"axis": 0}):
            with pytest.raises(
                ValueError, match=r"between 0 and 1|mode argument should be|nearest: axis=None"
            ):
                operations.dropout(ones, **wrong)


@pytest.mark.ranks(2)
def test_shapes_and_types_of_paddle(world):
    with use_world(world):
        x, one = paddle.to_tensor(X), [1]
        assert x.shape == [4, 6] and x.shape + one == [4, 6, 1] and one + x.shape == [1, 4, 6]
        assert (
            x.shape == (4, 6)
            and x.shape != [6, 4]
            and repr(x.shape) == "[4, 6]"
            and len({x.shape, (4, 6)}) == 1
        )
        assert (
            x.dtype == paddle.float32 and paddle.to_tensor([1], dtype=paddle.float64).dtype == paddle.float64
        )
        assert (paddle.arange(0, 1, 0.25).dtype, paddle.arange(start=1, end=3).dtype) == ("float32", "int64")
        with pytest.raises(ValueError, match="dtype= of each call"):
            paddle.set_default_dtype("float64")
        assert bool(paddle.allclose(x, x + 1e-9)) and not bool(paddle.equal_all(x, x + 1))
        np.testing.assert_allclose(paddle.add_n([x, x, x]).numpy(), 3 * X, rtol=1e-6)


@pytest.mark.ranks(2)
def test_operands_have_the_names_of_the_original_systems(world):
    with use_world(world):
        p = paddle.to_tensor(X)
        f = flow.tensor(X, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
        for result, expected in (
            (paddle.add(x=p, y=p), 2 * X), (p.subtract(y=p), 0 * X), (paddle.mm(p, mat2=p.t()), X @ X.T), (paddle.exp(x=p), np.exp(X)),
            (paddle.where(condition=p > 0, x=p, y=-p), abs(X)), (flow.add(input=f, other=f), 2 * X), (flow.pow(f, exponent=2), X**2),
            (flow.mm(input=f, mat2=f.t()), X @ X.T), (flow.where(f > 0, input=f, other=-f), abs(X)), (flow.exp(input=f), np.exp(X)),
            (ms.mint.matmul(input=ms.Tensor(X), other=ms.Tensor(X.T)), X @ X.T),
            (ops.matmul(input=ms.Tensor(X), other=X.T.copy()), X @ X.T), (ops.add(input=ms.Tensor(X), other=X), 2 * X), (ops.exp(input=X), np.exp(X)),
            (ops.softmax(input=X, axis=0), np.exp(X) / np.exp(X).sum(0)), (ops.Sub()(x=X, y=X), 0 * X),
        ):  # fmt: skip
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)
        assert f.is_leaf and not flow.exp(f.detach().requires_grad_()).is_leaf
        total = ops.AllReduce()(np.ones(2, np.float32))
        named = AutoParallel(lambda data, scale: ops.mul(data, scale))(
            scale=X, data=ms.from_numpy(X)
        ).asnumpy()
        np.testing.assert_allclose(named, np.tile(X * X, (named.shape[0] // 4, 1)))
        assert repr(total).startswith(
            "Tensor(shape=[2], dtype=Float32, value="
        ) and total.asnumpy().tolist() == [2, 2]
        assert ops.reshard(ms.Tensor(X), ms.Layout((2,), ("a",))("a", "None")).layout.cuts == (2, 1)
