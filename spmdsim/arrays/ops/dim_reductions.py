"""Reductions over dimensions. A split dimension leaves a pending reduction of the operator's kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import normalise_dim, parse_flag
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, bool_type, cast
from spmdsim.arrays.ops.elementwise import divide, equal, multiply, not_equal, where
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.reduction_methods import Dims
from spmdsim.core import Rule
from spmdsim.core.elements import identity
from spmdsim.core.notation.layouts import as_integers
from spmdsim.core.operator import apply
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import accumulator, check_ordered, number_type
from spmdsim.worlds.pool import take_buffer

__all__ = ["all", "any", "count_nonzero", "max", "mean", "min", "prod", "sum"]

#: By number of dims, all of them.
_ALL_DIMS = tuple([tuple(range(ndim)) for ndim in range(8)])


def normalise_dims(dims: Dims, ndim: int) -> Shape:
    """Return dimensions as sorted non-negative numbers; None means all, () means none.

    Args:
        dims: one dimension or several; negative ones count from the end.
        ndim: the number of dimensions of the tensor.

    Raises:
        RuleError: If a dimension occurs twice or is out of range.
        UsageTypeError: If a dimension is no integer.
    """
    if dims is None:
        return _ALL_DIMS[ndim] if ndim < len(_ALL_DIMS) else tuple(range(ndim))
    if isinstance(dims, (int, np.integer)):
        return (normalise_dim(dims, ndim),)
    # A text is one wrong dimension, so that the error names all of it instead of its letters.
    numbers = as_integers((dims,) if isinstance(dims, str) else dims, "dims")
    sorted_dims = tuple(sorted(normalise_dim(dim, ndim) for dim in numbers))
    if len(set(sorted_dims)) != len(sorted_dims):
        raise RuleError(f"a dim is given twice in {numbers}")
    return sorted_dims


def to_sum_type(x: Tensor) -> Tensor:
    """Convert a tensor to the type in which sums are accumulated: float32 for 16-bit floats.

    Other types stay. Functions that call several operators begin with this conversion, so that they round once, at the
    end.
    """
    return to_type(x, accumulator("sum", x.dtype))


def to_type(x: Tensor, dtype: np.dtype) -> Tensor:
    """Return the tensor in an element type; a tensor that has it already is returned itself."""
    return x if x.dtype == dtype else cast(x, dtype)


def finish_reductions(x: Tensor) -> Tensor:
    """Finish the pending reductions of a tensor."""
    return x.to(x.layout.reduced)


def _make_rule(op: str) -> Callable[..., Rule]:
    """Return a function that returns the rule of a reduction from shape, dims and ``keepdims``.

    For shape (2, 3) and dims (1,) the rule is "d0 d1 -> d0", with ``keepdims`` "d0 d1 -> d0 1".

    Args:
        op: the reduction, such as "sum". If a reduced dimension is split, it is pending in the result: each rank has
            the result of its own elements. Operands for which it is already pending are accepted, by "sum" also those
            for which an average is pending.
    """

    def rule(shape: Shape, dims: Shape, keepdims: bool) -> Rule:
        """Return the rule: reduced dims become 1 with ``keepdims``, else they vanish."""
        names = [f"d{i}" for i in range(len(shape))]
        if parse_flag("keepdims", keepdims):
            out = ["1" if i in dims else n for i, n in enumerate(names)]
        else:
            out = [n for i, n in enumerate(names) if i not in dims]
        text = f"{' '.join(names)} -> {' '.join(out)}"
        return Rule.parse(text, reduce=op, linear="each", passes=("sum", "avg") if op == "sum" else (op,))

    return rule


def _declare_reduction(name: str, dtype: Callable[..., np.dtype], **more: Any) -> Op:
    """Return the operator of a reduction that NumPy has under this name.

    The operator has the parameters ``dims`` and ``keepdims``. A rank without elements contributes the number that
    changes no result (the identity), such as 1 for "prod".

    Args:
        name: the operator and the NumPy function.
        dtype: computes the result type from the operand's type.
        more: further arguments of :class:`Op`.
    """
    function = getattr(np, name)

    def forward(x: Array, dims: Shape, keepdims: bool) -> Array:
        """Reduce this rank's block by NumPy's function; an empty block gives the identity.

        The result of an empty block has the shape without the reduced dims, or with size 1 for them.
        """
        if not x.size:
            shape = [1 if i in dims else n for i, n in enumerate(x.shape) if keepdims or i not in dims]
            kind = function(np.ones(1, x.dtype)).dtype
            return np.full(shape, identity(name, kind), kind)
        return np.asarray(getattr(x, name)(axis=dims, keepdims=keepdims))

    return Op(name, _make_rule(name), forward, dtype=dtype, **more)


def _sum_vjp(dy: Array, operands: Arrays, _y: Any, dims: Shape, keepdims: bool) -> tuple[Array]:
    """Return the gradient of a sum, in a tuple: ``dy`` repeated over the reduced dimensions.

    Args:
        dy: the gradient of the sum.
        operands: the summed block; only its shape is read.
        _y: the sum; not used.
        dims: the reduced dimensions.
        keepdims: True if ``dy`` has them with size 1.
    """
    shape = operands[0].shape
    repeated = dy if keepdims else dy.reshape([1 if i in dims else n for i, n in enumerate(shape)])
    gradient = take_buffer(shape, dy.dtype)
    gradient[...] = (
        repeated  # Faster than numpy.broadcast_to for small arrays, which makes ten times as many calls.
    )
    return (gradient,)


@cache
def _find_sum_type(dtype: np.dtype) -> np.dtype:
    """Return NumPy's type of a sum: 64 bits for integers and bools."""
    kind: np.dtype = np.sum(np.ones(1, dtype)).dtype
    return kind


