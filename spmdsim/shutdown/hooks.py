"""Hooks of the interpreter by which a failure of this rank ends the job, and not only this rank.

The package sets them when it is imported in a process that an MPI launcher started. They do nothing before MPI runs on several
ranks. Exceptions, threads, exit handlers, ``SystemExit``, ``os._exit`` and closed files of MPI have a hook each.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.errors import SpmdError, WorldError
from spmdsim.shutdown import stop
from spmdsim.shutdown.exit_notes import job_folder
from spmdsim.shutdown.phase_watch import end_before_mpi, read_deadline, watch_shutdown

if TYPE_CHECKING:
    from mpi4py import MPI

#: How the system calls MPI's sockets and event queues.
MPI_FILE_KINDS = "socket:", "anon_inode:[event"
#: The files of MPI that were open when a world was made, with what the system calls them.
_mpi_files: dict[int, str] = {}
_exit_reason: list[tuple[int, str]] = []


def read_exit_reason() -> tuple[int, str]:
    """Return the exit code with which an exception ends this program, and the exception in words; 0 before that."""
    return _exit_reason[0] if _exit_reason else (0, "")


def set_hooks(name: str | None = None) -> None:
    """Set all hooks; ``name`` is what error lines call the program, the script's name by default."""
    hook_threads()
    hook_callbacks()
    hook_exceptions(name)
    hook_exit()
    hook_shutdown()
    process = os.getpid()

    def leave() -> None:
        if stop.is_forked():
            stop.flush_output()
            os._exit(read_exit_reason()[0])  # else MPI would end here, which the child has no part in
        if os.getpid() == process:
            end_before_mpi(read_exit_reason()[0])

    atexit.register(leave)


def hook_exit() -> None:
    """Remember the code with which ``SystemExit`` ends this process, for the functions that run at exit.

    Python reads the exception's attribute ``code`` when nothing has caught the exception; no Python frame is above then.
    """
    member = vars(SystemExit)["code"]
    if isinstance(member, property):  # hooked already
        return

    def code(error: SystemExit) -> object:
        value = member.__get__(error)
        if sys._getframe().f_back is None:
            _exit_reason[:] = [(stop.find_exit_code(error), stop.describe_system_exit(error))]
        return value

    # Of a type that is written in C only its own dict takes a new attribute.
    own = next((one for one in gc.get_referents(vars(SystemExit)) if isinstance(one, dict)), {})
    own["code"] = property(code, member.__set__, member.__delete__)
    with suppress(AttributeError):  # another Python than CPython
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))

    def leave(status: object = None, /) -> None:
        raise SystemExit(status)  # the one in C makes no exception of its own that could be asked

    leave.__name__ = leave.__qualname__ = "exit"
    sys.exit = leave  # type: ignore[assignment]
    _hook_failing_quick_exit()


def _hook_failing_quick_exit() -> None:
    """Have ``os._exit(5)`` print which rank left so. Some launchers do not."""
    now, process = os._exit, os.getpid()

    def quick_exit(status: int) -> NoReturn:
        comm = _find_several_ranks() if status and os.getpid() == process and job_folder() is None else None
        if comm is not None:
            frame: FrameType | None = sys._getframe(1)
            while frame and frame.f_back and frame.f_code.co_filename == __file__:
                frame = frame.f_back  # the other hook
            assert frame is not None  # for the type checker
            where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            said = f"rank {comm.rank} of {comm.size} leaves with os._exit({status}) at {where}\n"
            os.write(2, said.encode())
        if os.getpid() == process:
            end_before_mpi(status)
        now(status)

    os._exit = quick_exit


def hook_quick_exit(leave: Callable[[], None]) -> None:
    """Have ``os._exit(0)``, which all launchers but Open MPI's take for a good end, leave as any exit does."""
    now, process = os._exit, os.getpid()

    def quick_exit(status: int) -> NoReturn:
        if status == 0 and os.getpid() == process:
            leave()
        now(status)

    os._exit = quick_exit


