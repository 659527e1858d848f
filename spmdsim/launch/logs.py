"""A log per rank, and a note from each rank that fails: how the starter knows who was first, and why."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from spmdsim.errors import InputError

LOG_DIR = "SPMDSIM_LOG_DIR"
"""Tells each rank where to write its log."""

FAILED_DIR = "SPMDSIM_FAILED_DIR"
"""Where a rank that fails leaves its exit code; the launchers' own codes are not always that of the rank."""

ENDING = "ending"
"""The note, beside those of the ranks, that the job ends now."""

TAIL_LINES = 20
"""Lines of a failed rank's log that are shown."""


def redirect_output(rank: int) -> None:
    """Send stdout and stderr to this rank's log, below Python, so that libraries write there too."""
    folder = os.environ.get(LOG_DIR)
    if not folder:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_path(Path(folder), rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class _Both(io.TextIOBase):
    """Writes to two streams."""

    def __init__(self, first: TextIO, second: TextIO) -> None:
        self.first, self.second = first, second

    def write(self, text: str) -> int:
        """Write to both."""
        self.second.write(text)
        return self.first.write(text)

    def flush(self) -> None:
        """Flush both."""
        self.first.flush()
        self.second.flush()


@contextmanager
def own_log(folder: str | None, rank: int) -> Iterator[None]:
    """Inside the block, what this rank prints goes to its log, and rank 0's is shown, too.

    For ranks that nobody started with logs: under ``mpirun`` itself, and in lock step.
    """
    if not folder or has_log():
        yield
        return
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError(f"--log-dir {place} is a file: a folder is needed")
    place.mkdir(parents=True, exist_ok=True)
    shown = sys.stdout
    with log_path(place, rank).open("w") as log:
        os.environ[LOG_DIR] = folder
        sys.stdout = _Both(shown, log) if rank == 0 else log
        try:
            yield
        finally:
            sys.stdout = shown
            del os.environ[LOG_DIR]


def has_log() -> bool:
    """Whether this rank writes to a log of its own."""
    return bool(os.environ.get(LOG_DIR))


def note_failure(rank: int, code: int) -> bool:
    """Leave this rank's exit code where the starter looks for it; False if there is no starter."""
    folder = os.environ.get(FAILED_DIR)
    if not folder or not os.path.isdir(folder):
        return False
    Path(folder, f"rank_{rank}").write_text(str(code))
    return True


def note_end() -> None:
    """Tell the starter that this rank ends the job now."""
    folder = os.environ.get(FAILED_DIR)
    if folder and os.path.isdir(folder):
        Path(folder, ENDING).touch()


def job_ends(failed_dir: Path, n: int) -> bool:
    """Whether a rank ends the job, or all ``n`` ranks have left it."""
    return (failed_dir / ENDING).exists() or len(list(failed_dir.glob("rank_*"))) == n


def prepare_logs(log_dir: Path) -> None:
    """Make the folder, and remove the logs of an earlier run."""
    if log_dir.exists() and not log_dir.is_dir():
        raise InputError(f"--log-dir {log_dir} is a file: a folder is needed")
    log_dir.mkdir(parents=True, exist_ok=True)
    for old in log_dir.glob("worker_*.log"):
        old.unlink()


def log_path(log_dir: Path, rank: int) -> Path:
    """The log of one rank."""
    return log_dir / f"worker_{rank}.log"


def follow(path: Path, stop: threading.Event) -> None:
    """Echo a growing file to stdout until ``stop``, and then to its end."""
    position = 0
    while True:
        last = stop.is_set()
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                text = file.read()
            position += len(text)
            sys.stdout.write(text.decode(errors="replace"))
            sys.stdout.flush()
        if last:
            return
        time.sleep(0.05)


def first_failed(failed_dir: Path) -> tuple[int, int] | None:
    """Rank and exit code of the rank that failed first, as they noted it themselves."""
    notes = sorted(failed_dir.glob("rank_*"), key=lambda note: note.stat().st_mtime_ns)
    for note in notes:
        return int(note.name.removeprefix("rank_")), int(note.read_text() or 1)
    return None


def log_tail(log_dir: Path, rank: int, code: int) -> str:
    """Which rank failed, and the end of its log."""
    path = log_path(log_dir, rank)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    shown = [f"  | {line}" for line in lines[-TAIL_LINES:]] or ["  | (empty)"]
    return "\n".join([f"rank {rank} failed with exit code {code}; end of {path}:", *shown, ""])
