"""Notes that ranks and their starter write into the job's folder: who has started, who has ended and why.

A rank's supervisor writes notes for a rank that cannot. Only a starter on this machine has such a folder.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from spmdsim.launcher import FOLDER, read_job_facts, this_rank

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


def find_job_folder() -> Path | None:
    """Return the folder of the notes, or None without a starter on this machine."""
    folder = read_job_facts().get(FOLDER)
    return Path(folder) if folder and os.path.isdir(folder) else None


def note_begin(folder: Path) -> None:
    """Note, as the starter, when the job begins."""
    (folder / BEGUN).touch()


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
    return folder is not None and write_note(
        folder / f"rank_{this_rank()}", f"{code}\n{cause}", keep_first=True
    )


def write_note(path: Path, text: str, keep_first: bool = False) -> bool:
    """Write a note so that a reader sees all of it or none; return True if that succeeds.

    It fails if the system refuses, as on a full disk; nothing is raised then, and no part of the note stays.

    Args:
        path: the note.
        text: its text.
        keep_first: keep an older note of this name, which another process may write at the same time; True is returned
            then, too. False replaces it.
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
    """Note, as a rank's supervisor, that the rank has started."""
    (folder / f"{STARTED}{rank}").touch()


def find_unfinished_ranks(folder: Path) -> list[int]:
    """Return the ranks that have started, and have noted neither a failure nor an end.

    They are sorted. An end is that of the rank's program.
    """
    started = {path.name.removeprefix(STARTED) for path in folder.glob(f"{STARTED}*")}
    return sorted(map(int, started - list_ended_ranks(folder)))


def note_left(code: int) -> None:
    """Write a note that this rank's program has ended with an exit code. MPI may still run."""
    folder = find_job_folder()
    if folder is not None:
        write_note(folder / f"left_{this_rank()}", f"{code}{'' if has_started_mpi() else BEFORE}")


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

    They are numbers as text.
    """
    return {
        path.name.rpartition("_")[2] for kind in ("rank", "left") for path in folder.glob(f"{kind}_[0-9]*")
    }


def note_recording() -> None:
    """Write a note that this rank logs its calls, and writes them when it receives the signal."""
    folder = find_job_folder()
    if folder is not None:
        Path(folder, RECORDING).touch()


def read_request() -> str | None:
    """Return why the starter asks for the last calls; None if it does not ask.

    None, too, without a starter on this machine, or if its note is empty or cannot be read.
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
        Path(folder, ENDING).touch()


class Failure(NamedTuple):
    """A rank that has failed, its exit code, and the cause in words.

    The cause is empty if the rank has printed it.
    """

    rank: int
    code: int
    cause: str


def read_failures(folder: Path) -> list[Failure]:
    """Return the notes of the ranks that failed, the first failure first."""
    notes = sorted(folder.glob("rank_*"), key=lambda note: note.stat().st_mtime_ns)
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

    SIGKILL is explained as a lack of memory. The code 0 is that of a rank which left in the middle of its program.

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
