"""Messages, receives, the mailboxes that match them, and a rank's end of a communicator.

Each rank of a communicator has one mailbox. The order is MPI's: of several messages that a receive accepts, the first
sent one matches; of several receives that accept a message, the first posted one.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.simulation.data.constants import (
    ANY_SOURCE,
    ANY_TAG,
    THREAD_MULTIPLE,
    THREAD_SERIALIZED,
    MPIError,
)
from spmdsim.simulation.data.message_buffers import OBJECT
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import ERROR, Problem, Site, place_in_stack

if TYPE_CHECKING:
    from spmdsim.simulation.engine.scheduler import Scheduler, Task

STANDARD, SYNCHRONOUS, BUFFERED, READY = "standard", "synchronous", "buffered", "ready"


@dataclass(slots=True, eq=False)
class Message:
    """Message that a rank has sent.

    Attributes:
        comm: the state of the communicator.
        task: the sender.
        payload: the buffer or object.
        source: rank of the sender in the communicator; ``dest``: rank of the receiver.
        name: name of the method that sends, such as "Send"; ``site``: its place in the program.
        start: modelled time at which it starts to leave the sender; ``end``: time at which it has left.
        delay: seconds for which it waited for its receive before ``start``.
        mode: STANDARD, SYNCHRONOUS, BUFFERED or READY.
        done: True if the sender can continue: the message was received, or its data was copied.
        number: position in the order of arrival at the mailbox.
        data: a copy of the elements, or None if none was needed yet.
        waiter: the rank or `JointWait` that waits for it, or None.
        relief: the `Relief` that buffered it in a deadlock, or None.
        next: the next message from this source in the mailbox.
        tail: the last message of the chain, set on the first message if the chain has more than one.
        event: its event in the record of the run, or None.
        past: the events before the send, if the program has a window; ``answer``: those before the receive of a
            synchronous message.
    """

    comm: Any
    task: Task
    payload: Any
    source: int
    dest: int
    tag: int
    name: str
    site: Site
    start: float
    end: float
    delay: float = 0.0
    mode: str = STANDARD
    done: bool = False
    number: int = 0
    data: Any = None
    waiter: Any = None
    relief: Any = None
    next: Any = None
    tail: Any = None
    event: Any = None
    past: Any = None
    answer: Any = None

    def order(self) -> tuple[float, int]:
        """Return the time at which it leaves its sender, and the sender: wildcards take the smallest one."""
        return self.end, self.source

    def copy_data(self) -> None:
        """Copy the elements, so that the sender can change its buffer."""
        if self.data is None and self.payload.dtype is not OBJECT:
            self.data = self.payload.copy()


@dataclass(slots=True, eq=False)
class Receive:
    """Receive that a rank has posted.

    Attributes:
        target: the buffer to fill, or OBJECT_TARGET.
        name: name of the method that receives; ``site``: its place in the program.
        direct: True if the data may be written at once, because the rank is blocked in this call.
        posted: modelled time at which it was posted; ``end``: time at which it is complete, below 0 until its rank
            completes it.
        message: the matched message, or None.
        before: the contents of the buffer when it was posted, to detect that the program changed them.
        event: its event in the record of the run, or None.
        truncation: the error of a message that is longer than the buffer. Completing the receive raises it.
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
    end: float = -1.0
    done: bool = False
    number: int = 0
    message: Message | None = None
    before: Any = None
    event: Any = None
    truncation: Any = None
    waiter: Any = None

    def accepts(self, source: int, tag: int) -> bool:
        """Return True if the receive accepts a message with this source and tag; a wildcard accepts all."""
        return self.source in (source, ANY_SOURCE) and self.tag in (tag, ANY_TAG)


@dataclass(slots=True, eq=False)
class Probing:
    """A blocking probe, which waits for a message and leaves it in the mailbox."""

    comm: Any
    task: Task
    dest: int
    source: int
    tag: int
    name: str
    done: bool = False
    message: Message | None = None
    waiter: Any = None


class JointWait:
    """The wait of the running thread for several operations.

    Args:
        scheduler: the simulation.
        operations: different operations, some of them incomplete.
        every: True to wait for all of them, False to wait for any one.
    """

    __slots__ = ("every", "open_count", "operations", "scheduler", "thread")

    def __init__(self, scheduler: Scheduler, operations: list[Any], every: bool) -> None:
        self.scheduler = scheduler
        self.thread = scheduler.current
        self.operations = operations
        self.every = every
        self.open_count = 0
        for operation in operations:
            if not operation.done:
                operation.waiter = self
                self.open_count += 1

    def count_complete(self) -> None:
        """Count a completed operation, and wake the rank if its wait is over.

        A wait for all operations is over when no operation is open. A wait for any one operation is over at once; the
        other operations then do not wake the rank again.
        """
        self.open_count -= 1
        if not self.every:
            for operation in self.operations:
                if operation.waiter is self:
                    operation.waiter = None
        if self.open_count == 0 or not self.every:
            self.scheduler.wake(self.thread)


