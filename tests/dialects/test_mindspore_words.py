"""What MindSpore programs commonly use beside the tutorial's words: operators, cells, losses, optimisers, settings."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.mindspore.dataset as ds
from spmdsim import LockStep
from spmdsim.dialects.mindspore import Layout, context, nn, ops
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, RuleError, UsageTypeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4))
Y = RNG.normal(size=(8, 4))
V = RNG.normal(size=4)
IDS = np.array([3, 0, 1, 2, 0, 3, 3, 1])


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normalised(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


LOSSES = -np.log(softmax(X)[np.arange(8), IDS])


CASES = {
    "scalar": (lambda: ops.Mul()(X, 2.0), X * 2),
    "scalar first": (lambda: ops.sub(1, X), 1 - X),
    "relu": (lambda: ops.relu(X), np.maximum(X, 0)),
    "matmul": (lambda: ops.matmul(X, Y.T.copy()), X @ Y.T),
    "softmax": (lambda: ops.softmax(X, 1), softmax(X)),
    "log_softmax sharded": (lambda: ops.LogSoftmax().shard(((2, 1),))(X), np.log(softmax(X))),
    "sum": (lambda: ops.sum(X, 0, True), X.sum(0, keepdims=True)),
    "mean": (lambda: ops.mean(X), X.mean()),
    "amax": (lambda: ops.amax(X, 1), X.max(1)),
    "amin": (lambda: ops.amin(X, 0), X.min(0)),
    "prod": (lambda: ops.ReduceProd().shard(((2, 1),))(X, 1), X.prod(1)),
    "argmax": (lambda: ops.argmax(X, 1), X.argmax(1)),
    "argmax of all": (lambda: ops.argmax(X), X.argmax()),
    "Argmax": (lambda: ops.Argmax(0).shard(((1, 2),))(X), X.argmax(0)),
    "concat": (lambda: ops.Concat(1).shard(((2, 1), (2, 1)))((X, Y)), np.concatenate([X, Y], 1)),
    "stack": (lambda: ops.stack([X, Y], 1), np.stack([X, Y], 1)),
    "split": (lambda: ops.Split(1, 2).shard(((2, 1),))(X)[1], X[:, 2:]),
    "function split": (lambda: ops.split(X, 4)[1], X[4:]),
    "strided": (lambda: ops.StridedSlice()(X, (0, 1), (8, 4), (2, 2)), X[0:8:2, 1:4:2]),
    "negative bounds": (lambda: ops.StridedSlice()(X, (-3,), (-1,)), X[-3:-1]),
    "expand": (lambda: ops.expand_dims(X, -1), X[..., None]),
    "squeeze": (lambda: ops.squeeze(X[:, None]), X),
    "transpose": (lambda: ops.transpose(X, (1, 0)), X.T),
    "flatten": (lambda: ops.flatten(X.reshape(2, 2, 8)), X.reshape(2, 16)),
    "flatten by columns": (lambda: ops.flatten(X, "F", start_dim=0), X.ravel("F")),
    "flatten some": (lambda: ops.flatten(X.reshape(2, 2, 8), start_dim=0, end_dim=1), X.reshape(4, 8)),
    "broadcast": (lambda: ops.broadcast_to(V, (3, 4)), np.broadcast_to(V, (3, 4))),
    "gather": (lambda: ops.gather(X, IDS, 0), X[IDS]),
    "one_hot": (lambda: ops.one_hot(IDS, 4), np.eye(4)[IDS]),
    "OneHot by the result": (lambda: ops.OneHot().shard(((1, 2), (), ()))(IDS, 4, 2.0, 1.0), np.eye(4)[IDS] + 1),
    "LayerNorm": (
        lambda: ops.LayerNorm(1, 1, 1e-7).shard(((2, 1), (1,), (1,)))(X, V, V)[0],
        normalised(X, 1e-7) * V + V,
    ),
    "LayerNorm's variance": (lambda: ops.LayerNorm()(X, V, V)[2], X.var(1, keepdims=True)),
    "layer_norm": (lambda: ops.layer_norm(X, (4,), V, V), normalised(X, 1e-5) * V + V),
    "AddN": (lambda: ops.AddN().shard(((2, 1), (2, 1)))([X, Y]), X + Y),
    "OnesLike": (lambda: ops.OnesLike()(X), np.ones_like(X)),
    "zeros_like": (lambda: ops.zeros_like(X, ms.float32), np.zeros_like(X)),
    "select": (lambda: ops.select(X > 0, X, Y), np.where(X > 0, X, Y)),
    "squared": (lambda: ops.SquaredDifference()(X, Y), (X - Y) ** 2),
    "cross_entropy": (lambda: ops.cross_entropy(X, IDS), LOSSES.mean()),
    "CrossEntropyLoss of probabilities": (lambda: nn.CrossEntropyLoss()(X, np.eye(4)[IDS]), LOSSES.mean()),
    "sparse": (lambda: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="sum")(X, IDS), LOSSES.sum()),
    "dense": (lambda: nn.SoftmaxCrossEntropyWithLogits()(X, np.eye(4)[IDS]), LOSSES),
    "primitive of losses": (lambda: ops.SoftmaxCrossEntropyWithLogits()(X, np.eye(4)[IDS])[0], LOSSES),
    "MSELoss": (lambda: nn.MSELoss()(X, Y), ((X - Y) ** 2).mean()),
    "L1Loss": (lambda: nn.L1Loss("sum")(X, Y), np.abs(X - Y).sum()),
    "Tanh": (lambda: nn.Tanh()(X), np.tanh(X)),
    "Identity": (lambda: nn.Identity()(ops.abs(X)), np.abs(X)),
    "nn.Embedding": (lambda: nn.Embedding(8, 4, embedding_table=X)(IDS), X[IDS]),
    "nn.LayerNorm": (lambda: nn.LayerNorm((4,), dtype=ms.float64)(X), normalised(X, 1e-7)),
    "tile": (lambda: ops.tile(ops.abs(X), (2, 1, 3)), np.tile(np.abs(X), (2, 1, 3))),
    "not less": (lambda: ops.cast(ops.abs(X) >= 0.5, ms.float64), np.abs(X) >= 0.5),
    "not more": (lambda: ops.cast(ops.abs(X) <= 0.5, ms.float64), np.abs(X) <= 0.5),
    "Parameter on the right": (lambda: ops.abs(X) + ms.Parameter(V), np.abs(X) + V),
    "Parameter on the left": (lambda: ms.Parameter(V) * ops.abs(X), np.abs(X) * V),
    "array and tensor": (lambda: Y - ops.abs(X), Y - np.abs(X)),
}  # fmt: skip


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("case", CASES)
def test_operators_against_numpy(world, case):
    call, expected = CASES[case]
    with use_world(world):
        np.testing.assert_allclose(call().asnumpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(2)
def test_dropout_is_the_same_on_every_rank_count(world):
    def drawn(where):
        ms.set_seed(3)
        with use_world(where):
            cell = nn.Dropout(p=0.5)
            quiet = cell(X)
            y, mask = ops.Dropout(0.5)(X)
            return quiet, cell.set_train()(X).full(), y.full(), mask.full()

    for outputs in (drawn(world), drawn(LockStep(1))):
        quiet, loud, y, mask = outputs
        assert quiet is X
        np.testing.assert_allclose(y, X * mask * 2)
        assert 0 < mask.sum() < X.size and not np.array_equal(loud, y)
    for a, b in zip(drawn(world)[1:], drawn(LockStep(1))[1:]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.ranks(4)
def test_what_strategies_must_be(world):
    layout = Layout((2, 2), ("dp", "mp"))
    with use_world(world):
        relu = ops.ReLU()
        with pytest.raises(UsageTypeError, match="mixes them"):
            ops.MatMul().shard(((2, 2), layout("mp", "None")))
        with pytest.raises(UsageTypeError, match="per operand"):
            ops.ReLU().shard((4, 1))
        with pytest.raises(RuleError, match=r"device matrix \(2,\) has 2 devices, but 4 ranks are running"):
            ops.ReLU().shard((Layout((2,), ("a",))("a", "None"),))(X)
        with pytest.raises(RuleError, match=r"relu.shard\(\(\(3, 1\),\)\)"):
            relu.shard(((3, 1),))(X)
        with pytest.raises(RuleError, match="needs an in_strategy"):
            ops.MatMul().shard(None, ((4, 1),))
        assert relu.shard((layout(("mp", "dp"), "None"),))(X).layout.cuts == (4, 1)


@pytest.mark.ranks(2)
def test_every_rank_is_given_the_same_array(world):
    """Where each process has its own data, the first difference is named; in lock step there is only one."""
    with use_world(world):
        if len(world.ranks) == world.size:
            ops.ReLU()(X * 1)
        else:
            for wrong in (
                X * world.ranks[0],
                X[: 4 + world.ranks[0]],
                X.astype("f4" if world.ranks[0] else "f8"),
            ):
                with pytest.raises(
                    InputError, match=r"rank 0 has .* and rank 1 has .*seed random numbers alike"
                ):
                    ops.ReLU()(wrong)
        for wrong in (None, "abc"):
            with pytest.raises(UsageTypeError, match=r"a tensor, an array or a number, not (NoneType|str)"):
                ops.ReLU()(wrong)
        with pytest.raises(InputError, match=r"id 9 is outside 0\.\.3"):
            nn.CrossEntropyLoss()(ops.abs(X), np.array([0, 1, 2, 3, 0, 1, 2, 9]))
        with pytest.raises(UsageTypeError, match="Cell defines no construct"):
            nn.Cell()(X)


def test_one_rank_is_told_how_to_have_more():
    with use_world(LockStep(1)), pytest.raises(RuleError, match="spmdsim launch -n N"):
        ops.ReLU().shard(((4, 1),))(X)


@pytest.mark.ranks(2)
def test_settings_of_the_older_style(world):
    with use_world(world):
        ms.reset_auto_parallel_context()
        ms.set_auto_parallel_context(
            parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL,
            gradients_mean=True,
            device_num=2,
            full_batch=True,
        )
        assert context.get_auto_parallel_context("parallel_mode") == "semi_auto_parallel"
        assert context.get_auto_parallel_context("device_num") == 2
        ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
        assert ms.get_context("device_target") == "Ascend"
        for wrong, said in (
            (dict(parallel_mode="auto_parallel"), "nearest: AutoParallel"),
            (dict(parallel_mode="semi"), "semi_auto_parallel"),
            (dict(device_num=3), "2 ranks are running"),
            (dict(pipeline_stages=2), "not covered.*nearest: one stage"),
            (dict(dataset_strategy="data"), "full_batch"),
            (dict(paralel_mode="x"), "no setting is called"),
        ):
            with pytest.raises(InputError, match=said):
                ms.set_auto_parallel_context(**wrong)
        ms.reset_auto_parallel_context()
        assert context.get_auto_parallel_context("parallel_mode") == "stand_alone"

        @ms.jit
        def twice(x):
            return ops.add(x, x)

        np.testing.assert_allclose(twice(ms.Tensor([1.0, 2.0])).asnumpy(), [2, 4])


def test_numbers_print_with_their_own_digits():
    loss = ms.Tensor(np.float32(2.3016002))
    assert f"loss is {loss}" == "loss is 2.3016002" == "loss is %s" % loss and f"{loss:.2f}" == "2.30"  # noqa: UP031
    assert ops.arange(3).tolist() == [0, 1, 2] and ops.arange(1, 6, 2).tolist() == [1, 3, 5]
    assert ops.shape(X) == (8, 4)


def test_initialisers_as_objects():
    initializer = ms.common.initializer
    with use_world(LockStep(1)):
        values = {
            name: ms.Parameter(initializer.initializer(init, (64, 32))).asnumpy()
            for name, init in (
                ("xavier", initializer.XavierUniform()), ("he", initializer.HeUniform()), ("c", initializer.Constant(2)),
                ("leaky", initializer.HeUniform(5**0.5)), ("out", initializer.HeUniform(mode="fan_out")),
                ("gain", initializer.XavierUniform(gain=2)), ("normal", initializer.Normal(0.5)), ("uniform", initializer.Uniform(0.1)), ("one", initializer.One()),
            )
        }  # fmt: skip
    assert 0.9 < np.abs(values["xavier"]).max() / np.sqrt(6 / 96) <= 1
    assert 0.9 < np.abs(values["he"]).max() / np.sqrt(6 / 32) <= 1
    assert 0.9 < np.abs(values["leaky"]).max() / np.sqrt(1 / 32) <= 1
    assert 0.9 < np.abs(values["out"]).max() / np.sqrt(6 / 64) <= 1
    assert 0.9 < np.abs(values["gain"]).max() / (2 * np.sqrt(6 / 96)) <= 1
    assert 0.4 < values["normal"].std() < 0.6 and 0.09 < np.abs(values["uniform"]).max() <= 0.1
    assert (values["c"] == 2).all() and (values["one"] == 1).all()
    with pytest.raises(AttributeError, match="nearest: XavierUniform"):
        initializer.XavierUnifrm
    with pytest.raises(InputError, match="no mode 'fanin'; did you mean 'fan_in'"):
        initializer.HeUniform(mode="fanin")


def test_a_dense_cell_begins_within_one_over_the_root_of_its_inputs():
    with use_world(LockStep(1)):
        cell = nn.Dense(64, 256)
        for values in (cell.weight.asnumpy(), cell.bias.asnumpy()):
            assert 0.9 < np.abs(values).max() * 8 <= 1 and abs(values.mean()) < 0.02


def test_datasets():
    def rows():
        for k in range(5):
            yield np.full(3, k), k

    data = ds.GeneratorDataset(rows, ["x", "y"]).map(lambda row: row.reshape(3, 1) + 1, "x").batch(2, True)
    assert data.get_dataset_size() == 2 and data.get_col_names() == ["x", "y"]
    x, y = list(data)[1]
    assert x.asnumpy().tolist() == np.full((2, 3, 1), 0).tolist() or x.shape == (2, 3, 1)
    assert x[:, 0, 0].tolist() == [3, 4] and y.tolist() == [2, 3]
    assert [sorted(batch) for batch in data.create_dict_iterator()] == [["x", "y"]] * 2
    assert len(list(ds.NumpySlicesDataset(np.arange(4)).batch(2).repeat(3))) == 6
    with pytest.raises(InputError, match="the columns are x, y"):
        data.map(abs, "z")


@pytest.mark.parametrize(
    "module, name, nearest",
    [
        (ms, "AutoParalel", "AutoParallel"),
        (nn, "Conv2d", "Dense"),
        (nn, "Dence", "Dense"),
        (ops, "CollectiveGather", "AllReduce"),
        (ops, "Matmull", "Mat"),
        (ds, "Cifar10Dataset", "NumpySlicesDataset"),
    ],
)
def test_what_is_not_covered_says_so_in_one_line(module, name, nearest):
    for ask in (lambda: getattr(module, name), lambda: exec(f"from {module.__name__} import {name}")):
        with pytest.raises(
            (AttributeError, ImportError), match="is not covered by this dialect; nearest: "
        ) as said:
            ask()
        assert nearest in str(said.value) and "\n" not in str(said.value)
    assert not hasattr(module, name)


def test_transforms_of_images_by_hand():
    """Numbers worked out on paper: (10 - 2) / 4, 10 * 0.5 - 1 and where a channel goes."""
    image = np.array([[[[10, 20], [30, 40], [50, 60]]]], np.uint8)  # one image, 1 x 3 pixels, 2 channels
    normalised = ds.vision.Normalize(mean=[2, 10], std=[4, 5])(image)
    np.testing.assert_array_equal(normalised, [[[[2, 2], [7, 6], [12, 10]]]])
    np.testing.assert_array_equal(ds.vision.Rescale(0.5, -1)(image), [[[[4, 9], [14, 19], [24, 29]]]])
    first = ds.vision.HWC2CHW()(image)
    np.testing.assert_array_equal(first, [[[[10, 30, 50]], [[20, 40, 60]]]])
    np.testing.assert_array_equal(
        ds.vision.Normalize(mean=[2, 10], std=[4, 5], is_hwc=False)(first), [[[[2, 7, 12]], [[2, 6, 10]]]]
    )
    assert normalised.dtype == np.float32


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("amp", "float32"),
        ("profiler", "spmdsim.record"),
        ("datasets", "dataset"),
        ("nn.layer", "nn"),
        ("hal", "runtime"),
    ],
)
def test_a_module_that_is_not_here_says_so_where_it_is_imported(name, nearest):
    """Importing it and looking for it raise the same error."""
    module = f"spmdsim.dialects.mindspore.{name}"
    for ask in (f"import {module}", f"from {module} import anything"):
        with pytest.raises(
            ImportError, match=rf"mindspore\.{name} is not covered by this dialect; nearest: {nearest}"
        ) as said:
            exec(ask)
        assert "\n" not in str(said.value)
    with pytest.raises(ImportError, match=f"nearest: {nearest}"):
        find_spec(module)
