"""Faults of single messages and requests, put in one sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.errors import many
from spmdsim.simulation.findings.code_places import ProgramPlace, place_of
from spmdsim.simulation.findings.problems import ERROR, WARNING, Problem

if TYPE_CHECKING:
    from spmdsim.simulation.engine.mailboxes import Message, Receive
    from spmdsim.simulation.engine.scheduler import Scheduler


_ORDERS = {1: "row by row", 2: "column by column"}


def send_place(message: Message) -> ProgramPlace:
    """Where a message was sent."""
    return place_of(message.task.rank, message.name, message.site)


def receive_place(receive: Receive) -> ProgramPlace:
    """Where a receive was posted."""
    return place_of(receive.task.rank, receive.name, receive.site)


def contents(payload: Any) -> str:
    """What travels, in words: ``10 × int32`` or ``a pickled object``."""
    if payload.dtype == "object":
        return "a pickled object"
    return f"{payload.elements} × {payload.dtype}"


def _error(kind: str, text: str, *places: ProgramPlace) -> Problem:
    return Problem(kind, ERROR, text, _ranks(*places), places)


def truncated(message: Message, receive: Receive) -> Problem:
    """More was sent than the receive has room for."""
    sent, received = send_place(message), receive_place(receive)
    text = (
        f"rank {sent.rank} sends {contents(message.payload)} to rank {received.rank} in {sent}, "
        f"but {received} has room for {contents(receive.target)} only"
    )
    return _error("truncation", text, sent, received)


def wrong_type(message: Message, receive: Receive) -> Problem:
    """The two ends name different types."""
    sent, received = send_place(message), receive_place(receive)
    wanted = receive.target
    as_what = "a pickled object" if wanted.dtype == "object" else str(wanted.dtype)
    text = (
        f"rank {sent.rank} sends {contents(message.payload)} to rank {received.rank} in {sent}, "
        f"but {received} receives it as {as_what}"
    )
    return _error("type_mismatch", text, sent, received)


def not_ready(message: Message) -> Problem:
    """A ready-mode send without its receive."""
    sent, dest = send_place(message), message.comm.ranks[message.dest]
    text = (
        f"rank {sent.rank} sends to rank {dest} in {sent}, but {sent.call} is allowed only when the "
        "receive is posted already, and it is not"
    )
    return Problem("ready_send", ERROR, text, tuple(sorted({sent.rank, dest})), (sent,))


def is_new(scheduler: Scheduler, *key: Any) -> bool:
    """Whether nothing was said of this yet: it is worth one sentence."""
    new = key not in scheduler.suspects
    scheduler.suspects.add(key)
    return new


def note_memory_order(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Rows on one side and columns on the other: the data arrives transposed."""
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
    """Rows and columns in one collective: some of its data arrives transposed."""
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
    """Hundreds of messages to one rank without waiting for anybody: only memory limits them."""
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
    """A buffer was changed while a nonblocking call still used it."""
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
