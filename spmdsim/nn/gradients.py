"""Gradients of parameters: reduced once each, and those that reduce alike in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.tape import Pending, added, keep, pull_back, settle
from spmdsim.core.world import programs
from spmdsim.errors import LayoutError
from spmdsim.nn.module import Module, Parameter, parameters_of
from spmdsim.nn.together import Together, brought
from spmdsim.tensor import Tensor


def backward(loss: Tensor, *, merge: bool = True) -> None:
    """Gradients of everything ``loss`` depends on, into ``.grad``.

    Args:
        loss: a tensor of one element.
        merge: reduce gradients that wait for the same reduction together (data parallelism: one call per
            bucket instead of one per parameter). The values are the same either way.

    Raises:
        LayoutError: a loss of more than one element.
        UsageTypeError: nothing that the loss depends on needs a gradient.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> weight.grad.full().tolist()
    [6.0, 8.0]
    """
    if loss.size != 1:
        raise LayoutError(
            f"backward() starts from one element, but the loss has shape {loss.shape}; sum it first"
        )
    together = Together("gradients")

    def complete(leaf: Tensor, pending: Pending) -> None:
        if merge and len({id(gradient.meta) for gradient in pending}) == 1:
            together.add(id(leaf), added(pending), _wanted(leaf))

    leaves = pull_back(loss, complete=complete)
    shared = together.finish()
    for leaf, pending in leaves:
        total = shared.get(id(leaf))
        keep(leaf, settle(pending, _wanted(leaf)) if total is None else total)


def _wanted(leaf: Tensor) -> Layout:
    return leaf.gradient_layout or leaf.layout.dual()


def global_norm(parameters: Module | Iterable[Parameter | Tensor]) -> float:
    """Root of the sum of squares of all gradients, the same on every rank.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.global_norm([weight])
    10.0
    """
    squares = _squares([parameter.value for parameter in parameters_of(parameters)])
    return math.sqrt(sum(float(square.item()) for square in squares))


def _squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sum of squares of each gradient, whole on every rank, and reduced together."""
    import spmdsim.ops as ops
    from spmdsim.ops.reduce import wide

    slopes = [wide(tensor.grad) for tensor in tensors if tensor.grad is not None]
    squares = [ops.sum(ops.multiply(slope, slope)) for slope in slopes]
    together = brought([(square, square.layout.reduced) for square in squares], "norm")
    return [together[k] if k in together else s.to(s.layout.reduced) for k, s in enumerate(squares)]


def clip(parameters: Module | Iterable[Parameter | Tensor], largest: float) -> float | Tensor:
    """Scale all gradients down together so that their global norm is at most ``largest``.

    Returns:
        The norm before, the same on every rank; in a function that is compiled, a tensor without dims.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.clip([weight], 5.0), weight.grad.full().round(3).tolist()
    (10.0, [3.0, 4.0])
    """
    import spmdsim.ops as ops
    from spmdsim.ops.reduce import as_type, wide

    trained = [parameter.value for parameter in parameters_of(parameters)]
    squares = _squares(trained)
    if not squares:
        return 0.0
    wider = [ops.cast(square, np.float64).to(squares[0].layout) for square in squares]
    norm = ops.sqrt(reduce(ops.add, wider))
    factor = ops.where(norm > largest, largest / (norm + 1e-6), 1.0)
    for tensor in trained:
        if tensor.grad is not None:
            slope = wide(tensor.grad)
            tensor.grad = as_type(ops.multiply(slope, ops.cast(factor, slope.dtype)), tensor.grad.dtype)
    return norm if programs else float(norm.item())
