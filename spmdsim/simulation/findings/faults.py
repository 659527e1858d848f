"""Faults of single messages and requests, and collective calls that do not fit together, put in one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.errors import many
from spmdsim.simulation.findings.problems import ERROR, Problem, place_of, ranks_text

if TYPE_CHECKING:
    from spmdsim.simulation.engine.collective_calls import CollectiveCall, Meeting
from typing import TYPE_CHECKING

from spmdsim.simulation.findings.problems import WARNING, ProgramPlace

if TYPE_CHECKING:
    from spmdsim.simulation.engine.mailboxes import Message, Receive
    from spmdsim.simulation.engine.scheduler import Scheduler

_ORDERS = {1: "row by row", 2: "column by column"}


def send_place(message: Message) -> ProgramPlace:
    """Return the source line of a send."""
    return place_of(message.task.rank, message.name, message.site)


def receive_place(receive: Receive) -> ProgramPlace:
    """Return the source line of a receive."""
    return place_of(receive.task.rank, receive.name, receive.site)


def contents(payload: Any) -> str:
    """Describe the contents of a message: ``10 × int32`` or ``a pickled object``."""
    if payload.dtype == "object":
        return "a pickled object"
    return f"{payload.elements} × {payload.dtype}"


def _error(kind: str, text: str, *places: ProgramPlace) -> Problem:
    return Problem(kind, ERROR, text, _ranks(*places), places)


def truncated(message: Message, receive: Receive) -> Problem:
    """Return the finding on a message that is longer than the receive buffer."""
    sent, received = send_place(message), receive_place(receive)
    text = (
        f"rank {sent.rank} sends {contents(message.payload)} to rank {received.rank} in {sent}, "
        f"but {received} has room for {contents(receive.target)} only"
    )
    return _error("truncation", text, sent, received)


def wrong_type(message: Message, receive: Receive) -> Problem:
    """Return the finding on a message whose two ends name different types."""
    sent, received = send_place(message), receive_place(receive)
    wanted = receive.target
    as_what = "a pickled object" if wanted.dtype == "object" else str(wanted.dtype)
    text = (
        f"rank {sent.rank} sends {contents(message.payload)} to rank {received.rank} in {sent}, "
        f"but {received} receives it as {as_what}"
    )
    return _error("type_mismatch", text, sent, received)


def not_ready(message: Message) -> Problem:
    """Return the finding on a ready-mode send whose receive is not posted."""
    sent, dest = send_place(message), message.comm.ranks[message.dest]
    text = (
        f"rank {sent.rank} sends to rank {dest} in {sent}, but {sent.call} is allowed only when the "
        "receive is posted already, and it is not"
    )
    return Problem("ready_send", ERROR, text, tuple(sorted({sent.rank, dest})), (sent,))


def is_new(scheduler: Scheduler, *key: Any) -> bool:
    """Return True if this was not reported yet, and remember it."""
    new = key not in scheduler.suspects
    scheduler.suspects.add(key)
    return new


def note_memory_order(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Report rows on one side and columns on the other: the data arrives transposed."""
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


def note_collective_order(scheduler: Scheduler, calls: list[Any]) -> None:
    """Report rows and columns in one collective: some of its data arrives transposed."""
    if not is_new(scheduler, "order", calls[0].site):
        return
    orders: dict[int, tuple[Any, str]] = {}
    for call in calls:
        parts = [(part, "send") for part in call.send] + [(part, "receive") for part in call.receive]
        for part, side in parts:
            if part.order:
                orders.setdefault(part.order, (call, side))
    of_both = [orders[order] for order in sorted(orders, reverse=True)]
    places = [place_of(call.task.rank, call.name, call.site) for call, _ in of_both]
    each = [
        f"the {side} buffer of rank {call.task.rank} is stored {_ORDERS[order]}"
        for order, (call, side) in sorted(orders.items(), reverse=True)
    ]
    text = f"in {places[0]} {' and '.join(each)}: data arrives transposed"
    scheduler.problems.append(Problem("memory_order", WARNING, text, _ranks(*places), tuple(places)))


def note_flood(message: Message, count: int, nbytes: int) -> None:
    """Report hundreds of messages to one rank without waiting for any rank."""
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


def note_changed(scheduler: Scheduler, operation: Any, where: ProgramPlace) -> None:
    """Report a buffer that changed while a nonblocking call still used it."""
    if not is_new(scheduler, "changed", operation.site):
        return
    start = place_of(operation.task.rank, operation.name, operation.site)
    what = "send" if hasattr(operation, "payload") else "receive"
    text = (
        f"rank {start.rank} changes the {what} buffer of {start} before {where} completes it, "
        "so the data is undefined"
    )
    scheduler.problems.append(Problem("buffer_reused", ERROR, text, (start.rank,), (start, where)))


def _ranks(*places: ProgramPlace) -> tuple[int, ...]:
    return tuple(sorted({place.rank for place in places}))


# How a fact is told when the calls stand at different lines.
_PHRASES = {
    "root": "with root {}",
    "op": "with op {}",
    "dtype": "with {}",
    "count": "with {} elements",
    "counts": "with counts {}",
}


def compare(shared: Any, meeting: Meeting) -> Problem | None:
    """Return the finding on the first difference between the calls that arrived; None if they fit together."""
    calls = meeting.present()
    first = calls[0]
    if all(call.name == first.name and call.facts == first.facts for call in calls):
        return None
    names = {call.rank: call.name for call in calls}
    if len(set(names.values())) > 1:
        return _differing(shared, meeting, "call", names)
    for fact in first.facts:
        values = {call.rank: call.facts.get(fact) for call in calls}
        if any(value != first.facts[fact] for value in values.values()):
            return _differing(shared, meeting, fact, values)
    return None


