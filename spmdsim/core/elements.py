"""Elements: reduce them, convert them, and compute with the arrays of several ranks.

Next: :mod:`spmdsim.core.bytes_planner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from spmdsim.core.element_types import accumulator, check_reduce, is_float

#: NumPy's functions by reduction, for bools and for numbers. For bools "min" means "all" and "max" means "any". An
#: average adds first.
_LOGICAL = {"all": np.logical_and, "any": np.logical_or, "min": np.logical_and, "max": np.logical_or}
_NUMERIC = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def ufunc(op: str, dtype: np.dtype) -> np.ufunc:
    """Return the NumPy function that combines two operands of a reduction (``avg`` adds)."""
    return _LOGICAL[op] if dtype.kind == "b" else _NUMERIC[op]


def fold(op: str, arrays: Iterable[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
    """Reduce arrays element by element, from the first array to the last, and return the result.

    Sums, averages and products of 16-bit floats are computed in float32 and rounded once at the end, see
    :func:`accumulator`. It is not checked whether the reduction exists for the type, see :func:`check_reduce`.

    Args:
        op: the name of the reduction; ``avg`` divides the sum by the number of arrays.
        arrays: one or more arrays of one shape and type. They do not change unless ``out`` is one of them.
        out: the array for the result, which is returned. It may be the first or the second of ``arrays``, but no
            later one, because it gets intermediate results. None: a new C-ordered array of the operands' type.

    >>> fold("avg", [np.array([1.0, 2.0]), np.array([3.0, 6.0])])
    array([2., 4.])
    """
    first, *others = operands = list(arrays)
    kind, function = accumulator(op, first.dtype), ufunc(op, first.dtype)
    total = out if out is not None and out.dtype == kind else np.empty(first.shape, kind)
    if others and kind == first.dtype:
        function(first, others.pop(0), out=total)
    else:
        total[...] = first
    for array in others:
        function(total, array, out=total)
    if op == "avg":
        total /= len(operands)
    if out is None:
        return total.astype(first.dtype, copy=False)
    if out is not total:
        out[...] = total
    return out


def identity(op: str, dtype: np.dtype) -> object:
    """Return the value that a reduction ignores, such as 0 for a sum, as a scalar of a type.

    * "sum" and "avg": 0; "prod": 1.
    * "max": the smallest value of an integer type, else -inf; "min": the largest one, or inf.
    * For bools: True for "all" and "min", False for "any" and "max".

    Args:
        op: the name of the reduction.
        dtype: the element type.

    Raises:
        WorldError: If the reduction is undefined for the type.

    >>> identity("max", np.dtype("int8")), identity("prod", np.dtype("f4"))
    (np.int8(-128), np.float32(1.0))
    """
    check_reduce(op, dtype)
    kind = dtype.type
    if dtype.kind == "b":
        return kind(op in ("all", "min"))
    if op in ("sum", "avg", "prod"):
        return kind(1 if op == "prod" else 0)
    if is_float(dtype):
        return kind(-np.inf if op == "max" else np.inf)
    limits = np.iinfo(dtype)
    return kind(limits.min if op == "max" else limits.max)


def convert(array: Any, dtype: np.dtype) -> Any:
    """Return an array in an element type, C-ordered: itself if it has that type."""
    return array if array.dtype == dtype else array.astype(dtype, order="C")


def in_type(arrays: Sequence[Any], dtype: np.dtype) -> list[Any]:
    """Return arrays converted to an element type, C-ordered.

    Arrays of that type are returned unchanged. Ranks that share an array share the converted array.
    """
    return each(partial(convert, dtype=dtype), arrays)


def each(function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
    """Call a function with the arrays of each rank and return the results in rank order.

    Ranks that share all their arrays share the result: the function runs once for them. Arrays are shared if they
    are the same object; equal values in different objects do not count.

    Args:
        function: takes one array per list.
        lists: one list for each argument of the function, at least one, with one array per rank.
    """
    if len(lists[0]) == 1:
        return [function(*[arrays[0] for arrays in lists])]
    results: dict[tuple[int, ...], Any] = {}
    keys = [tuple(map(id, arrays)) for arrays in zip(*lists)]
    for key, arrays in zip(keys, zip(*lists)):
        if key not in results:
            results[key] = function(*arrays)
    return [results[key] for key in keys]


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return the array if it is C-contiguous, else a C-ordered copy; 0-d arrays stay 0-d."""
    return array if array.flags.c_contiguous else array.copy()
