"""Requests: started operations, waited for or tested one by one or together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from spmdsim.simulation.data.constants import UNDEFINED, Handle
from spmdsim.simulation.data.status import Status, fill_statuses
from spmdsim.simulation.engine.mailboxes import Message, Receive, WaitsTogether, finish
from spmdsim.simulation.engine.scheduler import current_scheduler
from spmdsim.simulation.engine.transfer import received
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import place_in_stack


class Request(Handle):
    """One started operation; null after a completed wait.

    Attributes:
        operation: the send, receive or collective; None for a null request.
    """

    def __init__(self, request: Request | None = None, operation: Any = None) -> None:
        self.operation: Any = operation if request is None else request.operation
        if operation is not None:
            operation.task.active[id(self)] = self

    def __bool__(self) -> bool:
        return self.operation is not None

    # ------------------------------------------------------------------ one request

    def Wait(self, status: Status | None = None) -> bool:
        """Block until the operation is complete."""
        self.wait(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Block until the operation is complete; return the object of a lower-case receive."""
        operation = self.operation
        if operation is None:
            return _nothing(status)
        task, begin = operation.task, operation.task.clock
        if not operation.done:
            operation.waiter = task
            task.scheduler.block(operation)
        result = self._take(status)
        timeline = task.scheduler.timeline
        if timeline is not None:
            timeline.call(task, "Wait", begin, sys._getframe(1), of=operation.name)
        return result

    def Test(self, status: Status | None = None) -> bool:
        """Return True if the operation is complete; a complete request becomes null, as after a wait."""
        return self.test(status)[0]

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether the operation is complete, and the object of a lower-case receive."""
        operation = self.operation
        if operation is None:
            return True, _nothing(status)
        if not operation.done:
            operation.task.scheduler.poll(operation)
            if not operation.done:
                return False, None
        return True, self._take(status)

    def Get_status(self, status: Status | None = None) -> bool:
        """Return True if the operation is complete; the request does not change."""
        operation = self.operation
        if operation is None:
            _nothing(status)
            return True
        if not operation.done:
            operation.task.scheduler.poll(operation)
        if operation.done and status is not None and isinstance(operation, Receive):
            message = operation.message
            if message is not None:
                status.fill(message.source, message.tag, message.payload.nbytes, message.payload.dtype)
        return bool(operation.done)

    get_status = Get_status

    def Cancel(self) -> None:
        """Give up a receive that has got nothing yet."""
        operation = self.operation
        if isinstance(operation, Receive) and not operation.done:
            box = operation.comm.boxes[operation.dest]
            if box.withdraw(operation):
                operation.name = "cancelled"
                finish(operation.task.scheduler, operation)

    cancel = Cancel

    def Free(self) -> None:
        """Free the request; the operation continues."""
        if self.operation is not None:
            self.operation.task.active.pop(id(self), None)
            self.operation = None

    free = Free

    def _take(self, status: Status | None) -> Any:
        """Return the result of a complete operation."""
        operation, self.operation = self.operation, None
        operation.task.active.pop(id(self), None)
        return take_result(operation, status)

    # ------------------------------------------------------------------ several requests

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Block until all operations are complete."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Block until all operations are complete; return the received objects."""
        operations = [one.operation for one in requests if one.operation is not None]
        begin = operations[0].task.clock if operations else 0.0
        _wait_together(operations, every=True)
        if statuses is None:
            results = [one._finish_one(None) for one in requests]
        else:
            filled = [Status() for _ in requests]
            results = [one._finish_one(status) for one, status in zip(requests, filled)]
            fill_statuses(statuses, filled)
        if operations:
            task = operations[0].task
            if task.scheduler.timeline is not None:
                line = sys._getframe(1)
                task.scheduler.timeline.call(task, "Waitall", begin, line, of=len(operations))
        return results

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Block until one operation is complete; return its position, or UNDEFINED if all requests are null."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Block until one operation is complete; return its position and the received object.

        The position is UNDEFINED if all requests are null.
        """
        operations = [one.operation for one in requests if one.operation is not None]
        if not operations:
            return UNDEFINED, _nothing(status)
        _wait_together(operations, every=False)
        position = _done_positions(requests)[0]
        return position, requests[position]._finish_one(status)

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Block until at least one operation is complete; return the positions of all complete ones.

        Returns None if all requests are null.
        """
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Block until at least one operation is complete; return positions and objects of all complete ones.

        Returns ``(None, None)`` if all requests are null.
        """
        operations = [one.operation for one in requests if one.operation is not None]
        if not operations:
            return None, None
        _wait_together(operations, every=False)
        return _take_done(requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Return True if all operations are complete; the requests become null then."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all operations are complete, and the received objects, or None if they are not."""
        if not _look(requests, every=True):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the position of a complete request or UNDEFINED, and True if one is complete or all are null."""
        return cls.testany(requests, status)[:2]

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Return the position of a complete request, whether there is one, and the received object.

        If none is complete, the position is UNDEFINED and the object None. If all requests are null, the second value
        is True.
        """
        if all(one.operation is None for one in requests):
            return UNDEFINED, True, _nothing(status)
        if not _look(requests, every=False):
            return UNDEFINED, False, None
        position = _done_positions(requests)[0]
        return position, True, requests[position]._finish_one(status)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Return the positions of all complete requests; an empty list if none is, None if all are null."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the positions and objects of all complete requests; empty lists if none is complete.

        Returns ``(None, None)`` if all requests are null.
        """
        if all(one.operation is None for one in requests):
            return None, None
        if not _look(requests, every=False):
            return [], []
        return _take_done(requests, statuses)

    def _finish_one(self, status: Status | None) -> Any:
        return _nothing(status) if self.operation is None else self._take(status)


class Prequest(Request):
    """A persistent request: inactive until it is started, and again after each completion.

    Args:
        begin: starts the operation and returns it.
    """

    def __init__(self, begin: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self._begin = begin

    def __bool__(self) -> bool:
        return self._begin is not None

    def Start(self) -> None:
        """Start the operation once more."""
        if self._begin is None:
            return
        self.operation = operation = self._begin()
        operation.task.active[id(self)] = self

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start all."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Free the request."""
        super().Free()
        self._begin = None


