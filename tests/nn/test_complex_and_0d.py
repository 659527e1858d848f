"""Complex parameters and parameters of shape () train as in torch.

The references train the real and the imaginary part with numpy, independently of one another.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import spmdsim
import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, nn
from spmdsim.dialects import mindspore, oneflow, paddle
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError
from tests.nn.test_optimiser_state import OPTIMISERS, RATE, layouts, reference

MORE = {
    "SGD": (nn.SGD, {}),
    "decay": (nn.SGD, {"weight_decay": 0.01}),
    "amsgrad": (nn.Adam, {"amsgrad": True}),
}


def descent_values(value, gradients, decay):
    """Return the `value` after each step of descent along `gradients`, with weight `decay`."""
    history = []
    for gradient in gradients:
        value = value - RATE * (gradient + decay * value)
        history.append(value)
    return history


def amsgrad_values(value, gradients):
    """Return the `value` after each step of AMSGrad along `gradients` (Reddi et al., 2018).

    AMSGrad is Adam that divides by the largest second moment of all steps.
    """
    first = second = largest = np.zeros_like(value)
    history = []
    for count, gradient in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        largest = np.maximum(largest, second)
        value = value - RATE * first / (1 - 0.9**count) / (np.sqrt(largest / (1 - 0.999**count)) + 1e-8)
        history.append(value)
    return history


def expected_values(name, value, gradients):
    """Return the `value` after each step of optimiser `name` along `gradients`.

    Real and imaginary parts of complex parameters are trained independently.
    """
    if np.iscomplexobj(value):
        components = [
            expected_values(name, getattr(value, component), [getattr(g, component) for g in gradients])
            for component in ("real", "imag")
        ]
        return [real + 1j * imaginary for real, imaginary in zip(*components)]
    if name in ("SGD", "decay"):
        return descent_values(value, gradients, MORE[name][1].get("weight_decay", 0.0))
    return amsgrad_values(value, gradients) if name == "amsgrad" else reference(name, value, gradients)


def train(kind, options, layout, state, values, gradients, world, compiled=False):
    """Return the values of a parameter after each step with a given gradient.

    Args:
        kind: The optimiser's class.
        options: Keyword arguments of the optimiser.
        layout: The layout of the parameter.
        state: The layout function of the optimiser's state, or None.
        values: The first values.
        gradients: One array per step.
        world: The world.
        compiled: Whether the step is compiled.
    """
    weight = nn.Parameter(values.shape, layout, lambda index, *_: values[index], values.dtype)
    weight.materialise(world)
    optimiser, history = kind([weight], RATE, state_layout=state, **options), []

    def step(slope):
        optimiser.zero_grad()
        product = ops.multiply(ops.conjugate(weight.value), slope)
        nn.backward(ops.sum(ops.real(product)))
        optimiser.step()

    call = spmdsim.compile(step) if compiled else step
    for gradient in gradients:
        call(Tensor.from_global(gradient, layout, world))
        history.append(weight.value.full())
        assert all(type(shard) is np.ndarray for shard in weight.value.stored_shards)
    return history


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", [*OPTIMISERS, *MORE])
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_updates_equal_the_reference_with_and_without_dims(world, name, dtype, compiled):
    (kind, options), rng = {**OPTIMISERS, **MORE}[name], np.random.default_rng(len(name))

    def numbers(*shape):
        parts = rng.normal(size=shape), rng.normal(size=shape)
        return np.asarray(parts[0] + 1j * parts[1] if dtype == "complex128" else parts[0])

    start, slopes = numbers(8, 4), [numbers(8, 4) for _ in range(4)]
    for layout, state in layouts(world.size):
        history = train(kind, options, layout, state, start, slopes, world, compiled)
        np.testing.assert_allclose(history, expected_values(name, start, slopes), rtol=1e-12, atol=1e-12)
    start, slopes = numbers(), [numbers() for _ in range(4)]
    for state in (None, nn.sharded_over("dp")):
        history = train(kind, options, layout.mesh(), state, start, slopes, world, compiled)
        np.testing.assert_allclose(history, expected_values(name, start, slopes), rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    "kind", [nn.SGD, partial(nn.SGD, momentum=0.5), nn.Adam], ids=["SGD", "momentum", "Adam"]
)
def test_large_complex_parameters_train_like_their_real_components(world, kind):
    """Updates that work block by block, and may write over old values, equal updates of real numbers."""
    mesh, rng = Mesh((world.size,), ("x",)), np.random.default_rng(5)
    start, slope = rng.normal(size=(2, 150_000, 2)) @ np.array([1, 1j])
    weight = nn.Parameter(start.shape, mesh("x"), lambda index, *_: start[index], np.complex128)
    components = [
        nn.Parameter(
            start.shape, mesh("x"), lambda index, *_, component=component: component[index], np.float64
        )
        for component in (start.real, start.imag)
    ]
    for parameter in (weight, *components):
        parameter.materialise(world)
    optimiser = kind([weight, *components], RATE)
    for _ in range(3):
        for parameter, gradient in zip((weight, *components), (slope, slope.real, slope.imag)):
            parameter.value.grad = Tensor.from_global(gradient, mesh("x"), world)
        optimiser.step()
    real, imaginary = [component.value.full() for component in components]
    np.testing.assert_array_equal(weight.value.full(), real + 1j * imaginary)


def complex_slopes(world, gradients):
    """Return tensors with these gradients, each split over all ranks of the world."""
    mesh, tensors = Mesh((world.size,), ("x",)), []
    for gradient in gradients:
        layout = mesh("x", *[None] * (gradient.ndim - 1))
        tensor = Tensor.from_global(np.zeros_like(gradient), layout, world, requires_grad=True)
        tensor.grad = Tensor.from_global(gradient, layout, world)
        tensors.append(tensor)
    return tensors


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("kind", ["complex64", "complex128"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_complex_gradients_are_clipped_by_their_modulus(world, kind, compiled):
    gradients = [np.array([2 + 1j, 1], kind), np.array([[1j, 3j], [3 - 4j, 0]], kind), np.array([2.0, -1.0])]
    norm = np.sqrt(sum(np.vdot(g, g).real for g in gradients))
    tensors = complex_slopes(world, gradients)
    assert nn.global_norm(tensors) == pytest.approx(norm, rel=1e-6)
    clip = spmdsim.compile(lambda: nn.clip(tensors, 2.0)) if compiled else lambda: nn.clip(tensors, 2.0)
    assert float(clip()) == pytest.approx(norm, rel=1e-6)
    for tensor, gradient in zip(tensors, gradients):
        assert tensor.grad.dtype == gradient.dtype
        np.testing.assert_allclose(tensor.grad.full(), gradient * (2.0 / norm), rtol=1e-5)
    assert nn.global_norm(tensors) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.ranks(2)
def test_losses_refuse_complex_numbers_where_torch_does(world):
    layout = Mesh((2,), ("x",))("x")
    z = Tensor.from_global(np.array([3 + 4j, 1j]), layout, world)
    x = Tensor.from_global(np.array([0.5, 0.25]), layout, world)
    losses = {
        "mse_loss": nn.mse_loss, "smooth_l1_loss": nn.smooth_l1_loss, "binary_cross_entropy": nn.binary_cross_entropy,
        "binary_cross_entropy_with_logits": nn.binary_cross_entropy_with_logits, "cross_entropy": nn.cross_entropy,
    }  # fmt: skip
    for name, loss in losses.items():
        for first, second, argument in ((z, x, "x"), (x, z, "(y|target)"), (x, 1j, "(y|target)")):
            if not isinstance(second, complex) or "cross" not in name:
                with pytest.raises(
                    InputError, match=f"^{name}: {argument} must be real, got complex128; .*l1_loss"
                ):
                    loss(first, second)
    with pytest.raises(InputError, match=r"^nll_loss: x must be real"):
        nn.nll_loss(z, z)
    assert nn.l1_loss(z, 0).item() == 3.0 and nn.l1_loss(z, 0).dtype == np.float64
    assert nn.smooth_l1_loss(z, 0, beta=0).item() == 3.0


STARTS = {
    "oneflow": lambda z, **options: oneflow.optim.Adam([z], lr=RATE, **options),
    "mindspore": lambda z: mindspore.nn.Adam([z], learning_rate=RATE, eps=1e-8),
    "paddle": lambda z: paddle.optimizer.Adam(RATE, parameters=[z]),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_adam_of_the_dialects_takes_steps_of_the_rate(world, shape):
    """First steps have the size of the rate in both components, against the gradient's sign."""
    start, slope = np.full(shape, 1 + 1j), np.full(shape, 3 - 4j)
    with use_world(world):  # MindSpore's tensors belong to the current world.
        for name, make in STARTS.items():
            kind = mindspore.Parameter if name == "mindspore" else nn.Parameter
            if kind is nn.Parameter:
                weight = kind(
                    shape,
                    Mesh((2,), ("x",))(*[None] * len(shape)),
                    lambda index, *_: start[index],
                    np.complex128,
                )
                weight.materialise(world)
            else:
                weight = kind(mindspore.Tensor(start), name="z")
                weight.everywhere()
            gradient = Tensor.from_global(slope, weight.value.layout, weight.value.world)
            weight.value.grad = gradient
            optimiser = make(weight)
            optimiser((gradient,)) if name == "mindspore" else optimiser.step()
            np.testing.assert_allclose(weight.value.full(), start - RATE * (1 - 1j), rtol=1e-6, err_msg=name)