def _compute_mean_weight(count: int) -> float:
    """Return the weight of each of ``count`` elements in their mean; nan if there are none, as in NumPy."""
    return 1 / count if count else math.nan


def _mean_vjp(dy: Array, operands: Arrays, y: Any, dims: Shape, keepdims: bool, count: int) -> tuple[Array]:
    """Return the gradient of a mean: ``dy / count``, repeated over the reduced dimensions."""
    return _sum_vjp(dy * dy.dtype.type(_compute_mean_weight(count)), operands, y, dims, keepdims)


_mean_op = Op(
    "mean",
    lambda shape, dims, keepdims, count: _make_rule("sum")(shape, dims, keepdims),
    lambda x, dims, keepdims, count: np.asarray(
        np.add.reduce(x, axis=dims, keepdims=keepdims, dtype=x.dtype)
        * x.dtype.type(_compute_mean_weight(count))
    ),
    _mean_vjp,
)


def _sum(x: Array, dims: Shape, keepdims: Any) -> Array:
    """Sum this rank's block in the type of the result."""
    return np.asarray(np.add.reduce(x, dims, _find_sum_type(x.dtype), keepdims=keepdims))


_sum_op = Op(
    "sum",
    _make_rule("sum"),
    _sum,
    _sum_vjp,
    dtype=lambda d, **_: _find_sum_type(d),
)
_max_op = _declare_reduction("max", lambda d, **_: check_ordered(d, "max"), finish=True)
_min_op = _declare_reduction("min", lambda d, **_: check_ordered(d, "min"), finish=True)
_prod_op = _declare_reduction("prod", lambda d, **_: np.prod(np.ones(1, d)).dtype)
_all_op, _any_op = _declare_reduction("all", bool_type), _declare_reduction("any", bool_type)


def _convert_type(x: Tensor, dtype: DTypeLike | None) -> Tensor:
    """Convert a tensor to ``dtype``; None keeps its element type."""
    return x if dtype is None else to_type(x, number_type(dtype, "a tensor cannot have"))


