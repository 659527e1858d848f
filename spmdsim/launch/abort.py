"""A failure on one rank ends the job: one traceback, the rank named, the exit code kept.

Without this, a rank that raises waits in MPI's finalisation for ranks that wait for it in a collective, for ever,
and its traceback drowns or is never seen. ``guard()`` wraps a program: whatever leaves it other than a normal
return ends all ranks within seconds, on every MPI.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from spmdsim.errors import SpmdError
from spmdsim.launch.environment import detect
from spmdsim.launch.logs import note_failure

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py import MPI

STARTERS = ("/launch/abort.py", "/launch/bootstrap.py", "/cli/main.py", "runpy.py", "<frozen runpy>")
"""Files whose frames say nothing at the top of a traceback."""

FORWARD_SECONDS = 0.2
"""Given to the launcher to pass on what was printed: some drop it when the job is aborted right after."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def active_world() -> MPI.Comm | None:
    """All ranks, if MPI is running in this process already; it is never started here."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    world: MPI.Comm = module.COMM_WORLD
    return world


def exit_code(error: BaseException) -> int:
    """The exit code an exception stands for.

    >>> exit_code(SystemExit(5)), exit_code(SystemExit()), exit_code(ValueError())
    (5, 0, 1)
    """
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return 2 if isinstance(error, SpmdError) else 1


def describe(error: BaseException, name: str) -> str:
    """What to print about an error: one line for a user's mistake, the traceback for anything else."""
    if isinstance(error, SpmdError):
        return f"{name}: error: {error}"
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            return error.code
        return f"sys.exit({error.code})" if error.code else ""
    return "".join(traceback.format_exception(without_starters(error))).rstrip()


def without_starters(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the user's program, not in what started it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(STARTERS):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def stop(error: BaseException, name: str) -> int:
    """Say once why the job stops, and return the exit code; does not return if other ranks still run.

    Args:
        error: what left the program on this rank.
        name: the program, for the beginning of an error line.
    """
    code, text = exit_code(error), describe(error, name)
    quiet_exit = isinstance(error, SystemExit) and not isinstance(error.code, str)
    if code == 0:
        return 0
    found_rank = detect()
    noted = note_failure(found_rank.rank if found_rank else 0, code)
    comm = active_world()
    if comm is None:
        _say_before_mpi(text, quiet_exit)
        return code
    if comm.size == 1:
        if not quiet_exit:
            _write(text)
        return code
    from spmdsim.launch.agree import gather_stops

    found = gather_stops(comm, text)
    agreed_code = 0 if noted else code  # our starter knows; the launcher need not complain too
    if found is None:  # another rank speaks, and has heard from all
        return agreed_code
    if len(found) < comm.size:
        _say_of_ranks(found, comm.size)
        kill(code)
    if not quiet_exit:
        _say_of_ranks(found, comm.size)
    return agreed_code


def kill(code: int) -> NoReturn:
    """End every rank of the job now."""
    sys.stdout.flush()
    sys.stderr.flush()
    comm = active_world()
    if comm is not None:
        time.sleep(FORWARD_SECONDS)
        comm.Abort(code)
    os._exit(code)


def _write(text: str) -> None:
    """Write in one piece, so that the lines of several ranks do not mix."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _say_of_ranks(found: dict[int, str], size: int) -> None:
    """Print each distinct message once, with its ranks unless all have it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in sorted(found.items()):
        ranks_of.setdefault(text, []).append(rank)
    for text, ranks in ranks_of.items():
        if len(ranks) == size:
            _write(text)
            continue
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks}"
        _write(f"{which} of {size} stopped, the job ends:\n{text}")


def _say_before_mpi(text: str, quiet_exit: bool) -> None:
    """Print when MPI is not running here: rank 0 at once, the others only if the job outlives that.

    A rank that leaves with an error before MPI started makes the launcher end the job, so when all ranks have
    the same error the others are usually gone before they speak.
    """
    found = detect()
    if quiet_exit or not text:
        return
    if found is not None and found.rank:
        time.sleep(1.0 + 0.05 * min(found.rank, 20))
        text = f"rank {found.rank} of {found.size}:\n{text}"
    _write(text)


def guard(program: Callable[[], int | None], name: str) -> int:
    """Run a program so that its failure on any rank ends all of them.

    Args:
        program: returns an exit code, or None for 0. A nonzero code on some ranks only ends the job too.
        name: how the program is called in error lines.

    Returns:
        The exit code for this process.
    """
    hook_threads()
    try:
        code = program() or 0
        if code and active_world() is not None:
            raise SystemExit(code)
        return code
    except BaseException as error:
        return stop(error, name)


def hook_threads() -> None:
    """End the job when a thread of this rank dies of an exception, which Python would only print."""

    def dies(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        comm = active_world()
        if comm is None or comm.size == 1:
            threading.__excepthook__(args)
            return
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        thread = args.thread.name if args.thread else "?"
        _write(f"rank {comm.rank} of {comm.size}, thread {thread}:\n{''.join(lines).rstrip()}")
        kill(1)

    threading.excepthook = dies


def hook_exceptions(name: str) -> None:
    """Do for uncaught exceptions what :func:`guard` does, where the program cannot be wrapped."""

    def dies(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        os._exit(stop(error.with_traceback(trace), name)) if _several() else sys.__excepthook__(
            kind, error, trace
        )

    sys.excepthook = dies


def _several() -> bool:
    comm = active_world()
    return comm is not None and comm.size > 1
