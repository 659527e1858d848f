"""Reductions over dims. A split dim leaves a pending reduction of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import accumulator
from spmdsim.layout.shape_sizes import counted_dim, flag, integers
from spmdsim.ops.declare import boolean, cast
from spmdsim.ops.elementwise import divide, equal, multiply, where
from spmdsim.ops.functions import not_equal
from spmdsim.ops.operators import operator
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.element_types import number_type, ordered
from spmdsim.worlds.pool import allocator, empty

Dims = int | Sequence[int] | None


def normal_dims(dims: Dims, ndim: int) -> tuple[int, ...]:
    """Non-negative, sorted dims; all of them for None.

    Raises:
        RuleError: a dim out of range or given twice.
    """
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, (int, np.integer)):
        return (counted_dim(dims, ndim),)
    given = integers((dims,) if isinstance(dims, str) else dims, "dims")
    counted = tuple(sorted(counted_dim(dim, ndim) for dim in given))
    if len(set(counted)) != len(counted):
        raise RuleError(f"a dim is given twice in {given}")
    return counted


def wide(x: Tensor) -> Tensor:
    """A tensor as functions made of several operators take it: they round once, in the end, and not at each step."""
    return as_type(x, accumulator("sum", x.dtype))


def as_type(x: Tensor, dtype: np.dtype) -> Tensor:
    """The tensor in an element type, which it may have already."""
    return x if x.dtype == dtype else cast(x, dtype)


def _rule(op: str) -> Callable[..., Rule]:
    def rule(shape: tuple[int, ...], dims: tuple[int, ...], keepdims: bool) -> Rule:
        names = [f"d{i}" for i in range(len(shape))]
        kept = ["1" if i in dims else n for i, n in enumerate(names)]
        out = kept if flag("keepdims", keepdims) else [n for i, n in enumerate(names) if i not in dims]
        text = f"{' '.join(names)} -> {' '.join(out)}"
        return Rule.parse(text, reduce=op, linear="each", passes=("sum", "avg") if op == "sum" else (op,))

    return rule


def _local(function: Callable[..., Any], start: Callable[[np.dtype], Any]) -> Callable[..., np.ndarray]:
    def forward(x: np.ndarray, dims: tuple[int, ...], keepdims: bool) -> np.ndarray:
        if not x.size:
            # An empty shard contributes the identity.
            shape = [1 if i in dims else n for i, n in enumerate(x.shape) if keepdims or i not in dims]
            return np.full(shape, start(x.dtype), function(np.ones(1, x.dtype)).dtype)
        return np.asarray(function(x, axis=dims, keepdims=keepdims))

    return forward


def _lowest(dtype: np.dtype) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return False if dtype.kind == "b" else -np.inf


def _highest(dtype: np.dtype) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.inf


def _sum_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, dims: tuple[int, ...], keepdims: bool
) -> tuple[np.ndarray]:
    shape = operands[0].shape
    kept = dy if keepdims else dy.reshape([1 if i in dims else n for i, n in enumerate(shape)])
    gradient = empty(shape, dy.dtype)
    gradient[...] = kept  # in a tenth of the calls that numpy.broadcast_to makes
    return (gradient,)


@cache
def _sum_type(dtype: np.dtype) -> np.dtype:
    kind: np.dtype = np.sum(np.ones(1, dtype)).dtype
    return kind


def _total(x: np.ndarray, dims: tuple[int, ...], keepdims: Any, dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.add.reduce(x, axis=dims, keepdims=keepdims, dtype=dtype))


def _sum_forward(x: np.ndarray, dims: tuple[int, ...], keepdims: bool) -> np.ndarray:
    return _total(x, dims, keepdims, _sum_type(x.dtype))


def _mean_forward(x: np.ndarray, dims: tuple[int, ...], keepdims: bool, count: int) -> np.ndarray:
    return np.asarray(_total(x, dims, keepdims, x.dtype) * x.dtype.type(_share(count)))


def _share(count: int) -> float:
    """What each of several elements adds to their mean; of none it is nan, as numpy has it."""
    return 1 / count if count else math.nan


def _mean_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], y: Any, dims: tuple[int, ...], keepdims: bool, count: int
) -> tuple[np.ndarray]:
    return _sum_vjp(dy * dy.dtype.type(_share(count)), operands, y, dims, keepdims)


def _known_mean_vjp(
    wanted: Sequence[bool], dy: np.ndarray, x: np.ndarray, dims: tuple[int, ...], keepdims: bool, count: int
) -> Callable[..., Any]:
    share, fresh = dy.dtype.type(_share(count)), allocator(x.shape, dy.dtype)
    kept = [1 if i in dims else n for i, n in enumerate(x.shape)]

    def known(dy: np.ndarray, x: np.ndarray) -> tuple[np.ndarray]:
        gradient = fresh()
        gradient[...] = (dy * share).reshape(kept)
        return (gradient,)

    return known


_mean_vjp.known = _known_mean_vjp  # type: ignore[attr-defined]


def _mean_rule(shape: tuple[int, ...], dims: tuple[int, ...], keepdims: bool, count: int) -> Rule:
    return _rule("sum")(shape, dims, keepdims)


_mean_op = Op("mean", _mean_rule, _mean_forward, _mean_vjp)
_sum_op = Op("sum", _rule("sum"), _sum_forward, _sum_vjp, dtype=lambda d, **_: _sum_type(d))
_max_op = Op(
    "max", _rule("max"), _local(np.max, _lowest), dtype=lambda d, **_: ordered(d, "max"), finish=True
)
_min_op = Op(
    "min", _rule("min"), _local(np.min, _highest), dtype=lambda d, **_: ordered(d, "min"), finish=True
)
_prod_op = Op(
    "prod", _rule("prod"), _local(np.prod, lambda _: 1), dtype=lambda d, **_: np.prod(np.ones(1, d)).dtype
)
_all_op = Op("all", _rule("all"), _local(np.all, lambda _: True), dtype=boolean)
_any_op = Op("any", _rule("any"), _local(np.any, lambda _: False), dtype=boolean)


def _typed(x: Tensor, dtype: DTypeLike | None) -> Tensor:
    return x if dtype is None else as_type(x, number_type(dtype, "a tensor cannot have"))


@operator(_sum_op)
def sum(
    x: Tensor,
    dims: Dims = None,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    axis: Dims = None,
) -> Tensor:
    """Sum over dims (all for None), in another type if one is given.

    Partial over the axes of split dims until somebody needs it.

    Args:
        x: numbers or truth values of any shape.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        dtype: type of the result; elements are cast to it first. None: 64-bit whole numbers for whole numbers and
            truth values, as numpy has it, else that of ``x``.
        axis: the same as ``dims``.

    Returns:
        The shape of ``x`` without ``dims``.

    Raises:
        RuleError: a dim out of range or given twice.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.
        InputError: a ``dtype`` that tensors cannot have.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> y = ops.sum(x, axis=0)
    >>> y.layout.short(), y.full().tolist()
    ('P(sum)', [9, 6, 6])
    """
    return _typed(_sum_op(_typed(x, dtype), dims=normal_dims(dims, x.ndim), keepdims=keepdims), dtype)


@operator(_mean_op)
def mean(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Mean over dims: the sum divided by the global number of elements; nan where there are none.

    Args:
        x: numbers or truth values of any shape.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        axis: the same as ``dims``.

    Returns:
        Of the type of ``x``, float64 for whole numbers and truth values; partial over the axes of split dims until
        somebody needs it.

    Raises:
        RuleError: a dim out of range or given twice.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.

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
    over = normal_dims(dims, x.ndim)
    if 0 in [x.shape[d] for d in over]:
        raise RuleError(f"{op.name} of no elements is undefined: shape {x.shape}, dims {over}")
    result = op(x.detach(), dims=over, keepdims=keepdims)
    if not x.requires_grad:
        return result
    # The gradient is that of a weighted sum over the elements that attain the extreme, in equal parts.
    top = result if keepdims else op(x.detach(), dims=over, keepdims=True)
    mask = cast(equal(x.detach(), top), accumulator("sum", x.dtype))
    weight = as_type(divide(mask, _whole(sum(mask, over, keepdims=True))), x.dtype)
    return with_slope(result, x, weight, over, keepdims)


def with_slope(result: Tensor, x: Tensor, slope: Tensor, dims: tuple[int, ...], keepdims: bool) -> Tensor:
    """The result with the gradient of a sum of the elements, each with its slope."""
    path = sum(multiply(x, slope), dims, keepdims).to(result.layout)
    result.requires_grad, result.node, result.output = True, path.node, path.output
    return result


@operator(_max_op)
def max(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Largest element over dims; its gradient goes in equal parts to all elements that attain it.

    Args:
        x: real numbers or truth values of any shape.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        axis: the same as ``dims``.

    Returns:
        Of the type of ``x``, with nothing pending: where a dim is split, a reduction of the result's size finishes it.

    Raises:
        RuleError: a dim out of range or given twice, no elements, or complex numbers, which have no order.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.max(x, axis=1).full().tolist()
    [3, 6]
    """
    return _extreme(_max_op, x, dims, keepdims)


