"""Describe errors of single messages, requests and collective calls, each in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.errors import many
from spmdsim.simulation.findings.problems import (
    ERROR,
    WARNING,
    Problem,
    ProgramPlace,
    describe_call_place,
    place_in_stack,
    ranks_text,
)

if TYPE_CHECKING:
    from types import FrameType

    from spmdsim.simulation.engine.collective_calls import CollectiveCall, Meeting
    from spmdsim.simulation.engine.mailboxes import Message, Receive
    from spmdsim.simulation.engine.scheduler import Scheduler

#: Words for the memory orders ROWS and COLUMNS of `message_buffers`.
_ORDERS = {1: "row by row", 2: "column by column"}


def send_place(message: Message) -> ProgramPlace:
    """Return the source line of a send."""
    return describe_call_place(message.task.rank, message.name, message.site)


def receive_place(receive: Receive) -> ProgramPlace:
    """Return the source line of a receive."""
    return describe_call_place(receive.task.rank, receive.name, receive.site)


def describe_contents(payload: Any) -> str:
    """Describe the data of a message, such as ``10 × int32`` or ``a pickled object``."""
    if payload.dtype == "object":
        return "a pickled object"
    return f"{payload.elements} × {payload.dtype}"


def _error(kind: str, text: str, *places: ProgramPlace) -> Problem:
    return Problem(kind, ERROR, text, _ranks(*places), places)


def truncation_problem(message: Message, receive: Receive) -> Problem:
    """Return the error "truncation" on a message that is longer than its receive buffer.

    The caller has compared the lengths.

    Args:
        message: the message.
        receive: the receive that it matches.
    """
    sent, received = send_place(message), receive_place(receive)
    text = (
        f"rank {sent.rank} sends {describe_contents(message.payload)} to rank {received.rank} in {sent}, "
        f"but {received} has room for {describe_contents(receive.target)} only"
    )
    return _error("truncation", text, sent, received)


def type_problem(message: Message, receive: Receive) -> Problem:
    """Return the error "type_mismatch" on a message whose sender and receiver use different types.

    The caller has compared the types.

    Args:
        message: the message.
        receive: the receive that it matches.
    """
    sent, received = send_place(message), receive_place(receive)
    wanted = receive.target
    as_what = "a pickled object" if wanted.dtype == "object" else str(wanted.dtype)
    text = (
        f"rank {sent.rank} sends {describe_contents(message.payload)} to rank {received.rank} in {sent}, "
        f"but {received} receives it as {as_what}"
    )
    return _error("type_mismatch", text, sent, received)


def ready_problem(message: Message) -> Problem:
    """Return the error "ready_send" on a ready-mode send without a posted receive.

    The caller has searched for the receive.

    Args:
        message: the message; only its sender's line is in the finding.
    """
    sent, dest = send_place(message), message.comm.ranks[message.dest]
    text = (
        f"rank {sent.rank} sends to rank {dest} in {sent}, but {sent.call} is allowed only when the "
        "receive is posted already, and it is not"
    )
    return Problem("ready_send", ERROR, text, tuple(sorted({sent.rank, dest})), (sent,))


def is_new(scheduler: Scheduler, *key: Any) -> bool:
    """Return True on the first call with this key in a simulation, False on later calls."""
    new = key not in scheduler.suspects
    scheduler.suspects.add(key)
    return new


def report_memory_order(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Add the warning "memory_order" on a message that arrives transposed.

    The message is read from an array that is stored row by row, and written to one that is stored column by column,
    or the other way around. The caller has checked that. Only the first message of each pair of source lines (send,
    receive) is reported.

    Args:
        scheduler: the simulation, to whose problems it is added.
        message: the message.
        receive: the receive that it matches.
    """
    if not is_new(scheduler, "order", message.site, receive.site):
        return
    sent, received = send_place(message), receive_place(receive)
    first, second = _ORDERS[message.payload.order], _ORDERS[receive.target.order]
    text = (
        f"rank {sent.rank} sends an array stored {first} in {sent}, but {received} on rank {received.rank} "
        f"stores it {second}: the data arrives transposed"
    )
    scheduler.problems.append(
        Problem("memory_order", WARNING, text, _ranks(sent, received), (sent, received))
    )


