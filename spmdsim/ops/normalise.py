"""Softmax, log-softmax, and norms of rows: layer norm, root mean square, Euclidean.

Softmax and layer norm are one local function where their dim is whole. Where it is split they are the same formula in
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
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import Dims, as_type, mean, normal_dims, reduced, wide
from spmdsim.ops.reduce import max as max_
from spmdsim.ops.reduce import sum as sum_
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


def softmax_rows(x: np.ndarray, dim: Dim) -> np.ndarray:
    """What :func:`softmax` is on one rank."""
    if not x.size:
        return x.copy()
    e = np.exp(x - np.maximum.reduce(x, axis=dim, keepdims=True))
    array: np.ndarray = e / np.add.reduce(e, axis=dim, keepdims=True, dtype=e.dtype)
    return array


def log_softmax_rows(x: np.ndarray, dim: Dim) -> np.ndarray:
    """What :func:`log_softmax` is on one rank."""
    if not x.size:
        return x.copy()
    shifted = x - np.maximum.reduce(x, axis=dim, keepdims=True)
    array: np.ndarray = shifted - np.log(
        np.add.reduce(np.exp(shifted), axis=dim, keepdims=True, dtype=x.dtype)
    )
    return array


_softmax_op = Op(
    "softmax",
    row_rule,
    softmax_rows,
    lambda dy, _x, y, dim: (y * (dy - (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)),),
    saves_result=True,
)
_log_softmax_op = Op(
    "log_softmax",
    row_rule,
    log_softmax_rows,
    lambda dy, _x, y, dim: (dy - np.exp(y) * dy.sum(axis=dim, keepdims=True, dtype=y.dtype),),
    saves_result=True,
)


def rows_are_whole(x: Tensor, dim: Dim) -> bool:
    """Whether no dim is split along which rows lie."""
    return all(x.layout.parts[d] == 1 for d in _dims(dim))


def shifted_rows(x: Tensor, dim: Dim) -> Tensor:
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
    if rows_are_whole(x, rows):
        return _softmax_op(x, dim=rows)
    e = exp(shifted_rows(wide(x), rows))
    return as_type(divide(e, reduced(sum_(e, rows, keepdims=True))), x.dtype)


@operator(_log_softmax_op)
def log_softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """``log(softmax(x))`` along a dim, or several together, which may be split.

    >>> ops.log_softmax(m).full().round(4).tolist()
    [[-0.1269, -2.1269], [-2.1269, -0.1269]]
    """
    (x,), rows = in_fractions("log_softmax", x), _dim(x, dim)
    if rows_are_whole(x, rows):
        return _log_softmax_op(x, dim=rows)
    shifted = shifted_rows(wide(x), rows)
    total = reduced(sum_(exp(shifted), rows, keepdims=True))
    return as_type(subtract(shifted, log(total)), x.dtype)


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


_layer_norm_op = Op(
    "layer_norm",
    _norm_rule,
    lambda x, scale, shift, epsilon, begin=-1: _standard(x, epsilon, begin)[0] * scale + shift,
    _norm_vjp,
)


@operator(_layer_norm_op)
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-5, begin: int = -1) -> Tensor:
    """Mean 0 and variance 1 over the last dims, then scaled and shifted (Ba et al., 2016).

    Args:
        x: ``[..., n]``; the normalised dims may be split.
        scale: ``[n]``, or more of the last dims of ``x``.
        shift: as ``scale``.
        epsilon: added to the variance.
        begin: the first normalised dim; only the last one if left out.

    >>> one, zero = (Tensor.from_global([value] * 2, m.layout.mesh(None)) for value in (1.0, 0.0))
    >>> ops.layer_norm(m, one, zero).full().round(3).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    x, scale, shift = in_fractions("layer_norm", x, scale, shift)
    dims = tuple(range(begin % x.ndim, x.ndim))
    if rows_are_whole(x, dims):
        return _layer_norm_op(x, scale, shift, epsilon=epsilon, **({} if begin == -1 else {"begin": begin}))
    given = wide(x)
    centred = subtract(given, reduced(mean(given, dims, keepdims=True)))
    variance = reduced(mean(multiply(centred, centred), dims, keepdims=True))
    hat = divide(centred, sqrt(add(variance, epsilon)))
    return as_type(add(multiply(hat, wide(scale)), wide(shift)), promoted(x.dtype, scale.dtype, shift.dtype))


def _rms_rule(x: tuple[int, ...], scale: tuple[int, ...], epsilon: float) -> Rule:
    if not 1 <= len(scale) <= len(x):
        raise RuleError(f"rms_norm needs a scale with the last dims of x, but got shapes {x} and {scale}")
    data, parameters = norm_terms(len(x), len(scale), -len(scale))
    return Rule.parse(
        f"{data}, {parameters} -> {data}", whole=parameters, linear=((1,),), work=PASSES, backward=3
    )


def _inverse(x: np.ndarray, scale: np.ndarray, epsilon: float) -> tuple[np.ndarray, tuple[int, ...]]:
    dims = tuple(range(x.ndim - scale.ndim, x.ndim))
    power = (x * x).mean(axis=dims, keepdims=True, dtype=x.dtype)
    return 1 / np.sqrt(power + np.asarray(epsilon, x.dtype)), dims


def _rms_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
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

    Args:
        x: ``[..., n]``.
        scale: ``[n]``, or more of the last dims of ``x``.
        epsilon: added to the mean square.

    >>> ops.rms_norm(m, Tensor.ones((2,), layout=m.layout.mesh(None))).full().round(4).tolist()
    [[1.3416, 0.4472], [0.6325, 1.2649]]
    """
    x, scale = in_fractions("rms_norm", x, scale)
    return _rms_op(x, scale, epsilon=epsilon)


def _length(x: np.ndarray, dim: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    total = (x * x).sum(axis=dim, keepdims=True, dtype=x.dtype)
    small = total <= epsilon
    return np.sqrt(np.maximum(total, np.asarray(epsilon, x.dtype))), small


def _l2_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], y: Any, dim: tuple[int, ...], epsilon: float
) -> tuple[np.ndarray]:
    length, small = _length(operands[0], dim, epsilon)
    along = (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)
    return ((dy - y * np.where(small, np.zeros((), y.dtype), along)) / length,)


_l2_op = Op(
    "l2_normalize",
    row_rule,
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
