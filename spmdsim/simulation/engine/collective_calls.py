"""Collective calls: every rank brings its arguments; when all have come they are compared and answered once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.data.message_buffers import COLUMNS, ROWS, MessageBuffer, ObjectPayload
from spmdsim.simulation.engine.mailboxes import Endpoint, finish
from spmdsim.simulation.engine.timing import collective_seconds
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import Site

HISTORY = 200  # meetings kept in which not all ranks stood at the same line


def _no_answer() -> None:
    """Do nothing; the code object stands for calls that have no site yet."""


_no_site: Site = (_no_answer.__code__, 0)


@dataclass(frozen=True)
class CollectiveRule:
    """The rule of one collective: its arguments, its result and its cost.

    Attributes:
        answer: gets all calls in rank order and sets each one's ``blocks``.
        priced_as: the collective whose modelled time it takes.
        flow: ``all`` waits for everybody, ``down`` for the root only, ``up`` lets all but the root go early.
    """

    answer: Callable[[list[CollectiveCall]], None]
    priced_as: str
    flow: str = "all"


@dataclass(slots=True, eq=False)
class CollectiveCall:
    """One rank's call of a collective.

    Attributes:
        send: the buffers or objects it brings, one or one per rank.
        receive: the buffers it wants filled, in the order of ``blocks``; None for a lower-case call.
        facts: what must be equal on all ranks, in the order in which differences are reported.
        blocks: what it gets; None for nothing.
        listed: a lower-case call returns the list of blocks, not the only one.
    """

    rule: CollectiveRule
    send: list[Any]
    receive: list[MessageBuffer] | None
    facts: dict[str, Any]
    root: int = -1
    op: Any = None
    listed: bool = False
    blocks: list[Any] | None = None
    value: Any = None
    name: str = ""
    comm: Any = None
    task: Any = None
    rank: int = -1
    site: Site = _no_site
    meeting: Meeting | None = None
    done: bool = False
    waiter: Any = None
    relieved: Any = None
    entered: float = 0.0
    end: float = 0.0

    def nbytes(self) -> int:
        """Return the bytes that this rank sends or receives, whichever is more."""
        brought = sum(part.nbytes for part in self.send)
        wanted = sum(part.nbytes for part in self.receive or ())
        number: int = max(brought, wanted)
        return number

    def may_leave(self) -> bool:
        """Return True if a library may let this rank continue before the others have called."""
        flow = self.rule.flow
        return flow == "down" if self.rank == self.root else flow == "up"

    def leave(self) -> None:
        """Store the operands of this rank, so that it can continue before the others have called."""
        self.send = [_private(part) for part in self.send]
        self.end = self.entered
        if self.rule.answer is _scatter:
            self.blocks = [_kept(self.send[self.rank])]

    def take(self) -> Any:
        """Write or return what it got, in the rank's own turn."""
        if self.end > self.task.clock:
            self.task.clock = self.end
        if self.blocks is None:
            return self.value
        if self.receive is not None:
            for buffer, block in zip(self.receive, self.blocks):
                if block is not None:
                    buffer.write(block if block.dtype == buffer.dtype else block.view(buffer.dtype))
            return None
        objects = [None if block is None else block.load() for block in self.blocks]
        return objects if self.listed else objects[0]


class Meeting:
    """One collective call of a communicator while its ranks arrive."""

    __slots__ = ("calls", "index", "missing")

    def __init__(self, index: int, size: int) -> None:
        self.index = index
        self.calls: list[CollectiveCall | None] = [None] * size
        self.missing = size

    def present(self) -> list[CollectiveCall]:
        """Return the calls of the ranks that have arrived, in rank order."""
        return [call for call in self.calls if call is not None]

    def complete(self, scheduler: Any, shared: Any) -> None:
        """Compare the calls of all ranks, compute the results, set the times, and let all ranks continue."""
        calls = self.present()
        problem = faults.compare(shared, self)
        if problem is not None:
            scheduler.fail(problem)
        first = calls[0]
        if any(call.site != first.site for call in calls) and len(shared.history) < HISTORY:
            shared.history.append((self.index, [(call.name, call.site) for call in calls]))
        if first.receive is not None:
            problem = faults.compare_blocks(shared, calls)
            if problem is not None:
                scheduler.fail(problem)
            orders = {part.order for call in calls for part in (*call.send, *(call.receive or ()))}
            if {ROWS, COLUMNS} <= orders:
                faults.note_collective_order(scheduler, calls)
        first.rule.answer(calls)
        _set_times(scheduler, shared, calls)
        if scheduler.timeline is not None:
            scheduler.timeline.meeting(shared, calls)
        for call in calls:
            if call.relieved is not None:
                call.relieved.confirm_early(scheduler, call)
            finish(scheduler, call)


def join(end: Endpoint, call: CollectiveCall, name: str, site: Site) -> CollectiveCall:
    """Add a rank's k-th call to the k-th meeting of its communicator."""
    shared, task, rank = end.shared, end.running(), end.rank
    call.comm, call.task, call.rank = shared, task, rank
    call.name, call.site = name, site
    call.entered = task.clock
    index = shared.counts[rank]
    shared.counts[rank] = index + 1
    meeting = shared.meetings.get(index)
    if meeting is None:
        meeting = shared.meetings[index] = Meeting(index, shared.size)
    meeting.calls[rank] = call
    meeting.missing -= 1
    call.meeting = meeting
    if meeting.missing == 0:
        del shared.meetings[index]
        meeting.complete(end.scheduler, shared)
    return call


