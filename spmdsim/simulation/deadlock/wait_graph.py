"""Build the wait-for graph of blocked ranks, find its cycles, describe waits; report what is open at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import JointWait, Message
from spmdsim.simulation.engine.rank_threads import ThreadWait
from spmdsim.simulation.engine.scheduler import RankThread, Scheduler
from spmdsim.simulation.findings.problems import (
    ERROR,
    WARNING,
    Problem,
    ProgramPlace,
    describe_call_place,
    line_of,
    place_in_stack,
    ranks_text,
)
from spmdsim.simulation.one_sided.end_report import find_open_windows
from spmdsim.simulation.one_sided.operations import WindowOperation
from spmdsim.simulation.one_sided.waits import WindowWait


@dataclass(frozen=True)
class Wait:
    """The wait of one blocked rank.

    Attributes:
        rank: the rank.
        program_place: the call in which it is blocked.
        ranks: ranks of the program that could end the wait.
        every: True if all of them are needed, False if any one is enough.
        text: the wait in words, with its line.
    """

    rank: int
    program_place: ProgramPlace
    ranks: tuple[int, ...]
    every: bool
    text: str


def open_operations(waiting: Any) -> list[Any]:
    """Return the incomplete operations of ``Task.waiting``, an operation or a ``JointWait`` for several."""
    operations = waiting.operations if isinstance(waiting, JointWait) else [waiting]
    return [operation for operation in operations if not operation.done]


def awaited_ranks(operation: Any) -> tuple[tuple[int, ...], bool]:
    """Return the ranks that could complete an operation, and True if it needs all of them.

    - A collective needs all ranks that have not called yet.
    - A send needs its receiver.
    - A receive or probe needs its source.
    - A receive or probe from any source needs any one of the other ranks of the communicator.
    - A wait in a call of a window knows its ranks.
    - A wait for another thread of the rank needs no other rank.

    Args:
        operation: an incomplete message, receive, probe, collective call or wait of a window.

    Returns:
        The ranks, as ranks of the program; True if all are needed, False if any one is enough.
    """
    shared = operation.comm
    if isinstance(operation, ThreadWait):
        return (), True
    if isinstance(operation, WindowWait):
        return tuple(operation.awaited()), operation.every
    if isinstance(operation, CollectiveCall):
        calls = operation.meeting.calls if operation.meeting is not None else []
        return tuple(shared.ranks[r] for r, call in enumerate(calls) if call is None), True
    if isinstance(operation, Message):
        return (shared.ranks[operation.dest],), True
    if operation.source == ANY_SOURCE:
        own_rank = operation.task.rank
        return tuple(rank for rank in shared.ranks if rank != own_rank), False
    return (shared.ranks[operation.source],), True


def describe_operation(operation: Any) -> str:
    """Return an operation as text, such as ``Recv(source=1, tag=0)`` or ``Bcast(root=0)``.

    A communicator other than COMM_WORLD is named, too.

    Args:
        operation: a message, receive, probe, collective call, or a call of a window.
    """
    arguments: list[str] = []
    if isinstance(operation, WindowWait | WindowOperation):
        return operation.describe()
    if isinstance(operation, CollectiveCall):
        if operation.root >= 0:
            arguments.append(f"root={operation.root}")
    else:
        tag = "ANY_TAG" if operation.tag == ANY_TAG else operation.tag
        if isinstance(operation, Message):
            peer = f"dest={operation.dest}"
        else:
            peer = f"source={'ANY_SOURCE' if operation.source == ANY_SOURCE else operation.source}"
        arguments += [peer, f"tag={tag}"]
    if operation.comm.name != "COMM_WORLD":
        arguments.append(operation.comm.name)
    return f"{operation.name}({', '.join(arguments)})" if arguments else str(operation.name)


def describe_wait(task: RankThread, toward: int | None = None) -> Wait:
    """Return the wait of a blocked thread of a rank.

    Args:
        task: the thread; it must be suspended.
        toward: another rank. Of several operations, one that this rank could complete is described first. None: the
            first one is described.
    """
    location = place_in_stack(task.rank, task.greenlet.gr_frame)
    operations = open_operations(task.waiting)
    if toward is not None:
        operations.sort(key=lambda operation: toward not in awaited_ranks(operation)[0])
    every = all(awaited_ranks(operation)[1] for operation in operations)
    if isinstance(task.waiting, JointWait):
        every = every and task.waiting.every
    return Wait(task.rank, location, _union_awaited(operations), every, _wait_text(location, operations))


def _union_awaited(operations: list[Any]) -> tuple[int, ...]:
    """Return the ranks that could complete any of some operations."""
    return tuple(dict.fromkeys(rank for operation in operations for rank in awaited_ranks(operation)[0]))


def _wait_text(location: ProgramPlace, operations: list[Any]) -> str:
    """Return a text on a wait for some operations in a call at a place.

    - If the call itself is the first operation, or a combined send and receive that waits for only one of both:
      ``Recv(source=1, tag=0) at a.py:9``.
    - If the call is a combined send and receive that waits for both: ``Sendrecv: Recv(source=1, tag=0) at a.py:9``.
    - If the call waits for operations that were started before:
      ``Wait at a.py:9 for Irecv(source=1, tag=0) of line 7 and 2 more``.

    Args:
        location: the call and its place.
        operations: the incomplete operations. The first one is described. In the last case the others are counted.
    """
    first = operations[0]
    if isinstance(first, ThreadWait):
        return str(location)
    is_call = first.name.rpartition(".")[2] == location.call
    if is_call or location.call.lower().startswith("sendrecv"):
        prefix = "" if is_call or len(operations) == 1 else f"{location.call}: "
        reason = first.reason() if isinstance(first, WindowWait) else ""
        return f"{prefix}{describe_operation(first)} at {location.where}" + f" ({reason})" * bool(reason)
    started = f" of line {line_of(*first.site)}" if hasattr(first, "site") else ""
    more = f" and {len(operations) - 1} more" if len(operations) > 1 else ""
    return f"{location} for {describe_operation(first)}{started}{more}"


class WaitGraph:
    """The graph of blocked ranks and the ranks for which they wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        threads = [thread for task in scheduler.tasks if not task.finished for thread in task.all_threads()]
        self.blocked = [thread for thread in threads if thread.waiting is not None]
        self.edges: dict[int, tuple[int, ...]] = {}
        for thread in self.blocked:
            awaited = _union_awaited(open_operations(thread.waiting))
            self.edges[thread.rank] = tuple(dict.fromkeys((*self.edges.get(thread.rank, ()), *awaited)))

    def find_thread(self, rank: int, toward: int) -> RankThread:
        """Return the first blocked thread of ``rank`` that waits for rank ``toward``, else its first one."""
        threads = [thread for thread in self.blocked if thread.rank == rank]
        return min(threads, key=lambda thread: toward not in _union_awaited(open_operations(thread.waiting)))

    def find_components(self) -> dict[int, int]:
        """Return, for each rank that is on a cycle, the number of its strongly connected component.

        Ranks that can reach each other along edges have equal numbers; a number is a rank of the component. A rank
        that waits for itself alone is on a cycle. For example, if ranks 0 and 1 wait for each other, and rank 2 waits
        for rank 1, the result is {0: 0, 1: 0}: no rank waits for rank 2, so it is on no cycle.

        Uses Kosaraju's algorithm: order ranks by the end of a depth-first search, then search the reverse edges in
        the reverse of this order.
        """
        waited_for: dict[int, list[int]] = {rank: [] for rank in self.edges}
        for rank, awaited in self.edges.items():
            for awaited_rank in awaited:
                if awaited_rank in waited_for:
                    waited_for[awaited_rank].append(rank)
        order: dict[int, None] = {}  # an ordered set
        for root in self.edges:
            order |= dict.fromkeys(_reachable_ranks(root, self.edges, order))
        component_numbers: dict[int, int] = {}
        visited: dict[int, None] = {}
        for root in reversed(order):
            members = _reachable_ranks(root, waited_for, visited)
            visited |= dict.fromkeys(members)
            if len(members) > 1 or root in self.edges[root]:
                component_numbers.update(dict.fromkeys(members, root))
        return component_numbers

    def find_cycle_through(self, start: int) -> tuple[int, ...]:
        """Return the ranks of a shortest cycle through a rank, in the direction of the waits.

        For example, if rank 0 waits for rank 3, and rank 3 for rank 0, the result for ``start`` 3 is (3, 0). Of
        several shortest cycles, the one that a breadth-first search finds first is returned.

        Args:
            start: the first rank of the result.

        Returns:
            The ranks, ``(start,)`` if it waits for itself; empty if no cycle goes through ``start``.
        """
        predecessor: dict[int, int] = {}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for awaited_rank in self.edges.get(node, ()):
                if awaited_rank == start:
                    path = [node]
                    while path[-1] != start:
                        path.append(predecessor[path[-1]])
                    return tuple(reversed(path))
                if awaited_rank in self.edges and awaited_rank not in predecessor:
                    predecessor[awaited_rank] = node
                    queue.append(awaited_rank)
        return ()

    def find_cycle(self) -> tuple[int, ...]:
        """Return a shortest cycle through the lowest rank that is on a cycle; empty if there is none."""
        on_cycle = self.find_components()
        return self.find_cycle_through(min(on_cycle)) if on_cycle else ()


