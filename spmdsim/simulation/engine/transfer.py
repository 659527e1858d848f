"""Move messages: start sends and receives, match them, check them, copy the data and set the times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spmdsim.errors import many
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
from spmdsim.simulation.engine.waiting_times import LATE_RECEIVER, LATE_SENDER, count_wait
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import Site, site_key


def start_send(
    endpoint: Endpoint, payload: Any, dest: int, tag: int, mode: str, name: str, site: Site
) -> Message:
    """Send a message without blocking: match it with a posted receive, or put it in a mailbox.

    - If a receive that fits is posted, both are completed (:func:`match`). A receive from any source is completed
      later (:mod:`spmdsim.simulation.engine.wildcards`).
    - Else, if the mode is READY, the run ends with an error.
    - Else the message goes to the receiver's mailbox. It is buffered if its mode is BUFFERED, or if it is a standard
      one from a line in ``scheduler.buffered_sites``: it gets a copy of the data, so that the sender may change its
      buffer.

    The message reserves the rank's outgoing port for its duration, and is counted. A message to PROC_NULL goes
    nowhere.

    Args:
        endpoint: the sender's end of the communicator.
        payload: the buffer or object.
        dest: rank of the receiver, or PROC_NULL, for which the tag is not checked.
        tag: the tag.
        mode: STANDARD, SYNCHRONOUS, BUFFERED or READY.
        name: name of the method, such as "Send".
        site: place of the call.

    Returns:
        The message. It is done if the sender can continue: if it was matched, is buffered, or goes to PROC_NULL.

    Raises:
        MPIError: If the rank does not exist, the tag is not 0 to TAG_UB, or the communicator is revoked.
    """
    shared, task, scheduler = endpoint.shared, endpoint.running(), endpoint.scheduler
    if shared.is_revoked:
        endpoint.refuse_revoked(name)
    if scheduler.stopwatch is not None:
        scheduler.enter_call(task)
    if not 0 <= dest < shared.size:
        return _send_outside(shared, task, payload, dest, tag, name, site)
    if not 0 <= tag <= TAG_UB_VALUE:
        raise MPIError("ERR_TAG", f"the tag of a send must be 0 to {TAG_UB_VALUE}, got {tag}")
    if payload.contradiction is not None:
        faults.report_contradiction(task, payload, name, site)
    nbytes, box = payload.nbytes, shared.boxes[dest]
    start, end = occupy_port_out(endpoint, task, dest, nbytes)
    if scheduler.processor is not None:
        task.clock += scheduler.processor.seconds(nbytes)
    message = Message(shared, task, payload, endpoint.rank, dest, tag, name, site, start, end)
    if mode is not STANDARD:
        message.mode = mode
    if scheduler.recorder is not None:
        scheduler.recorder.add_send(message, shared.ranks[dest])
    if scheduler.order is not None:
        message.past = scheduler.order.release(task)
    # Messages of the other modes do not pile up, because they wait for their receives.
    if mode is STANDARD or mode is BUFFERED:
        task.count_ahead(box, nbytes, message)
    if box.posted or box.wild or box.blocked is not None:
        receive = box.find_receive(message.source, tag)
        if receive is not None and receive.source == ANY_SOURCE and scheduler.random is None:
            scheduler.undecided[box] = None
        elif receive is not None:
            box.remove_receive(receive)
            match(scheduler, message, receive)
            return message
        elif mode is READY:
            scheduler.fail(faults.ready_problem(message))
    elif mode is READY:
        scheduler.fail(faults.ready_problem(message))
    enqueue(scheduler, box, message)
    buffered = scheduler.buffered_sites
    if mode is BUFFERED or (buffered and mode is STANDARD and site_key(site) in buffered):
        message.copy_data()
        message.done = True
    return message


def occupy_port_out(endpoint: Endpoint, task: Task, dest: int, nbytes: int) -> tuple[float, float]:
    """Reserve a rank's outgoing port for a message, and count the message in the rank's traffic.

    Args:
        endpoint: the sender's end of the communicator.
        task: the sender.
        dest: rank of the receiver in the communicator.
        nbytes: bytes of the message.

    Returns:
        The modelled times at which the message starts to leave and at which it has left. The message starts when its
        rank sends it, but not before the previous message has left.
    """
    link = endpoint.scheduler.plain or endpoint.scheduler.link(
        (task.rank, endpoint.shared.ranks[dest]), nbytes
    )
    start = max(task.clock, task.port_out)
    task.port_out = end = start + link.alpha + link.beta * nbytes
    task.messages_sent += 1
    task.bytes_sent += nbytes
    return start, end


def enqueue(scheduler: Scheduler, box: Mailbox, message: Message) -> None:
    """Put a message in a mailbox, and complete the probes that wait for it."""
    box.put(message)
    if box.probes:
        _answer_probes(scheduler, box, message)


def start_receive(
    endpoint: Endpoint, target: Any, source: int, tag: int, name: str, site: Site, direct: bool
) -> Receive:
    """Start a receive without blocking: match it with an arrived message, or post it.

    A posted receive waits in the rank's own mailbox for a message that fits. A receive from ANY_SOURCE is always
    posted: the message that leaves its sender first is taken when no earlier one can come. In a simulation with a
    seed, the source is drawn at random and at once. A message of another type ends the run with an error.

    Args:
        endpoint: the receiver's end of the communicator.
        target: the buffer, or OBJECT_TARGET for a Python object.
        source: rank of the sender, ANY_SOURCE or PROC_NULL.
        tag: the tag, or ANY_TAG.
        name: name of the method, such as "Recv".
        site: place of the call.
        direct: True if the rank blocks in this call, so that the data may be written at once.

    Returns:
        The receive, which is done if it was matched or receives from PROC_NULL.

    Raises:
        MPIError: If the rank does not exist, the tag is negative but not ANY_TAG, or the communicator is revoked.
    """
    scheduler, box, shared = endpoint.scheduler, endpoint.box, endpoint.shared
    task = endpoint.running()
    if shared.is_revoked:
        endpoint.refuse_revoked(name)
    if scheduler.stopwatch is not None:
        scheduler.enter_call(task)
    if scheduler.like == "openmpi":  # both constants are -1 there
        source, tag = ANY_SOURCE if source == ANY_TAG else source, ANY_TAG if tag == ANY_SOURCE else tag
    direct = direct and not task.is_threaded  # another thread may post a receive while this one is blocked
    receive = Receive(shared, task, target, source, endpoint.rank, tag, name, site, direct, task.clock)
    if not check_source(endpoint.size, source, tag):
        receive.done = True
        receive.end = receive.posted
        return receive
    if scheduler.recorder is not None:
        scheduler.recorder.add_receive(receive)
    if target.contradiction is not None:
        faults.report_contradiction(task, target, name, site)
    message = box.find(source, tag, scheduler.random) if box.arrived else None
    if message is None:
        box.post(receive)
    elif source == ANY_SOURCE and scheduler.random is None:
        box.post(receive)
        scheduler.undecided[box] = None
    elif box.wild and scheduler.random is None and box.is_held_back(message):
        box.post(receive)
    else:
        box.remove(message)
        match(scheduler, message, receive)
    return receive


def check_source(size: int, source: int, tag: int) -> bool:
    """Check source and tag of a receive; return False if the source is PROC_NULL, else True.

    Args:
        size: the number of ranks of the communicator.
        source: a rank, ANY_SOURCE or PROC_NULL.
        tag: a tag or ANY_TAG; not checked for PROC_NULL.

    Raises:
        MPIError: If ``source`` is another number, or the tag is negative but not ANY_TAG.
    """
    if not 0 <= source < size and source != ANY_SOURCE:
        if source == PROC_NULL:
            return False
        value = "MPI.ANY_TAG (-1)" if source == ANY_TAG else source
        raise MPIError("ERR_RANK", f"source must be 0 to {size - 1}, or MPI.ANY_SOURCE, got {value}")
    if tag < 0 and tag != ANY_TAG:
        value = "MPI.ANY_SOURCE" if tag == ANY_SOURCE else tag
        raise MPIError("ERR_TAG", f"the tag of a receive must be 0 or more, or ANY_TAG, got {value}")
    return True


def match(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Complete a message and the receive that it matches, and wake the ranks that wait for them.

    1. A message of another type ends the run with an error. One that is too long is an error of the receive
       (``receive.truncation``), and nothing is written. If one end stores an array row by row and the other one column
       by column, a warning is added.
    2. In SYNCHRONOUS mode, and if it is longer than the machine's eager messages and not buffered, the modelled times of
       the message are moved: it waits for the receive.
    3. If the receiver is blocked in the receive (``receive.direct``), the data is written to its buffer. Else the
       message stores a copy until the rank completes the receive. A Python object is not copied.
    4. Both are marked done.

    Args:
        scheduler: the simulation; its count of polls becomes 0.
        message: the message, which must not be in a mailbox any more.
        receive: the receive, which must not be posted any more.
    """
    payload, target = message.payload, receive.target
    if payload.dtype is not target.dtype:
        _check_types(scheduler, message, receive)  # checks the length, too
    elif payload.elements > target.elements:
        receive.truncation = faults.truncation_problem(message, receive)
    if payload.order + target.order == ROWS + COLUMNS:  # one end has ROWS, the other has COLUMNS
        faults.report_memory_order(scheduler, message, receive)
    receiver, posted = receive.task, receive.posted
    if receive.source == ANY_SOURCE:
        receiver.wildcard_receives[message.task.rank] = (receive.name, receive.site)
    must_wait = message.mode is SYNCHRONOUS or (payload.nbytes > scheduler.eager_bytes and not message.done)
    if must_wait and posted > message.start:
        # The message waits for the receive; its duration stays.
        message.delay = posted - message.start
        message.end += message.delay
        message.start = posted
    if message.mode is SYNCHRONOUS and scheduler.order is not None:
        message.answer = scheduler.order.release(receiver)
    receive.message = message
    if scheduler.recorder is not None:
        scheduler.recorder.add_match(message, receive)
    scheduler.polls = 0
    if receive.direct and receive.truncation is None:
        deliver(message, target)
    else:
        message.copy_data()
    if not message.done:
        finish(scheduler, message)
    finish(scheduler, receive)
    if message.relief is not None:
        message.relief.report_received(scheduler, message)


