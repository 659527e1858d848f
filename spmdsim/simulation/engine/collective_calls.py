"""Collective calls: collect the arguments of all ranks, compare them, and compute all results at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.data.message_buffers import COLUMNS, OBJECT, ROWS, MessageBuffer, ObjectPayload
from spmdsim.simulation.engine.mailboxes import Endpoint, finish
from spmdsim.simulation.engine.waiting_times import COLLECTIVE, count_wait
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import Site

#: Number of recorded meetings in which ranks called from different lines.
HISTORY = 200
#: Collectives that a revoked communicator supports.
AFTER_REVOKE = ("Agree", "Shrink", "Ishrink")


def _no_answer() -> None:
    """Do nothing; calls that have no site yet use its code object."""


_no_site: Site = (_no_answer.__code__, 0)


#: A block that moves: the call that sends it, its number there, the call that receives it, its position there.
Move = tuple["CollectiveCall", int, "CollectiveCall", int]


@dataclass(frozen=True)
class CollectiveRule:
    """The rule of one collective: its arguments, its result and its cost.

    Attributes:
        answer: function that takes all calls in rank order and sets the ``blocks`` of each.
        priced_as: name of the collective whose algorithm gives its modelled time, or ``neighbours``.
        flow: the ranks that must wait. ``all``: each waits for all; ``down``: each waits for the root; ``up``: the
            root waits for all, others can continue at once.
        moves: function that lists the blocks that move, of a collective between two groups or neighbours.
    """

    answer: Callable[[list[CollectiveCall]], None]
    priced_as: str
    flow: str = "all"
    moves: Callable[[list[CollectiveCall]], list[Move]] | None = None


@dataclass(slots=True, eq=False)
class CollectiveCall:
    """Call of a collective by a rank.

    Attributes:
        send: the buffers or objects to send: one, or one per rank.
        receive: the buffers to fill, in the order of ``blocks``; None for a lower-case call.
        facts: arguments that must be equal on all ranks, in the order in which differences are reported.
        root: rank of the root, or -1.
        op: the reduce operation, or None.
        blocks: the received blocks; None if the call receives nothing.
        listed: True if a lower-case call returns the list of blocks instead of the only block.
        value: the result of a call without blocks; for neighbour exchanges the (rank, block number) of each source.
        name: name of the call, such as "Bcast".
        comm: the state of the communicator; ``rank`` is the rank in it, ``task`` the rank of the program.
        waiter: the rank or `JointWait` that waits for it, or None.
        relief: the `Relief` that completed it early, or None.
        before: pairs of a buffer and its contents when a nonblocking call was started.
        entered: modelled time of the call; ``end``: time at which the rank continues.
        awaited: time at which the last rank entered for which this one waits; 0 if it waits for none.
        is_blocking: True if the rank is blocked in this call.
        event: its event in the record of the run, or None.
        past: the events before the call, and after its completion those before it, if the program has a window.
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
    relief: Any = None
    entered: float = 0.0
    end: float = 0.0
    awaited: float = 0.0
    is_blocking: bool = False
    event: Any = None
    past: Any = None
    before: Sequence[Any] = ()

    def nbytes(self) -> int:
        """Return the larger of the bytes that this rank sends and receives.

        Only buffers count as received; the objects of a lower-case call are not known before they arrive.
        """
        sent = sum(block.nbytes for block in self.send)
        received = sum(block.nbytes for block in self.receive or ())
        number: int = max(sent, received)
        return number

    def keep_contents(self) -> None:
        """Store copies of all buffers, to detect that the program changes one before it waits."""
        buffers = [buffer for buffer in (*self.send, *(self.receive or ())) if buffer.dtype is not OBJECT]
        self.before = [(buffer, buffer.copy()) for buffer in buffers]

    def can_leave_early(self) -> bool:
        """Return True if a library may let this rank continue before all other ranks have called."""
        flow = self.rule.flow
        return flow == "down" if self.rank == self.root else flow == "up"

    def leave_early(self) -> None:
        """Copy what this rank sends, so that the rank can continue before the others have called.

        Replaces ``send`` in place, and sets ``end`` to the time of the call. The root of a scatter gets its own
        block, too, and the root of a broadcast a copy of its object.
        """
        self.send = [_copy_operand(operand) for operand in self.send]
        self.end = self.entered
        if self.rule.answer is _scatter:
            self.blocks = [_copy_block(self.send[self.rank])]
        elif self.rule.answer is _broadcast and isinstance(self.send[0], ObjectPayload):
            self.blocks = self.send

    def deliver(self) -> Any:
        """Advance the rank's modelled clock, and hand over what it receives from the collective.

        Called when it is the rank's turn, after all ranks have called and the results are computed.

        - An upper-case call, such as Bcast: write each received block to its buffer, and return None. The bytes of a
          block of another dtype are read as the buffer's dtype. A block None leaves its buffer unchanged.
        - A lower-case call, such as bcast: return the received object; for calls such as gather (``listed``), the
          list of objects. An object that was not sent is None.
        - A call that receives no blocks, such as Split: return ``value``.
        """
        task = self.task
        if task.scheduler.recorder is not None:
            task.scheduler.recorder.add_completion(self)
        if self.end > task.clock:
            site = self.site if self.is_blocking else None
            count_wait(task, COLLECTIVE, min(self.awaited, self.end), self.name, site)
            task.clock = self.end
        if self.past is not None:
            task.scheduler.order.acquire(task, self.past)
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
    """Collective operation of a communicator, with the calls of the ranks that arrived."""

    __slots__ = ("calls", "index", "missing")

    def __init__(self, index: int, size: int) -> None:
        self.index = index
        self.calls: list[CollectiveCall | None] = [None] * size
        self.missing = size

    def present(self) -> list[CollectiveCall]:
        """Return the calls of the ranks that have arrived, in rank order."""
        return [call for call in self.calls if call is not None]

    def complete(self, scheduler: Any, shared: Any) -> None:
        """Compare the calls of all ranks, compute the results and times, and let all ranks continue.

        Calls with other names, arguments or block sizes end the run with an error: nothing is computed. If one rank
        stores an array row by row and another one column by column, a warning is added.

        Args:
            scheduler: the simulation.
            shared: the `CommunicatorState`. Its history gets the calls if they are in different source lines, for at
                most :data:`HISTORY` (200) meetings.
        """
        calls = self.present()
        problem = faults.find_difference(shared, self)
        if problem is not None:
            scheduler.fail(problem)
        first = calls[0]
        if any(call.site != first.site for call in calls) and len(shared.history) < HISTORY:
            shared.history.append((self.index, [(call.name, call.site) for call in calls]))
        if first.receive is not None:
            problem = faults.find_block_difference(shared, calls)
            if problem is not None:
                scheduler.fail(problem)
            orders = {block.order for call in calls for block in (*call.send, *(call.receive or ()))}
            if {ROWS, COLUMNS} <= orders:
                faults.report_collective_order(scheduler, calls)
        if scheduler.order is not None:
            scheduler.order.join_calls(calls)
        first.rule.answer(calls)
        scheduler.collective_times.set_times(calls, shared.ranks)
        _set_awaited(calls)
        if scheduler.timeline is not None:
            scheduler.timeline.record_collective(shared, calls)
        for call in calls:
            if call.relief is not None:
                call.relief.report_complete(scheduler, call)
            finish(scheduler, call)


