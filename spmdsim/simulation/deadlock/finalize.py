"""What is still open when every rank has finished: messages, requests, collectives, Finalize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spmdsim.simulation.deadlock.wait_graph import describe
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import Message
from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.findings.problems import ERROR, Problem, ProgramPlace, place_of, ranks_text


def check_end(scheduler: Scheduler, finalize_needed: bool) -> None:
    """Add a finding for everything left open; equal ones of several ranks become one."""
    for task in scheduler.tasks:
        task.note_flood()
    scheduler.problems += [*_unreceived(scheduler), *_open_meetings(scheduler), *_never_waited(scheduler)]
    if finalize_needed:
        scheduler.problems += _not_finalized(scheduler)


def _unreceived(scheduler: Scheduler) -> Iterator[Problem]:
    groups: dict[Any, list[Message]] = {}
    for shared in scheduler.shared:
        for box in shared.boxes:
            for message in box.waiting_messages():
                groups.setdefault((message.site, message.tag), []).append(message)
    for (site, tag), messages in groups.items():
        first = messages[0]
        shared = first.comm
        senders = {message.comm.ranks[message.source] for message in messages}
        receivers = {message.comm.ranks[message.dest] for message in messages}
        place = place_of(min(senders), first.name, site)
        many = "a message" if len(messages) == 1 else f"{len(messages)} messages"
        never = "never receives" if len(receivers) == 1 else "never receive"
        where = "" if shared.name == "COMM_WORLD" else f" in {shared.name}"
        text = (
            f"{ranks_text(receivers)} {never} {many} with tag {tag}{where} that {ranks_text(senders)} "
            f"sent with {place}"
        )
        ranks = tuple(sorted(senders | receivers))
        yield Problem("unreceived", ERROR, text, ranks, (place,))


def _open_meetings(scheduler: Scheduler) -> Iterator[Problem]:
    for shared in scheduler.shared:
        for meeting in shared.meetings.values():
            calls = meeting.present()
            missing = [shared.ranks[r] for r, call in enumerate(meeting.calls) if call is None]
            here = [shared.ranks[call.rank] for call in calls]
            place = place_of(here[0], calls[0].name, calls[0].site)
            call_it = "never calls" if len(missing) == 1 else "never call"
            text = f"{ranks_text(missing)} {call_it} {place}, which {ranks_text(here)} began"
            ranks = tuple(sorted({*missing, *here}))
            yield Problem("collective_mismatch", ERROR, text, ranks, (place,))


def _never_waited(scheduler: Scheduler) -> Iterator[Problem]:
    groups: dict[Any, list[Any]] = {}
    for task in scheduler.tasks:
        for request in task.active.values():
            operation = request.operation
            if operation is not None:
                groups.setdefault((operation.name, operation.site), []).append(operation)
    for (name, site), operations in groups.items():
        ranks = sorted({operation.task.rank for operation in operations})
        place: ProgramPlace = place_of(ranks[0], name, site)
        many = "a request" if len(operations) == 1 else f"{len(operations)} requests"
        whose = f"{ranks_text(ranks)} never {'waits' if len(ranks) == 1 else 'wait'} for"
        state = "" if all(operation.done for operation in operations) else ", not even complete"
        what = "" if isinstance(operations[0], CollectiveCall) else f" ({_calls(operations)})"
        text = f"{whose} {many} of {place}{what}{state}"
        yield Problem("not_waited", ERROR, text, tuple(ranks), (place,))


#: How many different calls of one line a finding spells out.
_SPELLED = 3


def _calls(operations: list[Any]) -> str:
    """The calls behind some requests, each once; where they differ, whose they are."""
    ranks: dict[str, int] = {}
    for operation in operations:
        ranks.setdefault(describe(operation), operation.task.rank)
    spelled = [f"rank {rank}: {call}" if len(ranks) > 1 else call for call, rank in ranks.items()]
    rest = len(spelled) - _SPELLED
    return "; ".join([*spelled[:_SPELLED], *([f"and {rest} more"] if rest > 0 else [])])


def _not_finalized(scheduler: Scheduler) -> Iterator[Problem]:
    late = [task for task in scheduler.tasks if isinstance(task.initialized, ProgramPlace)]
    open_ranks = [task.rank for task in late if not task.finalized]
    if not open_ranks:
        return
    place = scheduler.tasks[open_ranks[0]].initialized
    ends = "ends" if len(open_ranks) == 1 else "end"
    text = f"{ranks_text(open_ranks)} {ends} without MPI.Finalize() after {place}"
    yield Problem("not_finalized", ERROR, text, tuple(open_ranks), (place,))
