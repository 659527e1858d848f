"""Programs that work only because the library is kind: noticed when nobody can go on, then helped over it.

Every standard send waits for its receive here, and every collective for all its ranks. When all ranks are stuck,
a library with room for a message would go on, and so would one that lets the root of a broadcast leave early.
So do we; and once the message has been received after all, the program is reported to depend on it.
"""

from __future__ import annotations

from typing import Any

from spmdsim.simulation.deadlock.wait_graph import WaitGraph, arrows, awaited_ranks, open_operations
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import STANDARD, Message, finish
from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.findings.code_places import ProgramPlace, place_of, ranks_text, site_key
from spmdsim.simulation.findings.faults import is_new
from spmdsim.simulation.findings.problems import WARNING, Problem


class Relief:
    """Operations of one cycle that a stall let go.

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
        """A message let go was received: report it, and let its call buffer from now on."""
        key = site_key(message.site)
        scheduler.buffered_sites.add(key)
        place = place_of(message.task.rank, message.name, message.site)
        text = f"{place} only works because the library buffers the message: without a buffer "
        self._report(scheduler, "needs_buffering", message, place, text)

    def confirm_early(self, scheduler: Scheduler, call: CollectiveCall) -> None:
        """The collective that a rank left early has come together: report it."""
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
    """Let the standard sends of a stall return, or else its early leavers; those on a cycle first.

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
    """Whether a rank may leave a collective early, and all it waits for can still come."""
    missing = awaited_ranks(call)[0]
    return call.may_leave() and not any(scheduler.tasks[rank].finished for rank in missing)


def _on_cycles(operations: list[Any], on_cycle: dict[int, int]) -> dict[int, list[Any]]:
    """The operations that wait for a rank of their own cycle, by cycle."""
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
