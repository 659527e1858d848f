"""Losses of two tensors: their mean, their sum or one per element."""

from __future__ import annotations

import spmdsim.ops as ops
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor

#: What may become of the elements' losses.
REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str) -> None:
    """Refuse a word that is none of :data:`REDUCTIONS`."""
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")


def reduced(losses: Tensor, reduction: str = "mean") -> Tensor:
    """The elements' losses as they are, or one number."""
    check_reduction(reduction)
    if reduction == "none":
        return losses
    return ops.mean(losses) if reduction == "mean" else ops.sum(losses)


def mse_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Squared differences of two tensors of one shape.

    Args:
        x: numbers of any shape.
        y: of the same shape, or one that broadcasts with it.
        reduction: ``"mean"`` or ``"sum"`` of all elements, or ``"none"`` for one loss per element.

    Returns:
        One number, partial over the axes that split the operands until somebody needs it; with ``"none"`` the
        operands' shape.

    Raises:
        InputError: an unknown reduction.
        RuleError: shapes that do not broadcast.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("dp",))("dp"))
    >>> mse_loss(x, x + 2.0).item()
    4.0
    """
    return reduced(ops.squared_difference(x, y), reduction)


def l1_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute differences of two tensors, reduced and refused as by :func:`mse_loss`.

    Args:
        x: numbers of any shape.
        y: of the same shape, or one that broadcasts with it.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("dp",))("dp"))
    >>> l1_loss(x, x + 2.0).item()
    2.0
    """
    return reduced(ops.absolute(ops.subtract(x, y)), reduction)