def _differing(shared: Any, meeting: Meeting, fact: str, values: dict[int, Any]) -> Problem:
    """Return the finding on how the smaller groups of ranks differ from the largest one."""
    groups: dict[Any, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(str(value), []).append(rank)
    ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    usual, others = ordered[0], ordered[1:]
    if fact != "call" and len({call.site for call in meeting.present()}) == 1:
        text = _at_one_line(shared, meeting, fact, ordered)
    else:
        phrases = [_differs(shared, meeting, fact, ranks) for ranks in others[:3]]
        if len(others) > 3:
            phrases.append(f"{many(sum(map(len, others[3:])), 'rank')} in other ways")
        text = f"{' and '.join(phrases)}, where {_differs(shared, meeting, fact, usual)}"
    named = [group[0] for group in [*others, usual]]
    behind = lag(shared, meeting)
    ranks = tuple(sorted(shared.ranks[rank] for group in others for rank in group))
    places = tuple(_place(shared, meeting, rank) for rank in named)
    return Problem("collective_mismatch", ERROR, text + behind, ranks, places)


def _who(shared: Any, ranks: Sequence[int]) -> str:
    return ranks_text(shared.ranks[rank] for rank in ranks)


def _place(shared: Any, meeting: Meeting, rank: int) -> Any:
    call: Any = meeting.calls[rank]
    return place_of(shared.ranks[rank], call.name, call.site)


def _at_one_line(shared: Any, meeting: Meeting, fact: str, groups: list[list[int]]) -> str:
    """Describe what each rank passes, if all ranks make the call at one line."""
    place = _place(shared, meeting, groups[0][0])
    shown = sorted(groups[:5], key=lambda ranks: ranks[0])
    each = [
        f"{_who(shared, ranks)} {'passes' if len(ranks) == 1 else 'pass'} {_value(meeting, fact, ranks)}"
        for ranks in shown
    ]
    more = sum(map(len, groups[5:]))
    rest = f", and {many(more, 'rank')} in other ways" if more else ""
    return f"the ranks do not agree on the {fact} of {place}: {', '.join(each)}{rest}"


def _value(meeting: Meeting, fact: str, ranks: Sequence[int]) -> Any:
    call: Any = meeting.calls[ranks[0]]
    return call.op if fact == "op" else call.facts.get(fact)


def _differs(shared: Any, meeting: Meeting, fact: str, ranks: Sequence[int]) -> str:
    call: Any = meeting.calls[ranks[0]]
    does = f"{_who(shared, ranks)} {'calls' if len(ranks) == 1 else 'call'}"
    place = _place(shared, meeting, ranks[0])
    if fact == "call":
        return f"{does} {place}"
    return f"{does} {call.name} {_PHRASES[fact].format(_value(meeting, fact, ranks))} at {place.where}"


def compare_blocks(shared: Any, calls: list[CollectiveCall]) -> Problem | None:
    """Return the finding on the first block whose two ends disagree on its size or type, or None."""
    for sender, receiver, part, room in _pairs(calls):
        if part.nbytes == room.nbytes == 0:
            continue
        same_type = part.dtype == room.dtype or part.loose or room.loose
        fits = part.nbytes == room.nbytes if part.dtype != room.dtype else part.elements == room.elements
        if same_type and fits:
            continue
        sent = place_of(shared.ranks[sender.rank], sender.name, sender.site)
        received = place_of(shared.ranks[receiver.rank], receiver.name, receiver.site)
        return Problem(
            "collective_mismatch",
            ERROR,
            f"in {sent} rank {sent.rank} sends {part.elements} × {part.dtype} to rank {received.rank}, "
            f"which expects {room.elements} × {room.dtype} from it at {received.where}",
            tuple(sorted({sent.rank, received.rank})),
            (sent, received),
        )
    return None


def _pairs(calls: list[CollectiveCall]) -> Any:
    """Yield (sender, receiver, sent block, receive buffer) for every block of a collective that moves blocks."""
    rule = calls[0].rule.answer.__name__
    root = calls[0].root
    if rule == "_gather":
        room = calls[root].receive or []
        return ((c, calls[root], c.send[0], room[c.rank]) for c in calls)
    if rule == "_scatter":
        parts = calls[root].send
        return ((calls[root], c, parts[c.rank], c.receive[0]) for c in calls if c.receive)
    if rule == "_all_gather":
        return ((s, r, s.send[0], r.receive[s.rank]) for r in calls if r.receive for s in calls)
    if rule == "_all_to_all":
        return ((s, r, s.send[r.rank], r.receive[s.rank]) for r in calls if r.receive for s in calls)
    return ()


def lag(shared: Any, meeting: Meeting) -> str:
    """Describe a rank that skipped a call and is one call behind since then.

    A rank that skipped a collective stands, at every later one, at the line where the others stand
    one meeting later.
    """
    rows = dict(shared.history)
    rows[meeting.index] = [call and (call.name, call.site) for call in meeting.calls]
    for index, row in rows.items():
        if index + 1 not in rows:
            continue
        usual, next_usual = (Counter(filter(None, rows[i])).most_common(1)[0][0] for i in (index, index + 1))
        late = [r for r, entry in enumerate(row) if entry == next_usual and entry != usual]
        if late and len(late) <= len(row) // 2:
            skipped = place_of(0, *usual)
            who = _who(shared, late)
            return f"; {who} skipped {skipped} (collective call {index + 1} of the others)"
    return ""