def set_receive_time(receive: Receive) -> None:
    """Set the modelled time at which a matched receive is complete.

    Then its message has passed the rank's incoming port and its processor. The rank calls it when it completes the receive, so that the times follow from the order of its own calls. The
    timeline records the message, if there is one. Does nothing if the time is set.

    Args:
        receive: the receive, which has a message.
    """
    message, task = receive.message, receive.task
    if receive.end >= 0 or message is None:
        return
    scheduler, nbytes = task.scheduler, message.payload.nbytes
    link = scheduler.plain or scheduler.link((message.task.rank, task.rank), nbytes)
    arrival = task.port_in.occupy(message.end, link.beta * nbytes)
    receive.end = max(arrival, receive.posted)
    if scheduler.processor is not None:
        begin = max(task.clock, task.processor_free)
        receive.end = task.processor_free = max(receive.end, begin + scheduler.processor.seconds(nbytes))
    if scheduler.timeline is not None:
        scheduler.timeline.record_message(message, receive)


def set_receive_times(operations: Iterable[Any]) -> None:
    """Set the times of the receives that a rank completes in one call.

    They occupy the rank's incoming port in the order in which their messages arrive.

    Args:
        operations: complete operations of the rank; those that are no receives are ignored.
    """
    receives = [(*op.message.order(), i, op) for i, op in enumerate(operations) if _has_message(op)]
    recorder = receives[0][-1].task.scheduler.recorder if receives else None
    if recorder is not None:
        recorder.add_arrival([receive for *_, receive in receives])
    for *_, receive in sorted(receives):
        set_receive_time(receive)


