"""Hooks of the interpreter by which a failure of this rank ends the job, and not only this rank.

The package sets them when it is imported in a process that an MPI launcher started. Most do nothing before MPI runs on
several ranks. Exceptions, threads, exit handlers, ``SystemExit``, ``os._exit`` and closed files of MPI have a hook
each.
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

from spmdsim.errors import LauncherError, SpmdError, WorldError
from spmdsim.launcher import is_root, is_simulated
from spmdsim.shutdown import stop
from spmdsim.shutdown.exit_notes import find_job_folder
from spmdsim.shutdown.phase_watch import end_before_mpi, read_deadline, watch_mpi_import, watch_shutdown

if TYPE_CHECKING:
    from mpi4py import MPI

#: How the system calls MPI's sockets and event queues.
MPI_FILE_KINDS = "socket:", "anon_inode:[event"
#: The files of MPI that were open when a world was made, with what the system calls them.
_mpi_files: dict[int, str] = {}
#: The exit code with which an exception ends this program, and the exception in words. Empty before that.
_exit_reason: list[tuple[int, str]] = []
#: What error lines call the program, if it has chosen a name.
_program_name: list[str] = []
#: The process whose hooks these are. A process that it forks ends no job.
_hooked_process: list[int] = []
#: Called before ``os._exit(0)``.
_quick_exit_functions: list[Callable[[], None]] = []


def read_exit_reason() -> tuple[int, str]:
    """Return the exit code and the text of the exception that ends this program.

    Return ``(0, "")`` as long as no exception has ended it.
    """
    return _exit_reason[0] if _exit_reason else (0, "")


def set_hooks(name: str | None = None) -> None:
    """Install the hooks by which a failure of this rank ends the job.

    They are hooks for

    - exceptions that no code catches, in the main thread, in other threads, and in functions of ``atexit``;
    - exits: ``SystemExit``, ``os._exit``, and the interpreter's shutdown;
    - the import of MPI.

    MPI's files are guarded later (:func:`guard_mpi_files`). A further call installs those hooks again that the
    program has replaced, such as ``sys.excepthook``.

    Args:
        name: the program's name in error lines. None keeps the name, which is the script's at first.
    """
    if name is not None:
        _program_name[:] = [name]
    hook_threads()
    hook_exit_callbacks()
    sys.excepthook = _end_job_on_exception
    hook_exit()
    hook_quick_exit()
    hook_shutdown()
    watch_mpi_import()
    atexit.unregister(_end_before_mpi_at_exit)
    atexit.register(_end_before_mpi_at_exit)


def _end_before_mpi_at_exit() -> None:
    """End the job at the exit of a rank that fails before it starts MPI; else do nothing.

    Do nothing also after a LauncherError: all ranks raise it, so none waits in MPI's start.

    This is a function at exit. A forked child has it, too:

    - In a child that a rank with MPI has forked, exit at once. Otherwise the child would come to the functions at exit
      that end MPI, but MPI runs in the rank alone.
    - In other forked children, do nothing.
    """
    if stop.is_forked():
        stop.flush_output()
        stop.exit_now(read_exit_reason()[0])
    code, kind = read_exit_reason()
    if os.getpid() in _hooked_process and kind != LauncherError.__name__:
        end_before_mpi(code)


# -- exceptions -----------------------------------------------------------------------------------------------


def _end_job_on_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """End the job after an exception that no code of the program has caught.

    This is ``sys.excepthook``. In the first three cases it returns, and the exception's exit code is stored for
    :func:`read_exit_reason`:

    - The process is a child that a rank has forked, and the exception is a user's mistake (SpmdError): print one line.
    - A launcher started the ranks, but they do not see each other (LauncherError): rank 0 alone prints a line.
    - MPI does not run on several ranks, or other exceptions in a forked child: print the exception as Python does.
    - MPI runs on several ranks: print the reasons of all ranks that stop, end the job if other ranks run, and exit this
      rank. The function does not return.

    Args:
        kind: the exception's type.
        error: the exception.
        trace: its traceback.
    """
    name = _program_name[0] if _program_name else Path(sys.argv[0]).name
    if stop.is_forked() and isinstance(error, SpmdError):
        stop.write_line(stop.describe_error(error, name))
        _exit_reason[:] = [(stop.find_exit_code(error), kind.__name__)]
        return
    if _find_several_ranks() is None:
        if not isinstance(error, LauncherError):
            sys.__excepthook__(kind, error, trace)
        elif is_root():
            stop.write_line(stop.describe_error(error, name))
        _exit_reason[:] = [(stop.find_exit_code(error), kind.__name__)]
        return
    try:
        code = stop.stop(error.with_traceback(trace), name)
    except BaseException as second:  # most likely no memory is left
        code = 1
        os.write(2, f"{kind.__name__}, and {type(second).__name__} while the job was ended\n".encode())
    stop.abort_together(code)


def hook_threads() -> None:
    """End the job when an exception ends a thread of this rank, which Python would only print."""
    threading.excepthook = _end_job_on_thread_exception


def _end_job_on_thread_exception(args: threading.ExceptHookArgs) -> None:
    """End the job because a thread of a rank raised an exception other than SystemExit.

    This is ``threading.excepthook``. Without several ranks, print the exception as Python does. Otherwise print it with
    rank and thread, and end the job with code 1.

    Args:
        args: the exception, its traceback and its thread, as Python passes them.
    """
    if args.exc_type is SystemExit:
        return
    comm = _find_several_ranks()
    if comm is None:
        threading.__excepthook__(args)
        return
    lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
    thread = args.thread.name if args.thread else "?"
    stop.end_job(f"rank {comm.rank} of {comm.size}, thread {thread}:\n{''.join(lines).rstrip()}", 1)


def hook_exit_callbacks() -> None:
    """Set a hook that ends the job when a function of ``atexit`` raises.

    Without it, Python would only print the exception, and exit as if nothing had happened. The hook,
    ``sys.unraisablehook``, prints rank and exception, and ends the job with the exception's exit code, at least 1.
    The previous hook is called instead if MPI does not run on several ranks, or if the exception comes from other
    code, such as ``__del__``. A second call of this function changes nothing.
    """
    previous_hook = sys.unraisablehook
    if previous_hook.__module__ == __name__:
        return

    def end_job_on_callback_error(args: sys.UnraisableHookArgs) -> None:
        comm, error = _find_several_ranks(), args.exc_value
        if comm is None or error is None or "atexit" not in (args.err_msg or ""):
            previous_hook(args)
            return
        text = f"rank {comm.rank} of {comm.size}, at exit:\n{stop.describe_error(error, '')}"
        stop.end_job(text, stop.find_exit_code(error) or 1)

    sys.unraisablehook = end_job_on_callback_error


# -- exits ----------------------------------------------------------------------------------------------------


def hook_exit() -> None:
    """Set a hook that stores the exit code with which ``SystemExit`` ends this process.

    Functions of ``atexit`` can then read the code (:func:`read_exit_reason`), which Python does not tell them.

    The attribute ``code`` of SystemExit becomes a property. When no code has caught the exception, the interpreter
    itself reads the attribute, which the property sees: no Python frame calls it. Then it stores the code.
    ``sys.exit`` becomes a function in Python, because the original raises no exception object of which the attribute
    would be read. A second call changes nothing.
    """
    member = vars(SystemExit)["code"]
    if isinstance(member, property):  # hooked already
        return

    def code(error: SystemExit) -> object:
        value = member.__get__(error)
        if sys._getframe().f_back is None:
            _exit_reason[:] = [(stop.find_exit_code(error), stop.describe_system_exit(error))]
        return value

    # SystemExit is written in C: setattr refuses it, and vars() gives a view of its dict that cannot be changed.
    attributes = next((value for value in gc.get_referents(vars(SystemExit)) if isinstance(value, dict)), {})
    attributes["code"] = property(code, member.__set__, member.__delete__)
    with suppress(AttributeError):  # another Python than CPython
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))

    def exit_program(status: object = None, /) -> None:
        raise SystemExit(status)  # sys.exit in C raises no exception object of which the code would be read

    exit_program.__name__ = exit_program.__qualname__ = "exit"
    sys.exit = exit_program  # type: ignore[assignment]


def hook_quick_exit() -> None:
    """Replace ``os._exit`` by a function that ends the job as other exits do.

    Launchers do not name the rank that exits, and some take the code 0 for a good end. The new function

    - with a code that is not 0: prints the rank and the line of the call, ends the job if MPI has not started yet
      (:func:`end_before_mpi`), and exits;
    - with the code 0: calls the functions of :func:`run_before_quick_exit`, the last one first, and exits.

    In a process that this one forks later, it exits at once. If the forked process calls `hook_quick_exit`, this holds
    for the forked process instead of its parent.
    """
    is_hooked = bool(_hooked_process)
    _hooked_process[:] = [os.getpid()]  # a supervisor sets hooks before it forks the rank
    if is_hooked:
        return
    exit_now = os._exit

    def quick_exit(status: int) -> NoReturn:
        """Print the exit or call the functions of `run_before_quick_exit`, end the job, then exit."""
        if os.getpid() in _hooked_process:
            if status:
                _print_quick_exit(status, sys._getframe(1))
            else:
                for function in reversed(_quick_exit_functions):
                    function()
            end_before_mpi(status)
        exit_now(status)

    os._exit = quick_exit


def run_before_quick_exit(function: Callable[[], None]) -> None:
    """Call a function before ``os._exit(0)``, which Python's functions at exit do not see."""
    hook_quick_exit()
    _quick_exit_functions.append(function)


