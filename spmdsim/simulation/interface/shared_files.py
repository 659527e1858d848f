"""Files: real files that several ranks read and write, with views, and individual and shared pointers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import BYTE, Datatype
from spmdsim.simulation.data.file_views import FileView, read_pieces, write_pieces
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.message_buffers import MessageBuffer, message_buffer, receive_buffer
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.interface.collective_methods import describe_method
from spmdsim.simulation.interface.errhandlers import ErrhandlerHolder
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.info import INFO_NULL, Info
from spmdsim.simulation.interface.requests import Request
from spmdsim.simulation.interface.simulated_comm import Intracomm

_frame = sys._getframe

_ACCESS = {c.MODE_RDONLY: os.O_RDONLY, c.MODE_WRONLY: os.O_WRONLY, c.MODE_RDWR: os.O_RDWR}
_ERRORS = {
    FileNotFoundError: "ERR_NO_SUCH_FILE",
    FileExistsError: "ERR_FILE_EXISTS",
    PermissionError: "ERR_ACCESS",
    IsADirectoryError: "ERR_BAD_FILE",
    NotADirectoryError: "ERR_BAD_FILE",
}


class FileState:
    """An open file, which all ranks of its communicator share.

    Attributes:
        position: the shared pointer, in values of the view's ``etype``.
        atomicity: the flag that the program set; all accesses are atomic.
    """

    def __init__(self, path: str, amode: int) -> None:
        self.path, self.amode = path, amode
        self.stream = os.fdopen(_open(path, amode), "rb" if amode & c.MODE_RDONLY else "r+b", buffering=0)
        self.position = 0
        self.atomicity = False

    @property
    def descriptor(self) -> int:
        """The file descriptor."""
        return self.stream.fileno()

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return os.fstat(self.descriptor).st_size


def _open(path: str, amode: int) -> int:
    """Open a file; return its descriptor.

    Args:
        path: its path.
        amode: the mode of MPI.

    Raises:
        MPIError: If the mode is invalid, or the operating system refuses.
    """
    access = [flag for mode, flag in _ACCESS.items() if amode & mode]
    is_invalid = (
        len(access) != 1
        or (amode & c.MODE_RDONLY and amode & (c.MODE_CREATE | c.MODE_EXCL))
        or (amode & c.MODE_RDWR and amode & c.MODE_SEQUENTIAL)
    )
    if is_invalid:
        raise MPIError(
            "ERR_AMODE",
            f"Open: amode must have one of MODE_RDONLY, MODE_WRONLY and MODE_RDWR that fits, got {amode}",
        )
    flags = access[0]
    flags |= os.O_CREAT if amode & c.MODE_CREATE else 0
    flags |= os.O_EXCL if amode & c.MODE_EXCL and amode & c.MODE_CREATE else 0
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        raise _as_mpi_error("Open", error, path) from None


def _as_mpi_error(call: str, error: OSError, path: str) -> MPIError:
    """Return the MPI error for an error of the operating system."""
    return MPIError(_ERRORS.get(type(error), "ERR_IO"), f"{call}: {path}: {error.strerror}")


class _Completed:
    """A nonblocking access, which is complete when it is started."""

    name, done, waiter = "File", True, None

    def __init__(self, task: Any, comm: Any, nbytes: int) -> None:
        self.task, self.comm, self._nbytes = task, comm, nbytes

    def take(self, status: Status | None) -> None:
        """Fill a status with the size of the access; None: not wanted."""
        _fill(status, self._nbytes)


def _fill(status: Status | None, nbytes: int) -> None:
    """Fill a status with the size of an access; None: not wanted."""
    if status is not None:
        status.fill(c.ANY_SOURCE, c.ANY_TAG, nbytes)


class File(ErrhandlerHolder, Handle):
    """The handle of one rank on a file that the ranks of a communicator opened."""

    _state: FileState | None = None
    _comm: Any = None
    _view: FileView
    _pointer: list[int]
    _hints: dict[str, str]
    _begun: list[int]

    def __bool__(self) -> bool:
        return self._state is not None

    def _check(self) -> FileState:
        """Return the open file; raise an MPI error for a null handle."""
        if self._state is None:
            raise MPIError("ERR_FILE", "the file is FILE_NULL")
        self._comm._end.running()
        return self._state

    def _meet(self, name: str, frame: Any, value: Any = None, answer: Any = lambda calls: None) -> Any:
        """Wait for all ranks of the file; return the value that ``answer`` sets, as ``Comm._agree``."""
        self._check()
        return self._comm._agree(f"File.{name}", value, answer, frame)

    # ------------------------------------------------------------------ open and close

    @classmethod
    def Open(cls, comm: Intracomm, filename: Any, amode: int = c.MODE_RDONLY, info: Info = INFO_NULL) -> File:
        """Open a file on all ranks of a communicator; all must call it with the same name and mode.

        Args:
            comm: the communicator.
            filename: the path, relative to the rank's working folder.
            amode: the sum of MODE_RDONLY, MODE_WRONLY or MODE_RDWR and of other modes.
            info: hints, which have no effect.

        Raises:
            MPIError: If the mode is invalid, the ranks' modes differ, or the operating system refuses.
        """
        own_comm = comm._hidden("File")
        path = os.path.abspath(os.fsdecode(os.fspath(filename)))
        state = own_comm._agree("File.Open", (path, int(amode)), _open_for_all, _frame(1))
        if isinstance(state, MPIError):
            raise state
        file = cls()
        file._state, file._comm, file._view, file._begun = state, own_comm, FileView(), []
        file._pointer = [state.size() if amode & c.MODE_APPEND else 0]
        file._hints = dict(info.items())
        return file

    def Close(self) -> None:
        """Close the file on all ranks, which all must call it; the handle becomes null.

        With MODE_DELETE_ON_CLOSE the file is deleted.
        """
        state = self._check()
        self._meet("Close", _frame(1))
        if self._comm._rank == 0:
            state.stream.close()
            if state.amode & c.MODE_DELETE_ON_CLOSE and os.path.exists(state.path):
                os.unlink(state.path)
        self.__dict__.clear()

    _release = Close

    @classmethod
    def Delete(cls, filename: Any, info: Info = INFO_NULL) -> None:
        """Delete a file.

        Args:
            filename: its path.
            info: not used: mpi4py has it.

        Raises:
            MPIError: If the operating system refuses.
        """
        path = os.path.abspath(os.fsdecode(os.fspath(filename)))
        try:
            os.unlink(path)
        except OSError as error:
            raise _as_mpi_error("Delete", error, path) from None

    # ------------------------------------------------------------------ facts

    def Set_size(self, size: int) -> None:
        """Set the length of the file in bytes; all ranks must call it."""
        self._meet("Set_size", _frame(1))
        os.ftruncate(self._check().descriptor, size)

    def Preallocate(self, size: int) -> None:
        """Extend the file to ``size`` bytes if it is shorter; all ranks must call it."""
        self._meet("Preallocate", _frame(1))
        state = self._check()
        os.ftruncate(state.descriptor, max(size, state.size()))

    def Get_size(self) -> int:
        """Return the length of the file in bytes."""
        return self._check().size()

    size = property(Get_size)

    def Get_amode(self) -> int:
        """Return the mode with which the file was opened."""
        return self._check().amode

    amode = property(Get_amode)

    def Get_group(self) -> Group:
        """Return the group of the ranks that opened the file."""
        self._check()
        group: Group = self._comm.Get_group()
        return group

    group = property(Get_group)
    group_size = property(lambda self: self.Get_group().size)
    group_rank = property(lambda self: self.Get_group().rank)

    def Set_info(self, info: Info) -> None:
        """Replace the hints, which have no effect; all ranks must call it."""
        self._meet("Set_info", _frame(1))
        self._hints = dict(info.items())

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        self._check()
        return Info.Create(self._hints)

    info = property(Get_info, Set_info)

    def Set_atomicity(self, flag: bool) -> None:
        """Store a flag; all accesses are atomic. All ranks must call it."""
        self._meet("Set_atomicity", _frame(1))
        self._check().atomicity = bool(flag)

    def Get_atomicity(self) -> bool:
        """Return the flag of ``Set_atomicity``."""
        return self._check().atomicity

    atomicity = property(Get_atomicity, Set_atomicity)

    def Sync(self) -> None:
        """Wait for all ranks; what they wrote can be read afterwards."""
        self._meet("Sync", _frame(1))

    def Get_type_extent(self, datatype: Datatype) -> int:
        """Return the extent of a datatype in the file, in bytes."""
        self._check()
        return int(datatype.extent)

    # ------------------------------------------------------------------ views and pointers

    def Set_view(
        self,
        disp: int = 0,
        etype: Datatype = BYTE,
        filetype: Datatype | None = None,
        datarep: str = "native",
        info: Info = INFO_NULL,
    ) -> None:
        """Select the bytes of the file that this rank accesses, and set both pointers to 0.

        All ranks must call it; they may pass different displacements and file types.

        Args:
            disp: the first byte.
            etype: the type in which offsets are counted.
            filetype: the type whose repetitions cover the file, with gaps that are not accessible; None: ``etype``.
            datarep: "native", "internal" or "external32".
            info: not used: mpi4py has it.
        """
        view = FileView(
            int(disp), etype.own_handle(), None if filetype is None else filetype.own_handle(), datarep
        )
        self._meet("Set_view", _frame(1))
        self._view, self._pointer[0], self._check().position = view, 0, 0

    def Get_view(self) -> tuple[int, Datatype, Datatype, str]:
        """Return the displacement, the two types and the data representation of the view."""
        self._check()
        view = self._view
        return view.disp, Datatype(view.etype), Datatype(view.filetype), view.datarep

    def _sought(self, call: str, offset: int, whence: int, current: int) -> int:
        """Return the offset that ``Seek`` sets.

        Args:
            call: name of the method, for the error.
            offset: the distance from the start.
            whence: SEEK_SET, SEEK_CUR or SEEK_END.
            current: the pointer.

        Raises:
            MPIError: If the offset is negative.
        """
        starts = {
            c.SEEK_SET: 0,
            c.SEEK_CUR: current,
            c.SEEK_END: self._view.count_before(self._check().size()),
        }
        if whence not in starts or starts[whence] + offset < 0:
            raise MPIError(
                "ERR_ARG", f"{call}: offset must not lead before the start of the view, got {offset}"
            )
        return starts[whence] + offset

    def Seek(self, offset: int, whence: int = c.SEEK_SET) -> None:
        """Set the rank's pointer.

        Args:
            offset: number of values of the view's ``etype``.
            whence: SEEK_SET counts from the start, SEEK_CUR from the pointer, SEEK_END from the end.
        """
        self._check()
        self._pointer[0] = self._sought("Seek", offset, whence, self._pointer[0])

    def Get_position(self) -> int:
        """Return the rank's pointer, in values of the view's ``etype``."""
        self._check()
        return self._pointer[0]

    def Seek_shared(self, offset: int, whence: int = c.SEEK_SET) -> None:
        """Set the shared pointer, as ``Seek`` does; all ranks must call it."""
        state = self._check()
        position = self._sought("Seek_shared", offset, whence, state.position)
        self._meet("Seek_shared", _frame(1))
        state.position = position

    def Get_position_shared(self) -> int:
        """Return the shared pointer, in values of the view's ``etype``."""
        return self._check().position

    def Get_byte_offset(self, offset: int) -> int:
        """Return the byte of the file at an offset of the view."""
        self._check()
        return self._view.position_of(offset)

    # ------------------------------------------------------------------ accesses

    def _access(self, buffer: MessageBuffer, offset: int, is_write: bool) -> int:
        """Read or write a buffer at an offset of the view; return the number of bytes.

        Args:
            buffer: the buffer.
            offset: the offset, in values of ``etype``.
            is_write: True to write.

        Raises:
            MPIError: If the mode of the file forbids the access.
        """
        state, view = self._check(), self._view
        refused = c.MODE_RDONLY if is_write else c.MODE_WRONLY
        if state.amode & refused:
            raise MPIError(
                "ERR_READ_ONLY" if is_write else "ERR_ACCESS", "the mode of the file forbids this access"
            )
        pieces = view.pieces(offset, buffer.nbytes)
        is_swapped = view.datarep == "external32" and sys.byteorder == "little"
        if is_write:
            data = buffer.read()
            write_pieces(state.descriptor, pieces, (data.byteswap() if is_swapped else data).tobytes())
            return int(buffer.nbytes)
        contents = read_pieces(state.descriptor, pieces)
        count = len(contents) // buffer.dtype.itemsize
        data = np.frombuffer(contents, buffer.dtype, count)
        buffer.write(data.byteswap() if is_swapped else data)
        return len(contents)

    def _start_of(self, pointer_kind: str, buffer: MessageBuffer, name: str, frame: Any) -> int:
        """Return the offset of an access without explicit offset, and advance the pointer.

        Args:
            pointer_kind: "pointer", "shared", or "ordered": the shared pointer, in the order of the ranks.
            buffer: the buffer.
            name: name of the method.
            frame: the caller's frame, to find the line of the call.
        """
        state = self._check()
        length = buffer.nbytes // self._view.unit
        if pointer_kind == "ordered":
            return int(self._meet(name, frame, (state, length), _order_accesses))
        if pointer_kind == "shared":
            state.position += length
            return int(state.position - length)
        self._pointer[0] += length
        return int(self._pointer[0] - length)