@pytest.mark.ranks(2)
def test_mindspore_clips_complex_gradients(world):
    with use_world(world):
        (clipped,) = mindspore.ops.clip_by_global_norm([mindspore.Tensor(np.array([3 + 4j, 0, 12j]))], 1.0)
        np.testing.assert_allclose(clipped.asnumpy(), np.array([3 + 4j, 0, 12j]) / 13)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)], ids=str)
def test_parameters_without_dims_or_elements_have_finite_first_values(shape):
    """Fan-in counts as 1 for this `shape`: values of Uniform are in [-1, 1)."""
    world, layout = LockStep(2), Mesh((2,), ("x",))(*[None] * len(shape))
    for start in (None, nn.Normal(), nn.Uniform(), nn.Normal(0.5), nn.ones):
        parameter = nn.Parameter(shape, layout, start)
        parameter.materialise(world)
        assert parameter.value.full().shape == shape and np.isfinite(parameter.value.full()).all()
    samples = []
    for seed in range(400):
        parameter = nn.Parameter(shape, layout, nn.Uniform())
        parameter.materialise(world, seed)
        samples.append(parameter.value.full())
    assert shape != () or 0.9 < np.abs(samples).max() <= 1
    mindspore.set_seed(0)
    for name in ("xavier_uniform", "he_uniform", "normal"):
        value = mindspore.common.initializer.initializer(name, list(shape), mindspore.float32)
        assert mindspore.Parameter(value, name="p").asnumpy().shape == shape
    for name in ("XavierNormal", "XavierUniform", "Normal"):
        value = getattr(paddle.nn.initializer, name)()
        assert (
            paddle.create_parameter(list(shape), "float32", default_initializer=value).numpy().shape == shape
        )
    assert paddle.create_parameter(list(shape), "float32").numpy().shape == shape