def _set_awaited(calls: list[CollectiveCall]) -> None:
    """Set the time until which each rank waits for others to enter a collective.

    Args:
        calls: the calls of all ranks, in rank order.
    """
    flow, root = calls[0].rule.flow, calls[0].root
    last = max(call.entered for call in calls)
    for call in calls:
        if flow == "all" or (flow == "up" and call.rank == root):
            call.awaited = last
        elif flow == "down":
            call.awaited = calls[root].entered


def join_meeting(end: Endpoint, call: CollectiveCall, name: str, site: Site) -> CollectiveCall:
    """Add a rank's call to its collective operation; complete the operation on the last call.

    The k-th collective call of each rank on a communicator belongs to the k-th operation, which is a `Meeting`. So
    the first call of rank 0 and the first call of rank 1 meet, even if one is Bcast and the other one Barrier: that
    ends the run with an error. The function never blocks: the caller does, if the returned call is not done. An error
    in a meeting is raised on the rank that calls last.

    Args:
        end: the rank's end of the communicator.
        call: the call; its communicator, task, name, line and time are set in place.
        name: name of the method, such as "Bcast".
        site: code object and instruction of the call.

    Returns:
        ``call``, which is done if this rank was the last one.

    Raises:
        MPIError: If the communicator is revoked, except in `AFTER_REVOKE`.
    """
    shared, task, rank = end.shared, end.running(), end.rank
    if name not in AFTER_REVOKE:
        end.refuse_revoked(name)
    call.comm, call.task, call.rank = shared, task, rank
    call.name, call.site = name, site
    call.entered = end.scheduler.enter_call(task)
    if end.scheduler.recorder is not None:
        end.scheduler.recorder.add_join(call)
    if end.scheduler.order is not None:
        call.past = end.scheduler.order.release(task)
    for buffer in (*call.send, *(call.receive or ())):
        if buffer.contradiction is not None:
            faults.report_contradiction(task, buffer, name, site)
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


