"""Sessions, whose sets of ranks are all ranks and each rank alone."""

from __future__ import annotations

from typing import Any

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.engine.scheduler import Task, current_task
from spmdsim.simulation.interface.errhandlers import Errhandler, ErrhandlerHolder
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.info import INFO_NULL, Info
from spmdsim.simulation.interface.requests import Request

_SETS = ("mpi://WORLD", "mpi://SELF")


class Session(ErrhandlerHolder, Handle):
    """A session of a rank."""

    _task: Task | None = None

    def __bool__(self) -> bool:
        return self._task is not None

    @classmethod
    def Init(cls, info: Info = INFO_NULL, errhandler: Errhandler | None = None) -> Session:
        """Start a session.

        Args:
            info: not used: mpi4py has it.
            errhandler: its error handler; None: ERRORS_RETURN.
        """
        session = cls()
        session._task = current_task()
        if errhandler:
            session.Set_errhandler(errhandler)
        return session

    def _check(self) -> Task:
        """Return the session's rank; raise an MPI error for a null handle."""
        if self._task is None:
            raise MPIError("ERR_SESSION", "the session is SESSION_NULL")
        return self._task

    def _check_usable(self) -> None:
        """Raise an MPI error for a null handle."""
        self._check()

    def Finalize(self) -> None:
        """End the session: the handle becomes null."""
        self._check()
        self.__dict__.clear()

    _release = Finalize

    def Get_num_psets(self, info: Info = INFO_NULL) -> int:
        """Return the number of sets of ranks."""
        self._check()
        return len(_SETS)

    def Get_nth_pset(self, n: int, info: Info = INFO_NULL) -> str:
        """Return the name of set ``n``, counted from 0."""
        self._check()
        if not 0 <= n < len(_SETS):
            raise MPIError("ERR_ARG", f"Get_nth_pset: n must be 0 to {len(_SETS) - 1}, got {n}")
        return _SETS[n]

    def Get_info(self) -> Info:
        """Return the hints of the session: none."""
        self._check()
        return Info.Create()

    def Get_pset_info(self, pset_name: str) -> Info:
        """Return the hint ``mpi_size`` of a set: the number of its ranks."""
        return Info.Create({"mpi_size": str(self.Create_group(pset_name).size)})

    def Create_group(self, pset_name: str) -> Group:
        """Return the group of a set; raise an MPI error for another name."""
        task = self._check()
        if pset_name not in _SETS:
            raise MPIError(
                "ERR_ARG", f"Create_group: pset_name must be one of {', '.join(_SETS)}, got {pset_name!r}"
            )
        comm = task.world if pset_name == _SETS[0] else task.self_comm
        group: Group = comm.Get_group()
        return group

    def Attach_buffer(self, buf: Any) -> None:
        """Attach memory for buffered sends of this rank; see ``MPI.Attach_buffer``."""
        self._check().attach(buf)

    def Detach_buffer(self) -> Any:
        """Detach and return the memory for buffered sends."""
        return self._check().detach()

    def Flush_buffer(self) -> None:
        """Wait for buffered sends; none has to wait, because their data was copied."""
        self._check()

    def Iflush_buffer(self) -> Request:
        """Start to wait for buffered sends; return a null request, which is complete."""
        self._check()
        return Request()


SESSION_NULL = Session()
