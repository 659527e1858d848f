"""The world a dialect's program runs in: its spelling has no word for it.

Under an MPI launcher it is the job; elsewhere a LockStep of the size given to :func:`use_world` (one rank if
nobody gave one).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

_given: list[World] = []
_default: list[World] = []


def current_world() -> World:
    """The world in use."""
    if _given:
        return _given[-1]
    if not _default:
        from spmdsim.worlds import world

        _default.append(world())
    return _default[0]


@contextmanager
def use_world(world: World) -> Iterator[World]:
    """Run the dialects' programs inside the block in this world."""
    _given.append(world)
    try:
        yield world
    finally:
        _given.remove(world)
