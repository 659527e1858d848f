"""The short way of what programs do most: Send, Recv and Sendrecv of whole numpy arrays, nothing special about them.

The general way (:mod:`spmdsim.simulation.engine.transfer`) is a dozen small functions and an object for each end of a message.
Here the same is done in one piece, the times of ``depart`` and ``arrive`` included: a rank can be blocked in one call
only, so it has one message and one receive that it uses again and again, and the end that comes second
copies the array and needs neither. Whatever is unusual (another shape or type at the other end, a nonblocking
receive, a timeline) is declined before anything has changed, and left to the general way. What waits here looks like
everything else that waits, so it is found and explained in the same words.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, Final

try:
    from greenlet import getcurrent
except ImportError:  # said in one line when a simulation begins
    getcurrent = None

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, TAG_UB_VALUE
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import Message, Receive, finish
from spmdsim.simulation.engine.scheduler import FLOOD, Task
from spmdsim.simulation.engine.transfer import received
from spmdsim.simulation.findings.code_places import site_key


class Declined(Enum):
    """What the short way says of anything unusual."""

    DECLINED = "left to the general way"


DECLINED: Final = Declined.DECLINED
_frame = sys._getframe


def own_message(comm: Any, task: Task) -> Message:
    """The message that a rank can be blocked in."""
    return Message(comm._shared, task, None, None, comm._rank, -1, 0, "", None, 0.0, 0.0)


def own_receive(comm: Any, task: Task) -> Receive:
    """The receive that a rank can be blocked in."""
    return Receive(comm._shared, task, None, None, -1, comm._rank, 0, "", None, True)


def offer(comm: Any, array: Any, dest: int, tag: int, name: str, depth: int) -> Message | Declined | None:
    """Send an array, as far as the mailbox of its receiver.

    Args:
        comm: the sender's handle.
        array: any numpy array.
        dest: rank of the receiver.
        tag: tag of the message.
        name: the call.
        depth: calls between here and the user's line.

    Returns:
        None if it was received at once, the message if it waits, DECLINED if this is no plain message.
    """
    scheduler, shared = comm._scheduler, comm._shared
    if not (
        0 <= dest < shared.size
        and 0 <= tag <= TAG_UB_VALUE
        and array.flags.c_contiguous
        and scheduler.timeline is None
    ):
        return DECLINED
    task, box, source = comm._holder, shared.boxes[dest], comm._rank
    if task.greenlet is not getcurrent():
        task = comm._task
    receive = box.blocked
    target: Any = None
    if receive is not None:
        target = receive.array
        if receive.source not in (source, ANY_SOURCE) or receive.tag not in (tag, ANY_TAG):
            receive = None
        elif target is None or target.dtype is not array.dtype or target.shape != array.shape:
            return DECLINED
    if box.posted or box.wild or box.probes or task.count >= FLOOD - 1:
        return DECLINED
    nbytes = array.nbytes
    if task.to is None:
        task.to, task.count, task.nbytes = box, 1, nbytes
    else:
        task.count_ahead(box, nbytes)
    start = task.clock
    if start < task.port_out:
        start = task.port_out
    link = scheduler.plain or scheduler.link((shared.ranks[source], shared.ranks[dest]), nbytes)
    moving = link.beta * nbytes
    task.port_out = end = start + link.alpha + moving
    task.messages_sent += 1
    task.bytes_sent += nbytes
    if receive is None:
        message: Message = comm._own_message
        if scheduler.buffered_sites or message.cached_payload is not None:
            message = _another_own(comm, array, depth)
        else:
            message.array, message.done, message.known_site = array, False, None
        message.dest, message.tag, message.name = dest, tag, name
        message.start, message.end = start, end
        if source in box.arrived:
            box.put(message)
        else:
            box.count = message.number = box.count + 1
            box.arrived[source] = message
        return message
    target[...] = array
    receiver = receive.task
    if receive.source == ANY_SOURCE:
        receiver.caught[task.rank] = (receive.name, receive.site)
    receive.source, receive.tag = source, tag
    arrival = receiver.port_in + moving
    if arrival < end:
        arrival = end
    receiver.port_in = arrival
    receive.end = arrival if arrival > receive.posted else receive.posted
    box.blocked = None
    receive.done = True
    waiter = receive.waiter
    if waiter is receiver:
        receive.waiter, scheduler.polls = None, 0
        scheduler.ready.append(receiver)
    elif waiter is not None:
        finish(scheduler, receive)
    if end > task.clock:
        task.clock = end
    return None


def _another_own(comm: Any, array: Any, depth: int) -> Message:
    """Another message for a rank whose own one may stay in a mailbox, or is still looked at by the general way."""
    buffered = comm._scheduler.buffered_sites
    message: Message = own_message(comm, comm._task)
    comm._own_message, message.array = message, array
    if buffered:
        frame = _frame(depth + 1)
        message.known_site = (frame.f_code, frame.f_lasti)
        if site_key(message.known_site) in buffered:
            message.array, message.done = array.copy(), True
    return message


def ask(
    comm: Any, array: Any, source: int, tag: int, status: Status | None, name: str
) -> Receive | Declined | None:
    """Receive into an array.

    Returns:
        None if the message was there, the receive if it waits, DECLINED if this is no plain receive.
    """
    box, scheduler = comm._box, comm._scheduler
    if scheduler.timeline is not None or not array.flags.carray:  # contiguous, aligned and writeable
        return DECLINED
    message = box.arrived.get(source)
    if message is None and not (
        (0 <= source < comm._shared.size or (source == ANY_SOURCE and not box.arrived))
        and (tag >= 0 or tag == ANY_TAG)
    ):
        return DECLINED
    task = comm._holder
    if task.greenlet is not getcurrent():
        task = comm._task
    if message is None:
        receive: Receive = comm._own_receive
        receive.array, receive.source, receive.tag, receive.name = array, source, tag, name
        receive.posted, receive.done = task.clock, False
        receive.known_site = receive.cached_target = receive.message = None
        box.blocked = receive
        return receive
    sent = message.array
    if (
        sent is None
        or sent.dtype is not array.dtype
        or sent.shape != array.shape
        or not (tag == message.tag or tag == ANY_TAG)
    ):
        return DECLINED
    if message.next is None:  # the only one: what is removed most
        del box.arrived[source]
        message.tail = None
    else:
        box.remove(message)
    array[...] = sent
    link = scheduler.plain or scheduler.link((message.task.rank, task.rank), array.nbytes)
    arrival = task.port_in + link.beta * array.nbytes
    if arrival < message.end:
        arrival = message.end
    task.port_in = arrival
    if arrival > task.clock:
        task.clock = arrival
    message.done = True
    waiter = message.waiter
    if waiter is message.task:
        message.waiter, scheduler.polls = None, 0
        scheduler.ready.append(waiter)
    elif waiter is not None:
        finish(scheduler, message)
    if task.ahead or task.flood is not None:
        task.settle()
    else:  # the same, quickly
        task.to, task.count = None, 0
    if status is not None:
        status.fill(source, message.tag, array.nbytes)
    return None


def got(receive: Receive, status: Status | None) -> None:
    """The rank goes on after the receive it waited for."""
    if receive.message is not None or receive.array is None:  # one of the ends took the general way
        received(receive, status)
        return
    task = receive.task
    if receive.end > task.clock:
        task.clock = receive.end
    if task.ahead or task.flood is not None:
        task.settle()
    else:
        task.to, task.count = None, 0
    if status is not None:
        status.fill(receive.source, receive.tag, receive.array.nbytes)
    receive.array = None  # it is the user's
