"""Losses: their mean, their sum or one per element, with PyTorch's options, such as weights and labels that do not count.

Semantics: https://docs.pytorch.org/docs/stable/nn.functional.html#loss-functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.operands import Operand, operands
from spmdsim.arrays.ops.declare import binary
from spmdsim.arrays.ops.dim_reductions import normal_dims
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.errors import InputError

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "l1_loss", "mse_loss",
    "nll_loss", "smooth_l1_loss",
]  # fmt: skip

#: What may become of the elements' losses.
REDUCTIONS = ("mean", "sum", "none")
#: No logarithm of a probability counts as less.
LEAST_LOG = -100.0


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


def _require_real(loss: str, **operands: object) -> None:
    """Raise InputError if an operand of a loss is complex, as torch does. Arguments are operands by their names."""
    for name, operand in operands.items():
        dtype = getattr(operand, "dtype", None) or np.asarray(operand).dtype
        if dtype.kind == "c":
            raise InputError(
                f"{loss}: {name} must be real, got {dtype}; add the losses of ops.real and ops.imag up, or take l1_loss"
            )


def _as_tensors(
    loss: str, x: Tensor, target: Operand, weight: Operand | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return three operands of a loss as tensors; of an array all ranks have the whole, and a weight may be None."""
    if isinstance(weight, str):  # a reduction in the place of the weights
        check_weight(weight, x.shape[min(1, x.ndim - 1)])
    tensors = operands(loss, [x, target, *([] if weight is None else [weight])])
    return tensors[0], tensors[1], tensors[2] if len(tensors) > 2 else None


@of_tensors
def mse_loss(x: Tensor, y: Operand, reduction: str = "mean") -> Tensor:
    """Compute squared differences of two tensors.

    Args:
        x: numbers of any shape.
        y: of the same shape, or one that broadcasts with it.
        reduction: ``"mean"`` or ``"sum"`` of all elements, or ``"none"`` for one loss per element.

    Returns:
        One number, partial over the axes that split the operands until somebody needs it; with ``"none"`` the
        operands' shape.

    Raises:
        InputError: an unknown reduction, or complex numbers.
        RuleError: shapes that do not broadcast.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("dp",))("dp"))
    >>> mse_loss(x, x + 2.0).item()
    4.0
    """
    _require_real("mse_loss", x=x, y=y)
    return reduced(ops.squared_difference(x, y), reduction)


@of_tensors
def l1_loss(x: Tensor, y: Operand, reduction: str = "mean") -> Tensor:
    """Compute absolute differences of two tensors, reduced as by :func:`mse_loss`.

    They may be complex.

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


@of_tensors
def smooth_l1_loss(x: Tensor, y: Operand, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Compute squared differences below ``beta`` and absolute ones above (Girshick, 2015).

    They are reduced as by :func:`mse_loss`.

    Args:
        x: numbers of any shape.
        y: of the same shape, or one that broadcasts with it.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        beta: where one becomes the other; with 0 all are absolute.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("dp",))("dp"))
    >>> smooth_l1_loss(x, x + 2.0).item()
    1.5
    """
    if not beta:
        return l1_loss(x, y, reduction)
    _require_real("smooth_l1_loss", x=x, y=y)
    far = ops.absolute(ops.subtract(x, y))
    near = ops.divide(ops.square(far), 2 * beta)
    return reduced(ops.where(ops.less(far, beta), near, ops.subtract(far, beta / 2)), reduction)


def _logs(x: np.ndarray) -> list[np.ndarray]:
    """The logarithms of probabilities and of the others', none below :data:`LEAST_LOG`."""
    with np.errstate(divide="ignore"):
        return [np.maximum(log, x.dtype.type(LEAST_LOG)) for log in (np.log(x), np.log1p(-x))]


def _cross(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    one, other = _logs(x)
    return np.asarray((target - 1) * other - target * one)


def _cross_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any) -> list[Any]:
    x, target = operands

    def of_target() -> np.ndarray:
        one, other = _logs(x)
        return np.asarray(dy * (other - one))

    return [lambda: dy * (x - target) / np.maximum(x * (1 - x), x.dtype.type(1e-12)), of_target]


