"""A step as a process with one rank runs it, derived once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.step import Step
from spmdsim.core.world import programs
from spmdsim.redistribution.halo import Room
from spmdsim.worlds.mpi.checker import Check
from spmdsim.worlds.mpi.halo_messages import settled
from spmdsim.worlds.programs import StepProgram

Run = Callable[[np.ndarray], np.ndarray]


@dataclass
class MPIStepProgram(StepProgram):
    """A step as this rank runs it.

    Args:
        step: the step.
        shape: what the rank's shard must look like.
        check: compares the call with the other ranks', if it communicates and they compare.
        run: from the shard before to the shard after, the comparison included; None until it was derived.
        room: where the shard before may move to (:func:`settled`).
        types: MPI types to free when the program is forgotten.
    """

    step: Step
    shape: tuple[int, ...]
    check: Check | None = None
    run: Run | None = None
    room: Room | None = None
    types: list[MPI.Datatype] = field(default_factory=list)

    def after(self, shards: list[Any], result: np.ndarray) -> list[Any]:
        """The shards after; the one before moves to where they lie, if that is a copy of it.

        Not while what runs is written down: who writes it knows arrays by their identity.
        """
        if self.room is not None and not programs and type(shards) is list:
            shards[0] = settled(shards[0], result, self.room)
        return [result]

    def free(self) -> None:
        """Free its types."""
        self.run = None
        while self.types:
            self.types.pop().Free()
