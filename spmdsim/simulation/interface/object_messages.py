"""The methods of a communicator between two ranks, for Python objects: the lower-case ones."""

from __future__ import annotations

import sys
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG
from spmdsim.simulation.data.payloads import OBJECT_TARGET, ObjectPayload
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import BUFFERED, STANDARD, SYNCHRONOUS
from spmdsim.simulation.interface.point_to_point import PointToPoint
from spmdsim.simulation.interface.requests import Request

_frame = sys._getframe


class ObjectMessages(PointToPoint):
    """Sending and receiving Python objects."""

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a Python object."""
        self._send(ObjectPayload(obj), dest, tag, STANDARD, "send", _frame(1))

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a Python object and return once its receive has begun."""
        self._send(ObjectPayload(obj), dest, tag, SYNCHRONOUS, "ssend", _frame(1))

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Copy a Python object into the attached buffer and return at once."""
        self._send(self._attached(ObjectPayload(obj)), dest, tag, BUFFERED, "bsend", _frame(1))

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
        payload = ObjectPayload(sendobj)
        frame = _frame(1)
        return self._exchange(
            payload, dest, sendtag, OBJECT_TARGET, source, recvtag, status, "sendrecv", frame
        )

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send a Python object."""
        frame = _frame(1)
        return Request(operation=self._start(ObjectPayload(obj), dest, tag, STANDARD, "isend", frame))

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin a synchronous send of a Python object."""
        payload = ObjectPayload(obj)
        return Request(operation=self._start(payload, dest, tag, SYNCHRONOUS, "issend", _frame(1)))

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin a buffered send of a Python object."""
        payload = self._attached(ObjectPayload(obj))
        return Request(operation=self._start(payload, dest, tag, BUFFERED, "ibsend", _frame(1)))

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive a Python object, which the request's ``wait`` returns."""
        return Request(operation=self._post(OBJECT_TARGET, source, tag, "irecv", _frame(1)))
