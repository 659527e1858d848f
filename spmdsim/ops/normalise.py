"""Softmax, log-softmax, layer norm, cross entropy.

Each is one local function where its dim is whole. Where the dim is split they are the same formula in
smaller operators, whose reductions are then the collectives: a max and a sum per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import promoted
from spmdsim.ops.declare import in_fractions
from spmdsim.ops.elementwise import add, divide, exp, log, multiply, sqrt, subtract
from spmdsim.ops.index import pick
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import Dims, as_type, mean, normal_dims, wide
from spmdsim.ops.reduce import max as max_
from spmdsim.ops.reduce import sum as sum_
from spmdsim.redistribution.sparse_lookup import checked_ids
from spmdsim.tensor import Op, Tensor

#: One dim, or several that are normalised together.
Dim = int | tuple[int, ...]


def _dims(dim: Dim) -> tuple[int, ...]:
    return (dim,) if isinstance(dim, int) else dim


def row_rule(shape: tuple[int, ...], dim: Dim, **_: Any) -> Rule:
    """The rule of a function of whole rows: the dims along which they lie must not be split."""
    rows = _dims(dim)
    names = [f"w{d}" if d in rows else f"d{d}" for d in range(len(shape))]
    text = " ".join(names)
    return Rule.parse(f"{text} -> {text}", whole=" ".join(n for n in names if n[0] == "w"), work=PASSES)


def _softmax(x: np.ndarray, dim: Dim) -> np.ndarray:
    if not x.size:
        return x.copy()
    e = np.exp(x - np.maximum.reduce(x, axis=dim, keepdims=True))
    array: np.ndarray = e / np.add.reduce(e, axis=dim, keepdims=True, dtype=e.dtype)
    return array


def _softmax_vjp(dy: np.ndarray, _x: Any, y: np.ndarray, dim: Dim) -> tuple[np.ndarray]:
    return (y * (dy - (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)),)


def _log_softmax(x: np.ndarray, dim: Dim) -> np.ndarray:
    if not x.size:
        return x.copy()
    shifted = x - np.maximum.reduce(x, axis=dim, keepdims=True)
    array: np.ndarray = shifted - np.log(
        np.add.reduce(np.exp(shifted), axis=dim, keepdims=True, dtype=x.dtype)
    )
    return array


def _log_softmax_vjp(dy: np.ndarray, _x: Any, y: np.ndarray, dim: Dim) -> tuple[np.ndarray]:
    return (dy - np.exp(y) * dy.sum(axis=dim, keepdims=True, dtype=y.dtype),)


_softmax_op = Op("softmax", row_rule, _softmax, _softmax_vjp, saves_result=True)
_log_softmax_op = Op("log_softmax", row_rule, _log_softmax, _log_softmax_vjp, saves_result=True)


def _whole(x: Tensor, dim: Dim) -> bool:
    return all(x.layout.parts[d] == 1 for d in _dims(dim))


def _shifted(x: Tensor, dim: Dim) -> Tensor:
    """Rows minus their largest element: the shift changes nothing but the range, so it has no gradient."""
    whole = x.to(x.layout.reduced)
    return subtract(whole, max_(whole.detach(), dim, keepdims=True))


@operator(_softmax_op)
def softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """``exp(x) / sum(exp(x))`` along a dim, or several together, which may be split.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.softmax(x).full().round(4).tolist()
    [[0.8808, 0.1192], [0.1192, 0.8808]]
    """
    (x,), rows = in_fractions("softmax", x), _dim(x, dim)
    if _whole(x, rows):
        return _softmax_op(x, dim=rows)
    e = exp(_shifted(wide(x), rows))
    return as_type(divide(e, _reduced(sum_(e, rows, keepdims=True))), x.dtype)


@operator(_log_softmax_op)
def log_softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """``log(softmax(x))`` along a dim, or several together, which may be split.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.log_softmax(x).full().round(4).tolist()
    [[-0.1269, -2.1269], [-2.1269, -0.1269]]
    """
    (x,), rows = in_fractions("log_softmax", x), _dim(x, dim)
    if _whole(x, rows):
        return _log_softmax_op(x, dim=rows)
    shifted = _shifted(wide(x), rows)
    total = _reduced(sum_(exp(shifted), rows, keepdims=True))
    return as_type(subtract(shifted, log(total)), x.dtype)


def _reduced(x: Tensor) -> Tensor:
    return x.to(x.layout.reduced)


def _dim(x: Tensor, dim: Dims) -> Dim:
    rows = normal_dims(dim, x.ndim)
    return rows[0] if isinstance(dim, int) else rows


def norm_terms(ndim: int, parameters: int, begin_norm: int) -> tuple[str, str]:
    """The terms of a normalised tensor and of its parameters, which have its last dims.

    The dims from ``begin_norm`` on are called w and must stay whole.
    """
    first = begin_norm % ndim
    names = [f"w{d}" if d >= first else f"d{d}" for d in range(ndim)]
    return " ".join(names), " ".join(names[ndim - parameters :])


def _norm_rule(
    x: tuple[int, ...], scale: tuple[int, ...], shift: tuple[int, ...], epsilon: float, begin: int = -1
) -> Rule:
    if not -len(x) <= begin < len(x) or not len(x) - begin % len(x) <= len(scale) <= len(x):
        raise RuleError(
            f"layer_norm from dim {begin} needs a scale with at least the dims it normalises, but x has shape {x} "
            f"and the scale {scale}"
        )
    data, parameters = norm_terms(len(x), len(scale), begin)
    whole = " ".join(n for n in data.split() if n[0] == "w")
    text = f"{data}, {parameters}, {parameters} -> {data}"
    return Rule.parse(text, whole=whole, linear=((1, 2),), work=PASSES, backward=3)


def _norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float, begin: int = -1) -> np.ndarray:
    hat, _ = _standard(x, epsilon, begin)
    array: np.ndarray = hat * scale + shift
    return array


def _standard(x: np.ndarray, epsilon: float, begin: int) -> tuple[np.ndarray, np.ndarray]:
    dims = tuple(range(begin % x.ndim, x.ndim))
    centred = x - x.mean(axis=dims, keepdims=True, dtype=x.dtype)
    variance = (centred * centred).mean(axis=dims, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon, x.dtype))
    return centred * inverse, inverse


def _norm_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, epsilon: float, begin: int = -1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, scale, _ = operands
    hat, inverse = _standard(x, epsilon, begin)
    dhat = dy * scale
    dims = tuple(range(begin % x.ndim, x.ndim))
    dx = inverse * (
        dhat
        - dhat.mean(axis=dims, keepdims=True, dtype=x.dtype)
        - hat * (dhat * hat).mean(axis=dims, keepdims=True, dtype=x.dtype)
    )
    rows = tuple(range(x.ndim - scale.ndim))
    return dx, (dy * hat).sum(axis=rows, dtype=x.dtype), dy.sum(axis=rows, dtype=x.dtype)


_layer_norm_op = Op("layer_norm", _norm_rule, _norm, _norm_vjp)


@operator(_layer_norm_op)
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-5, begin: int = -1) -> Tensor:
    """Mean 0 and variance 1 over the last dims, then scaled and shifted (Ba et al., 2016).

    Args:
        x: ``[..., n]``; the normalised dims may be split.
        scale: ``[n]``, or more of the last dims of ``x``.
        shift: as ``scale``.
        epsilon: added to the variance.
        begin: the first normalised dim; only the last one if left out.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> one, zero = (Tensor.from_global([value] * 2, x.layout.mesh(None)) for value in (1.0, 0.0))
    >>> ops.layer_norm(x, one, zero).full().round(3).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    x, scale, shift = in_fractions("layer_norm", x, scale, shift)
    dims = tuple(range(begin % x.ndim, x.ndim))
    if _whole(x, dims):
        if begin == -1:
            return _layer_norm_op(x, scale, shift, epsilon=epsilon)
        return _layer_norm_op(x, scale, shift, epsilon=epsilon, begin=begin)
    given = wide(x)
    centred = subtract(given, _reduced(mean(given, dims, keepdims=True)))
    variance = _reduced(mean(multiply(centred, centred), dims, keepdims=True))
    hat = divide(centred, sqrt(add(variance, epsilon)))
    return as_type(add(multiply(hat, wide(scale)), wide(shift)), promoted(x.dtype, scale.dtype, shift.dtype))


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
    gradient = _softmax(logits, -1)
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

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> labels = Tensor.from_global([0, 1], x.layout.mesh("dp"))
    >>> print(f"{ops.cross_entropy(x, labels).item():.4f}")
    0.1269
    """
    (logits,) = in_fractions("cross_entropy", logits)
    whole = _whole(logits, logits.ndim - 1)
    losses = _rows_op(logits, labels) if whole else _split(logits, labels)
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise RuleError(f"the reduction of cross_entropy is 'mean', 'sum' or 'none', not {reduction!r}")
    return mean(losses) if reduction == "mean" else sum_(losses)


def _split(logits: Tensor, labels: Tensor) -> Tensor:
    shifted = _shifted(wide(logits), logits.ndim - 1)
    losses = subtract(log(_reduced(sum_(exp(shifted), -1))), _reduced(pick(shifted, labels)))
    return as_type(losses, logits.dtype)
