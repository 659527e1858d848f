"""Emulated algorithms over MPI: point-to-point messages of numpy arrays of any element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.collectives.execution import execute
from spmdsim.worlds.emulated import Emulation
from spmdsim.worlds.mpi import datatypes
from spmdsim.worlds.mpi.datatypes import counted_parts, element
from spmdsim.worlds.pool import empty

#: All messages of schedules; messages of a pair of ranks keep their order.
TAG = 77_015

abandoned: list[object] = []
"""Requests that will never be complete, with their memory: MPI may still write there."""


class Messages:
    """The transport of schedules: ranks are places in a group, messages go over its communicator.

    Args:
        comm: the communicator.
        numbers: the rank in it of each place; in its own order if left out.
        look: called while messages are under way, with how often it was called in this round before; it may raise.
    """

    def __init__(
        self, comm: MPI.Comm, numbers: Sequence[int] | None = None, look: Callable[[int], None] | None = None
    ) -> None:
        self.comm, self._look = comm, look
        self.numbers = range(comm.Get_size()) if numbers is None else numbers

    def irecv(self, buffer: np.ndarray, source: int, tag: int) -> Any:
        """Start to receive into a contiguous array."""
        peer, kind = self.numbers[source], element(buffer.dtype.itemsize)
        if buffer.size <= datatypes.MAX_COUNT:
            return self.comm.Irecv([buffer, buffer.size, kind], peer, tag)
        return [self.comm.Irecv([part, kind], peer, tag) for part in counted_parts(buffer)]

    def isend(self, buffer: np.ndarray, dest: int, tag: int) -> Any:
        """Start to send a contiguous array."""
        peer, kind = self.numbers[dest], element(buffer.dtype.itemsize)
        if buffer.size <= datatypes.MAX_COUNT:
            return self.comm.Isend([buffer, buffer.size, kind], peer, tag)
        return [self.comm.Isend([part, kind], peer, tag) for part in counted_parts(buffer)]

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Wait for all messages."""
        flat: list[MPI.Request] = []
        for request in requests:
            flat += request if isinstance(request, list) else [request]
        if self._look is None:
            MPI.Request.Waitall(flat)
            return
        looks = 0
        try:
            while not MPI.Request.Testall(flat):
                self._look(looks)
                looks += 1
        except Exception:
            abandoned.append(flat)
            raise


def run_schedule(part: Emulation, comm: MPI.Comm) -> Callable[[np.ndarray], np.ndarray]:
    """This rank's part of a step by an emulated algorithm, over the communicator of its group."""
    places = sorted(part.members)
    messages = Messages(comm, [places.index(rank) for rank in part.members])
    program = part.program

    def run(array: np.ndarray) -> np.ndarray:
        given = part.pack(array)
        result = empty((program.output_count,), array.dtype)
        execute(program, messages, given, result, part.function(array.dtype), TAG)
        return part.unpack(result)

    return run
