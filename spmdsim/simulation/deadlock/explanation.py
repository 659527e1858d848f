"""Resolve a run in which no rank can continue, as an MPI library would, or explain the deadlock in one sentence.

In the simulation every standard send waits for its receive, and every collective waits for all its ranks. Many MPI
libraries buffer a standard send, and let the root of a broadcast continue early. If all ranks are blocked, the
simulation does this, too. When such a message is received later, it reports that the program depends on it.

A **stall** is a state in which no rank can continue. To **release** an operation is to complete it for the rank that
waits in it, although no other rank has answered. Read ``resolve_stall`` first.
"""

from __future__ import annotations

import threading
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.deadlock.wait_graph import (
    Wait,
    WaitGraph,
    awaited_ranks,
    describe_wait,
    join_with_arrows,
    open_operations,
)
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import STANDARD, Message, finish
from spmdsim.simulation.engine.rank_threads import ThreadWait
from spmdsim.simulation.engine.scheduler import RankThread, Scheduler
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.faults import is_new
from spmdsim.simulation.findings.problems import (
    ERROR,
    WARNING,
    Problem,
    ProgramPlace,
    describe_call_place,
    ranks_text,
    site_key,
)
from spmdsim.simulation.one_sided.data_calls import deliver_locked
from spmdsim.simulation.one_sided.waits import WindowWait


class Relief:
    """The operations that were released together to resolve a stall.

    Attributes:
        cycle: ranks that waited for each other; empty if the ranks waited for ranks outside of a cycle.
        operations: the released operations.
        ranks_of_site: by call site, all ranks whose operations this stall released.
    """

    def __init__(
        self, cycle: tuple[int, ...], operations: list[Any], ranks_of_site: dict[Any, set[int]]
    ) -> None:
        self.cycle = cycle
        self.operations = operations
        self.ranks_of_site = ranks_of_site

    def report_received(self, scheduler: Scheduler, message: Message) -> None:
        """Add the warning "needs_buffering" for a released message that a rank has received.

        A released message is one that the simulation buffered when no rank could continue. From now on messages of
        its call site are buffered at once. Only the first message of a call site is reported.

        Args:
            scheduler: the simulation, to whose problems the warning is added.
            message: the released message; its ``relief`` is this object.
        """
        key = site_key(message.site)
        scheduler.buffered_sites.add(key)
        location = describe_call_place(message.task.rank, message.name, message.site)
        text = f"{location} only works because the library buffers the message: without a buffer "
        self._report(scheduler, "needs_buffering", message, location, text)

    def report_complete(self, scheduler: Scheduler, call: CollectiveCall) -> None:
        """Add the warning "early_leave" for a rank that left a collective early.

        The simulation let the rank leave the collective when no rank could continue. The caller has checked that all
        ranks have called it now. Only the first call of a call site is reported.

        Args:
            scheduler: the simulation, to whose problems the warning is added.
            call: the call of the rank that left early; its ``relief`` is this object.
        """
        location = describe_call_place(call.task.rank, call.name, call.site)
        text = (
            f"{location} only works because the library lets rank {location.rank} leave before the others "
            "have come: otherwise "
        )
        self._report(scheduler, "early_leave", call, location, text)

    def _report(
        self, scheduler: Scheduler, kind: str, operation: Any, location: ProgramPlace, text: str
    ) -> None:
        """Add a warning about the released operations of one call site, once per kind and call site.

        A released operation was completed without an answer, when no rank could continue. The warning names the ranks
        of this object that were released at the call site. Ranks of other cycles that this stall released at the call
        site are only counted. The text ends, for example, with "ranks 0, 1 wait for each other (0 → 1 → 0), and 2
        more ranks likewise".

        Args:
            scheduler: the simulation, which stores the warning.
            kind: the kind of the warning, such as ``needs_buffering``.
            operation: one of the released operations.
            location: the operation's place in the program.
            text: the start of the sentence; the ranks that would wait forever are appended.
        """
        if not is_new(scheduler, kind, site_key(operation.site)):
            return
        ranks = sorted(
            {released.task.rank for released in self.operations if released.site == operation.site}
        )
        other_count = len(self.ranks_of_site[site_key(operation.site)] - set(ranks))
        plural = "s" if other_count > 1 else ""
        more = f", and {other_count} more rank{plural} likewise" if other_count else ""
        text += f"{self._waiting_words(location, operation, ranks)}{more}"
        scheduler.problems.append(Problem(kind, WARNING, text, tuple(ranks), (location,), self.cycle))

    def _waiting_words(self, location: ProgramPlace, operation: Any, ranks: list[int]) -> str:
        """Return the clause on the ranks that would wait forever without the release.

        A release completes an operation without an answer, when no rank can continue. The cycle decides the clause:

        - a cycle of one rank: "rank 0 waits for itself";
        - a longer cycle: "ranks 0, 1 wait for each other (0 → 1 → 0)". If ``ranks`` has only one rank, all ranks of
          the cycle are named;
        - no cycle: "rank 2 waits for rank 3 too early", with "others" for the ranks of a collective.

        Args:
            location: the place of the operation, with its rank.
            operation: one of the released operations, a message or a collective call.
            ranks: the ranks with a released operation of this call site, ascending.
        """
        if len(self.cycle) == 1:
            return f"rank {location.rank} waits for itself"
        if len(self.cycle) > 1:
            waiting = ranks if len(ranks) > 1 else sorted(self.cycle)
            return f"{ranks_text(waiting)} wait for each other ({join_with_arrows(self.cycle)})"
        awaited = ranks_text(awaited_ranks(operation)[0]) if isinstance(operation, Message) else "others"
        return f"rank {location.rank} waits for {awaited} too early"


