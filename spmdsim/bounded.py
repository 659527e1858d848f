"""A cache by value that does not grow for ever: a dict that forgets its oldest entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Entries of a cache whose keys name shapes or values of the user's: a program's calls are far fewer.
MOST = 4096


class Bounded(dict[Key, Value]):
    """A dict of at most so many entries; looking one up costs what it costs in a dict.

    Args:
        most: entries that are kept, the latest ones.
        free: called with a value that is forgotten.

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
