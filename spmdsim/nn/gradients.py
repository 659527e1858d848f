"""Gradients of parameters: reduced once each, and those that reduce alike in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.core.tape import Pending, added, keep, pull_back, settle
from spmdsim.errors import LayoutError
from spmdsim.nn.module import Parameter
from spmdsim.nn.together import brought
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
    """
    if loss.size != 1:
        raise LayoutError(
            f"backward() starts from one element, but the loss has shape {loss.shape}; sum it first"
        )
    leaves = pull_back(loss)
    merged = _bucketed(leaves) if merge else {}
    for leaf, pending in leaves:
        total = merged.get(id(leaf))
        keep(leaf, settle(pending, leaf.gradient_layout) if total is None else total)


def _bucketed(leaves: Sequence[tuple[Tensor, Pending]]) -> dict[int, Tensor]:
    """The gradients that share messages, by the identity of their leaves."""
    found = [leaf for leaf, pending in leaves if len({id(gradient.meta) for gradient in pending}) == 1]
    alike = {id(leaf) for leaf in found}
    totals = [(added(pending), leaf.gradient_layout) for leaf, pending in leaves if id(leaf) in alike]
    return {id(found[number]): total for number, total in brought(totals, "gradients").items()}


def global_norm(parameters: Sequence[Parameter]) -> float:
    """Root of the sum of squares of all gradients, the same on every rank."""
    import spmdsim.ops as ops
    from spmdsim.ops.reduce import wide

    slopes = [wide(parameter.value.grad) for parameter in parameters if parameter.value.grad is not None]
    squares = [ops.sum(ops.multiply(slope, slope)) for slope in slopes]
    together = brought([(square, square.layout.reduced) for square in squares], "norm")
    return math.sqrt(sum(float(together.get(k, square).item()) for k, square in enumerate(squares)))


def clip(parameters: Sequence[Parameter], largest: float) -> float:
    """Scale all gradients down together so that their global norm is at most ``largest``; returns the norm."""
    import spmdsim.ops as ops
    from spmdsim.ops.reduce import as_type, wide

    norm = global_norm(parameters)
    if norm > largest:
        for parameter in parameters:
            if parameter.value.grad is not None:
                scaled = ops.multiply(wide(parameter.value.grad), largest / (norm + 1e-6))
                parameter.value.grad = as_type(scaled, parameter.value.grad.dtype)
    return norm