def release_stalled(scheduler: Scheduler, graph: WaitGraph) -> bool:
    """Complete operations of blocked ranks that a real MPI library might complete without an answer.

    A library may buffer a standard send. In some collectives it may let a rank continue before the others have
    called, such as the root of a broadcast. The first of these groups that is not empty is released:

    1. standard sends that wait for a rank of their own cycle, in all cycles;
    2. collective calls that a rank may leave early and that wait for a rank of their own cycle, in all cycles;
    3. all standard sends;
    4. all collective calls that a rank may leave early.

    For example, if two ranks call Send to each other before Recv, they form a cycle: both sends are in group 1.

    Args:
        scheduler: the simulation.
        graph: the blocked ranks.

    Returns:
        True if operations were released, so that their ranks can continue; False if there are none. Always False in
        strict mode.
    """
    if scheduler.strict:
        return False
    waiting = [operation for task in graph.blocked for operation in open_operations(task.waiting)]
    sends = [
        operation for operation in waiting if isinstance(operation, Message) and operation.mode is STANDARD
    ]
    early = [
        operation
        for operation in waiting
        if isinstance(operation, CollectiveCall) and _can_leave(scheduler, operation)
    ]
    if not sends and not early:
        return False
    # Groups 1 and 2: all cycles are resolved together, each with a record of its own.
    on_cycle = graph.find_components()
    chosen = _group_by_cycle(sends, on_cycle) or _group_by_cycle(early, on_cycle)
    if chosen:
        ranks_of_site = _group_ranks_by_site([operation for group in chosen.values() for operation in group])
        for group in chosen.values():
            cycle = graph.find_cycle_through(group[0].task.rank)
            _release(scheduler, group, Relief(cycle, group, ranks_of_site))
        return True
    # Groups 3 and 4.
    remaining = sends or early
    _release(scheduler, remaining, Relief((), remaining, _group_ranks_by_site(remaining)))
    return True


def _can_leave(scheduler: Scheduler, call: CollectiveCall) -> bool:
    """Return True if a rank may leave a collective early and all missing ranks are still running.

    A missing rank is one that has not called. See ``CollectiveCall.can_leave_early``.
    """
    missing = awaited_ranks(call)[0]
    return call.can_leave_early() and not any(scheduler.tasks[rank].finished for rank in missing)


