"""NumPy's functions of what is no nan, and numbers in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.conversion import asarray
from spmdsim.arrays.creation import full
from spmdsim.arrays.operands import operands
from spmdsim.arrays.ops.dim_reductions import as_type, normal_dims, wide
from spmdsim.arrays.ops.scans import conjugated
from spmdsim.arrays.ops.statistics import as_rows, checked_parts, in_type_of_quantiles, middle
from spmdsim.core import Layout
from spmdsim.errors import InputError, RuleError

Axis = int | Sequence[int] | None
#: What lies a part of the way between two entries.
Between = Callable[[Tensor, Tensor, Tensor], Tensor]


def _filled(x: Tensor, value: float) -> Tensor:
    """The tensor with a number in the place of nan."""
    return ops.where(ops.isnan(x), value, x) if x.dtype.kind in "fcV" else x


def _there(x: Tensor) -> Tensor:
    """Where the entries are no nan."""
    return ops.logical_not(ops.isnan(x))


def nansum(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Sum the elements that are not nan."""
    return ops.sum(_filled(a, 0), axis, keepdims)


def nanprod(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Multiply the elements that are not nan."""
    return ops.prod(_filled(a, 1), axis, keepdims)


def _extreme(function: Callable[..., Tensor], a: Tensor, axis: Axis, keepdims: bool, least: float) -> Tensor:
    if a.dtype.kind not in "fV":
        return function(a, axis, keepdims)
    extreme = function(_filled(a, least), axis, keepdims)
    return ops.where(ops.all(ops.isnan(a), axis, keepdims), math.nan, extreme)


def nanmax(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the largest element that is not nan; nan if all are."""
    return _extreme(ops.max, a, axis, keepdims, -math.inf)


def nanmin(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element that is not nan; nan if all are."""
    return _extreme(ops.min, a, axis, keepdims, math.inf)


def nanmean(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Compute the mean of elements that are not nan; nan if all are."""
    return _mean(a, axis, keepdims, _there(a))


def nanvar(
    a: Tensor, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float = 0
) -> Tensor:
    """Compute the variance of elements that are not nan; nan of at most ``ddof`` elements."""
    return _var(a, axis, ddof or correction, keepdims, _there(a))


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


def _mask(there: Any, x: Tensor) -> Tensor:
    mask = there if isinstance(there, Tensor) else np.asarray(there)
    return ops.broadcast_to(operands("np.mean", (x, mask))[1], x.shape)


def _mean(x: Tensor, axis: Axis, keepdims: bool, there: Tensor) -> Tensor:
    exact = x if x.dtype.kind in "fcV" else ops.cast(x, np.float64)
    total = ops.sum(ops.where(there, exact, 0), axis, keepdims)
    average = ops.divide(total, ops.sum(ops.cast(there, np.int64), axis, keepdims))
    return as_type(average, x.dtype) if x.dtype.kind in "fcV" else average


def _var(x: Tensor, axis: Axis, ddof: float, keepdims: bool, there: Tensor) -> Tensor:
    exact = wide(x) if x.dtype.kind in "fcV" else ops.cast(x, np.float64)
    far = ops.where(there, ops.subtract(exact, _mean(exact, axis, True, there)), 0)
    squares = ops.sum(as_type(ops.multiply(far, conjugated(far)), _real_type(far.dtype)), axis, keepdims)
    free = ops.subtract(ops.sum(ops.cast(there, np.int64), axis, keepdims), ddof)
    spread = ops.divide(squares, ops.where(ops.less_equal(free, 0), math.nan, free))
    return as_type(spread, _real_type(x.dtype) if x.dtype.kind in "fcV" else squares.dtype)


def _real_type(dtype: np.dtype) -> np.dtype:
    return np.finfo(dtype).dtype if dtype.kind == "c" else dtype


def nancumsum(a: Tensor, axis: int | None = None) -> Tensor:
    """Running sums, nan as 0; of all entries in one dim for None."""
    return _running(ops.cumulative_sum, a, axis, 0)


def nancumprod(a: Tensor, axis: int | None = None) -> Tensor:
    """Running products, nan as 1; of all entries in one dim for None."""
    return _running(ops.cumulative_prod, a, axis, 1)


def _running(function: Callable[..., Tensor], a: Tensor, axis: int | None, neutral: float) -> Tensor:
    x = _filled(a, neutral)
    return function(ops.reshape(x, -1), 0) if axis is None else function(x, axis)


def _place(
    function: Callable[..., Tensor], name: str, a: Tensor, axis: int | None, keepdims: bool, least: float
) -> Tensor:
    if a.dtype.kind in "fV" and bool(ops.any(ops.all(ops.isnan(a), axis))):
        raise InputError(f"np.{name}: there are rows of nothing but nan along axis {axis}")
    return function(_filled(a, least), axis, keepdims)


def nanargmax(a: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the largest element that is not nan.

    All ranks check that one exists.
    """
    return _place(ops.argmax, "nanargmax", a, axis, keepdims, -math.inf)


def nanargmin(a: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the smallest element that is not nan."""
    return _place(ops.argmin, "nanargmin", a, axis, keepdims, math.inf)


def nanquantile(a: Tensor, q: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Quantiles of what is no nan, between two entries by linear interpolation: nan come last in a sort."""
    return _nanquantile(in_type_of_quantiles(a, q), np.asarray(q, np.float64), axis, keepdims, _part_way)


def _nanquantile(a: Tensor, parts: np.ndarray, axis: Axis, keepdims: bool, between: Between) -> Tensor:
    checked_parts(parts)
    if a.dtype.kind == "c":
        raise RuleError("complex numbers have no quantiles")
    dims = normal_dims(axis, a.ndim)
    rows = as_rows(a if a.dtype.kind in "fV" else ops.cast(a, np.float64), dims)
    kept = [1 if d in dims else n for d, n in enumerate(a.shape) if keepdims or d not in dims]
    if not rows.shape[-1]:
        shape = (*parts.shape, *kept)
        layout = Layout.replicated(rows.layout.mesh, len(shape))
        return full(shape, math.nan, dtype=rows.dtype, layout=layout, world=a.world)
    ordered = ops.sort(rows)
    last = ops.subtract(ops.sum(ops.cast(_there(rows), np.int64), -1, True), 1)
    last = ops.where(ops.equal(last, -1), 0, last)
    quantiles = [_at(ordered, last, part, between) for part in parts.reshape(-1).tolist()]
    return ops.reshape(ops.stack(quantiles), (*parts.shape, *kept))


def _at(ordered: Tensor, last: Tensor, q: float, between: Between) -> Tensor:
    """What stands a part of the way to an entry of each row."""
    place = ops.multiply(last, q)
    low = ops.cast(place, np.int64)
    high = ops.where(ops.equal(ops.cast(low, np.float64), place), low, ops.add(low, 1))
    below, above = (ops.take_along_axis(ordered, one, -1) for one in (low, high))
    return between(below, above, ops.cast(ops.subtract(place, low), ordered.dtype))


def _part_way(below: Tensor, above: Tensor, part: Tensor) -> Tensor:
    far = ops.greater_equal(part, 0.5)  # then from the other end, as numpy does it
    moved = ops.multiply(ops.subtract(above, below), ops.where(far, ops.subtract(part, 1), part))
    return ops.where(ops.equal(below, above), below, ops.add(ops.where(far, above, below), moved))


def nanpercentile(a: Tensor, q: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """:func:`nanquantile`, in hundredths."""
    return _nanquantile(
        in_type_of_quantiles(a, q), np.asarray(q, np.float64) / 100, axis, keepdims, _part_way
    )


def nanmedian(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the middle element that is not nan, or the mean of the two middle ones."""
    return _nanquantile(a, np.array(0.5), axis, keepdims, lambda below, above, _: middle(below, above))


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace nan and infinities by numbers; by default infinities by the largest ones of the type."""
    if x.dtype.kind == "c":
        parts = (nan_to_num(part, nan, posinf, neginf) for part in (ops.real(x), ops.imag(x)))
        return ops.add(next(parts), ops.multiply(next(parts), 1j))
    if x.dtype.kind not in "fV":
        return asarray(x, copy=True)
    import ml_dtypes  # knows numpy's types and those of 16 bits

    finfo: Any = ml_dtypes.finfo
    kind, largest = x.dtype, finfo(x.dtype)
    x = ops.where(ops.equal(x, math.inf), float(largest.max) if posinf is None else posinf, x)
    x = ops.where(ops.equal(x, -math.inf), float(largest.min) if neginf is None else neginf, x)
    x = _filled(x, nan)
    return x if x.dtype == kind else ops.cast(x, kind)  # a NumPy number has a type of its own
