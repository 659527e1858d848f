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
from spmdsim.launcher import detect, find_host_name, has_log, is_root
from spmdsim.shutdown.exit_notes import (
    find_job_folder,
    has_left,
    has_started_mpi,
    note_end,
    note_failure,
    note_left,
)
from spmdsim.sides import name_ranks, sides

if TYPE_CHECKING:
    from mpi4py import MPI

#: The folder of this package.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: How paths begin of files that are not the user's: this package's, Python's own, modules frozen into Python.
_FOREIGN_PATHS = (PACKAGE, os.path.dirname(os.__file__) + os.sep, "<frozen")
#: Files of frames that are left out at the top of a traceback: they start the user's program.
STARTERS = ("/launch/bootstrap.py", "/cli/main.py", "runpy.py", "<frozen runpy>")
#: Seconds for the launcher to forward what was printed. Some launchers drop it when the job is aborted at once.
FORWARD_SECONDS = 0.2
#: Seconds for the starter or MPI to end the job. After that this rank exits by itself.
ENDED_SECONDS = 5.0
#: The begin of the words for a rank that fails without MPI, while the others may wait in MPI's start.
BEFORE_MPI = "left before it started MPI,"
#: The tag of messages between ranks that stop. It is below every library's limit; programs hardly use it.
TAG = 77_011
#: Seconds that rank 0 waits for the other ranks to stop, too. The other ranks wait longer, one after the other. After
#: ``sys.exit(code)`` mostly all ranks stop, and one of them prints a report first.
SECONDS, EXIT_SECONDS = 1.0, 4.0
#: Seconds for rank 0 to end the job when it has received the reasons of other ranks.
REPORT_SECONDS = 15.0
#: Exit codes as shells have them: the reader of the output has ended; after Ctrl-C.
READER_LEFT, INTERRUPTED = 141, 130
#: The exit of the system, without the hooks.
exit_now = os._exit

#: The exit code of all ranks, if they have agreed on one.
_agreed: list[int] = []
#: Called by the rank that ends the job after it has printed the reason.
_last_functions: list[Callable[[str], None]] = []


def run_before_end(function: Callable[[str], None]) -> None:
    """Call a function with the reason (one line) before this rank ends the job."""
    _last_functions.append(function)


def _run_last_functions(text: str) -> None:
    """Call the functions of :func:`run_before_end` once with the last line of a text.

    The function that was added last is called first.
    """
    while _last_functions:
        with suppress(Exception):  # an error in them must not keep the job from ending
            _last_functions.pop()((text.rstrip().splitlines() or [""])[-1])


def agree_on_code(code: int) -> None:
    """Remember that all ranks of this job exit with ``code``.

    Then a rank that exits with this code does not end the others.
    """
    _agreed[:] = [code]


#: Not empty in a process that a rank has forked: MPI runs in the rank alone, and the child ends no job.
_forked: list[int] = []