def _group_by_cycle(operations: list[Any], on_cycle: dict[int, int]) -> dict[int, list[Any]]:
    """Return the operations that wait for a rank of their own cycle, as {number of the cycle: operations}.

    Empty if there are none.

    Args:
        operations: incomplete operations of blocked ranks.
        on_cycle: the number of the cycle of each rank that is on one; see ``WaitGraph.find_components``.
    """
    by_cycle: dict[int, list[Any]] = {}
    for operation in operations:
        cycle = on_cycle.get(operation.task.rank)
        awaited = awaited_ranks(operation)[0]
        if cycle is not None and any(on_cycle.get(rank) == cycle for rank in awaited):
            by_cycle.setdefault(cycle, []).append(operation)
    return by_cycle


def _group_ranks_by_site(operations: list[Any]) -> dict[Any, set[int]]:
    """Return the ranks of some operations by call site."""
    ranks_by_site: dict[Any, set[int]] = {}
    for operation in operations:
        ranks_by_site.setdefault(site_key(operation.site), set()).add(operation.task.rank)
    return ranks_by_site


def _release(scheduler: Scheduler, operations: list[Any], relief: Relief) -> None:
    """Complete operations that no rank has answered, so that their ranks can continue.

    Each operation keeps a copy of the data of its buffer, because its rank may change the buffer from now on.

    Args:
        scheduler: the simulation.
        operations: messages and collective calls of blocked ranks.
        relief: the common record of these operations, stored in each, to warn when it is answered later.
    """
    for operation in operations:
        operation.relief = relief
        if isinstance(operation, Message):
            operation.copy_data()
        else:
            operation.leave_early()
        finish(scheduler, operation)


#: Limit of blocked ranks, and of places on a cycle, that a finding lists.
DETAILS = 64


def resolve_stall(scheduler: Scheduler, attention: str) -> bool:
    """Resolve a stall by completing sends or collectives, or end the run with an explanation.

    A stall is a state in which no rank can continue. :func:`release_stalled` chooses the operations to complete. If
    the run ends, the blocked calls are also recorded in the timeline, if there is one.

    Args:
        scheduler: the simulation.
        attention: the reason of the call:
            - ``""``: all ranks are blocked. If no operation can be completed, the run ends.
            - ``"relief"``: ranks test again and again for operations that are not complete. Data for locked windows
              arrives; if no such data and no operation can be completed, the run goes on.
            - ``"livelock"``: ranks have tested so often that nothing will change. The run ends; no completion is
              tried.

    Returns:
        True if operations were completed; False if the run ends, or goes on unchanged after ``"relief"``.
    """
    if attention == "relief" and deliver_locked(scheduler):
        return True
    graph = WaitGraph(scheduler)
    if attention != "livelock" and release_stalled(scheduler, graph):
        return True
    if attention != "relief":
        _record_blocked_calls(scheduler, graph)
        scheduler.record_failure(explain(scheduler, graph))
    return False


def _record_blocked_calls(scheduler: Scheduler, graph: WaitGraph) -> None:
    """Record in the timeline the call in which each blocked rank waits.

    Each of these calls ends at the latest clock of all ranks. Do nothing if the simulation has no timeline.

    Args:
        scheduler: the simulation.
        graph: the blocked ranks.
    """
    timeline = scheduler.timeline
    if timeline is None:
        return
    last_clock = max(task.clock for task in scheduler.tasks)
    for task in graph.blocked:
        wait = describe_wait(task)
        location = wait.program_place
        timeline.record_blocked(task, location.call, location.where, ranks_text(wait.ranks), last_clock)


def explain(scheduler: Scheduler, graph: WaitGraph) -> Problem:
    """Return the finding on a stall: the first reason that applies, with the waits of the blocked ranks.

    The reasons are, in this order: a collective with different arguments, a rank that waits for a finished rank, a
    message with another tag or communicator, a cycle, and ranks that test forever. Only the waits of the first
    :data:`DETAILS` (64) blocked ranks are listed; waits on no known rank are left out. If the reason has no cycle, the
    finding gets the cycle that ``WaitGraph.find_cycle`` finds, if there is one.

    Args:
        scheduler: the simulation.
        graph: the blocked ranks; there is at least one.
    """
    reason = _explain_mismatch(scheduler) or _explain_missing_rank(scheduler, graph)
    if reason is None:
        reason = _explain_other_message(scheduler, graph) or _explain_cycle(scheduler, graph)
    details = tuple(
        f"rank {wait.rank} waits in {wait.text} for {ranks_text(wait.ranks)}"
        for wait in (describe_wait(task) for task in graph.blocked[:DETAILS])
        if wait.ranks
    )
    cycle = reason.cycle or graph.find_cycle()
    return Problem(reason.kind, ERROR, reason.message, reason.ranks, reason.places, cycle, details)