def hook_threads() -> None:
    """End the job when a thread of this rank dies of an exception, which Python would only print."""

    def dies(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        comm = _find_several_ranks()
        if comm is None:
            threading.__excepthook__(args)
            return
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        thread = args.thread.name if args.thread else "?"
        stop.end_job(f"rank {comm.rank} of {comm.size}, thread {thread}:\n{''.join(lines).rstrip()}", 1)

    threading.excepthook = dies


def hook_callbacks() -> None:
    """End the job when what was to be done at exit raises, which Python would only print."""
    before = sys.unraisablehook

    def dies(args: sys.UnraisableHookArgs) -> None:
        comm, error = _find_several_ranks(), args.exc_value
        if comm is None or error is None or "atexit" not in (args.err_msg or ""):
            before(args)
            return
        stop.end_job(
            f"rank {comm.rank} of {comm.size}, at exit:\n{stop.describe_error(error, '')}",
            stop.find_exit_code(error) or 1,
        )

    sys.unraisablehook = dies


def hook_shutdown() -> None:
    """Watch the interpreter's shutdown from where it waits for threads: the main program is over then."""
    now = threading._shutdown  # type: ignore[attr-defined]
    if now.__module__ == __name__:  # hooked already
        return

    def shutdown() -> None:
        comm = _find_several_ranks()
        if comm is not None:
            watch_shutdown(comm.rank, comm.size, read_deadline())
        now()

    threading._shutdown = shutdown  # type: ignore[attr-defined]


def hook_exceptions(name: str | None = None) -> None:
    """End the job when an exception leaves the program."""

    def dies(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if stop.is_forked() and isinstance(error, SpmdError):
            stop.write(stop.describe_error(error, name or Path(sys.argv[0]).name))
            _exit_reason[:] = [(stop.find_exit_code(error), kind.__name__)]
            return
        if _find_several_ranks() is None:
            sys.__excepthook__(kind, error, trace)
            _exit_reason[:] = [(stop.find_exit_code(error), kind.__name__)]
            return
        try:
            code = stop.stop(error.with_traceback(trace), name or Path(sys.argv[0]).name)
        except BaseException as second:  # no memory to end well, most likely
            code = 1
            os.write(2, f"{kind.__name__}, and {type(second).__name__} while the job was ended\n".encode())
        stop.abort_together(code)

    sys.excepthook = dies


# -- MPI's open files ---------------------------------------------------------------------------------------
# An MPI library without them hangs where it ends, and may print a warning for each look at its queue, without end.


def guard_mpi_files() -> None:
    """Have ``os.close`` and ``os.closerange`` refuse files that MPI needs: those that are open now; WorldError then."""
    if not _mpi_files:
        os.close = _guarded(os.close, lambda number: (number,))
        os.closerange = _guarded(os.closerange, range)
    with suppress(OSError):
        names = {int(number): _name_file(int(number)) for number in os.listdir("/proc/self/fd")}
        _mpi_files.update({number: name for number, name in names.items() if name.startswith(MPI_FILE_KINDS)})


def _guarded(close: Callable[..., None], files: Callable[..., Iterable[int]]) -> Callable[..., None]:
    @wraps(close)
    def guarded(*numbers: Any) -> None:
        for number in _mpi_files.keys() & set(files(*numbers)):
            if _mpi_files[number] == _name_file(number) and stop.find_active_world() is not None:
                code, line = (frame := sys._getframe(1)).f_code, frame.f_lineno
                call = f"{os.path.basename(code.co_filename)}:{line}: os.{close.__name__}"
                raise WorldError(
                    f"{call}({', '.join(map(str, numbers))}) would close files that MPI needs: close only those that the "
                    "program has opened"
                )
        close(*numbers)

    return guarded


def _name_file(number: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""


def _find_several_ranks() -> MPI.Comm | None:
    """Return all ranks, or None unless MPI runs here on several."""
    comm = stop.find_active_world()
    return comm if comm is not None and comm.size > 1 else None
