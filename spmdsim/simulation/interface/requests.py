"""Requests: operations that were started, and the calls that wait for or test one or several of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from spmdsim.simulation.data.constants import UNDEFINED, MPIError
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.open_handles import add_handle, remove_handle
from spmdsim.simulation.data.status import Status, fill_statuses
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.mailboxes import JointWait, Message, Receive, finish
from spmdsim.simulation.engine.scheduler import current_scheduler
from spmdsim.simulation.engine.transfer import complete_receive, complete_send, set_receive_times
from spmdsim.simulation.engine.wildcards import match_posted
from spmdsim.simulation.findings import faults
from spmdsim.simulation.findings.problems import place_in_stack


class Request(Handle):
    """A started operation; after a completed wait it is null.

    Attributes:
        operation: the message, receive or collective call; None for a null request.
    """

    operation: Any = None
    _begin: Callable[[], Any] | None = None

    def __new__(cls, request: Request | None = None, operation: Any = None) -> Any:
        """Return a second handle of a request, or the request of a new operation."""
        self = super().__new__(cls, request)
        if operation is not None:
            self.operation = operation
            operation.task.active[id(operation)] = self
            operation.task.scheduler.return_to_program()
        return self

    def __init__(self, request: Request | None = None, operation: Any = None) -> None:
        pass

    def __bool__(self) -> bool:
        return self.operation is not None or self._begin is not None

    # ------------------------------------------------------------------ one request

    def Wait(self, status: Status | None = None) -> bool:
        """Block until the operation is complete, as ``wait`` does; return True.

        Args:
            status: filled as in ``wait``; None: not wanted.
        """
        self._wait(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Block until the operation is complete; return its object, or None for a buffer.

        The request becomes null. Waiting for a null request returns None at once. If the program changed a buffer
        during the operation, an error is added to the report.

        Args:
            status: filled with source, tag and size of the message; with an empty status for a null request. A
                collective does not fill it. None: not wanted.

        Returns:
            The object of a lower-case receive or collective. None for buffers, sends and barriers.
        """
        return self._wait(status)

    def _wait(self, status: Status | None) -> Any:
        """Block, fill ``status`` and return as ``wait`` does, which a class of the program may replace."""
        operation = self.operation
        if operation is None:
            return _fill_null_status(status)
        task = operation.task
        begin = task.scheduler.enter_call(task)
        if not operation.done:
            operation.waiter = task.scheduler.current
            task.scheduler.block(operation)
        result = self._take(status)
        if task.scheduler.observes_calls:
            task.scheduler.leave_call(task, "Wait", begin, sys._getframe(1), of=operation.name)
        return result

    def Test(self, status: Status | None = None) -> bool:
        """Return True if the operation is complete; the request then becomes null, as after a wait.

        Args:
            status: filled as in ``wait`` if the operation is complete; None: not wanted.
        """
        return self._test(status)[0]

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return True if the operation is complete, and its object; (False, None) if it is not.

        The request of a complete operation becomes null. A null request gives (True, None). If the operation is not
        complete, other ranks run once before it is tested again.

        Args:
            status: filled as in ``wait`` if the operation is complete; None: not wanted.

        Returns:
            True if the operation is complete; the object that ``wait`` would return, or None.
        """
        return self._test(status)

    def _test(self, status: Status | None) -> tuple[bool, Any]:
        """Fill ``status`` and return as ``test`` does, which a class of the program may replace."""
        operation = self.operation
        if operation is None:
            return True, _fill_null_status(status)
        if not operation.done:
            operation.task.scheduler.poll(operation)
            if not operation.done:
                return False, None
        return True, self._take(status)

    def Get_status(self, status: Status | None = None) -> bool:
        """Return True if the operation is complete; keep the request, so that it can be waited for.

        A null request is complete. If the operation is not complete, other ranks run once before it is tested again.
        Unlike ``Test``, this call does not finish a receive: wait or test before you read the buffer.

        Args:
            status: filled for a null request, and for a complete receive that has a message; otherwise left
                unchanged. None: not wanted.
        """
        operation = self.operation
        if operation is None:
            _fill_null_status(status)
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
        """Cancel a receive that has not matched a message; do nothing for other operations.

        A cancelled receive is complete. The status of its wait says that it is cancelled.

        Raises:
            MPIError: If the request is null (ERR_REQUEST).
        """
        operation = self.operation
        if not self:
            raise MPIError("ERR_REQUEST", "Cancel: the request must not be REQUEST_NULL")
        if hasattr(operation, "cancel"):
            operation.cancel()
        elif isinstance(operation, Receive) and not operation.done:
            box = operation.comm.own_boxes[operation.dest]
            if box.withdraw(operation):
                operation.name = "cancelled"
                finish(operation.task.scheduler, operation)
                match_posted(operation.task.scheduler, box)

    cancel = Cancel

    def Free(self) -> None:
        """Free the request; the operation continues. Raises an MPI error for a null request."""
        if not self:
            raise MPIError("ERR_REQUEST", "the request is REQUEST_NULL")
        self.free()

    def free(self) -> None:
        """Free the request if it is not null; the operation continues."""
        if self.operation is not None:
            self.operation.task.active.pop(id(self.operation), None)
        remove_handle(self)
        self.operation = self._begin = None

    def _take(self, status: Status | None) -> Any:
        """Make the request null, and return the result of its complete operation.

        Args:
            status: filled as in ``wait``; None: not wanted.
        """
        operation, self.operation = self.operation, None
        task = operation.task
        task.active.pop(id(operation), None)
        task.scheduler.enter_call(task)
        result = take_result(operation, status)
        task.scheduler.return_to_program()
        return result

    # ------------------------------------------------------------------ several requests

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Block until all operations are complete, as ``waitall`` does; return True.

        Args:
            requests: the requests; null ones are complete.
            statuses: filled with one status per request; None: not wanted.
        """
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Block until all operations are complete; return one object per request, in order.

        For a lower-case receive or collective it is the received object; it is None for a buffer, a send and a null
        request. For example, an ``irecv`` and an ``isend`` give ``[object, None]``. All requests become null. An
        empty list returns [] at once.

        Args:
            requests: the requests; null ones are complete.
            statuses: filled with one status per request; a list that is too short is extended. None: not wanted.
        """
        operations = [request.operation for request in requests if request.operation is not None]
        task = operations[0].task if operations else None
        begin = task.scheduler.enter_call(task) if task is not None else 0.0
        _wait_together(operations, every=True)
        set_receive_times(operations)
        if statuses is None:
            results = [request._take_if_active(None) for request in requests]
        else:
            new_statuses = [Status() for _ in requests]
            results = [request._take_if_active(status) for request, status in zip(requests, new_statuses)]
            fill_statuses(statuses, new_statuses)
        if task is not None and task.scheduler.observes_calls:
            line = sys._getframe(1)
            task.scheduler.leave_call(task, "Waitall", begin, line, of=len(operations))
        return results

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Block until one operation is complete; return its position.

        Like ``waitany``, but without the received object.
        """
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Block until one operation is complete; return its position and the received object.

        Of several complete operations, the first in ``requests`` is returned, and its request becomes null. The
        result is (UNDEFINED, None) at once if all requests are null, or the list is empty. The object is None for a
        buffer and a send.

        Args:
            requests: the requests; null ones are ignored.
            status: filled for the returned operation, if it is not None.
        """
        operations = [request.operation for request in requests if request.operation is not None]
        if not operations:
            return UNDEFINED, _fill_null_status(status)
        _wait_together(operations, every=False)
        position = _done_positions(requests)[0]
        return position, requests[position]._take_if_active(status)

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Block until an operation is complete; return the positions of all complete ones, ascending.

        Like ``waitsome``, but without the objects. None if all requests are null, or the list is empty.

        Args:
            requests: the requests; null ones are ignored.
            statuses: filled with one status per complete operation; None: not wanted.
        """
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Block until an operation is complete; return positions and objects of all complete ones.

        The positions are ascending, and the objects are in their order: None for a buffer and a send. The requests of
        complete operations become null. Returns ``(None, None)`` at once if all requests are null, or the list is
        empty.

        Args:
            requests: the requests; null ones are ignored.
            statuses: filled with one status per complete operation, if it is not None.
        """
        operations = [request.operation for request in requests if request.operation is not None]
        if not operations:
            return None, None
        _wait_together(operations, every=False)
        return _take_done(requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Return True if all operations are complete; the requests become null then, else stay as they are.

        If not all are complete, other ranks run once before a second test.

        Args:
            requests: the requests; null ones are complete.
            statuses: filled with one status per request if all are complete; None: not wanted.
        """
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Return True and one object per request if all operations are complete, else False and None.

        The requests become null only if all operations are complete. If the first test fails, other ranks run once
        before a second test.

        Args:
            requests: the requests; null ones are complete.
            statuses: filled with one status per request if all are complete and it is not None.
        """
        if not _test_together(requests, every=True):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the position of the first complete request, and True; (UNDEFINED, False) if none is complete.

        Like ``testany``, but without the received object.
        """
        return cls.testany(requests, status)[:2]

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Return the position of the first complete request, True, and its object.

        The request becomes null; the object is None for a buffer and a send. If none is complete, other ranks run
        once before a second test; then the values are UNDEFINED, False and None. If all requests are null, or the
        list is empty, they are UNDEFINED, True and None.

        Args:
            requests: the requests; null ones are ignored.
            status: filled for the returned operation, if it is not None.
        """
        if all(request.operation is None for request in requests):
            return UNDEFINED, True, _fill_null_status(status)
        if not _test_together(requests, every=False):
            return UNDEFINED, False, None
        position = _done_positions(requests)[0]
        return position, True, requests[position]._take_if_active(status)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Return the positions of all complete requests, ascending; [] if none is complete.

        Like ``testsome``, but without the objects. None if all requests are null, or the list is empty.
        """
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the positions and objects of all complete requests; empty lists if none is complete.

        The positions are ascending, and the objects are in their order: None for a buffer and a send. Complete
        requests become null. If none is complete, other ranks run once before a second test. Returns ``(None, None)``
        if all requests are null, or the list is empty.

        Args:
            requests: the requests; null ones are ignored.
            statuses: filled with one status per complete operation, if it is not None.
        """
        if all(request.operation is None for request in requests):
            return None, None
        if not _test_together(requests, every=False):
            return [], []
        return _take_done(requests, statuses)

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Return True if all operations are complete; keep all requests, as ``Get_status`` does.

        Args:
            requests: the requests; null ones are complete.
            statuses: filled with one status per request if all are complete; None: not wanted.
        """
        new_statuses = [Status() for _ in requests]
        is_complete = all(request.Get_status(status) for request, status in zip(requests, new_statuses))
        fill_statuses(statuses, new_statuses if is_complete else [])
        return is_complete

    @classmethod
    def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the position of the first complete request, and True; keep all requests.

        The result is (UNDEFINED, False) if none is complete, and (UNDEFINED, True) if all are null.

        Args:
            requests: the requests; null ones are ignored.
            status: filled for the complete operation; None: not wanted.
        """
        active = [position for position, request in enumerate(requests) if request.operation is not None]
        for position in active:
            if requests[position].Get_status(status):
                return position, True
        if not active:
            _fill_null_status(status)
        return UNDEFINED, not active

    @classmethod
    def Get_status_some(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Return the positions of all complete requests, ascending; None if all are null. Keep all requests.

        Args:
            requests: the requests; null ones are ignored.
            statuses: filled with one status per complete operation; None: not wanted.
        """
        active = [position for position, request in enumerate(requests) if request.operation is not None]
        new_statuses = {position: Status() for position in active}
        complete = [position for position in active if requests[position].Get_status(new_statuses[position])]
        fill_statuses(statuses, [new_statuses[position] for position in complete])
        return complete if active else None

    get_status_all, get_status_any, get_status_some = Get_status_all, Get_status_any, Get_status_some

    def _take_if_active(self, status: Status | None) -> Any:
        """Return the result of the complete operation; None for a null request."""
        return _fill_null_status(status) if self.operation is None else self._take(status)