def report_collective_order(scheduler: Scheduler, calls: list[Any]) -> None:
    """Add the warning "memory_order" on a collective whose data arrives transposed.

    Some arrays are stored row by row and others column by column; the caller has checked that. The warning names two
    buffers: of each order, the first one by rank. A source line is reported once.

    Args:
        scheduler: the simulation, to whose problems it is added.
        calls: the calls of all ranks, in rank order, of a collective of buffers.
    """
    if not is_new(scheduler, "order", calls[0].site):
        return
    orders: dict[int, tuple[Any, str]] = {}
    for call in calls:
        buffers = [(buffer, "send") for buffer in call.send] + [
            (buffer, "receive") for buffer in call.receive
        ]
        for buffer, side in buffers:
            if buffer.order:
                orders.setdefault(buffer.order, (call, side))
    first_calls = [orders[order] for order in sorted(orders, reverse=True)]
    places = [describe_call_place(call.task.rank, call.name, call.site) for call, _ in first_calls]
    phrases = [
        f"the {side} buffer of rank {call.task.rank} is stored {_ORDERS[order]}"
        for order, (call, side) in sorted(orders.items(), reverse=True)
    ]
    text = f"in {places[0]} {' and '.join(phrases)}: data arrives transposed"
    scheduler.problems.append(Problem("memory_order", WARNING, text, _ranks(*places), tuple(places)))


def report_contradiction(task: Any, buffer: Any, name: str, site: Any) -> None:
    """Add the warning "type_contradiction" on an array whose dtype contradicts the datatype.

    A source line is reported once.

    Args:
        task: the rank that passes the array.
        buffer: its `MessageBuffer`, with a contradiction.
        name: name of the method, such as "Send".
        site: code object and instruction of the call.
    """
    if not is_new(task.scheduler, "contradiction", site):
        return
    location, (dtype, datatype) = describe_call_place(task.rank, name, site), buffer.contradiction
    text = (
        f"rank {task.rank} passes an array of {dtype} as {datatype} in {location}: "
        "the elements are read as other values than the array has"
    )
    task.scheduler.problems.append(Problem("type_contradiction", WARNING, text, (task.rank,), (location,)))


def report_flood(message: Message, count: int, nbytes: int) -> None:
    """Add the warning "run_ahead" on many messages to one rank without waiting, once per source line.

    Args:
        message: one of the messages.
        count: the number of messages so far.
        nbytes: their bytes in total.
    """
    if not is_new(message.task.scheduler, "flood", message.site):
        return
    sent, dest = send_place(message), message.comm.ranks[message.dest]
    text = (
        f"rank {sent.rank} sends {many(count, 'message')} ({many(nbytes, 'byte')}) to rank {dest} in {sent} without "
        "ever waiting for it, so a slow receiver lets them pile up in the library's buffers"
    )
    message.task.scheduler.problems.append(
        Problem("run_ahead", WARNING, text, tuple(sorted({sent.rank, dest})), (sent,))
    )


def report_changed(scheduler: Scheduler, operation: Any, where: ProgramPlace) -> None:
    """Add the error "buffer_reused" on a buffer that changed during a nonblocking call.

    The error is added once per source line of the call. The caller has compared the contents.

    Args:
        scheduler: the scheduler of the simulation.
        operation: the message, the receive or the collective call.
        where: the source line that completes the call.
    """
    if not is_new(scheduler, "changed", operation.site):
        return
    start = describe_call_place(operation.task.rank, operation.name, operation.site)
    kinds = {"payload": "send", "target": "receive"}  # by attribute; a collective call has neither
    what = next((kind for name, kind in kinds.items() if hasattr(operation, name)), "collective")
    text = (
        f"rank {start.rank} changes the {what} buffer of {start} before {where} completes it, "
        "so the data is undefined"
    )
    scheduler.problems.append(Problem("buffer_reused", ERROR, text, (start.rank,), (start, where)))


