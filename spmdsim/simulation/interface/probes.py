"""Probes: find messages before they are received, and reserve one for its own receive."""

from __future__ import annotations

import sys
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.message_buffers import OBJECT_TARGET, receive_buffer
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import Message, Probing, wait_for
from spmdsim.simulation.engine.scheduler import current_task
from spmdsim.simulation.engine.transfer import check_source
from spmdsim.simulation.interface.requests import Request

_frame = sys._getframe


#: The message from PROC_NULL, which is always available.
_NULL_MESSAGE = object()


class ProbeMethods:
    """The methods of a communicator that inspect arrived messages."""

    _scheduler: Any
    _shared: Any
    _task: Any
    _rank: int
    _end: Any
    size: int

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait for a message and leave it in the mailbox; return True.

        Args:
            source: rank, ANY_SOURCE, or PROC_NULL, which has a message at any time.
            tag: number or ANY_TAG.
            status: filled with the message's source, tag and size; None: not wanted.
        """
        self._probe(source, tag, status, "Probe")
        return True

    probe = Probe

    def _probe(self, source: int, tag: int, status: Status | None, name: str, wait: bool = True) -> Any:
        """Return the message that a receive would get, without receiving it, or None.

        With ANY_SOURCE the message that leaves its sender first is returned; in a simulation with a seed, the source
        is drawn at random. PROC_NULL has a message at any time: ``_NULL_MESSAGE``.

        Args:
            source: rank, ANY_SOURCE or PROC_NULL.
            tag: number or ANY_TAG.
            status: filled with the message's source, tag and size if there is one; None: not wanted.
            name: name of the method, such as "Iprobe", for findings.
            wait: True to block until a message arrives, so that the result is never None. False to let other ranks
                run once if there is no message, and then search again.

        Raises:
            MPIError: If the source is no rank, or the tag is negative but not ANY_TAG.
        """
        if not check_source(self._end.size, source, tag):
            if status is not None:
                status.fill(PROC_NULL, ANY_TAG, 0)
            return _NULL_MESSAGE
        box, random = self._end.box, self._scheduler.random
        message: Message | None = box.find(source, tag, random)
        undecided = source == ANY_SOURCE and random is None
        if undecided and wait and message is not None:
            self._scheduler.undecided[box] = None
        if message is None or undecided:
            probing = Probing(self._shared, self._task, self._rank, source, tag, name)
            if wait:
                box.probes.append(probing)
                wait_for(self._scheduler, probing)
            else:
                self._scheduler.poll(probing)
            message = probing.message if wait else box.find(source, tag, random)
        if status is not None and message is not None:
            status.fill(message.source, message.tag, message.payload.nbytes, message.payload.dtype)
        return message

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Return True if a message has arrived, which stays in the mailbox; never block.

        If not, other ranks run once before a second search. With ANY_SOURCE they always do, so that an earlier message
        can come.

        Args:
            source: rank, ANY_SOURCE, or PROC_NULL, which has a message at any time.
            tag: number or ANY_TAG.
            status: filled with the message's source, tag and size if there is one; None: not wanted.
        """
        return self._probe(source, tag, status, "Iprobe", wait=False) is not None

    iprobe = Iprobe

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Matched:
        """Block until a message has arrived, and reserve it for ``Matched.Recv``; return its handle.

        Args:
            source: rank, ANY_SOURCE, or PROC_NULL, which has a message at any time.
            tag: number or ANY_TAG.
            status: filled with the message's source, tag and size; None: not wanted.
        """
        return Matched.take(self, self._probe(source, tag, status, "Mprobe"))

    mprobe = Mprobe

    def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Matched | None:
        """Reserve a message that has arrived, and return its handle; return None if there is none.

        If there is none at first, other ranks run once before a second search.

        Args:
            source: rank, ANY_SOURCE, or PROC_NULL, which has a message at any time.
            tag: number or ANY_TAG.
            status: filled with the message's source, tag and size if there is one; None: not wanted.
        """
        message = self._probe(source, tag, status, "Improbe", wait=False)
        return None if message is None else Matched.take(self, message)

    improbe = Improbe


