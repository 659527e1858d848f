"""Record the handles that a program creates and does not free: datatypes, operations, communicators, requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class OpenHandles:
    """The handles that the ranks of a simulation created and have not freed.

    Several handles of one object count as one.

    Args:
        locate: returns the place in the program of the running call.
    """

    def __init__(self, locate: Callable[[], Any]) -> None:
        self._locate = locate
        self._records: dict[int, tuple[str, Any]] = {}

    def add(self, handle: Any, kind: str) -> None:
        """Record a new handle; ``kind`` is the noun for it, such as "datatype"."""
        self._records[handle._identity()] = kind, self._locate()

    def remove(self, handle: Any) -> None:
        """Remove the record of a handle that is not null, if it has one."""
        self._records.pop(handle._identity(), None)

    def count_of_rank(self, kind: str) -> int:
        """Return the number of open handles of a kind that the running rank created."""
        rank = self._locate().rank
        return [(name, location.rank) for name, location in self._records.values()].count((kind, rank))

    def list_places(self) -> list[tuple[str, Any]]:
        """Return the kind and the place of each open handle."""
        return [*self._records.values()]


_active: list[OpenHandles] = []


@contextmanager
def recorded(handles: OpenHandles) -> Iterator[None]:
    """Record new handles inside a ``with`` block. Yields None."""
    _active.append(handles)
    try:
        yield
    finally:
        _active.pop()


def add_handle(handle: Any, kind: str) -> None:
    """Record a new handle of the running simulation; do nothing outside of one."""
    if _active:
        _active[-1].add(handle, kind)


def count_handles(kind: str) -> int:
    """Return the number of open handles of a kind of the running rank; 0 outside of a simulation."""
    return _active[-1].count_of_rank(kind) if _active else 0


def remove_handle(handle: Any) -> None:
    """Remove the record of a handle that the program frees, before the handle becomes null."""
    if _active:
        _active[-1].remove(handle)