def _has_message(operation: Any) -> bool:
    """Return True for a receive that has matched a message."""
    return type(operation) is Receive and operation.message is not None


def deliver(message: Message, target: Any) -> None:
    """Write the data of a message to the buffer of its receive.

    Does nothing for a Python object and a message without bytes. Data of another dtype is viewed as the dtype of the
    buffer; bytes that make no complete element are left out.

    Args:
        message: the message; its own copy of the data is used if it has one, else the sender's buffer.
        target: the `MessageBuffer` of the receive, which is at least as long.
    """
    payload = message.payload
    if payload.dtype is OBJECT or payload.nbytes == 0:
        return
    data = payload.read() if message.data is None else message.data
    if payload.dtype != target.dtype:
        data_bytes = data.view(BYTE_DTYPE)
        complete_bytes = len(data_bytes) - len(data_bytes) % target.dtype.itemsize
        data = data_bytes[:complete_bytes].view(target.dtype)
    target.write(data)


def complete_send(message: Message, site: Site | None) -> None:
    """Complete a message on its sender: advance the clock of the rank to the end of the message.

    The rank does not wait for the end of an eager message, because the library has copied the data.

    Args:
        message: the message, which is done.
        site: place of the blocking call that sends; None if another call completes the send, such as ``Wait``.
    """
    task = message.task
    if task.scheduler.recorder is not None:
        task.scheduler.recorder.add_completion(message)
    if message.end > task.clock and not _is_eager(message):
        if message.delay:
            count_wait(task, LATE_RECEIVER, message.start, message.name, site)
        task.clock = message.end
    if message.answer is not None:
        task.scheduler.order.acquire(task, message.answer)


def _is_eager(message: Message) -> bool:
    """Return True if the library copies a message at once: one of at most the machine's eager bytes.

    It is False for synchronous sends, and if the machine does not know its eager bytes.
    """
    limit = message.task.scheduler.machine.eager_bytes
    return limit > 0 and message.payload.nbytes <= limit and message.mode is not SYNCHRONOUS


