"""Functions of rows: softmax, layer norm, root mean square, Euclidean norm.

If the dimension is not split, each is one local function. If it is split, smaller operators compute the formula.
Their reductions are then the collectives: a maximum and a sum per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, convert_integers_to_floats
from spmdsim.arrays.ops.dim_reductions import finish_reductions, mean, normalise_dims, to_sum_type, to_type
from spmdsim.arrays.ops.dim_reductions import max as max_
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, divide, exp, log, multiply, sqrt, subtract
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.reduction_methods import Dims
from spmdsim.core import PASSES, Rule
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import promote_types

__all__ = ["l2_normalize", "layer_norm", "log_softmax", "rms_norm", "softmax"]

#: One dim, or several that are normalised together.
Dim = int | tuple[int, ...]


def _to_tuple(dim: Dim) -> Shape:
    """Return ``dim`` as a tuple."""
    return (dim,) if isinstance(dim, int) else dim


def _row_rule(shape: Shape, dim: Dim, **_: Any) -> Rule:
    """Return the rule of a function of rows, in which the dims ``dim`` must not be split.

    For shape (2, 3) and dim 1 it is "d0 w1 -> d0 w1".
    """
    rows = _to_tuple(dim)
    names = [f"w{d}" if d in rows else f"d{d}" for d in range(len(shape))]
    text = " ".join(names)
    return Rule.parse(f"{text} -> {text}", whole=" ".join(n for n in names if n[0] == "w"), work=PASSES)


def row_softmax(x: Array, dim: Dim) -> Array:
    """Compute softmax of an array along ``dim``; subtracting the maximum avoids overflow."""
    if not x.size:
        return x.copy()
    e = np.exp(x - np.maximum.reduce(x, axis=dim, keepdims=True))
    return np.asarray(e / np.add.reduce(e, axis=dim, keepdims=True, dtype=e.dtype))


def row_log_softmax(x: Array, dim: Dim) -> Array:
    """Compute the logarithm of softmax of an array along ``dim``, without overflow.

    The array is floating; the result has its shape and type. An empty array is copied.

    Args:
        x: one rank's block, with all entries of ``dim``.
        dim: one dimension, or several that are normalised together.
    """
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


def is_unsplit(x: Tensor, dim: Dim) -> bool:
    """Return True if no dimension of ``dim`` is split."""
    return all(x.layout.cuts[d] == 1 for d in _to_tuple(dim))


def shift_rows(x: Tensor, dim: Dim) -> Tensor:
    """Subtract the largest element of each row.

    The shift only limits the range of numbers, so no gradient passes through it.
    """
    values = finish_reductions(x)
    return subtract(values, max_(values.detach(), dim, keepdims=True))


@operator(_softmax_op)
def softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """Compute ``exp(x) / sum(exp(x))`` along a dimension, or several together.

    If the dimension is split, a maximum and a sum per row are reduced; rows are not gathered.

    Args:
        x: the tensor.
        dim: the dimension, or several; negative numbers count from the end; None: all. They may be split.
        axis: another name of ``dim``.

    Returns:
        A tensor in the shape of ``x``, split as ``x``, without pending reductions; integers become floats.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, or ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.softmax(m).full().round(4).tolist()
    [[0.8808, 0.1192], [0.1192, 0.8808]]
    """
    (x,), rows = convert_integers_to_floats("softmax", x), _normalise_dim(x, dim)
    if is_unsplit(x, rows):
        return _softmax_op(x, dim=rows)
    powers = exp(shift_rows(to_sum_type(x), rows))
    return to_type(divide(powers, finish_reductions(sum_(powers, rows, keepdims=True))), x.dtype)


@operator(_log_softmax_op)
def log_softmax(x: Tensor, dim: Dims = -1, *, axis: Dims = -1) -> Tensor:
    """Compute ``log(softmax(x))`` along a dimension, or several together.

    If the dimension is split, a maximum and a sum per row are reduced; rows are not gathered.

    Args:
        x: the tensor.
        dim: the dimension, or several; negative numbers count from the end; None: all. They may be split.
        axis: another name of ``dim``.

    Returns:
        A tensor in the shape of ``x``, split as ``x``, without pending reductions; integers become floats.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, or ``x`` is complex.
        UsageTypeError: If a dimension is no integer.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.log_softmax(m).full().round(4).tolist()
    [[-0.1269, -2.1269], [-2.1269, -0.1269]]
    """
    (x,) = convert_integers_to_floats("log_softmax", x)
    rows = _normalise_dim(x, dim)
    if is_unsplit(x, rows):
        return _log_softmax_op(x, dim=rows)
    shifted = shift_rows(to_sum_type(x), rows)
    total = finish_reductions(sum_(exp(shifted), rows, keepdims=True))
    return to_type(subtract(shifted, log(total)), x.dtype)


def _normalise_dim(x: Tensor, dim: Dims) -> Dim:
    """Return dimensions as non-negative numbers: an int for an int, else a tuple."""
    rows = normalise_dims(dim, x.ndim)
    return rows[0] if isinstance(dim, int) else rows


def _format_norm_terms(ndim: int, parameters: int, begin_norm: int) -> tuple[str, str]:
    """Return the rule terms of a tensor and of its parameters, which have its last dims.

    Dims from ``begin_norm`` on have names that begin with "w"; they must not be split.

    Args:
        ndim: number of dims of the tensor.
        parameters: number of dims of the parameters.
        begin_norm: the first normalised dim; may be negative.
    """
    first = begin_norm % ndim
    names = [f"w{d}" if d >= first else f"d{d}" for d in range(ndim)]
    return " ".join(names), " ".join(names[ndim - parameters :])


def _norm_rule(x: Shape, scale: Shape, shift: Shape, epsilon: float, begin: int = -1) -> Rule:
    """Return the rule of ``layer_norm``, in which the normalised dims must not be split.

    For ``x`` of two dims and a scale of one it is "d0 w1, w1, w1 -> d0 w1".

    Args:
        x: the shape of the tensor.
        scale: the shape of the factors.
        shift: the shape of the added numbers; not used: the rule compares it with ``scale``.
        epsilon: not used: the interface has it.
        begin: the first normalised dim; may be negative.

    Raises:
        RuleError: If ``begin`` is out of range, or ``scale`` has fewer dims than are normalised or more than ``x``.
    """
    is_begin_valid = -len(x) <= begin < len(x)
    if not is_begin_valid or not len(x) - begin % len(x) <= len(scale) <= len(x):
        raise RuleError(
            f"layer_norm from dim {begin} needs a scale with at least the dims it normalises, but x has shape {x} "
            f"and the scale {scale}"
        )
    data, parameters = _format_norm_terms(len(x), len(scale), begin)
    normalised_dims = " ".join(n for n in data.split() if n[0] == "w")
    text = f"{data}, {parameters}, {parameters} -> {data}"
    return Rule.parse(text, whole=normalised_dims, linear=((1, 2),), work=PASSES, backward=3)


def _standardise(x: Array, epsilon: float, begin: int) -> tuple[Array, Array]:
    """Return rows with mean 0 and variance 1, and the factor of the centred rows.

    The factor is ``1 / sqrt(variance + epsilon)``, with size 1 in the normalised dims. The variance is divided by the
    number of entries.

    Args:
        x: one rank's block, floating, with all entries of the normalised dims.
        epsilon: added to the variance.
        begin: the first normalised dim; may be negative.
    """
    dims = tuple(range(begin % x.ndim, x.ndim))
    centred = x - x.mean(axis=dims, keepdims=True, dtype=x.dtype)
    variance = (centred * centred).mean(axis=dims, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon, x.dtype))
    return centred * inverse, inverse


def _norm_vjp(
    dy: Array, operands: Arrays, _y: Any, epsilon: float, begin: int = -1
) -> tuple[Array, Array, Array]:
    """Return the gradients of a layer norm by ``x``, scale and shift, of one rank's block.

    With ``r = 1 / sqrt(variance + epsilon)``, ``h = (x - mean) * r``, ``g = dy * scale``, and means over the
    normalised dims, they are:

    - by ``x``: ``r * (g - mean(g) - h * mean(g * h))``;
    - by scale: ``dy * h``, and by shift: ``dy``, both summed over the dims of ``x`` that scale and shift lack.

    Args:
        dy: the gradient of the result.
        operands: ``x``, scale and shift; the shift is not read.
        _y: the result; not used.
        epsilon: added to the variance.
        begin: the first normalised dim; may be negative.
    """
    x, scale, _ = operands
    hat, inverse = _standardise(x, epsilon, begin)
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
    lambda x, scale, shift, epsilon, begin=-1: _standardise(x, epsilon, begin)[0] * scale + shift,
    _norm_vjp,
    unseen=(2,),
)


@operator(_layer_norm_op)
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-5, begin: int = -1) -> Tensor:
    """Normalise the last dimensions to mean 0 and variance 1, then scale and shift them.

    The result is ``(x - mean) / sqrt(variance + epsilon) * scale + shift`` (Ba et al., 2016). If a normalised
    dimension is split, ranks reduce two means per row; they do not gather rows.

    Args:
        x: ``[..., n]``; the normalised dims may be split.
        scale: factors in the shape of the last dims of ``x``, such as ``[n]``; it must have all normalised dims and
            may have more.
        shift: added numbers, in the shape of ``scale``.
        epsilon: added to the variance, which is divided by the number of entries.
        begin: the first normalised dimension; all dimensions from it on are normalised. -1: only the last one.

    Returns:
        A tensor in the shape of ``x``, in the type to which all three are promoted; integers become floats.

    Raises:
        RuleError: If the shapes do not fit, ``begin`` is out of range, or an operand is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> one, zero = (Tensor.from_global([value] * 2, m.layout.mesh(None)) for value in (1.0, 0.0))
    >>> ops.layer_norm(m, one, zero).full().round(3).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    x, scale, shift = convert_integers_to_floats("layer_norm", x, scale, shift)
    params: dict[str, Any] = {"epsilon": epsilon, **({} if begin == -1 else {"begin": begin})}
    dims = tuple(range(begin % x.ndim, x.ndim)) if x.ndim else ()
    if is_unsplit(x, dims):
        return _layer_norm_op(x, scale, shift, **params)
    # Raise the errors of wrong shapes, which the formula below would broadcast.
    _layer_norm_op.bind((x.shape, scale.shape, shift.shape), params)
    widened = to_sum_type(x)
    centred = subtract(widened, finish_reductions(mean(widened, dims, keepdims=True)))
    variance = finish_reductions(mean(multiply(centred, centred), dims, keepdims=True))
    hat = divide(centred, sqrt(add(variance, epsilon)))
    return to_type(
        add(multiply(hat, to_sum_type(scale)), to_sum_type(shift)),
        promote_types(x.dtype, scale.dtype, shift.dtype),
    )


