"""Who runs next: one greenlet per rank, a queue of ranks that can go on, and what happens when none can.

Everything is in one thread, so a run is deterministic: a rank runs until it has to wait, then the rank that
became ready first runs. With a seed the next rank is drawn at random instead, which is another legal order.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.cost.closed_forms import Link
from spmdsim.cost.machine import Machine
from spmdsim.errors import WorldError
from spmdsim.simulation.engine.timing import message_link
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import ERROR, Problem, place_in_stack

if TYPE_CHECKING:
    from spmdsim.simulation.engine.mailboxes import Mailbox, Message
    from spmdsim.simulation.engine.timing import Timeline
    from spmdsim.simulation.findings.problems import Site

LOOKS_BEFORE_RELIEF = 50
LOOKS_BEFORE_GIVING_UP = 10_000  # of every rank, and
POLLS_BEFORE_GIVING_UP = 500_000  # of all together: a long loop with a test in it is no deadlock
FLOOD = 500  # messages to one rank, sent without ever waiting, that no program should rely on
STUBBORN = 100  # a rank that catches being ended this often is left where it stands
_stubborn: list[Any] = []  # kept, because collecting such a greenlet would tell it once more


def load_greenlet() -> Any:
    """Import the greenlet library, or raise an error that says how to install it."""
    try:
        import greenlet
    except ImportError:
        raise WorldError("simulating needs greenlet, which is not installed: pip install greenlet") from None
    return greenlet


@dataclass(slots=True, eq=False)
class Task:
    """One virtual rank: its greenlet, its clock and its wait."""

    rank: int
    scheduler: Scheduler
    greenlet: Any = None
    switch: Any = None  # lets it run
    clock: float = 0.0  # seconds of modelled time
    port_out: float = 0.0  # when its last message has left
    port_in: float = 0.0
    waiting: Any = None  # the operation or operations it is blocked on
    exits: int = 0  # how often it was told to end
    finished: bool = False
    value: Any = None
    exit_code: int = 0
    active: dict[int, Any] = field(default_factory=dict)  # requests started and not yet waited for
    # What it has sent since it last waited: to whom, messages and bytes; and to others before.
    to: Mailbox | None = None
    count: int = 0
    nbytes: int = 0
    ahead: dict[Mailbox, tuple[int, int]] = field(default_factory=dict)
    flood: Message | None = None
    messages_sent: int = 0
    bytes_sent: int = 0
    world: Any = None
    own: Any = None
    attached: int = -1  # bytes of the buffer attached for Bsend; -1 means none
    attached_buffer: Any = None
    initialized: Any = True  # False before Init; the place of Init after it
    finalized: bool = False
    looked_at: float = -1.0  # what the clock showed at the last look
    idle_looks: int = 0  # looks since the last communication
    # By sender, the wildcard receive that took its last message.
    caught: dict[int, tuple[str, Site]] = field(default_factory=dict)

    def attach(self, buffer: Any) -> None:
        """Attach memory for buffered sends; None means as much as they need."""
        self.attached = memoryview(buffer).nbytes if buffer is not None else 2**62
        self.attached_buffer = buffer

    def detach(self) -> Any:
        """Give back the memory for buffered sends."""
        self.attached = -1
        return self.attached_buffer

    def count_ahead(self, box: Mailbox, nbytes: int, message: Message | None = None) -> None:
        """Count one more message to a mailbox since the rank last waited; record the message that exceeds the limit.

        Most programs send once or to one rank and then wait: only a rank that sends to several in a row has a table.
        """
        if self.to is not box:
            if self.to is not None:
                self.ahead[self.to] = (self.count, self.nbytes)
            self.to = box
            self.count, self.nbytes = self.ahead.get(box, (0, 0))
        self.count += 1
        self.nbytes += nbytes
        if self.count == FLOOD and message is not None:
            self.flood = message

    def settle(self) -> None:
        """Reset the counts after the rank waited for another rank."""
        if self.flood is not None:
            self.note_flood()
        self.to, self.count = None, 0
        if self.ahead:
            self.ahead.clear()

    def note_flood(self) -> None:
        """Report a rank that sent too many messages to one rank, if any."""
        message, self.flood = self.flood, None
        if message is not None:
            box = message.comm.boxes[message.dest]
            counts = (self.count, self.nbytes) if self.to is box else self.ahead[box]
            faults.note_flood(message, *counts)


class Scheduler:
    """The run queue of one simulation and everything its ranks share.

    Attributes:
        ready: ranks that can go on.
        current: the rank that runs.
        failure: the finding that ended the run, if one did.
        on_stall: asked when no rank can go on, or all of them only poll (``relief``, then ``livelock``);
            returns whether it made one ready.
        plain: the link of all messages, where all have the same: who is called at every message asks for it first.
        on_enter: told which rank runs next, so that per-rank globals can be put in place.
    """

    def __init__(self, size: int, machine: Machine, strict: bool, seed: int | None) -> None:
        library = load_greenlet()
        self._greenlet = library.greenlet
        self.exit = library.GreenletExit
        self.hub = library.getcurrent()
        self.thread = get_ident()
        self.tasks = [Task(rank, self) for rank in range(size)]
        self.ready: deque[Task] = deque()
        self.current: Task = self.tasks[0]
        self.machine = machine
        plain = machine.intra is None and not machine.pieces
        self.plain = Link(machine.alpha, machine.beta) if plain else None
        self.strict = strict
        self.seed = seed
        self.random = None if seed is None else random.Random(seed)
        self.problems: list[Problem] = []
        self.failure: Problem | None = None
        self.on_stall: Callable[[str], bool] = lambda attention: False
        self.on_enter: Callable[[Task], None] = lambda task: None
        self.timeline: Timeline | None = None
        self.closing = False
        self.polls = 0
        self.relieved = False
        self.attention = ""
        self.unstarted = size
        self.through_hub = True  # ranks do not switch to each other
        self.buffered_sites: set[Any] = set()
        self.suspects: set[Any] = set()
        self.shared: list[Any] = []  # every communicator, for the checks at the end
        self.ranks_per_node = size

    def link(self, ranks: Sequence[int], nbytes: int) -> Link:
        """Return the latency and inverse bandwidth of messages of a size between ranks of the whole program."""
        return self.plain or message_link(self.machine, ranks, nbytes)

    def start(self, body: Callable[[Task], None]) -> None:
        """Give every rank its greenlet and put it in the queue."""
        for task in self.tasks:
            task.greenlet = self._greenlet(partial(body, task), parent=self.hub)
            task.switch = task.greenlet.switch
            self.ready.append(task)

    def run(self) -> None:
        """Run until every rank has finished, or a finding ends the run."""
        while True:
            while self.ready and self.failure is None and not self.attention:
                task = self._next()
                self.current = task
                self.on_enter(task)
                if self.unstarted and not task.greenlet:
                    self.unstarted -= 1
                    self._decide_way()
                task.switch()
            if self.failure is not None or all(task.finished for task in self.tasks):
                return
            attention, self.attention = self.attention, ""
            self._decide_way()
            woke = self.on_stall(attention)
            if not woke and attention != "relief":
                return

    def _decide_way(self) -> None:
        """Set whether ranks switch through the hub: with a seed, and until all ranks have started.

        A rank that another rank starts would inherit the recursion depth of that rank.
        """
        self.through_hub = self.random is not None or self.unstarted > 0

    def close(self) -> None:
        """End the ranks that are still inside the program; their ``finally`` blocks run."""
        self.closing = self.through_hub = True
        for task in self.tasks:
            if task.greenlet is not None and not task.greenlet.dead:
                self.current = task
                self.on_enter(task)
                task.greenlet.throw(self.exit)

    def block(self, waiting: Any) -> None:
        """Stop the running rank until another rank wakes it."""
        task = self.current
        task.waiting = waiting
        ready = self.ready
        if self.through_hub or not ready or get_ident() != self.thread:
            self.pass_on(task)
        else:  # what happens at nearly every message, without a call in between
            self.current = following = ready.popleft()
            if following is not task:
                self.on_enter(following)
                following.switch()
        task.waiting = None

    def wake(self, task: Task) -> None:
        """Let a blocked rank go on."""
        self.polls = 0
        self.ready.append(task)

    def poll(self, waiting: Any) -> None:
        """Let the others run after a look that found nothing; notice when everybody only looks."""
        task = self.current
        if not self.polls:
            self.relieved = False
        self.polls += 1
        self.ready.append(task)
        looks = self.polls // len(self.ready)
        if looks >= LOOKS_BEFORE_RELIEF and not self.relieved:
            self.relieved = True
            self.attention = "relief"
        elif looks >= LOOKS_BEFORE_GIVING_UP and self.polls >= POLLS_BEFORE_GIVING_UP:
            self.attention = "livelock"
        if self.attention:
            self.through_hub = True
        task.waiting = waiting
        self.pass_on(task)
        task.waiting = None

    def yield_turn(self) -> None:
        """Let the other ranks that can go on run first."""
        task = self.current
        self.ready.append(task)
        self.pass_on(task)

    def record_failure(self, problem: Problem) -> None:
        """Record the finding that ends the run; only the first one counts."""
        if self.failure is None and not self.closing:
            self.failure = problem
            self.problems.append(problem)

    def fail(self, problem: Problem) -> NoReturn:
        """Record a finding that ends the run, and leave the running rank for good."""
        self.record_failure(problem)
        if not self.closing:
            self.hub.switch()
        raise self.exit

    def refuse_thread(self, task: Task, frame: FrameType) -> NoReturn:
        """End the run, because a thread of the program calls MPI and only the main thread can wait."""
        name, rank, place = threading.current_thread().name, task.rank, place_in_stack(task.rank, frame)
        text = (
            f"rank {rank} calls {place} in a thread of its own ({name}): all virtual ranks share one thread, so only "
            "the thread a rank begins in can be simulated"
        )
        self.record_failure(Problem("thread", ERROR, text, (rank,), (place,)))
        raise SystemExit

    def _next(self) -> Task:
        if self.random is not None:
            self.ready.rotate(-self.random.randrange(len(self.ready)))
        return self.ready.popleft()

    def pass_on(self, task: Task) -> None:
        """Run somebody else; come back when the given rank is ready again."""
        if get_ident() != self.thread:
            self.refuse_thread(task, sys._getframe(1))
        ready = self.ready
        if self.through_hub or not ready:
            self._to_hub(task)
            return
        following = ready.popleft()
        if following is not task:
            self.current = following
            self.on_enter(following)
            following.switch()

    def _to_hub(self, task: Task) -> None:
        if self.closing:
            task.exits += 1
            if task.exits > STUBBORN:
                _stubborn.append(task.greenlet)
                self.hub.switch()
            raise self.exit
        self.hub.switch()


_active: list[Scheduler] = []


@contextmanager
def active(scheduler: Scheduler) -> Iterator[None]:
    """Make a simulation the one that the stand-in module's functions refer to."""
    if _active:
        raise WorldError("a simulation cannot be started inside a simulation")
    _active.append(scheduler)
    try:
        yield
    finally:
        _active.pop()


def current_task() -> Task | None:
    """Return the task of the running rank, or None outside a simulation."""
    return _active[-1].current if _active else None


def current_scheduler() -> Scheduler | None:
    """Return the scheduler of the running simulation, or None."""
    return _active[-1] if _active else None
