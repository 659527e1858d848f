"""Calls of Put, Get, Accumulate and so on, from the call until the data has arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spmdsim.simulation.data.derived_types import BYTE_DTYPE
from spmdsim.simulation.data.message_buffers import MessageBuffer
from spmdsim.simulation.engine.scheduler import Task
from spmdsim.simulation.findings.faults import is_new
from spmdsim.simulation.findings.problems import (
    ERROR,
    Problem,
    ProgramPlace,
    Site,
    describe_call_place,
    ranks_text,
)
from spmdsim.simulation.one_sided.accesses import ACCUMULATE, READ, Access, Footprint
from spmdsim.simulation.one_sided.regions import Region

#: Number of the latest open calls of a rank whose buffers are compared with the buffers of a new call.
MOST_COMPARED_CALLS = 1000


@dataclass(slots=True, eq=False)
class WindowOperation:
    """Call that moves data between the memory of a rank, the origin, and the window of another one, the target.

    The origin's data is copied at the call. It arrives in the window, and the data of the window in the result, when
    the epoch ends or a flush completes the call. So a program that reads too early finds old data.

    Attributes:
        comm: the window.
        task: the origin.
        target_rank: the target in the window.
        name: name of the call, such as "Put"; ``site``: its place in the program.
        target: the elements in the window.
        region: the memory of the window to which they belong.
        access: the access of the window.
        origin: the buffer that is sent, or None; ``sent``: a copy of its elements.
        result: the buffer that is filled, or None; ``before``: its elements at the call.
        update: function of the old and the sent elements that returns the new elements of the window; None: they stay.
        end: modelled time at which the data has arrived.
        local_accesses: accesses of the origin's own window by ``origin`` and ``result``.
        reads: the addresses of ``origin``; ``writes``: those of ``result``.
        locally_complete: True if the program may use its buffers again.
        done: True, so that a wait for its request completes it.
    """

    comm: Any
    task: Task
    target_rank: int
    name: str
    site: Site
    target: MessageBuffer
    region: Region
    access: Access
    origin: MessageBuffer | None = None
    result: MessageBuffer | None = None
    update: Callable[[Any, Any], Any] | None = None
    sent: Any = None
    before: Any = None
    end: float = 0.0
    reads: Footprint | None = None
    writes: Footprint | None = None
    local_accesses: list[Access] = field(default_factory=list)
    locally_complete: bool = False
    applied: bool = False
    done: bool = True

    def copy_buffers(self) -> None:
        """Copy what is sent, and the old contents of the result to find out if the program changes it."""
        if self.origin is not None:
            self.sent, self.reads = self.origin.copy(), Footprint.of_buffer(self.origin)
        if self.result is not None:
            self.before, self.writes = self.result.copy(), Footprint.of_buffer(self.result)

    @property
    def location(self) -> ProgramPlace:
        """The place of the call in the program."""
        return describe_call_place(self.task.rank, self.name, self.site)

    def describe(self) -> str:
        """Return the call as text, such as ``Put(target=1)``."""
        return f"{self.name}(target={self.target_rank})"

    def apply(self) -> None:
        """Move the data: fill the result with the old elements of the window, then update the window."""
        if self.applied:
            return
        self.applied = True
        old = self.target.copy()
        order = self.task.scheduler.order
        if self.access.kind == ACCUMULATE and self.result is not None:
            order.acquire(self.task, self.comm.atomics.get(self.access.footprint.first))
        if self.result is not None:
            _write_bytes(self.result, old)
        if self.update is not None:
            new = self.update(old, _as_elements(self.sent, self.target))
            _write_bytes(self.target, new)
            self.region.refresh(self.access.footprint)
            if new.tobytes() != old.tobytes():
                self.task.scheduler.polls = 0
        if self.access.kind == ACCUMULATE:
            self.comm.release_atomic(self.access.footprint.first, order.release(self.task))

    def deliver(self) -> None:
        """Complete the call on the origin, as the wait for its request does; a read is complete everywhere."""
        self.complete_locally(self.comm.place_in_run(self.task))
        if self.access.kind == READ:
            self.set_complete()

    def complete_locally(self, where: ProgramPlace) -> None:
        """Let the program use its buffers again; fill the result.

        Args:
            where: the call that completes this one.
        """
        if self.locally_complete:
            return
        self.check_unchanged(where)
        self.locally_complete = True
        self.task.clock = max(self.task.clock, self.end)
        if self.result is not None:
            self.apply()

    def set_complete(self) -> None:
        """Record that the accesses are complete now, unless they were complete before."""
        time = self.task.scheduler.order.time(self.task)
        for access in (self.access, *self.local_accesses):
            access.time = time if access.time is None else access.time

    def check_unchanged(self, where: ProgramPlace) -> None:
        """Add an error if the program has changed a buffer since the call.

        Args:
            where: the call that completes this one.
        """
        if self.locally_complete or self.applied:
            return
        if self.origin is not None and _differ(self.origin.read(), self.sent):
            self._report_changed("origin", where)
        if self.result is not None and _differ(self.result.read(), self.before):
            self._report_changed("result", where)

    def _report_changed(self, role: str, where: ProgramPlace) -> None:
        """Add the error "buffer_reused" on a buffer that the program changed too early, once per source line.

        Args:
            role: "origin" or "result".
            where: the call that completes this one.
        """
        scheduler, start = self.task.scheduler, self.location
        if is_new(scheduler, "changed", self.site):
            text = (
                f"rank {start.rank} changes the {role} buffer of {start} before {where} completes it, "
                "so the data is undefined"
            )
            scheduler.problems.append(Problem("buffer_reused", ERROR, text, (start.rank,), (start, where)))


def _as_elements(data: Any, buffer: MessageBuffer) -> Any:
    """Return sent elements as elements of a buffer's dtype, at most as many as the buffer has."""
    if data is None or data.dtype == buffer.dtype:
        return data if data is None else data[: buffer.elements]
    raw = data.view(BYTE_DTYPE)[: buffer.nbytes]
    return raw[: len(raw) // buffer.dtype.itemsize * buffer.dtype.itemsize].view(buffer.dtype)


def _write_bytes(buffer: MessageBuffer, data: Any) -> None:
    """Write elements of any dtype to a buffer."""
    buffer.write(_as_elements(data, buffer))


def _differ(now: Any, before: Any) -> bool:
    """Return True if elements differ; not-a-number equals itself."""
    return bool(now.tobytes() != before.tobytes())


def check_sizes(operation: WindowOperation, buffer: MessageBuffer) -> None:
    """Add an error if a buffer of the origin and the target differ in type or size, once per source line.

    Args:
        operation: the call.
        buffer: its origin or result buffer.
    """
    target = operation.target
    same_type = buffer.dtype == target.dtype or buffer.loose or target.loose
    if same_type and buffer.nbytes == target.nbytes:
        return
    scheduler, location = operation.task.scheduler, operation.location
    if is_new(scheduler, "sizes", operation.site):
        kind = "truncation" if same_type else "type_mismatch"
        target_rank = operation.comm.ranks[operation.target_rank]
        text = (
            f"rank {location.rank} passes {buffer.elements} × {buffer.dtype} to {location}, but the target in the window of "
            f"rank {target_rank} is {target.elements} × {target.dtype}"
        )
        ranks = tuple(sorted({location.rank, target_rank}))
        scheduler.problems.append(Problem(kind, ERROR, text, ranks, (location,)))


def check_buffers_apart(operation: WindowOperation, open_calls: list[WindowOperation]) -> None:
    """Add an error if a call uses a buffer that an open call of its rank fills, or fills one that it uses.

    Args:
        operation: the new call.
        open_calls: the open calls of its rank; the last 1,000 are compared.
    """
    for earlier in open_calls[-MOST_COMPARED_CALLS:]:
        if earlier.locally_complete:
            continue
        if _overlap(operation.writes, earlier.writes):
            _report_overlap(operation, earlier, "fills the buffer that {} fills, too")
        elif _overlap(operation.writes, earlier.reads):
            _report_overlap(operation, earlier, "fills the buffer that {} sends")
        elif _overlap(operation.reads, earlier.writes):
            _report_overlap(operation, earlier, "sends the buffer that {} fills")


def _overlap(one: Footprint | None, other: Footprint | None) -> bool:
    return one is not None and other is not None and one.common_run(other) is not None


def _report_overlap(operation: WindowOperation, earlier: WindowOperation, phrase: str) -> None:
    """Add the error "buffer_reused" on two open calls that use one buffer, once per pair of source lines.

    Args:
        operation: the later call.
        earlier: the call that is not complete.
        phrase: the conflict in words, with {} for the earlier call.
    """
    scheduler = operation.task.scheduler
    if not is_new(scheduler, "overlap", operation.site, earlier.site):
        return
    first, second = earlier.location, operation.location
    text = (
        f"{ranks_text([second.rank])}: {second} {phrase.format(first)} before it is complete; "
        "call Flush_local or close the epoch in between"
    )
    scheduler.problems.append(Problem("buffer_reused", ERROR, text, (second.rank,), (first, second)))
