"""Accesses of memory: the bytes that they touch, and the pairs that conflict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.simulation.data.message_buffers import MessageBuffer
from spmdsim.simulation.engine.scheduler import Task
from spmdsim.simulation.findings.problems import ProgramPlace, Site, describe_call_place
from spmdsim.simulation.one_sided.causal_order import CausalOrder

READ, WRITE, ACCUMULATE = "reads", "writes", "accumulates"
#: The operation of Compare_and_swap, which programs combine with accumulates for locks.
SWAP = "SWAP"


class Footprint:
    """The addresses that an access touches, as ascending runs that do not overlap.

    Attributes:
        first: the first address; ``stop``: the address behind the last one.
    """

    __slots__ = ("_starts", "_stops", "first", "stop")

    def __init__(self, starts: Any, stops: Any) -> None:
        self._starts, self._stops = np.asarray(starts), np.asarray(stops)
        self.first, self.stop = (int(self._starts[0]), int(self._stops[-1])) if len(self._starts) else (0, 0)

    @classmethod
    def of_positions(cls, positions: Any, itemsize: int, address: int) -> Footprint:
        """Return the addresses of elements of an array.

        Args:
            positions: numbers of the elements, in any order.
            itemsize: bytes of an element.
            address: address of element 0.
        """
        numbers = np.unique(positions)
        if not len(numbers):
            return cls((), ())
        cuts = np.flatnonzero(np.diff(numbers) > 1)
        firsts = numbers[np.concatenate(([0], cuts + 1))]
        lasts = numbers[np.concatenate((cuts, [len(numbers) - 1]))]
        return cls(address + firsts * itemsize, address + (lasts + 1) * itemsize)

    @classmethod
    def of_buffer(cls, buffer: MessageBuffer) -> Footprint:
        """Return the addresses of a buffer's elements."""
        address = int(buffer.array.__array_interface__["data"][0])
        if buffer.index is not None:
            return cls.of_positions(buffer.index, buffer.dtype.itemsize, address)
        return cls((address,), (address + buffer.nbytes,)) if buffer.nbytes else cls((), ())

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs as pairs of the first address and the address behind the last one."""
        return list(zip(self._starts.tolist(), self._stops.tolist()))

    def common_run(self, other: Footprint) -> tuple[int, int] | None:
        """Return the first run of addresses in this and in the ``other`` footprint, or None."""
        if self.first >= other.stop or other.first >= self.stop:
            return None
        # The first run of the other footprint that ends behind the start of each run of this one.
        following = np.searchsorted(other._stops, self._starts, side="right")
        inside = following < len(other._starts)
        starts = np.maximum(self._starts[inside], other._starts[following[inside]])
        stops = np.minimum(self._stops[inside], other._stops[following[inside]])
        common = np.flatnonzero(starts < stops)
        return (int(starts[common[0]]), int(stops[common[0]])) if len(common) else None


@dataclass(slots=True, eq=False)
class Access:
    """An access of the memory of a window.

    Attributes:
        task: the rank that makes it.
        kind: READ, WRITE or ACCUMULATE.
        op: the operation of an accumulate, such as "SUM".
        footprint: the addresses.
        call: the call, such as "Put"; "store" for an assignment of the program.
        site: its place in the program; of a store, the place of the next MPI call.
        time: time at which it is complete, as its rank counts it; None while it is not.
    """

    task: Task
    kind: str
    footprint: Footprint
    call: str
    site: Site | ProgramPlace
    op: str = ""
    time: int | None = None

    @property
    def where(self) -> ProgramPlace:
        """The call with its file and line, which take time to find; of a store, the next MPI call."""
        if isinstance(self.site, ProgramPlace):
            return self.site
        return describe_call_place(self.task.rank, self.call, self.site)

    def key(self) -> Any:
        """Return a value that is equal for repeated accesses; the last of them can stand for all."""
        return (self.task.rank, self.kind, self.op, self.footprint.first, self.footprint.stop, self.call)

    def is_before(self, task: Task, order: CausalOrder) -> bool:
        """Return True if the access is complete before the next event of a rank, in every run."""
        if self.time is None:
            return False
        return self.task is task or order.has_seen(task, self.task.rank, self.time)

    def conflicts(self, later: Access) -> bool:
        """Return True if MPI forbids this and a ``later`` access of common addresses at the same time.

        Reads never conflict. Accumulates of one rank are ordered; those of two ranks must have one operation, or one
        of them is NO_OP or a Compare_and_swap.
        """
        if self.kind == later.kind == READ:
            return False
        if self.kind == later.kind == ACCUMULATE:
            ops = {self.op, later.op} - {"NO_OP", SWAP}
            return self.task is not later.task and len(ops) > 1
        reads = {self.op if access.kind == ACCUMULATE else access.kind for access in (self, later)}
        return reads != {READ, "NO_OP"}

    def describe(self) -> str:
        """Return a clause such as "rank 0 writes with Put at a.py:7"."""
        if self.call == "store":
            return f"rank {self.task.rank} stores before {self.where if self.where.line else 'its end'}"
        return f"rank {self.task.rank} {self.kind} with {self.where}"
