"""Reductions over dims. A split dim leaves a pending reduction of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import counted_dim, flag
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, boolean, cast
from spmdsim.arrays.ops.elementwise import divide, equal, multiply, not_equal, where
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import Rule
from spmdsim.core.elements import identity
from spmdsim.core.notation.layouts import as_integers
from spmdsim.core.operator import apply
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import accumulator, check_ordered, number_type
from spmdsim.worlds.pool import empty

__all__ = ["all", "any", "count_nonzero", "max", "mean", "min", "prod", "sum"]

Dims = int | Sequence[int] | None
#: By number of dims, all of them.
_EVERY = tuple([tuple(range(ndim)) for ndim in range(8)])


def normal_dims(dims: Dims, ndim: int) -> Shape:
    """Non-negative, sorted dims; all of them for None."""
    if dims is None:
        return _EVERY[ndim] if ndim < len(_EVERY) else tuple(range(ndim))
    if isinstance(dims, (int, np.integer)):
        return (counted_dim(dims, ndim),)
    numbers = as_integers((dims,) if isinstance(dims, str) else dims, "dims")
    counted = tuple(sorted(counted_dim(dim, ndim) for dim in numbers))
    if len(set(counted)) != len(counted):
        raise RuleError(f"a dim is given twice in {numbers}")
    return counted


def wide(x: Tensor) -> Tensor:
    """A tensor as functions made of several operators take it: they round once, in the end, and not at each step."""
    return as_type(x, accumulator("sum", x.dtype))


def as_type(x: Tensor, dtype: np.dtype) -> Tensor:
    """The tensor in an element type, which it may have already."""
    return x if x.dtype == dtype else cast(x, dtype)


def reduced(x: Tensor) -> Tensor:
    """The tensor with nothing pending."""
    return x.to(x.layout.reduced)


def _rule(op: str) -> Callable[..., Rule]:
    def rule(shape: Shape, dims: Shape, keepdims: bool) -> Rule:
        names = [f"d{i}" for i in range(len(shape))]
        kept = ["1" if i in dims else n for i, n in enumerate(names)]
        out = kept if flag("keepdims", keepdims) else [n for i, n in enumerate(names) if i not in dims]
        text = f"{' '.join(names)} -> {' '.join(out)}"
        return Rule.parse(text, reduce=op, linear="each", passes=("sum", "avg") if op == "sum" else (op,))

    return rule


def _by_numpy(name: str, dtype: Callable[..., np.dtype], **more: Any) -> Op:
    """The operator that is numpy's function of this name; an empty shard contributes what changes nothing."""
    function = getattr(np, name)

    def forward(x: Array, dims: Shape, keepdims: bool) -> Array:
        if not x.size:
            shape = [1 if i in dims else n for i, n in enumerate(x.shape) if keepdims or i not in dims]
            kind = function(np.ones(1, x.dtype)).dtype
            return np.full(shape, identity(name, kind), kind)
        return np.asarray(getattr(x, name)(axis=dims, keepdims=keepdims))

    return Op(name, _rule(name), forward, dtype=dtype, **more)


def _sum_vjp(dy: Array, operands: Arrays, _y: Any, dims: Shape, keepdims: bool) -> tuple[Array]:
    shape = operands[0].shape
    kept = dy if keepdims else dy.reshape([1 if i in dims else n for i, n in enumerate(shape)])
    gradient = empty(shape, dy.dtype)
    gradient[...] = kept  # in a tenth of the calls that numpy.broadcast_to makes
    return (gradient,)


@cache
def _sum_type(dtype: np.dtype) -> np.dtype:
    kind: np.dtype = np.sum(np.ones(1, dtype)).dtype
    return kind


def _share(count: int) -> float:
    """What each of several elements adds to their mean; of none it is nan, as numpy has it."""
    return 1 / count if count else math.nan


def _mean_vjp(dy: Array, operands: Arrays, y: Any, dims: Shape, keepdims: bool, count: int) -> tuple[Array]:
    return _sum_vjp(dy * dy.dtype.type(_share(count)), operands, y, dims, keepdims)


_mean_op = Op(
    "mean",
    lambda shape, dims, keepdims, count: _rule("sum")(shape, dims, keepdims),
    lambda x, dims, keepdims, count: np.asarray(
        np.add.reduce(x, axis=dims, keepdims=keepdims, dtype=x.dtype) * x.dtype.type(_share(count))
    ),
    _mean_vjp,
)


def _sum(x: Array, dims: Shape, keepdims: Any) -> Array:
    return np.asarray(np.add.reduce(x, dims, _sum_type(x.dtype), keepdims=keepdims))


_sum_op = Op(
    "sum",
    _rule("sum"),
    _sum,
    _sum_vjp,
    dtype=lambda d, **_: _sum_type(d),
)
_max_op = _by_numpy("max", lambda d, **_: check_ordered(d, "max"), finish=True)
_min_op = _by_numpy("min", lambda d, **_: check_ordered(d, "min"), finish=True)
_prod_op = _by_numpy("prod", lambda d, **_: np.prod(np.ones(1, d)).dtype)
_all_op, _any_op = _by_numpy("all", boolean), _by_numpy("any", boolean)