def _open_for_all(calls: list[CollectiveCall]) -> None:
    """Open a file once; set the value of each call to its state, or to the error.

    Args:
        calls: the calls of all ranks, with the path and the mode as values.
    """
    state: Any
    path, amode = calls[0].value
    if any(call.value[1] != amode for call in calls):
        state = MPIError(
            "ERR_AMODE", f"Open: amode must be equal on all ranks, got {[call.value[1] for call in calls]}"
        )
    elif any(call.value[0] != path for call in calls):
        state = MPIError("ERR_NOT_SAME", "Open: filename must be equal on all ranks")
    else:
        try:
            state = FileState(path, amode)
        except MPIError as error:
            state = error
    for call in calls:
        call.value = state


def _order_accesses(calls: list[CollectiveCall]) -> None:
    """Set the value of each call to its offset; advance the shared pointer.

    Args:
        calls: the calls of all ranks, whose accesses follow one another in rank order.
    """
    state = calls[0].value[0]
    starts = [*accumulate((call.value[1] for call in calls), initial=state.position)]
    state.position = starts[-1]
    for call, start in zip(calls, starts):
        call.value = start


# ---------------------------------------------------------------------- methods of all kinds of accesses


def _at(self: File, offset: int, buf: Any, status: Status | None = None) -> None:
    """Template: an access at an offset."""


