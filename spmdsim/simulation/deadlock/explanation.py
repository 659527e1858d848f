"""A run in which no rank can go on, explained in one sentence."""

from __future__ import annotations

from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.deadlock.relief import relieve
from spmdsim.simulation.deadlock.wait_graph import (
    Wait,
    WaitGraph,
    arrows,
    awaited_ranks,
    open_operations,
    wait_of,
)
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import Message
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings import mismatch
from spmdsim.simulation.findings.code_places import place_of, ranks_text
from spmdsim.simulation.findings.problems import ERROR, Problem

DETAILS = 64


def on_stall(scheduler: Scheduler, attention: str) -> bool:
    """Nobody can go on: help over a missing buffer, or end the run with its explanation.

    Args:
        scheduler: the simulation.
        attention: empty when all ranks are blocked; ``relief`` or ``livelock`` when some only poll.

    Returns:
        Whether a rank can go on now.
    """
    graph = WaitGraph(scheduler)
    if attention != "livelock" and relieve(scheduler, graph):
        return True
    if attention != "relief":
        if scheduler.timeline is not None:
            last = max(task.clock for task in scheduler.tasks)
            for task in graph.blocked:
                wait = wait_of(task)
                scheduler.timeline.blocked(
                    task, wait.place.call, wait.place.where, ranks_text(wait.ranks), last
                )
        scheduler.record_failure(explain(scheduler, graph))
    return False


def explain(scheduler: Scheduler, graph: WaitGraph) -> Problem:
    """Why the blocked ranks cannot go on, most specific reason first."""
    reason = _mismatched(scheduler) or _missing_rank(scheduler, graph)
    if reason is None:
        reason = _tag_or_communicator(scheduler, graph) or _cycle(scheduler, graph)
    details = tuple(
        f"rank {wait.rank} waits in {wait.text} for {ranks_text(wait.ranks)}"
        for wait in (wait_of(task) for task in graph.blocked[:DETAILS])
        if wait.ranks
    )
    cycle = reason.cycle or graph.find_cycle()
    return Problem(reason.kind, ERROR, reason.message, reason.ranks, reason.places, cycle, details)


def _mismatched(scheduler: Scheduler) -> Problem | None:
    """Ranks that wait in one collective call with arguments that do not fit."""
    for shared in scheduler.shared:
        for meeting in shared.meetings.values():
            problem = mismatch.compare(shared, meeting)
            if problem is not None:
                return problem
    return None


def _missing_rank(scheduler: Scheduler, graph: WaitGraph) -> Problem | None:
    """Somebody waits for a rank that has finished."""
    best: Problem | None = None
    for task in graph.blocked:
        wait = wait_of(task)
        gone = [rank for rank in wait.ranks if scheduler.tasks[rank].finished]
        if not gone or (not wait.every and len(gone) < len(wait.ranks)):
            continue
        operation = open_operations(task.waiting)[0]
        if isinstance(operation, CollectiveCall):
            return _never_came(scheduler, graph, operation, wait, gone)
        hint = _hint(scheduler, operation)
        if best is None or hint:
            best = _never_answers(wait, operation, gone, hint)
            if hint:
                return best
    return best


def _never_came(
    scheduler: Scheduler, graph: WaitGraph, call: CollectiveCall, wait: Wait, gone: list[int]
) -> Problem:
    together = [
        task.rank
        for task in graph.blocked
        for operation in open_operations(task.waiting)
        if isinstance(operation, CollectiveCall) and operation.meeting is call.meeting
    ]
    verb = "waits" if len(set(together)) == 1 else "wait"
    they = "it has" if len(gone) == 1 else "they have"
    never = "never calls" if len(gone) == 1 else "never call"
    behind = mismatch.lag(call.comm, call.meeting) if call.meeting is not None else ""
    text = (
        f"{ranks_text(together)} {verb} in {wait.text} for {ranks_text(gone)}, which {never} it: "
        f"{they} finished{behind}"
    )
    return Problem("deadlock", ERROR, text, tuple(sorted({*together, *gone})), (wait.place,))