def _note_fork() -> None:
    if find_active_world() is not None:
        _forked.append(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Return True if a rank with MPI has forked this process."""
    return bool(_forked)


def describe_forked_child(rank: int) -> str:
    """Return why a child that a rank has forked cannot communicate.

    MPI would take it for the rank.
    """
    return (
        f"this process is a child that rank {rank} has forked, and has no part in the job: let the rank communicate, and "
        "the child only compute"
    )


def find_active_world() -> MPI.Comm | None:
    """Return all ranks if MPI runs in this process, else None. Never start MPI."""
    if _forked or not has_started_mpi() or sys.modules["mpi4py.MPI"].Is_finalized():
        return None
    world: MPI.Comm = sys.modules["mpi4py.MPI"].COMM_WORLD
    return world


def find_exit_code(error: BaseException) -> int:
    """Return the exit code of a program that an exception ends.

    The exit code is

    - for a SystemExit: its code modulo 256, 0 if the code is None, 1 if it is a text;
    - 130 after Ctrl-C (KeyboardInterrupt);
    - 2 for a user's mistake (SpmdError);
    - 1 for other errors.

    Args:
        error: the exception.

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
    """Return the text to print for an error: one line for a user's mistake, else the traceback.

    For a SystemExit it is its text, or the call with its line; empty for the code 0. The traceback begins in the user's
    program.

    Args:
        error: the exception; its traceback is shortened in place (:func:`strip_starters`).
        name: the begin of the line for a user's mistake.
    """
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
    """Return a comma and the user's line that raised an exception.

    The user's innermost line is taken, or the innermost of all lines if none is the user's. Return "" if the exception
    has no traceback.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, number) for frame, number in frames]
    users_lines = [line for line in lines if is_users_file(line[0])]
    return "".join(f", at {os.path.basename(file)}:{number}" for file, number in (users_lines or lines)[-1:])


def is_users_file(file: str) -> bool:
    """Return True if a source file belongs to the user.

    Other files belong to this package, to Python or to an installed package. Generated methods, as of dataclasses, have the file
    ``<string>``.

    >>> is_users_file("/home/me/program.py"), is_users_file(os.__file__), is_users_file(__file__)
    (True, False, False)
    """
    return file != "<string>" and not file.startswith(_FOREIGN_PATHS) and f"-packages{os.sep}" not in file


def strip_starters(error: BaseException) -> BaseException:
    """Return an error with a traceback that begins in the user's program, not in its starter.

    The error itself is changed and returned. If all frames are the starter's, the traceback does not change. But a
    SyntaxError, whose text has the place, then gets an empty traceback.

    Args:
        error: the exception.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(STARTERS):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # which says itself where it is
        return error
    return error.with_traceback(trace)


def stop(error: BaseException, name: str, join: Callable[[str, int], MPI.Comm | None] | None = None) -> int:
    """Print why the program stops, once for all ranks; return the exit code of this process.

    Each rank that stops sends its reason to rank 0, which prints each different reason once. If all ranks stop, the
    function then returns. If some ranks still run, they would wait for this rank for ever: the job is ended, and the
    function does not return.

    A rank does not ask the others in these cases, of which the first that applies counts:

    1. It is a child process that a rank has forked: it prints its own reason.
    2. The exit code is 0, or ``sys.exit`` has a code on which all ranks have agreed (:func:`agree_on_code`): nothing
       is printed.
    3. There is no launcher, and Ctrl-C or the end of the output's reader (``| head``) stops the program: at most one
       line is printed.
    4. MPI does not run and ``join`` does not start it, or MPI sees only this rank of several: rank 0 prints its own
       reason.
    5. There is one rank: it prints its own reason.

    A ``sys.exit(3)`` without a text is printed only if other ranks still run.

    The result is 0, whatever the exit code, if the starter of the job reads the code from a note: the launcher would
    print lines of its own for another code.

    Args:
        error: the exception that ends the program on this rank.
        name: the begin of an error line.
        join: starts MPI if it does not run yet, to learn whether the other ranks stop, too. It is called with the
            text of the error and the exit code, and returns the communicator of all ranks, or None if MPI cannot be
            started. If ``join`` is None, MPI is not started.
    """
    code, text, job = find_exit_code(error), describe_error(error, name), detect()
    is_quiet = isinstance(error, SystemExit) and not isinstance(error.code, str)
    if is_forked():
        if not is_quiet:
            write_line(text)
        return code
    if code == 0:
        note_left(0)
        return 0
    if isinstance(error, SystemExit) and code in _agreed:
        return note_exit_code(code)
    if job is None and isinstance(error, BrokenPipeError | KeyboardInterrupt):
        return _leave_quietly(error, code)
    comm = find_active_world()
    is_noted = note_failure(code, f"{BEFORE_MPI} by {text}" if is_quiet and comm is None else "")
    if comm is None and join is not None and job and not is_quiet:
        comm = join(text, code)
    if comm is None or (comm.size == 1 and job and job.size > 1):
        # Ranks cannot communicate, for example under a launcher of another MPI. Each rank then has the same error.
        if not is_quiet and is_root():
            write_line(text)
        note_end()
        return code
    if comm.size == 1:
        if not is_quiet:
            write_line(text)
        return code
    reason = Reason(text, isinstance(error, DisagreementError), find_host_name())
    _stop_with_others(comm, reason, code, is_quiet)
    return 0 if is_noted else code  # the starter reads the note; the launcher would only print more lines


def _stop_with_others(comm: MPI.Comm, reason: Reason, code: int, is_quiet: bool) -> None:
    """Print the reasons of all ranks that stop; end the job if other ranks still run.

    Rank 0 gathers the reasons for up to :data:`SECONDS` (1 s), or :data:`EXIT_SECONDS` (4 s) if ``is_quiet``. Then
    there are two cases:

    - All ranks stop: rank 0 prints the reasons, unless ``is_quiet``, and every rank returns. A rank with a log of its
      own prints its reason there, too.
    - Other ranks still run: print the known reasons, and end the job with ``code``. Rank 0 does this, or this rank if
      rank 0 still runs or has left the program with the code 0.

    Args:
        comm: all ranks of the job.
        reason: why this rank stops.
        code: its exit code.
        is_quiet: True to print reasons only if other ranks still run.
    """
    folder = find_job_folder()
    if comm.rank and folder is not None and has_left(folder, 0, 0):  # rank 0 receives no messages any more
        reasons: dict[int, Reason] | None = {comm.rank: reason}
    else:
        reasons = _gather_stops(comm, reason, EXIT_SECONDS if is_quiet else SECONDS)
    if reasons is None:  # rank 0 has the reasons of all ranks, and prints them
        if has_log() and not is_quiet:
            write_line(reason.text)
        return
    others_run = len(reasons) < comm.size
    if others_run or not is_quiet:
        _print_reasons(reasons, comm.size)
    _run_last_functions(reason.text)
    if others_run:
        abort_job(code)


# -- is it one rank that stops, or all of them? ----------------------------------------------------------


class Reason(NamedTuple):
    """Reason why a rank stops.

    Attributes:
        text: the reason in words.
        of_others: True if the text is only about a difference between other ranks.
        host: the name of the rank's host; empty if all ranks are on one host.
    """

    text: str
    of_others: bool
    host: str = ""


def _gather_stops(comm: MPI.Comm, reason: Reason, seconds: float) -> dict[int, Reason] | None:
    """Return the reasons that this rank must print, by rank; None if rank 0 prints this rank's reason.

    If one rank stops alone, the others wait for ever in their next collective, so that rank must abort the job. If all
    ranks stop (a wrong argument is wrong everywhere), they should print that once and exit without an abort. To tell
    the cases apart, each rank sends its reason to rank 0, which waits for the others. Then rank 0 answers each rank that
    reported, whether all ranks stop. The messages have their own tag, so no collective of the other ranks receives them.

    Args:
        comm: all ranks of the job.
        reason: why this rank stops.
        seconds: how long rank 0 waits for the others. Other ranks wait longer (:func:`_report_to_root`).

    Returns:
        On rank 0 the reasons of all ranks that stop; ranks that still run are missing. On another rank None, because rank
        0 prints its reason; or only its own reason, if rank 0 does not answer or does not end the job
        (:func:`_report_to_root`).
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
    senders = [rank for rank in range(1, comm.size) if comm.Iprobe(source=rank, tag=TAG)]
    return {rank: comm.recv(source=rank, tag=TAG) for rank in senders}


def _report_to_root(comm: MPI.Comm, reason: Reason, seconds: float) -> dict[int, Reason] | None:
    """Send this rank's reason to rank 0; return None if rank 0 prints it because all stop.

    Rank 0 answers one of two things:

    - All ranks stop: return None at once.
    - Other ranks still run: rank 0 prints the reason and ends the job. Wait :data:`REPORT_SECONDS` (15 s) for that;
      if this process still runs then, return the reason.

    Without an answer, rank 0 itself still runs: return the reason. The answer is awaited for 1.3 times ``seconds``,
    and 0.05 s more for each rank below this one (at most 20). For example, rank 4 waits 1.5 s if ``seconds`` is 1.

    Args:
        comm: all ranks of the job.
        reason: why this rank stops.
        seconds: how long rank 0 waits for the others.

    Returns:
        None, or ``{this rank: reason}`` if this rank must print its reason and end the job.
    """
    request = comm.isend(reason, dest=0, tag=TAG)
    deadline = time.monotonic() + seconds * 1.3 + 0.05 * min(comm.rank, 20)
    while time.monotonic() < deadline:
        request.test()
        if comm.iprobe(source=0, tag=TAG):
            is_printed_by_root = comm.recv(source=0, tag=TAG)
            request.wait()
            if is_printed_by_root:
                return None
            time.sleep(REPORT_SECONDS)  # rank 0 prints the reason of this rank, too, and ends the job
            break
        time.sleep(0.002)
    return {comm.rank: reason}


def end_job_for_others(comm: MPI.Comm) -> None:
    """Print the reasons that stopping ranks have sent to rank 0, and end the job.

    Do nothing on other ranks, or if no rank has sent a reason. Call it before MPI ends: if a message is not received by
    then, MPICH ends the rank, and with it the job, without a word.
    """
    if comm.rank == 0 and (stopped := _receive_reasons(comm)):
        _print_reasons(stopped, comm.size)
        abort_job(1)


def _print_reasons(reasons: dict[int, Reason], size: int) -> None:
    """Print each cause once, with its ranks unless all have it, ordered by the lowest rank.

    For example, "ranks 0, 2 of 4 stopped, the job ends:" is above their common cause.

    A reason "of others" only reports a difference between other ranks. Leave out these reasons if a rank has a reason of
    its own. If no rank has one, print only the text that most ranks share, without ranks: all texts are about one
    difference, but a rank that stops later may know less of it.

    Args:
        reasons: why each rank stops, by rank; at least one. The names of hosts are printed if they are not empty.
        size: the number of ranks of the job.
    """
    ranks_and_reasons = sides((rank, reason._replace(host="")) for rank, reason in sorted(reasons.items()))
    causes = sorted((ranks, reason.text) for ranks, reason in ranks_and_reasons if not reason.of_others)
    if not causes:
        write_line(ranks_and_reasons[0][1].text)
    for ranks, text in causes:
        hosts = sorted({reasons[rank].host for rank in ranks} - {""})
        where = f" on {', '.join(hosts)}" if hosts else ""
        head = f"{name_ranks(ranks)} of {size}{where} stopped, the job ends:\n" if len(ranks) < size else ""
        write_line(f"{head}{text}")


# -- the end ---------------------------------------------------------------------------------------------


def note_exit_code(code: int) -> int:
    """Write a note of this rank's exit code; return the code for the launcher.

    Call it on a rank that has done its work. The job is not ended here: all ranks wait for each other where MPI ends,
    and rank 0 may still print.

    Returns:
        0 if a starter reads the note, so that the launcher prints nothing; else ``code``.
    """
    flush_output()
    return 0 if note_failure(code) else code


def _leave_quietly(error: BaseException, code: int) -> int:
    """End a program without a traceback after Ctrl-C, or if its output's reader has ended.

    After Ctrl-C, print the line "interrupted", unless the exception has a text, which is printed already. If the reader
    has ended (``| head``), print nothing, and redirect stdout to the null device.

    Args:
        error: a KeyboardInterrupt or BrokenPipeError.
        code: the exit code after Ctrl-C.

    Returns:
        The exit code: ``code``, or :data:`READER_LEFT` if the reader has ended.
    """
    if not isinstance(error, BrokenPipeError):
        if not error.args:  # else the line is printed already
            write_line("interrupted")
        return code
    null_device = os.open(os.devnull, os.O_WRONLY)
    # Otherwise Python would print an error when it flushes the buffer at exit.
    os.dup2(null_device, sys.stdout.fileno())
    return READER_LEFT


def abort_job(code: int) -> NoReturn:
    """End every rank of the job now, with an exit code; does not return.

    Call the functions of :func:`run_before_end` first. Then try these ways, one after the other:

    1. If the job has a starter on this machine, note the end for it, and give it :data:`ENDED_SECONDS` (5 s) to end
       the job.
    2. If MPI runs, abort the job with MPI, which also has :data:`ENDED_SECONDS`.
    3. Exit this process alone.

    Args:
        code: the exit code.
    """
    flush_output()
    _run_last_functions(f"a rank ends the job with code {code}")
    note_end()
    if find_job_folder() is not None:
        time.sleep(ENDED_SECONDS)  # the starter ends the job; a launcher would print more lines
    comm = find_active_world()
    if comm is not None:
        time.sleep(FORWARD_SECONDS)
        timer = threading.Timer(ENDED_SECONDS, exit_now, [code])
        timer.daemon = True
        with suppress(RuntimeError):  # no memory for a thread
            timer.start()
        comm.Abort(code)
    exit_now(code)


def abort_together(code: int) -> NoReturn:
    """Abort the job with one exit code on all ranks; does not return.

    Rank 0 aborts, so that the launcher reports its code. Other ranks wait :data:`ENDED_SECONDS` (5) for that, and then
    exit by themselves. Without MPI, this rank aborts the job.

    Args:
        code: the exit code.
    """
    flush_output()
    comm = find_active_world()
    if comm is None or comm.rank == 0:
        abort_job(code)
    time.sleep(ENDED_SECONDS)
    exit_now(code)


def ask_launcher_to_end(code: int) -> None:
    """Ask the launcher to end a job without MPI, if it speaks PMI.

    PMI is the protocol between ranks and some launchers. It is recognised by a socket whose number is in the
    environment variable PMI_FD. Under another launcher do nothing: it ends the job when this rank fails. Errors of the
    socket are ignored. Wait :data:`FORWARD_SECONDS` (0.2) first, so that the launcher forwards what was printed.

    Args:
        code: the exit code of the job.
    """
    with suppress(OSError, KeyError, ValueError):
        descriptor = int(os.environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            time.sleep(FORWARD_SECONDS)
            os.write(descriptor, f"cmd=abort exitcode={code}\n".encode())


def end_job(text: str, code: int) -> NoReturn:
    """Print why, and end every rank of the job now; does not return.

    Args:
        text: the reason.
        code: the exit code of the job.
    """
    note_failure(code)
    write_line(text)
    _run_last_functions(text)
    abort_job(code)


def write_line(text: str) -> None:
    """Write a line to stderr in one piece, so that ranks do not mix.

    Flush stdout and stderr first. If Python's stderr is closed, write to the system's stderr, or else its stdout.
    Errors are not raised.

    Args:
        text: the line, without a line break at its end.
    """
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
