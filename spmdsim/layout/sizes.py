"""The sizes of a shape."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from spmdsim.errors import UsageTypeError


def integers(shape: Iterable[Any]) -> tuple[int, ...]:
    """The sizes of a shape as Python's integers.

    Raises:
        UsageTypeError: sizes that are no integers.

    >>> integers([3, True])
    (3, 1)
    """
    try:
        return tuple(map(index, shape))
    except TypeError:
        raise UsageTypeError(f"the sizes of a shape are integers, but got {shape!r}") from None
