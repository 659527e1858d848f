"""Keep what ranks print: a log per rank, or one file in which the prints of all ranks do not mix."""

from __future__ import annotations

import codecs
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
    path = find_log(Path(folder), rank)
    try:
        return path.open("w")
    except OSError as error:
        raise InputError(f"--log-dir: rank {rank} cannot write its log {path}: {error.strerror}") from None


def prepare_blocks(folder: Path, environment: dict[str, str]) -> Path:
    """Make the file that all ranks print to, and return its path. The ranks get its name and the width of the terminal."""
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
    """Print to the file of all ranks, if there is one. Launchers pass lines on in any order.

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
def open_own_log(folder: str | None, rank: int) -> Iterator[None]:
    """Print to this rank's log inside of the block; rank 0 prints to the terminal, too.

    Do nothing if ``spmdsim launch`` gave this rank a log, or if ``folder`` is empty.
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
    for old in log_dir.glob("worker_[0-9]*.log"):
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


def find_log(log_dir: Path, rank: int) -> Path:
    """Return the path of one rank's log."""
    return log_dir / f"worker_{rank}.log"


def echo_file(path: Path, stop: threading.Event) -> None:
    """Echo a growing file to stdout until ``stop``, and then to its end; nothing more once nobody reads stdout."""
    position, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        last = stop.is_set()
        if path.is_file():
            with path.open("rb") as file:
                file.seek(position)
                text = file.read()
            position += len(text)
            try:
                sys.stdout.write(decoder.decode(text, final=last))
                sys.stdout.flush()
            except BrokenPipeError:
                return
        if last:
            return
        time.sleep(0.05)


def format_log_tail(log_dir: Path, rank: int, code: int) -> str:
    """Return a line that names the failed rank, and the last lines of its log."""
    path = find_log(log_dir, rank)
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    shown = [f"  | {line}" for line in lines[-TAIL_LINES:]] or ["  | (empty)"]
    return "\n".join([f"rank {rank} failed with exit code {code}; end of {path}:", *shown, ""])
