"""Losses with PyTorch's options: reductions, weights and ignored labels.

Semantics: https://docs.pytorch.org/docs/stable/nn.functional.html#loss-functions. Each loss computes one number per
element or row, and then calls `reduce_losses` or `reduce_weighted_losses`. Losses of labels first replace ignored
labels (`weigh_labels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.operands import Operand, convert_operands
from spmdsim.arrays.ops.declare import declare_binary
from spmdsim.arrays.ops.dim_reductions import normalise_dims
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.errors import InputError

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "l1_loss", "mse_loss",
    "nll_loss", "smooth_l1_loss",
]  # fmt: skip

#: Reductions of the losses of all elements.
REDUCTIONS = ("mean", "sum", "none")
#: Smaller logarithms of probabilities are replaced by this one, as in torch.
LEAST_LOG = -100.0


def check_loss_reduction(reduction: str) -> None:
    """Raise InputError if ``reduction`` is not in :data:`REDUCTIONS`."""
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")


def reduce_losses(losses: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean or sum of the elements' losses, or the losses themselves for ``"none"``.

    Raises InputError if the reduction is unknown.
    """
    check_loss_reduction(reduction)
    if reduction == "none":
        return losses
    return ops.mean(losses) if reduction == "mean" else ops.sum(losses)


def _require_real(loss: str, **operands: object) -> None:
    """Raise InputError if an operand of a loss is complex, as torch does."""
    for name, operand in operands.items():
        dtype = getattr(operand, "dtype", None) or np.asarray(operand).dtype
        if dtype.kind == "c":
            raise InputError(
                f"{loss}: {name} must be real, got {dtype}; add the losses of ops.real and ops.imag, or call "
                "l1_loss"
            )


def _as_tensors(
    loss: str, x: Tensor, target: Operand, weight: Operand | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return `x`, `target` and `weight` as tensors; arrays become replicated tensors.

    Args:
        loss: the name of the loss, for messages.
        x: the first operand of the loss.
        target: the second operand.
        weight: the weight of each class; None if there is none.

    Returns:
        The three tensors. The third is None if `weight` is None.

    Raises:
        InputError: If `weight` is a text. Then the caller passed a reduction as third argument.
    """
    if isinstance(weight, str):
        check_weight(weight, x.shape[min(1, x.ndim - 1)])
    tensors = convert_operands(loss, [x, target, *([] if weight is None else [weight])])
    return tensors[0], tensors[1], tensors[2] if len(tensors) > 2 else None


@of_tensors
def mse_loss(x: Tensor, y: Operand, reduction: str = "mean") -> Tensor:
    """Compute squared differences of two tensors.

    Args:
        x: numbers of any shape.
        y: numbers of the shape of ``x``, or of a shape that broadcasts with it.
        reduction: ``"mean"`` or ``"sum"`` of all elements, or ``"none"`` for one loss per element.

    Returns:
        A tensor of shape (), partial over the axes that split the operands. With ``"none"`` a tensor of the operands'
        broadcast shape.

    Raises:
        InputError: If the reduction is unknown or an operand is complex.
        RuleError: If the shapes do not broadcast.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("dp",))("dp"))
    >>> mse_loss(x, x + 2.0).item()
    4.0
    """
    _require_real("mse_loss", x=x, y=y)
    return reduce_losses(ops.squared_difference(x, y), reduction)


@of_tensors
def l1_loss(x: Tensor, y: Operand, reduction: str = "mean") -> Tensor:
    """Compute absolute differences of two tensors, reduced as by :func:`mse_loss`.

    Args:
        x: numbers of any shape, real or complex.
        y: numbers of the shape of ``x``, or of a shape that broadcasts with it.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        InputError: If the reduction is unknown.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("dp",))("dp"))
    >>> l1_loss(x, x + 2.0).item()
    2.0
    """
    return reduce_losses(ops.absolute(ops.subtract(x, y)), reduction)


@of_tensors
def smooth_l1_loss(x: Tensor, y: Operand, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Compute differences that are squared near 0 and absolute elsewhere (Girshick, 2015).

    An absolute difference d contributes ``d**2 / (2 beta)`` if it is less than ``beta``, else ``d - beta / 2``. The
    losses are reduced as by :func:`mse_loss`.

    Args:
        x: numbers of any shape.
        y: numbers of the shape of ``x``, or of a shape that broadcasts with it.
        reduction: ``"mean"`` or ``"sum"`` of all elements, or ``"none"`` for one loss per element.
        beta: the difference from which the loss is linear. 0 gives :func:`l1_loss`; its sign is not checked.

    Raises:
        InputError: If the reduction is unknown, or an operand is complex and ``beta`` is not 0.
        RuleError: If the shapes do not broadcast.

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
    return reduce_losses(ops.where(ops.less(far, beta), near, ops.subtract(far, beta / 2)), reduction)


def _compute_clipped_logs(x: np.ndarray) -> list[np.ndarray]:
    """Return ``log(x)`` and ``log(1 - x)``, both at least :data:`LEAST_LOG` (-100)."""
    with np.errstate(divide="ignore"):
        return [np.maximum(log, x.dtype.type(LEAST_LOG)) for log in (np.log(x), np.log1p(-x))]


def _compute_binary_cross_entropy(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return ``-t log(x) - (1 - t) log(1 - x)`` per element, with clipped logarithms."""
    log, log_complement = _compute_clipped_logs(x)
    return np.asarray((target - 1) * log_complement - target * log)