class Prequest(Request):
    """A persistent request, which is inactive before each start and after each completion.

    Args:
        begin: function that starts the operation and returns it.
    """

    def __new__(cls, request: Request | None = None, begin: Callable[[], Any] | None = None) -> Any:
        """Return a second handle of a request, or a new request of an operation."""
        self = super().__new__(cls, request)
        if begin is not None:
            self._begin = begin
            add_handle(self, "persistent request")
        return self

    def __init__(self, request: Request | None = None, begin: Callable[[], Any] | None = None) -> None:
        pass

    def Start(self) -> None:
        """Start the operation once more.

        Raises an MPI error (ERR_REQUEST) if the request is null, or if its last operation was not waited for.
        """
        if self._begin is None:
            raise MPIError("ERR_REQUEST", "the request to start is null")
        if self.operation is not None:
            raise MPIError("ERR_REQUEST", "the request is active; wait for it before it is started again")
        self.operation = operation = self._begin()
        operation.task.active[id(operation)] = self

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start all requests."""
        for request in requests:
            request.Start()


def take_result(operation: Any, status: Status | None) -> Any:
    """Finish an operation on its rank: clock, buffer and status; return the received object.

    - A send: advance the rank's modelled clock to the end of the message.
    - A receive: advance the clock, and write the data to the buffer. A cancelled receive only marks the status.
    - A collective: advance the clock, and write the received blocks. The status is not filled.

    If the program changed the buffer of a send, receive or collective since it was started, an error is added to the report. A
    buffered send has a copy, so its buffer may change.

    Args:
        operation: a done `Message`, `Receive` or `CollectiveCall`.
        status: filled with source, tag and size; marked for a cancelled receive. None: not wanted.

    Returns:
        The object that a lower-case receive or collective gives; None for other operations and a cancelled receive.
    """
    task = operation.task
    if isinstance(operation, Message):
        complete_send(operation, None)
        # The program may change the buffer of a buffered send, because the data was copied.
        if operation.data is not None and operation.mode != "buffered":
            _check_unchanged(operation, operation.payload.read(), operation.data)
        if status is not None:
            payload = operation.payload
            status.fill(operation.source, operation.tag, payload.nbytes, payload.dtype)
        return None
    if isinstance(operation, Receive):
        if operation.name == "cancelled":
            _fill_null_status(status)
            if status is not None:
                status.cancelled = True
            return None
        if operation.before is not None:
            _check_unchanged(operation, operation.target.read(), operation.before)
        return complete_receive(operation, status)
    if isinstance(operation, CollectiveCall):
        for buffer, contents in operation.before:
            _check_unchanged(operation, buffer.read(), contents)
    task.reset_counts()
    take = getattr(operation, "take", None)  # only operations of the program fill a status
    return operation.deliver() if take is None else take(status)


def _check_unchanged(operation: Any, array: Any, before: Any) -> None:
    """Add a finding if a buffer has changed during a nonblocking call.

    Args:
        operation: the message, the receive or the collective call.
        array: the elements of the buffer now.
        before: the elements when the operation was started.
    """
    if _data_bytes(array) != _data_bytes(before):
        scheduler = operation.task.scheduler
        where = place_in_stack(operation.task.rank, sys._getframe(1))
        faults.report_changed(scheduler, operation, where)


def _data_bytes(array: Any) -> list[bytes]:
    """Return the data of an array as bytes, without the padding of structured values."""
    return [array[field].tobytes() for field in array.dtype.names or ()] or [array.tobytes()]


def _fill_null_status(status: Status | None) -> Any:
    """Fill the status of a null request, and return None."""
    if status is not None:
        status.copy_from(Status())
    return None


def _wait_together(operations: list[Any], every: bool) -> None:
    """Block until all operations are complete if ``every``, else until any one is.

    Returns at once if that is true already. One operation may be listed several times.

    Args:
        operations: operations of the running rank; may be empty if ``every``.
        every: True to wait for all of them.
    """
    if not (all if every else any)(operation.done for operation in operations):
        scheduler = operations[0].task.scheduler
        distinct = list({id(operation): operation for operation in operations}.values())
        scheduler.block(JointWait(scheduler, distinct, every))


def _done_positions(requests: Sequence[Request]) -> list[int]:
    """Return the positions of the requests whose operations are complete."""
    return [
        i for i, request in enumerate(requests) if request.operation is not None and request.operation.done
    ]


def _take_done(requests: Sequence[Request], statuses: list[Status] | None) -> tuple[list[int], list[Any]]:
    """Return the positions and the results of all complete requests, and make these requests null.

    Args:
        requests: the requests; null ones are ignored.
        statuses: filled with one status per complete request; None: not wanted.

    Returns:
        The positions in ascending order; the object of each, None for a buffer and a send. Both are empty if none is
        complete.
    """
    positions = _done_positions(requests)
    set_receive_times(requests[position].operation for position in positions)
    new_statuses = [Status() for _ in positions]
    results = [requests[position]._take(status) for position, status in zip(positions, new_statuses)]
    fill_statuses(statuses, new_statuses)
    return positions, results


def _test_together(requests: Sequence[Request], every: bool) -> bool:
    """Return True if all operations are complete; if not ``every``, True if any one is.

    If the first test fails, let the other ranks run once and test again.

    Args:
        requests: the requests; null ones are ignored. Without others, the result is ``every``.
        every: True to ask for all operations.
    """
    operations = [request.operation for request in requests if request.operation is not None]
    combine = all if every else any
    if not combine(operation.done for operation in operations):
        scheduler = current_scheduler()
        if scheduler is not None:
            scheduler.poll(operations[0])
    return combine(operation.done for operation in operations)