class Matched(Handle):
    """A message that a matching probe reserved: only its handle can receive it (``MPI.Message``)."""

    _comm: Any = None
    _message: Any = None

    @classmethod
    def take(cls, comm: Any, message: Any) -> Matched:
        """Return the handle of a message, which is removed from its mailbox.

        Args:
            comm: the communicator, or None.
            message: the message, or the one from PROC_NULL.
        """
        if isinstance(message, Message):
            comm._end.box.remove(message)
        matched = cls()
        matched._comm, matched._message = comm, message
        return matched

    def __eq__(self, other: object) -> bool:
        return self._message is other._message if isinstance(other, Matched) else NotImplemented

    __hash__ = None

    @classmethod
    def from_proc_null(cls) -> Matched:
        """Return the message from PROC_NULL."""
        return cls.take(None, _NULL_MESSAGE)

    def __bool__(self) -> bool:
        return self._message is not None

    @classmethod
    def Probe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Matched:
        """Block until a message has arrived, and reserve it; as ``Mprobe`` of the communicator ``comm``."""
        return cls.take(comm, comm._probe(source, tag, status, "Probe"))

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Matched | None:
        """Reserve a message that has arrived; return None if there is none.

        As ``Improbe`` of the communicator ``comm``.
        """
        message = comm._probe(source, tag, status, "Iprobe", wait=False)
        return None if message is None else cls.take(comm, message)

    probe = Probe
    iprobe = Iprobe

    def _put_back(self) -> tuple[int, int]:
        """Put the message back in the mailbox as the first of its source, so that a receive finds it.

        The handle has no message afterwards, except MESSAGE_NO_PROC, which stays as it is.

        Returns:
            Source and tag for the receive; PROC_NULL and ANY_TAG for a message from PROC_NULL, and if the handle has
            no message.
        """
        message = self._message
        if "_predefined_name" not in self.__dict__:
            self._message = None
        if message is None or message is _NULL_MESSAGE:
            return PROC_NULL, ANY_TAG
        self._comm._end.box.put_back(message)
        return message.source, message.tag

    def _receiving_comm(self) -> Any:
        """Return the communicator of the message; for a message from PROC_NULL, COMM_SELF."""
        task = current_task()
        return task.self_comm if self._comm is None and task is not None else self._comm

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receive the message into a buffer; the handle then has no message.

        A message that is longer than the buffer, or has another type, ends the run with a finding. A handle without
        message receives nothing.

        Args:
            buf: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
            status: filled with source, tag and size of the message; None: not wanted.
        """
        source, tag = self._put_back()
        self._receiving_comm()._receive(receive_buffer(buf, source), source, tag, status, "Recv", _frame(1))

    def recv(self, status: Status | None = None) -> Any:
        """Receive and return the message as a Python object; the handle then has no message.

        Returns None for a handle without message.

        Args:
            status: filled with source, tag and size of the message; None: not wanted.
        """
        source, tag = self._put_back()
        return self._receiving_comm()._receive(OBJECT_TARGET, source, tag, status, "recv", _frame(1))

    def Irecv(self, buf: Any) -> Request:
        """Start to receive the message into a buffer; return the request, whose wait fills the buffer.

        Args:
            buf: an array, or ``[array, count, displacement, datatype]`` with later items omitted.
        """
        source, tag = self._put_back()
        return Request(
            operation=self._receiving_comm()._post(
                receive_buffer(buf, source), source, tag, "Irecv", _frame(1)
            )
        )

    def irecv(self) -> Request:
        """Start to receive the message as a Python object."""
        source, tag = self._put_back()
        return Request(operation=self._receiving_comm()._post(OBJECT_TARGET, source, tag, "irecv", _frame(1)))
