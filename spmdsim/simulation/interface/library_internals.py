"""Internal functions of ``mpi4py.MPI``, which mpi4py's own Python modules use."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from threading import Lock
from typing import Any

from spmdsim.simulation.data.derived_types import Datatype
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.open_handles import remove_handle
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.scheduler import current_task
from spmdsim.simulation.interface.intercommunicators import Intercomm, IntercommState
from spmdsim.simulation.interface.simulated_comm import CommunicatorState, Intracomm


def _comm_lock_table(comm: Any) -> dict[Hashable, Lock]:
    """Return the locks of a rank's communicator, by key."""
    comm._end.running()
    table: dict[Hashable, Lock] = comm._shared.forming.setdefault(("locks", comm._task.rank), {})
    return table


def _comm_lock(comm: Any, key: Hashable | None = None) -> Lock:
    """Return the lock of a rank's communicator with a key."""
    return _comm_lock_table(comm).setdefault(key, Lock())


def _commctx_intra(comm: Any) -> tuple[Any, int]:
    """Return a communicator of the same ranks and a tag, for messages that the program does not see."""
    return comm._hidden("context"), 0


def _commctx_inter(comm: Any) -> tuple[Any, int, Any, bool]:
    """Return a copy of an intercommunicator and facts on it.

    Args:
        comm: the intercommunicator. The facts are a tag, the communicator of the local group, and True for the
            first group.
    """
    shared, side = comm._shared, comm._side
    if "context" not in shared.forming:
        hidden = IntercommState(shared.scheduler, shared.groups, f"{shared.name}.context")
        local = [
            CommunicatorState(shared.scheduler, group, f"{shared.name}.local") for group in shared.groups
        ]
        shared.forming["context"] = hidden, local
    hidden, local = shared.forming["context"]
    context = Intercomm.make(hidden, 0, comm._task)
    own_side = Intracomm.make(local[side], comm._rank, comm._task)
    for handle in (context, own_side):
        remove_handle(handle)  # the program does not get it
    return context, 0, own_side, side == 0


def _typecode(datatype: Datatype) -> str | None:
    """Return the NumPy character of a basic type, None for other types."""
    if not datatype or not datatype.is_basic or datatype.dtype.fields is not None:
        return None
    return datatype.typechar


def _typealign(datatype: Datatype) -> int | None:
    """Return the alignment of a basic type in bytes, None for other types."""
    if not datatype or not datatype.is_basic:
        return None
    return datatype.alignment


def _sizeof(arg: Any) -> int:
    """Return the bytes of an object of MPI in C: 24 for a status, 8 for a handle.

    Args:
        arg: the object, or its class.

    Raises:
        TypeError: If it is no object of MPI.
    """
    kind = arg if isinstance(arg, type) else type(arg)
    if issubclass(kind, Status):
        return 24
    if issubclass(kind, Handle):
        return 8
    raise TypeError(f"_sizeof: arg must be an object of MPI or its class, got {arg!r}")


def _addressof(arg: Any) -> int:
    """Return the address of a status, or of memory with the number of a handle's object.

    Values that are written to the number's memory have no effect.

    Args:
        arg: the status or the handle.
    """
    _sizeof(arg)
    if isinstance(arg, Handle):
        # The handle refers to the memory, so that it exists as long as the handle.
        arg._number_in_memory = ctypes.c_uint64(arg.handle)
        return ctypes.addressof(arg._number_in_memory)
    return ctypes.addressof(arg)


def _handleof(arg: Any) -> int:
    """Return the number of the object of MPI to which a handle refers; the address of a status."""
    _sizeof(arg)
    return arg.handle if isinstance(arg, Handle) else ctypes.addressof(arg)


def _set_abort_status(status: int) -> None:
    """Set the exit code of the rank, if its program ends without one."""
    task = current_task()
    if task is not None:
        task.exit_code = int(status)