def _print_quick_exit(status: int, frame: FrameType) -> None:
    """Print which rank calls ``os._exit``, and where.

    Do nothing if a starter names the rank, or if MPI does not run on several ranks.

    Args:
        status: the exit code of the call.
        frame: the frame that calls ``os._exit``.
    """
    comm = None if find_job_folder() is not None else _find_several_ranks()
    if comm is not None:
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        os.write(2, f"rank {comm.rank} of {comm.size} leaves with os._exit({status}) at {line}\n".encode())


def hook_shutdown() -> None:
    """Set a hook that watches the interpreter's shutdown (:func:`watch_shutdown`).

    The main program is over, but a thread or a destructor may block, so that this rank never ends. The watch starts
    before the interpreter waits for threads. Without MPI on several ranks, nothing is watched. A second call changes
    nothing.
    """
    wait_for_threads = threading._shutdown  # type: ignore[attr-defined]
    if wait_for_threads.__module__ == __name__:  # hooked already
        return

    def shutdown() -> None:
        comm = _find_several_ranks()
        if comm is not None:
            watch_shutdown(comm.rank, comm.size, read_deadline())
        wait_for_threads()

    threading._shutdown = shutdown  # type: ignore[attr-defined]


# -- MPI's open files ---------------------------------------------------------------------------------------
# An MPI library without them hangs where it ends, and may print a warning for each look at its queue, without end.


