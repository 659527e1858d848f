"""What left a program on this rank is said once, with the rank named and its exit code kept, and the job ends."""

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
_before_end: list[Callable[[str], None]] = []


def before_end(last: Callable[[str], None]) -> None:
    """Have this done, with the reason, before the job ends because of what happened on a rank, by the one that ends it."""
    _before_end.append(last)


def _do_last(text: str) -> None:
    while _before_end:
        with suppress(Exception):  # the job ends all the same
            _before_end.pop()((text.rstrip().splitlines() or [""])[-1])


def agree(code: int) -> None:
    """All ranks of this job will leave with ``code``: none of them need end the others, however long they take."""
    _agreed[:] = [code]


#: Not empty in a process that a rank has forked: MPI runs in the rank alone, and the child has no say in the job.
_forked: list[int] = []


def _note_fork() -> None:
    if active_world() is not None:
        _forked.append(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Whether this process is a child of a rank, that MPI runs in."""
    return bool(_forked)


def refusal_in_child(rank: int) -> str:
    """Return why a child that a rank has forked cannot communicate: MPI would take it for the rank."""
    return (
        f"this process is a child that rank {rank} has forked, and has no part in the job: let the rank communicate, and "
        "the child only compute"
    )


def active_world() -> MPI.Comm | None:
    """All ranks, if MPI is running in this process already; it is never started here."""
    module = sys.modules.get("mpi4py.MPI")
    if _forked or module is None or not module.Is_initialized() or module.Is_finalized():
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
        return exit_words(error) if error.code else ""
    return "".join(traceback.format_exception(without_starters(error))).rstrip()


def exit_words(error: SystemExit) -> str:
    """By which call a program ends, and where it stands if that is known.

    >>> exit_words(SystemExit(3))
    'sys.exit(3)'
    """
    name = "sys.exit" if type(error) is SystemExit else type(error).__name__
    return f"{name}({error.code!r}){_where(error)}"


def _where(error: BaseException) -> str:
    """The user's line that an exception comes from, behind a comma; the last one, where all are somebody else's."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    foreign = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__)), "<frozen")
    own = [place for place in places if not place[0].startswith(foreign) and "-packages" not in place[0]]
    return "".join(f", at {os.path.basename(file)}:{line}" for file, line in (own or places)[-1:])


def without_starters(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the user's program, not in what started it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(STARTERS):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # which says itself where it is
        return error
    return error.with_traceback(trace)


def stop(error: BaseException, name: str, join: Callable[[str, int], MPI.Comm | None] | None = None) -> int:
    """Say once why the job stops, and return the exit code; does not return if other ranks still run.

    ``name`` begins an error line; ``join`` starts MPI, if it does not run yet, to find out whether the others stop too.
    """
    code, text, job = exit_code(error), describe(error, name), detect()
    quiet_exit = isinstance(error, SystemExit) and not isinstance(error.code, str)
    if is_forked():
        if not quiet_exit:
            write(text)
        return code
    if code == 0:
        note_left(0)
        return 0
    if isinstance(error, SystemExit) and code in _agreed:
        return leave(code)
    if job is None and isinstance(error, BrokenPipeError | KeyboardInterrupt):
        return _leave_quietly(error, code)
    comm = active_world()
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
            _say_of_ranks(reasons, comm.size)
        _do_last(text)
        if alone:
            kill(code)
    return 0 if noted else code  # our starter knows; the launcher need not complain too


# -- is it one rank that stops, or all of them? ----------------------------------------------------------


class Reason(NamedTuple):
    """Why a rank stops, and whether it says what others did otherwise than the rest, and nothing of its own."""

    text: str
    of_others: bool


def _gather_stops(comm: MPI.Comm, reason: Reason, seconds: float) -> dict[int, Reason] | None:
    """The reasons of all ranks that stop now, by rank, on the one that is to speak; None on the others.

    A rank that stops alone leaves the others waiting for ever in their next collective, so it must abort the job. Ranks
    that all stop (a wrong argument is wrong everywhere) should say so once and leave in peace. To tell the two apart,
    each sends its reason to rank 0, which waits a moment for the rest. Point-to-point messages under a tag of our own
    cannot be mixed up with whatever collective the other ranks are in.
    """
    if comm.rank:
        return _report(comm, reason, seconds)
    reasons, deadline = {0: reason}, time.monotonic() + seconds
    while len(reasons) < comm.size and time.monotonic() < deadline:
        reasons |= _told(comm)
        time.sleep(0.002)
    for rank in set(reasons) - {0}:
        comm.send(len(reasons) == comm.size, dest=rank, tag=TAG)
    return reasons


def _told(comm: MPI.Comm) -> dict[int, Reason]:
    """On rank 0: what ranks that stop have told it by now."""
    there = [rank for rank in range(1, comm.size) if comm.Iprobe(source=rank, tag=TAG)]
    return {rank: comm.recv(source=rank, tag=TAG) for rank in there}


def _report(comm: MPI.Comm, reason: Reason, seconds: float) -> dict[int, Reason] | None:
    """Tell rank 0 and wait for its answer; if none comes, rank 0 is not stopping and this rank speaks."""
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


def speak_for_others(comm: MPI.Comm) -> None:
    """As rank 0 of the job, before MPI ends here: say why other ranks stop that have told it so, and end the job.

    MPICH ends a rank without a word, and with it the job, if a message is left when it finalises.
    """
    if comm.rank == 0 and (stopped := _told(comm)):
        _say_of_ranks(stopped, comm.size)
        kill(1)


def _say_of_ranks(reasons: dict[int, Reason], size: int) -> None:
    """Print each cause once, with its ranks unless all have it.

    Ranks that only say what others did are victims of those that have a reason of their own; among themselves they say
    the same, but that some came later and saw less.
    """
    told = sides(sorted(reasons.items()))
    own = sorted((ranks, reason.text) for ranks, reason in told if not reason.of_others)
    if not own:
        write(told[0][1].text)
    for ranks, text in own:
        alone = f"{name_ranks(ranks)} of {size} stopped, the job ends:\n" if len(ranks) < size else ""
        write(f"{alone}{text}")


# -- the end ---------------------------------------------------------------------------------------------


def leave(code: int) -> int:
    """Leave with a code after all is done: MPI's end, where all ranks wait for each other, is the end of the job.

    Rank 0 may still be printing what it has to say of this code, so nobody is hurried.
    """
    flush_output()
    return 0 if note_failure(code) else code  # our starter knows; the launcher need not complain too


def _leave_quietly(error: BaseException, code: int) -> int:
    """After Ctrl-C one line, and when who reads the output has left (``| head``) none: no traceback, as shells expect."""
    if not isinstance(error, BrokenPipeError):
        if not error.args:  # else where it was is said already
            write("interrupted")
        return code
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # what is still buffered would complain once more at exit
    return READER_LEFT


def kill(code: int) -> NoReturn:
    """End every rank of the job now."""
    flush_output()
    _do_last(f"a rank ends the job with code {code}")
    note_end()
    if job_folder() is not None:
        time.sleep(ENDED_SECONDS)  # the starter ends the job, without the launcher's many words
    comm = active_world()
    if comm is not None:
        time.sleep(FORWARD_SECONDS)
        last = threading.Timer(ENDED_SECONDS, exit_now, [code])
        last.daemon = True
        with suppress(RuntimeError):  # no memory for a thread
            last.start()
        comm.Abort(code)
    exit_now(code)


def leave_together(code: int) -> NoReturn:
    """Leave at once where all ranks do: rank 0 ends the job, so that the code is kept, and nobody waits for long."""
    flush_output()
    comm = active_world()
    if comm is None or comm.rank == 0:
        kill(code)
    time.sleep(ENDED_SECONDS)
    exit_now(code)


def ask_launcher_to_end(code: int) -> None:
    """End the job where MPI does not run, if the launcher speaks PMI; others end it when they see this rank fail."""
    with suppress(OSError, KeyError, ValueError):
        descriptor = int(os.environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            time.sleep(FORWARD_SECONDS)
            os.write(descriptor, f"cmd=abort exitcode={code}\n".encode())


def end_job(text: str, code: int) -> NoReturn:
    """Say why, and end every rank of the job now."""
    note_failure(code)
    write(text)
    _do_last(text)
    kill(code)


def write(text: str) -> None:
    """Write in one piece, so that the lines of several ranks do not mix; to stdout where stderr was closed."""
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
    """Flush what is printed, where somebody may read it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