def complete_receive(receive: Receive, status: Status | None) -> Any:
    """Complete a receive on its rank; return the received object, or None for a buffer.

    Advances the rank's clock to the end of the receive, and fills the status. The data is written to the buffer,
    unless that was done when the message matched (``receive.direct``).

    Args:
        receive: the receive, which is done.
        status: filled with source, tag and size of the message; with PROC_NULL, ANY_TAG and 0 after a receive from
            PROC_NULL. None: not wanted.

    Returns:
        The object of a lower-case receive; None for a buffer, and for a receive from PROC_NULL.

    Raises:
        MPIError: If the message is longer than the buffer; its ``problem`` is reported if the program does not catch
            it. Also if the object is longer than the buffer of ``irecv``.
    """
    task, message = receive.task, receive.message
    if task.scheduler.recorder is not None:
        task.scheduler.recorder.add_completion(receive)
    set_receive_time(receive)
    if receive.end > task.clock:
        if message is not None and message.start > task.clock:
            until = min(message.start, receive.end)
            count_wait(task, LATE_SENDER, until, receive.name, receive.site if receive.direct else None)
        task.clock = receive.end
    if receive.truncation is not None:
        raise MPIError("ERR_TRUNCATE", receive.truncation.message, receive.truncation)
    if message is None:
        if status is not None:
            status.fill(PROC_NULL, ANY_TAG, 0)
        return None
    task.reset_counts()
    if message.past is not None:
        task.scheduler.order.acquire(task, message.past, stores_first=not receive.direct)
    if status is not None:
        status.fill(message.source, message.tag, message.payload.nbytes, message.payload.dtype)
    if message.payload.dtype is OBJECT:
        limit = receive.target.limit
        if limit is not None and message.payload.nbytes > limit:
            raise MPIError(
                "ERR_TRUNCATE",
                f"the object from rank {message.source} has {many(message.payload.nbytes, 'byte')}, but "
                f"{receive.name} has a buffer of {many(limit, 'byte')}; pass buf=bytearray(...) or call recv",
            )
        return message.payload.load()
    if not receive.direct:
        deliver(message, receive.target)
    return None


def _send_outside(
    shared: Any, task: Any, payload: Any, dest: int, tag: int, name: str, site: Site
) -> Message:
    """Return a completed message to PROC_NULL, which takes no time.

    Args:
        shared: the state of the communicator.
        task: the sender.
        payload: the buffer or object.
        dest: a number that is no rank of the communicator.
        tag: the tag; not checked.
        name: name of the method, such as "Send".
        site: code object and instruction of the call.

    Raises:
        MPIError: If ``dest`` is not PROC_NULL.
    """
    if dest != PROC_NULL:
        raise MPIError("ERR_RANK", f"dest must be 0 to {shared.size - 1}, got {dest}")
    clock = task.clock
    message = Message(shared, task, payload, -1, dest, tag, name, site, clock, clock)
    message.done = True
    return message


def _check_types(scheduler: Scheduler, message: Message, receive: Receive) -> None:
    """Check the type and the length of a message that matches a receive.

    A wrong type ends the run with a finding. A message that is too long gives ``receive.truncation``.

    `match` calls it only if the types are not one object, so never for a Python object that is received as an object.
    A Python object matches no buffer. BYTE and PACKED match every type of a buffer, and a message without bytes
    matches every buffer. Lengths are compared in bytes.

    Args:
        scheduler: the simulation.
        message: the message.
        receive: the receive.
    """
    payload, target = message.payload, receive.target
    mixes_objects = payload.dtype is OBJECT or target.dtype is OBJECT
    if payload.nbytes == 0 and not mixes_objects:
        return  # MPI compares no types if no elements are sent
    if mixes_objects or (payload.dtype != target.dtype and not (payload.loose or target.loose)):
        scheduler.fail(faults.type_problem(message, receive))
    if payload.nbytes > target.nbytes:
        receive.truncation = faults.truncation_problem(message, receive)


def _answer_probes(scheduler: Scheduler, box: Any, message: Message) -> None:
    """Complete the blocking probes of a mailbox that a new message satisfies, and remove them from it.

    Probes from any source are completed later (:mod:`spmdsim.simulation.engine.wildcards`).

    Args:
        scheduler: the simulation, in which the probing rank can continue.
        box: the mailbox.
        message: the message; it stays in the mailbox, and becomes the ``message`` of each probe.
    """
    for probing in list(box.probes):
        if probing.source == ANY_SOURCE and scheduler.random is None:
            scheduler.undecided[box] = None
        elif probing.source in (ANY_SOURCE, message.source) and probing.tag in (ANY_TAG, message.tag):
            box.probes.remove(probing)
            probing.message = message
            finish(scheduler, probing)