@operator(_sum_op)
def sum(
    x: Tensor, dims: Dims = None, keepdims: bool = False, *, dtype: DTypeLike | None = None, axis: Dims = None
) -> Tensor:
    """Sum over dimensions, in another type if ``dtype`` is given.

    The result is partial over the axes of split dimensions until its values are needed.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        dtype: element type of the result; by default 64-bit integers for integers and truth values, else that of
            ``x``.
        axis: another name of ``dims``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them; partial over their axes.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.
        InputError: If tensors do not support ``dtype``.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.sum(x, axis=0)
    >>> y.layout.placement_text(), y.full().tolist()
    ('P(sum)', [9, 6, 6])
    """
    params = {"dims": normalise_dims(dims, len(x.meta.shape)), "keepdims": keepdims}
    if dtype is None:
        return apply(_sum_op, (x,), params)  # type: ignore[no-any-return]
    return _convert_type(apply(_sum_op, (_convert_type(x, dtype),), params), dtype)


@operator(_mean_op)
def mean(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Compute the mean over dimensions: the sum divided by the global number of elements.

    The mean of no elements is nan. Integers give float64. The result is partial over the axes of split dimensions.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them; partial over their axes.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.mean(x, axis=1).full().tolist()
    [2.0, 5.0]
    """
    over = normalise_dims(dims, x.ndim)
    count = math.prod(x.shape[d] for d in over)
    floating = x if x.dtype.kind in "fcV" else cast(x, np.float64)
    return _mean_op(floating, dims=over, keepdims=keepdims, count=count)


def _reduce_to_extreme(op: Op, x: Tensor, dims: Dims, keepdims: bool) -> Tensor:
    """Reduce a tensor by ``max`` or ``min``; equal extremes share the gradient equally.

    The gradient is ``dy`` times the slope: 1 / k at each of the k elements that equal the extreme, and 0 at the
    others. The slopes of max([3, 1, 3]), for example, are [0.5, 0, 0.5]. They are computed at once if ``x`` requires
    a gradient. If a reduced dimension is split, the ranks exchange their extremes before the result is returned.

    Args:
        op: the operator.
        x: the tensor.
        dims: one dimension or several; None: all.
        keepdims: keep reduced dimensions with size 1.

    Raises:
        RuleError: If there are no elements to reduce, a dimension is out of range or occurs twice, or ``x`` is
            complex.
    """
    shape = x.meta.shape
    over = normalise_dims(dims, len(shape))
    if 0 in shape and 0 in [shape[d] for d in over]:
        raise RuleError(f"{op.name} of no elements is undefined: shape {shape}, dims {over}")
    params = {"dims": over, "keepdims": keepdims}
    if not x._tracked:
        return apply(op, (x,), params)  # type: ignore[no-any-return]
    result: Tensor = apply(op, (x.detach(),), params)
    # The gradient is that of a weighted sum over the elements that attain the extreme, in equal parts.
    top = result if keepdims else op(x.detach(), dims=over, keepdims=True)
    mask = cast(equal(x.detach(), top), accumulator("sum", x.dtype))
    weight = to_type(divide(mask, finish_reductions(sum(mask, over, keepdims=True))), x.dtype)
    return attach_gradient(result, x, weight, over, keepdims)


def attach_gradient(result: Tensor, x: Tensor, slope: Tensor, dims: Shape, keepdims: bool) -> Tensor:
    """Give ``result`` the gradient of ``sum(x * slope, dims)``, whatever operator computed it.

    Args:
        result: the tensor that receives the gradient; it is changed in place and returned.
        x: the operand, which requires a gradient.
        slope: the derivative of the result with respect to each element of ``x``, in the shape of ``x``. No gradient
            flows through it.
        dims: the reduced dimensions.
        keepdims: True if the result keeps reduced dimensions with size 1.
    """
    # Of the product only the gradient counts: an infinity times 0 is nothing to warn of.
    with np.errstate(invalid="ignore"):
        path = sum(multiply(x, slope), dims, keepdims).to(result.layout)
    result.requires_grad, result.node, result.output = True, path.node, path.output
    return result


@operator(_max_op)
def max(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the largest element over dimensions.

    The result has no pending reduction: if a dimension is split, a reduction of the result's size follows. The
    gradient is divided equally among all elements that attain the maximum.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them, in the type of ``x``.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, if there are no elements, or if ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.max(x, axis=1).full().tolist()
    [3, 6]
    """
    return _reduce_to_extreme(_max_op, x, dims, keepdims)


@operator(_min_op)
def min(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the smallest element over dimensions.

    The result has no pending reduction: if a dimension is split, a reduction of the result's size follows. The
    gradient is divided equally among all elements that attain the minimum.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them, in the type of ``x``.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, if there are no elements, or if ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.min(x, axis=1).full().tolist()
    [1, 4]
    """
    return _reduce_to_extreme(_min_op, x, dims, keepdims)


@operator(_prod_op)
def prod(
    x: Tensor, dims: Dims = None, keepdims: bool = False, *, dtype: DTypeLike | None = None, axis: Dims = None
) -> Tensor:
    """Multiply elements over dimensions; the product of no elements is 1.

    The gradient of an element is the product of the others, also if elements are zero. It is computed from the values;
    it has no gradient itself.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        dtype: element type of factors and result. None: 64-bit integers for integers and truth values, else that of
            ``x``.
        axis: another name of ``dims``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them. It is partial over their axes, except if
        ``x`` requires a gradient.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.
        InputError: If tensors do not support ``dtype``.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.prod(x, axis=1).full().tolist()
    [6, 120]
    """
    x = _convert_type(x, dtype)
    over = normalise_dims(dims, x.ndim)
    values = x.detach()
    result = _prod_op(values, dims=over, keepdims=keepdims)
    if not x.requires_grad:
        return _convert_type(result, dtype)
    result = finish_reductions(result)
    zero = equal(values, 0)
    safe = where(zero, 1, to_sum_type(values))
    product_of_others = finish_reductions(_prod_op(safe, dims=over, keepdims=True))
    zeros = finish_reductions(sum(cast(zero, safe.dtype), over, keepdims=True))
    # Divide by the element if no factor is zero. A single zero has the product of all others; all else has 0.
    others = where(
        zero,
        where(equal(zeros, 1), product_of_others, 0),
        where(equal(zeros, 0), divide(product_of_others, safe), 0),
    )
    return attach_gradient(result, x, to_type(others, x.dtype), over, keepdims)


@operator()
def count_nonzero(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Count the elements over dimensions that are not zero.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Returns:
        int64 counts without the reduced dimensions, or with size 1 for them; partial over their axes.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.count_nonzero(x - 3, axis=1).full().tolist()
    [2, 3]
    """
    return sum(cast(not_equal(x.detach(), 0), np.int64), dims, keepdims)


@operator(_all_op)
def all(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return True where all elements over dimensions are true, or if none exist.

    Numbers are true unless they are 0.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Returns:
        A bool tensor without the reduced dimensions, or with size 1 for them. It is partial over their axes: the
        pending reduction is a logical and.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.all(x > 1, axis=1).full().tolist()
    [False, True]
    """
    return _all_op(x.detach(), dims=normalise_dims(dims, x.ndim), keepdims=keepdims)


@operator(_any_op)
def any(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return True where any element over dimensions is true; False if none exist.

    Numbers are true unless they are 0.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Returns:
        A bool tensor without the reduced dimensions, or with size 1 for them. It is partial over their axes: the
        pending reduction is a logical or.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.any(x > 4, axis=1).full().tolist()
    [False, True]
    """
    return _any_op(x.detach(), dims=normalise_dims(dims, x.ndim), keepdims=keepdims)
