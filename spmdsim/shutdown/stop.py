"""End the job after a failure on this rank: print the cause once, name the rank, keep the exit code."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from spmdsim.errors import DisagreementError, SpmdError
from spmdsim.launcher import detect, has_log, is_root
from spmdsim.shutdown.exit_notes import has_left, job_folder, note_end, note_failure, note_left
from spmdsim.sides import name_ranks, sides

if TYPE_CHECKING:
    from mpi4py import MPI

#: Files whose frames say nothing at the top of a traceback.
STARTERS = ("/launch/bootstrap.py", "/cli/main.py", "runpy.py", "<frozen runpy>")
#: Given to the launcher to pass on what was printed: some drop it when the job is aborted right after.
FORWARD_SECONDS = 0.2
#: How long ending the job may take, by the starter or by MPI, before this rank goes by itself.
ENDED_SECONDS = 5.0
#: What a rank did that the others may wait for in vain.
BEFORE_MPI = "left before it started MPI,"
#: Of the messages of ranks that stop: below every library's limit on tags, and unlikely to be anybody else's.
TAG = 77_011
#: How long rank 0 waits for the other ranks to stop, too; others wait longer, one after the other. After ``sys.exit(code)``
#: mostly all ranks do that, and one of them prints something first.
SECONDS, EXIT_SECONDS = 1.0, 4.0
#: How long rank 0 may take to end the job once it speaks for others.
SPEAKS_SECONDS = 15.0
#: Exit codes as shells have them: the reader of the output has left; after Ctrl-C.
READER_LEFT, INTERRUPTED = 141, 130
exit_now = os._exit

#: The exit code that all ranks leave with, once they have agreed on one.
_agreed: list[int] = []
#: What is done by the rank that ends the job, once it has said why.
_last_functions: list[Callable[[str], None]] = []


def run_before_end(last: Callable[[str], None]) -> None:
    """Call a function with the reason before this rank ends the job."""
    _last_functions.append(last)


def _run_last_functions(text: str) -> None:
    while _last_functions:
        with suppress(Exception):  # the job ends all the same
            _last_functions.pop()((text.rstrip().splitlines() or [""])[-1])


def agree_on_code(code: int) -> None:
    """Remember that all ranks of this job exit with ``code``, so that none of them ends the others."""
    _agreed[:] = [code]


#: Not empty in a process that a rank has forked: MPI runs in the rank alone, and the child has no say in the job.
_forked: list[int] = []


def _note_fork() -> None:
    if find_active_world() is not None:
        _forked.append(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Return True if a rank with MPI has forked this process."""
    return bool(_forked)


def refusal_in_child(rank: int) -> str:
    """Return why a child that a rank has forked cannot communicate: MPI would take it for the rank."""
    return (
        f"this process is a child that rank {rank} has forked, and has no part in the job: let the rank communicate, and "
        "the child only compute"
    )


def find_active_world() -> MPI.Comm | None:
    """Return all ranks if MPI runs in this process, else None. Never start MPI."""
    module = sys.modules.get("mpi4py.MPI")
    if _forked or module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    world: MPI.Comm = module.COMM_WORLD
    return world


def find_exit_code(error: BaseException) -> int:
    """Return the exit code of a program that an exception ends.

    >>> find_exit_code(SystemExit(5)), find_exit_code(SystemExit()), find_exit_code(ValueError())
    (5, 0, 1)
    """
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return 2 if isinstance(error, SpmdError) else 1


def describe_error(error: BaseException, name: str) -> str:
    """Return the text on an error: one line for a user's mistake, else the traceback."""
    if isinstance(error, SpmdError):
        return f"{name}: error: {error}"
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            return error.code
        return describe_system_exit(error) if error.code else ""
    return "".join(traceback.format_exception(strip_starters(error))).rstrip()


def describe_system_exit(error: SystemExit) -> str:
    """Return the call that ends a program, and its line if that is known.

    >>> describe_system_exit(SystemExit(3))
    'sys.exit(3)'
    """
    name = "sys.exit" if type(error) is SystemExit else type(error).__name__
    return f"{name}({error.code!r}){_find_users_line(error)}"


