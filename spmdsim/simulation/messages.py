"""Messages, receives, and how they find each other.

Each rank of a communicator has one mailbox. Exact matches go through a table keyed by (source, tag); only
wildcards look further. Order is MPI's: of several that fit, the one sent, or posted, first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from spmdsim.simulation.buffers import OBJECT, simple
from spmdsim.simulation.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.places import Site

if TYPE_CHECKING:
    from spmdsim.simulation.scheduler import Scheduler, Task

STANDARD, SYNCHRONOUS, BUFFERED, READY = "standard", "synchronous", "buffered", "ready"


class Message:
    """One send.

    Attributes:
        source: rank of the sender in the communicator; ``dest`` of the receiver.
        array: a contiguous array that is the whole message, for as long as copying it is all there is to do.
        data: a private copy of the elements, once one was needed.
        done: the sender may go on: it was received, or somebody else keeps the data.
        relieved: it would have blocked for ever without a library's buffer.
    """

    __slots__ = (
        *("comm", "task", "array", "_payload", "source", "dest", "tag", "mode", "name", "site"),
        *("start", "end", "number", "data", "done", "relieved", "waiter"),
    )

    def __init__(
        self,
        comm: Any,
        task: Task,
        payload: Any,
        array: Any,
        source: int,
        dest: int,
        tag: int,
        mode: str,
        name: str,
        site: Site,
        start: float,
        end: float,
    ) -> None:
        self.comm = comm  # what all ranks of the communicator share
        self.task = task
        self._payload = payload
        self.array = array
        self.source = source
        self.dest = dest
        self.tag = tag
        self.mode = mode
        self.name = name
        self.site = site
        self.start = start
        self.end = end
        self.number = 0
        self.data: Any = None
        self.done = False
        self.relieved: Any = None
        self.waiter: Any = None

    @property
    def payload(self) -> Any:
        """The buffer or object; the one of an array is made when somebody asks."""
        if self._payload is None:
            self._payload = simple(self.array)
        return self._payload

    def keep(self) -> None:
        """Copy the data, so that the sender may change its buffer."""
        if self.data is None and self.payload.dtype is not OBJECT:
            self.data = self.payload.copy()
        self.array = None


class Receive:
    """One receive.

    Attributes:
        array: a contiguous array to receive into, if that is all that was asked for.
        message: what it got, once matched; None also when an array was written without one.
        direct: the data may be written at once, because the rank is blocked in this very call.
        before: the buffer's contents when it was posted, to notice that the program changed them.
    """

    __slots__ = (
        *("comm", "task", "array", "_target", "source", "dest", "tag", "name", "site", "direct"),
        *("posted", "end", "number", "done", "message", "before", "waiter"),
    )

    def __init__(
        self,
        comm: Any,
        task: Task,
        target: Any,
        array: Any,
        source: int,
        dest: int,
        tag: int,
        name: str,
        site: Site,
        direct: bool,
    ) -> None:
        self.comm = comm
        self.task = task
        self._target = target
        self.array = array
        self.source = source
        self.dest = dest
        self.tag = tag
        self.name = name
        self.site = site
        self.direct = direct
        self.posted = task.clock
        self.end = 0.0
        self.number = 0
        self.done = False
        self.message: Message | None = None
        self.before: Any = None
        self.waiter: Any = None

    @property
    def target(self) -> Any:
        """The buffer it writes to; the one of an array is made when somebody asks."""
        if self._target is None:
            self._target = simple(self.array)
        return self._target


class Probing:
    """A blocking probe: it waits for a message without taking it."""

    __slots__ = ("comm", "dest", "done", "message", "name", "source", "tag", "task", "waiter")

    def __init__(self, comm: Any, task: Task, dest: int, source: int, tag: int, name: str) -> None:
        self.comm = comm
        self.task = task
        self.dest = dest
        self.source = source
        self.tag = tag
        self.name = name
        self.done = False
        self.message: Message | None = None
        self.waiter: Any = task


class Together:
    """A rank waiting for several operations: for all of them, or for any one."""

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
        """One operation is done."""
        self.left -= 1
        if (self.left == 0) if self.every else (self.left >= 0):
            if not self.every:
                self.release()
            self.scheduler.wake(self.task)

    def release(self) -> None:
        """Stop listening to the operations that are still open."""
        self.left = 0
        for operation in self.operations:
            if operation.waiter is self:
                operation.waiter = None


def finish(scheduler: Scheduler, operation: Any) -> None:
    """Mark an operation done and let whoever waits for it go on."""
    operation.done = True
    waiter = operation.waiter
    if waiter is not None:
        operation.waiter = None
        if type(waiter) is Together:
            waiter.completed()
        else:
            scheduler.wake(waiter)


def wait_for(scheduler: Scheduler, operation: Any) -> None:
    """Block the running rank until one operation is done."""
    if not operation.done:
        operation.waiter = operation.task
        scheduler.block(operation)


class Mailbox:
    """What has arrived at one rank and is not received, and what it has posted and not got.

    Attributes:
        arrived: messages by (source, tag), in the order sent.
        posted: receives by (source, tag), in the order posted.
        wild: receives with a wildcard.
        blocked: the receive the rank stands in, which is younger than all others; it has no wildcard.
        probes: blocking probes.
    """

    __slots__ = ("arrived", "blocked", "posted", "probes", "wild")

    def __init__(self) -> None:
        self.blocked: Receive | None = None
        self.arrived: dict[tuple[int, int], deque[Message]] = {}
        self.posted: dict[tuple[int, int], deque[Receive]] = {}
        self.wild: list[Receive] = []
        self.probes: list[Probing] = []

    def take_receive(self, message: Message) -> Receive | None:
        """The receive that this message satisfies, removed; None if nobody waits for it."""
        source, tag = message.source, message.tag
        exact = self.posted.get((source, tag)) if self.posted else None
        for position, receive in enumerate(self.wild):
            if receive.source in (ANY_SOURCE, source) and receive.tag in (ANY_TAG, tag):
                if exact and exact[0].number < receive.number:
                    break
                return self.wild.pop(position)
        if exact:
            return self._take_exact(source, tag)
        blocked = self.blocked
        if blocked is not None and blocked.source == source and blocked.tag == tag:
            self.blocked = None
            return blocked
        return None

    def _take_exact(self, source: int, tag: int) -> Receive:
        queue = self.posted[source, tag]
        receive = queue.popleft()
        if not queue:
            del self.posted[source, tag]
        return receive

    def post(self, receive: Receive) -> None:
        """Let a receive wait here."""
        if receive.source == ANY_SOURCE or receive.tag == ANY_TAG:
            self.wild.append(receive)
            return
        if receive.direct:
            self.blocked = receive
            return
        key = (receive.source, receive.tag)
        queue = self.posted.get(key)
        if queue is None:
            self.posted[key] = deque((receive,))
        else:
            queue.append(receive)

    def put(self, message: Message) -> None:
        """Let a message wait here."""
        key = (message.source, message.tag)
        queue = self.arrived.get(key)
        if queue is None:
            self.arrived[key] = deque((message,))
        else:
            queue.append(message)

    def find(self, source: int, tag: int, random: Any = None) -> Message | None:
        """The message a receive would get now; it stays here.

        Args:
            source: rank or ANY_SOURCE.
            tag: number or ANY_TAG.
            random: draws among the sources when several could be first; None takes the one sent first.
        """
        if source != ANY_SOURCE and tag != ANY_TAG:
            queue = self.arrived.get((source, tag))
            return queue[0] if queue else None
        first: dict[int, Message] = {}  # a source's messages stay in order, whatever their tags
        for (sender, label), queue in self.arrived.items():
            if source in (ANY_SOURCE, sender) and tag in (ANY_TAG, label):
                known = first.get(sender)
                if known is None or queue[0].number < known.number:
                    first[sender] = queue[0]
        if not first:
            return None
        if random is not None:
            return first[random.choice(sorted(first))]
        return min(first.values(), key=lambda message: message.number)

    def take(self, source: int, tag: int, random: Any = None) -> Message | None:
        """As find, but the message is taken out."""
        key = (source, tag)
        queue = self.arrived.get(key)  # wildcards are no keys
        if queue is None:
            if source != ANY_SOURCE and tag != ANY_TAG:
                return None
            message = self.find(source, tag, random)
            if message is not None:
                self.remove(message)
            return message
        message = queue.popleft()
        if not queue:
            del self.arrived[key]
        return message

    def remove(self, message: Message) -> None:
        """Take a message out."""
        key = (message.source, message.tag)
        queue = self.arrived[key]
        if queue[0] is message:
            queue.popleft()
        else:
            queue.remove(message)
        if not queue:
            del self.arrived[key]

    def withdraw(self, receive: Receive) -> bool:
        """Take a receive out that has not matched; False if it is not here."""
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

    def waiting_messages(self) -> list[Message]:
        """Everything that has arrived and is not received, in the order sent."""
        found = [message for queue in self.arrived.values() for message in queue]
        return sorted(found, key=lambda message: message.number)