_binary_cross_entropy = binary(
    "binary_cross_entropy", _cross, _cross_vjp, says="-t log(x) - (1 - t) log(1 - x)"
)


def _weighted(losses: Tensor, weight: Operand | None, reduction: str) -> Tensor:
    return reduced(losses if weight is None else ops.multiply(losses, weight), reduction)


@of_tensors
def binary_cross_entropy(
    x: Tensor, target: Operand, weight: Operand | None = None, reduction: str = "mean"
) -> Tensor:
    """Compute the cross entropy of probabilities ``x`` and targets between 0 and 1.

    Args:
        x: probabilities of any shape.
        target: of the same shape, or one that broadcasts with it.
        weight: how much each element counts, of a shape that broadcasts with it.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([0.5, 0.5], Mesh((2,), ("dp",))("dp"))
    >>> round(binary_cross_entropy(x, 1.0).item(), 4)
    0.6931
    """
    _require_real("binary_cross_entropy", x=x, target=target, weight=weight)
    return _weighted(_binary_cross_entropy(x, target), weight, reduction)


@of_tensors
def binary_cross_entropy_with_logits(
    x: Tensor, target: Operand, weight: Operand | None = None, reduction: str = "mean", pos_weight: Operand | None = None
) -> Tensor:  # fmt: skip
    """Compute :func:`binary_cross_entropy` of ``sigmoid(x)``.

    Args:
        x: numbers of any shape.
        target: of the same shape, or one that broadcasts with it.
        weight: how much each element counts, of a shape that broadcasts with it.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: how many times more the share of the ones counts.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([0.0, 0.0], Mesh((2,), ("dp",))("dp"))
    >>> round(binary_cross_entropy_with_logits(x, 1.0).item(), 4)
    0.6931
    """
    _require_real(
        "binary_cross_entropy_with_logits", x=x, target=target, weight=weight, pos_weight=pos_weight
    )
    if pos_weight is None:
        losses = ops.subtract(ops.softplus(x), ops.multiply(x, target))
    else:  # (1 - t) x + (1 + (w - 1) t) log(1 + exp(-x))
        share = ops.add(ops.multiply(ops.subtract(pos_weight, 1.0), target), 1.0)
        below = ops.multiply(share, ops.softplus(ops.negative(x)))
        losses = ops.add(ops.multiply(ops.subtract(1.0, target), x), below)
    return _weighted(losses, weight, reduction)


def classes_last(x: Tensor, axis: int = 1) -> Tensor:
    """With the classes as the last dim."""
    return x if normal_dims(axis, x.ndim) == (x.ndim - 1,) else ops.moveaxis(x, axis, -1)


def check_weight(weight: object, classes: int) -> None:
    """Refuse weights of classes that are not one per class. InputError: another number of them, or no tensor."""
    if weight is not None and tuple(getattr(weight, "shape", ())) != (classes,):
        actual = f"shape {[*weight.shape]}" if hasattr(weight, "shape") else f"{weight!r}"
        raise InputError(
            f"weight tensor should be defined either for all {classes} classes or no classes, but got {actual}"
        )