def _binary_cross_entropy_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any) -> list[Any]:
    """Return two functions without arguments: the gradients for probabilities and targets.

    The gradient for a probability x is ``dy (x - target) / (x (1 - x))``. The denominator is at least 1e-12, as in
    torch. The gradient for a target is ``dy (log(1 - x) - log(x))``, with logarithms of at least -100.
    All arrays are one rank's shards.
    """
    x, target = operands

    def of_target() -> np.ndarray:
        log, log_complement = _compute_clipped_logs(x)
        return np.asarray(dy * (log_complement - log))

    return [lambda: dy * (x - target) / np.maximum(x * (1 - x), x.dtype.type(1e-12)), of_target]


_binary_cross_entropy = declare_binary(
    "binary_cross_entropy",
    _compute_binary_cross_entropy,
    _binary_cross_entropy_vjp,
    says="-t log(x) - (1 - t) log(1 - x)",
)


def _weigh_and_reduce(losses: Tensor, weight: Operand | None, reduction: str) -> Tensor:
    """Multiply the losses by ``weight``, unless it is None; reduce them as `reduce_losses` does."""
    return reduce_losses(losses if weight is None else ops.multiply(losses, weight), reduction)


@of_tensors
def binary_cross_entropy(
    x: Tensor, target: Operand, weight: Operand | None = None, reduction: str = "mean"
) -> Tensor:
    """Compute the cross entropy of probabilities ``x`` and targets between 0 and 1.

    Each element contributes ``-t log(x) - (1 - t) log(1 - x)``. Probabilities outside of 0 to 1 are not refused; they
    give NaN.

    Args:
        x: probabilities of any shape. Their logarithms are clipped at -100, as in torch.
        target: targets of the shape of ``x``, or of a shape that broadcasts with it.
        weight: factor of each element's loss, of a shape that broadcasts with ``x``; None: 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean divides by the number of elements, whatever the
            weights.

    Raises:
        InputError: If the reduction is unknown or an operand is complex.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([0.5, 0.5], Mesh((2,), ("dp",))("dp"))
    >>> round(binary_cross_entropy(x, 1.0).item(), 4)
    0.6931
    """
    _require_real("binary_cross_entropy", x=x, target=target, weight=weight)
    return _weigh_and_reduce(_binary_cross_entropy(x, target), weight, reduction)