def _explain_mismatch(scheduler: Scheduler) -> Problem | None:
    """Return the finding on ranks that call one collective with different arguments, or None.

    Communicators are searched in the order of their creation; the first difference is returned.

    Args:
        scheduler: the simulation.
    """
    for shared in scheduler.shared:
        for meeting in shared.meetings.values():
            problem = faults.find_difference(shared, meeting)
            if problem is not None:
                return problem
    return None


def _explain_missing_rank(scheduler: Scheduler, graph: WaitGraph) -> Problem | None:
    """Return the finding on a rank that waits for finished ranks; None if no rank does.

    An example: "rank 1 waits in Recv(source=0, tag=0) at a.py:7 for rank 0, which never sends it a message: it has
    finished".

    - A rank that waits for all of several ranks, as in a collective, counts if one of them has finished.
    - A rank that waits for any one of several ranks, as in a receive from any source, counts if all of them have
      finished.

    The finding is on one rank: the first, in rank order, that waits in a collective, or in a receive for which a
    message with another tag or communicator has come. If no rank does, it is the first that counts.

    Args:
        scheduler: the simulation.
        graph: the blocked ranks.
    """
    first_problem: Problem | None = None
    for task in graph.blocked:
        wait = describe_wait(task)
        finished = [rank for rank in wait.ranks if scheduler.tasks[rank].finished]
        still_possible = len(finished) < len(wait.ranks) and not wait.every
        if not finished or still_possible:
            continue
        operation = open_operations(task.waiting)[0]
        if isinstance(operation, CollectiveCall):
            return _explain_missing_call(graph, operation, wait, finished)
        hint = _describe_other_message(scheduler, operation)
        if hint:
            return _explain_no_answer(wait, operation, finished, hint)
        first_problem = first_problem or _explain_no_answer(wait, operation, finished, hint)
    return first_problem


def _explain_missing_call(graph: WaitGraph, call: CollectiveCall, wait: Wait, finished: list[int]) -> Problem:
    """Return the finding on a collective that some ranks have not called before they ended.

    An example: "ranks 1, 2 wait in Barrier at a.py:9 for rank 0, which never calls it: it has finished".

    Args:
        graph: the blocked ranks; all that wait in this collective are named.
        call: the call of one of them.
        wait: the wait of this rank.
        finished: the ranks that have ended.
    """
    waiting = [
        task.rank
        for task in graph.blocked
        for operation in open_operations(task.waiting)
        if isinstance(operation, CollectiveCall) and operation.meeting is call.meeting
    ]
    verb = "waits" if len(set(waiting)) == 1 else "wait"
    subject = "it has" if len(finished) == 1 else "they have"
    verb_phrase = "never calls" if len(finished) == 1 else "never call"
    skipped_words = faults.describe_lag(call.comm, call.meeting) if call.meeting is not None else ""
    text = (
        f"{ranks_text(waiting)} {verb} in {wait.text} for {ranks_text(finished)}, which {verb_phrase} it: "
        f"{subject} finished{skipped_words}"
    )
    return Problem("deadlock", ERROR, text, tuple(sorted({*waiting, *finished})), (wait.program_place,))


def _explain_no_answer(wait: Wait, operation: Any, finished: list[int], hint: str) -> Problem:
    """Return the finding on a send or receive whose partners have ended.

    Args:
        wait: the wait of the rank.
        operation: the send, receive or probe.
        finished: the ranks that have ended.
        hint: a clause on a message with another tag or communicator that the receive may mean. Empty: the finding
            says that the finished ranks never send or receive, and names an earlier wildcard receive that took their
            message, if there is one.
    """
    reason = hint
    if not reason:
        subject = "it has" if len(finished) == 1 else "they have"
        if isinstance(operation, WindowWait):
            missing_action = operation.missing
        elif isinstance(operation, Message):
            missing_action = "receives it"  # a send has one receiver
        else:
            missing_action = "sends it a message" if len(finished) == 1 else "send it a message"
        stolen_message = _describe_stolen_message(operation, finished)
        reason = f"which never {missing_action}: {subject} finished{stolen_message}"
    text = f"rank {wait.rank} waits in {wait.text} for {ranks_text(finished)}, {reason}"
    return Problem("deadlock", ERROR, text, tuple(sorted({wait.rank, *finished})), (wait.program_place,))


