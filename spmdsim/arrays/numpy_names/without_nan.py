"""NumPy's functions that ignore nan, or replace nan by numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.conversion import asarray
from spmdsim.arrays.creation import full
from spmdsim.arrays.operands import convert_operands
from spmdsim.arrays.ops.dim_reductions import normalise_dims, to_sum_type, to_type
from spmdsim.arrays.ops.scans import conjugate_if_complex
from spmdsim.arrays.ops.statistics import (
    check_fractions,
    mean_of_pairs,
    merge_dims_last,
    to_type_of_quantiles,
)
from spmdsim.core import Layout
from spmdsim.errors import InputError, RuleError

Axis = int | Sequence[int] | None
#: Interpolates: a function of the entries below and above, and of the fraction of the distance between them.
Between = Callable[[Tensor, Tensor, Tensor], Tensor]


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


def nancumsum(a: Tensor, axis: int | None = None) -> Tensor:
    """Compute running sums, with nan as 0; None: over all entries in row-major order."""
    return _running(ops.cumulative_sum, a, axis, 0)


def nancumprod(a: Tensor, axis: int | None = None) -> Tensor:
    """Compute running products, with nan as 1; None: over all entries in row-major order."""
    return _running(ops.cumulative_prod, a, axis, 1)


def _running(function: Callable[..., Tensor], a: Tensor, axis: int | None, neutral: float) -> Tensor:
    """Apply a running function with nan replaced by its neutral element.

    With ``axis`` None, run over all elements in row-major order.
    """
    x = _fill_nan(a, neutral)
    return function(ops.reshape(x, -1), 0) if axis is None else function(x, axis)


def _index_of_extreme(
    function: Callable[..., Tensor], name: str, a: Tensor, axis: int | None, keepdims: bool, least: float
) -> Tensor:
    """Return the index of the extreme of the elements that are not nan.

    All ranks must call it, because they check that each row has such an element.

    Args:
        function: ``ops.argmax`` or ``ops.argmin``.
        name: the name in the error.
        a: the tensor.
        axis: the dimension; None: all.
        keepdims: keep the reduced dimension with size 1.
        least: the number in place of nan: -inf for ``ops.argmax``, inf for ``ops.argmin``.

    Raises:
        InputError: If all entries of a row are nan.
    """
    if a.dtype.kind in "fV" and bool(ops.any(ops.all(ops.isnan(a), axis))):
        raise InputError(f"np.{name}: there are rows of nothing but nan along axis {axis}")
    return function(_fill_nan(a, least), axis, keepdims)


def nanargmax(a: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the largest element that is not nan.

    All ranks check that one exists. Raises InputError if all elements of a row are nan.
    """
    return _index_of_extreme(ops.argmax, "nanargmax", a, axis, keepdims, -math.inf)


