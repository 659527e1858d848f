"""What leaves a program that nobody guards is seen by hooks, so that it ends the job and not only its own rank.

They are set in every process that a launcher started, when the package is imported, and do nothing before MPI runs
there on several ranks.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn

from spmdsim.errors import SpmdError
from spmdsim.shutdown import stop
from spmdsim.shutdown.notes import job_folder

if TYPE_CHECKING:
    from mpi4py import MPI

_left_with: list[tuple[int, str]] = []


def left_with() -> tuple[int, str]:
    """The exit code of a program that an exception nobody can catch any more ends, and what it was; 0 before."""
    return _left_with[0] if _left_with else (0, "")


def protect(name: str | None = None) -> None:
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
            os._exit(left_with()[0])  # else MPI would end here, which the child has no part in
        if os.getpid() == process:
            stop.end_before_mpi(left_with()[0])

    atexit.register(leave)


def hook_exit() -> None:
    """Note the code that ``SystemExit`` ends this process with: what runs at exit cannot see it otherwise.

    Whoever raised it, by ``sys.exit``, ``exit`` or itself: Python asks the exception for its code when nobody has caught
    it, and no function runs then.
    """
    member = vars(SystemExit)["code"]
    if isinstance(member, property):  # hooked already
        return

    def code(error: SystemExit) -> object:
        value = member.__get__(error)
        if sys._getframe().f_back is None:
            _left_with[:] = [(stop.exit_code(error), stop.exit_words(error))]
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
    """Have ``os._exit(5)`` say which rank left so: of some launchers nobody learns it."""
    now, process = os._exit, os.getpid()

    def quick_exit(status: int) -> NoReturn:
        comm = _several() if status and os.getpid() == process and job_folder() is None else None
        if comm is not None:
            frame: FrameType | None = sys._getframe(1)
            while frame and frame.f_back and frame.f_code.co_filename == __file__:
                frame = frame.f_back  # the other hook
            assert frame is not None  # for the type checker
            where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            said = f"rank {comm.rank} of {comm.size} leaves with os._exit({status}) at {where}\n"
            os.write(2, said.encode())
        if os.getpid() == process:
            stop.end_before_mpi(status)
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
        comm = _several()
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
        comm, error = _several(), args.exc_value
        if comm is None or error is None or "atexit" not in (args.err_msg or ""):
            before(args)
            return
        stop.end_job(
            f"rank {comm.rank} of {comm.size}, at exit:\n{stop.describe(error, '')}",
            stop.exit_code(error) or 1,
        )

    sys.unraisablehook = dies


def hook_shutdown() -> None:
    """Watch over the interpreter's shutdown, from where it waits for threads: the main program is over then."""
    now = threading._shutdown  # type: ignore[attr-defined]
    if now.__module__ == __name__:  # hooked already
        return

    def shutdown() -> None:
        comm = _several()
        if comm is not None:
            from spmdsim.shutdown.shutdown_watch import watch_shutdown
            from spmdsim.shutdown.starting import asked_deadline

            watch_shutdown(comm.rank, comm.size, asked_deadline())
        now()

    threading._shutdown = shutdown  # type: ignore[attr-defined]


def hook_exceptions(name: str | None = None) -> None:
    """End the job when an exception leaves the program."""

    def dies(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if stop.is_forked() and isinstance(error, SpmdError):
            stop.write(stop.describe(error, name or Path(sys.argv[0]).name))
            _left_with[:] = [(stop.exit_code(error), kind.__name__)]
            return
        if _several() is None:
            sys.__excepthook__(kind, error, trace)
            _left_with[:] = [(stop.exit_code(error), kind.__name__)]
            return
        try:
            code = stop.stop(error.with_traceback(trace), name or Path(sys.argv[0]).name)
        except BaseException as second:  # no memory to end well, most likely
            code = 1
            os.write(2, f"{kind.__name__}, and {type(second).__name__} while the job was ended\n".encode())
        stop.leave_together(code)

    sys.excepthook = dies


def _several() -> MPI.Comm | None:
    """All ranks, if MPI runs here and they are several."""
    comm = stop.active_world()
    return comm if comm is not None and comm.size > 1 else None