def _find_users_line(error: BaseException) -> str:
    """Return a comma and the user's line that raised an exception; the innermost line if none is the user's."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    foreign = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__)) + os.sep, "<frozen")
    own = [place for place in places if not place[0].startswith(foreign) and "-packages" not in place[0]]
    return "".join(f", at {os.path.basename(file)}:{line}" for file, line in (own or places)[-1:])


def strip_starters(error: BaseException) -> BaseException:
    """Return the error with a traceback that begins in the user's program, not in its starter."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(STARTERS):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # which says itself where it is
        return error
    return error.with_traceback(trace)


def stop(error: BaseException, name: str, join: Callable[[str, int], MPI.Comm | None] | None = None) -> int:
    """Print once why the job stops, and return the exit code. Do not return if other ranks still run.

    Args:
        error: what ends the program on this rank.
        name: the begin of an error line.
        join: starts MPI if it does not run yet, to learn whether the other ranks stop, too.
    """
    code, text, job = find_exit_code(error), describe_error(error, name), detect()
    quiet_exit = isinstance(error, SystemExit) and not isinstance(error.code, str)
    if is_forked():
        if not quiet_exit:
            write(text)
        return code
    if code == 0:
        note_left(0)
        return 0
    if isinstance(error, SystemExit) and code in _agreed:
        return note_exit_code(code)
    if job is None and isinstance(error, BrokenPipeError | KeyboardInterrupt):
        return _leave_quietly(error, code)
    comm = find_active_world()
    noted = note_failure(code, f"{BEFORE_MPI} by {text}" if quiet_exit and comm is None else "")
    if comm is None and join is not None and job and not quiet_exit:
        comm = join(text, code)
    if comm is None or (comm.size == 1 and job and job.size > 1):
        # Ranks cannot reach each other, as it must be with a wrong launcher. What keeps MPI from starting does so on all.
        if not quiet_exit and is_root():
            write(text)
        note_end()
        return code
    if comm.size == 1:
        if not quiet_exit:
            write(text)
        return code
    reason, folder = Reason(text, isinstance(error, DisagreementError)), job_folder()
    if comm.rank and folder is not None and has_left(folder, 0, 0):  # it hears nobody any more
        reasons: dict[int, Reason] | None = {comm.rank: reason}
    else:
        reasons = _gather_stops(comm, reason, EXIT_SECONDS if quiet_exit else SECONDS)
    if reasons is None:  # another rank speaks, and has heard from all
        if has_log() and not quiet_exit:
            write(text)
    else:
        alone = len(reasons) < comm.size
        if alone or not quiet_exit:
            _print_reasons(reasons, comm.size)
        _run_last_functions(text)
        if alone:
            abort_job(code)
    return 0 if noted else code  # our starter knows; the launcher need not complain too


# -- is it one rank that stops, or all of them? ----------------------------------------------------------


class Reason(NamedTuple):
    """The text on why a rank stops, and whether the text is only about a difference between other ranks."""

    text: str
    of_others: bool


def _gather_stops(comm: MPI.Comm, reason: Reason, seconds: float) -> dict[int, Reason] | None:
    """Return the reasons of the ranks that stop now, by rank, on the rank that prints them; None on the others.

    If one rank stops alone, the others wait for ever in their next collective, so that rank must abort the job. If all ranks
    stop (a wrong argument is wrong everywhere), they should print that once and exit without an abort. To tell the cases
    apart, each rank sends its reason to rank 0, which waits ``seconds`` for the others. The messages have their own tag, so
    no collective of the other ranks receives them.
    """
    if comm.rank:
        return _report_to_root(comm, reason, seconds)
    reasons, deadline = {0: reason}, time.monotonic() + seconds
    while len(reasons) < comm.size and time.monotonic() < deadline:
        reasons |= _receive_reasons(comm)
        time.sleep(0.002)
    for rank in set(reasons) - {0}:
        comm.send(len(reasons) == comm.size, dest=rank, tag=TAG)
    return reasons


def _receive_reasons(comm: MPI.Comm) -> dict[int, Reason]:
    """Return, on rank 0, the reasons that stopping ranks have sent so far."""
    there = [rank for rank in range(1, comm.size) if comm.Iprobe(source=rank, tag=TAG)]
    return {rank: comm.recv(source=rank, tag=TAG) for rank in there}