def nanargmin(a: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the smallest element that is not nan.

    All ranks check that one exists. Raises InputError if all elements of a row are nan.
    """
    return _index_of_extreme(ops.argmin, "nanargmin", a, axis, keepdims, math.inf)


def nanquantile(a: Tensor, q: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Compute quantiles of elements that are not nan, by linear interpolation.

    Args:
        a: the tensor.
        q: a fraction from 0 to 1, or an array of them; its dims come first in the result.
        axis: one dim or several; None: all.
        keepdims: keep reduced dims with size 1.

    Raises:
        RuleError: If elements are complex, or a fraction is not in [0, 1].
    """
    return _nanquantile(to_type_of_quantiles(a, q), np.asarray(q, np.float64), axis, keepdims, _interpolate)


def _nanquantile(a: Tensor, fractions: np.ndarray, axis: Axis, keepdims: bool, between: Between) -> Tensor:
    """Compute quantiles of the elements that are not nan.

    For example, the median (fraction 0.5) of [1, nan, 5] is 3. The result has the dims of ``fractions``, then the
    remaining dims of ``a``. It is nan where all elements are nan. Integers are cast to float64. The quantiles are
    found by sorting the elements.

    Args:
        a: the tensor.
        fractions: numbers from 0 to 1.
        axis: one dim or several; None: all.
        keepdims: keep reduced dims with size 1.
        between: ``between(below, above, fraction)`` interpolates between the entries below and above.

    Raises:
        RuleError: If elements are complex, or a fraction is not in [0, 1].
    """
    check_fractions(fractions)
    if a.dtype.kind == "c":
        raise RuleError("complex numbers have no quantiles")
    dims = normalise_dims(axis, a.ndim)
    is_floating = a.dtype.kind in "fV"  # V: types of 16 bits that NumPy lacks
    rows = merge_dims_last(a if is_floating else ops.cast(a, np.float64), dims)
    remaining_sizes = [1 if d in dims else n for d, n in enumerate(a.shape) if keepdims or d not in dims]
    if not rows.shape[-1]:
        shape = (*fractions.shape, *remaining_sizes)
        layout = Layout.replicated(rows.layout.mesh, len(shape))
        return full(shape, math.nan, dtype=rows.dtype, layout=layout, world=a.world)
    ordered = ops.sort(rows)
    # Nan are last in sorted order. So the last number of a row is at the position "count of numbers - 1". In a row
    # without numbers, take the nan at position 0.
    number_counts = ops.sum(ops.cast(_is_valid(rows), np.int64), -1, True)
    last = ops.where(ops.equal(number_counts, 0), 0, ops.subtract(number_counts, 1))
    quantiles = [
        _quantile_of_rows(ordered, last, fraction, between) for fraction in fractions.reshape(-1).tolist()
    ]
    return ops.reshape(ops.stack(quantiles), (*fractions.shape, *remaining_sizes))


def _quantile_of_rows(ordered: Tensor, last: Tensor, q: float, between: Between) -> Tensor:
    """Return one quantile of each row: the value at the position ``q * last``.

    It is interpolated between two entries: the row [1, 2, 4] has 1.5 at the position 0.25 * 2 = 0.5. The result has one
    entry per row, in a last dim of size 1.

    Args:
        ordered: sorted rows, along the last dim.
        last: the position of the last valid entry of each row.
        q: the fraction, 0 to 1.
        between: interpolates between the entries below and above.
    """
    position = ops.multiply(last, q)
    low = ops.cast(position, np.int64)
    high = ops.where(ops.equal(ops.cast(low, np.float64), position), low, ops.add(low, 1))
    below, above = (ops.take_along_axis(ordered, indices, -1) for indices in (low, high))
    return between(below, above, ops.cast(ops.subtract(position, low), ordered.dtype))


def _interpolate(below: Tensor, above: Tensor, fraction: Tensor) -> Tensor:
    """Interpolate linearly between two entries.

    From a fraction of 0.5 on, count from the upper entry, as NumPy does. Where both entries are equal, infinities too,
    return the entry itself, because a difference of infinities is nan.

    Args:
        below: the lower entries.
        above: the upper entries.
        fraction: the distance from the lower entry as a part of the whole distance.
    """
    is_nearer_above = ops.greater_equal(fraction, 0.5)
    offset = ops.multiply(
        ops.subtract(above, below), ops.where(is_nearer_above, ops.subtract(fraction, 1), fraction)
    )
    return ops.where(
        ops.equal(below, above), below, ops.add(ops.where(is_nearer_above, above, below), offset)
    )


def nanpercentile(a: Tensor, q: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Compute :func:`nanquantile` with percentages instead of fractions."""
    return _nanquantile(
        to_type_of_quantiles(a, q), np.asarray(q, np.float64) / 100, axis, keepdims, _interpolate
    )


def nanmedian(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the middle element that is not nan, or the mean of the two middle ones."""
    return _nanquantile(a, np.array(0.5), axis, keepdims, lambda below, above, _: mean_of_pairs(below, above))


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
