"""Cross entropies of classes.

The functions with two results are SoftmaxCrossEntropyWithLogits and sparse_softmax_cross_entropy of other frameworks.
Their classes must not be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.ops.declare import Array, Arrays, convert_integers_to_floats
from spmdsim.arrays.ops.dim_reductions import finish_reductions, mean, to_sum_type, to_type
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import exp, log, subtract
from spmdsim.arrays.ops.lookup import pick
from spmdsim.arrays.ops.normalise import is_unsplit, row_log_softmax, row_softmax, shift_rows
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.redistribution.steps.row_steps import check_ids

__all__ = ["cross_entropy", "softmax_cross_entropy", "sparse_softmax_cross_entropy"]


def _compute_row_losses(logits: Array, labels: Array) -> Array:
    """Return the cross entropy of each row of one rank's logits, in the shape of the labels.

    Without rows it returns an empty array.
    """
    check_ids(labels, logits.shape[-1], description="classes")
    return (
        _compute_losses(logits, _label_indices(labels))[0]
        if logits.size
        else np.zeros(labels.shape, logits.dtype)
    )


def _compute_losses(logits: Array, label_indices: tuple[Array, ...]) -> tuple[Array, Any]:
    """Return the cross entropies of rows, and arrays for their gradient.

    The largest logit of each row is subtracted first, so that ``exp`` does not overflow.

    Args:
        logits: ``[..., c]``.
        label_indices: the indices of the labelled elements, one array per dim.

    Returns:
        The losses ``[...]``; and a tuple of exponentials ``[..., c]``, their sums ``[..., 1]`` and ``label_indices``.
    """
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    label_logits = shifted[label_indices]
    powers = np.exp(shifted, out=shifted)
    totals = np.add.reduce(powers, axis=-1, keepdims=True, dtype=logits.dtype)
    return np.log(totals[..., 0]) - label_logits, (powers, totals, label_indices)


def _label_indices(labels: Array) -> tuple[Array, ...]:
    """Return the indices of the labelled elements, one array per dim of the logits."""
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    return *np.ix_(*map(np.arange, labels.shape)), labels


def _rows_vjp(dy: Array, operands: Arrays, _result: Any) -> tuple[Array, None]:
    """Return the gradient of the logits, softmax minus 1 at the label, and None for the labels."""
    return _compute_slope(dy, row_softmax(operands[0], -1), _label_indices(operands[1])), None


def _compute_slope(dy: Array, softmax: Array, at: tuple[Array, ...]) -> Array:
    """Return ``dy`` times softmax minus 1 at the label, in place: the gradient of the logits."""
    softmax[at] -= 1
    softmax *= dy[..., None]
    return softmax


_rows_op = Op(
    "cross_entropy",
    Rule.parse("... w, ... -> ...", whole="w", work=PASSES),
    _compute_row_losses,
    _rows_vjp,
    dtype=lambda logits, _labels: logits,
)


@operator(_rows_op)
def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Compute minus the log-probability of each label.

    The probabilities are the softmax of the logits. If the classes are split (vocabulary-parallel logits), no rank gets
    all logits of a row. Ranks only exchange three numbers per row: its maximum, its sum of exponentials and the logit
    of its label (Megatron-LM's parallel cross entropy).

    Args:
        logits: ``[..., c]``, one score per class; integers become floats.
        labels: integers ``[...]`` from 0 to ``c - 1``.
        reduction: ``"mean"`` or ``"sum"`` over all labels, or ``"none"`` for one loss per label.

    Returns:
        A tensor of shape (), partial over the axes that split the labels; with ``"none"`` losses in the shape of the
        labels.

    Raises:
        RuleError: If ``reduction`` is unknown, the shapes do not fit, or ``logits`` is complex.
        InputError: If a label is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> print(f"{ops.cross_entropy(m, Tensor.from_global([0, 1], m.layout.mesh('dp'))).item():.4f}")
    0.1269
    """
    (logits,) = convert_integers_to_floats("cross_entropy", logits)
    if is_unsplit(logits, logits.ndim - 1):
        losses = _rows_op(logits, labels)
    else:
        shifted = shift_rows(to_sum_type(logits), logits.ndim - 1)
        losses = subtract(
            log(finish_reductions(sum_(exp(shifted), -1))), finish_reductions(pick(shifted, labels))
        )
        losses = to_type(losses, logits.dtype)
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise RuleError(f"the reduction of cross_entropy is 'mean', 'sum' or 'none', not {reduction!r}")
    return mean(losses) if reduction == "mean" else sum_(losses)


