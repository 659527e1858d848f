"""NumPy's functions that ignore nan, or replace nan by numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.conversion import asarray
from spmdsim.arrays.operands import convert_operands
from spmdsim.arrays.ops.dim_reductions import to_sum_type, to_type
from spmdsim.arrays.ops.scans import conjugate_if_complex

Axis = int | Sequence[int] | None


def _fill_nan(x: Tensor, value: float) -> Tensor:
    """Replace nan by a number."""
    return ops.where(ops.isnan(x), value, x) if x.dtype.kind in "fcV" else x


def _is_valid(x: Tensor) -> Tensor:
    """Return True where entries are not nan."""
    return ops.logical_not(ops.isnan(x))


def nansum(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Sum the elements that are not nan."""
    return ops.sum(_fill_nan(a, 0), axis, keepdims)


def nanprod(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Multiply the elements that are not nan."""
    return ops.prod(_fill_nan(a, 1), axis, keepdims)


def _reduce_to_extreme(
    function: Callable[..., Tensor], a: Tensor, axis: Axis, keepdims: bool, least: float
) -> Tensor:
    """Return the extreme of the elements that are not nan; nan where all are nan.

    Args:
        function: ``ops.max`` or ``ops.min``.
        a: the tensor.
        axis: one dim or several; None: all.
        keepdims: keep reduced dims with size 1.
        least: the number in place of nan: -inf for ``ops.max``, inf for ``ops.min``.
    """
    if a.dtype.kind not in "fV":
        return function(a, axis, keepdims)
    extreme = function(_fill_nan(a, least), axis, keepdims)
    return ops.where(ops.all(ops.isnan(a), axis, keepdims), math.nan, extreme)


def nanmax(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the largest element that is not nan; nan if all are."""
    return _reduce_to_extreme(ops.max, a, axis, keepdims, -math.inf)


def nanmin(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element that is not nan; nan if all are."""
    return _reduce_to_extreme(ops.min, a, axis, keepdims, math.inf)


def nanmean(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Compute the mean of elements that are not nan; nan if all are."""
    return _mean(a, axis, keepdims, _is_valid(a))


def nanvar(
    a: Tensor, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float = 0
) -> Tensor:
    """Compute the variance of elements that are not nan; nan of at most ``ddof`` elements."""
    return _var(a, axis, ddof or correction, keepdims, _is_valid(a))


def nanstd(
    a: Tensor, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float = 0
) -> Tensor:
    """Compute the standard deviation of elements that are not nan."""
    return ops.sqrt(nanvar(a, axis, ddof or correction, keepdims))


def mean(a: Tensor, axis: Axis = None, keepdims: bool = False, where: Any = True) -> Tensor:
    """Compute the mean of entries for which a mask is true."""
    return ops.mean(a, axis, keepdims) if where is True else _mean(a, axis, keepdims, _mask(where, a))


def var(
    a: Tensor,
    axis: Axis = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = True,
    *,
    correction: float = 0,
) -> Tensor:
    """Compute the variance of entries for which a mask is true."""
    if where is True and a.dtype.kind != "c":
        return ops.var(a, axis, keepdims, correction=ddof or correction)
    return _var(a, axis, ddof or correction, keepdims, _mask(where, a))


def std(
    a: Tensor,
    axis: Axis = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = True,
    *,
    correction: float = 0,
) -> Tensor:
    """Compute the standard deviation of entries for which a mask is true."""
    if where is True and a.dtype.kind != "c":
        return ops.std(a, axis, keepdims, correction=ddof or correction)
    return ops.sqrt(var(a, axis, ddof, keepdims, where, correction=correction))


def _mask(where: Any, x: Tensor) -> Tensor:
    """Broadcast a mask to the shape of a tensor."""
    mask = where if isinstance(where, Tensor) else np.asarray(where)
    return ops.broadcast_to(convert_operands("np.mean", (x, mask))[1], x.shape)


def _mean(x: Tensor, axis: Axis, keepdims: bool, is_valid: Tensor) -> Tensor:
    """Compute the mean of the entries where a mask is True; nan if it is True nowhere.

    Integers give float64, other types keep their type. ``is_valid`` is the mask, in the shape of ``x``.
    """
    exact = x if x.dtype.kind in "fcV" else ops.cast(x, np.float64)
    total = ops.sum(ops.where(is_valid, exact, 0), axis, keepdims)
    average = ops.divide(total, ops.sum(ops.cast(is_valid, np.int64), axis, keepdims))
    return to_type(average, x.dtype) if x.dtype.kind in "fcV" else average


def _var(x: Tensor, axis: Axis, ddof: float, keepdims: bool, is_valid: Tensor) -> Tensor:
    """Compute the variance of the entries where a mask is True.

    It is the sum of squared absolute deviations from the mean, divided by the count minus ``ddof``. With ``ddof`` 0,
    the entries 1 and 5 have the variance 4, with ``ddof`` 1 it is 8. The result is real. Integers give float64;
    16-bit floats are summed in float32.

    Args:
        x: the tensor.
        axis: one dim or several; None: all.
        ddof: the number subtracted from the count. The variance is nan if there are not more entries.
        keepdims: keep reduced dims with size 1.
        is_valid: the mask, in the shape of ``x``.
    """
    exact = to_sum_type(x) if x.dtype.kind in "fcV" else ops.cast(x, np.float64)
    deviations = ops.where(is_valid, ops.subtract(exact, _mean(exact, axis, True, is_valid)), 0)
    squares = ops.sum(
        to_type(ops.multiply(deviations, conjugate_if_complex(deviations)), _real_type(deviations.dtype)),
        axis,
        keepdims,
    )
    degrees_of_freedom = ops.subtract(ops.sum(ops.cast(is_valid, np.int64), axis, keepdims), ddof)
    spread = ops.divide(
        squares, ops.where(ops.less_equal(degrees_of_freedom, 0), math.nan, degrees_of_freedom)
    )
    return to_type(spread, _real_type(x.dtype) if x.dtype.kind in "fcV" else squares.dtype)


def _real_type(dtype: np.dtype) -> np.dtype:
    """Return the type of real and imaginary part; a real type is returned itself."""
    return np.finfo(dtype).dtype if dtype.kind == "c" else dtype


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace nan and infinities by numbers; the type stays.

    Real and imaginary parts are replaced separately. Integers and bools are returned as a copy.

    Args:
        x: the tensor; not changed.
        nan: the number for nan.
        posinf: the number for inf; None: the largest finite number of the type.
        neginf: the number for -inf; None: the lowest finite number of the type.
    """
    if x.dtype.kind == "c":
        parts = (nan_to_num(component, nan, posinf, neginf) for component in (ops.real(x), ops.imag(x)))
        return ops.add(next(parts), ops.multiply(next(parts), 1j))
    if x.dtype.kind not in "fV":
        return asarray(x, copy=True)
    import ml_dtypes  # knows numpy's types and those of 16 bits

    finfo: Any = ml_dtypes.finfo
    kind, largest = x.dtype, finfo(x.dtype)
    x = ops.where(ops.equal(x, math.inf), float(largest.max) if posinf is None else posinf, x)
    x = ops.where(ops.equal(x, -math.inf), float(largest.min) if neginf is None else neginf, x)
    x = _fill_nan(x, nan)
    return x if x.dtype == kind else ops.cast(x, kind)  # a NumPy number has a type of its own