def finish(scheduler: Scheduler, operation: Any) -> None:
    """Mark an operation complete, and wake the rank that waits for it.

    A rank that waits for several operations is woken only when its `JointWait` is over. Nothing is woken if no rank
    waits.

    Args:
        scheduler: the simulation.
        operation: a message, receive, probe or collective call.
    """
    operation.done = True
    waiter = operation.waiter
    if waiter is not None:
        operation.waiter = None
        if type(waiter) is JointWait:
            waiter.count_complete()
        else:
            scheduler.wake(waiter)


def wait_for(scheduler: Scheduler, operation: Any) -> None:
    """Block the running rank until an operation is complete; return at once if it is.

    Args:
        scheduler: the simulation.
        operation: a message, receive, probe or collective call of the running rank.
    """
    if not operation.done:
        operation.waiter = scheduler.current
        scheduler.block(operation)


class Mailbox:
    """The messages that arrived at one rank and were not received, and its posted receives without a message.

    Attributes:
        arrived: the first message of each source; its ``next`` leads to the later ones.
        posted: nonblocking receives by (source, tag), in the order posted.
        wild: nonblocking receives with a wildcard, in the order posted.
        blocked: the receive in which the rank is blocked, or None; it was posted after all others.
        probes: blocking probes.
        count: number of receives and messages so far, to number the next one.
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
        """Add a receive that has no message yet, and number it.

        If the rank is blocked in the receive, the receive becomes ``blocked``. Otherwise it is appended to ``wild``
        if it has a wildcard, or else to ``posted``.
        """
        self.count += 1
        receive.number = self.count
        if receive.direct:
            self.blocked = receive
        elif receive.source == ANY_SOURCE or receive.tag == ANY_TAG:
            self.wild.append(receive)
        else:
            self.posted.setdefault((receive.source, receive.tag), deque()).append(receive)

    def find_receive(self, source: int, tag: int) -> Receive | None:
        """Return the first posted receive that accepts a source and tag, or None; do not remove it.

        The receive in which the rank is blocked comes last, because it was posted after all others.
        """
        exact = self.posted.get((source, tag)) if self.posted else None
        for receive in self.wild:
            if receive.accepts(source, tag):
                return exact[0] if exact and exact[0].number < receive.number else receive
        if exact:
            return exact[0]
        blocked = self.blocked
        return blocked if blocked is not None and blocked.accepts(source, tag) else None

    def remove_receive(self, receive: Receive) -> None:
        """Remove the receive that ``find_receive`` returned, because a message satisfies it.

        The receive must be the blocked one, one with a wildcard, or the first one of its source and tag. That is not
        checked.
        """
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
        """Remove a receive that no message has matched yet; return True if it was posted here.

        If it is not in the mailbox, because a message has matched it or it was withdrawn before, change nothing and
        return False.

        Args:
            receive: a nonblocking receive, which the program cancels.
        """
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

    def posted_receives(self) -> list[Receive]:
        """Return all posted receives in the order posted; the one in which the rank is blocked comes last."""
        receives = [*self.wild, *(receive for queue in self.posted.values() for receive in queue)]
        receives.sort(key=lambda receive: receive.number)
        return receives if self.blocked is None else [*receives, self.blocked]

    def is_held_back(self, message: Message, number: float = inf) -> bool:
        """Return True if an undecided wildcard receive may take a message first.

        Args:
            message: a message in the mailbox.
            number: only receives that were posted before the one with this number count.
        """
        return any(
            receive.source == ANY_SOURCE
            and receive.number < number
            and receive.accepts(message.source, message.tag)
            for receive in self.wild
        )

    # ------------------------------------------------------------------ messages

    def put(self, message: Message) -> None:
        """Append a message to the chain of its source, and number it.

        A chain is a linked list: ``arrived`` has the first message of a source, ``next`` leads to the later ones.
        """
        self.count += 1
        message.number = self.count
        first = self.arrived.get(message.source)
        if first is None:
            self.arrived[message.source] = message
        else:
            last = first.tail or first  # the only message of a chain has no ``tail``
            last.next = message
            first.tail = message

    def find(self, source: int, tag: int, random: Any = None) -> Message | None:
        """Return the message that a receive would match now, or None; do not remove it.

        Args:
            source: rank or ANY_SOURCE.
            tag: number or ANY_TAG.
            random: generator that draws one of the sources that have such a message; None takes the message that
                leaves its sender first in modelled time, and of equal ones that of the lowest rank.
        """
        if source != ANY_SOURCE:
            return _first_with_tag(self.arrived.get(source), tag)
        firsts = [_first_with_tag(first, tag) for first in self.arrived.values()]
        candidates = [message for message in firsts if message is not None]
        if random is not None and candidates:
            result: Message = random.choice(sorted(candidates, key=lambda message: message.source))
            return result
        return min(candidates, key=Message.order, default=None)

    def take(self, source: int, tag: int, random: Any = None) -> Message | None:
        """Find a message as ``find`` does, and remove it; return None if there is none."""
        message = self.find(source, tag, random)
        if message is not None:
            self.remove(message)
        return message

    def remove(self, message: Message) -> None:
        """Remove a message from the chain of its source, wherever it is in it.

        A chain is a linked list of the messages that came from one source: ``arrived`` has the first one, ``next``
        leads to the later ones, and the first one's ``tail`` is the last one. A message alone has no ``tail``. For
        example, from a → b → c (the tail of a is c) without b remains a → c; without c remains a → b (the tail of a is
        b). A source without messages has no entry in ``arrived``. The removed message has neither ``next`` nor
        ``tail``.

        Args:
            message: a message in the mailbox. Any other message raises KeyError or AttributeError.
        """
        first = self.arrived[message.source]
        later = message.next
        if first is message:
            if later is None:
                del self.arrived[message.source]
            else:
                # The next message becomes the first one. It needs no ``tail`` if it is also the last one.
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
        """Insert a removed message as the first one of its source; its number stays."""
        later = self.arrived.get(message.source)
        if later is not None:
            # The first message of a chain has the reference to the last one, so ``message`` takes it over.
            message.next, message.tail, later.tail = later, later.tail or later, None
        self.arrived[message.source] = message

    def waiting_messages(self) -> list[Message]:
        """Return all messages that arrived and were not received, in sending order."""
        messages = [message for first in self.arrived.values() for message in _chain(first)]
        return sorted(messages, key=lambda message: message.number)


def _chain(message: Message | None) -> Iterator[Message]:
    """Yield a message and all later messages of its source."""
    while message is not None:
        yield message
        message = message.next


def _first_with_tag(message: Message | None, tag: int) -> Message | None:
    """Return the first message of a chain that has a tag, or None."""
    while message is not None and tag not in (message.tag, ANY_TAG):
        message = message.next
    return message


try:
    import greenlet
except ImportError:  # ``load_greenlet`` reports it when a simulation starts
    getcurrent: Any = None
else:
    getcurrent = greenlet.getcurrent


class Endpoint:
    """A rank's end of a communicator.

    Attributes:
        shared: the state that all ranks of the communicator share.
        rank: the rank in the communicator.
        task: the rank of the program.
        scheduler: the simulation.
        box: the rank's mailbox; ``boxes``: the mailboxes of all ranks.
    """

    __slots__ = ("box", "boxes", "rank", "scheduler", "shared", "size", "task")

    def __init__(self, shared: Any, rank: int, task: Task) -> None:
        self.shared, self.rank, self.task = shared, rank, task
        self.scheduler: Scheduler = shared.scheduler
        self.boxes, self.size = shared.boxes, shared.size
        self.box = shared.own_boxes[rank]

    def refuse_revoked(self, name: str) -> None:
        """Raise an MPI error (ERR_REVOKED) if a rank has revoked the communicator; ``name`` is the method."""
        if self.shared.is_revoked:
            raise MPIError(
                "ERR_REVOKED", f"{name}: the communicator has been revoked; call Shrink for a new one"
            )

    def running(self) -> Task:
        """Return the task of the rank; raise an error if another rank or another thread runs."""
        task = self.task
        if task.greenlet is not getcurrent():
            self._check_running()
        return task

    def _check_running(self) -> None:
        """End the run if another rank calls, or a thread that may not call MPI."""
        if get_ident() != self.scheduler.thread:
            self.scheduler.refuse_thread(self.task, sys._getframe(1))
        if self.task is not self.scheduler.current.task:
            self._fail_foreign_handle()
        if self.task is not self.scheduler.current and 0 <= self.task.thread_level < THREAD_MULTIPLE:
            is_serialized = self.task.thread_level == THREAD_SERIALIZED
            faults.check_thread_level(self.scheduler, is_serialized, sys._getframe(1))

    def _fail_foreign_handle(self) -> NoReturn:
        """End the run with the error "shared_communicator": the running rank uses another rank's handle."""
        running_task, task = self.scheduler.current, self.task
        location = place_in_stack(running_task.rank, sys._getframe(1))
        text = (
            f"rank {running_task.rank} uses rank {task.rank}'s handle of {self.shared.name} in {location}: the handle is in "
            "a variable that virtual ranks share; in a real run each rank has its own variable"
        )
        self.scheduler.fail(
            Problem("shared_communicator", ERROR, text, (running_task.rank, task.rank), (location,))
        )
