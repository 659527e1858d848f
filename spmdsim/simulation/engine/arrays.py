"""The short way of what programs do most: blocking messages of whole numpy arrays and of objects, nothing special about them.

The general way (:mod:`spmdsim.simulation.engine.transfer`) is a dozen small functions and an object for each end of a message.
Here the same is done in one piece, the times of ``depart`` and ``arrive`` included: a rank can be blocked in one call
only, so it has one message and one receive that it uses again and again, and the end that comes second
takes the contents and needs neither. Whatever is unusual (another shape or type at the other end, a nonblocking
receive, a timeline) is declined before anything has changed, and left to the general way. What waits here looks like
everything else that waits, so it is found and explained in the same words.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, Final

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, TAG_UB_VALUE
from spmdsim.simulation.data.message_buffers import OBJECT, OBJECT_TARGET
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.endpoint import Endpoint, getcurrent
from spmdsim.simulation.engine.mailboxes import Message, Receive, finish
from spmdsim.simulation.engine.scheduler import FLOOD
from spmdsim.simulation.engine.transfer import received
from spmdsim.simulation.findings.code_places import Site, site_in_stack, site_key


class Declined(Enum):
    """What the short way says of anything unusual."""

    DECLINED = "left to the general way"


DECLINED: Final = Declined.DECLINED


def offer(
    here: Endpoint, array: Any, dest: int, tag: int, name: str, wait: bool
) -> Message | Declined | None:
    """Send an array or an object.

    Args:
        here: the sender's end of the communicator.
        array: a contiguous numpy array, or an object's payload.
        dest: rank of the receiver.
        tag: tag of the message.
        name: the call.
        wait: until it is received, if it has to; if not, go no further than to the mailbox of its receiver.

    Returns:
        None if it was received, the message if it waits, DECLINED if this is no plain message.
    """
    scheduler = here.scheduler
    if not (0 <= dest < here.size and 0 <= tag <= TAG_UB_VALUE and scheduler.timeline is None):
        return DECLINED
    task, box, source = here.task, here.boxes[dest], here.rank
    if task.greenlet is not getcurrent():
        here.running()
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
    clock = start = task.clock
    if start < task.port_out:
        start = task.port_out
    link = scheduler.plain or scheduler.link((task.rank, here.shared.ranks[dest]), nbytes)
    moving = link.beta * nbytes
    task.port_out = end = start + link.alpha + moving
    task.messages_sent += 1
    task.bytes_sent += nbytes
    if receive is None:
        message = here.message
        if scheduler.buffered_sites or message.cached_payload is not None:
            message = _another_own(here, array)
        else:
            message.array, message.done, message.known_site = array, False, None
        message.dest, message.tag, message.name = dest, tag, name
        message.start, message.end = start, end
        if source in box.arrived:
            box.put(message)
        else:
            box.count = message.number = box.count + 1
            box.arrived[source] = message
        if not wait:
            return message
        if not message.done:
            message.waiter = task
            scheduler.block(message)
            message.array = None
        if message.end > task.clock:
            task.clock = message.end
        return None
    if target is OBJECT_TARGET:
        receive.array = array
    else:
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
    scheduler.polls = 0
    waiter = receive.waiter
    if waiter is receiver:
        receive.waiter = None
        scheduler.ready.append(receiver)
    elif waiter is not None:
        finish(scheduler, receive)
    if end > clock:
        task.clock = end
    return None


def _another_own(here: Endpoint, array: Any) -> Message:
    """Another message for a rank whose own one may stay in a mailbox, or is still looked at by the general way."""
    buffered = here.scheduler.buffered_sites
    here.message = message = here.new_message()
    message.array = array
    if buffered:
        message.known_site = site_in_stack(here.task)
        if site_key(message.known_site) in buffered:
            message.array = array if array.dtype is OBJECT else array.copy()
            message.done = True
    return message


def ask(
    here: Endpoint, array: Any, source: int, tag: int, status: Status | None, name: str, wait: bool
) -> Receive | Declined | Any:
    """Receive into an array, or an object.

    Args:
        here: the receiver's end of the communicator.
        array: a contiguous, aligned and writeable numpy array, or what stands for an object to come.
        source: rank of the sender, or ANY_SOURCE.
        tag: tag of the message, or ANY_TAG.
        status: is told of the message.
        name: the call.
        wait: until it is there, if it is not.

    Returns:
        The object that was received, if it is one; the receive if it waits, DECLINED if this is no plain receive.
    """
    box, scheduler = here.box, here.scheduler
    if scheduler.timeline is not None:
        return DECLINED
    arrived = box.arrived
    message = arrived.get(source)
    if message is None:
        if not (tag >= 0 or tag == ANY_TAG):
            return DECLINED
        if source == ANY_SOURCE:
            if arrived:
                if scheduler.random is not None:
                    return DECLINED
                message = box.find(source, tag)
        elif not 0 <= source < here.size:
            return DECLINED
    task = here.task
    if task.greenlet is not getcurrent():
        here.running()
    if message is None:
        receive = here.receive
        receive.array, receive.source, receive.tag, receive.name = array, source, tag, name
        receive.posted, receive.done = task.clock, False
        receive.cached_target = receive.message = None
        receive.known_site = None if source != ANY_SOURCE else _site(wait)
        box.blocked = receive
        if not wait:
            return receive
        receive.waiter = task
        scheduler.block(receive)
        return got(receive, status)
    sent = message.array
    if (
        sent is None
        or sent.dtype is not array.dtype
        or sent.shape != array.shape
        or not (tag == message.tag or tag == ANY_TAG)
    ):
        return DECLINED
    sender = message.task
    if source == ANY_SOURCE:
        task.caught[sender.rank] = (name, _site(wait))
    if message.next is None and arrived[message.source] is message:  # the only one: what is removed most
        del arrived[message.source]
    else:
        box.remove(message)
    nbytes = sent.nbytes
    if array is not OBJECT_TARGET:
        array[...] = sent
    link = scheduler.plain or scheduler.link((sender.rank, task.rank), nbytes)
    arrival = task.port_in + link.beta * nbytes
    if arrival < message.end:
        arrival = message.end
    task.port_in = arrival
    if arrival > task.clock:
        task.clock = arrival
    message.done = True
    scheduler.polls = 0
    waiter = message.waiter
    if waiter is sender:
        message.waiter = None
        scheduler.ready.append(waiter)
    elif waiter is not None:
        finish(scheduler, message)
    if task.ahead or task.flood is not None:
        task.settle()
    else:  # the same, quickly
        task.to, task.count = None, 0
    if status is not None:
        status.fill(message.source, message.tag, nbytes)
    return sent.load() if array is OBJECT_TARGET else None


def _site(blocking: bool) -> Site:
    """The user's line: above a blocking call and the function here that it has called, or one more."""
    frame = sys._getframe(3 if blocking else 4)
    return frame.f_code, frame.f_lasti


def got(receive: Receive, status: Status | None) -> Any:
    """The rank goes on after the receive it waited for; an object is returned."""
    came = receive.array
    if receive.message is not None or came is None:  # one of the ends took the general way
        return received(receive, status)
    task = receive.task
    if receive.end > task.clock:
        task.clock = receive.end
    if task.ahead or task.flood is not None:
        task.settle()
    else:
        task.to, task.count = None, 0
    if status is not None:
        status.fill(receive.source, receive.tag, came.nbytes)
    receive.array = None  # it is the user's
    return came.load() if came.dtype is OBJECT else None