def _reachable_ranks(root: int, edges: Mapping[int, Sequence[int]], excluded: Container[int]) -> list[int]:
    """Return the ranks reachable from ``root``, in post-order of a depth-first search.

    A rank comes after all ranks that were reached from it, so ``root`` is the last one.

    Args:
        root: the first rank of the search.
        edges: the neighbours of each rank. A neighbour without an entry is ignored.
        excluded: ranks that the search does not enter. With ``root`` among them the result is empty.

    >>> _reachable_ranks(0, {0: [1, 2], 1: [0], 2: []}, [])
    [1, 2, 0]
    >>> _reachable_ranks(0, {0: [1, 2], 1: [0], 2: []}, [1])
    [2, 0]
    """
    if root in excluded:
        return []
    post_order, visited, stack = [], {root}, [(root, iter(edges[root]))]
    while stack:
        for awaited_rank in stack[-1][1]:
            if awaited_rank in edges and awaited_rank not in visited and awaited_rank not in excluded:
                visited.add(awaited_rank)
                stack.append((awaited_rank, iter(edges[awaited_rank])))
                break
        else:
            post_order.append(stack.pop()[0])
    return post_order


def join_with_arrows(cycle: Iterable[int]) -> str:
    """Return a cycle as text, such as ``0 → 1 → 0``, with the first rank at the end, too.

    Of more than 8 ranks the first four and the last two are shown.

    Args:
        cycle: the ranks; at least one.

    >>> join_with_arrows([0, 1])
    '0 → 1 → 0'
    >>> join_with_arrows(range(10))
    '0 → 1 → 2 → 3 → … → 8 → 9 → 0'
    """
    ranks = list(cycle)
    shown = [str(rank) for rank in [*ranks, ranks[0]]]
    if len(shown) > 9:
        shown = [*shown[:4], "…", *shown[-3:]]
    return " → ".join(shown)


