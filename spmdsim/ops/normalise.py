"""Functions of rows: softmax, layer norm, root mean square, Euclidean norm, cross entropies.

Most are one local function where their dim is whole. Where it is split they are the same formula in smaller operators, whose
reductions are then the collectives: a max and a sum per row. The cross entropies with two results are what frameworks call
SoftmaxCrossEntropyWithLogits and sparse_softmax_cross_entropy; their classes are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import promoted
from spmdsim.ops.declare import Array, Arrays, Shape, in_fractions
from spmdsim.ops.dim_reductions import Dims, as_type, mean, normal_dims, reduced, wide
from spmdsim.ops.dim_reductions import max as max_
from spmdsim.ops.dim_reductions import sum as sum_
from spmdsim.ops.elementwise import add, divide, exp, log, multiply, sqrt, subtract
from spmdsim.ops.lookup import pick
from spmdsim.ops.operators import operator
from spmdsim.redistribution.sparse_lookup import checked_ids
from spmdsim.tensor import Op, Tensor

__all__ = [
    "cross_entropy", "l2_normalize", "layer_norm", "log_softmax", "rms_norm", "softmax",
    "softmax_cross_entropy", "sparse_softmax_cross_entropy",
]  # fmt: skip

#: One dim, or several that are normalised together.
Dim = int | tuple[int, ...]


def _dims(dim: Dim) -> Shape:
    return (dim,) if isinstance(dim, int) else dim


def _row_rule(shape: Shape, dim: Dim, **_: Any) -> Rule:
    """The dims along which rows lie must not be split."""
    rows = _dims(dim)
    names = [f"w{d}" if d in rows else f"d{d}" for d in range(len(shape))]
    text = " ".join(names)
    return Rule.parse(f"{text} -> {text}", whole=" ".join(n for n in names if n[0] == "w"), work=PASSES)


def _softmax(x: Array, dim: Dim) -> Array:
    if not x.size:
        return x.copy()
    e = np.exp(x - np.maximum.reduce(x, axis=dim, keepdims=True))
    return np.asarray(e / np.add.reduce(e, axis=dim, keepdims=True, dtype=e.dtype))


def _log_softmax(x: Array, dim: Dim) -> Array:
    if not x.size:
        return x.copy()
    shifted = x - np.maximum.reduce(x, axis=dim, keepdims=True)
    totals = np.add.reduce(np.exp(shifted), axis=dim, keepdims=True, dtype=x.dtype)
    return np.asarray(shifted - np.log(totals))


_softmax_op = Op(
    "softmax",
    _row_rule,
    _softmax,
    lambda dy, _x, y, dim: (y * (dy - (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)),),
    saves_result=True,
    unseen=(0,),
)
_log_softmax_op = Op(
    "log_softmax",
    _row_rule,
    _log_softmax,
    lambda dy, _x, y, dim: (dy - np.exp(y) * dy.sum(axis=dim, keepdims=True, dtype=y.dtype),),
    saves_result=True,
    unseen=(0,),
)


def _whole(x: Tensor, dim: Dim) -> bool:
    return all(x.layout.cuts[d] == 1 for d in _dims(dim))


def _shifted(x: Tensor, dim: Dim) -> Tensor:
    """Rows minus their largest element: the shift changes nothing but the range, so it has no gradient."""
    whole = reduced(x)
    return subtract(whole, max_(whole.detach(), dim, keepdims=True))


@operator(_softmax_op)
def softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """``exp(x) / sum(exp(x))`` along a dim, or several together, which may be split.

    >>> ops.softmax(m).full().round(4).tolist()
    [[0.8808, 0.1192], [0.1192, 0.8808]]
    """
    (x,), rows = in_fractions("softmax", x), _dim(x, dim)
    if _whole(x, rows):
        return _softmax_op(x, dim=rows)
    e = exp(_shifted(wide(x), rows))
    return as_type(divide(e, reduced(sum_(e, rows, keepdims=True))), x.dtype)


@operator(_log_softmax_op)
def log_softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """``log(softmax(x))`` along a dim, or several together, which may be split.

    >>> ops.log_softmax(m).full().round(4).tolist()
    [[-0.1269, -2.1269], [-2.1269, -0.1269]]
    """
    (x,), rows = in_fractions("log_softmax", x), _dim(x, dim)
    if _whole(x, rows):
        return _log_softmax_op(x, dim=rows)
    shifted = _shifted(wide(x), rows)
    total = reduced(sum_(exp(shifted), rows, keepdims=True))
    return as_type(subtract(shifted, log(total)), x.dtype)


def _dim(x: Tensor, dim: Dims) -> Dim:
    rows = normal_dims(dim, x.ndim)
    return rows[0] if isinstance(dim, int) else rows


def _norm_terms(ndim: int, parameters: int, begin_norm: int) -> tuple[str, str]:
    """The terms of a normalised tensor and of its parameters, which have its last dims.

    The dims from ``begin_norm`` on are called w and must stay whole.
    """
    first = begin_norm % ndim
    names = [f"w{d}" if d >= first else f"d{d}" for d in range(ndim)]
    return " ".join(names), " ".join(names[ndim - parameters :])


def _norm_rule(x: Shape, scale: Shape, shift: Shape, epsilon: float, begin: int = -1) -> Rule:
    if not -len(x) <= begin < len(x) or not len(x) - begin % len(x) <= len(scale) <= len(x):
        raise RuleError(
            f"layer_norm from dim {begin} needs a scale with at least the dims it normalises, but x has shape {x} "
            f"and the scale {scale}"
        )
    data, parameters = _norm_terms(len(x), len(scale), begin)
    whole = " ".join(n for n in data.split() if n[0] == "w")
    text = f"{data}, {parameters}, {parameters} -> {data}"
    return Rule.parse(text, whole=whole, linear=((1, 2),), work=PASSES, backward=3)


def _standard(x: Array, epsilon: float, begin: int) -> tuple[Array, Array]:
    dims = tuple(range(begin % x.ndim, x.ndim))
    centred = x - x.mean(axis=dims, keepdims=True, dtype=x.dtype)
    variance = (centred * centred).mean(axis=dims, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon, x.dtype))
    return centred * inverse, inverse


def _norm_vjp(
    dy: Array, operands: Arrays, _y: Any, epsilon: float, begin: int = -1
) -> tuple[Array, Array, Array]:
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


_layer_norm_op = Op(
    "layer_norm",
    _norm_rule,
    lambda x, scale, shift, epsilon, begin=-1: _standard(x, epsilon, begin)[0] * scale + shift,
    _norm_vjp,
    unseen=(2,),
)


@operator(_layer_norm_op)
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-5, begin: int = -1) -> Tensor:
    """Mean 0 and variance 1 over the last dims, then scaled and shifted (Ba et al., 2016).

    Parameters:
        x: ``[..., n]``; the normalised dims may be split.
        shift: as ``scale``.
        epsilon: added to the variance.
        begin: the first normalised dim; only the last one if left out.

    >>> one, zero = (Tensor.from_global([value] * 2, m.layout.mesh(None)) for value in (1.0, 0.0))
    >>> ops.layer_norm(m, one, zero).full().round(3).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    x, scale, shift = in_fractions("layer_norm", x, scale, shift)
    dims = tuple(range(begin % x.ndim, x.ndim))
    if _whole(x, dims):
        return _layer_norm_op(x, scale, shift, epsilon=epsilon, **({} if begin == -1 else {"begin": begin}))
    widened = wide(x)
    centred = subtract(widened, reduced(mean(widened, dims, keepdims=True)))
    variance = reduced(mean(multiply(centred, centred), dims, keepdims=True))
    hat = divide(centred, sqrt(add(variance, epsilon)))
    return as_type(add(multiply(hat, wide(scale)), wide(shift)), promoted(x.dtype, scale.dtype, shift.dtype))


