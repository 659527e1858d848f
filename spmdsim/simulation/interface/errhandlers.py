"""Error handlers, which a program can create, set and call; errors of MPI calls raise exceptions with all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.engine.scheduler import current_task

#: The most error handlers that a class of a rank has at one time, as in mpi4py.
MOST_HANDLERS = 32
#: The error handlers that programs created, by rank and class.
_created: dict[tuple[int, str], list[Errhandler]] = {}


class Errhandler(Handle):
    """Error handler: one of MPI's, or a function of a program."""

    word: str | None = None
    _function: Callable[[Any, int], None] | None = None
    _owner: tuple[int, str] | None = None

    def __bool__(self) -> bool:
        return self.word is not None

    @classmethod
    def make(cls, word: str) -> Errhandler:
        """Return a new error handler with a name."""
        errhandler = cls()
        errhandler.word = word
        return errhandler

    def Free(self) -> None:
        """Free the error handler: the handle becomes null. Raises an MPI error for a null handle."""
        if not self:
            raise MPIError("ERR_ARG", "Free: the error handler must not be ERRHANDLER_NULL")
        if self._owner is not None:
            handlers = _created[self._owner]
            handlers[:] = [handler for handler in handlers if handler != self]
        self.__dict__.clear()


ERRHANDLER_NULL = Errhandler()
ERRORS_ARE_FATAL = Errhandler.make("ERRORS_ARE_FATAL")
ERRORS_RETURN = Errhandler.make("ERRORS_RETURN")
ERRORS_ABORT = Errhandler.make("ERRORS_ABORT")


class ErrhandlerHolder:
    """A handle of an object with an error handler."""

    _errhandler: Errhandler = ERRORS_RETURN

    def _check_usable(self) -> None:
        """Raise an MPI error if the handle is null; a null file has an error handler."""

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Any, int], None]) -> Errhandler:
        """Return an error handler that calls a function.

        Args:
            errhandler_fn: function of the object and the error code.

        Raises:
            RuntimeError: If the class has 32 error handlers already.
        """
        task = current_task()
        owner = (task.rank if task is not None else -1, cls.__name__)
        handlers = _created.setdefault(owner, [])
        if len(handlers) >= MOST_HANDLERS:
            raise RuntimeError(f"cannot create more than {MOST_HANDLERS} error handlers; free one")
        errhandler = Errhandler.make("function")
        errhandler._function, errhandler._owner = errhandler_fn, owner
        handlers.append(Errhandler(errhandler))
        return errhandler

    def Get_errhandler(self) -> Errhandler:
        """Return the error handler."""
        self._check_usable()
        return Errhandler(self._errhandler)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set the error handler, which ``Call_errhandler`` calls; errors of MPI calls raise exceptions."""
        self._check_usable()
        if not errhandler:
            raise MPIError("ERR_ARG", "errhandler must not be ERRHANDLER_NULL")
        self._errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the function of the error handler; do nothing for an error handler of MPI."""
        self._check_usable()
        if self._errhandler._function is not None:
            self._errhandler._function(self, errorcode)