def _describe_stolen_message(operation: Any, finished: list[int]) -> str:
    """Return a clause on an earlier wildcard receive that took a message of a finished rank.

    A wildcard receive is one from any source. Only receives of the blocked rank count. The clause names the latest
    such receive of the first rank in ``finished`` that has one. An example: "; Recv at a.py:7, open to any source,
    took one of its messages". The text is empty without such a receive, for a send, and if ``operation`` receives
    from any source itself.

    Args:
        operation: the send, receive or probe in which a rank is blocked.
        finished: the awaited ranks that have ended.
    """
    wildcard_receives = operation.task.wildcard_receives
    senders = [rank for rank in finished if rank in wildcard_receives]
    if isinstance(operation, Message | WindowWait) or not senders or operation.source == ANY_SOURCE:
        return ""
    name, site = wildcard_receives[senders[0]]
    return f"; {describe_call_place(operation.task.rank, name, site)}, open to any source, took one of its messages"


def _explain_other_message(scheduler: Scheduler, graph: WaitGraph) -> Problem | None:
    """Return the finding on a receive that may mean a message with another tag or communicator.

    Such a receive is blocked, although a message from its source has come: probably one of both has a wrong tag.
    Blocked ranks are searched in order; the first such receive is reported. None if there is no such receive. An
    example: "rank 1 waits in recv(source=0, tag=0) at a.py:12 for rank 0, but the message that rank 0 sent it with
    send at a.py:11 has tag 7, not 0".

    Args:
        scheduler: the simulation.
        graph: the blocked ranks.
    """
    for task in graph.blocked:
        for operation in open_operations(task.waiting):
            hint = _describe_other_message(scheduler, operation)
            if hint:
                wait = describe_wait(task)
                text = f"rank {wait.rank} waits in {wait.text} for {ranks_text(wait.ranks)}, {hint}"
                ranks = tuple(sorted({wait.rank, *awaited_ranks(operation)[0]}))
                return Problem(
                    "deadlock", ERROR, text, ranks, (wait.program_place,), graph.find_cycle_through(task.rank)
                )
    return None


def _describe_other_message(scheduler: Scheduler, operation: Any) -> str:
    """Return a clause on a message with another tag or communicator that a receive may mean.

    An example: "but the message that rank 1 sent it with send at a.py:5 has tag 7, not 0".

    The messages that have come to the rank, and that no receive has taken, are searched for one from the awaited
    source, communicator by communicator in the order of their creation. The first one is described. The text is empty
    if there is none, or if ``operation`` is no receive or probe.

    Args:
        scheduler: the simulation, with all communicators.
        operation: the operation in which a rank is blocked.
    """
    if isinstance(operation, Message | CollectiveCall) or operation.dest < 0:
        return ""
    own_rank = operation.task.rank
    source = operation.source
    for shared in scheduler.shared:
        if own_rank not in shared.ranks:
            continue
        box = shared.boxes[shared.ranks.index(own_rank)]
        for message in box.waiting_messages():
            sender = message.task.rank
            if source != ANY_SOURCE and sender != operation.comm.ranks[source]:
                continue
            sent = describe_call_place(sender, message.name, message.site)
            subject = f"but the message that rank {sender} sent it with {sent}"
            if shared.origin is not operation.comm.origin:
                return f"{subject} is in the communicator {shared.name}, not {operation.comm.name}"
            if operation.tag != ANY_TAG and operation.tag != message.tag:
                return f"{subject} has tag {message.tag}, not {operation.tag}"
    return ""


