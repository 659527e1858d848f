"""Forked children of a rank: refuse all calls of their worlds, because MPI would take the child for the rank."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from spmdsim.shutdown.stop import describe_forked_child

#: The worlds of several ranks in this process.
several: WeakSet[Any] = WeakSet()


def _refuse_in_child() -> None:
    for world in several:
        world.cache.clear()
        for side in (world._comms, world.agreement):
            side.refuse(describe_forked_child(world.rank))


os.register_at_fork(after_in_child=_refuse_in_child)