def _rms_rule(x: Shape, scale: Shape, epsilon: float) -> Rule:
    if not 1 <= len(scale) <= len(x):
        raise RuleError(f"rms_norm needs a scale with the last dims of x, but got shapes {x} and {scale}")
    data, parameters = _norm_terms(len(x), len(scale), -len(scale))
    text = f"{data}, {parameters} -> {data}"
    return Rule.parse(text, whole=parameters, linear=((1,),), work=PASSES, backward=3)


def _inverse(x: Array, scale: Array, epsilon: float) -> tuple[Array, Shape]:
    dims = tuple(range(x.ndim - scale.ndim, x.ndim))
    power = (x * x).mean(axis=dims, keepdims=True, dtype=x.dtype)
    return 1 / np.sqrt(power + np.asarray(epsilon, x.dtype)), dims


def _rms_vjp(dy: Array, operands: Arrays, _y: Any, epsilon: float) -> tuple[Array, Array]:
    x, scale = operands
    inverse, dims = _inverse(x, scale, epsilon)
    hat, dhat = x * inverse, dy * scale
    dx = inverse * (dhat - hat * (dhat * hat).mean(axis=dims, keepdims=True, dtype=x.dtype))
    return dx, (dy * hat).sum(axis=tuple(range(x.ndim - scale.ndim)), dtype=x.dtype)


_rms_op = Op(
    "rms_norm", _rms_rule, lambda x, scale, epsilon: x * _inverse(x, scale, epsilon)[0] * scale, _rms_vjp
)