def _set_times(scheduler: Any, shared: Any, calls: list[CollectiveCall]) -> None:
    rule = calls[0].rule
    nbytes = max(call.nbytes() for call in calls)
    seconds = collective_seconds(rule.priced_as, shared.ranks, nbytes, scheduler.machine)
    last = max(call.entered for call in calls)
    root = calls[0].root
    for call in calls:
        if rule.flow == "down":
            call.end = max(call.entered, calls[root].entered) + seconds
        elif rule.flow == "up" and call.rank != root:
            sent = sum(part.nbytes for part in call.send)
            call.end = call.entered + scheduler.link(shared.ranks, sent).seconds(sent)
        else:
            call.end = last + seconds


# ---------------------------------------------------------------------- what each collective does


def _kept(part: Any) -> Any:
    """Return a copy of a block that stays unchanged when its sender continues."""
    return part if isinstance(part, ObjectPayload) else part.copy()


def _private(part: Any) -> Any:
    """Return a rank's operands, protected from its own later changes."""
    if isinstance(part, ObjectPayload):
        return part
    return MessageBuffer(part.copy(), part.dtype, part.elements)


def _nothing(calls: list[CollectiveCall]) -> None:
    """Leave the results of all ranks empty."""


def _broadcast(calls: list[CollectiveCall]) -> None:
    block = _kept(calls[calls[0].root].send[0])
    for call in calls:
        if call.rank != call.root:
            call.blocks = [block]


def _gather(calls: list[CollectiveCall]) -> None:
    blocks = [_kept(call.send[0]) for call in calls]
    calls[calls[0].root].blocks = blocks


def _all_gather(calls: list[CollectiveCall]) -> None:
    blocks = [_kept(call.send[0]) for call in calls]
    for call in calls:
        call.blocks = blocks


def _scatter(calls: list[CollectiveCall]) -> None:
    parts = calls[calls[0].root].send
    for call, part in zip(calls, parts):
        call.blocks = [_kept(part)]


def _all_to_all(calls: list[CollectiveCall]) -> None:
    kept = [[_kept(part) for part in call.send] for call in calls]
    for rank, call in enumerate(calls):
        call.blocks = [row[rank] for row in kept]


def _prefixes(calls: list[CollectiveCall]) -> Iterator[Any]:
    """Return the reductions of the operands up to each rank, in rank order, in new memory."""
    first, *others = calls
    if first.receive is None:
        return accumulate((call.send[0].load() for call in calls), first.op)
    operands = (first.send[0].copy(), *(call.send[0].read() for call in others))
    return accumulate(operands, first.op.combine)


def _result(call: CollectiveCall, value: Any) -> Any:
    return ObjectPayload(value) if call.receive is None else value


def _total(calls: list[CollectiveCall]) -> Any:
    """Return the reduction of all ranks' operands in rank order."""
    return deque(_prefixes(calls), maxlen=1).pop()


def _reduce(calls: list[CollectiveCall]) -> None:
    root = calls[calls[0].root]
    root.blocks = [_result(root, _total(calls))]


def _all_reduce(calls: list[CollectiveCall]) -> None:
    block = _result(calls[0], _total(calls))
    for call in calls:
        call.blocks = [block]


def _reduce_scatter(calls: list[CollectiveCall]) -> None:
    total = _total(calls)
    wanted = sum(call.receive[0].elements for call in calls if call.receive)
    if wanted > len(total):
        raise ValueError(f"the ranks want {many(wanted, 'element')} of a vector of {len(total)}")
    start = 0
    for call in calls:
        count = call.receive[0].elements if call.receive else 0
        call.blocks = [total[start : start + count].copy()]
        start += count


def _scan(calls: list[CollectiveCall]) -> None:
    for call, value in zip(calls, _prefixes(calls)):
        call.blocks = [_result(call, value)]


def _exscan(calls: list[CollectiveCall]) -> None:
    values = _prefixes(calls)
    calls[0].blocks = [None]
    for call, value in zip(calls[1:], values):
        call.blocks = [_result(call, value)]


def _neighbours(calls: list[CollectiveCall]) -> None:
    """Set each rank's blocks: those of its sources, which ``value`` lists as (rank, block number); else None."""
    kept = [[_kept(part) for part in call.send] for call in calls]
    for call in calls:
        call.blocks = [kept[rank][part] if rank >= 0 else None for rank, part in call.value]


RULES: dict[str, CollectiveRule] = {
    "barrier": CollectiveRule(_nothing, "barrier"),
    "broadcast": CollectiveRule(_broadcast, "broadcast", "down"),
    "gather": CollectiveRule(_gather, "gather", "up"),
    "scatter": CollectiveRule(_scatter, "scatter", "down"),
    "all_gather": CollectiveRule(_all_gather, "all_gather"),
    "all_to_all": CollectiveRule(_all_to_all, "all_to_all"),
    "reduce": CollectiveRule(_reduce, "reduce", "up"),
    "all_reduce": CollectiveRule(_all_reduce, "all_reduce"),
    "reduce_scatter": CollectiveRule(_reduce_scatter, "reduce_scatter"),
    "scan": CollectiveRule(_scan, "scan"),
    "exscan": CollectiveRule(_exscan, "exscan"),
    "neighbours": CollectiveRule(_neighbours, "all_gather"),
}
