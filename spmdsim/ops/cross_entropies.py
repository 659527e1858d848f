"""Cross entropy of labelled rows, for any layout, and as one operator with two results where the classes are whole.

The latter are what frameworks call SoftmaxCrossEntropyWithLogits and sparse_softmax_cross_entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.ops.declare import in_fractions
from spmdsim.ops.elementwise import exp, log, subtract
from spmdsim.ops.lookup import pick
from spmdsim.ops.normalise import log_softmax_rows, rows_are_whole, shifted_rows, softmax_rows
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import as_type, mean, reduced, wide
from spmdsim.ops.reduce import sum as sum_
from spmdsim.redistribution.sparse_lookup import checked_ids
from spmdsim.tensor import Op, Tensor


def _rows(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    checked_ids(labels, logits.shape[-1], what="classes")
    if not logits.size:
        return np.zeros(labels.shape, logits.dtype)
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    totals = np.add.reduce(np.exp(shifted), axis=-1, dtype=logits.dtype)
    array: np.ndarray = np.log(totals) - shifted[_at(labels)]
    return array


def _at(labels: np.ndarray) -> tuple[np.ndarray, ...]:
    """Where the labelled elements of rows are."""
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    return *np.ix_(*map(np.arange, labels.shape)), labels


def _rows_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _losses: Any) -> tuple[np.ndarray, None]:
    """Softmax minus one at the label."""
    logits, labels = operands
    gradient = softmax_rows(logits, -1)
    gradient[_at(labels)] -= 1
    gradient *= dy[..., None]
    return gradient, None


_rows_op = Op(
    "cross_entropy",
    Rule.parse("... w, ... -> ...", whole="w", work=PASSES),
    _rows,
    _rows_vjp,
    dtype=lambda logits, _labels: logits,
)


@operator(_rows_op)
def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Minus the log-probability of each label.

    Where the classes are split (vocabulary-parallel logits) the rows are never gathered: a max, a sum of
    exponentials and the label's entry are reduced instead (Megatron-LM's parallel cross entropy).

    Args:
        logits: ``[..., c]``.
        labels: integers ``[...]``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        RuleError: an unknown reduction.
        InputError: a label outside the classes.

    >>> labels = Tensor.from_global([0, 1], m.layout.mesh("dp"))
    >>> print(f"{ops.cross_entropy(m, labels).item():.4f}")
    0.1269
    """
    (logits,) = in_fractions("cross_entropy", logits)
    if rows_are_whole(logits, logits.ndim - 1):
        losses = _rows_op(logits, labels)
    else:
        shifted = shifted_rows(wide(logits), logits.ndim - 1)
        losses = subtract(log(reduced(sum_(exp(shifted), -1))), reduced(pick(shifted, labels)))
        losses = as_type(losses, logits.dtype)
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise RuleError(f"the reduction of cross_entropy is 'mean', 'sum' or 'none', not {reduction!r}")
    return mean(losses) if reduction == "mean" else sum_(losses)


def _dense(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logs = log_softmax_rows(logits, -1)
    return -(labels * logs).sum(axis=-1, dtype=logits.dtype), np.exp(logs) - labels


def _dense_vjp(
    dys: Sequence[Any], operands: Sequence[np.ndarray], _results: Any
) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = operands
    logs = log_softmax_rows(logits, -1)
    mass = labels.sum(axis=-1, keepdims=True, dtype=labels.dtype)
    dloss = np.zeros((), logits.dtype) if dys[0] is None else dys[0][..., None]
    return dloss * (np.exp(logs) * mass - labels), -dloss * logs


_dense_op = Op(
    "softmax_cross_entropy",
    Rule.parse("... w, ... w -> ..., ... w", whole="w", work=PASSES),
    _dense,
    _dense_vjp,
)


@operator(_dense_op)
def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy of rows of probabilities, and softmax minus labels (without gradient of its own).

    Args:
        logits: ``[..., c]``; c must not be split.
        labels: probabilities ``[..., c]``.

    >>> loss, slope = ops.softmax_cross_entropy(m, ops.softmax(m))
    >>> loss.shape, slope.shape
    ((2,), (2, 2))
    """
    losses, gradients = _dense_op.results(*in_fractions("softmax_cross_entropy", logits, labels))
    return losses, gradients


def _sparse(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    checked_ids(labels, logits.shape[-1], what="classes")
    logs = log_softmax_rows(logits, -1)
    return np.exp(logs), -np.take_along_axis(logs, labels[..., None], axis=-1)[..., 0]


def _sparse_vjp(dys: Sequence[Any], operands: Sequence[np.ndarray], _results: Any) -> tuple[np.ndarray, None]:
    logits, labels = operands
    logs = log_softmax_rows(logits, -1)
    dloss = np.zeros((), logits.dtype) if dys[1] is None else dys[1][..., None]
    gradient = np.exp(logs)
    np.put_along_axis(
        gradient, labels[..., None], np.take_along_axis(gradient, labels[..., None], -1) - 1, -1
    )
    return dloss * gradient, None


_sparse_op = Op(
    "sparse_softmax_cross_entropy",
    Rule.parse("... w, ... -> ... w, ...", whole="w", work=PASSES),
    _sparse,
    _sparse_vjp,
    dtype=lambda logits, _labels: logits,
)


@operator(_sparse_op)
def sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of the logits (without gradient of its own), and the cross entropy of the labelled classes.

    Args:
        logits: ``[..., c]``; c must not be split.
        labels: integers ``[...]``.

    Raises:
        InputError: a label outside the classes.

    >>> labels = Tensor.from_global([0, 1], m.layout.mesh("dp"))
    >>> probabilities, losses = ops.sparse_softmax_cross_entropy(m, labels)
    >>> probabilities.shape, losses.full().round(4).tolist()
    ((2, 2), [0.1269, 0.1269])
    """
    probabilities, losses = _sparse_op.results(*in_fractions("sparse_softmax_cross_entropy", logits), labels)
    return probabilities, losses
