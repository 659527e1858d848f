"""NumPy's functions that select, count and order elements: conditions, sets, sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.in_place import become, detach_current
from spmdsim.arrays.numpy_names.arrangement import ravel
from spmdsim.arrays.operands import Operand, array_operands, convert_operands
from spmdsim.arrays.ops.along import put_along_axis as put_along_axis_of
from spmdsim.arrays.ops.declare import convert_to_one_type
from spmdsim.errors import InputError, RuleError, UsageTypeError
from spmdsim.layout.element_type import promote_types


def where(condition: Operand, x: Operand | None = None, y: Operand | None = None) -> Any:
    """Return elements of ``x`` where the condition holds, else of ``y``.

    For a condition alone, return a tuple of the indices where it holds, one tensor per dim.

    Args:
        condition: truth values.
        x: the elements where it holds; None: there is only a condition.
        y: the other elements; None if ``x`` is None. All three broadcast.

    Raises:
        UsageTypeError: If only one of ``x`` and ``y`` was passed.
        RuleError: If shapes do not broadcast, or a condition alone has no dims.
        WorldError: If there is only a condition and the world has no data.
    """
    if (x is None) != (y is None):
        raise UsageTypeError("np.where takes a condition, or a condition and two operands, but got one")
    if x is None or y is None:
        return ops.nonzero(*convert_operands("np.where", (condition,)))
    return ops.where(condition, x, y)


def argwhere(a: Tensor) -> Tensor:
    """Return the indices of entries that are not 0, one entry per row."""
    if not a.ndim:  # One row without columns if the number is not 0, otherwise no row.
        return ops.getitem(argwhere(ravel(a)), (slice(None), slice(0)))
    return ops.stack(ops.nonzero(a), 1)


def extract(condition: Operand, arr: Operand) -> Tensor:
    """Return the entries for which a condition is true, in one dimension."""
    condition, values = convert_operands("np.extract", (condition, arr))
    return ops.getitem(ravel(values), ravel(ops.cast(condition, np.bool_)))


def compress(condition: Sequence[bool] | np.ndarray, a: Tensor, axis: int | None = None) -> Tensor:
    """Return the entries along a dimension for which a condition is true.

    Args:
        condition: truth values that all ranks have. Entries behind its end are left out.
        a: the tensor.
        axis: the dimension; None: flatten the tensor first.

    Raises:
        UsageTypeError: If the condition is a tensor.
        RuleError: If the dimension is out of range.
    """
    if isinstance(condition, Tensor):
        raise UsageTypeError(
            "np.compress takes a list of truth values that all ranks have; of a tensor use a[mask]"
        )
    positions = np.flatnonzero(condition)
    return ops.take(ravel(a), positions, 0) if axis is None else ops.take(a, positions, axis)


def select(condlist: Sequence[Operand], choicelist: Sequence[Operand], default: Operand = 0) -> Tensor:
    """Return for each element the choice of the first condition that holds, else ``default``.

    Conditions and choices broadcast. At least one of them must be a tensor. With the conditions ``x > 5`` and ``x >
    2``, the choices 100 and ``x``, and the default 0, for example, x [1, 4, 9] gives [0, 4, 100].

    Args:
        condlist: the conditions.
        choicelist: one choice per condition: a tensor, an array or a number.
        default: the choice if no condition holds.

    Returns:
        A tensor in the type to which all choices and ``default`` are promoted; Python numbers adapt to the others.

    Raises:
        RuleError: If there are no conditions, or another number of choices.
        InputError: If a number among the choices is out of the range of the common element type.
    """
    number = len(condlist)
    if number != len(choicelist) or not number:
        raise RuleError(
            f"np.select takes a choice for each condition, but got {number} and {len(choicelist)}"
        )
    numbers = bool, int, float, complex
    values = [x if isinstance(x, (Tensor, *numbers)) else np.asarray(x) for x in (*choicelist, default)]
    types: list[Any] = [x.dtype if isinstance(x, Tensor) else x for x in values]
    dtype = np.result_type(*types)
    *choices, result = (_convert_choice(x, dtype) if isinstance(x, numbers) else x for x in values)
    like = next((x for x in (*condlist, *values) if isinstance(x, Tensor)), None)
    conditions = convert_operands("np.select", (like, *condlist))[1:]
    for condition, choice in reversed(tuple(zip(conditions, choices))):
        result = ops.where(condition, choice, result)
    return convert_operands("np.select", (result,))[0]


def _convert_choice(number: complex, dtype: np.dtype) -> np.ndarray:
    """Return a Python number as an array without dims, in the common type of all choices.

    Args:
        number: the number, one of the choices of ``np.select``.
        dtype: the common element type of all choices.

    Raises:
        InputError: If an int is out of range for an integer type; ``np.select`` would wrap it around.
    """
    try:
        return np.asarray(number, dtype)
    except OverflowError:
        limits = np.iinfo(dtype)
        raise InputError(
            f"np.select: numbers among choices must be in the range of {dtype.name}, {limits.min} to {limits.max}, got {number}; "
            f"give np.int64({number}), or convert the choices first, such as x.astype('int64')"
        ) from None


def unique(
    ar: Tensor,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """Return the unique values in ascending order; optionally first indices, inverse and counts.

    All ranks must call it, because the number of values depends on data.

    Args:
        ar: the tensor.
        return_index: also return the row-major index of each value's first occurrence.
        return_inverse: also return, for each entry, the index of its value in the result, in the shape of ``ar``.
        return_counts: also return the number of occurrences.
        axis: None; slices are not supported.
        equal_nan: count all nan as one value, the last one.

    Returns:
        The values; or a tuple of the values and the other requested tensors, in the order of the arguments.

    Raises:
        UsageTypeError: If ``axis`` is not None.
        WorldError: If the world has no data.
    """
    if axis is not None:
        raise UsageTypeError("np.unique of tensors compares elements, not slices along an axis=")
    is_wanted = (True, return_index, return_inverse, return_counts)
    results_of_all = tuple(ops.unique_all(ar)) if any(is_wanted[1:]) else (ops.unique_values(ar),)
    nan_count = int(ops.sum(ops.isnan(ar))) if equal_nan and ar.dtype.kind in "fcV" else 0
    if nan_count > 1:
        results_of_all = _merge_nan(results_of_all, results_of_all[0].size - nan_count, nan_count)
    results = tuple(result for result, wanted in zip(results_of_all, is_wanted) if wanted)
    return results if any(is_wanted[1:]) else results[0]


def _merge_nan(parts: tuple[Tensor, ...], first_nan: int, nan_count: int) -> tuple[Tensor, ...]:
    """Return the results of a search for unique values with all nan merged to one value.

    For example, the values [1, nan, nan] with counts [4, 1, 1] become [1, nan] with counts [4, 2].

    Args:
        parts: the results of ``unique_all`` (values, first indices, inverse, counts), or the values alone.
        first_nan: the index of the first nan among the values; all later values are nan, too.
        nan_count: the number of nan; it becomes the count of the merged value.
    """
    merged = [result[: first_nan + 1] for result in parts]
    if len(parts) > 1:
        _, _, inverse, counts = parts
        merged[2] = ops.minimum(inverse, first_nan)
        merged[3] = ops.concat(convert_operands("np.unique", (counts[:first_nan], np.array([nan_count]))))
    return tuple(merged)


def union1d(ar1: Operand, ar2: Operand) -> Tensor:
    """Return the values that are in at least one tensor, ascending."""
    result: Tensor = unique(ops.concat([ravel(x) for x in convert_operands("np.union1d", (ar1, ar2))]))
    return result


def intersect1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> Tensor:
    """Return the values that are in both tensors, ascending.

    ``assume_unique``: the values of each tensor are distinct; duplicates are then not removed.
    """
    first, second = convert_to_one_type("intersect1d", *array_operands("np.intersect1d", (ar1, ar2)))
    first = ops.cast(first, promote_types(first.dtype, second.dtype))
    values = ops.sort(ravel(first)) if assume_unique else unique(first)
    return values[ops.isin(values, second)]


def setxor1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> Tensor:
    """Return the values that are in exactly one tensor, ascending."""
    first, second = array_operands("np.setxor1d", (ar1, ar2))
    result: Tensor = union1d(setdiff1d(first, second, assume_unique), setdiff1d(second, first, assume_unique))
    return result


def setdiff1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> Tensor:
    """Return the values of the first tensor that are not in the second, ascending.

    ``assume_unique``: the values of each tensor are distinct; the result then has the order of ``ar1``.
    """
    first, second = array_operands("np.setdiff1d", (ar1, ar2))
    values = ravel(first) if assume_unique else unique(first)
    return values[ops.logical_not(ops.isin(values, second))]


def put_along_axis(arr: Tensor, indices: Operand, values: Operand, axis: int | None) -> None:
    """Replace entries at positions along a dim in place.

    Args:
        arr: the tensor.
        indices: the positions; they broadcast with ``arr`` except along ``axis``.
        values: broadcast to the shape of ``indices``.
        axis: the dim; None: the positions are row-major.
    """
    old = detach_current(arr) if axis is not None else ravel(detach_current(arr))
    new = put_along_axis_of(old, indices, values, 0 if axis is None else axis)
    become(arr, new if axis is not None else ops.reshape(new, arr.shape), "np.put_along_axis")


# -- into a tensor: it gets new values, no array is written into ------------------------------------------------


def _require_tensor(call: str, x: Any) -> None:
    """Raise UsageTypeError if the first argument of a function that changes it is no tensor."""
    if not isinstance(x, Tensor):
        raise UsageTypeError(
            f"{call} takes a tensor first when others are tensors, but got {type(x).__name__}"
        )


def _repeat_values(call: str, values: Any, shape: Any) -> np.ndarray:
    """Repeat values that all ranks have until a shape is full; raise RuleError if there are none."""
    array = np.asarray(values)
    if not array.size and np.prod(shape):
        raise RuleError(f"{call} repeats values, but got none for shape {shape}")
    return np.resize(array, shape)


def copyto(dst: Tensor, src: Operand, *, where: Operand = True) -> None:
    """Replace elements of ``dst`` in place by elements of ``src`` where a condition holds.

    ``src`` and the condition ``where`` broadcast to ``dst``. Other elements stay.
    """
    _require_tensor("np.copyto", dst)
    old = detach_current(dst)
    mask = ops.broadcast_to(convert_operands("np.copyto", (old, where))[1], dst.shape)
    become(dst, ops.where(mask, src, old), "np.copyto")


def put(a: Tensor, ind: Operand, v: Operand) -> None:
    """Replace elements at row-major positions in place.

    Args:
        a: the tensor.
        ind: the positions; negative ones count from the end.
        v: one value per position, converted to the type of ``a``. An array with another number of values is repeated
            or cut; a tensor must have one value per position.

    Raises:
        UsageTypeError: If ``a`` is no tensor, or ``v`` is a tensor with another number of values.
        InputError: If a position is out of range.
        RuleError: If there are positions but no values.
    """
    _require_tensor("np.put", a)
    positions = ravel(convert_operands("np.put", (a, ind))[1])
    if isinstance(v, Tensor) and v.size == positions.size:
        put_along_axis(a, positions, ravel(v), None)
    else:
        put_along_axis(a, positions, _repeat_values("np.put", v, positions.shape), None)


def searchsorted(a: Operand, v: Operand, side: str = "left", sorter: Any = None) -> Tensor:
    """Return the indices where values can be inserted into a sorted vector."""
    ordered, values = array_operands("np.searchsorted", (a, v))
    return ops.searchsorted(ordered, values, side, sorter)


def bincount(x: Operand, weights: Operand | None = None, minlength: int = 0) -> Tensor:
    """Count the occurrences of each integer from 0, or sum their weights."""
    numbers, *weight_tensors = convert_operands("np.bincount", (x,) if weights is None else (x, weights))
    return ops.bincount(numbers, weight_tensors[0] if weight_tensors else None, minlength)


def digitize(x: Tensor, bins: Sequence[float] | np.ndarray, right: bool = False) -> Tensor:
    """Return the number of the interval that contains each element, from 0 to ``len(bins)``.

    Interval k is between the bounds k - 1 and k. Interval 0 is before the first bound (below it if bounds ascend, above
    it if they descend), and interval ``len(bins)`` is after the last one. For example, with the bounds [0, 10], the
    elements -1, 5 and 10 are in the intervals 0, 1 and 2.

    Args:
        x: the tensor.
        bins: the bounds, ascending or descending, an array that all ranks have.
        right: intervals contain their right bound instead of the left one.

    Raises:
        UsageTypeError: If ``bins`` is a tensor, or ``x`` is not a tensor.
        RuleError: If the bounds are not in order, or no vector.
    """
    if isinstance(bins, Tensor) or not isinstance(x, Tensor):
        raise UsageTypeError("np.digitize takes a tensor and bounds that all ranks have; use bins.full()")
    bounds, side = np.asarray(bins), "left" if right else "right"
    steps = np.diff(bounds)
    if bounds.ndim != 1 or not ((steps >= 0).all() or (steps <= 0).all()):
        raise RuleError(f"np.digitize of tensors takes bounds in order, but got {bounds.tolist()}")
    if (steps >= 0).all():
        return ops.searchsorted(array_operands("np.digitize", (bounds, x))[0], x, side=side)
    ascending_bounds = array_operands("np.digitize", (bounds[::-1].copy(), x))[0]
    return ops.subtract(len(bounds), ops.searchsorted(ascending_bounds, x, side=side))
