"""MindSpore programs train: gradients, optimisers, models, cells and checkpoints give the expected numbers."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.mindspore.dataset as ds
from spmdsim import LockStep
from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4))
Y = RNG.normal(size=(8, 4))
V = RNG.normal(size=4)
IDS = np.array([3, 0, 1, 2, 0, 3, 3, 1])


def numpy_steps(update, steps=4):
    """Weights after some steps on the gradient of the sum of squares of ``w``."""
    w, state = X.copy(), {}
    for k in range(steps):
        w = update(w, 2 * w, state, k)
    return w


def momentum(rate, factor, decay=0.0, dampening=0.0, nesterov=False):
    def update(w, g, state, k):
        g = g + decay * w
        state["v"] = g if k == 0 else factor * state["v"] + (1 - dampening) * g
        return w - rate * (g + factor * state["v"] if nesterov else state["v"])

    return update


def adam(rate, decay):
    def update(w, g, state, k):
        g = g + decay * w
        m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
        now = rate * np.sqrt(1 - 0.999 ** (k + 1)) / (1 - 0.9 ** (k + 1))
        return w - now * m / (np.sqrt(v) + 1e-8)

    return update


OPTIMISERS = {
    "SGD": (lambda p: nn.SGD(p, 0.1), momentum(0.1, 0)),
    "rates": (lambda p: nn.SGD(p, [0.1, 0.2]), lambda w, g, s, k: w - (0.1 if k == 0 else 0.2) * g),
    "rate by step": (lambda p: nn.SGD(p, lambda k: 0.1 / (k + 1)), lambda w, g, s, k: w - 0.1 / (k + 1) * g),
    "dampening": (lambda p: nn.SGD(p, 0.1, 0.9, 0.5), momentum(0.1, 0.9, 0, 0.5)),
    "nesterov": (lambda p: nn.SGD(p, 0.1, 0.9, nesterov=True), momentum(0.1, 0.9, nesterov=True)),
    "Momentum": (lambda p: nn.Momentum(p, 0.1, 0.9, weight_decay=0.01), momentum(0.1, 0.9, 0.01)),
    "Adam": (lambda p: nn.Adam(p, 0.1, weight_decay=0.01), adam(0.1, 0.01)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_against_numpy(world, name):
    make, update = OPTIMISERS[name]
    with use_world(world):
        w = ms.Parameter(X, name="w")
        square = ops.Mul().shard(((2, 1), (2, 1)))
        optimizer = make([w])
        step = ms.value_and_grad(lambda: ops.sum(square(w, w)), None, optimizer.parameters)
        for _ in range(4):
            _, grads = step()
            optimizer(grads)
        np.testing.assert_allclose(w.asnumpy(), numpy_steps(update), rtol=1e-6)


@pytest.mark.ranks(2)
def test_gradients_of_inputs_and_weights(world):
    with use_world(world):
        w = ms.Parameter(Y, name="w")

        def loss(a, b):
            """Return the loss, and the first operand as auxiliary output."""
            return ops.sum(ops.mul(ops.mul(a, b), w)), a

        value, gradients = ms.value_and_grad(loss, (0, 1), [w], has_aux=True)(X, Y)
        np.testing.assert_allclose(value[0].asnumpy(), (X * Y * Y).sum())
        (of_a, of_b), (of_w,) = gradients
        for gradient, expected in ((of_a, Y * Y), (of_b, X * Y), (of_w, X * Y)):
            np.testing.assert_allclose(gradient.asnumpy(), expected)
        np.testing.assert_allclose(ms.grad(loss)(X, Y).asnumpy(), Y * Y)
        single = ms.grad(loss, None, w)(X, Y)
        np.testing.assert_allclose(single.asnumpy(), X * Y)
        with pytest.raises(InputError, match=r"grad_position must be in -2\.\.1 for 2 inputs, got 2"):
            ms.grad(loss, 2)(X, Y)
        with pytest.raises(InputError, match="grad_position or weights must be given"):
            ms.value_and_grad(loss, None)


@pytest.mark.ranks(2)
def test_whole_numbers_are_inputs_and_parameters_without_gradients(world):
    with use_world(world):
        step = ms.Parameter(ms.Tensor(np.arange(4)), name="step")
        assert (step + 1).full().tolist() == [1, 2, 3, 4]
        operands = ms.Tensor(np.arange(4)), ms.Tensor(np.ones(4, "f4"))
        _, (of_ids, of_rows) = ms.value_and_grad(lambda ids, rows: ops.mul(ids, rows), (0, 1))(*operands)
        assert of_ids is None and of_rows.full().tolist() == [0, 1, 2, 3]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("cuts", [(4, 1), (1, 4), (2, 2)])
def test_reductions_have_gradients_in_every_strategy(world, cuts):
    top, low = X.max(1, keepdims=True) == X, X.min(1, keepdims=True) == X
    cases = {
        ops.ReduceSum: np.ones_like(X), ops.ReduceMean: np.full_like(X, 0.25), ops.ReduceMax: top, ops.ReduceMin: low,
        ops.ReduceProd: X.prod(1, keepdims=True) / X,
    }  # fmt: skip
    with use_world(world):
        for primitive, slope in cases.items():
            w = ms.Parameter(X, name="w")
            reduced = primitive(keep_dims=True).shard((cuts,))
            gradient = ms.grad(
                lambda reduced=reduced, w=w: ops.sum(ops.mul(reduced(w, 1), Y[:, :1])), None, w
            )()
            np.testing.assert_allclose(
                gradient.asnumpy(), slope * Y[:, :1], rtol=1e-9, err_msg=primitive.__name__
            )
        norm = ops.LayerNorm(1, 1, 1e-5).shard(((cuts[0], 1), (1,), (1,)))
        w = ms.Parameter(X, name="w")
        assert ms.grad(lambda: ops.sum(norm(w, V, V)[0]), None, w)().shape == X.shape


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(4, 6, activation="relu"), nn.Dense(6, 4, weight_init="ones"))
        self.more = nn.CellList([nn.Dense(4, 4), nn.ReLU()])

    def construct(self, x):
        x = self.body(x)
        for cell in self.more:
            x = cell(x)
        return x


@pytest.mark.ranks(2, 4)
def test_a_model_trains_like_a_loop_over_steps(world, capsys):
    def list_losses(training_world, by_model):
        """Return the losses of four steps in a world; `by_model` is True for `Model.train`."""
        ms.set_seed(5)
        with use_world(training_world):
            net = Net()
            data = ds.NumpySlicesDataset((X.astype("f4"), IDS), ["x", "y"]).batch(4)
            optimizer, loss_fn = nn.Momentum(net.trainable_params(), 0.1, 0.9), nn.CrossEntropyLoss()
            if by_model:
                ms.Model(net, loss_fn, optimizer).train(2, data, callbacks=[ms.train.LossMonitor()])
                return [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
            step = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer).set_train()
            return [float(step(x, y).asnumpy()) for _ in range(2) for x, y in data]

    expected = list_losses(LockStep(1), False)
    assert len(expected) == 4 and expected[-1] != expected[0]
    np.testing.assert_allclose(list_losses(world, False), expected, rtol=1e-6)
    np.testing.assert_allclose(list_losses(world, True), expected, rtol=1e-6)


@pytest.mark.ranks(2)
def test_a_model_keeps_the_settings_of_its_parallel_network(world, capsys):
    """Two ranks with a full batch sum their gradients, which equals one process with twice the rate."""

    def train(training_world, rate, wrap):
        ms.set_seed(5)
        with use_world(training_world):
            net = Net()
            data = ds.NumpySlicesDataset((X.astype("f4"), IDS), ["x", "y"]).batch(4)
            optimizer = nn.SGD(net.trainable_params(), rate)
            model = ms.Model(wrap(net), nn.CrossEntropyLoss(), optimizer)
            model.train(3, data, callbacks=ms.train.LossMonitor())
            return [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]

    def parallel(net):
        network = ms.AutoParallel(net)
        network.dataset_strategy("full_batch")
        return network

    expected = train(LockStep(1), 0.4, lambda net: net)
    np.testing.assert_allclose(train(world, 0.2, parallel), expected, rtol=1e-5)


@pytest.mark.ranks(2)
def test_cells_list_their_parameters(world):
    with use_world(world):
        net = Net()
        names = [f"{cell}.{kind}" for cell in ("body.0", "body.1", "more.0") for kind in ("weight", "bias")]
        assert [p.name for p in net.trainable_params()] == names == list(net.parameters_dict())
        net.more[0].weight.requires_grad = False
        assert len(net.trainable_params()) == 5 and len(net.untrainable_params()) == 1
        assert list(net.name_cells()) == ["body", "more"] and len(net.cells()) == 2
        assert net.body[1].weight.asnumpy().tolist() == np.ones((4, 6)).tolist()
        with pytest.raises(InputError, match=r"nearest: \.shard on the primitives"):
            net.shard(((2, 1),))


@pytest.mark.ranks(2)
def test_checkpoints_are_loaded_by_name(world, tmp_path):
    folder = world.gather_objects([str(tmp_path / "net.ckpt")] * len(world.ranks))[0]
    with use_world(world):
        ms.set_seed(1)
        net = Net()
        before = net(X.astype("f4")).asnumpy()
        ms.save_checkpoint(net, folder)
        ms.set_seed(2)
        other = Net()
        assert not np.array_equal(other(X.astype("f4")).asnumpy(), before)
        assert ms.load_param_into_net(other, ms.load_checkpoint(folder)) == ([], [])
        np.testing.assert_array_equal(other(X.astype("f4")).asnumpy(), before)
        with pytest.raises(InputError, match="shape"):
            ms.load_param_into_net(other, {"body.0.weight": np.zeros((2, 2))})


@pytest.mark.ranks(4)
def test_the_search_may_change_operators_without_a_strategy(world):
    """Operators without a strategy run data parallel, but the search may choose another strategy for them."""

    class Wide(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w1 = ms.Parameter(ms.initializer("normal", [64, 4096], ms.float32))
            self.w2 = ms.Parameter(ms.initializer("normal", [4096, 64], ms.float32))
            self.matmul1, self.relu, self.matmul2 = ops.MatMul(), ops.ReLU(), ops.MatMul()

        def construct(self, x):
            return self.matmul2(self.relu(self.matmul1(x, self.w1)), self.w2)

    x = np.ones((8, 64), np.float32)
    ms.set_seed(1)
    with use_world(world):
        net = ms.AutoParallel(Wide(), parallel_mode="recursive_programming")
        net.dataset_strategy("full_batch")
        first, second = net(x).full(), net(x).full()
        result = net.network.result_for(x)
        assert [operator.configured for operator in result.graph.operators] == [None] * 3
        assert [s.parts(f) for s, f in zip(result.choice.strategies, ("n", ".0", "k"))] == [4, 4, 4]
        np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-6)
        with pytest.raises(InputError, match="none is configured"):
            ms.AutoParallel(Wide(), parallel_mode="sharding_propagation")(x)
        configured = Wide()
        configured.matmul1.shard(((1, 1), (1, 4)))
        net = ms.AutoParallel(configured, parallel_mode="sharding_propagation")
        net.dataset_strategy("full_batch")
        net(x), net(x)
        assert [
            s.parts(f) for s, f in zip(net.network.result_for(x).choice.strategies, ("n", ".0", "k"))
        ] == [4, 4, 4]


def test_values_do_not_depend_on_earlier_parameters():
    """The path of a cell's parameter determines its values; other parameters are counted from set_seed."""
    with use_world(LockStep(2)):
        runs = []
        for others in range(2):
            ms.set_seed(4)
            values = [ms.Parameter(ms.initializer("normal", (4, 4))).asnumpy()]
            for _ in range(others):
                ms.Parameter(ms.initializer("normal", (2, 2)))
            values.append(Net()(X.astype("f4")).asnumpy())
            runs.append(values)
        for a, b in zip(*runs):
            np.testing.assert_array_equal(a, b)
