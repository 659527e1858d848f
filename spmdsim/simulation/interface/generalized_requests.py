"""Generalized requests: operations of the program itself, which it completes by a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import finish
from spmdsim.simulation.engine.scheduler import Task, current_task
from spmdsim.simulation.interface.requests import Request

_Function = Callable[..., Any] | None


class ProgramOperation:
    """An operation that the program completes.

    Attributes:
        done: True if the program has completed it.
        result: the object that ``wait`` returns.
    """

    name = "Grequest"
    tag = source = dest = 0

    def __init__(
        self, task: Task, query: _Function, free: _Function, cancel: _Function, args: Any, kwargs: Any
    ) -> None:
        self.task, self.comm = task, task.self_comm._shared
        self._query, self._free, self._cancel = query, free, cancel
        self._args, self._kwargs = args or (), kwargs or {}
        self.done = False
        self.waiter: Any = None
        self.result: Any = None

    def take(self, status: Status | None) -> Any:
        """Return the object after the program's functions were called; ``status`` is filled."""
        self.fill(status)
        self._call(self._free)
        return self.result

    def fill(self, status: Status | None) -> None:
        """Fill a status by the program's function; None: not wanted."""
        filled = Status()
        self._call(self._query, filled)
        if status is not None:
            status.copy_from(filled)

    def cancel(self) -> None:
        """Call the program's function that cancels the operation."""
        self._call(self._cancel, self.done)

    def _call(self, function: _Function, *first: Any) -> None:
        """Call a function of the program, if there is one.

        Args:
            function: the function, or None.
            first: the arguments before those of ``Grequest.Start``.

        Raises:
            MPIError: If the function raises an exception.
        """
        if function is None:
            return
        try:
            function(*first, *self._args, **self._kwargs)
        except MPIError:
            raise
        except Exception as error:
            raise MPIError(
                "ERR_OTHER", f"a function of Grequest.Start raised {type(error).__name__}: {error}"
            ) from error


class Grequest(Request):
    """A request of an operation that the program itself completes."""

    @classmethod
    def Start(
        cls,
        query_fn: _Function = None,
        free_fn: _Function = None,
        cancel_fn: _Function = None,
        args: tuple[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Grequest:
        """Return the request of a new operation.

        Args:
            query_fn: function of a status, which it fills when the request is waited for or tested.
            free_fn: function that is called when the request is freed.
            cancel_fn: function of a flag that is True if the operation is complete; it cancels the operation.
            args: further positional arguments of the functions.
            kwargs: keyword arguments of the functions.
        """
        task = current_task()
        assert task is not None
        request: Grequest = cls(operation=ProgramOperation(task, query_fn, free_fn, cancel_fn, args, kwargs))
        return request

    def Complete(self) -> None:
        """Mark the operation complete."""
        self.complete()

    def complete(self, obj: Any = None) -> None:
        """Mark the operation complete.

        Args:
            obj: the object that ``wait`` returns.

        Raises:
            MPIError: If the request is null.
        """
        operation = self.operation
        if operation is None:
            raise MPIError("ERR_REQUEST", "complete: the request is REQUEST_NULL")
        operation.result = obj
        if not operation.done:
            finish(operation.task.scheduler, operation)