def counted(target: Tensor, ignore_index: int, weight: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Labels, 0 for those that do not count, and how much each of them counts, in the type of ``like[..., c]``."""
    check_weight(weight, like.shape[-1])
    ignored = ops.equal(target, ignore_index)
    labels, counts = ops.where(ignored, 0, target), ops.cast(ops.logical_not(ignored), like.dtype)
    return labels, counts if weight is None else ops.multiply(ops.take(weight, labels, 0), counts)


def times_counts(losses: Tensor, counts: Tensor) -> Tensor:
    """Losses, each times how much it counts: nothing where that is 0, even if it is infinite."""
    return ops.multiply(ops.where(ops.equal(counts, 0), 0.0, losses), counts)


def mean_of(losses: Tensor, counts: Tensor, reduction: str, least: float = 0.0) -> Tensor:
    """Losses, of which each counts so much, reduced; where nothing counts the mean is divided by ``least``."""
    if reduction != "mean":
        return reduced(losses, reduction)
    total = ops.sum(counts)
    total = total.to(total.layout.reduced)
    total = ops.where(ops.equal(total, 0), least, total) if least else total
    return ops.divide(ops.sum(losses), total)


def _rows(x: Tensor, target: Tensor) -> Tensor:
    """What is known of classes, which are the last dim then. InputError: not one target per row."""
    axis = min(1, x.ndim - 1)
    rows = classes_last(x, axis)
    if target.shape != rows.shape[:-1]:
        raise InputError(
            f"Expected target size {list(rows.shape[:-1])}, got {list(target.shape)}: classes are dim {axis} of the input, of "
            f"shape {list(x.shape)}"
        )
    return rows


@of_tensors
def nll_loss(
    x: Tensor, target: Operand, weight: Operand | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:  # fmt: skip
    """Compute :func:`cross_entropy` of labels from logarithms of probabilities.

    Args:
        x: logarithms ``[batch, c, ...]`` or ``[c]``.
        target: labels ``[batch, ...]``.
        weight: how much each class counts, ``[c]``.
        ignore_index: the label that does not count.
        reduction: ``"mean"`` of what counts, ``"sum"`` or ``"none"``.

    >>> from spmdsim import Mesh, Tensor
    >>> mesh = Mesh((2,), ("dp",))
    >>> x = Tensor.from_global([[-1.0, -2.0], [-3.0, -4.0]], mesh("dp", None))
    >>> nll_loss(x, Tensor.from_global([0, 1], mesh("dp"))).item()
    2.5
    """
    _require_real("nll_loss", x=x, weight=weight)
    x, classes, weights = _as_tensors("nll_loss", x, target, weight)
    logs = _rows(x, classes)
    labels, counts = counted(classes, ignore_index, weights, logs)
    return mean_of(times_counts(ops.negative(ops.pick(logs, labels)), counts), counts, reduction)


@of_tensors
def cross_entropy(
    x: Tensor, target: Operand, weight: Operand | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Compute minus the log-probability of labels, with PyTorch's options.

    The classes are dimension 1 of ``x``, or its only dimension.

    Args:
        x: logits ``[batch, c, ...]`` or ``[c]``.
        target: labels ``[batch, ...]``, or probabilities in the shape of the logits.
        weight: how much each class counts, ``[c]``.
        ignore_index: the label that does not count.
        reduction: ``"mean"`` of what counts, ``"sum"`` or ``"none"``.
        label_smoothing: the share of every label that all classes get evenly.

    Raises:
        InputError: another number of weights than classes, of labels than rows, or a share that is none.

    >>> from spmdsim import Mesh, Tensor
    >>> mesh = Mesh((2,), ("dp",))
    >>> x = Tensor.from_global([[0.0, 0.0], [9.0, 0.0]], mesh("dp", None))
    >>> round(cross_entropy(x, Tensor.from_global([1, -100], mesh("dp"))).item(), 4)
    0.6931
    """
    if not 0 <= label_smoothing <= 1:
        raise InputError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    _require_real("cross_entropy", x=x, target=target, weight=weight)
    x, truth, weights = _as_tensors("cross_entropy", x, target, weight)
    axis, share = min(1, x.ndim - 1), label_smoothing
    if truth.shape == x.shape:
        rows, targets = classes_last(x, axis), classes_last(truth, axis)
        check_weight(weights, rows.shape[-1])
        targets = ops.add(ops.multiply(targets, 1 - share), share / rows.shape[-1]) if share else targets
        targets = targets if weights is None else ops.multiply(targets, weights)
        losses = ops.negative(ops.sum(ops.multiply(targets, ops.log_softmax(rows)), -1))
        if reduction == "mean":
            return ops.divide(ops.sum(losses), max(1, losses.size))
        return reduced(losses, reduction)
    rows = _rows(x, truth)
    labels, counts = counted(truth, ignore_index, weights, rows)
    losses = times_counts(ops.cross_entropy(rows, labels, "none"), counts)
    if share:
        logs = ops.log_softmax(rows)
        spread = ops.negative(ops.sum(logs if weights is None else ops.multiply(logs, weights), -1))
        spread = ops.where(ops.equal(truth, ignore_index), 0.0, spread)
        losses = ops.add(ops.multiply(losses, 1 - share), ops.multiply(spread, share / rows.shape[-1]))
    return mean_of(losses, counts, reduction)
