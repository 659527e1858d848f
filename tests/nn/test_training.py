"""Networks train as in one process on any layout; first values have equal bits on any number of ranks."""

from __future__ import annotations

import tracemalloc
from functools import reduce

import numpy as np
import pytest
from numpy_network import train_step

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, nn, record
from spmdsim.cases.network import Network
from spmdsim.errors import UsageTypeError
from spmdsim.nn import gradients

WIDTH, LENGTH, BATCH, VOCABULARY = 16, 8, 4, 24


def train_gpt(world, mesh, stream, *, tied=False, state=None, steps=3):
    model = nn.GPT(VOCABULARY, WIDTH, 4, 2, LENGTH, stream, "tp", tied=tied, dtype=np.float64)
    model.materialise(world, seed=1)
    optimiser = nn.Adam(model.parameters(), 1e-2, weight_decay=0.01, state_layout=state)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        data = rng.integers(0, VOCABULARY, size=(BATCH, LENGTH + 1))
        x = Tensor.from_global(data[:, :-1], mesh("dp", None), world)
        y = Tensor.from_global(data[:, 1:], mesh("dp", None), world)
        model.zero_grad()
        loss = model.loss(x, y)
        nn.backward(loss)
        norm = nn.clip(model.parameters(), 0.5)
        optimiser.step()
        losses.append((loss.item(), norm))
    return losses, {name: p.value.full() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def single():
    mesh = Mesh((1, 1), ("dp", "tp"))
    return {tied: train_gpt(LockStep(1), mesh, mesh("dp", None, None), tied=tied) for tied in (False, True)}


@pytest.mark.parametrize("tied", [False, True])
def test_recording_changes_no_bit_of_training_on_one_rank(single, tied):
    """Recorded training takes the general path of many ranks, which writes over no array.

    Its results equal those of the unrecorded training, `single`, with weights `tied` and not.
    """
    mesh = Mesh((1, 1), ("dp", "tp"))
    with record() as trace:
        losses, weights = train_gpt(LockStep(1), mesh, mesh("dp", None, None), tied=tied)
    assert any(span.name == "matmul.backward" for span in trace.spans)
    assert losses == single[tied][0]
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, single[tied][1][name])


