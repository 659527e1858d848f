"""NumPy's functions of what is no nan, and numbers in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.errors import InputError, RuleError
from spmdsim.ops import reduce
from spmdsim.ops.along import take_along_axis
from spmdsim.ops.arrange import stack
from spmdsim.ops.array_functions import isnan
from spmdsim.ops.declare import cast
from spmdsim.ops.elementwise import add, divide, equal, multiply, sqrt, subtract, where
from spmdsim.ops.functions import logical_not
from spmdsim.ops.order import argmax, argmin
from spmdsim.ops.scans import along_dim, conjugated, cumulative_prod, cumulative_sum
from spmdsim.ops.selecting import flattened
from spmdsim.ops.shape import reshape
from spmdsim.ops.sorting import sort
from spmdsim.tensor import Tensor

Axis = int | Sequence[int] | None


def _filled(x: Tensor, value: float) -> Tensor:
    """The tensor with a number in the place of nan."""
    return where(isnan(x), value, x) if x.dtype.kind in "fcV" else x


def _numbers(x: Tensor, axis: Axis, keepdims: bool = True) -> Tensor:
    """How many entries are no nan."""
    return reduce.sum(cast(logical_not(isnan(x)), np.int64), axis, keepdims)


def nansum(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum of what is no nan."""
    return reduce.sum(_filled(a, 0), axis, keepdims)


def nanprod(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product of what is no nan."""
    return reduce.prod(_filled(a, 1), axis, keepdims)


def _extreme(function: Callable[..., Tensor], a: Tensor, axis: Axis, keepdims: bool, least: float) -> Tensor:
    if a.dtype.kind not in "fV":
        return function(a, axis, keepdims)
    found = function(_filled(a, least), axis, keepdims)
    return where(reduce.all(isnan(a), axis, keepdims), math.nan, found)


def nanmax(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest of what is no nan; nan where all is."""
    return _extreme(reduce.max, a, axis, keepdims, -math.inf)


def nanmin(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest of what is no nan; nan where all is."""
    return _extreme(reduce.min, a, axis, keepdims, math.inf)


def nanmean(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of what is no nan; nan where all is."""
    return divide(nansum(a, axis, keepdims), _numbers(a, axis, keepdims))


def nanvar(a: Tensor, axis: Axis = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    """The variance of what is no nan."""
    far = _filled(subtract(a, nanmean(a, axis, True)), 0)
    squares = reduce.sum(_real(multiply(far, conjugated(far))), axis, keepdims)
    return divide(squares, subtract(_numbers(a, axis, keepdims), ddof))


def nanstd(a: Tensor, axis: Axis = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation of what is no nan."""
    return sqrt(nanvar(a, axis, ddof, keepdims))


def _real(x: Tensor) -> Tensor:
    return cast(x, np.finfo(x.dtype).dtype) if x.dtype.kind == "c" else x


def nancumsum(a: Tensor, axis: int | None = None) -> Tensor:
    """Running sums, nan as 0; of all entries in one dim for None."""
    return _running(cumulative_sum, a, axis, 0)


def nancumprod(a: Tensor, axis: int | None = None) -> Tensor:
    """Running products, nan as 1; of all entries in one dim for None."""
    return _running(cumulative_prod, a, axis, 1)


def _running(function: Callable[..., Tensor], a: Tensor, axis: int | None, neutral: float) -> Tensor:
    x = _filled(a, neutral)
    return function(reshape(x, -1), 0) if axis is None else function(x, axis)


def _place(function: Callable[..., Tensor], name: str, a: Tensor, axis: int | None, least: float) -> Tensor:
    if a.dtype.kind in "fV" and bool(reduce.any(reduce.all(isnan(a), axis))):
        raise InputError(f"np.{name}: there are rows of nothing but nan along axis {axis}")
    return function(_filled(a, least), axis)


def nanargmax(a: Tensor, axis: int | None = None) -> Tensor:
    """Where the largest of what is no nan is; all ranks look whether there is one."""
    return _place(argmax, "nanargmax", a, axis, -math.inf)


def nanargmin(a: Tensor, axis: int | None = None) -> Tensor:
    """Where the smallest of what is no nan is."""
    return _place(argmin, "nanargmin", a, axis, math.inf)


def nanquantile(a: Tensor, q: float | Sequence[float], axis: int | None = None) -> Tensor:
    """Quantiles of what is no nan, between two entries by linear interpolation: nan come last in a sort."""
    x, at = (flattened(a), 0) if axis is None else (a, along_dim("nanquantile", a, axis))
    if not isinstance(q, (int, float)):
        return stack([nanquantile(x, float(one), at) for one in q])
    if not 0 <= q <= 1:
        raise RuleError(f"quantiles lie between 0 and 1, but got {q}")
    ordered = sort(x if x.dtype.kind in "fV" else cast(x, np.float64), at)
    last = subtract(_numbers(x, at), 1)
    place = multiply(where(equal(last, -1), 0, last), float(q))
    low = cast(place, np.int64)
    high = where(equal(cast(low, np.float64), place), low, add(low, 1))
    below, above = (take_along_axis(ordered, one, at) for one in (low, high))
    part = cast(subtract(place, low), ordered.dtype)
    found = where(equal(below, above), below, add(below, multiply(subtract(above, below), part)))
    return reshape(found, [n for d, n in enumerate(found.shape) if d != at])


def nanpercentile(a: Tensor, q: float | Sequence[float], axis: int | None = None) -> Tensor:
    """:func:`nanquantile`, in hundredths."""
    return nanquantile(a, q / 100 if isinstance(q, (int, float)) else [one / 100 for one in q], axis)


def nanmedian(a: Tensor, axis: int | None = None) -> Tensor:
    """The middle one of what is no nan, or the mean of the two in the middle."""
    return nanquantile(a, 0.5, axis)


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """The tensor with numbers in the place of nan and of infinities, for which the largest ones stand if none are given."""
    if x.dtype.kind not in "fV":
        return x
    import ml_dtypes  # knows numpy's types and those of 16 bits

    finfo: Any = ml_dtypes.finfo
    largest = finfo(x.dtype)
    x = where(equal(x, math.inf), float(largest.max) if posinf is None else posinf, x)
    x = where(equal(x, -math.inf), float(largest.min) if neginf is None else neginf, x)
    return _filled(x, nan)


FUNCTIONS = (
    *(nan_to_num, nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmedian, nanmin),
    *(nanpercentile, nanprod, nanquantile, nanstd, nansum, nanvar),
)
