"""Ranks written as nested lists: their shape and their row-major order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from spmdsim.errors import LayoutError, UsageTypeError


def flatten(
    value: Any, what: str, error: type[LayoutError] = LayoutError
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and row-major elements of nested lists, tuples, a range or an array of integers.

    Args:
        value: the nested integers.
        what: what they are, for messages.
        error: raised for ragged or empty lists.

    Raises:
        UsageTypeError: an element that is not an integer.

    >>> flatten([[2, 0], [1, 3]], "ranks")
    ((2, 2), (2, 0, 1, 3))
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageTypeError(f"{what} should be an array of integers, but got {value!r}")
    items = list(value)
    if not items:
        raise error(f"{what} should hold at least one integer, but is empty")
    if not any(isinstance(item, Sequence | range) and not isinstance(item, str) for item in items):
        for item in items:
            if isinstance(item, bool) or not hasattr(item, "__index__"):
                raise UsageTypeError(f"{what} should be an array of integers, but got {item!r} in {items}")
        return (len(items),), tuple(item.__index__() for item in items)
    parts = [flatten(item, what, error) if isinstance(item, Iterable) else ((), ()) for item in items]
    if len({shape for shape, _ in parts}) > 1:
        raise error(f"the rows of {what} must have one shape, but got {items}")
    return (len(items), *parts[0][0]), tuple(rank for _, order in parts for rank in order)


def nest(elements: Sequence[int], shape: Sequence[int]) -> list[Any]:
    """Row-major elements as nested lists (inverse of :func:`flatten`).

    >>> nest([2, 0, 1, 3], (2, 2))
    [[2, 0], [1, 3]]
    """
    if len(shape) == 1:
        return list(elements)
    step = math.prod(shape[1:])
    return [nest(elements[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
