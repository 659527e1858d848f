"""Methods of a communicator between two ranks: upper case for buffers, lower case for Python objects."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, MPIError
from spmdsim.simulation.data.message_buffers import (
    OBJECT_TARGET,
    MessageBuffer,
    ObjectPayload,
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
from spmdsim.simulation.engine.transfer import complete_receive, start_receive, start_send
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
        """Send a message and block until the rank can continue; the arguments are those of ``start_send``."""
        end = self._end
        task = end.running()
        begin = task.clock
        message = start_send(end, payload, dest, tag, mode, name, frame)
        if not message.done:
            message.waiter = task
            end.scheduler.block(message)
        if message.end > task.clock:
            task.clock = message.end
        if mode is SYNCHRONOUS:
            task.reset_counts()
        timeline = end.scheduler.timeline
        if timeline is not None:
            timeline.record_call(task, name, begin, frame, to=dest, tag=tag, nbytes=payload.nbytes)

    def _receive(
        self, target: Any, source: int, tag: int, status: Status | None, name: str, frame: Any
    ) -> Any:
        """Block until a message is received; return its object, or None for a buffer.

        The first three arguments and the last two are those of ``start_receive``; ``status`` is filled if it is set.
        """
        end = self._end
        task = end.running()
        begin = task.clock
        receive = start_receive(end, target, source, tag, name, frame, True)
        if not receive.done:
            receive.waiter = task
            end.scheduler.block(receive)
        result = complete_receive(receive, status)
        timeline = end.scheduler.timeline
        if timeline is not None:
            timeline.record_call(task, name, begin, frame, source=source, tag=tag)
        return result

    # ------------------------------------------------------------------ upper-case, blocking

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; a program must not rely on a return before the message is received."""
        self._send(send_buffer(buf, dest), dest, tag, STANDARD, "Send", _frame(1))

    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Receive into a buffer."""
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
        """Send and receive at once, so that two ranks do not block each other."""
        sent, target = send_buffer(sendbuf, dest), receive_buffer(recvbuf, source)
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
        """Send a buffer, then receive into it."""
        target = receive_buffer(buf)
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
        """Send and receive; block until both are complete.

        The arguments are those of ``start_send`` and ``start_receive``; ``status`` is filled if it is set.

        Returns:
            The received object; None for a buffer.
        """
        end = self._end
        task = end.running()
        begin = task.clock
        receive = start_receive(end, target, source, recvtag, name, frame, True)
        message = start_send(end, payload, dest, sendtag, STANDARD, name, frame)
        _wait_for_both(end.scheduler, task, message, receive)
        if message.end > task.clock:
            task.clock = message.end
        result = complete_receive(receive, status)
        timeline = self._scheduler.timeline
        if timeline is not None:
            timeline.record_call(task, name, begin, frame, to=dest, source=source, nbytes=payload.nbytes)
        return result

    # ------------------------------------------------------------------ upper-case, nonblocking

    def _start(self, payload: Any, dest: int, tag: int, mode: str, name: str, frame: Any) -> Message:
        """Start a nonblocking send and return its message."""
        message = start_send(self._end, payload, dest, tag, mode, name, frame)
        message.copy_data()  # so that Wait can detect a changed buffer
        return message

    def _post(self, target: Any, source: int, tag: int, name: str, frame: Any) -> Receive:
        """Start a nonblocking receive; store the buffer's contents, to detect a change before Wait."""
        receive = start_receive(self._end, target, source, tag, name, frame, False)
        if target is not OBJECT_TARGET:
            receive.before = target.copy()
        return receive

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a buffer, which must stay unchanged until the request is complete."""
        return Request(operation=self._start(send_buffer(buf, dest), dest, tag, STANDARD, "Isend", _frame(1)))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive into a buffer, which belongs to MPI until the request is complete."""
        return Request(operation=self._post(receive_buffer(buf, source), source, tag, "Irecv", _frame(1)))

    # ------------------------------------------------------------------ persistent

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Return a receive that can be started repeatedly."""
        frame, target = _frame(1), receive_buffer(buf, source)
        return Prequest(lambda: self._post(target, source, tag, "Recv_init", frame))

    def _check_attached(self, payload: Any) -> Any:
        """Return the payload of a buffered send.

        Raises:
            MPIError: If the payload is longer than the buffer that the program attached, or none is attached.
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
        """Send a Python object."""
        self._send(ObjectPayload(obj), dest, tag, STANDARD, "send", _frame(1))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Receive a Python object."""
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
        """Send a Python object and receive one."""
        ends = OBJECT_TARGET, source, recvtag, status
        return self._exchange(ObjectPayload(sendobj), dest, sendtag, *ends, "sendrecv", _frame(1))

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a Python object."""
        return Request(operation=self._start(ObjectPayload(obj), dest, tag, STANDARD, "isend", _frame(1)))

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive a Python object, which the request's ``wait`` returns."""
        return Request(operation=self._post(OBJECT_TARGET, source, tag, "irecv", _frame(1)))


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
    """Add a send to ``PointToPoint``: nonblocking (``I...``), persistent (``..._init``), or else blocking.

    Args:
        name: name of the method, which decides its kind.
        mode: STANDARD, SYNCHRONOUS, BUFFERED or READY.
        prepare: function that converts the arguments to payload, destination and tag.
        about: docstring of the method.
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
            return Prequest(lambda: self._start(*details))
        return Request(operation=self._start(*details)) if name[0] in "Ii" else self._send(*details)

    setattr(PointToPoint, name, describe_method(method, name, prepare, about))


def _add_sends_of_modes() -> None:
    """Add ``Send_init``, and the synchronous, buffered and ready sends, to ``PointToPoint``.

    The class itself defines ``Send`` and ``Isend``. Ready sends take buffers only.
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


def _wait_for_both(scheduler: Any, task: Any, message: Message, receive: Receive) -> None:
    """Block until a send and a receive are both done."""
    if message.done:
        wait_for(scheduler, receive)
    elif receive.done:
        wait_for(scheduler, message)
    else:
        scheduler.block(JointWait(scheduler, task, [message, receive], every=True))
