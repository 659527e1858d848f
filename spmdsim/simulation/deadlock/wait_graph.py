"""Who waits for whom: the wait-for graph of blocked ranks, its cycles, and each wait in words; what is open at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import Message, WaitsTogether
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings.problems import (
    ERROR,
    Problem,
    ProgramPlace,
    line_of,
    place_in_stack,
    place_of,
    ranks_text,
)


@dataclass(frozen=True)
class Wait:
    """The operation for which one blocked rank waits, and the ranks that it needs.

    Attributes:
        rank: the rank.
        place: the call it is blocked in.
        ranks: ranks of the whole program that could end the wait.
        every: all of them are needed, not any one.
        text: the wait in words, with its line.
    """

    rank: int
    place: ProgramPlace
    ranks: tuple[int, ...]
    every: bool
    text: str


def open_operations(waiting: Any) -> list[Any]:
    """Return the incomplete operations for which a rank waits."""
    operations = waiting.operations if isinstance(waiting, WaitsTogether) else [waiting]
    return [operation for operation in operations if not operation.done]


def awaited_ranks(operation: Any) -> tuple[tuple[int, ...], bool]:
    """Return the ranks that an operation needs, and whether it needs all of them."""
    shared = operation.comm
    if isinstance(operation, CollectiveCall):
        calls = operation.meeting.calls if operation.meeting is not None else []
        return tuple(shared.ranks[r] for r, call in enumerate(calls) if call is None), True
    if isinstance(operation, Message):
        return (shared.ranks[operation.dest],), True
    if operation.source == ANY_SOURCE:
        own = operation.task.rank
        return tuple(rank for rank in shared.ranks if rank != own), False
    return (shared.ranks[operation.source],), True


def describe(operation: Any) -> str:
    """Describe an operation: ``Recv(source=1, tag=0)``."""
    where = "" if operation.comm.name == "COMM_WORLD" else f", {operation.comm.name}"
    if isinstance(operation, CollectiveCall):
        root = f"(root={operation.root}{where})" if operation.root >= 0 else ""
        return f"{operation.name}{root}" if root or not where else f"{operation.name}({where[2:]})"
    tag = "ANY_TAG" if operation.tag == ANY_TAG else operation.tag
    if isinstance(operation, Message):
        return f"{operation.name}(dest={operation.dest}, tag={tag}{where})"
    source = "ANY_SOURCE" if operation.source == ANY_SOURCE else operation.source
    return f"{operation.name}(source={source}, tag={tag}{where})"


def wait_of(task: Task, toward: int | None = None) -> Wait:
    """Return the wait of a blocked rank.

    Args:
        task: the rank.
        toward: of several operations, put the one that waits for this rank first.
    """
    place = place_in_stack(task.rank, task.greenlet.gr_frame)
    operations = open_operations(task.waiting)
    if toward is not None:
        operations.sort(key=lambda operation: toward not in awaited_ranks(operation)[0])
    every = all(awaited_ranks(operation)[1] for operation in operations)
    if isinstance(task.waiting, WaitsTogether):
        every = every and task.waiting.every
    return Wait(task.rank, place, _awaited(operations), every, _text(place, operations))


def _awaited(operations: list[Any]) -> tuple[int, ...]:
    """Return the ranks that any of the given operations needs."""
    return tuple(dict.fromkeys(rank for operation in operations for rank in awaited_ranks(operation)[0]))


def _text(place: ProgramPlace, operations: list[Any]) -> str:
    first = operations[0]
    if first.name == place.call or place.call.lower().startswith("sendrecv"):
        alone = first.name == place.call or len(operations) == 1
        return f"{'' if alone else f'{place.call}: '}{describe(first)} at {place.where}"
    started = f" of line {line_of(*first.site)}" if hasattr(first, "site") else ""
    more = f" and {len(operations) - 1} more" if len(operations) > 1 else ""
    return f"{place} for {describe(first)}{started}{more}"


class WaitGraph:
    """The graph of blocked ranks and the ranks for which they wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.blocked = [t for t in scheduler.tasks if not t.finished and t.waiting is not None]
        self.edges = {task.rank: _awaited(open_operations(task.waiting)) for task in self.blocked}

    def components(self) -> dict[int, int]:
        """Return the number of the strongly connected component of each rank that is on a cycle.

        Kosaraju's way: who is reached last goes first through the edges turned round.
        """
        waited_for: dict[int, list[int]] = {rank: [] for rank in self.edges}
        for rank, awaited in self.edges.items():
            for other in awaited:
                if other in waited_for:
                    waited_for[other].append(rank)
        order: dict[int, None] = {}
        for root in self.edges:
            order |= dict.fromkeys(_reached(root, self.edges, order))
        numbers: dict[int, int] = {}
        seen: dict[int, None] = {}
        for root in reversed(order):
            members = _reached(root, waited_for, seen)
            seen |= dict.fromkeys(members)
            if len(members) > 1 or root in self.edges[root]:
                numbers.update(dict.fromkeys(members, root))
        return numbers

    def cycle_from(self, start: int) -> tuple[int, ...]:
        """Return the shortest cycle through a rank, starting with it; empty if there is none."""
        came: dict[int, int] = {}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for other in self.edges.get(node, ()):
                if other == start:
                    path = [node]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return tuple(reversed(path))
                if other in self.edges and other not in came:
                    came[other] = node
                    queue.append(other)
        return ()

    def find_cycle(self) -> tuple[int, ...]:
        """Return a shortest cycle through the lowest rank that is on a cycle; empty if there is none."""
        on_cycle = self.components()
        return self.cycle_from(min(on_cycle)) if on_cycle else ()


def _reached(root: int, edges: Mapping[int, Sequence[int]], before: Container[int]) -> list[int]:
    """Return a rank and all ranks that it reaches, except visited ones, in post-order."""
    if root in before:
        return []
    done, seen, work = [], {root}, [(root, iter(edges[root]))]
    while work:
        for other in work[-1][1]:
            if other in edges and other not in seen and other not in before:
                seen.add(other)
                work.append((other, iter(edges[other])))
                break
        else:
            done.append(work.pop()[0])
    return done


def arrows(cycle: Iterable[int]) -> str:
    """Write a cycle as text, ``0 → 1 → 0``; long cycles are cut in the middle.

    >>> arrows([0, 1])
    '0 → 1 → 0'
    """
    ranks = list(cycle)
    shown = [str(rank) for rank in [*ranks, ranks[0]]]
    if len(shown) > 9:
        shown = [*shown[:4], "…", *shown[-3:]]
    return " → ".join(shown)


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
    """Return the distinct calls of some requests; if they differ, with their ranks."""
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