def _rms_rule(x: Shape, scale: Shape, epsilon: float) -> Rule:
    """Return the rule of ``rms_norm``, in which the dims of ``scale`` must not be split.

    For ``x`` of two dims and a scale of one it is "d0 w1, w1 -> d0 w1".
    """
    if not 1 <= len(scale) <= len(x):
        raise RuleError(f"rms_norm needs a scale with the last dims of x, but got shapes {x} and {scale}")
    data, parameters = _format_norm_terms(len(x), len(scale), -len(scale))
    text = f"{data}, {parameters} -> {data}"
    return Rule.parse(text, whole=parameters, linear=((1,),), work=PASSES, backward=3)


def _compute_inverse_rms(x: Array, scale: Array, epsilon: float) -> tuple[Array, Shape]:
    """Return the inverse of the root mean square of each row, and the dims of the rows.

    The rows are the last dims, as many as ``scale`` has.
    """
    dims = tuple(range(x.ndim - scale.ndim, x.ndim))
    power = (x * x).mean(axis=dims, keepdims=True, dtype=x.dtype)
    return 1 / np.sqrt(power + np.asarray(epsilon, x.dtype)), dims


def _rms_vjp(dy: Array, operands: Arrays, _y: Any, epsilon: float) -> tuple[Array, Array]:
    """Return the gradients of ``x`` and of the scale, for one rank's block.

    The gradient of the scale is summed over the dims of ``x`` that the scale lacks.

    Args:
        dy: the gradient of the result.
        operands: ``x`` and scale.
        _y: the result; not used.
        epsilon: added to the mean of the squares.
    """
    x, scale = operands
    inverse, dims = _compute_inverse_rms(x, scale, epsilon)
    normalised, scaled_dy = x * inverse, dy * scale
    projection = (scaled_dy * normalised).mean(axis=dims, keepdims=True, dtype=x.dtype)
    dx = inverse * (scaled_dy - normalised * projection)
    return dx, (dy * normalised).sum(axis=tuple(range(x.ndim - scale.ndim)), dtype=x.dtype)


