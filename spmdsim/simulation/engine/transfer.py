"""From a send to a receive: start each, and when they meet check them, move the data and set the times."""

from __future__ import annotations

from types import FrameType
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, PROC_NULL, TAG_UB_VALUE, MPIError
from spmdsim.simulation.data.derived_types import BYTE_DTYPE
from spmdsim.simulation.data.message_buffers import COLUMNS, OBJECT, ROWS
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import (
    BUFFERED,
    READY,
    STANDARD,
    SYNCHRONOUS,
    Endpoint,
    Mailbox,
    Message,
    Receive,
    finish,
)
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import Site, site_key


def start_send(
    here: Endpoint, payload: Any, dest: int, tag: int, mode: str, name: str, frame: FrameType
) -> Message:
    """Send a message: it meets its receive now, or waits in the mailbox of the receiver.

    Raises:
        MPIError: no such rank, or a tag out of range.
    """
    shared, task, scheduler = here.shared, here.running(), here.scheduler
    site = (frame.f_code, frame.f_lasti)
    if not 0 <= dest < shared.size:
        return _to_nobody(shared, task, payload, dest, tag, name, site)
    if not 0 <= tag <= TAG_UB_VALUE:
        raise MPIError("ERR_TAG", f"the tag of a send is {tag}, but must be 0 to {TAG_UB_VALUE}")
    nbytes, box = payload.nbytes, shared.boxes[dest]
    start, end = depart(here, task, dest, nbytes)
    message = Message(shared, task, payload, here.rank, dest, tag, name, site, start, end)
    if mode is not STANDARD:
        message.mode = mode
    if mode is STANDARD or mode is BUFFERED:
        task.count_ahead(box, nbytes, message)
    if box.posted or box.wild or box.blocked is not None:
        receive = box.first_fit(message.source, tag)
        if receive is not None:
            box.take_out(receive)
            pair(scheduler, message, receive)
            return message
    if mode is READY:
        scheduler.fail(faults.not_ready(message))
    put(scheduler, box, message)
    buffered = scheduler.buffered_sites
    if mode is BUFFERED or (buffered and mode is STANDARD and site_key(site) in buffered):
        message.keep()
        message.done = True
    return message


def depart(here: Endpoint, task: Task, dest: int, nbytes: int) -> tuple[float, float]:
    """Count a message; return the modelled seconds at which it starts and ends to leave the rank's port."""
    link = here.scheduler.plain or here.scheduler.link((task.rank, here.shared.ranks[dest]), nbytes)
    start = max(task.clock, task.port_out)
    task.port_out = end = start + link.alpha + link.beta * nbytes
    task.messages_sent += 1
    task.bytes_sent += nbytes
    return start, end


def put(scheduler: Scheduler, box: Mailbox, message: Message) -> None:
    """Let a message wait for its receive."""
    box.put(message)
    if box.probes:
        _answer_probes(scheduler, box, message)


def start_receive(
    here: Endpoint, target: Any, source: int, tag: int, name: str, frame: FrameType, direct: bool
) -> Receive:
    """Start a receive: match it with a message that arrived, or post it in the rank's own mailbox.

    Raises:
        MPIError: no such rank, or a tag out of range.
    """
    scheduler, box, shared = here.scheduler, here.box, here.shared
    site = (frame.f_code, frame.f_lasti)
    task = here.running()
    receive = Receive(shared, task, target, source, here.rank, tag, name, site, direct, task.clock)
    if (source < 0 or tag < 0 or source >= here.size) and not check_source(here.size, source, tag):
        receive.done = True
        receive.end = receive.posted
        return receive
    message = box.take(source, tag, scheduler.random) if box.arrived else None
    if message is not None:
        pair(scheduler, message, receive)
    else:
        box.post(receive)
    return receive


def check_source(size: int, source: int, tag: int) -> bool:
    """Raise an MPI error for an impossible source or tag; return False for PROC_NULL."""
    if not 0 <= source < size and source != ANY_SOURCE:
        if source == PROC_NULL:
            return False
        raise MPIError("ERR_RANK", f"source {source} is not in 0 to {size - 1}")
    if tag < 0 and tag != ANY_TAG:
        raise MPIError("ERR_TAG", f"the tag of a receive is {tag}, but must be 0 or more, or ANY_TAG")
    return True


