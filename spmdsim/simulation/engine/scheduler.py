"""Run the ranks: one greenlet per rank, a queue of ranks that can continue, and a callback if none can.

All ranks share one thread of the process, so a run is deterministic: a rank runs until it has to wait, then the rank
that became ready first runs. With a seed the next rank is drawn at random, which is another legal order. Each further
thread that a rank starts is a greenlet in the queue, too.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.cost.closed_forms import Link
from spmdsim.cost.machine import Machine
from spmdsim.cost.node_map import NodeMap
from spmdsim.errors import WorldError
from spmdsim.simulation.data.constants import BufferAutomaticType
from spmdsim.simulation.data.open_handles import OpenHandles
from spmdsim.simulation.engine.incoming_port import IncomingPort
from spmdsim.simulation.engine.timing import message_link
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import ERROR, Problem, ProgramPlace, place_in_stack

if TYPE_CHECKING:
    from spmdsim.simulation.engine.collective_times import CollectiveTimes
    from spmdsim.simulation.engine.computation import Computation, Stopwatch
    from spmdsim.simulation.engine.mailboxes import Mailbox, Message
    from spmdsim.simulation.engine.run_recorder import RunRecorder
    from spmdsim.simulation.engine.timing import Timeline
    from spmdsim.simulation.findings.problems import Site

#: Polls per rank after which buffered sends are released.
POLLS_BEFORE_RELIEF = 50
#: Polls per rank, and polls of all ranks together, after which a run is a livelock. A long loop with a test is not.
RANK_POLLS_BEFORE_LIVELOCK = 10_000
POLLS_BEFORE_LIVELOCK = 500_000
#: Ends of sleeps and timed waits of threads since the last message, from which on buffered sends are released, and from
#: which on a run is a livelock.
TIMERS_BEFORE_RELIEF = 1_000
TIMERS_BEFORE_LIVELOCK = 50_000
#: Messages to one rank, sent without waiting, from which on a program is reported to run ahead.
FLOOD = 500
#: A rank that catches this many exit exceptions is no longer asked to exit.
MOST_EXITS = 100
#: Greenlets of these ranks. The list keeps them alive, because their deletion would raise the exception once more.
_running_greenlets: list[Any] = []


def load_greenlet() -> Any:
    """Return the module greenlet; raise WorldError with the command that installs it if it is missing."""
    try:
        import greenlet
    except ImportError:
        raise WorldError(
            "simulate needs the package greenlet, which is not installed; pip install greenlet"
        ) from None
    return greenlet


@dataclass(slots=True, eq=False)
class RankThread:
    """Thread of a virtual rank: its greenlet and its current wait."""

    rank: int
    scheduler: Scheduler
    task: Any = None  # the rank
    name: str = "its main thread"
    greenlet: Any = None
    switch: Any = None  # function that runs the greenlet
    waiting: Any = None  # the operation or operations it is blocked on
    exits: int = 0  # number of exit exceptions that it caught
    resumes_at: float = 0.0  # modelled clock with which it continues, if the rank has several threads
    end_lock: Any = None  # a lock that is released at its end


@dataclass(slots=True, eq=False)
class Task(RankThread):
    """Virtual rank, which is its own main thread: its modelled clock and message counts."""

    clock: float = 0.0  # seconds of modelled time
    threads: list[RankThread] = field(default_factory=list)  # its further threads that have not ended
    is_threaded: bool = False  # True from the start of its first further thread
    joined_at_end: list[Any] = field(default_factory=list)  # handles of threads for which its end waits
    thread_level: int = -1  # a constant such as THREAD_MULTIPLE; -1 before the first use of MPI
    port_out: float = 0.0  # time at which its last message left
    processor_free: float = 0.0  # time at which it has received its last message
    port_in: IncomingPort = field(default_factory=IncomingPort)
    finished: bool = False
    value: Any = None  # result of the program's function
    exit_code: int = 0
    active: dict[int, Any] = field(default_factory=dict)  # requests started and not yet waited for
    # Messages sent since it last waited: the mailbox of the last one, messages and bytes to this mailbox, and
    # (messages, bytes) to each other mailbox.
    last_box: Mailbox | None = None
    count: int = 0
    nbytes: int = 0
    other_counts: dict[Mailbox, tuple[int, int]] = field(default_factory=dict)
    flood: Message | None = None
    messages_sent: int = 0
    bytes_sent: int = 0
    collective_messages: int = 0  # messages of collectives, which the others do not count
    collective_bytes: int = 0
    world: Any = None  # its COMM_WORLD
    self_comm: Any = None  # its COMM_SELF
    attached: int = -1  # bytes of the buffer attached for Bsend; -1 means none
    attached_buffer: Any = None
    initialized: Any = True  # False before Init; the place of Init after it
    finalized: bool = False
    script: Any = None  # its program, if another rank spawned it
    parent: Any = None  # its end of the intercommunicator to the ranks that spawned it
    application: int = 0  # number of its command in the call that spawned it
    last_wtime: float = -1.0  # result of the last Wtime
    idle_wtimes: int = 0  # calls of Wtime since the last communication
    # By cause, call and line: site, seconds and number of its waits.
    waits: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    # By sender: call and site of the wildcard receive that took its last message.
    wildcard_receives: dict[int, tuple[str, Site]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task = self

    def all_threads(self) -> list[RankThread]:
        """Return the threads that have not ended, the main thread first."""
        return [self, *self.threads]

    def advance(self, seconds: float) -> None:
        """Advance the modelled clock by seconds in which the rank computes or sleeps."""
        self.clock += seconds
        if self.scheduler.recorder is not None:
            self.scheduler.recorder.add_computation(self, seconds)

    def attach(self, buffer: Any) -> None:
        """Attach memory for buffered sends.

        Args:
            buffer: the memory; None and BUFFER_AUTOMATIC attach unlimited memory.

        Raises:
            BufferError: If the memory is read-only.
        """
        is_unlimited = buffer is None or isinstance(buffer, BufferAutomaticType)
        view = None if is_unlimited else memoryview(buffer)
        if view is not None and view.readonly:
            raise BufferError("the buffer for buffered sends is read-only")
        self.attached = 2**62 if view is None else view.nbytes
        self.attached_buffer = buffer

    def detach(self) -> Any:
        """Detach and return the memory for buffered sends."""
        self.attached = -1
        return self.attached_buffer

    def count_ahead(self, box: Mailbox, nbytes: int, message: Message) -> None:
        """Count a message to a mailbox that was sent since the rank last waited for another rank.

        The message that reaches the limit `FLOOD` (500) is stored in ``flood``, to be reported when the rank waits.
        Attributes have the counts of the last mailbox, and ``other_counts`` has those of the others. Most programs
        send to one rank and then wait, so they never fill this table.

        Args:
            box: the mailbox of the receiver.
            nbytes: bytes of the message.
            message: the message.
        """
        if self.last_box is not box:
            if self.last_box is not None:
                self.other_counts[self.last_box] = (self.count, self.nbytes)
            self.last_box = box
            self.count, self.nbytes = self.other_counts.get(box, (0, 0))
        self.count += 1
        self.nbytes += nbytes
        if self.count == FLOOD:
            self.flood = message

    def reset_counts(self) -> None:
        """Reset the counts of ``count_ahead``, because the rank waited for another rank.

        A message that reached the limit `FLOOD` (500) is reported first.
        """
        self.report_stored_flood()
        self.last_box, self.count = None, 0
        self.other_counts.clear()

    def report_stored_flood(self) -> None:
        """Add a warning "run_ahead" for the stored message, if there is one, and forget it.

        The stored message is the one that reached the limit `FLOOD`: 500 messages to one rank without waiting for any
        rank. The warning has the number and the bytes of all messages that the rank has sent to the receiver since it
        last waited.
        """
        message, self.flood = self.flood, None
        if message is not None:
            box = message.comm.boxes[message.dest]
            counts = (self.count, self.nbytes) if self.last_box is box else self.other_counts[box]
            faults.report_flood(message, *counts)


class Scheduler:
    """The run queue of one simulation and everything its ranks share.

    Attributes:
        ready: threads of ranks that can continue.
        timers: (end, number, wait) of each sleep and timed wait of threads, as a heap; ends are modelled seconds.
        least_latency: least seconds between the start of a message and its end.
        current: the running thread of a rank; a rank is its own main thread.
        failure: the finding that ended the run, or None.
        on_stall: function that is called if no rank can continue (with ``""``), or if all ranks only poll (with
            ``relief``, later ``livelock``). It returns True if it made a rank ready.
        handles: the handles that ranks created and have not freed.
        like: what the standard leaves open is checked as by "openmpi" or "mpich"; "strict": all that it forbids.
        eager_bytes: longest message for which a standard send does not wait for its receive in modelled time.
        processor: seconds per message and per byte for which a message occupies the processor of each side; None if
            it takes none.
        plain: the link of all messages if the machine has only one, else None. It makes pricing a message faster.
        on_enter: function that is called with the next rank before it runs, to set its global variables.
        on_add: function that is called with a rank that the program adds, to create its process state.
        undecided: mailboxes with a wildcard receive or probe that accepts a message, in the order found.
        decide: function that matches the wildcards of ``undecided`` whose messages are certainly the earliest.
        stopwatch: measures the program's computation; None if it takes no modelled time.
        recorder: the record of the run, or None.
        windows: all windows.
        order: the order of events that synchronisation guarantees, once the program has a window; else None.
        ports: the ports at which groups of ranks meet, once the program has opened one; else None.
    """

    def __init__(
        self,
        size: int,
        machine: Machine,
        strict: bool,
        seed: int | None,
        collective_times: CollectiveTimes,
        computation: Computation,
    ) -> None:
        library = load_greenlet()
        self._greenlet = library.greenlet
        self.exit = library.GreenletExit
        self.hub = library.getcurrent()
        self.thread = get_ident()
        self.tasks = [Task(rank, self) for rank in range(size)]
        self.ready: deque[RankThread] = deque()
        self.timers: list[tuple[float, int, Any]] = []
        self._timer_numbers = count()
        self._ended_timers = 0  # since the last message
        self.current: RankThread = self.tasks[0]
        self.machine = machine
        self.collective_times = collective_times
        self.computation = computation
        plain = machine.intra is None and not machine.pieces
        self.least_latency = min(link.alpha for link in machine.point_links)
        self.eager_bytes = machine.eager_bytes or inf
        busy = Link(machine.overhead, machine.overhead_per_byte)
        self.processor = busy if machine.overhead or machine.overhead_per_byte else None
        self.plain = Link(machine.alpha, machine.beta) if plain else None
        self.strict = strict
        self.like = "strict"
        self.seed = seed
        self.random = None if seed is None else random.Random(seed)
        self.problems: list[Problem] = []
        self.failure: Problem | None = None
        self.on_stall: Callable[[str], bool] = lambda attention: False
        self.on_enter: Callable[[RankThread], None] = lambda thread: None
        self.on_add: Callable[[Task], None] = lambda task: None
        self.undecided: dict[Mailbox, None] = {}
        self.decide: Callable[[], None] = self.undecided.clear
        self.timeline: Timeline | None = None
        self.stopwatch: Stopwatch | None = None
        self.recorder: RunRecorder | None = None
        self.closing = False
        self.polls = 0
        self.relief_requested = False
        self.attention = ""
        self.unstarted = size
        self.uses_hub = True  # ranks do not switch to each other
        self.buffered_sites: set[Any] = set()
        self.suspects: set[Any] = set()
        self.shared: list[Any] = []  # every communicator, for the checks at the end
        self.windows: list[Any] = []
        self.order: Any = None
        self.ports: Any = None
        self.nodes = NodeMap.consecutive(size, size)
        self.handles = OpenHandles(self.locate)

    def locate(self) -> ProgramPlace:
        """Return the line of the program in which the running rank calls the simulator."""
        return place_in_stack(self.current.rank, sys._getframe(1))

    def link(self, ranks: Sequence[int], nbytes: int) -> Link:
        """Return the link, latency and inverse bandwidth, of a message between ranks of the program."""
        return self.plain or message_link(self.machine, ranks, nbytes)

    def start(self, body: Callable[[Task], None]) -> None:
        """Create the greenlet of every rank and put it in the queue, in rank order; none runs yet.

        Args:
            body: called with the task, in its greenlet, when the rank runs first.
        """
        self._body = body
        for task in self.tasks:
            self._create_greenlet(task, body)

    def _create_greenlet(self, thread: RankThread, body: Callable[[Any], None]) -> None:
        """Create the greenlet of a thread and put it in the queue; it does not run yet.

        Args:
            thread: the thread; a rank is its own main thread.
            body: called with the thread, in its greenlet.
        """
        thread.greenlet = self._greenlet(partial(self._run_thread, thread, body), parent=self.hub)
        thread.switch = thread.greenlet.switch
        self.ready.append(thread)

    def add_ranks(self, programs: Sequence[tuple[Any, int]], clock: float, past: Any) -> list[Task]:
        """Add ranks that the program spawns to the node of the running rank, and queue them.

        Args:
            programs: the script of each rank, and the number of its command.
            clock: the modelled time at which they start, in seconds.
            past: the events that happen before they start, if the program has a window; else None.

        Returns:
            The new ranks.
        """
        parent, first = self.current.rank, len(self.tasks)
        for rank, (script, number) in enumerate(programs, first):
            task = Task(rank, self, clock=clock, script=script, application=number)
            self.tasks.append(task)
            self.computation.add_rank(parent)
            if self.timeline is not None:
                self.timeline.add_rank(rank)
            if self.order is not None:
                self.order.add_rank(past)
            self.on_add(task)
        self.nodes = self.nodes.extended([parent] * len(programs))
        self.machine = self.machine.placed(self.nodes)
        self.collective_times.place(self.machine)
        for task in self.tasks[first:]:
            self._create_greenlet(task, self._body)
        self.unstarted += len(programs)
        self._update_switching()
        return self.tasks[first:]

    def _run_thread(self, thread: RankThread, body: Callable[[Any], None]) -> None:
        """Run a thread of a rank to its end, and count its computation.

        Args:
            thread: the thread.
            body: called with the thread; it runs the thread.
        """
        if self.stopwatch is not None:
            self.stopwatch.resume()
        body(thread)
        if self.stopwatch is not None:
            self.stopwatch.pause(thread.task)
        if thread is not thread.task:
            thread.task.threads.remove(thread)

    def start_thread(self, run: Callable[[], None], name: str) -> RankThread:
        """Start a further thread of the running rank; return it.

        Args:
            run: runs the thread.
            name: its name, for findings.
        """
        task = self.current.task
        if not any(other.is_threaded for other in self.tasks):
            self.on_enter = _ThreadClocks(self).enter
        task.is_threaded = True
        thread = RankThread(task.rank, self, task, name, resumes_at=task.clock)
        task.threads.append(thread)
        self._create_greenlet(thread, lambda thread: run())
        self.unstarted += 1
        self._update_switching()
        return thread

    def abandon_threads(self, task: Task) -> None:
        """Let the further threads of a rank never run again, because the process of the rank ``task`` ends."""
        for thread in task.threads:
            thread.waiting = None
            if thread in self.ready:
                self.ready.remove(thread)
                self.unstarted -= not thread.greenlet
        self.timers = [timer for timer in self.timers if timer[2].task is not task]
        self._update_switching()

    def set_timer(self, wait: Any, seconds: float) -> None:
        """End a wait of the running thread after modelled seconds, if it has not ended before.

        Args:
            wait: a `ThreadWait`.
            seconds: modelled seconds from now.
        """
        wait.is_timed = True
        heappush(self.timers, (self.current.task.clock + seconds, next(self._timer_numbers), wait))

    def _end_timer(self) -> str:
        """End the timed wait that ends first; return the reason to call ``on_stall``, or an empty text."""
        self._ended_timers += 1
        if self._ended_timers >= TIMERS_BEFORE_LIVELOCK:
            return "livelock"
        if self._ended_timers == TIMERS_BEFORE_RELIEF:
            return "relief"
        end, _, wait = heappop(self.timers)
        if not wait.done:
            wait.end(end, timed_out=True)
            self.ready.append(wait.thread)
        return ""

    def run(self) -> None:
        """Run all ranks until they have finished, an error ends the run, or a stall is not resolved.

        This loop is called the hub. It runs in the caller's greenlet: it starts each rank, and chooses the next one
        if ranks do not switch among themselves. If no rank can continue, or all ready ranks only test, it first lets
        receives from any source match. It calls ``on_stall`` in these cases:

        - no rank can continue (with ""), or ranks have tested too often (with "livelock", see :meth:`poll`): if
          nothing is resolved, the run ends;
        - ranks test again and again (with "relief"): if nothing is resolved, the run continues.
        """
        while True:
            while self.ready and self.failure is None and not self.attention:
                task = self._pop_ready()
                self.current = task
                self.on_enter(task)
                if self.unstarted and not task.greenlet:
                    self.unstarted -= 1
                    self._update_switching()
                task.switch()
            attention, self.attention = self.attention, ""
            self._update_switching()
            if self.failure is None and self.undecided and (not self.ready or attention):
                self._decide()
                continue
            if self.failure is not None or all(task.finished for task in self.tasks):
                return
            if self.failure is None and self.timers and (not self.ready or attention):
                attention = self._end_timer()
                if not attention:
                    continue
            if attention == "wildcards":
                continue
            resumed = self.on_stall(attention)
            if not resumed and attention != "relief":
                return

    def _decide(self) -> None:
        """Match wildcards; a message that does not fit its receive ends the run."""
        with suppress(self.exit):  # ``fail`` has recorded why the run ends
            self.decide()

    def _update_switching(self) -> None:
        """Set whether ranks switch through the hub: with a seed, and until all ranks have started.

        A greenlet that starts inherits the recursion depth of the greenlet that starts it, so only the hub starts
        ranks.
        """
        self.uses_hub = self.random is not None or self.unstarted > 0

    def close(self) -> None:
        """Raise the exit exception in ranks that have not ended, so that their ``finally`` blocks run.

        Afterwards no finding is recorded. A rank that catches :data:`MOST_EXITS` (100) exit exceptions is suspended
        for ever.
        """
        self.closing = self.uses_hub = True
        for thread in [thread for task in self.tasks for thread in task.all_threads()]:
            if thread.greenlet is not None and not thread.greenlet.dead:
                self.current = thread
                self.on_enter(thread)
                thread.greenlet.throw(self.exit)

    def enter_call(self, task: Task) -> float:
        """Return the modelled clock of a rank at the begin of a call; its measured computation ends there.

        Args:
            task: the running rank.
        """
        if self.stopwatch is not None:
            self.stopwatch.pause(task)
        return task.clock

    def return_to_program(self) -> None:
        """Start to measure computation, if it is measured, because a call returns to the program."""
        if self.stopwatch is not None:
            self.stopwatch.resume()

    @property
    def observes_calls(self) -> bool:
        """True if the ends of calls matter: for a timeline, or to measure computation."""
        return self.timeline is not None or self.stopwatch is not None

    def leave_call(self, task: Task, name: str, begin: float, frame: FrameType, **facts: Any) -> None:
        """Record a call that ends in the timeline, if there is one, and return to the program.

        Args:
            task: the running rank.
            name: name of the call, such as "Send".
            begin: modelled time at which it began, in seconds.
            frame: a frame of the call, or of its caller.
            facts: further values to show with the call, such as ``nbytes``.
        """
        if self.timeline is not None:
            self.timeline.record_call(task, name, begin, frame, **facts)
        self.return_to_program()

    def block(self, waiting: Any) -> None:
        """Suspend the running rank until another rank wakes it, and run the next ready rank.

        With a seed, or while some ranks have not started, the hub chooses the next rank; the hub is the loop of
        :meth:`run`. If no rank is ready, the hub calls ``on_stall``. A call from another thread than the simulation's
        ends the run with an error. If the run ends while the rank is suspended, an exception ends the rank here, and
        ``task.waiting`` keeps its value.

        Args:
            waiting: the operation for which the rank waits, or a ``JointWait`` for several. It is ``task.waiting``
                meanwhile.
        """
        task = self.current
        task.waiting = waiting
        ready, stopwatch = self.ready, self.stopwatch
        if stopwatch is not None:
            stopwatch.pause(task.task)
        if self.uses_hub or not ready or get_ident() != self.thread:
            self.switch_to_next(task)
        else:  # like ``switch_to_next``, without a call, because nearly every message comes here
            self.current = following = ready.popleft()
            if following is not task:
                self.on_enter(following)
                following.switch()
        task.waiting = None
        if stopwatch is not None:
            stopwatch.resume()

    def wake(self, thread: RankThread) -> None:
        """Put a blocked thread of a rank in the queue of ready threads."""
        self.polls = self._ended_timers = 0
        self.ready.append(thread)

    def poll(self, waiting: Any) -> None:
        """Let other ranks run once, because a test has found that an operation is not complete.

        The running rank stays ready, and continues when its turn comes. Polls, which are such calls, are counted
        since the last progress of any rank:

        - After 50 polls per ready rank, the hub calls ``on_stall`` once with "relief", to complete operations as a
          library with buffers would.
        - After 10,000 polls per ready rank and 500,000 in all, the hub calls ``on_stall`` with "livelock", because
          nothing will change any more.

        The hub is the loop of :meth:`run`.

        Args:
            waiting: the operation that was tested, or a ``JointWait``. It is ``task.waiting`` meanwhile.
        """
        task = self.current
        if not self.polls:
            self.relief_requested = False
        self.polls += 1
        self.ready.append(task)
        polls_per_rank = self.polls // len(self.ready)
        if (self.undecided or self.timers) and polls_per_rank >= 2:
            self.attention = "wildcards"
        elif polls_per_rank >= POLLS_BEFORE_RELIEF and not self.relief_requested:
            self.relief_requested = True
            self.attention = "relief"
        elif polls_per_rank >= RANK_POLLS_BEFORE_LIVELOCK and self.polls >= POLLS_BEFORE_LIVELOCK:
            self.attention = "livelock"
        if self.attention:
            # Only the hub can call ``on_stall``.
            self.uses_hub = True
        task.waiting = waiting
        self.switch_to_next(task)
        task.waiting = None

    def yield_turn(self) -> None:
        """Let the other ready ranks run first."""
        task = self.current
        self.ready.append(task)
        self.switch_to_next(task)

    def record_failure(self, problem: Problem) -> None:
        """Record the finding that ends the run; only the first one counts, and none while the run closes."""
        if self.failure is None and not self.closing:
            self.failure = problem
            self.problems.append(problem)

    def fail(self, problem: Problem) -> NoReturn:
        """Record a finding that ends the run, and stop the running rank; never return.

        The rank is suspended until the run closes. Then the exit exception of greenlets is raised in it, so that its
        ``finally`` blocks run.
        """
        self.record_failure(problem)
        if not self.closing:
            self.hub.switch()
        raise self.exit

    def refuse_thread(self, task: RankThread, frame: FrameType) -> NoReturn:
        """End the run with a finding, because a thread calls MPI that the simulator does not run.

        Args:
            task: the rank.
            frame: the caller's frame, to find the line of the call.

        Raises:
            SystemExit: Always, to end the thread.
        """
        name, rank, location = threading.current_thread().name, task.rank, place_in_stack(task.rank, frame)
        text = (
            f"rank {rank} calls {location} in a thread of the process ({name}), which a module that ranks share has started; "
            "start it with Python's threading or concurrent.futures in the program"
        )
        self.record_failure(Problem("thread", ERROR, text, (rank,), (location,)))
        raise SystemExit

    def _pop_ready(self) -> RankThread:
        """Remove and return the next thread to run: the first one, or with a seed a random one."""
        if self.random is not None:
            self.ready.rotate(-self.random.randrange(len(self.ready)))
        return self.ready.popleft()

    def switch_to_next(self, task: RankThread) -> None:
        """Run the next ready rank; return when ``task`` is ready again and its turn has come.

        With a seed, without a ready rank, or while some ranks have not started, the hub chooses the next rank; the
        hub is the loop of :meth:`run`. A call from another thread than the simulation's ends the run with an error.

        Args:
            task: the running rank.
        """
        if get_ident() != self.thread:
            self.refuse_thread(task, sys._getframe(1))
        if self.stopwatch is not None:
            self.stopwatch.pause(task.task)
        ready = self.ready
        if self.uses_hub or not ready:
            self._to_hub(task)
        else:
            self.current = following = ready.popleft()
            if following is not task:
                self.on_enter(following)
                following.switch()
        if self.stopwatch is not None:
            self.stopwatch.resume()

    def _to_hub(self, task: RankThread) -> None:
        """Switch to the hub, the scheduler's own loop; return when the hub resumes the rank.

        If the run is closing, raise the exit exception instead, so that the rank ends. A rank that has caught this
        exception `MOST_EXITS` (100) times is suspended for ever.

        Args:
            task: the running rank; ``task.exits`` counts the exit exceptions that this function raised.
        """
        if self.closing:
            task.exits += 1
            if task.exits > MOST_EXITS:
                _running_greenlets.append(task.greenlet)
                self.hub.switch()  # never returns
            raise self.exit
        self.hub.switch()


class _ThreadClocks:
    """A switch that gives each thread of a rank its own modelled clock while it runs.

    ``Task.clock`` is the clock of the running thread. Ranks with one thread are not concerned.

    Args:
        scheduler: the simulation, whose ``on_enter`` is called, too.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._running, self._enter = scheduler, scheduler.current, scheduler.on_enter

    def enter(self, thread: RankThread) -> None:
        """Store the clock of the thread that ran, and set the clock of the next one."""
        before, self._running = self._running, thread
        if before.task.is_threaded:
            before.resumes_at = max(before.resumes_at, before.task.clock)
        self._enter(thread)
        if thread.task.is_threaded and not self._scheduler.closing:
            thread.task.clock = thread.resumes_at


_active: list[Scheduler] = []


@contextmanager
def activate(scheduler: Scheduler) -> Iterator[None]:
    """Make a simulation the running one inside a ``with`` block; ``current_task`` then returns its ranks.

    Yields None.

    Args:
        scheduler: the simulation.

    Raises:
        WorldError: If another simulation is running.
    """
    if _active:
        raise WorldError("simulate must not be called inside a simulated program")
    _active.append(scheduler)
    try:
        yield
    finally:
        _active.pop()


def current_task() -> Task | None:
    """Return the task of the running rank, or None outside a simulation."""
    return _active[-1].current.task if _active else None


def current_scheduler() -> Scheduler | None:
    """Return the scheduler of the running simulation, or None."""
    return _active[-1] if _active else None
