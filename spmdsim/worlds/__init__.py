"""Worlds: own some of the ranks and run the steps of redistributions on their shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.lazy_imports import lazy_names
from spmdsim.shutdown.phase_watch import start_mpi
from spmdsim.worlds.base import World
from spmdsim.worlds.current import world

if TYPE_CHECKING:
    from spmdsim.worlds.lockstep_world import LockStep, ShapeArray, ShapeOnly
    from spmdsim.worlds.mpi.communicator import EmulatedCommunicator
    from spmdsim.worlds.mpi.mpi_world import MPIWorld

__all__ = ["EmulatedCommunicator", "LockStep", "MPIWorld", "ShapeArray", "ShapeOnly", "World", "world"]

_find = lazy_names(
    __name__,
    {
        "lockstep_world": "LockStep ShapeArray ShapeOnly",
        "mpi.communicator": "EmulatedCommunicator",
        "mpi.mpi_world": "MPIWorld",
    },
)


def __getattr__(name: str) -> Any:
    """Import a world on first use. MPI starts with MPIWorld, not with this package."""
    if name in ("EmulatedCommunicator", "MPIWorld"):
        start_mpi()
    return _find(name)
