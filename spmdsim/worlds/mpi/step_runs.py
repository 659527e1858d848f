"""A step as one rank runs it: on contiguous arrays, and between the begin and the end of the call that ranks compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.core.step import Step
from spmdsim.redistribution.steps.halo import Room
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.mpi.exchanges import settled
from spmdsim.worlds.mpi.nonblocking import BeginsEarly
from spmdsim.worlds.programs import Run, StepProgram
from spmdsim.worlds.trace import recorder


@dataclass
class MPIStepProgram(StepProgram):
    """A step as this rank runs it, derived once.

    ``run`` also compares the ``call`` with the other ranks', if it communicates and they compare. The shard before may
    move into the ``room``; MPI's types are freed when the program is forgotten.
    """

    step: Step
    shape: tuple[int, ...]
    members: tuple[int, ...] = ()
    call: Call | None = None
    run: Run | None = None
    room: Room | None = None
    types: list[MPI.Datatype] = field(default_factory=list)

    def after(self, shards: list[Any], result: np.ndarray) -> list[Any]:
        """Return the shards after the step. Move the shard before into their buffer if that has a copy of it.

        Not while what runs is written down: who writes it knows arrays by their identity.
        """
        if self.room is not None and not recorder.programs and type(shards) is list:
            shards[0] = settled(shards[0], result, self.room)
        return [result]

    def free(self) -> None:
        """Free its types."""
        self.run = None
        while self.types:
            self.types.pop().Free()


class ContiguousRun:
    """A run that accepts any array, from one that accepts C-contiguous arrays."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, array: np.ndarray) -> np.ndarray:
        """Run the step on a shard."""
        return self._run(contiguous(array))


class ComparedRun:
    """Like `ContiguousRun`, but log and compare each call.

    Args:
        run: the step on a C-contiguous array.
        call: the call that the ranks compare.
        world: the world, whose agreement logs it.
    """

    def __init__(self, run: Run, call: Call, world: BeginsEarly) -> None:
        self._run, self._call, self._world = run, call, world

    def run(self, array: np.ndarray) -> np.ndarray:
        """Run the step on a shard."""
        world, call = self._world, self._call
        number = world.agreement.begin(call, world.call_provenance)
        try:
            result = self._run(contiguous(array))
        except BaseException as error:
            world.agreement.end(call, number, error)
            raise
        world.agreement.end(call, number)
        return result