def pair(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Match a message with its receive: check them, copy the data and set the times."""
    payload, target = message.payload, receive.target
    if payload.dtype is not target.dtype:
        _check_types(scheduler, message, receive)
    elif payload.elements > target.elements:
        scheduler.fail(faults.truncated(message, receive))
    if payload.order + target.order == ROWS + COLUMNS:
        faults.note_memory_order(scheduler, message, receive)
    receiver, posted = receive.task, receive.posted
    if receive.source == ANY_SOURCE:
        receiver.caught[message.task.rank] = (receive.name, receive.site)
    if message.mode is SYNCHRONOUS and posted > message.start:
        message.end += posted - message.start
        message.start = posted
    link = scheduler.link((message.task.rank, receiver.rank), payload.nbytes)
    receive.end = arrive(receiver, posted, message.end, link.beta * payload.nbytes)
    receive.message = message
    scheduler.polls = 0
    if receive.direct:
        deliver(message, target)
    else:
        message.keep()
    if not message.done:
        message.done = True
        if message.waiter is not None:
            finish(scheduler, message)
    receive.done = True
    if receive.waiter is not None:
        finish(scheduler, receive)
    if message.relieved is not None:
        message.relieved.confirm(scheduler, message)
    if scheduler.timeline is not None:
        scheduler.timeline.arrow(message, receive)


def arrive(receiver: Task, posted: float, end: float, seconds: float) -> float:
    """Return the arrival time of a message: sent, its receive posted, and the receiving port free.

    Args:
        receiver: the rank that gets it.
        posted: when the receive was posted.
        end: when the message had left.
        seconds: how long it occupies the port in.
    """
    free = receiver.port_in + seconds
    if end < free:
        end = free
    receiver.port_in = end
    return end if end > posted else posted


def deliver(message: Message, target: Any) -> None:
    """Write a message's data where a receive wants it."""
    payload = message.payload
    if payload.dtype is OBJECT:
        return
    data = message.data
    if payload.nbytes == 0:
        return
    if data is None:
        if payload.index is None and target.index is None:
            source, sink = payload.array, target.array
            if source.shape == sink.shape and payload.order == target.order:
                sink[...] = source
                return
        data = payload.read()
    if payload.dtype != target.dtype:
        data = data.view(BYTE_DTYPE)
        data = data[: len(data) // target.dtype.itemsize * target.dtype.itemsize].view(target.dtype)
    target.write(data)


def received(receive: Receive, status: Status | None) -> Any:
    """Complete a receive on its rank: advance the clock, fill the status, return an object."""
    task, message = receive.task, receive.message
    if receive.end > task.clock:
        task.clock = receive.end
    if message is None:
        if status is not None:
            status.fill(PROC_NULL, ANY_TAG, 0)
        return None
    if task.to is not None:
        task.settle()
    if status is not None:
        status.fill(message.source, message.tag, message.payload.nbytes, message.payload.dtype)
    if message.payload.dtype is OBJECT:
        return message.payload.load()
    if not receive.direct:
        deliver(message, receive.target)
    return None


def _to_nobody(shared: Any, task: Any, payload: Any, dest: int, tag: int, name: str, site: Site) -> Message:
    """Return a completed message for PROC_NULL; raise an MPI error for other ranks outside the communicator."""
    if dest != PROC_NULL:
        raise MPIError("ERR_RANK", f"destination {dest} is not in 0 to {shared.size - 1}")
    clock = task.clock
    message = Message(shared, task, payload, -1, dest, tag, name, site, clock, clock)
    message.done = True
    return message


def _check_types(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    payload, target = message.payload, receive.target
    pickled = payload.dtype is OBJECT or target.dtype is OBJECT
    if payload.nbytes == 0 and not pickled:
        return  # nothing has no type
    if pickled or (payload.dtype != target.dtype and not (payload.loose or target.loose)):
        scheduler.fail(faults.wrong_type(message, receive))
    if payload.nbytes > target.nbytes:
        scheduler.fail(faults.truncated(message, receive))


def _answer_probes(scheduler: Scheduler, box: Any, message: Message) -> None:
    for probing in list(box.probes):
        if probing.source in (ANY_SOURCE, message.source) and probing.tag in (ANY_TAG, message.tag):
            box.probes.remove(probing)
            probing.message = message
            finish(scheduler, probing)
