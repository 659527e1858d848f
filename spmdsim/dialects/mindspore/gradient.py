"""``value_and_grad``: a function with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spmdsim import nn
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor


def value_and_grad(
    fn: Callable[..., Any],
    grad_position: Any = 0,
    weights: Sequence[Parameter] | None = None,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that returns ``fn``'s result and the gradients of ``weights``.

    Args:
        fn: returns the loss, or a tuple whose first element is the loss. The others get no gradient,
            whether ``has_aux`` says so or not: the tutorial's text leaves it out and means this.
        grad_position: must be None when weights are given.
        weights: the parameters, such as ``optimizer.parameters``.
        has_aux: accepted for compatibility.

    Raises:
        InputError: gradients by position, or none asked for.
    """
    if weights is None:
        raise InputError(
            "value_and_grad gives gradients of weights; pass optimizer.parameters as third argument"
        )
    wanted = list(weights)

    def wrapped(*inputs: Any) -> tuple[Any, tuple[Tensor | None, ...]]:
        for parameter in wanted:
            if parameter.tensor is not None:
                parameter.tensor.grad = None
        result = fn(*inputs)
        loss = result[0] if isinstance(result, tuple) else result
        nn.backward(loss)
        return result, tuple(p.tensor.grad if p.tensor is not None else None for p in wanted)

    return wrapped
