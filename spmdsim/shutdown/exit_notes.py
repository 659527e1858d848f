"""Notes that ranks and their starter write into the job's folder: who has started, who has ended and why.

A rank's supervisor writes notes for a rank that cannot. Ranks on another host than the starter have a folder of their
host, and send their notes to the starter, too; see :mod:`spmdsim.shutdown.note_server`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from spmdsim.launcher import FOLDER, SERVER, Launched, read_job_facts, this_rank
from spmdsim.shutdown.processes import read_status, remove_segments

#: The name of the note that a rank ends the job now.
ENDING = "ending"
#: The name of the starter's note on why it asks the ranks for their last calls.
ASKED = "asked"
#: The name of the note that a rank logs calls, and writes them when it receives a signal.
RECORDING = "recording"
#: The end of the note of a rank whose program has ended, if the rank has not started MPI.
BEFORE = " before MPI"
#: The begin of the name of the note that a rank has started.
STARTED = "start-"
#: The begin of the name of the note that a rank starts MPI now.
STARTING_MPI = "starting_mpi-"
#: The name of the starter's note that is as old as the job.
BEGUN = "begun"
#: The begin of the name of the note that a rank's supervisor ends.
GONE = "gone-"
#: The name of the starter's note that the user ends the job, by Ctrl-C or SIGTERM.
STOPPED = "stopped"
#: The name of the note that a folder is on another host than the starter: notes must be sent.
SENT = "sent"


def find_job_folder() -> Path | None:
    """Return the folder of the notes, or None without a starter that can read them."""
    folder = read_job_facts().get(FOLDER)
    return Path(folder) if folder and os.path.isdir(folder) else None


def prepare_host_folder() -> None:
    """Make the folder of this host's notes if the starter is on another host and receives notes.

    Nothing is done if the starter has no server that receives notes, or if the folder exists, as on the starter's host.
    Otherwise the new folder gets the note of the begin and the empty file ``SENT``. This host's folders of earlier jobs
    without a running supervisor are deleted. Errors of the file system are ignored.
    """
    facts = read_job_facts()
    folder = facts.get(FOLDER)
    if folder and SERVER in facts and not os.path.isdir(folder):
        with suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            note_begin(Path(folder))
            (Path(folder) / SENT).touch()
            for other_folder in Path(folder).parent.glob("spmdsim-*"):
                if is_on_other_host(other_folder) and not _has_supervisors(other_folder):
                    shutil.rmtree(other_folder, ignore_errors=True)


def _has_supervisors(folder: Path) -> bool:
    """Return True if a supervisor with a note in ``folder`` runs, or if it has no such note yet."""
    processes = [note.read_text() for note in folder.glob(f"{STARTED}*")]
    return not processes or any(read_status(int(process)) is not None for process in processes if process)


def remove_host_folder(folder: Path, job: Launched) -> None:
    """Note that this rank's supervisor ends; the last one of this host removes the host's files.

    The files are the folder of notes and the unused shared memory of the job.

    Args:
        folder: the folder of this host's notes.
        job: the job of the rank whose supervisor calls this before it ends.
    """
    (folder / f"{GONE}{job.rank}").touch()
    if len(list(folder.glob(f"{GONE}*"))) >= job.local_size:
        with suppress(OSError):  # another supervisor is the last one, too
            remove_segments(read_begin(folder))
        shutil.rmtree(folder, ignore_errors=True)


def is_on_other_host(folder: Path) -> bool:
    """Return True if a folder of notes is not on the starter's host.

    It then has only the notes of this host's ranks.
    """
    return (folder / SENT).exists()


def _add_note(folder: Path, name: str, text: str = "", keep_first: bool = False) -> bool:
    """Write a note of this rank into the folder, and send it to a starter on another host.

    Args:
        folder: the folder of this host.
        name: the name of the note.
        text: its text.
        keep_first: True to keep an older note of this name; False to replace it.

    Returns:
        True if the note is written, and received by a starter on another host. Otherwise False: the starter will not
        read it.
    """
    is_written = write_note(folder / name, text, keep_first)
    if not is_on_other_host(folder):
        return is_written
    from spmdsim.shutdown.note_server import parse_address, send_note

    return send_note(parse_address(read_job_facts()[SERVER]), name, text)


def note_begin(folder: Path) -> float:
    """Note, as the starter, when the job begins; return the time as :func:`read_begin` does."""
    (folder / BEGUN).touch()
    return read_begin(folder)


def read_begin(folder: Path) -> float:
    """Return when the job began, by the clock of the file system."""
    return (folder / BEGUN).stat().st_mtime


def note_failure(code: int, cause: str = "") -> bool:
    """Write this rank's exit code, unless it is written already.

    Args:
        code: the exit code.
        cause: the words that the starter prints; empty if the rank has printed them itself.

    Returns:
        False if no starter will read it: there is no folder of notes, or the note cannot be written.
    """
    folder = find_job_folder()
    return folder is not None and _add_note(
        folder, f"rank_{this_rank()}", f"{code}\n{cause}", keep_first=True
    )


def write_note(path: Path, text: str, keep_first: bool = False) -> bool:
    """Write a note so that a reader sees all of it or none; return True if that succeeds.

    The text is written to another file, which then gets the note's name in one operation. If the system refuses to
    write, as on a full disk, return False; no part of the note stays.

    Args:
        path: the note.
        text: its text.
        keep_first: False to replace an older note of this name. True to keep it, also if another process writes it at
            the same time; the function then returns True, too.
    """
    partial_path = path.parent / f"partial-{path.name}-{os.getpid()}"
    try:
        partial_path.write_text(text)
        if keep_first:
            with suppress(FileExistsError):
                os.link(partial_path, path)
        else:
            os.replace(partial_path, path)
    except OSError:
        return False
    finally:
        partial_path.unlink(missing_ok=True)
    return True


def note_start(folder: Path, rank: int) -> None:
    """Note, as a rank's supervisor, that the rank has started, with the number of this process."""
    _add_note(folder, f"{STARTED}{rank}", str(os.getpid()))


