"""Paddle's programs train on ranks as in one process: the document's split gives the losses of numpy."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.paddle as paddle
from spmdsim import record
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, SpmdError, WorldError

WORDS, WIDTH, HIDDEN = 8, 8, 16
RNG = np.random.default_rng(4)
TABLE = RNG.normal(size=(WORDS, WIDTH)).astype("f4")
UP, DOWN = (
    RNG.normal(size=(WIDTH, HIDDEN)).astype("f4") / 3,
    RNG.normal(size=(HIDDEN, WORDS)).astype("f4") / 3,
)
UP_BIAS, DOWN_BIAS = RNG.normal(size=HIDDEN).astype("f4"), RNG.normal(size=WORDS).astype("f4")
IDS = RNG.integers(0, WORDS, (4, 6))
LABELS = RNG.integers(0, WORDS, (4, 6))


def numpy_losses(steps, rate=0.5):
    """Return losses and the last table of embedding, linear, relu, linear and cross entropy, in float64."""
    table, up, down, a, b = (x.astype("f8") for x in (TABLE, UP, DOWN, UP_BIAS, DOWN_BIAS))
    ids, labels, losses = IDS.ravel(), LABELS.ravel(), []
    for _ in range(steps):
        e = table[ids]
        h = e @ up + a
        r = np.maximum(h, 0)
        z = r @ down + b
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(ids)), labels]).mean())
        dz = p.copy()
        dz[np.arange(len(ids)), labels] -= 1
        dz /= len(ids)
        dh = dz @ down.T * (h > 0)
        de = np.zeros_like(table)
        np.add.at(de, ids, dh @ up.T)
        down, b = down - rate * r.T @ dz, b - rate * dz.sum(0)
        up, a = up - rate * e.T @ dh, a - rate * dh.sum(0)
        table = table - rate * de
    return losses, table


def make_attribute(name, values):
    return paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Assign(values))


def forward(ids, labels, partitions, padding_row=True):
    """Return the loss of an embedding, a column-parallel and a row-parallel layer, with named parameters."""
    split = paddle.distributed.split
    e = split(ids, (WORDS, WIDTH), operation="embedding", num_partitions=partitions, weight_attr=make_attribute("table", TABLE),
              padding_row=padding_row)  # fmt: skip
    h = split(e, (WIDTH, HIDDEN), "linear", axis=1, num_partitions=partitions, gather_out=False,
              weight_attr=make_attribute("up", UP), bias_attr=make_attribute("up_bias", UP_BIAS))  # fmt: skip
    z = split(paddle.nn.functional.relu(h), (HIDDEN, WORDS), "linear", axis=0, num_partitions=partitions,
              weight_attr=make_attribute("down", DOWN), bias_attr=make_attribute("down_bias", DOWN_BIAS))  # fmt: skip
    return paddle.nn.functional.cross_entropy(z, labels)


@pytest.mark.ranks(2, 8)
@pytest.mark.parametrize("padding_row", [True, False])
def test_training_without_a_program(world, padding_row):
    """The optimiser finds parameters by their names, and the padding has no gradient."""
    wanted, table = numpy_losses(4)
    with use_world(world):
        fleet.init(is_collective=True)
        optimizer, losses = paddle.optimizer.SGD(0.5), []
        for _ in range(4):
            loss = forward(IDS, LABELS, world.size, padding_row)
            losses.append(float(loss))
            optimizer.minimize(loss)
        program = paddle.static.default_main_program()
        assert [p.name for p in program.all_parameters()] == ["table", "up", "up_bias", "down", "down_bias"]
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)
        np.testing.assert_allclose(program.var("table").numpy(), table, rtol=1e-3, atol=1e-5)


@pytest.mark.ranks(2, 8)
def test_training_with_a_program(world):
    """A program is recorded once and runs with each feed; a run has the collectives of one step."""
    wanted, table = numpy_losses(4)
    with use_world(world):
        fleet.init(is_collective=True)
        paddle.enable_static()
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            ids = paddle.static.data("ids", [None, 6], "int64")
            labels = paddle.static.data("labels", [None, 6], "int64")
            with record() as built:
                loss = forward(ids, labels, world.size)
                paddle.optimizer.SGD(learning_rate=0.5).minimize(loss)
        exe = paddle.static.Executor()
        exe.run(startup)
        losses = []
        for _ in range(4):
            with record() as trace:
                losses += exe.run(main, feed={"ids": IDS, "labels": LABELS}, fetch_list=[loss])
            # Forward the embedding and the row-parallel product, backward the column-parallel input.
            assert trace.counts() == {"all_reduce": 3}
        assert built.counts() == {}
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)
        np.testing.assert_allclose(main.var("table").numpy(), table, rtol=1e-3, atol=1e-5)


@pytest.mark.ranks(2, 8)
def test_the_program_of_the_document_trains(world):
    """Static mode computes known values at once, and again in each run, with new ids and trained weights."""
    with use_world(world):
        paddle.enable_static()
        fleet.init(is_collective=True)
        ids = paddle.randint(0, 8, shape=[10, 4])
        words = paddle.distributed.split(ids, (8, 8), operation="embedding", num_partitions=2)
        loss = paddle.mean(words * words)
        assert not loss.stop_gradient and ids.stop_gradient and words.shape == (10, 4, 8)
        name = paddle.static.default_main_program().all_parameters()[0].name
        assert name.startswith("_parallel_embedding_") and name.endswith(".w_0")
        paddle.optimizer.SGD(learning_rate=10.0).minimize(loss)
        exe = paddle.static.Executor()
        with pytest.raises(WorldError, match="is not initialized; run exe"):
            exe.run(fetch_list=[loss])
        exe.run(paddle.static.default_startup_program())
        table = paddle.static.default_main_program().all_parameters()[0].numpy()
        drawn = []
        for _ in range(3):
            value, batch, shown, slope = exe.run(fetch_list=[loss, ids, words, f"{name}@GRAD"])
            drawn.append(batch)
            np.testing.assert_array_equal(shown, table[batch])
            np.testing.assert_allclose(value, (table[batch] ** 2).mean(), rtol=1e-5)
            wanted = np.zeros_like(table)
            np.add.at(wanted, batch.ravel(), 2 * table[batch].reshape(-1, 8) / shown.size)
            np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-7)
            table = table - np.float32(10) * slope
        assert not np.array_equal(drawn[0], drawn[1])


@pytest.mark.ranks(2, 4)
def test_the_single_card_program_sends_nothing(world):
    """Ranks run the document's single-card program without communication and get equal losses."""
    wanted, table = numpy_losses(3)

    def network():
        words = paddle.nn.Embedding(WORDS, WIDTH, weight_attr=make_attribute("e", TABLE))
        up = paddle.nn.Linear(WIDTH, HIDDEN, make_attribute("u", UP), make_attribute("ub", UP_BIAS))
        down = paddle.nn.Linear(HIDDEN, WORDS, make_attribute("d", DOWN), make_attribute("db", DOWN_BIAS))
        return paddle.nn.Sequential(words, up, paddle.nn.ReLU(), down)

    with use_world(world):
        paddle.disable_static()
        net, losses = network(), []
        optimizer = paddle.optimizer.SGD(0.5, parameters=net.parameters())
        with record() as trace:
            for _ in range(3):
                loss = paddle.nn.functional.cross_entropy(net(IDS), LABELS)
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                losses.append(float(loss))
        assert trace.counts() == {}
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)
        np.testing.assert_allclose(net[0].weight.numpy(), table, rtol=1e-3, atol=1e-5)
        other = network()
        other.set_state_dict(net.state_dict())
        np.testing.assert_array_equal(other[0].weight.numpy(), net[0].weight.numpy())
        paddle.enable_static()
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            ids = paddle.static.data("ids", [4, 6], "int64")
            loss = paddle.nn.functional.cross_entropy(network()(ids), LABELS)
            test = paddle.static.default_main_program().clone(for_test=True)
            paddle.optimizer.SGD(0.5).minimize(loss)
            late = paddle.static.default_main_program().clone(for_test=True)
            exe = paddle.static.Executor()
            exe.run(paddle.static.default_startup_program())
            losses = [exe.run(feed={"ids": IDS}, fetch_list=[loss])[0] for _ in range(3)]
            np.testing.assert_allclose(losses, wanted, rtol=1e-4)
            first, second = (exe.run(clone, {"ids": IDS}, [loss.name])[0] for clone in (late, test))
            assert first == second < losses[-1]