# Together the cases have every pair of options, each on and off.
@pytest.mark.ranks(8)
@pytest.mark.parametrize(
    "sequence, tied, zero",
    [(False, False, False), (True, True, False), (True, False, True), (False, True, True)],
)
def test_gpt_on_dp_and_tp_equals_one_process(world, single, sequence, tied, zero):
    mesh = Mesh((world.size // 2, 2), ("dp", "tp"))
    stream = mesh("dp", "tp" if sequence else None, None)
    state = nn.sharded_over("dp") if zero else None
    losses, parameters = train_gpt(world, mesh, stream, tied=tied, state=state)
    expected, values = single[tied]
    np.testing.assert_allclose(losses, expected, rtol=1e-11)
    for name, value in values.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.ranks(1, 2, 3, 8)
def test_first_values_have_equal_bits_on_any_number_of_ranks(world):
    line = Mesh((world.size,), ("x",))
    with record() as trace:
        layers = [
            nn.Linear(13, 10, layout) for layout in (line(None, None), line("x", None), line(None, "x"))
        ]
        for layer in layers:
            layer.materialise(world, seed=3)
    assert trace.counts() == {}
    lonely = nn.Linear(13, 10, Mesh((1,), ("x",))(None, None)).materialise(LockStep(1), seed=3)
    for layer in layers:
        assert layer.weight.value.full().tobytes() == lonely.weight.value.full().tobytes()


def test_first_values_depend_on_the_key_instead_of_the_name():
    """Models with other names of parameters get equal first values if the keys are equal."""
    world, layout = LockStep(2), Mesh((2,), ("x",))("x")
    values = {}
    for name, key in (("a", ""), ("b", "a"), ("b", "")):
        parameter = nn.Parameter((6,), layout)
        parameter.name, parameter.key = name, key
        parameter.materialise(world, seed=3)
        values[name, key] = parameter.value.full().tolist()
    assert values["a", ""] == values["b", "a"] != values["b", ""]


def test_parameters_take_no_memory_before_a_world_is_known():
    mesh = Mesh((65536,), ("x",))
    layer = nn.Linear(1 << 20, 1 << 20, mesh("x", None))
    assert layer.weight.tensor is None
    with pytest.raises(Exception, match=r"has no values yet; call materialise"):
        layer.weight.value


@pytest.mark.ranks(8)
@pytest.mark.parametrize("strategies", ["simple", "advanced", "data"])
def test_the_tutorials_network_equals_one_process(world, strategies):
    network = Network(strategies, world.size, 32, np.float64).materialise(world, seed=1)
    weights = [p.value.full() for p in network.parameters()]
    rng = np.random.default_rng(0)
    for _ in range(2):
        x, y = rng.normal(size=(32, 784)), rng.integers(0, 10, size=32)
        images = Tensor.from_global(x, network.input_layout, world)
        labels = Tensor.from_global(y, Mesh((8,), ("dp",))("dp"), world)
        network.zero_grad()
        loss = ops.cross_entropy(network(images), labels)
        nn.backward(loss)
        nn.SGD(network.parameters(), 0.1).step()
        assert loss.item() == pytest.approx(train_step(weights, x, y, 0.1), rel=1e-12)
    for parameter, weight in zip(network.parameters(), weights):
        np.testing.assert_allclose(parameter.value.full(), weight, rtol=1e-10, atol=1e-13)


@pytest.mark.ranks(4)
def test_merged_gradients_need_one_call_and_keep_their_values(world):
    mesh = Mesh((4,), ("dp",))

    def run(merge):
        model = nn.Sequential(*[nn.Linear(8, 8, mesh(None, None), dtype=np.float64) for _ in range(3)])
        model.materialise(world)
        x = Tensor.from_global(np.random.default_rng(0).normal(size=(12, 8)), mesh("dp", None), world)
        with record() as trace:
            loss = ops.sum(ops.multiply(model(x), model(x)))
            nn.backward(loss, merge=merge)
        return trace.counts(), [p.grad.full() for p in model.parameters()]

    merged, values = run(True)
    single, expected = run(False)
    assert merged == {"all_reduce": 1}
    assert single == {"all_reduce": 6}
    for a, b in zip(values, expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("optimiser", [nn.SGD, nn.Adam])
def test_a_training_step_shares_messages(world, optimiser):
    """Clipping needs one all_reduce for all gradients, and a split update one all_gather."""
    mesh, rng = Mesh((world.size // 2, 2), ("dp", "tp")), np.random.default_rng(1)
    columns, rows = mesh(None, "tp"), mesh("tp", None)
    data = rng.normal(size=(8, 6))

    def run(state):
        """Train one step with a layout function for the state.

        Returns the norm, the gradients, the traces of clipping and of the update, and the parameters.
        """
        model = nn.Sequential(
            *(nn.Linear(6, 8, columns, dtype=np.float64), nn.Linear(8, 6, rows, False, dtype=np.float64)),
            *(
                nn.Linear(6, 8, columns, False, dtype=np.float64),
                nn.Linear(8, 6, rows, False, dtype=np.float64),
            ),
        )
        model.materialise(world, seed=3)
        x = Tensor.from_global(data, mesh("dp", None), world)
        nn.backward(ops.sum(ops.multiply(model(x), model(x))))
        gradients = [parameter.grad.full() for parameter in model.parameters()]
        with record() as clipped:
            norm = nn.clip(model.parameters(), 0.5)
        with record() as updated:
            optimiser(model.parameters(), 0.1, state_layout=state).step()
        return norm, gradients, clipped, updated, [p.value.full() for p in model.parameters()]

    norm, gradients, clipped, updated, unsplit = run(None)
    assert norm == pytest.approx(np.sqrt(sum((g * g).sum() for g in gradients)), rel=1e-12)
    assert clipped.counts() == {"all_reduce": 1} and updated.counts() == {}
    assert [event.operator for event in clipped.collectives if event.collective == "all_reduce"] == ["norm"]
    norm, _, clipped, updated, split = run(nn.sharded_over("dp"))
    assert clipped.counts() == {"all_reduce": 1}
    # First dims are split over dp, in rows after tp, so that all parameters need an identical gather.
    assert updated.counts() == ({"all_gather": 1} if world.size == 4 else {}), str(updated)
    for one, other in zip(unsplit, split):
        np.testing.assert_array_equal(one, other)


def test_training_refuses_invalid_arguments():
    from spmdsim.errors import InputError, LayoutError

    mesh, world = Mesh((2,), ("dp",)), LockStep(2)
    layer = nn.Linear(4, 4, mesh(None, None)).materialise(world)
    x = Tensor.from_global(np.ones((2, 4), np.float32), mesh("dp", None), world)
    with pytest.raises(LayoutError, match=r"^backward: loss must have one element, got shape \(2, 4\)"):
        nn.backward(layer(x))
    for rate in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="SGD: rate must be a number of 0 or more, got "):
            nn.SGD(layer.parameters(), rate)
    with pytest.raises(InputError, match="betas must be numbers of at least 0 and less than 1"):
        nn.Adam(layer.parameters(), betas=(0.9, 1.0))
    nn.backward(ops.sum(layer(x)))
    with pytest.raises(LayoutError, match="'zz'"):
        nn.Adam(layer.parameters(), state_layout=nn.sharded_over("zz")).step()


@pytest.mark.ranks(2)
def test_parameters_without_dims_share_an_all_reduce(world):
    """Gradients of parameters without dims share one all_reduce."""
    mesh = Mesh((2,), ("dp",))

    class Affine(nn.Module):
        def __init__(self):
            self.a, self.b = (nn.Parameter((), mesh(), nn.ones, np.float64) for _ in range(2))

        def forward(self, x):
            return ops.add(ops.multiply(x, self.a.value), self.b.value)

    model = Affine().materialise(world)
    x = Tensor.from_global(np.arange(8.0).reshape(4, 2), mesh("dp", None), world)
    loss = ops.sum(model(x))
    with record() as trace:
        nn.backward(loss)
    assert trace.counts() == {"all_reduce": 1}
    assert (float(model.a.grad), int(model.b.grad), bool(model.b.grad)) == (28.0, 8, True)
    with pytest.raises(ValueError, match="x must have one element"):
        bool(x)


def test_a_gpt_is_causal_and_has_hidden_layers_of_four_widths():
    """Later tokens change no earlier output, and hidden layers have four times the width."""
    mesh = Mesh((1, 1), ("dp", "tp"))
    world = LockStep(1)
    model = nn.GPT(VOCABULARY, WIDTH, 4, 2, LENGTH, mesh("dp", None, None), "tp", dtype=np.float64)
    model.materialise(world, seed=1)
    assert sorted(p.shape for p in model.parameters()).count((WIDTH, 4 * WIDTH)) == 2
    ids = np.arange(LENGTH)[None] % VOCABULARY
    other = ids.copy()
    other[0, -1] += 1
    first, second = (model(Tensor.from_global(x, mesh("dp", None), world)).full()[0] for x in (ids, other))
    np.testing.assert_array_equal(first[:-1], second[:-1])
    assert (first[-1] != second[-1]).any()


def test_updates_may_gather_the_inner_dim_of_weights():
    """Weights are updated as in one process if their state is split by the second dim."""

    def trained_weights(world, mesh):
        """Return the weights of two layers after three steps of SGD with momentum."""
        model = nn.Sequential(nn.Linear(8, 8, mesh(None, None), bias=False, dtype=np.float64),
                              nn.Linear(8, 4, mesh(None, None), bias=False, dtype=np.float64))  # fmt: skip
        model.materialise(world, seed=1)
        layouts = None if world.size == 1 else lambda _: mesh(None, "dp")
        optimiser = nn.SGD(model.parameters(), 0.1, momentum=0.9, state_layout=layouts)
        for step in range(3):
            x = Tensor.from_global(np.random.default_rng(step).normal(size=(8, 8)), mesh("dp", None), world)
            model.zero_grad()
            nn.backward(ops.sum(ops.multiply(model(x), model(x))))
            optimiser.step()
        return [p.value.full() for p in model.parameters()]

    one = trained_weights(LockStep(1), Mesh((1,), ("dp",)))
    with record() as trace:
        four = trained_weights(LockStep(4), Mesh((4,), ("dp",)))
    for value, wanted in zip(four, one, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
    assert "all_gather" in {event.collective for event in trace.collectives}


@pytest.mark.ranks(4)
def test_tensors_are_trained_like_parameters(world):
    """Adam with clipping trains two matrices like numpy by hand, in every world."""
    mesh = Mesh((2, world.size // 2), ("dp", "tp"))
    draw = np.random.default_rng(5)
    first, second = draw.normal(size=(6, 8)), draw.normal(size=(8, 3))
    batch, goal = draw.normal(size=(4, 6)), draw.normal(size=(4, 3))
    a = Tensor.from_global(first, mesh(None, "tp"), world, requires_grad=True)
    b = Tensor.from_global(second, mesh("tp", None), world, requires_grad=True)
    x = Tensor.from_global(batch, mesh("dp", None), world)
    optimiser = nn.Adam((a, b), 0.1)
    moments = [(np.zeros_like(v), np.zeros_like(v)) for v in (first, second)]
    for step in range(1, 4):
        error = x @ a @ b - goal
        ops.sum(error * error).backward()
        nn.clip([a, b], 1.0)
        optimiser.step()
        slope = 2 * (batch @ first @ second - goal)
        slopes = [batch.T @ slope @ second.T, (batch @ first).T @ slope]
        norm = np.sqrt(sum((s**2).sum() for s in slopes))
        for value, gradient, (mean, square) in zip((first, second), slopes, moments):
            gradient = gradient * min(1.0, 1 / (norm + 1e-6))
            mean[:] = 0.9 * mean + 0.1 * gradient
            square[:] = 0.999 * square + 0.001 * gradient**2
            value -= 0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        assert a.grad is None and a.requires_grad
        np.testing.assert_allclose(a.full(), first, rtol=1e-9)
        np.testing.assert_allclose(b.full(), second, rtol=1e-9)


def test_optimisers_refuse_tensors_that_are_no_leaves():
    mesh, world = Mesh((2,), ("x",)), LockStep(2)
    fixed = Tensor.from_global(np.ones(4), mesh("x"), world, name="fixed")
    leaf = Tensor.from_global(np.ones(4), mesh("x"), world, requires_grad=True)
    with pytest.raises(
        UsageTypeError, match=r"the tensor fixed wants none; make it with requires_grad=True$"
    ):
        nn.SGD([fixed], 0.1)
    with pytest.raises(UsageTypeError, match=r"the tensor \(4,\) was computed from others"):
        nn.SGD([leaf * 2], 0.1)
    with pytest.raises(
        UsageTypeError, match=r"^parameters must have parameters and tensors only, got a ndarray; "
    ):
        nn.SGD([np.ones(3)], 0.1)


def test_a_module_prints_its_layers_and_parameters():
    mesh = Mesh((2,), ("tp",))
    assert repr(nn.MLP(4, 8, mesh(None, None), "tp")) == (
        "MLP(\n  up: Linear(\n    weight: f32[4,8] S(1)\n    bias: f32[8] S(0)\n  )\n"
        "  down: Linear(\n    weight: f32[8,4] S(0)\n    bias: f32[4] R\n  )\n)"
    )
    assert "blocks.1: TransformerBlock(" in repr(nn.GPT(11, 8, 2, 2, 4, mesh(None, None, None), "tp"))
    assert repr(nn.Sequential()) == "Sequential()"


@pytest.mark.ranks(2)
def test_tensors_wait_for_values_that_are_assigned_later(world):
    layout = Mesh((2,), ("dp",))("dp")
    tensor = Tensor.from_global(np.zeros(4), layout, world, requires_grad=True)
    (parameter,) = nn.module.parameters_of([tensor])
    parameter.assign_later(lambda: Tensor.from_global(np.arange(4.0), layout, world))
    assert tensor.full().tolist() == [0, 1, 2, 3] and tensor.requires_grad and tensor.grad is None


@pytest.mark.ranks(2)
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("state", [None, "dp"])
def test_unreduced_gradients_take_one_bucket_of_memory_at_most(world, monkeypatch, state, merged):
    """Memory is limited to the reduced gradients, split by `state`, and three buckets.

    The buckets are unreduced gradients, sent data and received data. `merged` gradients share messages.
    """
    layers, width = 24, 128
    weight = 8 * width * width
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 2 * weight)
    monkeypatch.setattr("spmdsim.worlds.pool.SMALLEST", 2**60)  # No memory is used again.
    mesh = Mesh((world.size,), ("dp",))
    x = Tensor.from_global(np.ones((2, width)), mesh("dp", None), world)
    weights = [
        Tensor.from_global(np.eye(width), mesh(None, None), world, requires_grad=True) for _ in range(layers)
    ]
    for tensor in weights if state else ():
        tensor.gradient_layout = mesh(state, None)
    for _ in range(2):  # The second run measures without the plans that the first run derives.
        loss = ops.sum(reduce(ops.matmul, weights, x))
        tracemalloc.start()
        nn.backward(loss, merge=merged)
        peak = tracemalloc.get_traced_memory()[1] / (weight * len(world.ranks))
        tracemalloc.stop()
        for tensor in weights:
            tensor.grad = None
    assert peak < (layers / (2 if state else 1)) + 3 * 2 + 1
