"""Softmax, log-softmax, layer norm, cross entropy.

Each is one local function where its dim is whole. Where the dim is split they are the same formula in
smaller operators, whose reductions are then the collectives: a max and a sum per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.errors import RuleError
from spmdsim.ops.elementwise import add, divide, exp, log, multiply, negative, sqrt, subtract
from spmdsim.ops.index import pick
from spmdsim.ops.reduce import max as max_
from spmdsim.ops.reduce import mean
from spmdsim.ops.reduce import sum as sum_
from spmdsim.rules import Rule
from spmdsim.tensor import Op, Tensor


def _row_rule(shape: tuple[int, ...], dim: int) -> Rule:
    names = " ".join("w" if d == dim else f"d{d}" for d in range(len(shape)))
    return Rule.parse(f"{names} -> {names}", whole="w")


def _softmax(x: np.ndarray, dim: int) -> np.ndarray:
    if not x.size:
        return x.copy()
    e = np.exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True, dtype=e.dtype)


def _softmax_vjp(dy: np.ndarray, _x: Any, y: np.ndarray, dim: int) -> tuple[np.ndarray]:
    return (y * (dy - (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)),)


def _log_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    if not x.size:
        return x.copy()
    shifted = x - x.max(axis=dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True, dtype=x.dtype))


def _log_softmax_vjp(dy: np.ndarray, _x: Any, y: np.ndarray, dim: int) -> tuple[np.ndarray]:
    return (dy - np.exp(y) * dy.sum(axis=dim, keepdims=True, dtype=y.dtype),)


_softmax_op = Op("softmax", _row_rule, _softmax, _softmax_vjp, saves_result=True)
_log_softmax_op = Op("log_softmax", _row_rule, _log_softmax, _log_softmax_vjp, saves_result=True)


def _whole(x: Tensor, dim: int) -> bool:
    return x.layout.parts[dim] == 1


def _shifted(x: Tensor, dim: int) -> Tensor:
    """Rows minus their largest element: the shift changes nothing but the range, so it has no gradient."""
    whole = x.to(x.layout.reduced)
    return subtract(whole, max_(whole.detach(), dim, keepdims=True))


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """``exp(x) / sum(exp(x))`` along a dim, which may be split."""
    dim = _dim(x, dim)
    if _whole(x, dim):
        return _softmax_op(x, dim=dim)
    e = exp(_shifted(x, dim))
    return divide(e, _reduced(sum_(e, dim, keepdims=True)))


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """``log(softmax(x))`` along a dim, which may be split."""
    dim = _dim(x, dim)
    if _whole(x, dim):
        return _log_softmax_op(x, dim=dim)
    shifted = _shifted(x, dim)
    return subtract(shifted, log(_reduced(sum_(exp(shifted), dim, keepdims=True))))


softmax.op = _softmax_op  # type: ignore[attr-defined]
log_softmax.op = _log_softmax_op  # type: ignore[attr-defined]


def _reduced(x: Tensor) -> Tensor:
    return x.to(x.layout.reduced)


def _dim(x: Tensor, dim: int) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise RuleError(f"dim {dim} is out of range for a tensor of {x.ndim} dims")
    return dim % x.ndim


def _norm_rule(x: tuple[int, ...], scale: tuple[int, ...], shift: tuple[int, ...], epsilon: float) -> Rule:
    return Rule.parse("... w, w, w -> ... w", whole="w", linear=((1, 2),))


def _norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float) -> np.ndarray:
    hat, _ = _standard(x, epsilon)
    return hat * scale + shift


def _standard(x: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    centred = x - x.mean(axis=-1, keepdims=True, dtype=x.dtype)
    variance = (centred * centred).mean(axis=-1, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon, x.dtype))
    return centred * inverse, inverse


def _norm_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, scale, _ = operands
    hat, inverse = _standard(x, epsilon)
    dhat = dy * scale
    rows = tuple(range(x.ndim - 1))
    dx = inverse * (
        dhat
        - dhat.mean(axis=-1, keepdims=True, dtype=x.dtype)
        - hat * (dhat * hat).mean(axis=-1, keepdims=True, dtype=x.dtype)
    )
    return dx, (dy * hat).sum(axis=rows, dtype=x.dtype), dy.sum(axis=rows, dtype=x.dtype)


_layer_norm_op = Op("layer_norm", _norm_rule, _norm, _norm_vjp)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Rows of the last dim with mean 0 and variance 1, then scaled and shifted (Ba et al., 2016).

    Args:
        x: ``[..., n]``; n may be split.
        scale: ``[n]``.
        shift: ``[n]``.
        epsilon: added to the variance.
    """
    if _whole(x, x.ndim - 1):
        return _layer_norm_op(x, scale, shift, epsilon=epsilon)
    centred = subtract(x, _reduced(mean(x, -1, keepdims=True)))
    variance = _reduced(mean(multiply(centred, centred), -1, keepdims=True))
    return add(multiply(divide(centred, sqrt(add(variance, epsilon))), scale), shift)


layer_norm.op = _layer_norm_op  # type: ignore[attr-defined]


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
    """
    whole = _whole(logits, logits.ndim - 1)
    losses = negative(pick(log_softmax(logits), labels)) if whole else _split(logits, labels)
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise RuleError(f"the reduction of cross_entropy is 'mean', 'sum' or 'none', not {reduction!r}")
    return mean(losses) if reduction == "mean" else sum_(losses)


def _split(logits: Tensor, labels: Tensor) -> Tensor:
    shifted = _shifted(logits, logits.ndim - 1)
    return subtract(log(_reduced(sum_(exp(shifted), -1))), _reduced(pick(shifted, labels)))
