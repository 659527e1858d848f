"""What executes: a world owns some ranks and runs the steps of redistributions on their shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.ending.starting import start_mpi
from spmdsim.worlds.base import World
from spmdsim.worlds.current import world

if TYPE_CHECKING:
    from spmdsim.worlds.lockstep_world import LockStep, ShapeArray, ShapeOnly
    from spmdsim.worlds.mpi.communicator import EmulatedCommunicator
    from spmdsim.worlds.mpi.mpi_world import MPIWorld

__all__ = ["EmulatedCommunicator", "LockStep", "MPIWorld", "ShapeArray", "ShapeOnly", "World", "world"]

_HOME = {
    "EmulatedCommunicator": "mpi.communicator",
    "LockStep": "lockstep_world",
    "MPIWorld": "mpi.mpi_world",
    "ShapeArray": "lockstep_world",
    "ShapeOnly": "lockstep_world",
}


def __getattr__(name: str) -> Any:
    """Import a world when it is first asked for: MPI starts with MPIWorld, not with this package."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if _HOME[name].startswith("mpi."):
        start_mpi()
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