def _explain_cycle(scheduler: Scheduler, graph: WaitGraph) -> Problem:
    """Return the finding on ranks that wait for each other, or else on ranks that test forever.

    An example: "ranks 0, 1 wait for each other (0 → 1 → 0): rank 0 in Recv(source=1, tag=0) at a.py:3, rank 1 in
    Recv(source=0, tag=0) at a.py:3". Of a cycle of more than four ranks only the first two waits are written out. If
    ranks skipped a collective of the cycle, a clause on them is appended.

    The cycle is a shortest one through the lowest rank that is on any cycle.

    Args:
        scheduler: the simulation.
        graph: the blocked ranks.
    """
    cycle = graph.find_cycle()
    if not cycle:
        return _explain_threads(graph) or _explain_polling(graph)
    following = [*cycle[1:], cycle[0]]
    waits = [describe_wait(graph.find_thread(rank, after), after) for rank, after in zip(cycle, following)]
    skipped_words = _describe_cycle_lag(graph.find_thread(cycle[0], following[0]))
    if len(cycle) == 1:
        text = f"rank {cycle[0]} waits for itself in {waits[0].text}"
    else:
        is_short = len(waits) <= 4
        phrases = ", ".join(f"rank {wait.rank} in {wait.text}" for wait in (waits if is_short else waits[:2]))
        ending = "" if is_short else f", and so on for {len(waits)} ranks"
        text = f"{ranks_text(cycle)} wait for each other ({join_with_arrows(cycle)}): {phrases}{ending}"
    places = tuple(wait.program_place for wait in waits[:DETAILS])
    return Problem("deadlock", ERROR, text + skipped_words, tuple(sorted(cycle)), places, cycle)


def _describe_cycle_lag(task: RankThread) -> str:
    """Return a clause on ranks that skipped a collective of the cycle; empty if none did.

    Args:
        task: a rank of the cycle; its first open collective is compared.
    """
    for operation in open_operations(task.waiting):
        if isinstance(operation, CollectiveCall) and operation.meeting is not None:
            return faults.describe_lag(operation.comm, operation.meeting)
    return ""


def _explain_threads(graph: WaitGraph) -> Problem | None:
    """Return the finding on the first rank whose threads wait for each other alone; None if there is none.

    An example: "no thread of rank 0 can continue: its main thread waits in join at a.py:9, Thread-1 (work) in get at
    a.py:5". If a thread wakes again and again, the finding says so instead.

    Args:
        graph: the blocked ranks.
    """
    for task in graph.blocked:
        threads = [thread for thread in graph.blocked if thread.rank == task.rank]
        operations = [operation for thread in threads for operation in open_operations(thread.waiting)]
        if all(isinstance(operation, ThreadWait) for operation in operations):
            waits = [describe_wait(thread) for thread in threads]
            names = ", ".join(
                f"{thread.name} waits {_thread_text(thread, wait)}" for thread, wait in zip(threads, waits)
            )
            is_awake = any(operation.is_timed for operation in operations)
            what = (
                f"rank {task.rank} does not end, and nothing changes"
                if is_awake
                else f"no thread of rank {task.rank} can continue"
            )
            places = tuple(wait.program_place for wait in waits)
            return Problem("deadlock", ERROR, f"{what}: {names}", (task.rank,), places)
    return None


def _thread_text(thread: RankThread, wait: Wait) -> str:
    """Return the call in which a thread waits for others, and its line.

    Args:
        thread: the thread; a main thread may wait at the end of its rank, which has no line.
        wait: its wait.
    """
    is_end = thread is thread.task and wait.program_place.file == threading.__file__
    return "for the others at its end" if is_end else f"in {wait.text}"


def _explain_polling(graph: WaitGraph) -> Problem:
    """Return the finding on a rank that tests repeatedly for an event that cannot happen.

    The finding is an error "deadlock". It names the operation that the rank tests, and the line of the test.

    Args:
        graph: the blocked ranks; the first one is described.
    """
    task = graph.blocked[0]
    wait = describe_wait(task)
    text = (
        f"rank {wait.rank} looks again and again in {wait.text} for {ranks_text(wait.ranks)}, "
        "and nothing it waits for can happen any more"
    )
    return Problem("deadlock", ERROR, text, (wait.rank,), (wait.program_place,))
