"""Write the prints of ranks to a log per rank, or to one file in which the prints of all ranks do not mix."""

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
from spmdsim.launcher import BLOCKS, LOGS, describe_host, give_job_facts, has_log, read_job_facts

#: Lines of a failed rank's log that are shown.
TAIL_LINES = 20


def redirect_output(rank: int) -> None:
    """Write all output of this process to the log of its rank, that of C libraries included.

    So file descriptors 1 and 2 are redirected to the file (:func:`find_log`), which is emptied before. From then on stdout
    is flushed after each line, because a rank that is killed flushes nothing. Do nothing if the job has no folder of logs.

    Args:
        rank: the number of this rank.

    Raises:
        InputError: If the log cannot be written. The process forgets the folder of logs first, so that the error is
            printed to the terminal.
    """
    folder = read_job_facts().get(LOGS)
    if not folder:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        log = _open_log(folder, rank)
    except InputError:
        give_job_facts(os.environ, logs=None)  # so that the error is printed to the terminal
        raise
    with log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a rank that is killed flushes nothing
        sys.stdout.reconfigure(line_buffering=True)


def _open_log(folder: str, rank: int) -> TextIO:
    """Open the log of a rank in a folder for writing; an older log is emptied.

    Raises InputError if the system refuses it; the message names the host if the job has several.
    """
    path = find_log(Path(folder), rank)
    try:
        return path.open("w")
    except OSError as error:
        raise InputError(
            f"--log-dir: rank {rank} cannot write its log {path}{describe_host()}: {error.strerror}"
        ) from None


def prepare_blocks(folder: Path, environment: dict[str, str]) -> Path:
    """Make the file that all ranks print to, and return its path.

    Args:
        folder: the folder of the file.
        environment: the environment of the ranks, to which the path and the width of the terminal are added.
    """
    path = folder / "printed"
    path.touch()
    give_job_facts(environment, blocks=str(path))
    if sys.stdout.isatty():
        environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    return path


class _BlockStream(io.TextIOWrapper):
    """A text stream that writes each print in one piece to the end of a file, to which other ranks write, too."""

    def write(self, text: str) -> int:
        """Buffer the text until its last line is complete."""
        count = super().write(text)
        if text.endswith("\n"):
            self.flush()
        return count


def print_in_blocks() -> None:
    """Make ``print`` append to the file of all ranks, if the starter made one on this machine.

    Each print arrives there in one piece; launchers would mix the lines of ranks. Otherwise, or if the file cannot be
    opened, ``print`` stays as it is.
    """
    path = read_job_facts().get(BLOCKS)
    with suppress(OSError):
        if path:
            raw = io.FileIO(os.open(path, os.O_WRONLY | os.O_APPEND), "w")
            sys.stdout = _BlockStream(io.BufferedWriter(raw, 1 << 20), encoding="utf-8", errors="replace")


class _DoubleStream(io.TextIOBase):
    """A text stream that writes to the terminal and to a log."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self.terminal, self.log = terminal, log

    def write(self, text: str) -> int:
        """Write to both streams."""
        self.log.write(text)
        return self.terminal.write(text)

    def flush(self) -> None:
        """Flush both streams."""
        self.terminal.flush()
        self.log.flush()


@contextmanager
def open_rank_log(folder: str | None, rank: int) -> Iterator[None]:
    """Return a context in which ``print`` writes to this rank's log; on rank 0 to the terminal, too.

    The context yields None. If ``spmdsim launch`` has opened a log for this rank, or there is no ``folder``, nothing
    changes.

    Args:
        folder: the folder of the logs, created if it does not exist; None or empty for no log.
        rank: the number of this rank.

    Raises:
        InputError: If the folder cannot be created, or the log cannot be written.
    """
    if not folder or has_log():
        yield
        return
    make_log_folder(Path(folder))
    terminal = sys.stdout
    with _open_log(folder, rank) as log:
        give_job_facts(os.environ, logs=folder)
        sys.stdout = _DoubleStream(terminal, log) if rank == 0 else log
        try:
            yield
        finally:
            sys.stdout = terminal
            give_job_facts(os.environ, logs=None)


def prepare_logs(log_dir: Path) -> None:
    """Make the folder of the logs, and remove the logs of an earlier run from it.

    Raises InputError if the folder cannot be created.
    """
    make_log_folder(log_dir)
    for older_log in log_dir.glob("worker_[0-9]*.log"):
        if not older_log.is_dir():
            older_log.unlink()


def make_log_folder(log_dir: Path) -> None:
    """Make the folder of the logs, ``log_dir``, with its parents, unless it exists.

    Raises InputError if it is a file, or if the system refuses it.
    """
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
    """Echo a growing file to stdout until ``stop`` is set, and then to its end.

    Bytes that are no UTF-8 are replaced. Return early if stdout's reader has closed the pipe.

    Args:
        path: the file; it may be created later, or never.
        stop: the event that another thread sets when the file grows no more.
    """
    position, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        is_last = stop.is_set()
        if path.is_file():
            with path.open("rb") as file:
                file.seek(position)
                text = file.read()
            position += len(text)
            try:
                sys.stdout.write(decoder.decode(text, final=is_last))
                sys.stdout.flush()
            except BrokenPipeError:
                return
        if is_last:
            return
        time.sleep(0.05)


def format_log_tail(log_dir: Path, rank: int, code: int) -> str:
    """Return a line that names the failed rank, and the last lines of its log.

    These are at most :data:`TAIL_LINES` (20) lines. For example, "rank 1 failed with exit code 3; end of
    logs/worker_1.log:" and below it "  | ValueError: no such axis".

    Args:
        log_dir: the folder of the logs.
        rank: the rank that failed.
        code: its exit code.

    Returns:
        The lines, each with its end; empty if the rank has no log here.
    """
    path = find_log(log_dir, rank)
    if not path.is_file():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    shown = [f"  | {line}" for line in lines[-TAIL_LINES:]] or ["  | (empty)"]
    return "\n".join([f"rank {rank} failed with exit code {code}; end of {path}:", *shown, ""])
