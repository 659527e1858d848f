"""A log per rank, and a note from each rank that fails: how the starter knows who was first, and why."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from spmdsim.errors import InputError
from spmdsim.launcher import BLOCKS, LOGS, give_job_facts, has_log, read_job_facts

#: Lines of a failed rank's log that are shown.
TAIL_LINES = 20


def redirect_output(rank: int) -> None:
    """Send stdout and stderr to this rank's log, below Python, so that libraries write there too."""
    folder = read_job_facts().get(LOGS)
    if not folder:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        log = _open_log(folder, rank)
    except InputError:
        give_job_facts(os.environ, logs=None)  # what this rank has to say goes where it is read
        raise
    with log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _open_log(folder: str, rank: int) -> TextIO:
    path = log_path(Path(folder), rank)
    try:
        return path.open("w")
    except OSError as error:
        raise InputError(f"--log-dir: rank {rank} cannot write its log {path}: {error.strerror}") from None


def prepare_blocks(folder: Path, environment: dict[str, str]) -> Path:
    """The file that ranks print to, which the starter shows; they are told how long its terminal's lines are."""
    path = folder / "printed"
    path.touch()
    give_job_facts(environment, blocks=str(path))
    if sys.stdout.isatty():
        environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    return path


class _InBlocks(io.TextIOWrapper):
    """Writes each print in one piece, to the end of a file that others write to as well."""

    def write(self, text: str) -> int:
        """Hold the text back until a line ends with it."""
        count = super().write(text)
        if text.endswith("\n"):
            self.flush()
        return count


def print_in_blocks() -> None:
    """Send what is printed to the file of all ranks, if there is one; launchers pass lines on in any order.

    Ranks on other machines than the starter print as usual.
    """
    path = read_job_facts().get(BLOCKS)
    with suppress(OSError):
        if path:
            raw = io.FileIO(os.open(path, os.O_WRONLY | os.O_APPEND), "w")
            sys.stdout = _InBlocks(io.BufferedWriter(raw, 1 << 20), encoding="utf-8", errors="replace")


class _Both(io.TextIOBase):
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
    make_folder(Path(folder))
    shown = sys.stdout
    with _open_log(folder, rank) as log:
        give_job_facts(os.environ, logs=folder)
        sys.stdout = _Both(shown, log) if rank == 0 else log
        try:
            yield
        finally:
            sys.stdout = shown
            give_job_facts(os.environ, logs=None)


def prepare_logs(log_dir: Path) -> None:
    """Make the folder, and remove the logs of an earlier run."""
    make_folder(log_dir)
    for old in log_dir.glob("worker_*.log"):
        if not old.is_dir():
            old.unlink()


def make_folder(log_dir: Path) -> None:
    """Make the folder of the logs."""
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"--log-dir {log_dir} is a file: a folder is needed") from None
    except OSError as error:
        raise InputError(f"--log-dir {log_dir} cannot be made: {error.strerror}") from None


def log_path(log_dir: Path, rank: int) -> Path:
    """The log of one rank."""
    return log_dir / f"worker_{rank}.log"


def follow(path: Path, stop: threading.Event) -> None:
    """Echo a growing file to stdout until ``stop``, and then to its end."""
    position = 0
    while True:
        last = stop.is_set()
        if path.is_file():
            with path.open("rb") as file:
                file.seek(position)
                text = file.read()
            position += len(text)
            sys.stdout.write(text.decode(errors="replace"))
            sys.stdout.flush()
        if last:
            return
        time.sleep(0.05)


def log_tail(log_dir: Path, rank: int, code: int) -> str:
    """Which rank failed, and the end of its log."""
    path = log_path(log_dir, rank)
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    shown = [f"  | {line}" for line in lines[-TAIL_LINES:]] or ["  | (empty)"]
    return "\n".join([f"rank {rank} failed with exit code {code}; end of {path}:", *shown, ""])