# ---------------------------------------------------------------------- the answers of the rules


def _copy_block(block: Any) -> Any:
    """Return a copy of a block; it does not change when the sender continues."""
    return block if isinstance(block, ObjectPayload) else block.copy()


def _copy_operand(operand: Any) -> Any:
    """Return a copy of a buffer or object that a rank sends."""
    if isinstance(operand, ObjectPayload):
        return operand
    return MessageBuffer(operand.copy(), operand.dtype, operand.elements)


def _nothing(calls: list[CollectiveCall]) -> None:
    """Return no results: a barrier moves no data."""


def _broadcast(calls: list[CollectiveCall]) -> None:
    """Set the block of all ranks to a copy of the root's block; a root with a buffer gets none."""
    block = _copy_block(calls[calls[0].root].send[0])
    for call in calls:
        if call.rank != call.root or isinstance(block, ObjectPayload):
            call.blocks = [block]


def _gather(calls: list[CollectiveCall]) -> None:
    """Set the blocks of the root to copies of the first block of each rank, in rank order."""
    blocks = [_copy_block(call.send[0]) for call in calls]
    calls[calls[0].root].blocks = blocks


def _all_gather(calls: list[CollectiveCall]) -> None:
    """Set the blocks of each rank to copies of the first block of each rank, in rank order."""
    blocks = [_copy_block(call.send[0]) for call in calls]
    for call in calls:
        call.blocks = blocks


def _scatter(calls: list[CollectiveCall]) -> None:
    """Set the block of each rank to a copy of the root's block for it."""
    blocks = calls[calls[0].root].send
    for call, block in zip(calls, blocks):
        call.blocks = [_copy_block(block)]


def _all_to_all(calls: list[CollectiveCall]) -> None:
    """Set the blocks of each rank to copies of the blocks for it, in order of the sending ranks."""
    copies = [[_copy_block(block) for block in call.send] for call in calls]
    for rank, call in enumerate(calls):
        call.blocks = [row[rank] for row in copies]


def _accumulate_operands(calls: list[CollectiveCall]) -> Iterator[Any]:
    """Yield, for each rank, the reduction of the operands of the ranks up to and including it.

    For example, the operands 1, 2 and 3 of a sum give 1, 3 and 6. The lower ranks' operand stands on the left. The results are in new memory: arrays for calls of buffers, objects
    for lower-case calls.

    Args:
        calls: the calls of all ranks, in rank order.
    """
    first, *others = calls
    if first.receive is None:
        return accumulate((call.send[0].load() for call in calls), first.op)
    operands = (first.send[0].copy(), *(call.send[0].read() for call in others))
    return accumulate(operands, first.op.combine)


