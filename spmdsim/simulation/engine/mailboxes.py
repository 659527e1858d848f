"""Messages, receives, how they find each other, and a rank's end of a communicator.

Each rank of a communicator has one mailbox. Order is MPI's: of several that fit, the one sent, or posted, first.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.simulation.findings.problems import ERROR, Problem, place_in_stack

if TYPE_CHECKING:
    from spmdsim.simulation.engine.scheduler import Scheduler, Task
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.data.message_buffers import OBJECT
from spmdsim.simulation.findings.problems import Site

if TYPE_CHECKING:
    from spmdsim.simulation.engine.scheduler import Scheduler, Task

STANDARD, SYNCHRONOUS, BUFFERED, READY = "standard", "synchronous", "buffered", "ready"


@dataclass(slots=True, eq=False)
class Message:
    """One sent message.

    Attributes:
        source: rank of the sender in the communicator; ``dest`` of the receiver.
        payload: the buffer or object.
        site: the call that sends it.
        data: a private copy of the elements, once one was needed.
        done: the sender may go on: it was received, or somebody else keeps the data.
        relieved: it would have blocked for ever without a library's buffer.
        next: the next message of the same source in the same mailbox.
        tail: the last one, known to the first if there is more than one.
    """

    comm: Any  # what all ranks of the communicator share
    task: Task
    payload: Any
    source: int
    dest: int
    tag: int
    name: str
    site: Site
    start: float
    end: float
    mode: str = STANDARD
    done: bool = False
    number: int = 0
    data: Any = None
    waiter: Any = None
    relieved: Any = None
    next: Any = None
    tail: Any = None

    def keep(self) -> None:
        """Copy the data, so that the sender may change its buffer."""
        if self.data is None and self.payload.dtype is not OBJECT:
            self.data = self.payload.copy()


@dataclass(slots=True, eq=False)
class Receive:
    """One posted receive.

    Attributes:
        target: the buffer it writes to, or what stands for an object.
        site: the call that receives.
        message: the message it got, once matched.
        direct: the data may be written at once, because the rank is blocked in this very call.
        before: the buffer's contents when it was posted, to notice that the program changed them.
    """

    comm: Any
    task: Task
    target: Any
    source: int
    dest: int
    tag: int
    name: str
    site: Site
    direct: bool
    posted: float
    end: float = 0.0
    done: bool = False
    number: int = 0
    message: Message | None = None
    before: Any = None
    waiter: Any = None

    def fits(self, source: int, tag: int) -> bool:
        """Return True if the receive accepts a message with this source and tag."""
        return self.source in (source, ANY_SOURCE) and self.tag in (tag, ANY_TAG)


@dataclass(slots=True, eq=False)
class Probing:
    """A blocking probe: it waits for a message and leaves it in the mailbox."""

    comm: Any
    task: Task
    dest: int
    source: int
    tag: int
    name: str
    done: bool = False
    message: Message | None = None
    waiter: Any = None


class WaitsTogether:
    """A rank that waits for several operations: for all of them, or for any one."""

    __slots__ = ("every", "left", "operations", "scheduler", "task")

    def __init__(self, scheduler: Scheduler, task: Task, operations: list[Any], every: bool) -> None:
        self.scheduler = scheduler
        self.task = task
        self.operations = operations
        self.every = every
        self.left = 0
        for operation in operations:
            if not operation.done:
                operation.waiter = self
                self.left += 1

    def completed(self) -> None:
        """Count one completed operation."""
        self.left -= 1
        if (self.left == 0) if self.every else (self.left >= 0):
            if not self.every:
                self.release()
            self.scheduler.wake(self.task)

    def release(self) -> None:
        """Stop observing the operations that are still open."""
        self.left = 0
        for operation in self.operations:
            if operation.waiter is self:
                operation.waiter = None


def finish(scheduler: Scheduler, operation: Any) -> None:
    """Mark an operation complete and let the ranks that wait for it continue."""
    operation.done = True
    waiter = operation.waiter
    if waiter is not None:
        operation.waiter = None
        if type(waiter) is WaitsTogether:
            waiter.completed()
        else:
            scheduler.wake(waiter)


def wait_for(scheduler: Scheduler, operation: Any) -> None:
    """Block the running rank until one operation is complete."""
    if not operation.done:
        operation.waiter = operation.task
        scheduler.block(operation)


class Mailbox:
    """The messages that arrived at one rank and were not received, and its posted receives without a message.

    Attributes:
        arrived: by source the first message, which leads to those after it.
        posted: nonblocking receives by (source, tag), in the order posted.
        wild: nonblocking receives with a wildcard.
        blocked: the receive the rank stands in, which is younger than all others.
        probes: blocking probes.
    """

    __slots__ = ("arrived", "blocked", "count", "posted", "probes", "wild")

    def __init__(self) -> None:
        self.arrived: dict[int, Message] = {}
        self.posted: dict[tuple[int, int], deque[Receive]] = {}
        self.wild: list[Receive] = []
        self.blocked: Receive | None = None
        self.probes: list[Probing] = []
        self.count = 0

    # ------------------------------------------------------------------ receives

    def post(self, receive: Receive) -> None:
        """Let a receive wait here."""
        self.count += 1
        receive.number = self.count
        if receive.direct:
            self.blocked = receive
        elif receive.source == ANY_SOURCE or receive.tag == ANY_TAG:
            self.wild.append(receive)
        else:
            self.posted.setdefault((receive.source, receive.tag), deque()).append(receive)

    def first_fit(self, source: int, tag: int) -> Receive | None:
        """Return the first posted receive that accepts a source and tag, without removing it; None if there is none."""
        exact = self.posted.get((source, tag)) if self.posted else None
        for receive in self.wild:
            if receive.fits(source, tag):
                return exact[0] if exact and exact[0].number < receive.number else receive
        if exact:
            return exact[0]
        blocked = self.blocked
        return blocked if blocked is not None and blocked.fits(source, tag) else None

    def take_out(self, receive: Receive) -> None:
        """Remove the receive that a message satisfies."""
        if receive.direct:
            self.blocked = None
        elif receive.source == ANY_SOURCE or receive.tag == ANY_TAG:
            self.wild.remove(receive)
        else:
            key = receive.source, receive.tag
            queue = self.posted[key]
            queue.popleft()
            if not queue:
                del self.posted[key]

    def withdraw(self, receive: Receive) -> bool:
        """Take a nonblocking receive out that has not matched; False if it is not here."""
        if receive in self.wild:
            self.wild.remove(receive)
            return True
        key = (receive.source, receive.tag)
        queue = self.posted.get(key)
        if queue is None or receive not in queue:
            return False
        queue.remove(receive)
        if not queue:
            del self.posted[key]
        return True

    # ------------------------------------------------------------------ messages

    def put(self, message: Message) -> None:
        """Let a message wait here."""
        self.count += 1
        message.number = self.count
        first = self.arrived.get(message.source)
        if first is None:
            self.arrived[message.source] = message
        else:
            (first.tail or first).next = message
            first.tail = message

    def find(self, source: int, tag: int, random: Any = None) -> Message | None:
        """Return the message that a receive would get now, without removing it.

        Args:
            source: rank or ANY_SOURCE.
            tag: number or ANY_TAG.
            random: draws among the sources when several could be first; None takes the one sent first.
        """
        if source != ANY_SOURCE:
            return _first(self.arrived.get(source), tag)
        candidates = [message for one in self.arrived.values() if (message := _first(one, tag)) is not None]
        if not candidates:
            return None
        if random is not None:
            result: Message | None = random.choice(sorted(candidates, key=lambda message: message.source))
            return result
        return min(candidates, key=lambda message: message.number)

    def take(self, source: int, tag: int, random: Any = None) -> Message | None:
        """Like ``find``, but remove the message."""
        message = self.find(source, tag, random)
        if message is not None:
            self.remove(message)
        return message

    def remove(self, message: Message) -> None:
        """Take a message out."""
        first = self.arrived[message.source]
        later = message.next
        if first is message:
            if later is None:
                del self.arrived[message.source]
            else:
                later.tail = None if message.tail is later else message.tail
                self.arrived[message.source] = later
        else:
            before = first
            while before.next is not message:
                before = before.next
            before.next = later
            if later is None:
                first.tail = None if before is first else before
        message.next = message.tail = None

    def put_back(self, message: Message) -> None:
        """Let a message that was taken out be the first of its source."""
        later = self.arrived.get(message.source)
        if later is not None:
            message.next, message.tail, later.tail = later, later.tail or later, None
        self.arrived[message.source] = message

    def waiting_messages(self) -> list[Message]:
        """Return all messages that arrived and were not received, in sending order."""
        messages = [message for first in self.arrived.values() for message in _chain(first)]
        return sorted(messages, key=lambda message: message.number)


def _chain(message: Message | None) -> Iterator[Message]:
    """Yield a message and the messages that its source sent after it."""
    while message is not None:
        yield message
        message = message.next


def _first(message: Message | None, tag: int) -> Message | None:
    """Return the first message of a chain that has a tag."""
    while message is not None and tag not in (message.tag, ANY_TAG):
        message = message.next
    return message


try:
    import greenlet
except ImportError:  # said in one line when a simulation begins
    getcurrent: Any = None
else:
    getcurrent = greenlet.getcurrent


class Endpoint:
    """A rank's end of a communicator.

    Attributes:
        shared: what all ranks of the communicator share.
        rank: the rank in it.
        task: the rank of the whole program.
        scheduler: the simulation.
        box: its mailbox, and ``boxes`` those of all ranks.
    """

    __slots__ = ("box", "boxes", "rank", "scheduler", "shared", "size", "task")

    def __init__(self, shared: Any, rank: int, task: Task) -> None:
        self.shared, self.rank, self.task = shared, rank, task
        self.scheduler: Scheduler = shared.scheduler
        self.boxes, self.size = shared.boxes, shared.size
        self.box = shared.boxes[rank]

    def running(self) -> Task:
        """Return the task of the rank. Raise an error if another rank or another thread runs."""
        task = self.task
        if task.greenlet is not getcurrent():
            self._check()
        return task

    def _check(self) -> None:
        if get_ident() != self.scheduler.thread:
            self.scheduler.refuse_thread(self.task, sys._getframe(1))
        if self.task is not self.scheduler.current:
            self._strange()

    def _strange(self) -> NoReturn:
        runs, task = self.scheduler.current, self.task
        place = place_in_stack(runs.rank, sys._getframe(1))
        text = (
            f"rank {runs.rank} uses rank {task.rank}'s handle of {self.shared.name} in {place}: it was kept in "
            "something that virtual ranks share, as a function's variables; in a real run each rank has its own"
        )
        self.scheduler.fail(Problem("shared_communicator", ERROR, text, (runs.rank, task.rank), (place,)))
