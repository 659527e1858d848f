"""NumPy's functions that pick, count and order elements: conditions, sets, sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim import ops
from spmdsim.errors import RuleError, UsageTypeError
from spmdsim.numpy_names.arrangement import ravel
from spmdsim.ops.along import put_along
from spmdsim.ops.along import put_along_axis as put_along_axis_of
from spmdsim.ops.scans import along_dim
from spmdsim.tensor import Tensor
from spmdsim.tensor.creation import ones_like
from spmdsim.tensor.operands import Operand, operands
from spmdsim.tensor.symbols import become, before

# -- by a condition ------------------------------------------------------------------------------------------


def where(condition: Operand, x: Operand | None = None, y: Operand | None = None) -> Any:
    """Elements of one or the other; of a condition alone the places where it holds.

    Raises:
        UsageTypeError: one of two.
    """
    if (x is None) != (y is None):
        raise UsageTypeError("np.where takes a condition, or a condition and two operands, but got one")
    if x is None or y is None:
        return ops.nonzero(*operands("np.where", (condition,)))
    return ops.where(condition, x, y)


def argwhere(a: Tensor) -> Tensor:
    """The places of the entries that are not 0, one per row."""
    if not a.ndim:  # of a number the row without a place, or none
        return ops.getitem(argwhere(ravel(a)), (slice(None), slice(0)))
    return ops.stack(ops.nonzero(a), 1)


def flatnonzero(a: Tensor) -> Tensor:
    """The numbers of the entries that are not 0, counted through all dims."""
    return ops.nonzero(ravel(a))[0]


def extract(condition: Operand, arr: Operand) -> Tensor:
    """The entries for which a condition holds, in one dim."""
    condition, values = operands("np.extract", (condition, arr))
    return ops.getitem(ravel(values), ravel(ops.cast(condition, np.bool_)))


def compress(condition: Sequence[bool] | np.ndarray, a: Tensor, axis: int | None = None) -> Tensor:
    """The slices along a dim for which an array of truth values holds; entries of all dims for None.

    Raises:
        UsageTypeError: the condition is a tensor.
    """
    if isinstance(condition, Tensor):
        raise UsageTypeError(
            "np.compress takes a list of truth values that all ranks have; of a tensor use a[mask]"
        )
    places = np.flatnonzero(condition)
    return ops.take(ravel(a), places, 0) if axis is None else ops.take(a, places, axis)


def select(condlist: Sequence[Operand], choicelist: Sequence[Operand], default: Operand = 0) -> Tensor:
    """For each element the choice of the first condition that holds.

    Raises:
        RuleError: another number of choices than of conditions, or none.
    """
    number = len(condlist)
    if number != len(choicelist) or not number:
        raise RuleError(
            f"np.select takes a choice for each condition, but got {number} and {len(choicelist)}"
        )
    types: list[Any] = [x.dtype if isinstance(x, Tensor) else x for x in (*choicelist, default)]
    dtype = np.result_type(*types)
    *choicelist, default = (
        np.asarray(x, dtype) if isinstance(x, (bool, int, float, complex)) else x
        for x in (*choicelist, default)
    )
    like = next((x for x in (*condlist, *choicelist, default) if isinstance(x, Tensor)), None)
    conditions = operands("np.select", (like, *condlist))[1:]
    for condition, choice in reversed(tuple(zip(conditions, choicelist))):
        default = ops.where(condition, choice, default)
    return operands("np.select", (default,))[0]


# -- sets ----------------------------------------------------------------------------------------------------


def unique(
    ar: Tensor,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """The different values, ascending, with where each occurs first, which value each entry has, and how often it occurs.

    Every nan counts as the same one, unless ``equal_nan`` is false.

    Raises:
        UsageTypeError: an ``axis``: rows are not compared.
    """
    if axis is not None:
        raise UsageTypeError("np.unique of tensors compares elements, not slices along an axis=")
    asked = (True, return_index, return_inverse, return_counts)
    parts = tuple(ops.unique_all(ar)) if any(asked[1:]) else (ops.unique_values(ar),)
    nans = int(ops.sum(ops.isnan(ar))) if equal_nan and ar.dtype.kind in "fcV" else 0
    if nans > 1:
        parts = _one_nan(parts, parts[0].size - nans, nans)
    results = tuple(part for part, wanted in zip(parts, asked) if wanted)
    return results if any(asked[1:]) else results[0]


def _one_nan(parts: tuple[Tensor, ...], last: int, nans: int) -> tuple[Tensor, ...]:
    """What ``unique_all`` gives, with all that stands from ``last`` on as one value."""
    kept = [part[: last + 1] for part in parts]
    if len(parts) > 1:
        kept[2] = ops.minimum(parts[2], last)
        kept[3] = ops.concat(operands("np.unique", (parts[3][:last], np.array([nans]))))
    return tuple(kept)


def union1d(ar1: Operand, ar2: Operand) -> Tensor:
    """The values that are in one or the other, ascending."""
    result: Tensor = unique(ops.concat([ravel(x) for x in operands("np.union1d", (ar1, ar2))]))
    return result


def intersect1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> Tensor:
    """The values that are in both, ascending."""
    first, second = operands("np.intersect1d", (ar1, ar2))
    values = ops.sort(ravel(first)) if assume_unique else unique(first)
    return values[ops.isin(values, second)]


def setxor1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> Tensor:
    """The values that are in one of the two alone, ascending."""
    first, second = operands("np.setxor1d", (ar1, ar2))
    result: Tensor = union1d(setdiff1d(first, second, assume_unique), setdiff1d(second, first, assume_unique))
    return result


def setdiff1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> Tensor:
    """The values of the first that are not in the second."""
    first, second = operands("np.setdiff1d", (ar1, ar2))
    values = ravel(first) if assume_unique else unique(first)
    return values[ops.logical_not(ops.isin(values, second))]


# -- order ---------------------------------------------------------------------------------------------------


def sort(a: Tensor, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None) -> Tensor:
    """Ascending along a dim, all elements in one dim for None. Every kind of sort is stable here."""
    return ops.sort(ravel(a), 0) if axis is None else ops.sort(a, axis)


def argsort(
    a: Tensor, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None
) -> Tensor:
    """The places that :func:`sort` takes its elements from."""
    return ops.argsort(ravel(a), 0) if axis is None else ops.argsort(a, axis)


def partition(a: Tensor, kth: int | Sequence[int], axis: int | None = -1) -> Tensor:
    """The elements smaller than the ``kth`` before it, the larger ones behind: sorted, which is one way to have it so."""
    return sort(a, axis)


def argpartition(a: Tensor, kth: int | Sequence[int], axis: int | None = -1) -> Tensor:
    """The places that :func:`partition` takes its elements from."""
    return argsort(a, axis)


def lexsort(keys: Sequence[Operand], axis: int = -1) -> Tensor:
    """The places that a sort by several keys takes its elements from, the last key first; all moves are exchanges."""
    given = operands("np.lexsort", tuple(keys))
    layout = max(
        (key.layout.reduced for key in given), key=lambda one: len(one.split_axes)
    )  # none is gathered
    first, *others = (key.to(layout) for key in given)
    at = along_dim("np.lexsort", first, axis)
    order = ops.argsort(first, at)
    places = ops.subtract(ops.cumulative_sum(ones_like(order), at), 1)
    for key in others:
        again = ops.argsort(put_along(key, put_along(places, order, at), at), at)
        order = put_along(order, put_along(places, again, at), at)
    return order


def put_along_axis(arr: Tensor, indices: Operand, values: Operand, axis: int | None) -> None:
    """Other values at places along a dim (of all elements in one dim for None): the tensor gets them, no array is written into."""
    old = before(arr) if axis is not None else ravel(before(arr))
    new = put_along_axis_of(old, indices, values, 0 if axis is None else axis)
    become(arr, new if axis is not None else ops.reshape(new, arr.shape), "np.put_along_axis")


def searchsorted(a: Operand, v: Operand, side: str = "left", sorter: Any = None) -> Tensor:
    """Where values are to be put into a sorted vector so that it stays sorted."""
    ordered, values = operands("np.searchsorted", (a, v))
    return ops.searchsorted(ordered, values, side, sorter)


def bincount(x: Operand, weights: Operand | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on occurs, or the sum of its weights."""
    numbers, *heavy = operands("np.bincount", (x,) if weights is None else (x, weights))
    return ops.bincount(numbers, heavy[0] if heavy else None, minlength)


