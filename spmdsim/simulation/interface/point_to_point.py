"""Methods of a communicator between two ranks: upper case for buffers, lower case for Python objects."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, PROC_NULL, MPIError
from spmdsim.simulation.data.memory_overlap import share_memory
from spmdsim.simulation.data.message_buffers import (
    OBJECT,
    OBJECT_TARGET,
    MessageBuffer,
    ObjectPayload,
    ObjectTarget,
    receive_buffer,
    send_buffer,
)
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import (
    BUFFERED,
    READY,
    STANDARD,
    SYNCHRONOUS,
    JointWait,
    Message,
    Receive,
    wait_for,
)
from spmdsim.simulation.engine.transfer import complete_receive, complete_send, start_receive, start_send
from spmdsim.simulation.findings.problems import site_of
from spmdsim.simulation.interface.collective_methods import describe_method
from spmdsim.simulation.interface.requests import Prequest, Request

_frame = sys._getframe


class PointToPoint:
    """Methods of a communicator that send and receive."""

    _scheduler: Any
    _shared: Any
    _task: Any
    _rank: int
    _end: Any

    # ------------------------------------------------------------------ the two blocking kernels

    def _send(self, payload: Any, dest: int, tag: int, mode: str, name: str, frame: Any) -> None:
        """Send a message, block until the rank can continue, and advance its modelled clock.

        The mode decides how long the rank blocks:

        - STANDARD and SYNCHRONOUS: until the receive has matched; a standard send also continues if the simulation
          buffers its message.
        - BUFFERED: not at all.
        - READY: not at all, but the run ends with an error if the receive is not posted yet.

        Args:
            payload: the buffer or the pickled object.
            dest: rank of the receiver, or PROC_NULL.
            tag: the tag.
            mode: STANDARD, SYNCHRONOUS, BUFFERED or READY.
            name: name of the method, such as "Send".
            frame: the caller's frame, to find the line of the call.

        Raises:
            MPIError: If ``dest`` is no rank, or the tag is out of range.
        """
        end = self._end
        task = end.running()
        begin = task.clock
        message = start_send(end, payload, dest, tag, mode, name, site_of(frame))
        if not message.done:
            message.waiter = end.scheduler.current
            end.scheduler.block(message)
        complete_send(message, message.site)
        if mode is SYNCHRONOUS:
            task.reset_counts()
        if end.scheduler.observes_calls:
            end.scheduler.leave_call(task, name, begin, frame, to=dest, tag=tag, nbytes=payload.nbytes)

    def _receive(
        self, target: Any, source: int, tag: int, status: Status | None, name: str, frame: Any
    ) -> Any:
        """Block until a message is received; return its object, or None for a buffer.

        Advances the rank's modelled clock. A message that is too long or of another type ends the run with an error.
        A receive from PROC_NULL returns None at once.

        Args:
            target: the buffer to fill, or OBJECT_TARGET for a Python object.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            tag: the tag, or ANY_TAG.
            status: filled with source, tag and size; None: not wanted.
            name: name of the method, such as "Recv".
            frame: the caller's frame, to find the line of the call.

        Raises:
            MPIError: If ``source`` is no rank, or the tag is negative but not ANY_TAG.
        """
        end = self._end
        task = end.running()
        begin = task.clock
        receive = start_receive(end, target, source, tag, name, site_of(frame), direct=True)
        if not receive.done:
            receive.waiter = end.scheduler.current
            end.scheduler.block(receive)
        result = complete_receive(receive, status)
        if end.scheduler.observes_calls:
            end.scheduler.leave_call(task, name, begin, frame, source=source, tag=tag)
        return result

    # ------------------------------------------------------------------ upper-case, blocking

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; block until it is received.

        MPI also allows a send to return before its message is received. So a program must rely neither on the early
        return nor on the wait.

        Args:
            buf: an array, or ``[array, count, displacement, datatype]`` with later items omitted; None only for
                PROC_NULL. The memory must be contiguous.
            dest: rank of the receiver, or PROC_NULL.
            tag: 0 or more; the receive must accept it.

        Raises:
            BufferError: If the memory is not contiguous.
            MPIError: If ``dest`` is no rank, the tag is out of range, or the memory is too small for the count.
            TypeError: If ``buf`` is no buffer.
        """
        self._send(send_buffer(buf, dest), dest, tag, STANDARD, "Send", _frame(1))

    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Receive into a buffer; block until a message has arrived.

        A message that is longer than the buffer, or has another type, ends the run with a finding.

        Args:
            buf: an array, or ``[array, count, displacement, datatype]`` with later items omitted; None only for
                PROC_NULL. The memory must be contiguous.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            tag: the tag, or ANY_TAG.
            status: filled with source, tag and size of the message; None: not wanted.

        Raises:
            BufferError: If the memory is not contiguous, or read-only.
            MPIError: If ``source`` is no rank, the tag is negative, or the memory is too small for the count.
            TypeError: If ``buf`` is no buffer.
        """
        self._receive(receive_buffer(buf, source), source, tag, status, "Recv", _frame(1))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send and receive at once, so that two ranks do not block each other.

        Block until both are complete.

        Args:
            sendbuf: the buffer to send, as for ``Send``.
            dest: rank of the receiver, or PROC_NULL.
            sendtag: the tag of the message to send.
            recvbuf: the buffer to fill, as for ``Recv``; None only if ``source`` is PROC_NULL.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            recvtag: the tag of the message to receive, or ANY_TAG.
            status: filled for the received message; None: not wanted.

        Raises:
            The errors of ``Send`` and ``Recv``.
        """
        sent, target = send_buffer(sendbuf, dest), receive_buffer(recvbuf, source)
        if self._scheduler.like == "strict" and share_memory([sent], [target]):
            raise MPIError(
                "ERR_BUFFER", "the two buffers of Sendrecv must not share memory; call Sendrecv_replace"
            )
        self._exchange(sent, dest, sendtag, target, source, recvtag, status, "Sendrecv", _frame(1))

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send a copy of a buffer, and receive into the buffer; block until both are complete.

        Args:
            buf: the buffer, as for ``Recv``; None is not accepted.
            dest: rank of the receiver, or PROC_NULL.
            sendtag: the tag of the message to send.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            recvtag: the tag of the message to receive, or ANY_TAG.
            status: filled for the received message; None: not wanted.

        Raises:
            The errors of ``Send`` and ``Recv``.
        """
        target = receive_buffer(buf, PROC_NULL if dest == source == PROC_NULL else 0)
        sent = MessageBuffer(target.copy(), target.dtype, target.elements)
        name = "Sendrecv_replace"
        self._exchange(sent, dest, sendtag, target, source, recvtag, status, name, _frame(1))

    def _exchange(
        self,
        payload: Any,
        dest: int,
        sendtag: int,
        target: Any,
        source: int,
        recvtag: int,
        status: Status | None,
        name: str,
        frame: Any,
    ) -> Any:
        """Send a message and receive another one; block until both are complete.

        The receive is posted before the message is sent, so two ranks that exchange messages do not wait for each
        other. The send uses the standard mode. Advances the rank's modelled clock.

        Args:
            payload: the buffer or the pickled object to send.
            dest: rank of the receiver, or PROC_NULL.
            sendtag: the tag of the message to send.
            target: the buffer to fill, or OBJECT_TARGET for a Python object.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            recvtag: the tag of the message to receive, or ANY_TAG.
            status: filled for the received message; None: not wanted.
            name: name of the method, such as "Sendrecv".
            frame: the caller's frame, to find the line of the call.

        Returns:
            The received object; None for a buffer, and from PROC_NULL.

        Raises:
            MPIError: If a rank does not exist, or a tag is out of range.
        """
        end = self._end
        task = end.running()
        begin = task.clock
        receive = start_receive(end, target, source, recvtag, name, site_of(frame), direct=True)
        message = start_send(end, payload, dest, sendtag, STANDARD, name, site_of(frame))
        _wait_for_both(end.scheduler, message, receive)
        result = complete_receive(receive, status)
        complete_send(message, message.site)
        if end.scheduler.observes_calls:
            end.scheduler.leave_call(task, name, begin, frame, to=dest, source=source, nbytes=payload.nbytes)
        return result

    # ------------------------------------------------------------------ upper-case, nonblocking

    def _start(self, payload: Any, dest: int, tag: int, mode: str, name: str, frame: Any) -> Message:
        """Start a nonblocking send and return its message.

        The message has a copy of its data, to detect a changed buffer. The arguments are those of :meth:`_send`.
        """
        message = start_send(self._end, payload, dest, tag, mode, name, site_of(frame))
        message.copy_data()  # so that Wait can detect a changed buffer
        return message

    def _post(self, target: Any, source: int, tag: int, name: str, frame: Any) -> Receive:
        """Start a nonblocking receive; store the buffer's contents, to detect a change before Wait.

        The arguments are those of :meth:`_receive`.
        """
        receive = start_receive(self._end, target, source, tag, name, site_of(frame), direct=False)
        if target.dtype is not OBJECT:
            receive.before = target.copy()
        return receive

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a buffer; return the request.

        The buffer must stay unchanged until the request is complete; the wait reports a change as a finding.

        Args:
            buf: an array, or ``[array, count, displacement, datatype]`` with later items omitted; None only for
                PROC_NULL.
            dest: rank of the receiver, or PROC_NULL.
            tag: 0 or more.

        Raises:
            The errors of ``Send``.
        """
        return Request(operation=self._start(send_buffer(buf, dest), dest, tag, STANDARD, "Isend", _frame(1)))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive into a buffer; return the request.

        The buffer belongs to MPI until the request is complete; the wait reports a change as a finding, and fills the
        buffer. A message that is longer than the buffer, or has another type, ends the run with a finding.

        Args:
            buf: an array, or ``[array, count, displacement, datatype]`` with later items omitted; None only for
                PROC_NULL.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            tag: the tag, or ANY_TAG.

        Raises:
            The errors of ``Recv``.
        """
        return Request(operation=self._post(receive_buffer(buf, source), source, tag, "Irecv", _frame(1)))

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Start to send a buffer and to receive into another one; return one request for both.

        The data to send is copied, so the request is complete when the message to receive has arrived.

        Args:
            sendbuf: the buffer to send, as for ``Send``; None only if ``dest`` is PROC_NULL.
            dest: rank of the receiver, or PROC_NULL.
            sendtag: the tag of the message to send.
            recvbuf: the buffer to fill, as for ``Recv``; None only if ``source`` is PROC_NULL.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            recvtag: the tag of the message to receive, or ANY_TAG.

        Raises:
            The errors of ``Send`` and ``Recv``.
        """
        sent, target = send_buffer(sendbuf, dest), receive_buffer(recvbuf, source)
        receive = self._post(target, source, recvtag, "Isendrecv", _frame(1))
        start_send(self._end, sent, dest, sendtag, BUFFERED, "Isendrecv", site_of(_frame(1)))
        return Request(operation=receive)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Start to send a copy of a buffer and to receive into the buffer; return one request.

        Args:
            buf: the buffer, as for ``Recv``.
            dest: rank of the receiver, or PROC_NULL.
            sendtag: the tag of the message to send.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            recvtag: the tag of the message to receive, or ANY_TAG.
        """
        target = receive_buffer(buf, PROC_NULL if dest == source == PROC_NULL else 0)
        sent = MessageBuffer(target.copy(), target.dtype, target.elements)
        receive = self._post(target, source, recvtag, "Isendrecv_replace", _frame(1))
        start_send(self._end, sent, dest, sendtag, BUFFERED, "Isendrecv_replace", site_of(_frame(1)))
        return Request(operation=receive)

    # ------------------------------------------------------------------ persistent

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Return a persistent receive; its ``Start`` posts it.

        The arguments and errors are those of ``Recv``.
        """
        frame, target = _frame(1), receive_buffer(buf, source)
        return Prequest(begin=lambda: self._post(target, source, tag, "Recv_init", frame))

    def _check_attached(self, payload: Any) -> Any:
        """Return the payload of a buffered send if it fits in the buffer that the program attached.

        Payloads that are still in the buffer are not counted.

        Args:
            payload: the buffer or the pickled object.

        Raises:
            MPIError: If the payload is longer than the attached buffer, or none is attached.
        """
        nbytes = self._task.attached
        if payload.nbytes > nbytes:
            buffer = f"{many(nbytes, 'byte')}" if nbytes >= 0 else "no buffer"
            raise MPIError(
                "ERR_BUFFER",
                f"a buffered send must fit in the attached buffer, got {many(payload.nbytes, 'byte')} and {buffer}; "
                "call MPI.Attach_buffer",
            )
        return payload

    # ------------------------------------------------------------------ lower-case: Python objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a Python object; block until it is received.

        Args:
            obj: any object that can be pickled; the receiver gets a copy.
            dest: rank of the receiver, or PROC_NULL.
            tag: 0 or more.

        Raises:
            MPIError: If ``dest`` is no rank, or the tag is out of range.
        """
        self._send(ObjectPayload(obj), dest, tag, STANDARD, "send", _frame(1))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Receive and return a Python object; block until it has arrived. None from PROC_NULL.

        A message that was sent from a buffer ends the run with a finding.

        Args:
            buf: not used: mpi4py has it. A warning says so.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            tag: the tag, or ANY_TAG.
            status: filled with source, tag and size of the message; None: not wanted.

        Raises:
            MPIError: If ``source`` is no rank, or the tag is negative.
        """
        if buf is not None:
            warnings.warn("recv: the argument buf is deprecated", UserWarning, stacklevel=2)
        return self._receive(OBJECT_TARGET, source, tag, status, "recv", _frame(1))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send a Python object and return one; block until both are complete.

        Args:
            sendobj: any object that can be pickled.
            dest: rank of the receiver, or PROC_NULL.
            sendtag: the tag of the message to send.
            recvbuf: not used: mpi4py has it.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            recvtag: the tag of the message to receive, or ANY_TAG.
            status: filled for the received message; None: not wanted.

        Raises:
            MPIError: If a rank does not exist, or a tag is out of range.
        """
        ends = OBJECT_TARGET, source, recvtag, status
        return self._exchange(ObjectPayload(sendobj), dest, sendtag, *ends, "sendrecv", _frame(1))

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a Python object, and return the request; never block.

        Args:
            obj: any object that can be pickled; it may be changed afterwards.
            dest: rank of the receiver, or PROC_NULL.
            tag: 0 or more.

        Raises:
            MPIError: If ``dest`` is no rank, or the tag is out of range.
        """
        return Request(operation=self._start(ObjectPayload(obj), dest, tag, STANDARD, "isend", _frame(1)))

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive a Python object, which the request's ``wait`` returns; never block.

        As in mpi4py, the wait raises an error (ERR_TRUNCATE) for an object whose pickle is longer than the buffer.

        Args:
            buf: memory for the pickle, or its size in bytes; None: 32 KiB.
            source: rank of the sender, ANY_SOURCE or PROC_NULL.
            tag: the tag, or ANY_TAG.

        Raises:
            MPIError: If ``source`` is no rank, or the tag is negative.
        """
        target = ObjectTarget(buf)
        return Request(operation=self._post(target, source, tag, "irecv", _frame(1)))


#: Docstrings of blocking sends that do not use the standard mode.
_MODES = {
    SYNCHRONOUS: "Send {} and return when its receive has started.",
    BUFFERED: "Copy {} into the attached buffer and return at once.",
    READY: "Send {} to a rank that has already posted its receive.",
}


def _buffer_arguments(self: Any, buf: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    """Return payload, destination and tag of a send of a buffer.

    The generated methods get the signature of this function.
    """
    return send_buffer(buf, dest), dest, tag


def _object_arguments(self: Any, obj: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    """Return payload, destination and tag of a send of a Python object.

    The generated methods get the signature of this function.
    """
    return ObjectPayload(obj), dest, tag


def _add_send(name: str, mode: str, prepare: Callable[..., Any], about: str) -> None:
    """Add a send method to the class ``PointToPoint``, with the signature of ``prepare``.

    The name decides the kind of method:

    - with ``_init`` at the end, such as ``Ssend_init``: it returns a persistent request;
    - with I or i at the begin, such as ``Issend``: it is nonblocking and returns a request;
    - any other name, such as ``Ssend``: it blocks.

    A method of the mode BUFFERED raises MPIError if the attached buffer is too small.

    Args:
        name: name of the method.
        mode: STANDARD, SYNCHRONOUS, BUFFERED or READY.
        prepare: called with the communicator and the program's arguments; returns payload, destination and tag.
        about: first line of the method's docstring.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Send, or return a request, as the name says."""
        payload, dest, tag = prepare(self, *args, **kwargs)
        details = (
            self._check_attached(payload) if mode is BUFFERED else payload,
            dest,
            tag,
            mode,
            name,
            _frame(1),
        )
        if name.endswith("_init"):
            return Prequest(begin=lambda: self._start(*details))
        return Request(operation=self._start(*details)) if name[0] in "Ii" else self._send(*details)

    model = "Send" if prepare is _buffer_arguments else "send"
    text = f"{about}\n\nThe arguments and errors are those of ``{model}``."
    setattr(PointToPoint, name, describe_method(method, name, prepare, text))