@operator(_rms_op)
def rms_norm(x: Tensor, scale: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Rows divided by their root mean square, then scaled (Zhang and Sennrich, 2019).

    Parameters:
        x: ``[..., n]``.
        epsilon: added to the mean square.

    >>> ops.rms_norm(m, Tensor.ones((2,), layout=m.layout.mesh(None))).full().round(4).tolist()
    [[1.3416, 0.4472], [0.6325, 1.2649]]
    """
    x, scale = in_fractions("rms_norm", x, scale)
    return _rms_op(x, scale, epsilon=epsilon)


def _length(x: Array, dim: Shape, epsilon: float) -> tuple[Array, Array]:
    total = (x * x).sum(axis=dim, keepdims=True, dtype=x.dtype)
    return np.sqrt(np.maximum(total, np.asarray(epsilon, x.dtype))), total <= epsilon


def _l2_vjp(dy: Array, operands: Arrays, y: Any, dim: Shape, epsilon: float) -> tuple[Array]:
    length, small = _length(operands[0], dim, epsilon)
    along = (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)
    return ((dy - y * np.where(small, np.zeros((), y.dtype), along)) / length,)


_l2_op = Op(
    "l2_normalize",
    _row_rule,
    lambda x, dim, epsilon: x / _length(x, dim, epsilon)[0],
    _l2_vjp,
    saves_result=True,
)


@operator(_l2_op)
def l2_normalize(x: Tensor, dims: Dims = -1, epsilon: float = 1e-12, *, axis: Dims = -1) -> Tensor:
    """``x`` divided by its Euclidean norm over dims (at least the root of ``epsilon``); whole numbers become fractions.

    Parameters:
        dims: over which dims the norm is; all for None. Those that are split are brought together first.
        epsilon: the least that a sum of squares is taken for, so that rows of zeros stay zeros.

    Raises:
        RuleError: complex numbers.

    >>> ops.l2_normalize(m).full().round(4).tolist()
    [[0.9487, 0.3162], [0.4472, 0.8944]]
    """
    return _l2_op(*in_fractions("l2_normalize", x), dim=normal_dims(dims, x.ndim), epsilon=epsilon)


def _rows(logits: Array, labels: Array) -> Array:
    checked_ids(labels, logits.shape[-1], what="classes")
    return _losses(logits, _at(labels))[0] if logits.size else np.zeros(labels.shape, logits.dtype)


def _losses(logits: Array, at: tuple[Array, ...]) -> tuple[Array, Any]:
    """The losses, and what their gradient takes again: exponentials, their sums, and where the labels are."""
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    picked = shifted[at]
    powers = np.exp(shifted, out=shifted)
    totals = np.add.reduce(powers, axis=-1, keepdims=True, dtype=logits.dtype)
    return np.log(totals[..., 0]) - picked, (powers, totals, at)


def _at(labels: Array) -> tuple[Array, ...]:
    """Where the labelled elements of rows are."""
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    return *np.ix_(*map(np.arange, labels.shape)), labels


def _rows_vjp(dy: Array, operands: Arrays, _losses: Any) -> tuple[Array, None]:
    """Softmax minus one at the label."""
    return _slope(dy, _softmax(operands[0], -1), _at(operands[1])), None


def _slope(dy: Array, softmax: Array, at: tuple[Array, ...]) -> Array:
    softmax[at] -= 1
    softmax *= dy[..., None]
    return softmax


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

    >>> print(f"{ops.cross_entropy(m, Tensor.from_global([0, 1], m.layout.mesh('dp'))).item():.4f}")
    0.1269
    """
    (logits,) = in_fractions("cross_entropy", logits)
    if _whole(logits, logits.ndim - 1):
        losses = _rows_op(logits, labels)
    else:
        shifted = _shifted(wide(logits), logits.ndim - 1)
        losses = subtract(log(reduced(sum_(exp(shifted), -1))), reduced(pick(shifted, labels)))
        losses = as_type(losses, logits.dtype)
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise RuleError(f"the reduction of cross_entropy is 'mean', 'sum' or 'none', not {reduction!r}")
    return mean(losses) if reduction == "mean" else sum_(losses)


def _dense(logits: Array, labels: Array) -> tuple[Array, Array]:
    logs = _log_softmax(logits, -1)
    return -(labels * logs).sum(axis=-1, dtype=logits.dtype), np.exp(logs) - labels


def _dense_vjp(dys: Sequence[Any], operands: Arrays, _results: Any) -> tuple[Array, Array]:
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

    >>> loss, slope = ops.softmax_cross_entropy(m, ops.softmax(m))
    >>> loss.shape, slope.shape
    ((2,), (2, 2))
    """
    losses, gradients = _dense_op.results(*in_fractions("softmax_cross_entropy", logits, labels))
    return losses, gradients


def _sparse(logits: Array, labels: Array) -> tuple[Array, Array]:
    checked_ids(labels, logits.shape[-1], what="classes")
    logs = _log_softmax(logits, -1)
    return np.exp(logs), -logs[_at(labels)]


def _sparse_vjp(dys: Sequence[Any], operands: Arrays, _results: Any) -> tuple[Array, None]:
    logits, labels = operands
    dloss = np.zeros((), logits.dtype) if dys[1] is None else dys[1][..., None]
    gradient = np.exp(_log_softmax(logits, -1))
    gradient[_at(labels)] -= 1
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