@of_tensors
def binary_cross_entropy_with_logits(
    x: Tensor, target: Operand, weight: Operand | None = None, reduction: str = "mean", pos_weight: Operand | None = None
) -> Tensor:  # fmt: skip
    """Compute :func:`binary_cross_entropy` of ``sigmoid(x)``, without overflow for large ``x``.

    The loss of a logit x with target t is ``-(pos_weight t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x)))``, times
    ``weight``. That targets are in 0 to 1 is not checked.

    Args:
        x: numbers of any shape.
        target: targets of the shape of ``x``, or of a shape that broadcasts with it.
        weight: factor of each element's loss, of a shape that broadcasts with ``x``; None: 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean divides by the number of elements, whatever the
            weights.
        pos_weight: factor of the term of the targets, ``-t log(sigmoid(x))``; None: 1.

    Raises:
        InputError: If the reduction is unknown or an operand is complex.
        RuleError: If the shapes do not broadcast.

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
    return _weigh_and_reduce(losses, weight, reduction)


def classes_last(x: Tensor, axis: int = 1) -> Tensor:
    """Return ``x`` with dimension ``axis``, the classes, moved to the end."""
    return x if normalise_dims(axis, x.ndim) == (x.ndim - 1,) else ops.moveaxis(x, axis, -1)


def check_weight(weight: object, classes: int) -> None:
    """Raise InputError unless ``weight`` is None or has shape ``(classes,)``.

    Anything else without a shape, such as a number or a text, is refused, too.

    Args:
        weight: the argument ``weight`` of a loss.
        classes: the number of classes.
    """
    if weight is not None and tuple(getattr(weight, "shape", ())) != (classes,):
        actual = f"shape {[*weight.shape]}" if hasattr(weight, "shape") else f"{weight!r}"
        raise InputError(
            f"weight tensor should be defined either for all {classes} classes or no classes, but got {actual}"
        )


def weigh_labels(
    target: Tensor, ignore_index: int, weight: Tensor | None, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``(labels, counts)``: labels without ignored ones, and the weight of each label.

    Args:
        target: labels ``[...]``. Labels equal to ``ignore_index`` become 0 and get weight 0.
        ignore_index: the ignored label.
        weight: weight per class ``[c]``; None: 1 for each class.
        like: a tensor ``[..., c]`` that gives the number of classes and the dtype of the weights.

    Raises:
        InputError: If ``weight`` does not have one entry per class.
    """
    check_weight(weight, like.shape[-1])
    ignored = ops.equal(target, ignore_index)
    labels, counts = ops.where(ignored, 0, target), ops.cast(ops.logical_not(ignored), like.dtype)
    return labels, counts if weight is None else ops.multiply(ops.take(weight, labels, 0), counts)


def times_counts(losses: Tensor, counts: Tensor) -> Tensor:
    """Multiply losses by their weights; the product is 0 if the weight is 0, even for an infinite loss."""
    return ops.multiply(ops.where(ops.equal(counts, 0), 0.0, losses), counts)


def reduce_weighted_losses(losses: Tensor, counts: Tensor, reduction: str, least: float = 0.0) -> Tensor:
    """Reduce losses that are already multiplied by their weights.

    Args:
        losses: one weighted loss per label, of any shape.
        counts: the weights, in the shape of ``losses``; only a mean reads them.
        reduction: ``"sum"``, ``"none"`` (the losses themselves), or ``"mean"``: the sum of the losses divided by the
            sum of the weights.
        least: the divisor of a mean if the sum of the weights is 0. With the default 0.0 this mean is NaN (0 / 0).

    Returns:
        A tensor of shape (), which may be partial; for "none" ``losses``.

    Raises:
        InputError: If the reduction is unknown.
    """
    if reduction != "mean":
        return reduce_losses(losses, reduction)
    total = ops.sum(counts)
    total = total.to(total.layout.reduced)
    total = ops.where(ops.equal(total, 0), least, total) if least else total
    return ops.divide(ops.sum(losses), total)


def _move_classes_last(x: Tensor, target: Tensor) -> Tensor:
    """Return ``x`` with its classes, dimension 1 or the only one, moved to the end.

    For example, shape ``[batch, c, height, width]`` becomes ``[batch, height, width, c]``.
    """
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
    """Compute the negative log-likelihood of labels from logarithms of probabilities.

    It equals :func:`cross_entropy` if ``x`` is the log_softmax of the logits. The classes are dimension 1 of ``x``,
    or its only dimension.

    Args:
        x: logarithms ``[batch, c, ...]`` or ``[c]``.
        target: labels ``[batch, ...]``.
        weight: weight of each class, ``[c]``; None: 1 for each class.
        ignore_index: the label whose rows get loss 0 and weight 0.
        reduction: ``"mean"`` (the sum divided by the sum of the weights), ``"sum"`` or ``"none"``.

    Raises:
        InputError: If ``weight`` does not have one entry per class, ``target`` does not have one label per row, ``x``
            or ``weight`` is complex, the reduction is unknown, or a label is out of range.

    >>> from spmdsim import Mesh, Tensor
    >>> mesh = Mesh((2,), ("dp",))
    >>> x = Tensor.from_global([[-1.0, -2.0], [-3.0, -4.0]], mesh("dp", None))
    >>> nll_loss(x, Tensor.from_global([0, 1], mesh("dp"))).item()
    2.5
    """
    _require_real("nll_loss", x=x, weight=weight)
    x, classes, weights = _as_tensors("nll_loss", x, target, weight)
    logs = _move_classes_last(x, classes)
    labels, counts = weigh_labels(classes, ignore_index, weights, logs)
    return reduce_weighted_losses(
        times_counts(ops.negative(ops.pick(logs, labels)), counts), counts, reduction
    )