def _report_to_root(comm: MPI.Comm, reason: Reason, seconds: float) -> dict[int, Reason] | None:
    """Send the reason to rank 0. Return None if rank 0 prints it, else the reason: then rank 0 does not stop."""
    request = comm.isend(reason, dest=0, tag=TAG)
    deadline = time.monotonic() + seconds * 1.3 + 0.05 * min(comm.rank, 20)
    while time.monotonic() < deadline:
        request.test()
        if comm.iprobe(source=0, tag=TAG):
            together = comm.recv(source=0, tag=TAG)
            request.wait()
            if together:
                return None
            time.sleep(SPEAKS_SECONDS)  # rank 0 says it for this rank, too, and ends the job
            break
        time.sleep(0.002)
    return {comm.rank: reason}


def end_job_for_others(comm: MPI.Comm) -> None:
    """Print, on rank 0 before MPI ends, the reasons that stopping ranks have sent, and end the job.

    MPICH ends a rank without a word, and with it the job, if a message is left when it finalises.
    """
    if comm.rank == 0 and (stopped := _receive_reasons(comm)):
        _print_reasons(stopped, comm.size)
        abort_job(1)


def _print_reasons(reasons: dict[int, Reason], size: int) -> None:
    """Print each cause once, with its ranks unless all have it.

    Leave out ranks that only report a difference between others if a rank has a reason of its own. If none has, print one of
    the reports: they are equal, but a later rank may have seen less.
    """
    told = sides(sorted(reasons.items()))
    own = sorted((ranks, reason.text) for ranks, reason in told if not reason.of_others)
    if not own:
        write(told[0][1].text)
    for ranks, text in own:
        alone = f"{name_ranks(ranks)} of {size} stopped, the job ends:\n" if len(ranks) < size else ""
        write(f"{alone}{text}")


# -- the end ---------------------------------------------------------------------------------------------


def note_exit_code(code: int) -> int:
    """Write a note of this rank's exit code after its work, and return the code for the launcher.

    The job ends where all ranks wait for each other in MPI's end. Do not hurry them: rank 0 may still print.

    Returns:
        0 if a starter reads the note, so that the launcher prints nothing; else ``code``.
    """
    flush_output()
    return 0 if note_failure(code) else code  # our starter knows; the launcher need not complain too


def _leave_quietly(error: BaseException, code: int) -> int:
    """Print one line after Ctrl-C, and nothing if the output's reader has ended (``| head``); return the exit code."""
    if not isinstance(error, BrokenPipeError):
        if not error.args:  # else where it was is said already
            write("interrupted")
        return code
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # what is still buffered would complain once more at exit
    return READER_LEFT


def abort_job(code: int) -> NoReturn:
    """End every rank of the job now."""
    flush_output()
    _run_last_functions(f"a rank ends the job with code {code}")
    note_end()
    if job_folder() is not None:
        time.sleep(ENDED_SECONDS)  # the starter ends the job, without the launcher's many words
    comm = find_active_world()
    if comm is not None:
        time.sleep(FORWARD_SECONDS)
        last = threading.Timer(ENDED_SECONDS, exit_now, [code])
        last.daemon = True
        with suppress(RuntimeError):  # no memory for a thread
            last.start()
        comm.Abort(code)
    exit_now(code)


def abort_together(code: int) -> NoReturn:
    """Abort the job on rank 0, so that its code is kept; other ranks wait for that."""
    flush_output()
    comm = find_active_world()
    if comm is None or comm.rank == 0:
        abort_job(code)
    time.sleep(ENDED_SECONDS)
    exit_now(code)


def ask_launcher_to_end(code: int) -> None:
    """Ask the launcher to end a job without MPI, if it speaks PMI. Other launchers end it when this rank fails."""
    with suppress(OSError, KeyError, ValueError):
        descriptor = int(os.environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            time.sleep(FORWARD_SECONDS)
            os.write(descriptor, f"cmd=abort exitcode={code}\n".encode())


def end_job(text: str, code: int) -> NoReturn:
    """Print why, and end every rank of the job now."""
    note_failure(code)
    write(text)
    _run_last_functions(text)
    abort_job(code)


def write(text: str) -> None:
    """Write a line to stderr in one piece, so that ranks do not mix; to stdout if stderr is closed."""
    flush_output()
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed, or None
        for number in (2, 1):
            with suppress(OSError):
                os.write(number, f"{text}\n".encode(errors="replace"))
                return


def flush_output() -> None:
    """Flush stdout and stderr, unless they are closed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