def _as_block(call: CollectiveCall, value: Any) -> Any:
    """Return a reduced value as a block; a lower-case call gets an object."""
    return ObjectPayload(value) if call.receive is None else value


def _reduce_all(calls: list[CollectiveCall]) -> Any:
    """Return the reduction of all ranks' operands, in rank order."""
    return deque(_accumulate_operands(calls), maxlen=1).pop()


def _reduce(calls: list[CollectiveCall]) -> None:
    """Set the block of the root to the reduction of all ranks' operands."""
    root = calls[calls[0].root]
    root.blocks = [_as_block(root, _reduce_all(calls))]


def _all_reduce(calls: list[CollectiveCall]) -> None:
    """Set the block of each rank to the reduction of all ranks' operands."""
    block = _as_block(calls[0], _reduce_all(calls))
    for call in calls:
        call.blocks = [block]


def _reduce_scatter(calls: list[CollectiveCall]) -> None:
    """Reduce the ranks' vectors; give each rank the next block, as long as its receive buffer.

    For example, with a vector of 7 elements and buffers of 1, 3 and 2 elements, the ranks get elements 0, 1 to 3, and
    4 to 5; element 6 is dropped. A call without a receive buffer gets an empty block.

    Args:
        calls: the calls of all ranks, in rank order; their ``blocks`` are set to copies.

    Raises:
        ValueError: If the receive buffers together are longer than the vector.
    """
    total = _reduce_all(calls)
    wanted = sum(call.receive[0].elements for call in calls if call.receive)
    if wanted > len(total):
        raise ValueError(
            f"the receive buffers have {many(wanted, 'element')}, but the vector has {len(total)}"
        )
    start = 0
    for call in calls:
        count = call.receive[0].elements if call.receive else 0
        call.blocks = [total[start : start + count].copy()]
        start += count


def _scan(calls: list[CollectiveCall]) -> None:
    """Set the block of each rank to the reduction of the operands up to and including its own."""
    for call, value in zip(calls, _accumulate_operands(calls)):
        call.blocks = [_as_block(call, value)]


def _exscan(calls: list[CollectiveCall]) -> None:
    """Set the block of each rank to the reduction of the operands before its own; None on rank 0."""
    values = _accumulate_operands(calls)
    calls[0].blocks = [None]
    for call, value in zip(calls[1:], values):
        call.blocks = [_as_block(call, value)]


def _neighbour_moves(calls: list[CollectiveCall]) -> list[Move]:
    """Return the blocks that move between neighbours.

    Args:
        calls: the calls of all ranks. ``call.value`` lists ``(rank, block number)`` for each source; a rank
            below 0 is missing.
    """
    return [
        (calls[rank], number, call, position)
        for call in calls
        for position, (rank, number) in enumerate(call.value)
        if rank >= 0
    ]


def _neighbours(calls: list[CollectiveCall]) -> None:
    """Set the blocks of each rank to the blocks of its neighbours; None for a missing neighbour."""
    for call in calls:
        call.blocks = [None] * len(call.value)
    move_blocks(_neighbour_moves(calls))


def move_blocks(moves: list[Move]) -> None:
    """Set the blocks of the receiving calls to copies of the blocks of the sending ones.

    Args:
        moves: the blocks that move.
    """
    copies = [_copy_block(sender.send[number]) for sender, number, _, _ in moves]
    for block, (_, _, receiver, position) in zip(copies, moves):
        if receiver.blocks is None:
            receiver.blocks = []
        receiver.blocks += [None] * (position + 1 - len(receiver.blocks))
        receiver.blocks[position] = block


def reduce_operands(calls: list[CollectiveCall]) -> Any:
    """Return the reduction of the operands of some calls, in their order.

    Args:
        calls: the calls; those of objects give an `ObjectPayload`, the others an array.
    """
    return _as_block(calls[0], _reduce_all(calls))


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
    "neighbours": CollectiveRule(_neighbours, "neighbours", moves=_neighbour_moves),
}
