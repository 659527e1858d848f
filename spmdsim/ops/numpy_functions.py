"""What numpy has and the array API standard has not, made of operators: reached as ``np.nansum(t)``, by ``__array_function__``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.core import Layout
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
from spmdsim.ops.shape import broadcast_to, reshape
from spmdsim.ops.slicing import pad, slice_
from spmdsim.ops.sorting import sort
from spmdsim.tensor import Tensor
from spmdsim.tensor.operands import operands

Axis = int | Sequence[int] | None

# -- without nan ----------------------------------------------------------------------------------------------


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


# -- diagonals, parts, products ---------------------------------------------------------------------------------


def diag(v: Tensor, k: int = 0) -> Tensor:
    """The diagonal of a matrix; of a vector the matrix that has it, its rows split as the vector."""
    if v.ndim == 2:
        found: Tensor = import_module("spmdsim.linalg").diagonal(v, offset=k)
        return found
    if v.ndim != 1:
        raise RuleError(f"np.diag takes a vector or a matrix, but the shape is {v.shape}")
    n = v.shape[0] + abs(k)
    rows = pad(v, (max(0, -k),), (max(0, k),))
    layout = Layout(rows.layout.mesh, [rows.layout.reduced.dims[0], None])
    there = Tensor.eye(n, k=k, dtype=np.bool_, layout=layout, world=v.world)
    return where(there, broadcast_to(reshape(rows, (n, 1)), (n, n)), 0)


def diagflat(v: Tensor, k: int = 0) -> Tensor:
    """The matrix with all entries on its diagonal."""
    return diag(flattened(v), k)


def array_split(ary: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Parts along a dim, so many of nearly equal size, or cut at given places."""
    at = along_dim("array_split", ary, axis)
    n = ary.shape[at]
    if isinstance(indices_or_sections, (int, np.integer)):
        parts = int(indices_or_sections)
        if parts < 1:
            raise RuleError(f"there is one part at least, but got {parts}")
        cuts = [k * (n // parts) + min(k, n % parts) for k in range(parts + 1)]
    else:
        inner = [slice(int(k)).indices(n)[1] for k in indices_or_sections]
        cuts = [0, *inner, n]
    found = []
    for start, stop in pairwise(cuts):
        starts, stops = [0] * ary.ndim, list(ary.shape)
        starts[at], stops[at] = start, max(start, stop)
        found.append(slice_(ary, starts, stops))
    return found


def split(ary: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Equal parts along a dim, or parts cut at given places."""
    n, parts = ary.shape[along_dim("split", ary, axis)], indices_or_sections
    if isinstance(parts, (int, np.integer)) and (parts < 1 or n % parts):
        raise RuleError(
            f"dim {axis} of size {n} does not split into {parts} equal parts: np.array_split does"
        )
    return array_split(ary, parts, axis)


def vsplit(ary: Tensor, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """:func:`split` along the first dim."""
    return split(ary, indices_or_sections, 0)


def hsplit(ary: Tensor, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """:func:`split` along the second dim, of vectors along the only one."""
    return split(ary, indices_or_sections, int(ary.ndim > 1))


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Kronecker's product: each entry of ``a`` times the whole of ``b``."""
    a, b = operands("np.kron", (a, b))
    ndim = max(a.ndim, b.ndim)
    sizes = [(*[1] * (ndim - x.ndim), *x.shape) for x in (a, b)]
    left = reshape(a, [m for n in sizes[0] for m in (n, 1)])
    right = reshape(b, [m for n in sizes[1] for m in (1, n)])
    return reshape(multiply(left, right), [n * m for n, m in zip(*sizes)])


#: By numpy's names.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(
            nansum,
            nanprod,
            nanmax,
            nanmin,
            nanmean,
            nanvar,
            nanstd,
            nancumsum,
            nancumprod,
            nanargmax,
            nanargmin,
        ),
        *(nanquantile, nanpercentile, nanmedian, nan_to_num, diag, diagflat),
        *(array_split, split, vsplit, hsplit, kron),
    )
}