def report_open_operations(scheduler: Scheduler, finalize_needed: bool) -> None:
    """Add findings on messages, collectives and requests that are open at the end of the run.

    Operations of one call site become one finding. The first findings are on ranks that sent 500 or more messages to
    one rank and have waited for no rank since.

    Args:
        scheduler: the simulation, to whose problems they are added.
        finalize_needed: True to add a finding on ranks that called Init but not Finalize.
    """
    for task in scheduler.tasks:
        task.report_stored_flood()
    scheduler.problems += [
        *_find_unreceived(scheduler),
        *_find_open_meetings(scheduler),
        *_find_open_requests(scheduler),
        *find_open_windows(scheduler),
        *_find_open_handles(scheduler),
    ]
    if finalize_needed:
        scheduler.problems += _find_unfinalized(scheduler)


def _find_unreceived(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield one error "unreceived" per call site and tag of messages that no rank has received.

    An example: "rank 1 never receives 2 messages with tag 7 that rank 0 sent with isend at a.py:16". All
    communicators are searched.

    Args:
        scheduler: the simulation.
    """
    groups: dict[Any, list[Message]] = {}
    for shared in scheduler.shared:
        for box in shared.boxes:
            for message in box.waiting_messages():
                groups.setdefault((message.site, message.tag), []).append(message)
    for (site, tag), messages in groups.items():
        first = messages[0]
        shared = first.comm
        senders = {message.task.rank for message in messages}
        receivers = {message.comm.ranks[message.dest] for message in messages}
        location = describe_call_place(min(senders), first.name, site)
        count_words = "a message" if len(messages) == 1 else f"{len(messages)} messages"
        verb_phrase = "never receives" if len(receivers) == 1 else "never receive"
        communicator = "" if shared.name == "COMM_WORLD" else f" in {shared.name}"
        text = (
            f"{ranks_text(receivers)} {verb_phrase} {count_words} with tag {tag}{communicator} that {ranks_text(senders)} "
            f"sent with {location}"
        )
        ranks = tuple(sorted(senders | receivers))
        yield Problem("unreceived", ERROR, text, ranks, (location,))


def _find_open_meetings(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield an error for each nonblocking collective that some ranks have not called.

    The kind of the error is "collective_mismatch". A meeting is one collective operation. The error names the line of
    the lowest rank that has called: "rank 2 never calls Ibarrier at a.py:9, which ranks 0, 1 began".

    Args:
        scheduler: the simulation.
    """
    for shared in scheduler.shared:
        for meeting in shared.meetings.values():
            calls = meeting.present()
            missing = [shared.ranks[r] for r, call in enumerate(meeting.calls) if call is None]
            arrived = [shared.ranks[call.rank] for call in calls]
            location = describe_call_place(arrived[0], calls[0].name, calls[0].site)
            verb_phrase = "never calls" if len(missing) == 1 else "never call"
            text = f"{ranks_text(missing)} {verb_phrase} {location}, which {ranks_text(arrived)} began"
            ranks = tuple(sorted({*missing, *arrived}))
            yield Problem("collective_mismatch", ERROR, text, ranks, (location,))


def _find_open_requests(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield one error "not_waited" per call site of a nonblocking call whose requests stay open.

    A request is open if its rank never waited for it. An example: "ranks 2, 3 never wait for 2 requests of Irecv at
    a.py:16 (Irecv(source=1, tag=0)), not even complete". The words "not even complete" are added if one of these
    operations is not complete.

    Args:
        scheduler: the simulation.
    """
    groups: dict[Any, list[Any]] = {}
    for task in scheduler.tasks:
        for request in task.active.values():
            operation = request.operation
            if operation is not None:
                groups.setdefault((operation.name, operation.site), []).append(operation)
    for (name, site), operations in groups.items():
        # An example: "ranks 2, 3 never wait for 2 requests of Irecv at a.py:16 (Irecv(source=3)), not even complete".
        ranks = sorted({operation.task.rank for operation in operations})
        location: ProgramPlace = describe_call_place(ranks[0], name, site)
        count_words = "a request" if len(operations) == 1 else f"{len(operations)} requests"
        subject = f"{ranks_text(ranks)} never {'waits' if len(ranks) == 1 else 'wait'} for"
        state = "" if all(operation.done for operation in operations) else ", not even complete"
        calls_text = "" if isinstance(operations[0], CollectiveCall) else f" ({_calls_text(operations)})"
        text = f"{subject} {count_words} of {location}{calls_text}{state}"
        yield Problem("not_waited", ERROR, text, tuple(ranks), (location,))


#: Number of different calls of one line that a finding lists.
_MOST_CALLS = 3


def _calls_text(operations: list[Any]) -> str:
    """Return the distinct calls of some requests as text; if they differ, with the first rank of each.

    Only the first three calls are listed; the others are counted. An example: "rank 0: Irecv(source=1, tag=0); rank
    1: Irecv(source=0, tag=0)".

    Args:
        operations: messages and receives.
    """
    rank_of_call: dict[str, int] = {}
    for operation in operations:
        rank_of_call.setdefault(describe_operation(operation), operation.task.rank)
    texts = [f"rank {rank}: {call}" if len(rank_of_call) > 1 else call for call, rank in rank_of_call.items()]
    hidden_count = len(texts) - _MOST_CALLS
    return "; ".join([*texts[:_MOST_CALLS], *([f"and {hidden_count} more"] if hidden_count > 0 else [])])


#: Handles per rank that a line may keep to the end of a program: one per neighbour on a grid of three dimensions.
KEPT_HANDLES = 6


def _find_open_handles(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield one warning "not_freed" per line that made handles which its ranks have not freed.

    The end of a program frees its handles. So a line is reported only if its ranks keep more than :data:`KEPT_HANDLES`
    (6) handles on average, as in a loop, which exhausts a library.

    Args:
        scheduler: the simulation.
    """
    groups: dict[Any, list[ProgramPlace]] = {}
    for kind, location in scheduler.handles.list_places():
        groups.setdefault((kind, location.call, location.file, location.line), []).append(location)
    for (kind, *_), places in groups.items():
        ranks = sorted({location.rank for location in places})
        if len(places) > KEPT_HANDLES * len(ranks):
            verb = "does" if len(ranks) == 1 else "do"
            text = f"{ranks_text(ranks)} {verb} not free {len(places)} {kind}s of {places[0]}"
            yield Problem("not_freed", WARNING, text, tuple(ranks), (places[0],))


def _find_unfinalized(scheduler: Scheduler) -> Iterator[Problem]:
    """Yield one error "not_finalized" on all ranks that called Init but not Finalize, if any.

    Args:
        scheduler: the simulation; the line is that of the lowest such rank's Init.
    """
    initialized = [task for task in scheduler.tasks if isinstance(task.initialized, ProgramPlace)]
    open_ranks = [task.rank for task in initialized if not task.finalized]
    if not open_ranks:
        return
    location = scheduler.tasks[open_ranks[0]].initialized
    ends = "ends" if len(open_ranks) == 1 else "end"
    text = f"{ranks_text(open_ranks)} {ends} without MPI.Finalize() after {location}"
    yield Problem("not_finalized", ERROR, text, tuple(open_ranks), (location,))
