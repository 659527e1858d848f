"""The reductions in numpy: which operation, on which element types, with which identity element.

16-bit floats are accumulated in float32 in the order of the group and rounded once; all other types are
accumulated in their own type. Integer sums wrap around as numpy's do.

Next: :mod:`spmdsim.core.world`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from spmdsim.core import elements
from spmdsim.core.layout import REDUCE_OPS
from spmdsim.core.world import performed
from spmdsim.errors import WorldError, unknown

#: Reductions of truth values, and the plain reductions that mean the same on them.
_LOGICAL = {"all": np.logical_and, "any": np.logical_or, "min": np.logical_and, "max": np.logical_or}
_NUMERIC = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@lru_cache(maxsize=256)
def check_reduce(op: str | None, dtype: np.dtype) -> str:
    """The reduction's name; WorldError if it has no meaning on this element type, as the sum of bools."""
    if op not in REDUCE_OPS:
        raise unknown(f"no reduction is called {op!r}", str(op), REDUCE_OPS, WorldError)
    if dtype.kind == "b":
        if op not in _LOGICAL:
            raise WorldError(
                f"the {op} of bools is not a bool; reduce with 'any' or 'all', or convert to an integer first"
            )
    elif op in ("all", "any"):
        raise WorldError(f"{op!r} reduces bools, but got {dtype.name}; compare first, as in x != 0")
    elif dtype.kind == "c" and op in ("max", "min"):
        raise WorldError(f"complex numbers have no order, so no {op}; got {dtype.name}")
    elif dtype.kind in "iu" and op == "avg":
        raise WorldError(f"the average of {dtype.name} is not an integer; convert to a float first")
    elif dtype.kind not in "iufc" and not elements.types.is_float(dtype):
        raise WorldError(f"elements of type {dtype.name} cannot be reduced")
    return op


def ufunc(op: str, dtype: np.dtype) -> np.ufunc:
    """The numpy function that combines two operands of the reduction (``avg`` adds)."""
    return _LOGICAL[op] if dtype.kind == "b" else _NUMERIC[op]


def fold(op: str, parts: Iterable[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
    """Reduce equally shaped arrays, one or more, in the order given, into ``out`` or a new C-ordered array."""
    parts = list(parts)
    first = parts[0]
    kind = elements.types.accumulator(op, first.dtype)
    function = ufunc(op, first.dtype)
    direct = out is not None and out.dtype == kind
    total = out if direct else np.empty(first.shape, kind)
    assert total is not None  # for the type checker: direct says that out is given
    if len(parts) == 1:
        total[...] = first
    elif kind == first.dtype:
        function(first, parts[1], out=total)
    else:
        total[...] = first
        function(total, parts[1], out=total)
    for part in parts[2:]:
        function(total, part, out=total)
    if op == "avg":
        total /= len(parts)
    if kind == first.dtype:
        return total
    if out is None:
        return total.astype(first.dtype)
    out[...] = total
    return out


def in_type(arrays: Sequence[Any], dtype: np.dtype) -> list[Any]:
    """Arrays in an element type, C-ordered; those that have it stay, and ranks that share one share it afterwards."""
    run = partial(each, lambda array: array if array.dtype == dtype else array.astype(dtype, order="C"))
    return performed(run, arrays)  # type: ignore[no-any-return]


def each(function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
    """What a function makes of every rank's arrays; ranks that share all of them share the result."""
    results: dict[tuple[int, ...], Any] = {}
    keys = [tuple(map(id, arrays)) for arrays in zip(*lists)]
    for key, arrays in zip(keys, zip(*lists)):
        if key not in results:
            results[key] = function(*arrays)
    return [results[key] for key in keys]


def identity(op: str, dtype: np.dtype) -> object:
    """The value that changes nothing when reduced: 0, 1, -inf, the smallest integer, True, False, ...

    >>> identity("max", np.dtype("int8")), identity("prod", np.dtype("f4"))
    (np.int8(-128), np.float32(1.0))
    """
    check_reduce(op, dtype)
    kind = dtype.type
    if dtype.kind == "b":
        return kind(op in ("all", "min"))
    if op in ("sum", "avg", "prod"):
        return kind(1 if op == "prod" else 0)
    if elements.types.is_float(dtype):
        return kind(-np.inf if op == "max" else np.inf)
    limits = np.iinfo(dtype)
    return kind(limits.min if op == "max" else limits.max)