def _add_sends_of_modes() -> None:
    """Add the sends that are not written out to the class ``PointToPoint``.

    These are ``Send_init``, and for synchronous mode ``Ssend``, ``Issend``, ``Ssend_init``, ``ssend`` and ``issend``.
    Buffered sends begin with b instead of s; ready sends begin with r, and take buffers only (``Rsend``, ``Irsend``
    and ``Rsend_init``).
    """
    _add_send("Send_init", STANDARD, _buffer_arguments, "Return a send that can be started repeatedly.")
    for mode, about in _MODES.items():
        call = f"{mode[0]}send"
        _add_send(call.capitalize(), mode, _buffer_arguments, about.format("a buffer"))
        _add_send(f"I{call}", mode, _buffer_arguments, f"Start a {mode} send.")
        _add_send(
            f"{call.capitalize()}_init",
            mode,
            _buffer_arguments,
            f"Return a {mode} send that can be started repeatedly.",
        )
        if mode is not READY:  # mpi4py has ready sends for buffers only
            _add_send(call, mode, _object_arguments, about.format("a Python object"))
            _add_send(f"i{call}", mode, _object_arguments, f"Start a {mode} send of a Python object.")


_add_sends_of_modes()


def _wait_for_both(scheduler: Any, message: Message, receive: Receive) -> None:
    """Block the running rank until a send and a receive are both done.

    Args:
        scheduler: the simulation.
        message: the send; it may be done already.
        receive: the receive; it may be done already.
    """
    if message.done:
        wait_for(scheduler, receive)
    elif receive.done:
        wait_for(scheduler, message)
    else:
        scheduler.block(JointWait(scheduler, [message, receive], every=True))