def _never_answers(wait: Wait, operation: Any, gone: list[int], hint: str) -> Problem:
    does = "receives it" if isinstance(operation, Message) else "sends it a message"
    if len(gone) > 1:
        does = does.replace("sends", "send")
    they = "it has" if len(gone) == 1 else "they have"
    reason = hint or f"which never {does}: {they} finished{_caught(operation, gone)}"
    text = f"rank {wait.rank} waits in {wait.text} for {ranks_text(gone)}, {reason}"
    return Problem("deadlock", ERROR, text, tuple(sorted({wait.rank, *gone})), (wait.place,))


def _caught(operation: Any, gone: list[int]) -> str:
    """A receive open to any source that took what a later one waits for."""
    caught = operation.task.caught
    taken = [rank for rank in gone if rank in caught]
    if isinstance(operation, Message) or not taken or operation.source == ANY_SOURCE:
        return ""
    name, site = caught[taken[0]]
    return f"; {place_of(operation.task.rank, name, site)}, open to any source, took one of its messages"


def _tag_or_communicator(scheduler: Scheduler, graph: WaitGraph) -> Problem | None:
    """A receive whose message is there under another tag or in another communicator."""
    for task in graph.blocked:
        for operation in open_operations(task.waiting):
            hint = _hint(scheduler, operation)
            if hint:
                wait = wait_of(task)
                text = f"rank {wait.rank} waits in {wait.text} for {ranks_text(wait.ranks)}, {hint}"
                ranks = tuple(sorted({wait.rank, *awaited_ranks(operation)[0]}))
                return Problem("deadlock", ERROR, text, ranks, (wait.place,), graph.cycle_from(task.rank))
    return None


def _hint(scheduler: Scheduler, operation: Any) -> str:
    """A message that the program may have meant, in words."""
    if isinstance(operation, Message | CollectiveCall) or operation.dest < 0:
        return ""
    own = operation.task.rank
    wanted = operation.source
    for shared in scheduler.shared:
        if own not in shared.ranks:
            continue
        box = shared.boxes[shared.ranks.index(own)]
        for message in box.waiting_messages():
            sender = shared.ranks[message.source]
            if wanted != ANY_SOURCE and sender != operation.comm.ranks[wanted]:
                continue
            sent = place_of(sender, message.name, message.site)
            whose = f"but the message that rank {sender} sent it with {sent}"
            if shared is not operation.comm:
                return f"{whose} is in the communicator {shared.name}, not {operation.comm.name}"
            if operation.tag != ANY_TAG and operation.tag != message.tag:
                return f"{whose} has tag {message.tag}, not {operation.tag}"
    return ""


def _cycle(scheduler: Scheduler, graph: WaitGraph) -> Problem:
    cycle = graph.find_cycle()
    if not cycle:
        return _polling(graph)
    following = [*cycle[1:], cycle[0]]
    waits = [wait_of(scheduler.tasks[rank], after) for rank, after in zip(cycle, following)]
    behind = _behind(scheduler.tasks[cycle[0]])
    if len(cycle) == 1:
        text = f"rank {cycle[0]} waits for itself in {waits[0].text}"
    else:
        shown = waits if len(waits) <= 4 else waits[:2]
        each = ", ".join(f"rank {wait.rank} in {wait.text}" for wait in shown)
        rest = "" if len(waits) <= 4 else f", and so on for {len(waits)} ranks"
        text = f"{ranks_text(cycle)} wait for each other ({arrows(cycle)}): {each}{rest}"
    places = tuple(wait.place for wait in waits[:DETAILS])
    return Problem("deadlock", ERROR, text + behind, tuple(sorted(cycle)), places, cycle)


def _behind(task: Task) -> str:
    for operation in open_operations(task.waiting):
        if isinstance(operation, CollectiveCall) and operation.meeting is not None:
            return mismatch.lag(operation.comm, operation.meeting)
    return ""


def _polling(graph: WaitGraph) -> Problem:
    """Nothing moves, and the ranks that run only look again and again."""
    task = graph.blocked[0]
    wait = wait_of(task)
    text = (
        f"rank {wait.rank} looks again and again in {wait.text} for {ranks_text(wait.ranks)}, "
        "and nothing it waits for can happen any more"
    )
    return Problem("deadlock", ERROR, text, (wait.rank,), (wait.place,))
