"""Optimisers equal numpy written by hand, whatever the layout and the number of gradients per step.

In lock step replicas may share their arrays in one step and own separate arrays in the next. Every rank must
have the right value in both cases.
"""

from __future__ import annotations

import copy
import weakref
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import spmdsim
import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, nn
from spmdsim.errors import InputError
from spmdsim.nn import SGD, Adam, sharded_over

RATE = 0.1
OPTIMISERS = {
    "momentum": (SGD, {"momentum": 0.9}),
    "nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "dampening": (SGD, {"momentum": 0.8, "dampening": 0.5}),
    "Adam": (Adam, {}),
    "Adam without momentum": (Adam, {"betas": (0.0, 0.9)}),
    "AdamW": (Adam, {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    "Adam with decay": (Adam, {"epsilon": 1e-3, "weight_decay": 0.3, "decoupled": False}),
}


def reference(name, value, gradients):
    """Return the `value` after each step of optimiser `name` along `gradients`.

    The formulas are those of the optimisers' papers and of torch's documentation.
    """
    kind, options = OPTIMISERS[name]
    decay, history = options.get("weight_decay", 0.0), []
    velocity = first = second = np.zeros_like(value)
    for count, gradient in enumerate(gradients, 1):
        if kind is SGD:
            slope = gradient + decay * value
            share = 1.0 if count == 1 else 1 - options.get("dampening", 0.0)
            velocity = options["momentum"] * velocity + share * slope
            step = slope + options["momentum"] * velocity if options.get("nesterov") else velocity
            value = value - RATE * step
        else:
            beta1, beta2 = options.get("betas", (0.9, 0.999))
            decoupled_decay = decay if options.get("decoupled", True) else 0.0
            gradient = gradient + (decay - decoupled_decay) * value
            first, second = beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient**2
            step = (
                first
                / (1 - beta1**count)
                / (np.sqrt(second / (1 - beta2**count)) + options.get("epsilon", 1e-8))
            )
            value = value - RATE * (step + decoupled_decay * value)
        history.append(value)
    return history


def layouts(size):
    """Yield the layouts of a parameter of two dims, each with a layout function for the state or None.

    The mesh has `size` ranks.
    """
    mesh = Mesh((2, size // 2), ("dp", "tp")) if size % 2 == 0 else Mesh((size, 1), ("dp", "tp"))
    for layout in (mesh(None, None), mesh("tp", None), mesh(None, ("tp", "dp"))):
        yield layout, None
        yield layout, sharded_over("dp")


def unshared(tensor):
    """Return a copy of a tensor in which no two ranks share an array."""
    return Tensor(tensor.world, tensor.meta, [np.array(shard) for shard in tensor.stored_shards])


@pytest.mark.ranks(1, 2, 3, 4, 8)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_state_is_updated_once_per_step_whatever_replicas_share(world, name):
    """Steps of one or two micro-batches equal the reference, with shared and with separate gradients."""
    kind, options = OPTIMISERS[name]
    rng = np.random.default_rng(len(name))
    start, data = rng.normal(size=(8, 4)), rng.normal(size=(6, 16, 8))
    for layout, state in layouts(world.size):
        weight = nn.Parameter((8, 4), layout, lambda index, *_: start[index], np.float64)
        weight.materialise(world)
        optimiser = kind([weight], RATE, state_layout=state, **options)
        batch, gradients, values = layout.mesh("dp", None), [], []
        for step in range(6):
            weight.value.grad, total = None, np.zeros_like(start)
            for x in np.array_split(data[step], 1 + step % 2):
                loss = ops.sum(ops.matmul(Tensor.from_global(x, batch, world), weight.value))
                nn.backward(loss)
                total = total + x.sum(0)[:, None] * np.ones((1, 4))
            if rng.random() < 0.5:
                weight.value.grad = unshared(weight.grad)
            optimiser.step()
            gradients.append(total)
            values.append((weight.value.layout, list(weight.value.shards)))
        for (value_layout, shards), expected in zip(values, reference(name, start, gradients)):
            for rank, shard in zip(world.ranks, shards):
                np.testing.assert_allclose(
                    shard, expected[value_layout.slices((8, 4), rank)], rtol=1e-12, atol=1e-12
                )


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_parameter_counts_only_the_steps_with_its_gradient(world, name):
    kind, options = OPTIMISERS[name]
    mesh = Mesh((world.size,), ("x",))
    start, rng = np.ones(8), np.random.default_rng(3)
    pair = [nn.Parameter((8,), mesh("x"), lambda index, *_: start[index], np.float64) for _ in range(2)]
    optimiser, history = kind(pair, RATE, **options), ([], [])
    for parameter in pair:
        parameter.materialise(world)
    for used in ((0,), (0, 1), (1,), (0, 1)):
        for k, parameter in enumerate(pair):
            parameter.value.grad = None
            if k in used:
                history[k].append(rng.normal(size=8))
                parameter.value.grad = Tensor.from_global(history[k][-1], mesh("x"), world)
        optimiser.step()
    for parameter, gradients in zip(pair, history):
        expected = reference(name, start, gradients)[-1]
        np.testing.assert_allclose(parameter.value.full(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_state_of_16_bit_parameters_keeps_changing(world, name, dtype):
    """State is float32: in bfloat16 an average of squares with decay 0.999 would stop changing."""
    kind, options = OPTIMISERS[name]
    mesh = Mesh((world.size,), ("x",))
    weight = nn.Parameter((8,), mesh("x"), lambda index, *_: np.ones(8)[index], dtype)
    weight.materialise(world)
    optimiser = kind([weight], RATE, **options)
    steps = [np.full(8, 4.0 if step < 20 else 0.25) for step in range(200)]
    for gradient in steps:
        weight.value.grad = Tensor.from_global(gradient.astype(dtype), mesh("x"), world)
        before = weight.value.full().astype(float)
        optimiser.step()
    state = optimiser.state[id(weight)]
    assert {array.dtype for slot in state for array in slot} == {np.dtype(np.float32)}
    # Compare the last step with the last step of the exact reference.
    exact = reference(name, np.zeros(8), steps)
    if not options.get("weight_decay"):
        np.testing.assert_allclose(
            weight.value.full().astype(float) - before,
            exact[-1] - exact[-2],
            atol=8e-3 * np.abs(before).max(),
        )


def test_an_optimiser_that_writes_into_its_state_is_refused(world):
    """State arrays are read-only, because replicas may share them."""

    class InPlace(SGD):
        def new_value(self, value, gradient, state):
            state[0][...] += gradient
            return value - self.rate * state[0]

    mesh = Mesh((world.size,), ("x",))
    weight = nn.Parameter((4,), mesh(None), lambda index, *_: np.ones(4)[index], np.float64)
    weight.materialise(world)
    weight.value.grad = Tensor.from_global(np.ones(4), mesh(None), world)
    with pytest.raises(ValueError, match="read-only"):
        InPlace([weight], RATE, momentum=0.5).step()
    optimiser = SGD([weight], RATE, momentum=0.5)
    assert optimiser.count == 0
    optimiser.step()
    assert optimiser.count == 1 and not any(a.flags.writeable for a in optimiser.state[id(weight)][0])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_16_bit_parameters_keep_their_type(kind, ranks):
    """Parameters of 16 bits are updated in float32 and rounded: 1 - 0.1 in bfloat16."""
    mesh, world = Mesh((ranks,), ("x",)), LockStep(ranks)
    weight = nn.Parameter((4,), mesh("x"), lambda index, *_: np.ones(4)[index], ml_dtypes.bfloat16)
    optimiser = kind([weight], RATE)
    optimiser.zero_grad()  # No parameter has a gradient yet.
    weight.materialise(world)
    weight.value.grad = Tensor.from_global(np.ones(4, ml_dtypes.bfloat16), mesh("x"), world)
    optimiser.step()
    for shard in weight.value.stored_shards:
        assert shard.dtype == ml_dtypes.bfloat16 and (shard == ml_dtypes.bfloat16(0.9)).all()


def test_numbers_of_adam_list_all_settings():
    weight = nn.Parameter((4,), Mesh((1,), ("x",))(None))
    adam = Adam([weight], 0.25, betas=(0.5, 0.75), epsilon=2.0, weight_decay=3.0)
    # 0 is the count of steps; amsgrad and epsilon hat are off, decoupling and bias correction on.
    assert sorted(adam.numbers()) == [0, False, False, 0.25, 0.5, 0.75, True, True, 2.0, 3.0]
    for betas in ((-0.5, 0.9), (0.9, 1.0)):
        with pytest.raises(InputError, match="betas must be numbers of at least 0 and less than 1"):
            Adam([weight], 0.25, betas=betas)


def trained_parameters(world) -> list[np.ndarray]:
    """Return the parameters of a GPT after three steps of one, two and three micro-batches in a world."""
    mesh, rng = Mesh((2, 2), ("dp", "tp")), np.random.default_rng(0)
    model = nn.GPT(32, 16, 2, 1, 8, mesh("dp", "tp", None), "tp")
    model.materialise(world)
    optimiser = Adam(model.parameters(), 1e-2, state_layout=sharded_over("dp"))
    for count in (1, 2, 3):
        model.zero_grad()
        for _ in range(count):
            ids, labels = (
                Tensor.from_global(rng.integers(0, 32, (4, 8)), mesh("dp", None), world) for _ in "ab"
            )
            nn.backward(model.loss(ids, labels))
        nn.clip(model.parameters(), 0.5)
        optimiser.step()
    return [parameter.value.full() for parameter in model.parameters()]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("arrays", ["read only", "shared by nobody"])
def test_tensors_may_have_read_only_or_unshared_arrays(world, arrays, monkeypatch):
    """Training writes into no array of a tensor, and equals training with one array per rank."""
    expected, original_init = trained_parameters(world), Tensor.__init__

    def init(tensor, *args, **options):
        original_init(tensor, *args, **options)
        if arrays == "shared by nobody" or any(
            not isinstance(array, np.ndarray) for array in tensor.stored_shards
        ):
            tensor.stored_shards = [np.array(array) for array in tensor.stored_shards]
        for array in tensor.stored_shards:
            array.flags.writeable = False

    monkeypatch.setattr(Tensor, "__init__", init)
    for result, reference_values in zip(trained_parameters(world), expected, strict=True):
        np.testing.assert_array_equal(result, reference_values)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_velocity_is_updated_while_the_momentum_is_0(world, compiled, nesterov):
    layout = Mesh((world.size,), ("x",))("x")
    weight = nn.Parameter((600,), layout, lambda index, *_: np.zeros(600)[index], np.float64)
    weight.materialise(world)
    optimiser = SGD([weight], RATE, momentum=0.5, nesterov=nesterov)

    def step(x):
        optimiser.zero_grad()
        nn.backward(ops.sum(weight.value * x))
        optimiser.step()

    call = spmdsim.compile(step) if compiled else step
    value, velocity, slope = 0.0, 0.0, np.arange(600.0)
    for momentum in (0.5, 0.5, 0.0, 0.5, 0.5):
        optimiser.momentum = momentum
        # Fill free memory, so that a buffer that is reused without being written shows wrong values.
        for array in [np.full(600 // world.size, 1e9) for _ in range(9)]:
            del array
        call(Tensor.from_global(slope, layout, world))
        velocity = momentum * velocity + slope
        value = value - RATE * (slope + momentum * velocity if nesterov else velocity)
        np.testing.assert_allclose(weight.value.full(), value)


def test_the_largest_second_moment_is_updated_while_amsgrad_is_off():
    world, layout = LockStep(1), Mesh((1,), ("x",))("x")
    gradients, values = np.random.default_rng(0).normal(size=(5, 600)), []
    for used in (True, False):
        weight = Tensor.from_global(np.zeros(600), layout, world, requires_grad=True)
        optimiser = Adam([weight], RATE, amsgrad=True)
        for number, gradient in enumerate(gradients):
            optimiser.amsgrad = used or number == 4
            before = weight.full()
            for array in [np.full(600, 1e9) for _ in range(9)]:
                del array
            weight.grad = Tensor.from_global(gradient, layout, world)
            optimiser.step()
        values.append(weight.full() - before)
    np.testing.assert_allclose(*values)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("compiled", [False, True])
def test_velocities_start_with_the_first_momentum_and_continue_without(world, compiled):
    layout = Mesh((world.size,), ("x",))(None)
    weight = nn.Parameter((2,), layout, nn.ones)
    weight.materialise(world, seed=1)
    optimiser = SGD([weight], RATE)

    def step():
        optimiser.zero_grad()
        nn.backward(ops.sum(ops.square(weight.value)))
        optimiser.step()

    repeated, value, velocity = spmdsim.compile(step) if compiled else step, 1.0, 0.0
    for momentum in (0.0, 0.0, 0.9, 0.9, 0.0, 0.9, 0.9):
        optimiser.momentum = momentum
        repeated()
        change = momentum * velocity + 2 * value
        velocity = change if momentum or velocity else 0.0
        value -= RATE * change
        np.testing.assert_allclose(weight.value.full(), value, rtol=1e-6)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("compiled", [False, True])
def test_copies_of_a_model_and_its_optimiser_are_independent(world, kind, compiled):
    layout = Mesh((world.size,), ("x",))

    class Trainer:
        def __init__(self):
            self.model = nn.Linear(4, 2, layout(None, None))
            self.model.materialise(world, seed=1)
            options = {"momentum": 0.5} if kind is SGD else {}
            self.optimiser = kind(self.model.parameters(), RATE, **options)
            self.step = spmdsim.compile(self.train) if compiled else self.train

        def train(self, x):
            self.optimiser.zero_grad()
            nn.backward(ops.sum(ops.square(self.model(x))))
            self.optimiser.step()

        def bits(self):
            return [parameter.value.full().tobytes() for parameter in self.model.parameters()]

    x = Tensor.from_global(np.ones((2, 4), np.float32), layout("x", None), world)
    trainer, expected = Trainer(), Trainer()
    for _ in range(3):
        trainer.step(x)
        expected.train(x)
    copied = copy.deepcopy(trainer)
    assert (
        copied.model.weight.value.world is world
        and copied.model.weight.value.meta is trainer.model.weight.value.meta
    )
    before = trainer.bits()
    copied.step(x)
    copied.step(x)
    assert trainer.bits() == before == expected.bits()
    expected.train(x)
    trainer.step(x)
    assert trainer.bits() == expected.bits()
    expected.train(x)
    assert copied.bits() == expected.bits()


@pytest.mark.parametrize("kind", [nn.Adam, partial(nn.SGD, momentum=0.9)])
def test_old_states_are_released_parameter_by_parameter(kind, monkeypatch):
    """While the second parameter is updated, no array of the first one's old state is alive.

    So old and new state are in memory together for one parameter only.
    """
    mesh, world = Mesh((1,), ("x",)), LockStep(1)
    weights = [Tensor.from_global(np.ones(4), mesh(None), world, requires_grad=True) for _ in range(2)]
    optimiser = kind(weights, 0.1)
    first = optimiser.parameters[0]
    alive = []
    for _ in range(2):
        nn.backward(ops.sum(ops.multiply(*weights)))
        old = [weakref.ref(array) for arrays in optimiser.state.get(id(first), ()) for array in arrays]
        update = type(optimiser)._block

        def block(self, *arrays, update=update, old=old):
            alive.append([array() is not None for array in old])
            update(self, *arrays)

        with monkeypatch.context() as patch:
            patch.setattr(type(optimiser), "_block", block)
            optimiser.step()
    slots = len(optimiser.state[id(first)])
    assert alive == [[], [], [True] * slots, [False] * slots]


def test_old_values_and_gradients_are_released_parameter_by_parameter():
    """While the second parameter is updated, the old arrays of the first one are not alive."""
    mesh, world = Mesh((1,), ("x",)), LockStep(1)
    parameters = [nn.Parameter((4,), mesh(None), lambda *_: np.ones(4), np.float64) for _ in range(2)]
    references, alive = [], []

    class Descent(nn.Optimiser):
        slots = 0

        def new_value(self, value, gradient, state):
            alive.append([reference() is not None for reference in references])
            references.extend(map(weakref.ref, (value, gradient)))
            return value - gradient

    for parameter in parameters:
        parameter.materialise(world)
    nn.backward(ops.sum(ops.multiply(*(parameter.value for parameter in parameters))))
    Descent(parameters, 0.1).step()
    assert alive == [[], [False, False]]