@pytest.mark.ranks(2)
def test_a_clone_for_tests_has_no_dropout(world):
    """The clone disables dropout in functions and layers, and the cloned program keeps it."""
    ones = np.ones((8, 8), "f4")
    with use_world(world):
        paddle.enable_static()
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            x, functional = paddle.static.data("x", [-1, 8]), paddle.nn.functional
            unscaled = [
                functional.dropout(x, 0.5),
                functional.dropout(x, 0.5, None, True),
                paddle.nn.Dropout(0.5)(x),
            ]
            scaled = [
                functional.dropout(x, p=0.25, training=True, mode="downscale_in_infer"),
                paddle.nn.Dropout(0.25, mode="downscale_in_infer")(x),
            ]
            program = paddle.static.default_main_program()
            test, copy, exe = program.clone(for_test=True), program.clone(), paddle.static.Executor()
            for value, wanted in zip(exe.run(test, {"x": ones}, unscaled + scaled), [1, 1, 1, 0.75, 0.75]):
                np.testing.assert_allclose(value, wanted * ones, rtol=1e-6)
            for trained_program in (program, copy):
                assert all(
                    (value == 0).any() for value in exe.run(trained_program, {"x": ones}, unscaled + scaled)
                )


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "attributes, options, wanted",
    [
        ({"learning_rate": 0.1}, {}, lambda w, g: w - 0.05 * g),
        ({"learning_rate": 0.0}, {}, lambda w, g: w),
        ({"trainable": False}, {}, lambda w, g: w),
        ({}, {"weight_decay": 0.2}, lambda w, g: w - 0.5 * (g + 0.2 * w)),
        ({"regularizer": paddle.regularizer.L2Decay(0.3)}, {"weight_decay": 0.2}, lambda w, g: w - 0.5 * (g + 0.3 * w)),
        ({"regularizer": paddle.regularizer.L1Decay(0.3)}, {}, lambda w, g: w - 0.5 * (g + 0.3 * np.sign(w))),
        ({}, {"weight_decay": paddle.regularizer.L1Decay(0.1)}, lambda w, g: w - 0.5 * (g + 0.1 * np.sign(w))),
        ({}, {"grad_clip": paddle.nn.ClipGradByGlobalNorm(0.25)}, lambda w, g: w - 0.5 * g * 0.25 / np.sqrt((g * g).sum())),
        ({}, {"grad_clip": paddle.nn.ClipGradByNorm(1e6)}, lambda w, g: w - 0.5 * g),
        ({}, {"grad_clip": paddle.nn.ClipGradByValue(0.5)}, lambda w, g: w - 0.5 * g.clip(-0.5, 0.5)),
        ({"need_clip": False}, {"grad_clip": paddle.nn.ClipGradByValue(0.5)}, lambda w, g: w - 0.5 * g),
    ],
)  # fmt: skip
def test_attributes_have_their_effect(world, attributes, options, wanted):
    """The step of a column-split weight follows its attributes; the loss is the sum of ``x @ w``."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)), rng.normal(size=(4, 6))
    slope = x.T @ np.ones((3, 6))
    with use_world(world):
        fleet.init(is_collective=True)
        attr = paddle.ParamAttr(name="w", initializer=paddle.nn.initializer.Assign(w), **attributes)
        y = paddle.distributed.split(
            x, (4, 6), "linear", axis=1, num_partitions=2, weight_attr=attr, bias_attr=False
        )
        program = paddle.static.default_main_program()
        other = paddle.create_parameter([2], name="other")
        loss = paddle.sum(y) + paddle.sum(other) * 0.0
        parameter = program.var("w")
        optimizer = paddle.optimizer.SGD(0.5, **options)
        _, pairs = optimizer.minimize(loss)
        assert [p.name for p, _ in pairs] == ["w", "other"][not parameter.trainable :]
        assert program.all_parameters()[0] is parameter and parameter.stop_gradient == (
            not parameter.trainable
        )
        np.testing.assert_allclose(parameter.numpy(), wanted(w, slope), rtol=1e-5)


@pytest.mark.ranks(2)
def test_the_startup_program_resets_parameters_and_momentum(world):
    """Losses after a second run of the startup program equal the first ones, and momentum starts at zero."""
    with use_world(world):
        paddle.enable_static()
        x = paddle.static.data("x", [2, 4])
        loss = paddle.mean(paddle.nn.Linear(4, 3)(x))
        paddle.optimizer.Momentum(0.1, 0.9).minimize(loss)
        exe, feed = paddle.static.Executor(), {"x": np.ones((2, 4), "f4")}
        losses_of_runs = []
        for _ in range(2):
            exe.run(paddle.static.default_startup_program())
            losses_of_runs.append([float(exe.run(feed=feed, fetch_list=[loss])[0]) for _ in range(4)])
        assert losses_of_runs[0] == losses_of_runs[1]
        steps = np.diff(losses_of_runs[0])
        np.testing.assert_allclose(steps, steps[0] * np.array([1, 1.9, 2.71]), rtol=1e-3)


@pytest.mark.ranks(2)
def test_parameters_of_one_name_are_shared(world):
    with use_world(world):
        fleet.init(is_collective=True)
        split = paddle.distributed.split
        for _ in range(2):
            split(IDS, (8, 8), "embedding", num_partitions=2, name="mine")
        split(np.ones((2, 8)), (8, 4), "linear", axis=1, num_partitions=2, name="mine")
        for _ in range(3):
            split(IDS, (8, 8), "embedding", num_partitions=2, weight_attr=paddle.ParamAttr(name="shared"))
        program = paddle.static.default_main_program()
        assert [p.name for p in program.all_parameters()] == [
            "mine.w_0",
            "mine.w_1",
            "mine.w_2",
            "mine.b_0",
            "shared",
        ]
        with pytest.raises(
            InputError, match=r"parameter shared has shape \[8, 8\], but is used with shape \[8, 4\]"
        ):
            split(np.ones((2, 8)), (8, 4), "linear", axis=1, num_partitions=2, weight_attr="shared")


@pytest.mark.ranks(2)
def test_stop_gradient_stops_gradients(world):
    with use_world(world):
        a = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
        b = paddle.to_tensor([3.0, 4.0])
        assert not a.stop_gradient and b.stop_gradient and (b * 2).stop_gradient and not (a * b).stop_gradient
        cut = a * b
        cut.stop_gradient = True
        (cut + a * 2).backward()  # each element counts with 1
        np.testing.assert_array_equal(a.gradient(), [2, 2])
        a.clear_grad()
        assert a.grad is None and a.gradient() is None
        b.stop_gradient = False
        (a * b).sum().backward()
        np.testing.assert_array_equal(b.grad.numpy(), [1, 2])
        with paddle.no_grad():
            assert (a * b).stop_gradient
        assert not (a * b).stop_gradient
        layer = paddle.nn.Linear(2, 2)
        layer.weight.stop_gradient = True
        layer(b).sum().backward()
        assert layer.weight.grad is None and layer.bias.grad is not None and not layer.weight.trainable


@pytest.mark.ranks(2)
def test_stop_gradient_stops_gradients_in_a_program(world):
    with use_world(world):
        paddle.enable_static()
        x = paddle.static.data("x", [2, 3])
        first, second = paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 3)
        middle = first(x)
        middle.stop_gradient = True
        paddle.optimizer.SGD(0.1).minimize(paddle.mean(second(middle)))
        exe = paddle.static.Executor()
        exe.run(paddle.static.default_startup_program())
        names = [f"{p.name}@GRAD" for p in (*first.parameters(), *second.parameters())]
        slopes = exe.run(feed={"x": np.ones((2, 3), "f4")}, fetch_list=names)
        assert [slope is None for slope in slopes] == [True, True, False, False]


#: Wrong calls with a static variable, and the text of their errors.
WRONG = [
    (lambda x: paddle.to_tensor([1.0]).backward(), "stop_gradient=True.*nearest: a parameter"),
    (lambda x: paddle.optimizer.SGD().minimize(paddle.mean(x)), "stop_gradient=True"),
    (lambda x: paddle.optimizer.SGD().minimize(paddle.nn.Linear(4, 3)(x)), "must have one element, got shape.*nearest: paddle.mean"),
    (lambda x: x.numpy(), "only in a run; nearest: exe.run"),
    (lambda x: x.backward(), r"nearest: optimizer.minimize\(loss\)"),
    (lambda x: float(x), "no values before its program runs; nearest: exe.run"),
    (lambda x: x.reshpe([2]), "nearest: reshape"),
    (lambda x: paddle.to_tensor([1.0]).reshpe([2]), "nearest: reshape"),
    (lambda x: paddle.matmul(x, np.ones((3, 4), "f4")), r"-1, 4"),
    (lambda x: paddle.to_tensor([1], stop_gradient=False), "int64 has no gradient.*nearest: dtype"),
    (lambda x: paddle.static.Executor().run(feed={"y": 1}, fetch_list=[x]), "variables of static.data, got 'y'; nearest: x"),
    (lambda x: paddle.static.Executor().run(fetch_list=[x]), "variable x is not fed"),
    (lambda x: paddle.static.Executor().run(fetch_list=["xx"]), "var xx not in this block; nearest: x"),
    (lambda x: paddle.static.Executor().run(fetch_list=[3]), "a int cannot be fetched"),
    (lambda x: paddle.static.Executor().run(feed={"x": np.ones((2, 3), "f4")}), "should have dimensions = 2"),
    (lambda x: paddle.static.Executor().run(feed={"x": np.ones((2, 4))}), "must be 'float32', but received 'float64'"),
    (lambda x: paddle.static.Executor().run("main"), "must be (a|of) paddle.static.Program"),
    (lambda x: paddle.static.program_guard("main").__enter__(), "must be (a|of) paddle.static.Program"),
    (lambda x: paddle.static.data("x", [3]), "give static.data another name"),
    (lambda x: paddle.static.data(paddle.nn.functional.relu(x).name, [None, 4]), "give static.data another name"),
    (lambda x: paddle.ParamAttr(learning_rate=-1), "number of 0 or more, got -1"),
    (lambda x: paddle.ParamAttr(regularizer=0.1), "L2Decay or L1Decay, got a float"),
    (lambda x: paddle.optimizer.SGD("0.1"), "learning_rate must be a number here, got a str; nearest: set_lr"),
    (lambda x: paddle.optimizer.SGD(0.1, grad_clip=1.0), "nearest: ClipGradByGlobalNorm"),
    (lambda x: paddle.optimizer.SGD(0.1, weight_decay="x"), "weight_decay must be a number"),
    (lambda x: paddle.optimizer.SGD(0.1).step(), "needs parameters=model.parameters"),
    (lambda x: paddle.nn.ClipGradByValue(1.0, 2.0), "got min 2.0 and max 1.0"),
]  # fmt: skip


@pytest.mark.ranks(2)
@pytest.mark.parametrize("index", range(len(WRONG)))
def test_wrong_calls_get_one_line(world, index):
    call, message = WRONG[index]
    with use_world(world):
        paddle.enable_static()
        x = paddle.static.data("x", [None, 4])
        with pytest.raises((SpmdError, AttributeError), match=message) as caught:
            call(x)
        assert "\n" not in str(caught.value)


@pytest.mark.ranks(2)
def test_dynamic_mode_refuses_calls_that_need_a_program(world):
    with use_world(world):
        paddle.disable_static()
        with pytest.raises(SpmdError, match="only supported in static graph mode"):
            paddle.static.data("x", [1])
        with pytest.raises(SpmdError, match="should not be None in dygraph mode; nearest: parameters="):
            paddle.optimizer.Adam()


@pytest.mark.ranks(2)
def test_parameters_have_the_symbols_of_tensors(world):
    """Symbols combine parameters with numbers, arrays and other parameters."""
    with use_world(world):
        paddle.disable_static()
        w = paddle.create_parameter([8, 8], attr=TABLE)
        for result, wanted in (
            (w // 2, TABLE // 2), (w % 2, TABLE % 2), (w * w, TABLE * TABLE), (TABLE - w, 0 * TABLE), (w[1:], TABLE[1:]),
            (np.float32(2) * w, 2 * TABLE), (w @ w, TABLE @ TABLE),
        ):  # fmt: skip
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5)
