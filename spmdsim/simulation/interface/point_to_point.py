"""The methods of a communicator between two ranks: buffers in upper case, Python objects in lower case."""

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
    outgoing,
    writable,
)
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import (
    BUFFERED,
    READY,
    STANDARD,
    SYNCHRONOUS,
    Message,
    Receive,
    WaitsTogether,
    wait_for,
)
from spmdsim.simulation.engine.transfer import received, start_receive, start_send
from spmdsim.simulation.interface.collective_methods import named
from spmdsim.simulation.interface.requests import Prequest, Request

_frame = sys._getframe


class PointToPoint:
    """The methods of a communicator that send and receive."""

    _scheduler: Any
    _shared: Any
    _task: Any
    _rank: int
    _end: Any

    # ------------------------------------------------------------------ the two blocking kernels

    def _send(self, payload: Any, dest: int, tag: int, mode: str, name: str, frame: Any) -> None:
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
            task.settle()
        timeline = end.scheduler.timeline
        if timeline is not None:
            timeline.call(task, name, begin, frame, to=dest, tag=tag, nbytes=payload.nbytes)

    def _receive(
        self, target: Any, source: int, tag: int, status: Status | None, name: str, frame: Any
    ) -> Any:
        end = self._end
        task = end.running()
        begin = task.clock
        receive = start_receive(end, target, source, tag, name, frame, True)
        if not receive.done:
            receive.waiter = task
            end.scheduler.block(receive)
        result = received(receive, status)
        timeline = end.scheduler.timeline
        if timeline is not None:
            timeline.call(task, name, begin, frame, source=source, tag=tag)
        return result

    # ------------------------------------------------------------------ upper-case, blocking

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; correct programs do not count on it returning before it is received."""
        self._send(outgoing(buf, dest), dest, tag, STANDARD, "Send", _frame(1))

    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Receive into a buffer."""
        self._receive(writable(buf, source), source, tag, status, "Recv", _frame(1))

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
        """Send and receive at once, which cannot block itself."""
        sent, target = outgoing(sendbuf, dest), writable(recvbuf, source)
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
        """Send a buffer and receive into it."""
        target = writable(buf)
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
        end = self._end
        task = end.running()
        begin = task.clock
        receive = start_receive(end, target, source, recvtag, name, frame, True)
        message = start_send(end, payload, dest, sendtag, STANDARD, name, frame)
        _wait_for_both(end.scheduler, task, message, receive)
        if message.end > task.clock:
            task.clock = message.end
        result = received(receive, status)
        timeline = self._scheduler.timeline
        if timeline is not None:
            timeline.call(task, name, begin, frame, to=dest, source=source, nbytes=payload.nbytes)
        return result

    # ------------------------------------------------------------------ upper-case, nonblocking

    def _start(self, payload: Any, dest: int, tag: int, mode: str, name: str, frame: Any) -> Message:
        message = start_send(self._end, payload, dest, tag, mode, name, frame)
        message.keep()  # to notice a change before Wait
        return message

    def _post(self, target: Any, source: int, tag: int, name: str, frame: Any) -> Receive:
        receive = start_receive(self._end, target, source, tag, name, frame, False)
        if target is not OBJECT_TARGET:
            receive.before = target.copy()
        return receive

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a buffer, which must stay unchanged until the request is complete."""
        return Request(operation=self._start(outgoing(buf, dest), dest, tag, STANDARD, "Isend", _frame(1)))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive into a buffer, which belongs to MPI until the request is complete."""
        return Request(operation=self._post(writable(buf, source), source, tag, "Irecv", _frame(1)))

    # ------------------------------------------------------------------ persistent

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Return a receive that can be started repeatedly."""
        frame, target = _frame(1), writable(buf, source)
        return Prequest(lambda: self._post(target, source, tag, "Recv_init", frame))

    def _attached(self, payload: Any) -> Any:
        room = self._task.attached
        if payload.nbytes > room:
            has = f"only {many(room, 'byte is', 'bytes are')}" if room >= 0 else "no buffer is"
            raise MPIError(
                "ERR_BUFFER", f"a buffered send of {many(payload.nbytes, 'byte')}, but {has} attached"
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


#: What blocking sends of other modes than the standard one do.
_MODES = {
    SYNCHRONOUS: "Send {} and return once its receive has begun.",
    BUFFERED: "Copy {} into the attached buffer and return at once.",
    READY: "Send {} to a rank that has posted its receive already.",
}


def _buffer(self: Any, buf: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return outgoing(buf, dest), dest, tag


def _object(self: Any, obj: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return ObjectPayload(obj), dest, tag


def _sending(name: str, mode: str, prepare: Callable[..., Any], about: str) -> None:
    """Give communicators a send that blocks, begins one (``I...``), or starts it again and again (``..._init``)."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        payload, dest, tag = prepare(self, *args, **kwargs)
        details = self._attached(payload) if mode is BUFFERED else payload, dest, tag, mode, name, _frame(1)
        if name.endswith("_init"):
            return Prequest(lambda: self._start(*details))
        return Request(operation=self._start(*details)) if name[0] in "Ii" else self._send(*details)

    setattr(PointToPoint, name, named(method, name, prepare, about))


def _install() -> None:
    _sending("Send_init", STANDARD, _buffer, "A send to be started again and again.")
    for mode, about in _MODES.items():
        call = f"{mode[0]}send"
        _sending(call.capitalize(), mode, _buffer, about.format("a buffer"))
        _sending(f"I{call}", mode, _buffer, f"Begin a {mode} send.")
        _sending(f"{call.capitalize()}_init", mode, _buffer, f"A {mode} send to be started again and again.")
        if mode is not READY:  # which mpi4py has for buffers alone
            _sending(call, mode, _object, about.format("a Python object"))
            _sending(f"i{call}", mode, _object, f"Begin a {mode} send of a Python object.")


_install()


def _wait_for_both(scheduler: Any, task: Any, message: Message, receive: Receive) -> None:
    """Block until a send and a receive are both done."""
    if message.done:
        wait_for(scheduler, receive)
    elif receive.done:
        wait_for(scheduler, message)
    else:
        scheduler.block(WaitsTogether(scheduler, task, [message, receive], every=True))