def _compute_dense_losses(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Return the losses, and the second result: softmax minus labels."""
    logs = row_log_softmax(logits, -1)
    return -(labels * logs).sum(axis=-1, dtype=logits.dtype), np.exp(logs) - labels


def _dense_vjp(dys: Sequence[Any], operands: Arrays, _results: Any) -> tuple[Array, Array]:
    """Return the gradients of logits and labels, from the gradient of the losses alone.

    The gradient of the operator's second result is ignored.

    Args:
        dys: the gradients of losses and of the second result; an entry is None if that result was not used.
        operands: logits and labels ``[..., c]``.
        _results: the results; not used.
    """
    logits, labels = operands
    logs = row_log_softmax(logits, -1)
    # The labels of a row may have another sum than 1.
    mass = labels.sum(axis=-1, keepdims=True, dtype=labels.dtype)
    dloss = np.zeros((), logits.dtype) if dys[0] is None else dys[0][..., None]
    return dloss * (np.exp(logs) * mass - labels), -dloss * logs


_dense_op = Op(
    "softmax_cross_entropy",
    Rule.parse("... w, ... w -> ..., ... w", whole="w", work=PASSES),
    _compute_dense_losses,
    _dense_vjp,
)


@operator(_dense_op)
def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy of rows of probabilities; return it with softmax minus labels.

    The second result has no gradient of its own.

    Args:
        logits: ``[..., c]``; ``c`` must not be split.
        labels: probabilities ``[..., c]``.

    Returns:
        losses ``[...]``, and softmax minus labels ``[..., c]``.

    Raises:
        RuleError: If shapes differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> loss, slope = ops.softmax_cross_entropy(m, ops.softmax(m))
    >>> loss.shape, slope.shape
    ((2,), (2, 2))
    """
    losses, gradients = _dense_op.results(
        *convert_integers_to_floats("softmax_cross_entropy", logits, labels)
    )
    return losses, gradients


def _compute_sparse_losses(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Return the softmax, and the losses of the labelled classes."""
    check_ids(labels, logits.shape[-1], description="classes")
    logs = row_log_softmax(logits, -1)
    return np.exp(logs), -logs[_label_indices(labels)]


def _sparse_vjp(dys: Sequence[Any], operands: Arrays, _results: Any) -> tuple[Array, None]:
    """Return the gradient of the logits, from that of the losses alone, and None for the labels.

    The gradient of the probabilities is ignored. If the losses have no gradient, the result is 0.

    Args:
        dys: the gradients of probabilities and losses; an entry is None if that result was not used.
        operands: logits ``[..., c]`` and labels ``[...]``.
        _results: the results; not used.
    """
    logits, labels = operands
    dloss = np.zeros((), logits.dtype) if dys[1] is None else dys[1][..., None]
    gradient = np.exp(row_log_softmax(logits, -1))
    gradient[_label_indices(labels)] -= 1
    return dloss * gradient, None


_sparse_op = Op(
    "sparse_softmax_cross_entropy",
    Rule.parse("... w, ... -> ... w, ...", whole="w", work=PASSES),
    _compute_sparse_losses,
    _sparse_vjp,
    dtype=lambda logits, _labels: logits,
)


@operator(_sparse_op)
def sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of logits and the cross entropy of the labelled classes.

    The softmax has no gradient of its own.

    Args:
        logits: ``[..., c]``; ``c`` must not be split.
        labels: integers ``[...]`` from 0 to ``c - 1``.

    Returns:
        The softmax ``[..., c]``, and one loss per label ``[...]``.

    Raises:
        InputError: If a label is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> labels = Tensor.from_global([0, 1], m.layout.mesh("dp"))
    >>> probabilities, losses = ops.sparse_softmax_cross_entropy(m, labels)
    >>> probabilities.shape, losses.full().round(4).tolist()
    ((2, 2), [0.1269, 0.1269])
    """
    probabilities, losses = _sparse_op.results(
        *convert_integers_to_floats("sparse_softmax_cross_entropy", logits), labels
    )
    return probabilities, losses