@operator(_min_op)
def min(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Smallest element over dims; its gradient goes in equal parts to all elements that attain it.

    Args:
        x: real numbers or truth values of any shape.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        axis: the same as ``dims``.

    Returns:
        Of the type of ``x``, with nothing pending: where a dim is split, a reduction of the result's size finishes it.

    Raises:
        RuleError: a dim out of range or given twice, no elements, or complex numbers, which have no order.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.min(x, axis=1).full().tolist()
    [1, 4]
    """
    return _extreme(_min_op, x, dims, keepdims)


@operator(_prod_op)
def prod(
    x: Tensor,
    dims: Dims = None,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    axis: Dims = None,
) -> Tensor:
    """Product over dims; an element's slope is the product of the others, also where some are zero.

    Args:
        x: numbers or truth values of any shape.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        dtype: type of the result; elements are cast to it first. None: 64-bit whole numbers for whole numbers and
            truth values, as numpy has it, else that of ``x``.
        axis: the same as ``dims``.

    Returns:
        The shape of ``x`` without ``dims``; 1 where there are no elements.

    Raises:
        RuleError: a dim out of range or given twice.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.
        InputError: a ``dtype`` that tensors cannot have.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.prod(x, axis=1).full().tolist()
    [6, 120]
    """
    x = _typed(x, dtype)
    over = normal_dims(dims, x.ndim)
    given = x.detach()
    result = _prod_op(given, dims=over, keepdims=keepdims)
    if not x.requires_grad:
        return _typed(result, dtype)
    result = result.to(result.layout.reduced)
    zero = equal(given, 0)
    safe = where(zero, 1, wide(given))
    rest = _whole(_prod_op(safe, dims=over, keepdims=True))
    zeros = _whole(sum(cast(zero, safe.dtype), over, keepdims=True))
    others = where(zero, where(equal(zeros, 1), rest, 0), where(equal(zeros, 0), divide(rest, safe), 0))
    return with_slope(result, x, as_type(others, x.dtype), over, keepdims)


def _whole(x: Tensor) -> Tensor:
    """Nothing of it pending."""
    return x.to(x.layout.reduced)


@operator()
def count_nonzero(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """How many elements over dims (all for None) are not zero.

    Args:
        x: numbers or truth values of any shape.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        axis: the same as ``dims``.

    Returns:
        int64, partial over the axes of split dims until somebody needs it.

    Raises:
        RuleError: a dim out of range or given twice.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.count_nonzero(x - 3, axis=1).full().tolist()
    [2, 3]
    """
    return sum(cast(not_equal(x.detach(), 0), np.int64), dims, keepdims)


@operator(_all_op)
def all(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Whether all elements over dims are true.

    Args:
        x: truth values, or numbers, of which all but 0 are true.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        axis: the same as ``dims``.

    Returns:
        Truth values, partial over the axes of split dims until somebody needs them; True where there are no elements.

    Raises:
        RuleError: a dim out of range or given twice.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.all(x > 1, axis=1).full().tolist()
    [False, True]
    """
    return _all_op(x.detach(), dims=normal_dims(dims, x.ndim), keepdims=keepdims)


@operator(_any_op)
def any(x: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Whether any element over dims is true.

    Args:
        x: truth values, or numbers, of which all but 0 are true.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        axis: the same as ``dims``.

    Returns:
        Truth values, partial over the axes of split dims until somebody needs them; False where there are no
        elements.

    Raises:
        RuleError: a dim out of range or given twice.
        UsageTypeError: dims that are no integers, or a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.any(x > 4, axis=1).full().tolist()
    [False, True]
    """
    return _any_op(x.detach(), dims=normal_dims(dims, x.ndim), keepdims=keepdims)