def _here(self: File, buf: Any, status: Status | None = None) -> None:
    """Template: an access at a pointer, or the end of one."""


def _start_at(self: File, offset: int, buf: Any) -> Request:
    """Template: the begin of an access at an offset."""
    raise NotImplementedError


def _start_here(self: File, buf: Any) -> Request:
    """Template: the begin of an access at a pointer."""
    raise NotImplementedError


def _make_access(name: str, pointer_kind: str, template: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of an access.

    Args:
        name: its name, such as "Iread_at_all". "I" makes it nonblocking, "_all" and "_ordered" collective, "_begin"
            the first half of a collective.
        pointer_kind: "at", "pointer", "shared" or "ordered".
        template: function with the signature of the method.
    """
    is_write = "rite" in name
    is_collective = "_all" in name and name[0] != "I"

    def method(self: File, *args: Any, **kwargs: Any) -> Any:
        """Access the file as the method's name says."""
        bound = dict(zip([*template.__annotations__][1:], args)) | kwargs
        buffer = message_buffer(bound["buf"]) if is_write else receive_buffer(bound["buf"], c.ANY_SOURCE)
        if is_collective:
            self._meet(name, _frame(1))
        offset = (
            bound["offset"] if pointer_kind == "at" else self._start_of(pointer_kind, buffer, name, _frame(1))
        )
        if offset < 0:
            raise MPIError("ERR_ARG", f"{name}: offset must be 0 or more, got {offset}")
        nbytes = self._access(buffer, offset, is_write)
        if name[0] == "I":
            return Request(operation=_Completed(self._comm._task, self._comm._shared, nbytes))
        if name.endswith("_begin"):
            self._begun.append(nbytes)
        else:
            _fill(bound.get("status"), nbytes)
        return None

    where = {"at": "at an offset", "pointer": "at the rank's pointer", "shared": "at the shared pointer"}
    text = (
        f"{'Write' if is_write else 'Read'} a buffer {where.get(pointer_kind, 'in the order of the ranks')}."
    )
    details = [
        "The access is complete at once; the returned request can be waited for." * (name[0] == "I"),
        "All ranks must call it." * ("_all" in name or pointer_kind == "ordered"),
        f"``{name.removesuffix('_begin')}_end`` fills the status." * name.endswith("_begin"),
    ]
    return describe_method(
        method, name, template, "\n\n".join([text, " ".join(filter(None, details))]).strip()
    )


def _make_end(name: str) -> Callable[..., Any]:
    """Return the second half of a collective access, which fills the status.

    Args:
        name: name of the method.
    """

    def method(self: File, buf: Any, status: Status | None = None) -> None:
        self._check()
        if not self._begun:
            raise MPIError("ERR_OTHER", f"{name}: the access must be begun first")
        _fill(status, self._begun.pop())

    return describe_method(
        method, name, _here, f"Finish ``{name.removesuffix('_end')}_begin``, and fill the status."
    )


def _add_accesses() -> None:
    """Add the methods that read and write to the class ``File``."""
    for verb in ("Read", "Write"):
        for pointer_kind, suffix in (
            ("at", "_at"),
            ("pointer", ""),
            ("shared", "_shared"),
            ("ordered", "_ordered"),
        ):
            blocking, starting = (_at, _start_at) if pointer_kind == "at" else (_here, _start_here)
            forms = ("", "_all") if pointer_kind in ("at", "pointer") else ("",)
            for form in forms:
                name = f"{verb}{suffix}{form}"
                setattr(File, name, _make_access(name, pointer_kind, blocking))
                if pointer_kind != "ordered":
                    other = f"I{name.lower()}"
                    setattr(File, other, _make_access(other, pointer_kind, starting))
                if form or pointer_kind == "ordered":
                    setattr(File, f"{name}_begin", _make_access(f"{name}_begin", pointer_kind, starting))
                    setattr(File, f"{name}_end", _make_end(f"{name}_end"))


_add_accesses()
FILE_NULL = File()
