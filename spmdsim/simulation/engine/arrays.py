"""The short way of what programs do most: messages of whole numpy arrays and of objects, nothing special about them.

The general way (:mod:`spmdsim.simulation.engine.transfer`) is a dozen small functions and an object for each end of a message.
Here the same is done in one piece, the times of ``depart`` and ``arrive`` included: a rank can be blocked in one call
only, so it has one message and one receive that it uses again and again, and the end that comes second
takes the contents and needs neither. Whatever is unusual (another shape or type at the other end, a wildcard of a
nonblocking receive, a timeline) is declined before anything has changed, and left to the general way. What waits here looks like
everything else that waits, so it is found and explained in the same words.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, Final, cast

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, TAG_UB_VALUE
from spmdsim.simulation.data.message_buffers import OBJECT, OBJECT_TARGET
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import Endpoint, Message, Receive, finish, getcurrent
from spmdsim.simulation.engine.scheduler import FLOOD
from spmdsim.simulation.engine.transfer import arrive, received
from spmdsim.simulation.findings.problems import Site, site_in_stack, site_key


class Declined(Enum):
    """What the short way says of anything unusual."""

    DECLINED = "left to the general way"


DECLINED: Final = Declined.DECLINED


def offer(
    here: Endpoint,
    array: Any,
    dest: int,
    tag: int,
    name: str,
    wait: bool,
    begun: Message | None = None,
) -> Message | Declined | None:
    """Send an array or an object.

    Args:
        here: the sender's end of the communicator.
        array: a contiguous numpy array, or an object's payload.
        dest: rank of the receiver.
        tag: tag of the message.
        name: the call.
        wait: until it is received, if it has to; if not, go no further than to the mailbox of its receiver.
        begun: the message of a nonblocking call, to which the array belongs.

    Returns:
        None if it was received, the message if it waits or has begun, DECLINED if this is no plain message.
    """
    scheduler = here.scheduler
    if not (0 <= dest < here.size and 0 <= tag <= TAG_UB_VALUE and scheduler.timeline is None):
        return DECLINED
    task, box, source = here.task, here.boxes[dest], here.rank
    if task.greenlet is not getcurrent():
        here.running()
    receive = box.first_fit(source, tag) if box.posted or box.wild else box.blocked
    target: Any = None
    if receive is not None:
        target = receive.array
        if receive.source not in (source, ANY_SOURCE) or receive.tag not in (tag, ANY_TAG):
            receive = None
        elif target is None or target.dtype is not array.dtype or target.shape != array.shape:
            return DECLINED
    if box.probes or task.count >= FLOOD - 1:
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
    message: Any = begun
    if message is not None:
        message.array, message.dest, message.tag, message.name = array, dest, tag, name
        message.start, message.end = start, end
    if receive is None:
        if message is None:
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
            return cast(Message, message)
        if not message.done:
            message.waiter = task
            scheduler.block(message)
            message.array = None
        if message.end > task.clock:
            task.clock = message.end
        return None
    receiver = receive.task
    if receive.source == ANY_SOURCE:
        receiver.caught[task.rank] = (receive.name, receive.site)
    if receive.direct:
        box.blocked = None
        receive.source, receive.tag = source, tag
        if target is OBJECT_TARGET:
            receive.array = array
        else:
            target[...] = array
    else:
        box.take_out(receive)
        kept = array if message is not None or target is OBJECT_TARGET else array.copy()
        receive.data = kept, source, tag
    arrival = receiver.port_in + moving
    if arrival < end:
        arrival = end
    receiver.port_in = arrival
    receive.end = arrival if arrival > receive.posted else receive.posted
    receive.done = True
    scheduler.polls = 0
    waiter = receive.waiter
    if waiter is receiver:
        receive.waiter = None
        scheduler.ready.append(receiver)
    elif waiter is not None:
        finish(scheduler, receive)
    if message is not None:
        message.done = True
        return cast(Message, message)
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


def _plain_message(here: Endpoint, array: Any, source: int, tag: int) -> Message | Declined | None:
    """The message that a receive would get now, if it is like the array; None if there is none."""
    scheduler, arrived = here.scheduler, here.box.arrived
    if scheduler.timeline is not None:
        return DECLINED
    message = arrived.get(source)
    if message is None:
        if tag < 0 and tag != ANY_TAG:
            return DECLINED
        if source != ANY_SOURCE:
            return None if 0 <= source < here.size else DECLINED
        if not arrived:
            return None
        if scheduler.random is not None:
            return DECLINED
        message = here.box.find(source, tag)
        if message is None:
            return None
    sent = message.array
    if sent is None or sent.dtype is not array.dtype or sent.shape != array.shape:
        return DECLINED
    return message if tag == message.tag or tag == ANY_TAG else DECLINED


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
    message = _plain_message(here, array, source, tag)
    if message is DECLINED:
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
        return finish_receive(receive, status)
    sent = message.array
    sender = message.task
    if source == ANY_SOURCE:
        task.caught[sender.rank] = (name, _site(wait))
    if message.next is None and box.arrived[message.source] is message:  # the only one: what is removed most
        del box.arrived[message.source]
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
        status.fill(message.source, message.tag, nbytes, sent.dtype)
    return sent.load() if array is OBJECT_TARGET else None


def begin_send(
    here: Endpoint, array: Any, dest: int, tag: int, name: str, site: Site
) -> Message | Declined | None:
    """Begin to send an array or an object; of an array a copy leaves, by which a change of it before Wait is noticed."""
    if here.scheduler.buffered_sites:
        return DECLINED
    message, kept = here.new_message(), array
    message.known_site = site
    if array.dtype is not OBJECT:
        message.buffer, kept = array, array.copy()
        message.data = kept if kept.ndim == 1 else kept.reshape(-1)
    return offer(here, kept, dest, tag, name, False, message)


def begin_receive(
    here: Endpoint, array: Any, source: int, tag: int, name: str, site: Site
) -> Receive | Declined:
    """Begin to receive into an array, or an object."""
    box = here.box
    message = _plain_message(here, array, source, tag)
    if message is DECLINED:
        return DECLINED
    task = here.running()
    receive = Receive(here.shared, task, None, array, source, here.rank, tag, name, site, False, task.clock)
    if array is not OBJECT_TARGET:
        receive.before = array.copy()
    if message is None:
        box.post(receive)
        return receive
    box.remove(message)
    sender, sent, scheduler = message.task, message.array, here.scheduler
    kept = sent if message.buffer is not None or array is OBJECT_TARGET else sent.copy()
    receive.data = kept, message.source, message.tag
    if source == ANY_SOURCE:
        task.caught[sender.rank] = (name, site)
    link = scheduler.plain or scheduler.link((sender.rank, task.rank), sent.nbytes)
    receive.end = arrive(task, receive.posted, message.end, link.beta * sent.nbytes)
    scheduler.polls, receive.done = 0, True
    finish(scheduler, message)
    return receive


def taken(receive: Receive, status: Status | None) -> Any:
    """What a nonblocking receive that went the short way brought: the array is written, or an object returned."""
    task, (came, source, tag) = receive.task, receive.data
    if receive.end > task.clock:
        task.clock = receive.end
    if task.to is not None:
        task.settle()
    if status is not None:
        status.fill(source, tag, came.nbytes, came.dtype)
    if receive.array is OBJECT_TARGET:
        return came.load()
    receive.array[...] = came
    return None


def _site(blocking: bool) -> Site:
    """The user's line: above a blocking call and the function here that it has called, or one more."""
    frame = sys._getframe(3 if blocking else 4)
    return frame.f_code, frame.f_lasti


def finish_receive(receive: Receive, status: Status | None) -> Any:
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
        status.fill(receive.source, receive.tag, came.nbytes, came.dtype)
    receive.array = None  # it is the user's
    return came.load() if came.dtype is OBJECT else None
