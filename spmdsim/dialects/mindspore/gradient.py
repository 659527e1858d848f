"""``value_and_grad`` and ``grad``: a function with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim import nn
from spmdsim.core import Layout, Mesh
from spmdsim.core.meta import Meta
from spmdsim.dialects.host import whole
from spmdsim.dialects.mindspore.context import outermost, parallel
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.tensors import held
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError
from spmdsim.layout.element_type import has_gradient
from spmdsim.tensor import Tensor

Positions = int | Sequence[int] | None
Weights = Sequence[Parameter] | Parameter | None


def value_and_grad(
    fn: Callable[..., Any], grad_position: Positions = 0, weights: Weights = None, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns ``fn``'s result, and gradients of inputs, of weights, or of both.

    Args:
        fn: returns the loss, or a tuple whose first element is the loss. The others get no gradient,
            whether ``has_aux`` says so or not: the tutorial's text leaves it out and means this.
        grad_position: which inputs, by number (one gradient) or numbers (a tuple); None for none.
        weights: parameters, such as ``optimizer.parameters`` (a tuple of gradients), or one.
        has_aux: accepted for compatibility.

    What the loss does not depend on has gradients of zero, as in MindSpore. In a parallel program the gradients are those
    of the sum of all ranks' losses, or their mean (:mod:`spmdsim.dialects.mindspore.context`). Neither inputs nor
    weights, or a position that there is not, are an InputError.
    """
    if grad_position is None and weights is None:
        raise InputError("value_and_grad needs a grad_position, weights or both")
    wanted = [weights] if isinstance(weights, Parameter) else list(weights or ())
    places = () if grad_position is None else grad_position
    positions = (places,) if isinstance(places, int) else tuple(places)

    def both(*inputs: Any) -> tuple[Any, Any]:
        given = list(inputs)
        for k in positions:
            if not -len(given) <= k < len(given):
                raise InputError(f"grad_position is {grad_position}, but there are {len(given)} inputs")
            given[k] = _leaf(given[k])
        for parameter in wanted:
            if parameter.tensor is not None:
                parameter.tensor.grad = None
        result = fn(*given)
        loss = result[0] if isinstance(result, tuple) else result
        settings = parallel()
        times = 1 if settings is None else settings.factor(loss)
        if isinstance(loss, Tensor) and loss.requires_grad:
            # every element counts with a gradient of one
            nn.backward(loss if loss.size == 1 else ops.sum(loss))
        of_inputs = tuple(_times(given[k], times) for k in positions)
        of_weights = tuple(
            _times(p, times if settings is None else times / settings.divisor(p.used)) for p in wanted
        )
        # a single thing asked for comes alone, several in a tuple; inputs before weights
        first = of_inputs[0] if isinstance(grad_position, int) else of_inputs
        second = of_weights[0] if isinstance(weights, Parameter) else of_weights
        if grad_position is None:
            return result, second
        return result, first if weights is None else (first, second)

    return partial(outermost, both)


def grad(
    fn: Callable[..., Any], grad_position: Positions = 0, weights: Weights = None, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradients of :func:`value_and_grad` alone; with ``has_aux`` and the further results beside them."""
    both = value_and_grad(fn, grad_position, weights, has_aux)

    def wrapped(*inputs: Any) -> Any:
        result, gradients = both(*inputs)
        return (gradients, result[1:]) if has_aux else gradients

    return wrapped


def _times(given: Tensor | Parameter, times: float) -> Tensor | None:
    """The gradient of an input or a parameter, so many times: zeros where nothing came; None of numbers that have none."""
    leaf: Tensor | None = given if isinstance(given, Tensor) else given.tensor
    gradient = None if leaf is None else leaf.grad
    if gradient is not None:
        return held(gradient if times == 1 else ops.multiply(gradient, times))
    if not has_gradient(given.dtype):
        return None
    world, shape = current_world(), given.shape
    nowhere = Layout.replicated(Mesh((world.size,), ("rank",)), len(shape))  # and it stays so
    layout = nowhere if leaf is None else leaf.layout.dual()
    make = np.zeros if world.has_data else world.empty
    shards = [make(layout.local_shape(shape, rank), given.dtype) for rank in world.ranks]
    return held(Tensor(world, Meta.of(layout, shape, given.dtype), shards))


def _leaf(operand: Any) -> Tensor:
    """An input that gathers a gradient, if its numbers have one."""
    if isinstance(operand, Tensor):
        tracked = has_gradient(operand.dtype)
        return Tensor(operand.world, operand.meta, operand.held, requires_grad=tracked, name=operand.name)
    world = current_world()
    array = whole(operand, world)
    layout = Layout.replicated(Mesh((world.size,), ("rank",)), array.ndim)
    return Tensor.from_global(array, layout, world, requires_grad=has_gradient(array.dtype))
