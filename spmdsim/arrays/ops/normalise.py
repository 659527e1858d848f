"""Functions of rows: softmax, layer norm, root mean square, Euclidean norm.

If the dimension is not split, each is one local function. If it is split, smaller operators compute the formula.
Their reductions are then the collectives: a maximum and a sum per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, in_fractions
from spmdsim.arrays.ops.dim_reductions import Dims, as_type, mean, normal_dims, reduced, wide
from spmdsim.arrays.ops.dim_reductions import max as max_
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, divide, exp, log, multiply, sqrt, subtract
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import promote_types

__all__ = ["l2_normalize", "layer_norm", "log_softmax", "rms_norm", "softmax"]

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


def row_softmax(x: Array, dim: Dim) -> Array:
    if not x.size:
        return x.copy()
    e = np.exp(x - np.maximum.reduce(x, axis=dim, keepdims=True))
    return np.asarray(e / np.add.reduce(e, axis=dim, keepdims=True, dtype=e.dtype))


def row_log_softmax(x: Array, dim: Dim) -> Array:
    if not x.size:
        return x.copy()
    shifted = x - np.maximum.reduce(x, axis=dim, keepdims=True)
    totals = np.add.reduce(np.exp(shifted), axis=dim, keepdims=True, dtype=x.dtype)
    return np.asarray(shifted - np.log(totals))


_softmax_op = Op(
    "softmax",
    _row_rule,
    row_softmax,
    lambda dy, _x, y, dim: (y * (dy - (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)),),
    saves_result=True,
    unseen=(0,),
)
_log_softmax_op = Op(
    "log_softmax",
    _row_rule,
    row_log_softmax,
    lambda dy, _x, y, dim: (dy - np.exp(y) * dy.sum(axis=dim, keepdims=True, dtype=y.dtype),),
    saves_result=True,
    unseen=(0,),
)


def is_whole(x: Tensor, dim: Dim) -> bool:
    return all(x.layout.cuts[d] == 1 for d in _dims(dim))


def shift_rows(x: Tensor, dim: Dim) -> Tensor:
    """Rows minus their largest element: the shift changes nothing but the range, so it has no gradient."""
    whole = reduced(x)
    return subtract(whole, max_(whole.detach(), dim, keepdims=True))


@operator(_softmax_op)
def softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """Compute ``exp(x) / sum(exp(x))`` along a dimension, or several together.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.softmax(m).full().round(4).tolist()
    [[0.8808, 0.1192], [0.1192, 0.8808]]
    """
    (x,), rows = in_fractions("softmax", x), _dim(x, dim)
    if is_whole(x, rows):
        return _softmax_op(x, dim=rows)
    e = exp(shift_rows(wide(x), rows))
    return as_type(divide(e, reduced(sum_(e, rows, keepdims=True))), x.dtype)


@operator(_log_softmax_op)
def log_softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """Compute ``log(softmax(x))`` along a dimension, or several together.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.log_softmax(m).full().round(4).tolist()
    [[-0.1269, -2.1269], [-2.1269, -0.1269]]
    """
    (x,), rows = in_fractions("log_softmax", x), _dim(x, dim)
    if is_whole(x, rows):
        return _log_softmax_op(x, dim=rows)
    shifted = shift_rows(wide(x), rows)
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
    """Normalise the last dimensions to mean 0 and variance 1, then scale and shift them.

    Source: Ba et al., 2016.

    Args:
        x: ``[..., n]``; the normalised dims may be split.
        scale: factors ``[n]``, or of the shape of more of the last dimensions of ``x``.
        shift: as ``scale``.
        epsilon: added to the variance.
        begin: the first normalised dim; only the last one if left out.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> one, zero = (Tensor.from_global([value] * 2, m.layout.mesh(None)) for value in (1.0, 0.0))
    >>> ops.layer_norm(m, one, zero).full().round(3).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    x, scale, shift = in_fractions("layer_norm", x, scale, shift)
    dims = tuple(range(begin % x.ndim, x.ndim))
    if is_whole(x, dims):
        return _layer_norm_op(x, scale, shift, epsilon=epsilon, **({} if begin == -1 else {"begin": begin}))
    widened = wide(x)
    centred = subtract(widened, reduced(mean(widened, dims, keepdims=True)))
    variance = reduced(mean(multiply(centred, centred), dims, keepdims=True))
    hat = divide(centred, sqrt(add(variance, epsilon)))
    return as_type(
        add(multiply(hat, wide(scale)), wide(shift)), promote_types(x.dtype, scale.dtype, shift.dtype)
    )


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
    """Divide rows by their root mean square, then scale them.

    Source: Zhang and Sennrich, 2019.

    Args:
        x: ``[..., n]``.
        scale: factors ``[n]``, or of the shape of more of the last dimensions of ``x``.
        epsilon: added to the mean square.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
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
    """Divide ``x`` by its Euclidean norm over dimensions.

    The norm is at least the root of ``epsilon``. Integers become floats.

    Args:
        x: the tensor.
        dims: over which dims the norm is; all for None. Those that are split are brought together first.
        epsilon: the least that a sum of squares is taken for, so that rows of zeros stay zeros.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice, complex numbers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.l2_normalize(m).full().round(4).tolist()
    [[0.9487, 0.3162], [0.4472, 0.8944]]
    """
    return _l2_op(*in_fractions("l2_normalize", x), dim=normal_dims(dims, x.ndim), epsilon=epsilon)
