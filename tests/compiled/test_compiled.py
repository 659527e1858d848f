"""Compiled functions give the bits and the events of the functions, in lock step and on ranks."""

from __future__ import annotations

import threading
from collections import Counter, namedtuple
from decimal import Decimal
from types import MethodType

import numpy as np
import pytest

import spmdsim
from spmdsim import LockStep, Mesh, MPIWorld, ShapeOnly, Tensor, nn, ops, record
from spmdsim.cases.network import Network
from spmdsim.errors import InputError, LayoutError, PlanError, UsageTypeError
from spmdsim.worlds import World
from spmdsim.worlds.pool import SMALLEST

ROWS = 16


def network(strategies):
    """Return a function that builds the tutorial's network with a set of strategies."""

    def make(world, model=None):
        model = Network(strategies, world.size, ROWS)
        return model, model.input_layout, 784, lambda x, y: ops.cross_entropy(model(x), y)

    return make


def block(stream, zero=False, dtype=np.float32):
    """Return a function that builds a transformer block and a loss whose sum over tokens is partial."""

    def make(world):
        """Return the block, the layout and the shape of a row of its input, and the loss function."""

        mesh = Mesh((max(1, world.size // 2), min(2, world.size)), ("dp", "tp"))
        layout = mesh("dp", "tp" if stream == "sequence" else None, None)
        model = nn.TransformerBlock(8, 2, 16, layout, "tp", dtype=dtype)

        def loss(x, y):
            logits = ops.reshape(ops.sum(model(x), (1,)), (ROWS, 8))
            return ops.cross_entropy(logits, y)

        return model, mesh("dp", None, None), (4, 8), loss

    return make


CASES = {
    "data": (network("data"), nn.SGD, {"momentum": 0.9}),
    "simple": (network("simple"), nn.Adam, {"weight_decay": 0.1}),
    "advanced": (network("advanced"), nn.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sequence": (block("sequence"), nn.Adam, {}),
    "zero": (block("tensor"), nn.Adam, {"state_layout": nn.sharded_over("dp")}),
    "half": (block("tensor", dtype=np.float16), nn.SGD, {}),
}
#: Cases that clip their gradients. Gradients of some or all steps exceed the bound.
CLIPPED = ("simple", "zero", "half")


def trained(world, case, compiled):
    """Run four steps; return their losses, the final parameters and the trace of the last step.

    Each step has another batch and another learning rate.
    """
    make, kind, options = CASES[case]
    model, layout, width, loss_of = make(world)
    model.materialise(world, seed=1)
    optimiser = kind(model.parameters(), 1e-2, **options)

    def step(x, y):
        model.zero_grad()
        loss = loss_of(x, y)
        nn.backward(loss)
        norm = nn.clip(model.parameters(), 0.5) if case in CLIPPED else 0.0
        optimiser.step()
        return {"loss": loss, "norm": norm, "of": [x, "rows", ROWS]}

    wanted = spmdsim.compile(step) if compiled else step
    rng = np.random.default_rng(0)
    shape = (ROWS, *(width if isinstance(width, tuple) else (width,)))
    kind = model.parameters()[0].dtype
    losses = []
    for number in range(4):
        x = Tensor.from_global(rng.standard_normal(shape).astype(kind), layout, world)
        y = Tensor.from_global(rng.integers(0, 8, ROWS), layout.mesh(layout.dims[0]), world)
        optimiser.rate = 1e-2 / (number + 1)
        with record() as trace:
            results = wanted(x, y)
        assert results["of"][1:] == ["rows", ROWS]
        norm = results["norm"]
        losses += [results["loss"].full().tobytes(), norm if isinstance(norm, float) else norm.item()]
    assert not compiled or str(wanted).endswith("step: 1 program>")
    return losses, [p.value.full().tobytes() for p in model.parameters()], trace


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("case", CASES)
def test_a_compiled_training_step_has_the_bits_and_the_events_of_the_function(world, case):
    losses, parameters, trace = trained(world, case, False)
    compiled_losses, values, events = trained(world, case, True)
    assert compiled_losses == losses and values == parameters
    assert trace.difference(events) == []
    assert [event.source for event in events] == [event.source for event in trace]
    assert [(s.name, s.gradients) for s in events.spans] == [(s.name, s.gradients) for s in trace.spans]
    assert events.nbytes() == trace.nbytes() and events.sent() == trace.sent() and len(events) > 6
    moved = [event for event in events.collectives if event.group_size > 1]
    assert bool(moved) is (world.size > 1)


@pytest.mark.ranks(1, 2, 4)
@pytest.mark.parametrize("sliced", [False, True])
def test_slices_of_a_parameter_keep_its_value_of_before_the_update(world, sliced):
    n = 4 * SMALLEST // 8

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.points = nn.Parameter((n,), Mesh((world.size,), ("x",))("x"), dtype=np.float64)

    model = Line()
    model.materialise(world, seed=1)
    points = model.parameters()[0]
    optimiser = nn.SGD([points], 0.5, momentum=0.5)

    @spmdsim.compile
    def step(x):
        model.zero_grad()
        product = (points.tensor[2:] if sliced else points.tensor) * (x[2:] if sliced else x)
        nn.backward(ops.sum(product))
        optimiser.step()
        return product.detach()

    x = Tensor.from_global(np.ones(n), points.layout, world)
    before = points.tensor.full()
    for _ in range(5):
        old_slice = points.tensor.detach()[2:]
        product = step(x)
        after = points.tensor.full()
        assert not np.array_equal(before, after)
        assert np.array_equal(old_slice.full(), before[2:])
        assert np.array_equal(points.tensor.detach()[2:].full(), after[2:])
        assert np.array_equal(product.full(), before[2:] if sliced else before)
        before = after


@pytest.mark.ranks(4)
def test_a_compiled_call_logs_as_many_collectives_as_the_function(world):
    mesh = Mesh((4,), ("x",))
    compiled = spmdsim.compile(lambda x: ops.sum(ops.multiply(x, x).to(mesh(None)), 0).to(mesh()))
    x = Tensor.from_global(np.arange(8.0), mesh("x"), world)

    def count_logged_calls():
        agreement = getattr(world, "agreement", None)
        return agreement.log_of((0, 1, 2, 3)).number if agreement else 0

    counts = []
    for call in (compiled.function, compiled, compiled, compiled):
        before = count_logged_calls()
        result = call(x)
        counts.append(count_logged_calls() - before)
        assert result.full() == 140
    assert len(set(counts)) == 1 and bool(counts[0]) is isinstance(world, MPIWorld)


@pytest.mark.ranks(2)
def test_only_arguments_of_a_new_kind_are_recorded(world):
    mesh = Mesh((world.size,), ("x",))
    calls = []

    @spmdsim.compile
    def scaled(x, by=2):
        calls.append(by)
        return x * by, x.shape[0]

    assert scaled.__name__ == "scaled"
    for _ in range(2):
        for layout in (mesh("x"), mesh(None)):
            for length in (4, 6):
                for dtype in (np.float32, np.float64):
                    x = Tensor.from_global(np.arange(length, dtype=dtype), layout, world)
                    y, size = scaled(x)
                    assert (size, y.dtype, y.layout) == (length, dtype, layout)
                    np.testing.assert_array_equal(y.full(), 2 * np.arange(length))
    assert len(calls) == 8
    np.testing.assert_array_equal(scaled(x, by=3)[0].full(), 3 * np.arange(6))
    np.testing.assert_array_equal(scaled(x, by=3.0)[0].full(), 3 * np.arange(6))
    assert calls[8:] == [3, 3.0]
    for by in range(100):
        scaled(x, by)
    assert len(scaled.programs) <= 40
    assert repr(scaled).startswith("<compiled ") and "scaled" in repr(scaled)


@pytest.mark.ranks(1, 4)
def test_a_program_still_runs_after_the_world_invalidates_its_steps(world):
    mesh = Mesh((world.size,), ("x",))
    compiled = spmdsim.compile(lambda x: (x.to(mesh(None)) * 2 + 1, ops.sum(x)))
    x = Tensor.from_global(np.arange(8.0), mesh("x"), world)
    for k in range(6):
        if k == 3:
            world.invalidate()
        doubled, total = compiled(x)
        np.testing.assert_array_equal(doubled.full(), 2 * np.arange(8) + 1)
        assert total.item() == 28
    assert "1 program>" in repr(compiled)


@pytest.mark.ranks(2)
def test_the_latest_program_is_not_run_for_other_arguments(world):
    mesh = Mesh((world.size,), ("x",))
    x = Tensor.from_global(np.arange(8.0), mesh("x"), world)
    compiled = spmdsim.compile(
        lambda x, negate=False: -x[0] if isinstance(x, list) else -x if negate else x + 1
    )
    for arguments, options, expected in (
        ((x,), {}, np.arange(8) + 1),
        (([x],), {}, -np.arange(8)),
        ((x,), {"negate": True}, -np.arange(8)),
        ((x, True), {}, -np.arange(8)),
        ((x,), {}, np.arange(8) + 1),
        ((x.to(mesh(None)),), {}, np.arange(8) + 1),
    ):
        for _ in range(3):
            np.testing.assert_array_equal(compiled(*arguments, **options).full(), expected)
    with pytest.raises(UsageTypeError, match="must be tensors that were not computed with gradients"):
        compiled(Tensor.from_global(np.ones(8), mesh("x"), world, requires_grad=True) * 2)


@pytest.mark.ranks(1, 2)
def test_gradients_add_up_without_an_optimiser(world):
    mesh = Mesh((world.size,), ("x",))
    layer = nn.Linear(4, 6, mesh(None, "x")).materialise(world, seed=2)
    x = Tensor.from_global(np.ones((2, 4), np.float32), mesh(None, None), world, requires_grad=True)

    def backward(x):
        nn.backward(ops.sum(ops.tanh(layer(x))))

    compiled = spmdsim.compile(backward)
    gradients = []
    for call in (backward, compiled):
        x.grad = None
        layer.zero_grad()
        for _ in range(4):  # Each call adds to the gradients of the call before.
            call(x)
        gradients.append([t.grad.full().tobytes() for t in (x, layer.weight.value, layer.bias.value)])
    assert gradients[0] == gradients[1] and len(next(iter(compiled.programs.values()))) == 2
    layer.weight.value.grad = None  # The bias has a gradient, the weight has none.
    compiled(x)
    np.testing.assert_allclose(layer.bias.grad.full(), 5 * layer.weight.grad.full()[0], rtol=1e-5)


@pytest.mark.ranks(1, 2)
def test_a_gradient_that_a_function_sets_to_none_is_none_after_every_call(world):
    x = Tensor.from_global(np.ones(4), Mesh((world.size,), ("x",))("x"), world, requires_grad=True)
    compiled = spmdsim.compile(lambda x: (setattr(x, "grad", None), x.detach() * 2)[1])
    for _ in range(3):
        nn.backward(ops.sum(x * x))
        assert x.grad is not None and compiled(x).full().tolist() == [2.0] * 4 and x.grad is None
    assert "1 program>" in repr(compiled)


def _trained(world, how=spmdsim.compile):
    """Return a layer with a large weight, a step that trains it, and an input for the step.

    `how` wraps the step: `spmdsim.compile`, or the identity for an eager step.
    """
    mesh = Mesh((1,), ("x",))
    size = (256, SMALLEST // 256 // 4)
    layer = nn.Linear(*size, mesh(None, None), bias=False).materialise(world, seed=2)
    optimiser = nn.SGD(layer.parameters(), 0.5)
    x = Tensor.from_global(np.ones((2, size[0]), np.float32), mesh(None, None), world)

    @how
    def step(x):
        layer.zero_grad()
        nn.backward(ops.sum(layer(x)))
        optimiser.step()

    return layer, step, x


HOW = pytest.mark.parametrize("how", [spmdsim.compile, lambda step: step], ids=["compiled", "eager"])


@HOW
@pytest.mark.ranks(1)
def test_a_step_does_not_change_earlier_values_of_a_parameter(world, how):
    layer, step, x = _trained(world, how)
    step(x)
    step(x)
    readers = [
        lambda: layer.weight.value,
        lambda: layer.weight.value.stored_shards,
        lambda: layer.weight.value.shards[0],
        lambda: layer.weight.value.shards[0][3:5, ::2],
        lambda: memoryview(layer.weight.value.local()),
        lambda: layer.weight.value.detach(),
        lambda: ops.transpose(layer.weight.value),
    ]
    for read in readers:
        old_value = read()
        array = (
            old_value.stored_shards[0]
            if isinstance(old_value, Tensor)
            else old_value[0]
            if isinstance(old_value, list)
            else np.asarray(old_value)
        )
        old_bytes = array.tobytes()
        step(x)
        assert array.tobytes() == old_bytes != layer.weight.value.full().tobytes()


@HOW
@pytest.mark.ranks(1)
def test_a_step_does_not_overwrite_memory_that_a_parameter_was_assigned_a_view_of(world, how):
    layer, step, x = _trained(world, how)
    step(x)
    shape, layout = layer.weight.shape, layer.weight.layout
    memory = np.zeros((2, *shape), np.float32).reshape(-1)
    layer.weight.assign(Tensor.from_local(memory[: memory.size // 2].reshape(shape), layout, world))
    step(x)
    step(x)
    assert not memory.any()
    assert layer.weight.value.full().any()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("momentum", [0, 0.5])
@pytest.mark.parametrize("from_caller", [False, True])
def test_optimisers_do_not_write_to_the_callers_gradients(world, from_caller, momentum):
    mesh = Mesh((1,), ("x",))
    layout, size = mesh(None, None), (256, SMALLEST // 256 // 4)

    def build():
        """Return three weights and a step that updates them from gradients with shared arrays."""

        layers = [nn.Linear(*size, layout, bias=False).materialise(world, seed=k) for k in range(3)]
        weights = [layer.weight for layer in layers]
        optimiser = nn.SGD(weights, 0.5, momentum)

        def step(x):
            """Update the weights by gradients of which the first two share an array."""

            for layer in layers:
                layer.zero_grad()
            # The first two weights share one gradient array, which may be the caller's. The third has its own.
            y = weights[0].value + weights[1].value
            if from_caller:
                y.backward(x)
            else:
                nn.backward(ops.sum(y * x) + ops.sum(weights[2].value * x))
            optimiser.step()

        return weights, step

    x = Tensor.from_global(np.random.default_rng(0).standard_normal(size, np.float32), layout, world)
    before = x.full().copy()
    (expected, eager), (weights, step) = build(), build()
    compiled = spmdsim.compile(step)
    for _ in range(4):
        eager(x)
        compiled(x)
        for one, other in zip(weights, expected):
            np.testing.assert_array_equal(one.tensor.full(), other.tensor.full())
        np.testing.assert_array_equal(x.full(), before)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("array_kind", ["gradient", "value"])
def test_a_step_does_not_overwrite_arrays_that_only_some_calls_copy(world, array_kind):
    """The first call copies a strided view, later calls take contiguous arrays without a copy."""
    layout, size = Mesh((1,), ("x",))(None, None), (256, SMALLEST // 256 // 4)
    weight = nn.Parameter(size, layout, dtype=np.float32)
    weight.materialise(world, seed=1)
    optimiser = nn.SGD([weight], 0.5)

    @spmdsim.compile
    def step(x):
        optimiser.zero_grad()
        before = weight.value.reshape((-1, 2)) if array_kind == "value" else x
        (weight.value + 0 * x).backward(x if array_kind == "gradient" else 1 * x)
        optimiser.step()
        return before.detach()

    wide = np.random.default_rng(0).standard_normal((2 * size[0], size[1]), np.float32)
    all_rows = Tensor.from_global(wide, layout, world)
    for call in range(4):
        ordered = call > 0
        x = (
            Tensor.from_global(wide[::2], layout, world)
            if ordered or array_kind == "value"
            else all_rows[::2]
        )
        if array_kind == "value":  # From the second call on, the parameter's array is no view.
            weight.assign(Tensor.from_global(wide[::2], layout, world) if ordered else all_rows[::2])
        before = weight.value.full()
        result = step(x)
        np.testing.assert_array_equal(x.full(), wide[::2])
        np.testing.assert_array_equal(
            result.full().reshape(size), before if array_kind == "value" else wide[::2]
        )
        np.testing.assert_array_equal(weight.value.full(), before - np.float32(0.5) * wide[::2])


@pytest.mark.ranks(2)
def test_a_step_does_not_overwrite_arrays_that_only_some_implementations_copy(world, monkeypatch):
    """The implementation of a step copies its operands in the first two calls only."""
    calls = []

    def run(self, step, shards, algorithm):
        calls.append(step)
        results = type(self)._run(self, step, shards, algorithm)
        uncopied = [
            shard if shard.shape == result.shape else result for shard, result in zip(shards, results)
        ]
        return [array.copy() for array in results] if len(calls) < 3 else uncopied

    monkeypatch.setattr(world, "_run", MethodType(run, world))
    monkeypatch.setattr(world, "run", MethodType(World.run, world))
    monkeypatch.setattr(world, "program", lambda *_: None)
    first, everywhere = Mesh((1,), ("x",), [0])(None), Mesh((2,), ("x",))(None)
    values = np.arange(1000.0)
    weight = nn.Parameter((1000,), everywhere, lambda *_: values, np.float64)
    weight.materialise(world)
    optimiser = nn.SGD([weight], 0.5)

    @spmdsim.compile
    def step(x):
        optimiser.zero_grad()
        (weight.value + 0).backward(x.to(everywhere))
        optimiser.step()

    x = Tensor.from_global(values, first, world)
    for _ in range(4):
        step(x)
        np.testing.assert_array_equal(x.to(everywhere).full(), values)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("kind", [nn.SGD, nn.Adam])
def test_a_call_that_raises_updates_nothing(world, kind):
    layout = Mesh((world.size,), ("x",))(None)
    bits = []
    for compiled in (False, True):
        weight = nn.Parameter((8,), layout, lambda *_: np.ones(8), np.float64)
        weight.materialise(world)
        optimiser = kind([weight], 0.5)

        def step(x, ids):
            optimiser.zero_grad()
            nn.backward(ops.sum(weight.value * x * weight.value))
            taken = ops.gather(x, ids, 0)
            optimiser.step()
            return taken

        call = spmdsim.compile(step) if compiled else step
        x = Tensor.from_global(np.arange(8.0), layout, world)
        good, bad = (Tensor.from_global(np.full(2, index), layout, world) for index in (0, 8))
        for ids in (good, good, bad, good, bad, good):
            before = weight.value.full()
            if ids is good:
                call(x, ids)
            else:
                with pytest.raises(InputError, match="8"):
                    call(x, ids)
                assert weight.value.full().tobytes() == before.tobytes()
        bits.append(weight.value.full().tobytes())
    assert bits[0] == bits[1]


@pytest.mark.ranks(1)
def test_an_optimiser_step_that_raises_overwrites_nothing(world):
    """The gradient of the second parameter has another shape than its value."""
    layout = Mesh((1,), ("x",))(None, None)
    weights = [nn.Parameter((64, SMALLEST // 128), layout) for _ in range(2)]
    for k, weight in enumerate(weights):
        weight.materialise(world, seed=k)
        weight.assign(weight.value * 2)
    optimiser, before = nn.SGD(weights, 0.5), [weight.value.full() for weight in weights]
    weights[0].value.grad = Tensor.from_global(np.ones(weights[0].shape, np.float32), layout, world)
    weights[1].value.grad = Tensor.from_global(np.ones((3, 5), np.float32), layout, world)
    with pytest.raises(LayoutError, match=r"must have the shape of its value, \(64.*, got \(3, 5\)"):
        optimiser.step()
    for weight, value in zip(weights, before):
        np.testing.assert_array_equal(weight.value.full(), value)


def _gradient(parameter):
    return parameter.value.grad


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("read", "to_array"),
    [
        (_gradient, lambda reference: reference.stored_shards[0]),
        (lambda parameter: _gradient(parameter).stored_shards, lambda reference: reference[0]),
        (lambda parameter: _gradient(parameter).local(), np.asarray),
        (lambda parameter: memoryview(_gradient(parameter).shards[0][1:, ::2]), np.asarray),
        (lambda parameter: _gradient(parameter).detach(), lambda reference: reference.stored_shards[0]),
    ],
)
def test_optimisers_do_not_change_gradients_that_the_caller_reads(world, read, to_array):
    layer, _, x = _trained(world)
    optimiser = nn.SGD(layer.parameters(), 0.5)
    for is_read in (False, True):
        nn.backward(ops.sum(layer(x)))
        reference = read(layer.weight) if is_read else None
        before, value = _gradient(layer.weight).full().copy(), layer.weight.value.full()
        optimiser.step()
        np.testing.assert_array_equal(layer.weight.value.full(), value - before * np.float32(0.5))
        assert layer.weight.grad is None
    np.testing.assert_array_equal(
        to_array(reference), before[1:, ::2] if isinstance(reference, memoryview) else before
    )


@pytest.mark.ranks(1)
@pytest.mark.parametrize("first_backward", ["another graph", "the same graph"])
def test_a_graph_uses_the_values_from_before_an_update(world, first_backward):
    layer, step, x = _trained(world, lambda step: step)
    step(x)
    step(x)
    optimiser, value, leaf = nn.SGD(layer.parameters(), 0.5), layer.weight.value.full(), x.detach()
    leaf.requires_grad = True
    loss = ops.sum(layer(leaf))
    if first_backward == "another graph":
        nn.backward(ops.sum(layer(x)))
    else:
        loss.backward(retain_graph=True)
    optimiser.step()
    assert (layer.weight.value.full() != value).any()
    leaf.grad = None
    loss.backward()
    np.testing.assert_allclose(leaf.grad.full(), np.tile(value.sum(1), (2, 1)), rtol=1e-4, atol=1e-4)


REFUSED = {
    "item": (lambda x, m: x * x.sum().item(), "it reads a tensor's values"),
    "branch": (lambda x, m: x if x.sum() > 0 else -x, "it reads a tensor's values"),
    "full": (lambda x, m: x.full(), "it reads a tensor's values"),
    "dropout": (lambda x, m: ops.dropout(x, 0.5, seed=3), "dropout takes another seed in every call"),
    "data": (lambda x, m: x + np.arange(4.0), "it creates a tensor of data or random numbers"),
    "outside": (
        lambda x, m: x + OUTSIDE[0],
        "add reads a tensor that is neither an argument nor a parameter",
    ),
    "in place": (lambda x, m: x.__iadd__(1), "add changes a tensor in place that existed before the call"),
    "rows": (
        lambda x, m: ops.embedding(ops.cast(x, int), m.weight, x.layout.mesh("x", None, None), rows="owned"),
        "embedding exchanges rows that the ids decide about",
    ),
    "steps of its own": (
        lambda x, m: _trained_by(m, x, step=lambda self: nn.SGD.step(self)),
        "SGD has its own step",
    ),
    "updates of its own": (
        lambda x, m: _trained_by(
            m, x, _compute_updated_value=lambda self, p, g: nn.SGD._compute_updated_value(self, p, g)
        ),
        "SGD has its own step",
    ),
    "onwards": (lambda x, m: m(x), "it returns a tensor through which gradients could still flow"),
    "caught": (lambda x, m: _or_zero(x), "it catches an error of cross_entropy"),
    "set": (lambda x, m: {x * 2}, "it returns a set; return tensors and constants"),
    "generator": (lambda x, m: (one for one in (x, x * 2)), "it returns a generator; return tensors"),
    "array": (lambda x, m: np.ones(2), "it returns a ndarray; return tensors"),
    "argument outside": (lambda x, m: x + ARGUMENT[0], "add reads a tensor that is neither an argument nor"),
    "its arrays outside": (
        lambda x, m: x + ARGUMENT[1],
        "add reads a tensor that is neither an argument nor",
    ),
}
#: The argument of the call, and another tensor with its arrays.
ARGUMENT: list[Tensor] = []
OUTSIDE: list[Tensor] = []


def _or_zero(x):
    """Return the loss of labels out of range; return 0 if an InputError prevents it."""
    try:
        return ops.cross_entropy(x, ops.cast(ops.sum(x, 1), int))
    except InputError:
        return ops.sum(x) * 0


def _trained_by(layer, x, **methods):
    """Run a step of an SGD subclass that overrides `methods`."""
    optimiser = type("SGD", (nn.SGD,), methods)(layer.parameters())
    nn.backward(ops.sum(layer(ops.cast(x, np.float32))))
    optimiser.step()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_cannot_be_recorded_raises_a_one_line_error(world, case):
    mesh = Mesh((2,), ("x",))
    function, reason = REFUSED[case]
    layer = nn.Linear(4, 4, mesh("x" if case == "rows" else None, None), mesh(None)).materialise(world)
    x = Tensor.from_global(np.ones((2, 4)), mesh("x", None), world)
    OUTSIDE[:] = [Tensor.from_global(np.ones((2, 4)), mesh("x", None), world)]
    ARGUMENT[:] = [x, Tensor(world, x.meta, x.stored_shards)]
    if case == "onwards":
        x = ops.cast(x, np.float32)
    compiled = spmdsim.compile(function)
    for _ in range(2):
        with pytest.raises(UsageTypeError) as error:
            compiled(x, layer)
        text = str(error.value)
        assert "cannot be compiled: " + reason in text and "\n" not in text
    assert not compiled.programs and ops.add(x, x).full().sum() == 16  # The recording has stopped.


@pytest.mark.ranks(2)
def test_arguments_that_no_program_supports_raise(world):
    mesh = Mesh((2,), ("x",))
    compiled = spmdsim.compile(lambda x, *others: x)
    x = Tensor.from_global(np.ones(4), mesh("x"), world, requires_grad=True)
    with pytest.raises(
        UsageTypeError, match=r"computed with gradients, got Tensor\(.*; pass its \.detach\(\)"
    ):
        compiled(x * 2)
    with pytest.raises(UsageTypeError, match=r"values that can be hashed, got an array; make a tensor of it"):
        compiled(x, np.ones(4))


@pytest.mark.ranks(1, 3)
def test_a_compiled_program_raises_the_errors_of_its_function(world):
    mesh = Mesh((world.size,), ("x",))
    logits = Tensor.from_global(np.zeros((6, 4), np.float32), mesh("x", None), world)
    loss = spmdsim.compile(ops.cross_entropy)
    good, bad = (Tensor.from_global(np.full(6, label), mesh("x"), world) for label in (1, 4))
    assert loss(logits, good).item() == loss(logits, good).item() == ops.cross_entropy(logits, good).item()
    for call in (loss, ops.cross_entropy):
        with pytest.raises(InputError, match=r"id 4 is outside 0..3, the numbers of the classes"):
            call(logits, bad)
    assert loss(logits, good).item() == ops.cross_entropy(logits, good).item()


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (0,)])
@pytest.mark.parametrize("times", [1, 2])
def test_a_compiled_loss_and_its_gradient_have_the_bits_of_the_function(world, shape, times):
    mesh = Mesh((world.size,), ("x",))
    rng = np.random.default_rng(0)
    layout = mesh(*[None] * len(shape), None)

    def step(x, y):
        logits = [x * 3.0 for _ in range(times)]
        losses = [ops.cross_entropy(one, y, reduction="none") for one in (logits[0], *logits)[-times:]]
        nn.backward(sum(ops.sum(loss * loss) for loss in losses))
        return losses

    compiled = spmdsim.compile(step)
    for _ in range(3):
        values, labels = rng.standard_normal((*shape, 5), np.float32), rng.integers(0, 5, shape)
        y = Tensor.from_global(labels, mesh(*[None] * len(shape)), world)
        bits = []
        for function in (step, compiled):
            x = Tensor.from_global(values, layout, world, requires_grad=True)
            bits.append([one.shards[0].tobytes() for one in (*function(x, y), x.grad)])
        assert bits[0] == bits[1]


def test_worlds_without_data_and_other_worlds_run_the_function():
    mesh = Mesh((2,), ("x",))
    calls = []

    @spmdsim.compile
    def doubled(x):
        calls.append(x.world)
        return x + x

    shapes = ShapeOnly(2)
    for world in (shapes, shapes, LockStep(2), LockStep(2)):
        x = Tensor.from_global(np.ones(4), mesh("x"), world)
        assert doubled(x).shape == (4,)
    assert len(calls) == 4
    with world.use(all_reduce="ring"):
        doubled(x)
        doubled(x)
    assert len(calls) == 5  # Other algorithms need another program.


def test_equal_values_with_different_texts_have_one_recording():
    class Mode:
        def __eq__(self, other):
            return isinstance(other, Mode)

        def __hash__(self):
            return 1

    x, calls, modes = (
        Tensor.from_global(np.ones(2), Mesh((1,), ("x",))("x"), LockStep(1)),
        [],
        [Mode(), Mode()],
    )
    doubled = spmdsim.compile(lambda x, mode: calls.append(mode) or x + x)
    assert repr(modes[0]) != repr(modes[1])
    for mode in modes:
        assert (doubled(x, mode).full() == 2).all()
    assert len(calls) == 1


@pytest.mark.ranks(2)
def test_forbid_redistribution_applies_to_recorded_programs(world):
    mesh = Mesh((2,), ("x",))
    rows, columns = (
        Tensor.from_global(np.ones((4, 4)), layout, world) for layout in (mesh("x", None), mesh(None, "x"))
    )
    compiled_sum = spmdsim.compile(lambda a, b: a + b)
    compiled_sum(rows, columns)
    with spmdsim.forbid_redistribution(), pytest.raises(PlanError, match="add"):
        compiled_sum(rows, columns)
    assert (compiled_sum(rows, columns).full() == 2).all()


@pytest.mark.ranks(2)
def test_arguments_that_share_arrays_get_another_program(world):
    layout = Mesh((2,), ("x",))("x")

    def leaf(value):
        return Tensor.from_global(np.full(4, value, np.float32), layout, world, requires_grad=True)

    def gradients(x, y):
        x.grad = y.grad = None
        nn.backward(ops.sum(x * y * y - 2 * y))
        return x.detach() - 2 * y.detach()

    compiled = spmdsim.compile(gradients)
    a, b = leaf(2.0), leaf(3.0)
    for _ in range(2):
        for args in (a, a), (a, b), (b, a), (a, b), (b, b):
            results = [compiled(*args).full(), *(one.grad.full() for one in args)]
            for one, expected in zip(results, [gradients(*args).full(), *(one.grad.full() for one in args)]):
                np.testing.assert_array_equal(one, expected)
    shared = spmdsim.compile(lambda x, y, z: x + 10 * y + 100 * z)
    leaves = [leaf(value) for value in (1.0, 2.0, 3.0)]
    for order in (0, 0, 0), (0, 1, 2), (0, 0, 1), (1, 0, 0):
        x, y, z = (leaves[k].detach() for k in order)  # Each is a new tensor with the array of its leaf.
        assert shared(x, y, z).full()[0] == (order[0] + 1) + 10 * (order[1] + 1) + 100 * (order[2] + 1)


def test_positive_and_negative_zeros_have_different_programs():
    x = Tensor.from_global(np.ones(2, np.float32), Mesh((2,), ("x",))("x"), LockStep(2))
    times = spmdsim.compile(lambda x, factor: x * factor)
    signs = [np.signbit(times(x, factor).full()[0]) for factor in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]
    times(x, np.nan), times(x, np.nan)
    assert repr(times).endswith("3 programs>")


@pytest.mark.ranks(1, 2)
def test_several_results_of_a_function_of_local_arrays_are_repeated(world):
    layout = Mesh((world.size,), ("x",))("x")
    both = spmdsim.local_map(lambda x: (x + 1, x * 2), out_layouts=(layout, layout))
    compiled = spmdsim.compile(lambda x: both(x))
    for start in range(3):
        values = np.arange(4.0) + start
        one, other = compiled(Tensor.from_global(values, layout, world))
        np.testing.assert_array_equal([one.full(), other.full()], [values + 1, values * 2])


def test_operators_of_other_threads_are_not_recorded():
    layout = Mesh((2,), ("x",))("x")
    worlds, results = (LockStep(2), LockStep(2)), []

    def train_in_thread():
        y = nn.Parameter((4,), layout, lambda index, *_: np.arange(1.0, 5)[index], np.float64)
        y.materialise(worlds[1])
        nn.backward(ops.sum(y.value * y.value))
        nn.SGD([y], 0.25).step()
        results.append(y.value.full().tolist())

    @spmdsim.compile
    def function(x):
        y = x + 1
        thread = threading.Thread(target=train_in_thread)
        thread.start()
        thread.join()
        return y * y

    for start in range(3):
        x = Tensor.from_global(np.arange(4.0) + start, layout, worlds[0])
        np.testing.assert_array_equal(function(x).full(), (np.arange(4) + start + 1) ** 2)
    assert results == [[0.5, 1.0, 1.5, 2.0]]
    (program,) = next(iter(function.programs.values()))
    assert len(program.calls) == 2
    with record() as replayed:
        function(x)
    with record() as trace:
        y = x + 1
        y * y
    assert [(span.name, span.gradients) for span in replayed.spans] == [("add", False), ("multiply", False)]
    assert trace.difference(replayed) == []


Pair = namedtuple("Pair", "loss half")


@pytest.mark.ranks(1, 2)
def test_every_call_returns_new_tensors(world):
    layout = Mesh((world.size,), ("x",))("x")
    compiled = spmdsim.compile(
        lambda t, w: Pair([t, t.to(layout), w.grad, t * 2], {"twice": (t, t), "sizes": (1, None, "x")})
    )
    w = Tensor.from_global(np.ones(4), layout, world, requires_grad=True)
    w.grad = Tensor.from_global(np.full(4, 5.0), layout, world)
    for start in range(3):
        t = Tensor.from_global(np.arange(4.0) + start, layout, world)
        result = compiled(t, w)
        assert type(result) is Pair and result.half["sizes"] == (1, None, "x")
        tensors = [*result.loss, *result.half["twice"]]
        for tensor in tensors:
            tensor += 1
        values = np.arange(4.0) + start
        expected = [values + 1, values + 1, np.full(4, 6.0), values * 2 + 1, values + 1, values + 1]
        for tensor, numbers in zip([t, w.grad, *tensors], [values, np.full(4, 5.0), *expected]):
            np.testing.assert_array_equal(tensor.full(), numbers)


@pytest.mark.ranks(2)
def test_calls_with_and_without_a_gradient_have_different_programs(world):
    layout = Mesh((2,), ("x",))("x")
    compiled = spmdsim.compile(lambda t, w: t * 2 if w.grad is not None else t * 3)
    t, w = (Tensor.from_global(np.ones(4), layout, world, requires_grad=tracked) for tracked in (False, True))
    other = Tensor.from_global(np.ones(4), layout, world)
    for gradient, factor in [(other, 2), (None, 3), (other, 2), (None, 3)]:
        w.grad = gradient
        assert compiled(t, w).full()[0] == factor


@pytest.mark.ranks(2)
def test_equal_keys_of_different_types_or_signs_have_different_programs(world):
    x = Tensor.from_global(np.ones(2), Mesh((2,), ("x",))("x"), world)
    several = spmdsim.compile(lambda x, zeros: x * np.copysign(1.0, next(iter(zeros))))
    assert [several(x, frozenset([zero])).full()[0] for zero in (0.0, -0.0, 0.0)] == [1, -1, 1]
    kinds = spmdsim.compile(lambda parts: parts[1] * (3 if isinstance(next(iter(parts)), bool) else 2))
    assert [kinds({key: x}).full()[0] for key in (1, True, 1)] == [2, 3, 2]


@pytest.mark.ranks(2)
def test_numpy_scalars_are_supported_as_numbers(world):
    x = Tensor.from_global(np.ones(2, np.float32), Mesh((2,), ("x",))("x"), world)
    times = spmdsim.compile(
        lambda x, factor: (x * factor, x * np.float32(3), x + np.int64(1), np.float32(1) < x * 2)
    )
    for factor in (np.float32(2), np.int64(4), np.bool_(True), np.float64(0.5), np.float32(8)):
        for _ in range(2):
            results = times(x, factor)
            for result, expected in zip(results, times.function(x, factor)):
                assert result.dtype == expected.dtype and (result.full() == expected.full()).all()


@pytest.mark.ranks(2)
def test_ranks_choose_one_program_if_arguments_share_arrays_on_some_ranks_only(world):
    """A copy to a partial layout shares the array of its tensor on the first rank only."""
    mesh = Mesh((2,), ("a",))
    replicated, partial = mesh(None), mesh(None, partial="a")
    x, y = (Tensor.from_global(np.full(2, value), replicated, world) for value in (1.0, 5.0))
    both = spmdsim.compile(lambda t, u: t.to(mesh("a")) + u.to(mesh("a")))
    for one, other in [(x, x), (x, y), (y, x), (x, x), (y, y)]:
        total = both(one, other.to(partial)).full()
        assert (total == one.full() + other.full()).all()


@pytest.mark.ranks(2)
def test_equal_ranges_and_decimals_have_different_programs_and_a_counter_is_refused(world):
    x = Tensor.from_global(np.ones(2), Mesh((2,), ("x",))("x"), world)
    start = spmdsim.compile(lambda x, r: x * r.start)
    assert [start(x, r).full()[0] for r in (range(1, 1), range(5, 5))] == [1, 5]
    digits = spmdsim.compile(lambda x, d: x * len(str(d)))
    assert [digits(x, Decimal(d)).full()[0] for d in ("1.0", "1.00")] == [3, 4]
    rate = spmdsim.compile(lambda c, x: x * c["rate"])
    with pytest.raises(UsageTypeError, match="got a Counter; make"):
        rate(Counter(rate=3), x)


def test_results_keep_the_class_of_a_dialects_tensors():
    import spmdsim.dialects.paddle as paddle

    doubled = spmdsim.compile(lambda x: x * 2)
    x = paddle.to_tensor(np.ones(3, np.float32))
    assert {type(doubled(x)) for _ in range(3)} == {type(x * 2)}


def test_tensors_of_dialects_that_are_not_spmdsim_tensors_are_refused():
    import spmdsim.dialects.mindspore as ms
    import spmdsim.dialects.oneflow as flow

    doubled = spmdsim.compile(lambda x: x * 2)
    with LockStep(2):
        x = flow.tensor(np.ones(4), flow.placement("cpu", [0, 1]), flow.sbp.split(0))
        with pytest.raises(
            UsageTypeError, match=r"must be tensors of spmdsim, got a GlobalTensor; pass its \.value"
        ):
            doubled(x)
        assert (doubled(x.value).full() == 2).all()
        with pytest.raises(UsageTypeError, match="got an array; make a tensor of it"):
            doubled(ms.Tensor(np.ones(4)))
