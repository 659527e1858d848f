"""Softmax cross entropy as one operator with two results, where the classes are whole.

:func:`spmdsim.ops.cross_entropy` is the loss for any layout; these are what frameworks call
SoftmaxCrossEntropyWithLogits and sparse_softmax_cross_entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import PASSES, Rule
from spmdsim.ops.declare import in_fractions
from spmdsim.ops.normalise import _log_softmax
from spmdsim.ops.operators import operator
from spmdsim.redistribution.sparse_lookup import checked_ids
from spmdsim.tensor import Op, Tensor


def _dense(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logs = _log_softmax(logits, -1)
    return -(labels * logs).sum(axis=-1, dtype=logits.dtype), np.exp(logs) - labels


def _dense_vjp(
    dys: Sequence[Any], operands: Sequence[np.ndarray], _results: Any
) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = operands
    logs = _log_softmax(logits, -1)
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

    Returns:
        ``[...]`` and ``[..., c]``.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> loss, slope = ops.softmax_cross_entropy(x, ops.softmax(x))
    >>> loss.shape, slope.shape
    ((2,), (2, 2))
    """
    losses, gradients = _dense_op.results(*in_fractions("softmax_cross_entropy", logits, labels))
    return losses, gradients


def _sparse(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    checked_ids(labels, logits.shape[-1], what="classes")
    logs = _log_softmax(logits, -1)
    return np.exp(logs), -np.take_along_axis(logs, labels[..., None], axis=-1)[..., 0]


def _sparse_vjp(dys: Sequence[Any], operands: Sequence[np.ndarray], _results: Any) -> tuple[np.ndarray, None]:
    logits, labels = operands
    logs = _log_softmax(logits, -1)
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

    Returns:
        ``[..., c]`` and ``[...]``.

    Raises:
        InputError: a label outside the classes.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> labels = Tensor.from_global([0, 1], x.layout.mesh("dp"))
    >>> loss, slope = ops.sparse_softmax_cross_entropy(x, labels)
    >>> slope.full().round(4).tolist()
    [0.1269, 0.1269]
    """
    probabilities, losses = _sparse_op.results(*in_fractions("sparse_softmax_cross_entropy", logits), labels)
    return probabilities, losses