def guard_mpi_files() -> None:
    """Protect the files of MPI that are open now from ``os.close`` and ``os.closerange``.

    Both raise WorldError for a file of MPI as long as MPI runs. All sockets and event queues that this process has open
    now count as MPI's. Without /proc, no file is protected. A further call adds files that were opened since. In a
    simulation nothing is done, because MPI has no files there.
    """
    if is_simulated():
        return
    if not _mpi_files:
        os.close = _refuse_mpi_files(os.close, lambda number: (number,))
        os.closerange = _refuse_mpi_files(os.closerange, range)
    with suppress(OSError):
        names = {int(number): _name_file(int(number)) for number in os.listdir("/proc/self/fd")}
        _mpi_files.update({number: name for number, name in names.items() if name.startswith(MPI_FILE_KINDS)})


def _refuse_mpi_files(
    close: Callable[..., None], list_files: Callable[..., Iterable[int]]
) -> Callable[..., None]:
    """Return a function like ``close`` that raises WorldError for files that MPI needs.

    When it raises, no file is closed. A file counts as MPI's if it was guarded (:func:`guard_mpi_files`), its number
    still refers to that file, and MPI still runs. So a number that another file has by now can be closed.

    Args:
        close: ``os.close`` or ``os.closerange``, which return None.
        list_files: returns the numbers of the files that ``close`` closes when it is called with these arguments.
    """

    @wraps(close)
    def close_other_files(*numbers: Any) -> None:
        """Close the files unless MPI needs one of them and still runs."""
        for number in _mpi_files.keys() & set(list_files(*numbers)):
            if _mpi_files[number] == _name_file(number) and stop.find_active_world() is not None:
                code, line = (frame := sys._getframe(1)).f_code, frame.f_lineno
                call = f"{os.path.basename(code.co_filename)}:{line}: os.{close.__name__}"
                raise WorldError(
                    f"{call}({', '.join(map(str, numbers))}) would close files that MPI needs: close only those that the "
                    "program has opened"
                )
        close(*numbers)

    return close_other_files


def _name_file(number: int) -> str:
    """Return what the system calls an open file of this process, such as ``socket:[7]``.

    Return "" if the system does not tell it.
    """
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""


def _find_several_ranks() -> MPI.Comm | None:
    """Return the communicator of all ranks; None unless MPI runs here on several."""
    comm = stop.find_active_world()
    return comm if comm is not None and comm.size > 1 else None
