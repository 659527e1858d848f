"""Element types and boxes as MPI sees them, and point-to-point messages of numpy arrays of any element type.

Moving data needs only the size of an element, so every type that numpy knows can be moved; arithmetic needs
the type itself, which only MPI's own reductions ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from spmdsim.collectives.execution import execute
from spmdsim.core.step import Index
from spmdsim.redistribution.ways import way
from spmdsim.redistribution.ways.way import in_library
from spmdsim.worlds.emulated import Emulation
from spmdsim.worlds.pool import empty

#: Elements MPI can count in one message (an int). A constant so that a test can make it small.
MAX_COUNT = way.MAX_COUNT

_WORDS = {
    kind.Get_size(): kind
    for kind in (MPI.UINT8_T, MPI.UINT16_T, MPI.UINT32_T, MPI.UINT64_T, MPI.C_DOUBLE_COMPLEX)
}


class Stretches(NamedTuple):
    """How many elements of an array belong to each rank, and where they begin, as MPI takes it."""

    counts: list[int]
    starts: list[int]

    @staticmethod
    def of(counts: list[int]) -> Stretches:
        """Stretches that lie one after the other."""
        return Stretches(counts, [0, *accumulate(counts)][:-1])

    def without(self, rank: int) -> Stretches:
        """The same, in which nothing belongs to a rank."""
        return Stretches([0 if k == rank else count for k, count in enumerate(self.counts)], self.starts)


@lru_cache(maxsize=64)
def element(itemsize: int) -> MPI.Datatype:
    """The MPI type as which elements of this size are moved (bytes for unusual sizes).

    Given beside an array, it spares MPI the question of what the array's elements are: any can be moved.
    """
    return _WORDS.get(itemsize) or MPI.BYTE.Create_contiguous(itemsize).Commit()


def counted_parts(array: np.ndarray) -> list[np.ndarray]:
    """Views of at most :data:`MAX_COUNT` elements."""
    flat, most = array.reshape(-1), MAX_COUNT
    if 0 < flat.size <= most:
        return [flat]
    return [flat[start : start + most] for start in range(0, flat.size, most)]


_NATIVE = {"sum": MPI.SUM, "avg": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
_BOOLEAN = {"all": MPI.BAND, "min": MPI.BAND, "any": MPI.BOR, "max": MPI.BOR}


def native_op(op: str, dtype: np.dtype) -> MPI.Op | None:
    """MPI's own reduction, where it does the same as numpy's; None where ranks must reduce themselves."""
    if not in_library(op, dtype):
        return None
    return (_BOOLEAN if dtype.kind == "b" else _NATIVE)[op]


def number_view(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array as a flat view that MPI can reduce (bools as bytes)."""
    flat = array.reshape(-1)
    return flat.view(np.uint8) if flat.dtype.kind == "b" else flat


def subarray(shape: tuple[int, ...], index: Index, itemsize: int) -> MPI.Datatype:
    """The MPI type of a box inside a C-contiguous array of this shape. To be freed."""
    starts, sizes = [part.start for part in index], [part.stop - part.start for part in index]
    return element(itemsize).Create_subarray(list(shape), sizes, starts, MPI.ORDER_C).Commit()


#: All messages of schedules; messages of a pair of ranks keep their order.
TAG = 77_015

#: Requests that will never be complete, with their memory: MPI may still write there.
abandoned: list[object] = []


class Messages:
    """The transport of schedules: ranks are places in a group, messages go over its communicator."""

    def __init__(
        self, comm: MPI.Comm, numbers: Sequence[int] | None = None, look: Callable[[int], None] | None = None
    ) -> None:
        self.comm, self._look = comm, look
        self.numbers = range(comm.Get_size()) if numbers is None else numbers

    def irecv(self, buffer: np.ndarray, source: int, tag: int) -> Any:
        """Start to receive into a contiguous array."""
        peer, kind = self.numbers[source], element(buffer.dtype.itemsize)
        if buffer.size <= MAX_COUNT:
            return self.comm.Irecv([buffer, buffer.size, kind], peer, tag)
        return [self.comm.Irecv([part, kind], peer, tag) for part in counted_parts(buffer)]

    def isend(self, buffer: np.ndarray, dest: int, tag: int) -> Any:
        """Start to send a contiguous array."""
        peer, kind = self.numbers[dest], element(buffer.dtype.itemsize)
        if buffer.size <= MAX_COUNT:
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