_rms_op = Op(
    "rms_norm",
    _rms_rule,
    lambda x, scale, epsilon: x * _compute_inverse_rms(x, scale, epsilon)[0] * scale,
    _rms_vjp,
)


@operator(_rms_op)
def rms_norm(x: Tensor, scale: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Divide rows by their root mean square, then multiply them by factors.

    Source: Zhang and Sennrich, 2019.

    Args:
        x: ``[..., n]``.
        scale: factors ``[n]``, or of the shape of more of the last dimensions of ``x``.
        epsilon: added to the mean square.

    Returns:
        A tensor in the shape of ``x``; integers become floats. Split dimensions of ``scale`` are gathered first.

    Raises:
        RuleError: If the shapes do not fit, or an operand is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.rms_norm(m, Tensor.ones((2,), layout=m.layout.mesh(None))).full().round(4).tolist()
    [[1.3416, 0.4472], [0.6325, 1.2649]]
    """
    x, scale = convert_integers_to_floats("rms_norm", x, scale)
    return _rms_op(x, scale, epsilon=epsilon)


def _compute_row_norms(x: Array, dim: Shape, epsilon: float) -> tuple[Array, Array]:
    """Return the norm of rows, and True for rows whose sum of squares was replaced by ``epsilon``."""
    total = (x * x).sum(axis=dim, keepdims=True, dtype=x.dtype)
    return np.sqrt(np.maximum(total, np.asarray(epsilon, x.dtype))), total <= epsilon


def _l2_vjp(dy: Array, operands: Arrays, y: Any, dim: Shape, epsilon: float) -> tuple[Array]:
    """Return the gradient of ``x``; the norm of rows below ``epsilon`` counts as constant."""
    length, is_small = _compute_row_norms(operands[0], dim, epsilon)
    projection = (dy * y).sum(axis=dim, keepdims=True, dtype=y.dtype)
    return ((dy - y * np.where(is_small, np.zeros((), y.dtype), projection)) / length,)


_l2_op = Op(
    "l2_normalize",
    _row_rule,
    lambda x, dim, epsilon: x / _compute_row_norms(x, dim, epsilon)[0],
    _l2_vjp,
    saves_result=True,
)


@operator(_l2_op)
def l2_normalize(x: Tensor, dims: Dims = -1, epsilon: float = 1e-12, *, axis: Dims = -1) -> Tensor:
    """Divide ``x`` by its Euclidean norm over dimensions; integers become floats.

    Args:
        x: the tensor.
        dims: the dimensions of the norm; None: all. Split ones are gathered first.
        epsilon: least sum of squares, so the norm is at least its root and rows of zeros stay zeros.
        axis: another name of ``dims``.

    Returns:
        A tensor in the shape of ``x``.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, or if ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.l2_normalize(m).full().round(4).tolist()
    [[0.9487, 0.3162], [0.4472, 0.8944]]
    """
    return _l2_op(
        *convert_integers_to_floats("l2_normalize", x), dim=normalise_dims(dims, x.ndim), epsilon=epsilon
    )