def digitize(x: Tensor, bins: Sequence[float] | np.ndarray, right: bool = False) -> Tensor:
    """The number of the interval that each element lies in.

    Raises:
        RuleError: bounds that neither ascend nor descend.
    """
    if isinstance(bins, Tensor) or not isinstance(x, Tensor):
        raise UsageTypeError("np.digitize takes a tensor and bounds that all ranks have; use bins.full()")
    bounds, side = np.asarray(bins), "left" if right else "right"
    steps = np.diff(bounds)
    if bounds.ndim != 1 or not ((steps >= 0).all() or (steps <= 0).all()):
        raise RuleError(f"np.digitize of tensors takes bounds in order, but got {bounds.tolist()}")
    if (steps >= 0).all():
        return ops.searchsorted(operands("np.digitize", (bounds, x))[0], x, side=side)
    turned = operands("np.digitize", (bounds[::-1].copy(), x))[0]
    return ops.subtract(len(bounds), ops.searchsorted(turned, x, side=side))


FUNCTIONS = (
    *(
        argpartition,
        argsort,
        argwhere,
        bincount,
        compress,
        digitize,
        extract,
        flatnonzero,
        intersect1d,
        lexsort,
        partition,
        put_along_axis,
    ),
    *(searchsorted, select, setdiff1d, setxor1d, sort, union1d, unique, where),
)
