"""Runs of a step on one rank: they accept any array, and log the call that ranks compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.core.step import Step
from spmdsim.redistribution.steps.halo import Room
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.mpi.exchanges import find_block_copy
from spmdsim.worlds.mpi.nonblocking import BeginsEarly
from spmdsim.worlds.programs import Run, StepProgram
from spmdsim.worlds.trace import recorder


@dataclass
class MPIStepProgram(StepProgram):
    """Step as this rank runs it, derived once.

    Attributes:
        step: the step.
        shape: the shape of the shard before the step.
        members: the ranks of both meshes, sorted.
        call: the call that ranks compare; None if the step sends nothing or they compare nothing.
        run: runs the step and compares the call; None before it is derived.
        room: the padded buffer of a halo exchange, into which the shard before the step may move.
        types: MPI types, which are freed when the program leaves the cache.
    """

    step: Step
    shape: tuple[int, ...]
    members: tuple[int, ...] = ()
    call: Call | None = None
    run: Run | None = None
    room: Room | None = None
    types: list[MPI.Datatype] = field(default_factory=list)

    def after(self, shards: list[Any], result: np.ndarray) -> list[Any]:
        """Return the list of shards after the step: ``[result]``.

        If the padded buffer has a copy of the shard before, replace the shard in ``shards`` by it. Shards stay while a
        program is recorded, because the recording identifies arrays by their identity.

        Args:
            shards: the list with the shard before the step.
            result: the shard after it.
        """
        if self.room is not None and not recorder.programs and type(shards) is list:
            shards[0] = find_block_copy(shards[0], result, self.room)
        return [result]

    def free(self) -> None:
        """Free its types."""
        self.run = None
        while self.types:
            self.types.pop().Free()


class ContiguousRun:
    """Run that accepts any array, made from one that accepts C-contiguous arrays."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, array: np.ndarray) -> np.ndarray:
        """Run the step on a shard."""
        return self._run(contiguous(array))


class ComparedRun:
    """Run that logs and compares each call, and accepts any array.

    Args:
        run: the step on a C-contiguous array.
        call: the call that the ranks compare.
        world: the world, whose agreement logs it.
    """

    def __init__(self, run: Run, call: Call, world: BeginsEarly) -> None:
        self._run, self._call, self._world = run, call, world

    def run(self, array: np.ndarray) -> np.ndarray:
        """Run the step on a shard, between the begin and the end of the logged call.

        Args:
            array: the shard; one that is not C-contiguous is copied first.

        Returns:
            The shard after the step.

        Raises:
            DisagreementError: If ranks make other calls, or do not come before the deadline.
        """
        world, call = self._world, self._call
        number = world.agreement.begin(call, world.call_provenance)
        try:
            result = self._run(contiguous(array))
        except BaseException as error:
            world.agreement.end(call, number, error)
            raise
        world.agreement.end(call, number)
        return result