def _ranks(*places: ProgramPlace) -> tuple[int, ...]:
    """Return the distinct ranks of some places, in ascending order."""
    return tuple(sorted({location.rank for location in places}))


#: Phrases for a differing argument if the calls are at different lines.
_PHRASES = {
    "root": "with root {}",
    "op": "with op {}",
    "dtype": "with {}",
    "count": "with {} elements",
    "counts": "with counts {}",
    "assertion": "with assertion {}",
    "dims": "with dims {}",
    "periods": "with periods {}",
}


def find_difference(shared: Any, meeting: Meeting) -> Problem | None:
    """Return the error on the first difference between the calls of a meeting, or None.

    A meeting is one collective operation; ranks that have not called yet are left out. Compared are first the names
    of the calls, then the arguments that must be equal on all ranks (``facts``), in the order of the first call's.
    The kind of the error is "collective_mismatch". An example: "rank 1 calls Bcast with 2 elements at a.py:22, where
    ranks 0, 2 call Bcast with 3 elements at a.py:24".

    Args:
        shared: the state of the communicator.
        meeting: the collective operation; at least one rank has arrived.
    """
    calls = meeting.present()
    first = calls[0]
    if all(call.name == first.name and call.facts == first.facts for call in calls):
        return None
    names = {call.rank: call.name for call in calls}
    if len(set(names.values())) > 1:
        return _difference_problem(shared, meeting, "call", names)
    for fact in first.facts:
        values = {call.rank: call.facts.get(fact) for call in calls}
        if any(value != first.facts[fact] for value in values.values()):
            return _difference_problem(shared, meeting, fact, values)
    return None


