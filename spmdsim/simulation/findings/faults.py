"""Faults of single messages and requests, put in one sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def truncated(message: Message, receive: Receive) -> Problem:
    """More was sent than the receive has room for."""
    sent, got = send_place(message), receive_place(receive)
    return Problem(
        "truncation",
        ERROR,
        f"rank {sent.rank} sends {contents(message.payload)} to rank {got.rank} in {sent}, "
        f"but {got} has room for {contents(receive.target)} only",
        _ranks(sent, got),
        (sent, got),
    )


def wrong_type(message: Message, receive: Receive) -> Problem:
    """The two ends name different types."""
    sent, got = send_place(message), receive_place(receive)
    wanted = receive.target
    as_what = "a pickled object" if wanted.dtype == "object" else str(wanted.dtype)
    return Problem(
        "type_mismatch",
        ERROR,
        f"rank {sent.rank} sends {contents(message.payload)} to rank {got.rank} in {sent}, "
        f"but {got} receives it as {as_what}",
        _ranks(sent, got),
        (sent, got),
    )


def not_ready(message: Message) -> Problem:
    """A ready-mode send without its receive."""
    sent = send_place(message)
    dest = message.comm.ranks[message.dest]
    return Problem(
        "ready_send",
        ERROR,
        f"rank {sent.rank} sends to rank {dest} in {sent}, but {sent.call} is allowed only when the "
        "receive is posted already, and it is not",
        tuple(sorted({sent.rank, dest})),
        (sent,),
    )


def note_memory_order(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Rows on one side and columns on the other: the data arrives transposed."""
    key = ("order", message.site, receive.site)
    if key in scheduler.suspects:
        return
    sent, got = send_place(message), receive_place(receive)
    first, second = _ORDERS[message.payload.order], _ORDERS[receive.target.order]
    scheduler.suspects[key] = True
    scheduler.problems.append(
        Problem(
            "memory_order",
            WARNING,
            f"rank {sent.rank} sends an array stored {first} in {sent}, but {got} on rank {got.rank} "
            f"stores it {second}: the data arrives transposed",
            _ranks(sent, got),
            (sent, got),
        )
    )


def note_collective_order(scheduler: Scheduler, calls: list[Any]) -> None:
    """Rows and columns in one collective: some of its data arrives transposed."""
    key = ("order", calls[0].site)
    if key in scheduler.suspects:
        return
    scheduler.suspects[key] = True
    orders: dict[int, tuple[Any, str]] = {}
    for call in calls:
        parts = [(part, "send") for part in call.send] + [(part, "receive") for part in call.receive]
        for part, side in parts:
            if part.order:
                orders.setdefault(part.order, (call, side))
    each = []
    places = []
    for order in sorted(orders, reverse=True):
        call, side = orders[order]
        places.append(place_of(call.task.rank, call.name, call.site))
        each.append(f"the {side} buffer of rank {call.task.rank} is stored {_ORDERS[order]}")
    text = f"in {places[0]} {' and '.join(each)}: data arrives transposed"
    problem = Problem("memory_order", WARNING, text, _ranks(*places), tuple(places))
    scheduler.problems.append(problem)


def note_flood(message: Message, count: int, nbytes: int) -> None:
    """Hundreds of messages to one rank without waiting for anybody: only memory limits them."""
    task, dest = message.task, message.comm.ranks[message.dest]
    scheduler = task.scheduler
    key = ("flood", message.site)
    if key in scheduler.suspects:
        return
    scheduler.suspects[key] = True
    sent = send_place(message)
    scheduler.problems.append(
        Problem(
            "run_ahead",
            WARNING,
            f"rank {task.rank} sends {count} messages ({nbytes} bytes) to rank {dest} in {sent} without "
            "ever waiting for it, so a slow receiver lets them pile up in the library's buffers",
            tuple(sorted({task.rank, dest})),
            (sent,),
        )
    )


def note_changed(scheduler: Scheduler, operation: Any, where: ProgramPlace) -> None:
    """A buffer was changed while a nonblocking call still used it."""
    key = ("changed", operation.site)
    if key in scheduler.suspects:
        return
    scheduler.suspects[key] = True
    start = place_of(operation.task.rank, operation.name, operation.site)
    what = "send" if hasattr(operation, "payload") else "receive"
    scheduler.problems.append(
        Problem(
            "buffer_reused",
            ERROR,
            f"rank {start.rank} changes the {what} buffer of {start} before {where} completes it, "
            "so the data is undefined",
            (start.rank,),
            (start, where),
        )
    )


def _ranks(*places: ProgramPlace) -> tuple[int, ...]:
    return tuple(sorted({place.rank for place in places}))
