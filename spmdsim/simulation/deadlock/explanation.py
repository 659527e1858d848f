"""A run in which no rank can go on: helped on where a library would be kind, else explained in one sentence.

Every standard send waits for its receive here, and every collective for all its ranks. When all ranks are stuck,
a library with room for a message would go on, and so would one that lets the root of a broadcast leave early.
So do we; and once the message has been received after all, the program is reported to depend on it.
"""

from __future__ import annotations

from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.deadlock.wait_graph import (
    Wait,
    WaitGraph,
    arrows,
    awaited_ranks,
    open_operations,
    wait_of,
)
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import STANDARD, Message, finish
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.faults import is_new
from spmdsim.simulation.findings.problems import (
    ERROR,
    WARNING,
    Problem,
    ProgramPlace,
    place_of,
    ranks_text,
    site_key,
)


class Relief:
    """The operations of one cycle that were released to resolve a stall.

    Attributes:
        cycle: ranks that waited for each other; empty if these only waited for somebody slow.
        operations: what was let go.
        alike: all ranks that the same stall let go at the same lines.
    """

    def __init__(self, cycle: tuple[int, ...], operations: list[Any], alike: dict[Any, set[int]]) -> None:
        self.cycle = cycle
        self.operations = operations
        self.alike = alike

    def confirm(self, scheduler: Scheduler, message: Message) -> None:
        """Report a released message that was received, and let its call buffer messages from now on."""
        key = site_key(message.site)
        scheduler.buffered_sites.add(key)
        place = place_of(message.task.rank, message.name, message.site)
        text = f"{place} only works because the library buffers the message: without a buffer "
        self._report(scheduler, "needs_buffering", message, place, text)

    def confirm_early(self, scheduler: Scheduler, call: CollectiveCall) -> None:
        """Report the collective that a rank left early and that is complete now."""
        place = place_of(call.task.rank, call.name, call.site)
        text = (
            f"{place} only works because the library lets rank {place.rank} leave before the others "
            "have come: otherwise "
        )
        self._report(scheduler, "early_leave", call, place, text)

    def _report(
        self, scheduler: Scheduler, kind: str, operation: Any, place: ProgramPlace, text: str
    ) -> None:
        if not is_new(scheduler, kind, site_key(operation.site)):
            return
        ranks = sorted({other.task.rank for other in self.operations if other.site == operation.site})
        others = len(self.alike[site_key(operation.site)] - set(ranks))
        more = f", and {others} more rank{'s' if others > 1 else ''} likewise" if others else ""
        text += f"{self._who(place, operation, ranks)}{more}"
        scheduler.problems.append(Problem(kind, WARNING, text, tuple(ranks), (place,), self.cycle))

    def _who(self, place: ProgramPlace, operation: Any, ranks: list[int]) -> str:
        if len(self.cycle) == 1:
            return f"rank {place.rank} waits for itself"
        if len(self.cycle) > 1:
            whole = ranks if len(ranks) > 1 else sorted(self.cycle)
            return f"{ranks_text(whole)} wait for each other ({arrows(self.cycle)})"
        awaited = ranks_text(awaited_ranks(operation)[0]) if isinstance(operation, Message) else "others"
        return f"rank {place.rank} waits for {awaited} too early"


def relieve(scheduler: Scheduler, graph: WaitGraph) -> bool:
    """Complete the standard sends of a stall, or else its early leavers; operations on a cycle come first.

    Returns:
        Whether a rank can go on now.
    """
    if scheduler.strict:
        return False
    waiting = [one for task in graph.blocked for one in open_operations(task.waiting)]
    sends = [one for one in waiting if isinstance(one, Message) and one.mode is STANDARD]
    early = [one for one in waiting if isinstance(one, CollectiveCall) and _could_leave(scheduler, one)]
    if not sends and not early:
        return False
    on_cycle = graph.components()
    chosen = _on_cycles(sends, on_cycle) or _on_cycles(early, on_cycle)
    if chosen:
        alike = _alike([one for group in chosen.values() for one in group])
        for group in chosen.values():
            cycle = graph.cycle_from(group[0].task.rank)
            _let_go(scheduler, group, Relief(cycle, group, alike))
        return True
    left = sends or early
    _let_go(scheduler, left, Relief((), left, _alike(left)))
    return True


def _could_leave(scheduler: Scheduler, call: CollectiveCall) -> bool:
    """Return True if a rank may leave a collective early and everything it waits for can still happen."""
    missing = awaited_ranks(call)[0]
    return call.may_leave() and not any(scheduler.tasks[rank].finished for rank in missing)


def _on_cycles(operations: list[Any], on_cycle: dict[int, int]) -> dict[int, list[Any]]:
    """Return the operations that wait for a rank of their own cycle, by cycle."""
    by_rank: dict[int, list[Any]] = {}
    for operation in operations:
        component = on_cycle.get(operation.task.rank)
        awaited = awaited_ranks(operation)[0]
        if component is not None and any(on_cycle.get(rank) == component for rank in awaited):
            by_rank.setdefault(component, []).append(operation)
    return by_rank


def _alike(operations: list[Any]) -> dict[Any, set[int]]:
    ranks_of: dict[Any, set[int]] = {}
    for operation in operations:
        ranks_of.setdefault(site_key(operation.site), set()).add(operation.task.rank)
    return ranks_of


def _let_go(scheduler: Scheduler, operations: list[Any], relief: Relief) -> None:
    for operation in operations:
        operation.relieved = relief
        if isinstance(operation, Message):
            operation.keep()
        else:
            operation.leave()
        finish(scheduler, operation)


DETAILS = 64


def on_stall(scheduler: Scheduler, attention: str) -> bool:
    """Resolve a stall by completing sends or collectives early, or end the run with an explanation.

    With the attention ``relief`` the run does not end.

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
    """Explain why the blocked ranks cannot continue; the most specific reason comes first."""
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
    """Explain ranks that wait in one collective call with arguments that do not fit."""
    for shared in scheduler.shared:
        for meeting in shared.meetings.values():
            problem = faults.compare(shared, meeting)
            if problem is not None:
                return problem
    return None


def _missing_rank(scheduler: Scheduler, graph: WaitGraph) -> Problem | None:
    """Explain a rank that waits for a rank that has finished."""
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
    behind = faults.lag(call.comm, call.meeting) if call.meeting is not None else ""
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
    """Explain a receive from any source that took the message of a later receive."""
    caught = operation.task.caught
    taken = [rank for rank in gone if rank in caught]
    if isinstance(operation, Message) or not taken or operation.source == ANY_SOURCE:
        return ""
    name, site = caught[taken[0]]
    return f"; {place_of(operation.task.rank, name, site)}, open to any source, took one of its messages"


def _tag_or_communicator(scheduler: Scheduler, graph: WaitGraph) -> Problem | None:
    """Explain a receive whose message has another tag or is in another communicator."""
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
    """Describe a message that the program may have meant."""
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
            return faults.lag(operation.comm, operation.meeting)
    return ""


def _polling(graph: WaitGraph) -> Problem:
    """Explain running ranks that test repeatedly while nothing changes."""
    task = graph.blocked[0]
    wait = wait_of(task)
    text = (
        f"rank {wait.rank} looks again and again in {wait.text} for {ranks_text(wait.ranks)}, "
        "and nothing it waits for can happen any more"
    )
    return Problem("deadlock", ERROR, text, (wait.rank,), (wait.place,))
