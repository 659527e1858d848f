"""A cache with a maximum size: a dict that removes its oldest entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Default size of caches with shapes or values in their keys; programs have far fewer calls.
MOST = 4096


class Bounded(dict[Key, Value]):
    """A dict with a maximum number of entries; a look-up costs as much as in a dict.

    Args:
        most: largest number of entries; the oldest one is removed first.
        free: function that is called with each removed value.

    >>> squares = Bounded(2)
    >>> for n in range(4):
    ...     squares[n] = n * n
    >>> squares
    {2: 4, 3: 9}
    """

    __slots__ = ("free", "most")

    def __init__(self, most: int = MOST, free: Callable[[Value], object] | None = None) -> None:
        super().__init__()
        self.most, self.free = most, free

    def __setitem__(self, key: Key, value: Value) -> None:
        if len(self) >= self.most and key not in self:
            oldest = self.pop(next(iter(self)))
            if self.free is not None:
                self.free(oldest)
        super().__setitem__(key, value)
