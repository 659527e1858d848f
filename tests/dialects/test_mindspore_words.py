"""Frequent names of MindSpore programs work besides the tutorial's: operators, cells, losses, datasets, settings."""

from __future__ import annotations

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


@pytest.mark.ranks(2)
def test_dropout_is_identical_on_all_rank_counts(world):
    def draw(drawing_world):
        """Return the cell's results before and after `set_train`, and the primitive's result and mask."""
        ms.set_seed(3)
        with use_world(drawing_world):
            cell = nn.Dropout(p=0.5)
            evaluated = cell(X)
            y, mask = ops.Dropout(0.5)(X)
            return evaluated, cell.set_train()(X).full(), y.full(), mask.full()

    for outputs in (draw(world), draw(LockStep(1))):
        evaluated, trained, y, mask = outputs
        assert evaluated is X
        np.testing.assert_allclose(y, X * mask * 2)
        assert 0 < mask.sum() < X.size and not np.array_equal(trained, y)
    for a, b in zip(draw(world)[1:], draw(LockStep(1))[1:]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.ranks(4)
def test_wrong_strategies_are_refused(world):
    layout = Layout((2, 2), ("dp", "mp"))
    with use_world(world):
        relu = ops.ReLU()
        with pytest.raises(UsageTypeError, match="only cuts or only layouts"):
            ops.MatMul().shard(((2, 2), layout("mp", "None")))
        with pytest.raises(UsageTypeError, match="per operand"):
            ops.ReLU().shard((4, 1))
        with pytest.raises(RuleError, match=r"device matrix \(2,\) has 2 devices, but 4 ranks are running"):
            ops.ReLU().shard((Layout((2,), ("a",))("a", "None"),))(X)
        with pytest.raises(RuleError, match=r"relu.shard\(\(\(3, 1\),\)\)"):
            relu.shard(((3, 1),))(X)
        with pytest.raises(RuleError, match="in_strategy must be given"):
            ops.MatMul().shard(None, ((4, 1),))
        assert ops.ReLU().shard(((1, 4),)).shard()(X).layout.cuts == (4, 1)
        assert relu.shard((layout(("mp", "dp"), "None"),))(X).layout.cuts == (4, 1)


@pytest.mark.ranks(2)
def test_arrays_that_differ_between_ranks_are_refused(world):
    """The error names the first difference; in lock step, one process has the data of all ranks."""
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
                    InputError, match=r"rank 0 has .* and rank 1 has .*the same seed on all ranks"
                ):
                    ops.ReLU()(wrong)
        for wrong in (None, "abc"):
            with pytest.raises(UsageTypeError, match=r"a tensor, an array or a number, got a (NoneType|str)"):
                ops.ReLU()(wrong)
        with pytest.raises(InputError, match=r"id 9 is outside 0\.\.3"):
            nn.CrossEntropyLoss()(ops.abs(X), np.array([0, 1, 2, 3, 0, 1, 2, 9]))
        with pytest.raises(UsageTypeError, match="Cell must define construct"):
            nn.Cell()(X)


def test_the_error_of_one_rank_names_the_launcher():
    with use_world(LockStep(1)), pytest.raises(RuleError, match="spmdsim launch -n N"):
        ops.ReLU().shard(((4, 1),))(X)


@pytest.mark.ranks(2)
def test_settings_of_the_context_are_checked(world):
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
        for wrong, message in (
            (dict(parallel_mode="auto_parallel"), "nearest: AutoParallel"),
            (dict(parallel_mode="semi"), "semi_auto_parallel"),
            (dict(device_num=3), "device_num must be 2"),
            (dict(pipeline_stages=2), "not covered.*nearest: one stage"),
            (dict(dataset_strategy="data"), "full_batch"),
            (dict(paralel_mode="x"), "no setting is called"),
        ):
            with pytest.raises(InputError, match=message):
                ms.set_auto_parallel_context(**wrong)
        ms.reset_auto_parallel_context()
        assert context.get_auto_parallel_context("parallel_mode") == "stand_alone"

        @ms.jit
        def twice(x):
            return ops.add(x, x)

        np.testing.assert_allclose(twice(ms.Tensor([1.0, 2.0])).asnumpy(), [2, 4])


def test_numbers_print_with_the_digits_of_their_type():
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


def test_first_weights_of_a_dense_cell_are_within_one_over_the_root_of_its_inputs():
    with use_world(LockStep(1)):
        cell = nn.Dense(64, 256)
        for values in (cell.weight.asnumpy(), cell.bias.asnumpy()):
            assert 0.9 < np.abs(values).max() * 8 <= 1 and abs(values.mean()) < 0.02


def test_datasets_map_batch_and_repeat_rows():
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
    with pytest.raises(InputError, match="must be one of x, y, got 'z'"):
        data.map(abs, "z")


def test_transforms_of_images_by_hand():
    """Transforms give numbers computed by hand, as (10 - 2) / 4 and 10 * 0.5 - 1, and move the channels."""
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


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("error")
def test_constants_do_not_depend_on_elements_that_are_not_finite(world):
    x = np.float32([1, np.inf, -np.inf, 2])
    with use_world(world):
        for function, extreme in ((ops.max, np.inf), (ops.min, -np.inf)):
            value, index = function(x)
            assert value.full() == extreme and index.full() == 0 and index.full().dtype == np.int32
        np.testing.assert_array_equal(ops.full_like(x, 3).full(), np.full(4, 3, np.float32))
        assert ops.full_like(np.array([True, False]), 0).full().dtype == bool