def _typed(x: Tensor, dtype: DTypeLike | None) -> Tensor:
    return x if dtype is None else as_type(x, number_type(dtype, "a tensor cannot have"))


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

    Raises:
        RuleError: a dimension out of range or given twice.
        InputError: a ``dtype`` that tensors cannot have.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.sum(x, axis=0)
    >>> y.layout.short(), y.full().tolist()
    ('P(sum)', [9, 6, 6])
    """
    params = {"dims": normal_dims(dims, len(x.meta.shape)), "keepdims": keepdims}
    if dtype is None:
        return apply(_sum_op, (x,), params)  # type: ignore[no-any-return]
    return _typed(apply(_sum_op, (_typed(x, dtype),), params), dtype)


@operator(_mean_op)
def mean(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Compute the mean over dimensions: the sum divided by the global number of elements.

    Without elements it is nan.

    Whole numbers give float64. Partial over the axes of split dims until somebody needs it.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.mean(x, axis=1).full().tolist()
    [2.0, 5.0]
    """
    over = normal_dims(dims, x.ndim)
    count = math.prod(x.shape[d] for d in over)
    floating = x if x.dtype.kind in "fcV" else cast(x, np.float64)
    return _mean_op(floating, dims=over, keepdims=keepdims, count=count)


def _extreme(op: Op, x: Tensor, dims: Dims, keepdims: bool) -> Tensor:
    shape = x.meta.shape
    over = normal_dims(dims, len(shape))
    if 0 in shape and 0 in [shape[d] for d in over]:
        raise RuleError(f"{op.name} of no elements is undefined: shape {shape}, dims {over}")
    params = {"dims": over, "keepdims": keepdims}
    if not x._tracked:
        return apply(op, (x,), params)  # type: ignore[no-any-return]
    result: Tensor = apply(op, (x.detach(),), params)
    # The gradient is that of a weighted sum over the elements that attain the extreme, in equal parts.
    top = result if keepdims else op(x.detach(), dims=over, keepdims=True)
    mask = cast(equal(x.detach(), top), accumulator("sum", x.dtype))
    weight = as_type(divide(mask, reduced(sum(mask, over, keepdims=True))), x.dtype)
    return with_slope(result, x, weight, over, keepdims)


def with_slope(result: Tensor, x: Tensor, slope: Tensor, dims: Shape, keepdims: bool) -> Tensor:
    """The result with the gradient of a sum of the elements, each with its slope."""
    # Of the product only the gradient counts: an infinity times 0 is nothing to warn of.
    with np.errstate(invalid="ignore"):
        path = sum(multiply(x, slope), dims, keepdims).to(result.layout)
    result.requires_grad, result.node, result.output = True, path.node, path.output
    return result


@operator(_max_op)
def max(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the largest element over dimensions.

    Its gradient is shared equally by all elements that attain it.

    Nothing is pending: where a dim is split, a reduction of the result's size finishes it.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice, no elements, or complex numbers, which have no order.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.max(x, axis=1).full().tolist()
    [3, 6]
    """
    return _extreme(_max_op, x, dims, keepdims)


@operator(_min_op)
def min(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the smallest element over dimensions.

    Its gradient is shared equally by all elements that attain it.

    Nothing is pending: where a dim is split, a reduction of the result's size finishes it.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice, no elements, or complex numbers, which have no order.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.min(x, axis=1).full().tolist()
    [1, 4]
    """
    return _extreme(_min_op, x, dims, keepdims)


@operator(_prod_op)
def prod(
    x: Tensor, dims: Dims = None, keepdims: bool = False, *, dtype: DTypeLike | None = None, axis: Dims = None
) -> Tensor:
    """Multiply elements over dimensions; the product of no elements is 1.

    The gradient of an element is the product of the others, also if elements are zero.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        dtype: element type of the result; by default 64-bit integers for integers and truth values, else that of
            ``x``.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice.
        InputError: a ``dtype`` that tensors cannot have.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.prod(x, axis=1).full().tolist()
    [6, 120]
    """
    x = _typed(x, dtype)
    over = normal_dims(dims, x.ndim)
    values = x.detach()
    result = _prod_op(values, dims=over, keepdims=keepdims)
    if not x.requires_grad:
        return _typed(result, dtype)
    result = reduced(result)
    zero = equal(values, 0)
    safe = where(zero, 1, wide(values))
    rest = reduced(_prod_op(safe, dims=over, keepdims=True))
    zeros = reduced(sum(cast(zero, safe.dtype), over, keepdims=True))
    others = where(zero, where(equal(zeros, 1), rest, 0), where(equal(zeros, 0), divide(rest, safe), 0))
    return with_slope(result, x, as_type(others, x.dtype), over, keepdims)


@operator()
def count_nonzero(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Count the elements over dimensions that are not zero: int64, partial as a sum.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.count_nonzero(x - 3, axis=1).full().tolist()
    [2, 3]
    """
    return sum(cast(not_equal(x.detach(), 0), np.int64), dims, keepdims)


@operator(_all_op)
def all(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return True where all elements over dimensions are true, or if none exist.

    Numbers are true unless they are 0. The result is partial as a sum.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.all(x > 1, axis=1).full().tolist()
    [False, True]
    """
    return _all_op(x.detach(), dims=normal_dims(dims, x.ndim), keepdims=keepdims)


@operator(_any_op)
def any(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return True where any element over dimensions is true; False if none exist.

    Numbers are true unless they are 0. The result is partial as a sum.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dims``.

    Raises:
        RuleError: a dimension out of range or given twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.any(x > 4, axis=1).full().tolist()
    [False, True]
    """
    return _any_op(x.detach(), dims=normal_dims(dims, x.ndim), keepdims=keepdims)