def take_result(operation: Any, status: Status | None) -> Any:
    """Write received data, fill the status, and return the object of a complete lower-case operation."""
    task = operation.task
    if isinstance(operation, Message):
        if operation.end > task.clock:
            task.clock = operation.end
        if operation.data is not None and operation.mode != "buffered":
            _notice_change(operation, operation.payload.read(), operation.data)
        if status is not None:
            payload = operation.payload
            status.fill(operation.source, operation.tag, payload.nbytes, payload.dtype)
        return None
    if isinstance(operation, Receive):
        if operation.name == "cancelled":
            _nothing(status)
            if status is not None:
                status.cancelled = True
            return None
        if operation.before is not None:
            _notice_change(operation, operation.target.read(), operation.before)
        return received(operation, status)
    task.settle()
    return operation.take()


def _notice_change(operation: Any, array: Any, before: Any) -> None:
    if _content(array) != _content(before):
        scheduler = operation.task.scheduler
        where = place_in_stack(operation.task.rank, sys._getframe(1))
        faults.note_changed(scheduler, operation, where)


def _content(array: Any) -> list[bytes]:
    """Return the bytes that are data, without the padding of structured values."""
    return [array[part].tobytes() for part in array.dtype.names or ()] or [array.tobytes()]


def _nothing(status: Status | None) -> Any:
    """Fill the status of a null request."""
    if status is not None:
        status.__dict__.update(vars(Status()))
    return None


def _wait_together(operations: list[Any], every: bool) -> None:
    """Block until all, or any, of some operations are complete."""
    if not (all if every else any)(operation.done for operation in operations):
        task, scheduler = operations[0].task, operations[0].task.scheduler
        distinct = list({id(operation): operation for operation in operations}.values())
        scheduler.block(WaitsTogether(scheduler, task, distinct, every))


def _done_positions(requests: Sequence[Request]) -> list[int]:
    return [i for i, one in enumerate(requests) if one.operation is not None and one.operation.done]


def _take_done(requests: Sequence[Request], statuses: list[Status] | None) -> tuple[list[int], list[Any]]:
    places = _done_positions(requests)
    filled = [Status() for _ in places]
    results = [requests[place]._take(status) for place, status in zip(places, filled)]
    fill_statuses(statuses, filled)
    return places, results


def _look(requests: Sequence[Request], every: bool) -> bool:
    """Return whether all, or any, are complete; if not, let other ranks run first and test once more."""
    operations = [one.operation for one in requests if one.operation is not None]
    check = all if every else any
    if not check(operation.done for operation in operations):
        scheduler = current_scheduler()
        if scheduler is not None:
            scheduler.poll(operations[0])
    return check(operation.done for operation in operations)
