"""The methods of a communicator between two ranks: buffers in upper case, Python objects in lower case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from numpy import ndarray

from spmdsim.errors import many
from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, MPIError
from spmdsim.simulation.data.message_buffers import (
    OBJECT_TARGET,
    MessageBuffer,
    ObjectPayload,
    outgoing,
    simple,
    writable,
)
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.arrays import DECLINED, ask, begin_receive, begin_send, finish_receive, offer
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
from spmdsim.simulation.findings.problems import Site
from spmdsim.simulation.interface.collective_methods import named
from spmdsim.simulation.interface.requests import Prequest, Request

_frame = sys._getframe


class PointToPoint:
    """Sending and receiving."""

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
        plain = type(buf) is ndarray and buf.flags.c_contiguous
        if not plain or offer(self._end, buf, dest, tag, "Send", True) is DECLINED:
            self._send(outgoing(buf, dest), dest, tag, STANDARD, "Send", _frame(1))

    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Receive into a buffer."""
        plain = type(buf) is ndarray and buf.flags.carray  # contiguous, aligned and writeable
        if not plain or ask(self._end, buf, source, tag, status, "Recv", True) is DECLINED:
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
        rest = source, recvtag, status, "Sendrecv"
        arrays = type(sendbuf) is type(recvbuf) is ndarray
        if (
            arrays
            and sendbuf.flags.c_contiguous
            and recvbuf.flags.carray
            and self._scheduler.timeline is None
        ):
            self._exchange_plain(sendbuf, dest, sendtag, recvbuf, *rest)
        else:
            self._exchange(
                outgoing(sendbuf, dest), dest, sendtag, writable(recvbuf, source), *rest, _frame(1)
            )

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

    def _exchange_plain(
        self,
        sent: Any,
        dest: int,
        sendtag: int,
        target: Any,
        source: int,
        recvtag: int,
        status: Status | None,
        name: str,
    ) -> Any:
        """As _exchange, of whole arrays or objects; each end goes the short way if it can."""
        end = self._end
        task = end.running()
        begin = task.clock
        receive = ask(end, target, source, recvtag, status, name, False)
        if receive is DECLINED:
            buffer = target if target is OBJECT_TARGET else writable(target)
            receive = start_receive(end, buffer, source, recvtag, name, _frame(2), True)
        came, task.clock = task.clock, begin  # both start at once
        message = offer(end, sent, dest, sendtag, name, False)
        if message is DECLINED:
            payload = sent if target is OBJECT_TARGET else simple(sent)
            message = start_send(end, payload, dest, sendtag, STANDARD, name, _frame(2))
        left, task.clock = task.clock, begin
        waits = type(receive) is Receive
        _wait_for_both(end.scheduler, task, message, receive if waits else None)
        task.clock = max(came, left if message is None else message.end)
        return finish_receive(receive, status) if waits else receive

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
        """Begin to send a buffer, which must stay as it is until the request is waited for."""
        if type(buf) is ndarray and buf.flags.c_contiguous:
            message = begin_send(self._end, buf, dest, tag, "Isend", _site(_frame(1)))
            if message is not DECLINED:
                return Request(operation=message)
        return Request(operation=self._start(outgoing(buf, dest), dest, tag, STANDARD, "Isend", _frame(1)))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive into a buffer, which belongs to MPI until the request is waited for."""
        frame = _frame(1)
        if type(buf) is ndarray and buf.flags.carray:
            receive = begin_receive(self._end, buf, source, tag, "Irecv", _site(frame))
            if receive is not DECLINED:
                return Request(operation=receive)
        return Request(operation=self._post(writable(buf, source), source, tag, "Irecv", frame))

    # ------------------------------------------------------------------ persistent

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """A receive to be started again and again."""
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
        payload = ObjectPayload(obj)
        if offer(self._end, payload, dest, tag, "send", True) is DECLINED:
            self._send(payload, dest, tag, STANDARD, "send", _frame(1))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Receive a Python object."""
        came = ask(self._end, OBJECT_TARGET, source, tag, status, "recv", True)
        if came is DECLINED:
            return self._receive(OBJECT_TARGET, source, tag, status, "recv", _frame(1))
        return came

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
        payload, ends = ObjectPayload(sendobj), (source, recvtag, status, "sendrecv")
        if self._scheduler.timeline is None:
            return self._exchange_plain(payload, dest, sendtag, OBJECT_TARGET, *ends)
        return self._exchange(payload, dest, sendtag, OBJECT_TARGET, *ends, _frame(1))

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send a Python object."""
        payload = ObjectPayload(obj)
        message = begin_send(self._end, payload, dest, tag, "isend", _site(_frame(1)))
        if message is not DECLINED:
            return Request(operation=message)
        return Request(operation=self._start(payload, dest, tag, STANDARD, "isend", _frame(1)))

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive a Python object, which the request's ``wait`` returns."""
        frame = _frame(1)
        receive = begin_receive(self._end, OBJECT_TARGET, source, tag, "irecv", _site(frame))
        if receive is DECLINED:
            receive = self._post(OBJECT_TARGET, source, tag, "irecv", frame)
        return Request(operation=receive)


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


def _site(frame: Any) -> Site:
    return frame.f_code, frame.f_lasti


def _wait_for_both(scheduler: Any, task: Any, message: Message | None, receive: Receive | None) -> None:
    """Wait for whichever is there and not done."""
    if message is None or message.done:
        if receive is not None:
            wait_for(scheduler, receive)
    elif receive is None or receive.done:
        wait_for(scheduler, message)
    else:
        scheduler.block(WaitsTogether(scheduler, task, [message, receive], every=True))