@of_tensors
def cross_entropy(
    x: Tensor, target: Operand, weight: Operand | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Compute minus the log-probability of each row's label, with PyTorch's options.

    A row is a vector of c logits, one per class; softmax turns it into probabilities. The classes are dimension 1 of
    ``x``, or its only dimension.

    Args:
        x: logits ``[batch, c, ...]`` or ``[c]``.
        target: labels ``[batch, ...]``, or probabilities in the shape of the logits.
        weight: weight of each class, ``[c]``; None: 1 for each class.
        ignore_index: the label whose rows get loss 0 and weight 0. Not used if the targets are probabilities.
        reduction: ``"mean"`` (the sum divided by the sum of the weights; by the number of rows if the targets are
            probabilities), ``"sum"`` or ``"none"``.
        label_smoothing: the share of each label, from 0 to 1, that is spread evenly over all classes.

    Raises:
        InputError: If ``weight`` does not have one entry per class, ``target`` does not have one label per row,
            ``label_smoothing`` is outside of 0 to 1, an operand is complex, the reduction is unknown, or a label is out
            of range.

    >>> from spmdsim import Mesh, Tensor
    >>> mesh = Mesh((2,), ("dp",))
    >>> x = Tensor.from_global([[0.0, 0.0], [9.0, 0.0]], mesh("dp", None))
    >>> # The first row has probability 1/2 for each class; the second row is ignored.
    >>> round(cross_entropy(x, Tensor.from_global([1, -100], mesh("dp"))).item(), 4)
    0.6931
    """
    if not 0 <= label_smoothing <= 1:
        raise InputError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    _require_real("cross_entropy", x=x, target=target, weight=weight)
    x, truth, weights = _as_tensors("cross_entropy", x, target, weight)
    share = label_smoothing
    if truth.shape == x.shape:
        return _cross_entropy_of_probabilities(x, truth, weights, reduction, share)
    rows = _move_classes_last(x, truth)
    labels, counts = weigh_labels(truth, ignore_index, weights, rows)
    losses = times_counts(ops.cross_entropy(rows, labels, "none"), counts)
    if share:
        logs = ops.log_softmax(rows)
        spread = ops.negative(ops.sum(logs if weights is None else ops.multiply(logs, weights), -1))
        spread = ops.where(ops.equal(truth, ignore_index), 0.0, spread)
        losses = ops.add(ops.multiply(losses, 1 - share), ops.multiply(spread, share / rows.shape[-1]))
    return reduce_weighted_losses(losses, counts, reduction)


def _cross_entropy_of_probabilities(
    x: Tensor, targets: Tensor, weights: Tensor | None, reduction: str, share: float
) -> Tensor:
    """Compute :func:`cross_entropy` for targets that are probabilities in the shape of ``x``.

    With c classes, the loss of a row is minus the sum over its classes of
    ``weight * ((1 - share) * target + share / c) * log_softmax(x)``.

    Args:
        x: logits ``[batch, c, ...]`` or ``[c]``.
        targets: the probabilities; that they are in 0 to 1 and sum to 1 is not checked.
        weights: weight of each class; None: 1 for each class.
        reduction: as in :func:`cross_entropy`; the mean divides by the number of rows, whatever the weights, or by 1
            if there are none.
        share: ``label_smoothing``, the share of each row that is spread evenly over all classes.

    Raises:
        InputError: If ``weights`` does not have one entry per class, or the reduction is unknown.
    """
    axis = min(1, x.ndim - 1)
    rows, targets = classes_last(x, axis), classes_last(targets, axis)
    check_weight(weights, rows.shape[-1])
    if share:
        targets = ops.add(ops.multiply(targets, 1 - share), share / rows.shape[-1])
    if weights is not None:
        targets = ops.multiply(targets, weights)
    losses = ops.negative(ops.sum(ops.multiply(targets, ops.log_softmax(rows)), -1))
    if reduction == "mean":
        return ops.divide(ops.sum(losses), max(1, losses.size))
    return reduce_losses(losses, reduction)
