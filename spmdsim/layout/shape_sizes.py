"""The sizes of a shape, and flags: what a parameter holds is what it means."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from spmdsim.errors import OutOfRange, UsageTypeError


def integers(shape: Iterable[Any], what: str = "the sizes of a shape") -> tuple[int, ...]:
    """The sizes of a shape, or other numbers, as Python's integers.

    >>> integers([3, True])
    (3, 1)
    """
    try:
        return tuple(map(index, shape))
    except TypeError:
        raise UsageTypeError(f"{what} are integers, but got {shape!r}") from None


def counted_dim(dim: int, ndim: int) -> int:
    """A dim counted from the front.

    >>> counted_dim(-1, 3)
    2
    """
    if not -ndim <= dim < ndim:
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {ndim} dims")
    return int(dim) % ndim


def flag(name: str, value: Any) -> bool:
    """A parameter that is true or false, and not what has another place in NumPy, such as an element type.

    >>> flag("keepdims", 1)
    True
    """
    if isinstance(value, type) or value not in (False, True):
        raise UsageTypeError(f"{name} is True or False, but got {value!r}")
    return bool(value)