def _difference_problem(shared: Any, meeting: Meeting, fact: str, values: dict[int, Any]) -> Problem:
    """Return the error on the ranks whose value differs from the value of most ranks.

    Ranks with equal values are a group. The largest group counts as right; of equally large groups, the group with
    the lowest rank. The text names up to three other groups, the larger ones first, and counts the ranks of further
    groups. For example, with the values 5, 5, 5, 8 for ranks 0 to 3, the error is on rank 3.

    If an argument differs and all calls are in one source line, the text is that of :func:`_describe_one_line`
    instead.

    Args:
        shared: the state of the communicator.
        meeting: the collective operation.
        fact: the thing that differs: "call" for the name of the call, else the key of an argument such as "root".
        values: the value of each rank that has arrived.
    """
    groups: dict[Any, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(str(value), []).append(rank)
    groups_by_size = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    largest, others = groups_by_size[0], groups_by_size[1:]
    if fact != "call" and len({call.site for call in meeting.present()}) == 1:
        text = _describe_one_line(shared, meeting, fact, groups_by_size)
    else:
        phrases = [_describe_group(shared, meeting, fact, ranks) for ranks in others[:3]]
        if len(others) > 3:
            phrases.append(f"{many(sum(map(len, others[3:])), 'rank')} in other ways")
        text = f"{' and '.join(phrases)}, where {_describe_group(shared, meeting, fact, largest)}"
    # The first rank of each group stands for its place in the program.
    first_ranks = [group[0] for group in [*others, largest]]
    behind = describe_lag(shared, meeting)
    ranks = tuple(sorted(shared.ranks[rank] for group in others for rank in group))
    places = tuple(_call_place(shared, meeting, rank) for rank in first_ranks)
    return Problem("collective_mismatch", ERROR, text + behind, ranks, places)


def _ranks_words(shared: Any, ranks: Sequence[int]) -> str:
    return ranks_text(shared.ranks[rank] for rank in ranks)


def _call_place(shared: Any, meeting: Meeting, rank: int) -> Any:
    call: Any = meeting.calls[rank]
    return describe_call_place(shared.ranks[rank], call.name, call.site)


def _describe_one_line(shared: Any, meeting: Meeting, fact: str, groups: list[list[int]]) -> str:
    """Return a sentence with the value of each group of ranks, for calls from one source line.

    An example: "the ranks do not agree on the root of Bcast at a.py:7: rank 0 passes 0, ranks 1..3 pass 1". The
    sentence shows the five largest groups, in the order of their first ranks, and counts the ranks of further groups.

    Args:
        shared: the state of the communicator.
        meeting: the collective operation.
        fact: the argument that differs, such as "root".
        groups: ranks with equal values, the largest group first.
    """
    location = _call_place(shared, meeting, groups[0][0])
    shown = sorted(groups[:5], key=lambda ranks: ranks[0])
    phrases = []
    for ranks in shown:
        verb = "passes" if len(ranks) == 1 else "pass"
        phrases.append(f"{_ranks_words(shared, ranks)} {verb} {_fact_value(meeting, fact, ranks)}")
    other_count = sum(map(len, groups[5:]))
    ending = f", and {many(other_count, 'rank')} in other ways" if other_count else ""
    return f"the ranks do not agree on the {fact} of {location}: {', '.join(phrases)}{ending}"


def _fact_value(meeting: Meeting, fact: str, ranks: Sequence[int]) -> Any:
    """Return the argument that a group of ranks passes, as it is printed."""
    call: Any = meeting.calls[ranks[0]]
    return call.op if fact == "op" else call.facts.get(fact)


def _describe_group(shared: Any, meeting: Meeting, fact: str, ranks: Sequence[int]) -> str:
    """Return a clause such as "ranks 1..3 call bcast with root 2 at a.py:7".

    Args:
        shared: the state of the communicator.
        meeting: the collective operation.
        fact: "call" for the call itself; else the argument to name, a key of ``_PHRASES`` such as "root".
        ranks: the group; the call and source line of its first rank represent all.
    """
    call: Any = meeting.calls[ranks[0]]
    ranks_call = f"{_ranks_words(shared, ranks)} {'calls' if len(ranks) == 1 else 'call'}"
    location = _call_place(shared, meeting, ranks[0])
    if fact == "call":
        return f"{ranks_call} {location}"
    argument = _PHRASES[fact].format(_fact_value(meeting, fact, ranks))
    return f"{ranks_call} {call.name} {argument} at {location.where}"


def find_block_difference(shared: Any, calls: list[CollectiveCall]) -> Problem | None:
    """Return the error on the first block that its sender and receiver describe differently.

    None if there is no such block. Size and type of each block are compared at both ends: a rank that sends 3 ×
    float64 to a rank that expects 2 × float64 from it gives the error "collective_mismatch". BYTE and PACKED match
    every type; a block without bytes at both ends has no error. Reductions and broadcasts are not compared.

    Args:
        shared: the state of the communicator.
        calls: the calls of all ranks, in rank order, of a collective of buffers.
    """
    for sender, receiver, block, buffer in _pair_blocks(calls):
        if block.nbytes == buffer.nbytes == 0:
            continue
        same_type = block.dtype == buffer.dtype or block.loose or buffer.loose
        if same_type and block.nbytes == buffer.nbytes:
            continue
        sent = describe_call_place(shared.ranks[sender.rank], sender.name, sender.site)
        received = describe_call_place(shared.ranks[receiver.rank], receiver.name, receiver.site)
        return Problem(
            "collective_mismatch",
            ERROR,
            f"in {sent} rank {sent.rank} sends {block.elements} × {block.dtype} to rank {received.rank}, "
            f"which expects {buffer.elements} × {buffer.dtype} from it at {received.where}",
            tuple(sorted({sent.rank, received.rank})),
            (sent, received),
        )
    return None


def _pair_blocks(calls: list[CollectiveCall]) -> Any:
    """Return an iterable of the blocks that move from one rank to another in a collective.

    Each item is (sending call, receiving call, sent block, receive buffer). For example, an all-gather on 2 ranks has
    4 items: from each rank to each rank. The iterable is empty for collectives other than gathers, scatters,
    all-gathers, all-to-alls and exchanges with neighbours, because they do not move whole blocks. Blocks to a rank
    without receive buffers are left out.

    Args:
        calls: the calls of all ranks, in rank order.
    """
    if calls[0].rule.moves is not None:
        return (
            (sender, receiver, sender.send[number], receiver.receive[position])
            for sender, number, receiver, position in calls[0].rule.moves(calls)
            if receiver.receive
        )
    rule = calls[0].rule.answer.__name__
    root = calls[0].root
    if rule == "_gather":
        buffers = calls[root].receive or []
        return ((sender, calls[root], sender.send[0], buffers[sender.rank]) for sender in calls)
    if rule == "_scatter":
        sender = calls[root]
        return (
            (sender, receiver, sender.send[receiver.rank], receiver.receive[0])
            for receiver in calls
            if receiver.receive
        )
    if rule == "_all_gather":
        return (
            (sender, receiver, sender.send[0], receiver.receive[sender.rank])
            for receiver in calls
            if receiver.receive
            for sender in calls
        )
    if rule == "_all_to_all":
        return (
            (sender, receiver, sender.send[receiver.rank], receiver.receive[sender.rank])
            for receiver in calls
            if receiver.receive
            for sender in calls
        )
    return ()


def _most_common_call(row: Sequence[Any]) -> Any:
    """Return the most frequent ``(call name, site)`` of a row.

    A row has one entry per rank, which is None for a missing call.
    """
    return Counter(filter(None, row)).most_common(1)[0][0]


def describe_lag(shared: Any, meeting: Meeting) -> str:
    """Return a clause on ranks that skipped a collective; empty if no ranks did.

    An example: "; rank 1 skipped Barrier at a.py:7 (collective call 3 of the others)".

    A rank that skipped a call is one call ahead from then on: its third call is equal to the fourth call of the other
    ranks. So take the most common call of a meeting, and the most common call of the next meeting. A rank has skipped
    the meeting if its own call there is not the former but the latter. The first meeting with such ranks is named. A
    meeting that more than half of the ranks seem to have skipped is passed over.

    Args:
        shared: the state of the communicator, with a history of the meetings at which ranks called from other lines.
        meeting: the last meeting, at which ranks differ or are missing.
    """
    rows = dict(shared.history)
    rows[meeting.index] = [call and (call.name, call.site) for call in meeting.calls]
    for index, row in rows.items():
        if index + 1 not in rows:
            continue
        common_call, next_call = _most_common_call(row), _most_common_call(rows[index + 1])
        skipping = [rank for rank, call in enumerate(row) if call == next_call and call != common_call]
        if skipping and len(skipping) <= len(row) // 2:
            call_name, site = common_call
            skipped = describe_call_place(0, call_name, site)
            names = _ranks_words(shared, skipping)
            return f"; {names} skipped {skipped} (collective call {index + 1} of the others)"
    return ""


def check_thread_level(scheduler: Scheduler, is_serialized: bool, frame: FrameType) -> None:
    """End the run if the running thread is not its rank's main thread and may not call MPI.

    At MPI_THREAD_SERIALIZED it may call if no other thread of the rank is in a call.

    Args:
        scheduler: the simulation; the level is below MPI_THREAD_MULTIPLE.
        is_serialized: True if it is MPI_THREAD_SERIALIZED.
        frame: a frame of the call.
    """
    thread, task = scheduler.current, scheduler.current.task
    others = [other for other in task.all_threads() if getattr(other.waiting, "comm", None) is not None]
    if is_serialized and not others:
        return
    location = place_in_stack(task.rank, frame)
    name = ("MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED")[task.thread_level]
    rule = "only one thread at a time may call MPI" if others else "only its main thread may call MPI"
    text = (
        f"rank {task.rank} calls {location} in {thread.name}, but its thread level is {name}: {rule}; "
        'set mpi4py.rc.thread_level = "multiple"'
    )
    scheduler.fail(Problem("thread_level", ERROR, text, (task.rank,), (location,)))