def was_stopped_by_user(folder: Path) -> bool:
    """Return True if the starter has noted that the user ends the job, by Ctrl-C or SIGTERM."""
    return (folder / STOPPED).exists()


def find_unfinished_ranks(folder: Path) -> list[int]:
    """Return the ranks that have started, and have noted neither a failure nor an end.

    The ranks are sorted. A rank notes its end when its program ends; MPI may still run then.
    """
    started = {path.name.removeprefix(STARTED) for path in folder.glob(f"{STARTED}*")}
    return sorted(map(int, started - list_ended_ranks(folder)))


def note_left(code: int) -> None:
    """Write a note that this rank's program has ended with an exit code. MPI may still run."""
    folder = find_job_folder()
    if folder is not None:
        _add_note(folder, f"left_{this_rank()}", f"{code}{'' if has_started_mpi() else BEFORE}")


def has_started_mpi() -> bool:
    """Return True if this process has started MPI, even if MPI has ended since."""
    is_initialized = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
    # A module that is being imported has no such function yet.
    return is_initialized is not None and is_initialized()


@contextmanager
def noting_mpi_start() -> Iterator[None]:
    """Note, during the block, that this rank starts MPI, where it waits for all other ranks.

    The note is removed at the end, also after an error. Nothing is noted without a starter on this machine.

    Yields:
        None, once.
    """
    folder = find_job_folder()
    note = None if folder is None else folder / f"{STARTING_MPI}{this_rank()}"
    if note is not None:
        write_note(note, "")
    try:
        yield
    finally:
        if note is not None:
            note.unlink(missing_ok=True)


def list_ranks_starting_mpi(folder: Path) -> list[int]:
    """Return the ranks that wait now where MPI starts."""
    return sorted(int(path.name.removeprefix(STARTING_MPI)) for path in folder.glob(f"{STARTING_MPI}*"))


def has_left(folder: Path, rank: int, code: int) -> bool:
    """Return True if a rank has noted that its program has ended, with this exit code."""
    return _read_left_note(folder, rank).removesuffix(BEFORE) == str(code)


def has_left_before_mpi(folder: Path, rank: int) -> bool:
    """Return True if a rank has noted that its program has ended without starting MPI."""
    return _read_left_note(folder, rank).endswith(BEFORE)


def _read_left_note(folder: Path, rank: int) -> str:
    """Return the note that a rank's program has ended; empty if it has written none."""
    with suppress(OSError):
        return (folder / f"left_{rank}").read_text()
    return ""


def list_ended_ranks(folder: Path) -> set[str]:
    """Return the ranks that have noted a failure or the end of their program.

    The ranks are numbers as text.
    """
    return {
        path.name.rpartition("_")[2] for kind in ("rank", "left") for path in folder.glob(f"{kind}_[0-9]*")
    }


def note_recording() -> None:
    """Write a note that this rank logs its calls, and writes them when it receives the signal."""
    folder = find_job_folder()
    if folder is not None:
        _add_note(folder, RECORDING)


def read_request() -> str | None:
    """Return why the starter asks for the last calls; None if it does not ask.

    Return None, too, without a starter on this machine, or if its note is empty or cannot be read.
    """
    folder = find_job_folder()
    try:
        return None if folder is None else (folder / ASKED).read_text() or None
    except OSError:
        return None


def note_end() -> None:
    """Write a note that this rank ends the job now."""
    folder = find_job_folder()
    if folder is not None:
        _add_note(folder, ENDING)


class Failure(NamedTuple):
    """A rank that has failed, its exit code, and the cause in words.

    The cause is empty if the rank has printed it.
    """

    rank: int
    code: int
    cause: str


def read_failures(folder: Path) -> list[Failure]:
    """Return the notes in a folder of the ranks that failed, the first failure first.

    Failures after the user has ended the job are left out: a rank fails if the other end of a connection has ended.
    """
    notes = sorted(folder.glob("rank_*"), key=lambda note: note.stat().st_mtime_ns)
    if was_stopped_by_user(folder):
        end = (folder / STOPPED).stat().st_mtime_ns
        notes = [note for note in notes if note.stat().st_mtime_ns < end]
    texts = [(note.name.removeprefix("rank_"), *note.read_text().partition("\n")) for note in notes]
    return [Failure(int(rank), int(code), cause) for rank, code, _, cause in texts]


def to_shell_code(returncode: int) -> int:
    """Return a process's exit code as shells have it: 128 + the signal if a signal ended it.

    >>> to_shell_code(3), to_shell_code(-9)
    (3, 137)
    """
    return 128 - returncode if returncode < 0 else returncode


def describe_death(code: int) -> str:
    """Return in words how a rank ended, from its exit code or minus the signal that killed it.

    SIGKILL is explained as a lack of memory. The code 0 means that the rank left in the middle of its program.

    Args:
        code: the exit code; negative for a signal.

    >>> describe_death(-11), describe_death(5)
    ('was killed by signal 11 (SIGSEGV)', 'ended with exit code 5 without a word')
    """
    if code > 0:
        return f"ended with exit code {code} without a word"
    if code == 0:
        return "left in the middle of the program, by os._exit(0) or the like"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "of no name"
    reason = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}{reason})"
