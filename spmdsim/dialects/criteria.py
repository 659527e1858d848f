"""Losses with PyTorch's parameters: weights of classes and of elements, labels that do not count, smoothed labels.

Semantics: https://docs.pytorch.org/docs/stable/nn.functional.html#loss-functions. Classes are dim 1 of ``[batch, c, ...]``,
the only dim of ``[c]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.table import Row
from spmdsim.errors import InputError
from spmdsim.nn import l1_loss, mse_loss
from spmdsim.nn.losses import reduced
from spmdsim.ops.declare import binary
from spmdsim.ops.dim_reductions import normal_dims

#: No logarithm of a probability counts as less.
LEAST_LOG = -100.0


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


def _weighted(losses: Any, weight: Any, reduction: str) -> Any:
    return reduced(losses if weight is None else core.multiply(losses, weight), reduction)


def _bce(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    return _weighted(_binary_cross_entropy(input, target), weight, reduction)


def _bce_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    if pos_weight is None:
        losses = core.subtract(core.softplus(input), core.multiply(input, target))
    else:  # (1 - t) x + (1 + (w - 1) t) log(1 + exp(-x))
        share = core.add(core.multiply(core.subtract(pos_weight, 1.0), target), 1.0)
        below = core.multiply(share, core.softplus(core.negative(input)))
        losses = core.add(core.multiply(core.subtract(1.0, target), input), below)
    return _weighted(losses, weight, reduction)


def classes_last(x: Any, axis: int = 1) -> Any:
    """With the classes as the last dim."""
    return x if normal_dims(axis, x.ndim) == (x.ndim - 1,) else core.moveaxis(x, axis, -1)


def check_weight(weight: Any, classes: int) -> None:
    """Refuse weights of classes that are not one per class. InputError: another number of them, or no tensor."""
    if weight is not None and tuple(getattr(weight, "shape", ())) != (classes,):
        got = f"shape {[*weight.shape]}" if hasattr(weight, "shape") else f"{weight!r}"
        raise InputError(
            f"weight tensor should be defined either for all {classes} classes or no classes, but got {got}"
        )


def counted(target: Any, ignore_index: int, weight: Any, like: Any) -> tuple[Any, Any]:
    """Labels, 0 for those that do not count, and how much each of them counts, in the type of ``like[..., c]``."""
    check_weight(weight, like.shape[-1])
    ignored = core.equal(target, ignore_index)
    labels, counts = core.where(ignored, 0, target), core.cast(core.logical_not(ignored), like.dtype)
    return labels, counts if weight is None else core.multiply(core.take(weight, labels, 0), counts)


def mean_of(losses: Any, counts: Any, reduction: str, least: float = 0.0) -> Any:
    """Losses, of which each counts so much, reduced; where nothing counts the mean is divided by ``least``."""
    if reduction != "mean":
        return reduced(losses, reduction)
    total = core.sum(counts)
    total = total.to(total.layout.reduced)
    total = core.where(core.equal(total, 0), least, total) if least else total
    return core.divide(core.sum(losses), total)


def _nll(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    logs = _logits(input, target)
    labels, counts = counted(target, ignore_index, weight, logs)
    return mean_of(core.multiply(core.negative(core.pick(logs, labels)), counts), counts, reduction)


def _logits(input: Any, target: Any) -> Any:
    """What is known of classes, which are the last dim then; one target per row. InputError: targets of another shape."""
    x = classes_last(input, min(1, input.ndim - 1))
    if tuple(target.shape) != tuple(x.shape[:-1]):
        raise InputError(
            f"Expected target size {list(x.shape[:-1])}, got {list(target.shape)}: classes are dim {min(1, input.ndim - 1)} of "
            f"the input, of shape {list(input.shape)}"
        )
    return x


def _cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Of labels, or of probabilities in the shape of the input."""
    if not 0 <= label_smoothing <= 1:
        raise InputError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    axis, share = min(1, input.ndim - 1), label_smoothing
    if tuple(target.shape) == tuple(input.shape):
        x, known = classes_last(input, axis), classes_last(target, axis)
        check_weight(weight, x.shape[-1])
        known = core.add(core.multiply(known, 1 - share), share / x.shape[-1]) if share else known
        known = known if weight is None else core.multiply(known, weight)
        losses = core.negative(core.sum(core.multiply(known, core.log_softmax(x)), -1))
        rows = max(1, losses.size)
        return core.divide(core.sum(losses), rows) if reduction == "mean" else reduced(losses, reduction)
    x = _logits(input, target)
    labels, counts = counted(target, ignore_index, weight, x)
    losses = core.multiply(core.cross_entropy(x, labels, "none"), counts)
    if share:
        logs = core.log_softmax(x)
        spread = core.negative(core.sum(logs if weight is None else core.multiply(logs, weight), -1))
        spread = core.where(core.equal(target, ignore_index), 0.0, spread)
        losses = core.add(core.multiply(losses, 1 - share), core.multiply(spread, share / x.shape[-1]))
    return mean_of(losses, counts, reduction)


def _smooth_l1(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    if not beta:
        return l1_loss(input, target, reduction)
    far = core.absolute(core.subtract(input, target))
    near = core.divide(core.square(far), 2 * beta)
    return reduced(core.where(core.less(far, beta), near, core.subtract(far, beta / 2)), reduction)


#: By PyTorch's names.
LOSSES: dict[str, Row] = {
    "binary_cross_entropy": Row(_bce, "BCELoss"),
    "binary_cross_entropy_with_logits": Row(_bce_with_logits, "BCEWithLogitsLoss"),
    "cross_entropy": Row(_cross_entropy, "CrossEntropyLoss"),
    "l1_loss": Row(lambda input, target, reduction="mean": l1_loss(input, target, reduction), "L1Loss"),
    "mse_loss": Row(lambda input, target, reduction="mean": mse_loss(input, target, reduction), "MSELoss"),
    "nll_loss": Row(_nll, "NLLLoss"),
    "smooth_l1_loss": Row(_smooth_l1, "SmoothL1Loss"),
}
