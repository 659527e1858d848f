"""The last calls of all ranks, written to a file when the job is stopped or somebody asks for it by a signal.

The main thread may be inside of MPI, where no handler of Python's runs: a thread hears of signals through a pipe that
Python's own handler in C writes to, reads what all ranks noted on the board, and writes it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpi4py import MPI

from spmdsim.ending.notes import ASKED, ENDING, job_folder, why_asked
from spmdsim.ending.stop import before_end, write
from spmdsim.sides import name_ranks
from spmdsim.trace import last_calls
from spmdsim.trace.last_calls import LastCall
from spmdsim.worlds.mpi.board import WRITES, Board
from spmdsim.worlds.mpi.waiting import gone

#: Seconds that another rank's writing is waited for, and for which ranks that get the same signal need not write again.
PATIENCE = 1.0
#: The states of WRITES: this rank writes now; it has written as the job ends. Else the time when it wrote, in nanoseconds.
WRITING, WRITTEN = 1, 2

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]


class Recording:
    """Writes what a process and all those whose calls it can read called last."""

    _one: Recording | None = None

    @staticmethod
    def of(board: Board, path: str) -> None:
        """Record a board, too."""
        if Recording._one is None:
            Recording._one = Recording(path)
        if board not in Recording._one.boards:
            Recording._one.boards.append(board)

    def __init__(self, path: str) -> None:
        self.path, self.boards, self.size = path, list[Board](), MPI.COMM_WORLD.Get_size()
        self._lock, self._process = threading.Lock(), os.getpid()
        before_end(lambda why: self.write(why, last=True))
        atexit.register(self._finish)
        self._hear()

    def _finish(self) -> None:
        """Let a signal's writing come to its end before the process does."""
        # The lock of a forked one may be held by a thread that it has not got.
        if os.getpid() == self._process:
            with self._lock:
                pass

    # -- signals ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # no handlers can be set here
        read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        for number in _SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(read,), name="spmdsim records", daemon=True).start()

    def _handle(self, number: int, _: object) -> None:
        """Once more, in case somebody took the pipe away."""
        if os.getpid() != self._process:  # forked: nobody listens here
            _end_by(number)
        with suppress(OSError):
            os.write(self._pipe, bytes([number]))

    def _listen(self, read: int) -> None:
        while heard := os.read(read, 1024):
            for number in set(heard) & {*map(int, _SIGNALS)}:
                ends = number == signal.SIGTERM
                self.write(signal.Signals(number).name if ends else why_asked() or "SIGUSR1", last=ends)
                if ends and signal.getsignal(number) == self._handle:
                    _end_by(number)

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, reason: str, last: bool) -> None:
        """Write the file and why, unless another rank does; ``last``: the job ends, and this is written once."""
        if not self.boards or os.getpid() != self._process:
            return
        with self._lock:
            numbers, end, done = self.boards[0].numbers, time.monotonic() + PATIENCE, 0
            if self._is_written():
                return
            numbers[WRITES] = WRITING
            for board in self.boards:
                board.refresh()
            try:  # those of ranks that go before this one
                while WRITING in self._states()[: self.boards[0].me] and time.monotonic() < end:
                    time.sleep(0.005)
                if not self._is_written():
                    self._write(reason, last)
                    done = WRITTEN if last else time.monotonic_ns()
            finally:
                numbers[WRITES] = done

    def _states(self) -> list[int]:
        return [self.boards[0].state(place, WRITES) for place in self.boards[0].places()]

    def _is_written(self) -> bool:
        lately = time.monotonic_ns() - int(PATIENCE * 1e9)
        return any(state == WRITTEN or state > lately for state in self._states())

    def ranks(self) -> list[int]:
        """The ranks whose calls can be read."""
        return sorted({board.members[place] for board in self.boards for place in board.places()})

    def _write(self, reason: str, last: bool) -> None:
        ranks, path = self.ranks(), Path(self.path)
        if len(ranks) < self.size:  # others write theirs
            path = path.with_name(f"{path.stem}.rank{ranks[0]}{path.suffix}")
        try:
            last_calls.write(path, self._document(ranks, reason))
        except Exception as error:  # the job goes on, or ends for a reason of its own
            why = error.strerror if isinstance(error, OSError) else repr(error)
            write(f"what the ranks called last cannot be written to {path}: {why}")
            return
        folder = job_folder()
        if folder is None or not (last or any((folder / note).exists() for note in (ENDING, ASKED))):
            # Else the starter says it.
            who = "the ranks" if len(ranks) == self.size else name_ranks(ranks)
            write(f"what {who} called last is in {path}")

    def _document(self, ranks: Sequence[int], reason: str) -> dict[str, Any]:
        read = [(board, place) for board in self.boards for place in board.places()]
        calls = [call for board, place in read for call in noted(board, place)]
        states = {board.members[place]: gone(board, place) for board, place in read}
        why = "; ".join([reason, *(f"rank {rank} {how}" for rank, how in sorted(states.items()) if how)])
        return last_calls.document(calls, ranks, why, time.monotonic_ns())


def noted(board: Board, place: int) -> Iterator[LastCall]:
    """The calls of one rank that are kept."""
    for at, key in board.groups(place):
        group = tuple(sorted(board.members[other] for other in board.group(place, key)))
        for number in board.kept(place, at):
            call = board.call(place, at, number)
            if not call.begin:  # a read, see ``tensor_reads``
                continue
            about = board.words(place, call.about)
            words = f"{call.record}, {about}" if about else str(call.record)
            began, ended = round(call.begin * 1e9), round(call.end * 1e9)
            ended = ended if ended >= began else 0  # else it ended the call that stood here before
            numbers = f"{key:x}", number, f"{call.agreed:x}"
            yield LastCall(board.members[place], group, *numbers, words, call.line, began, ended)


def _end_by(number: int) -> None:
    """End this process as the signal would have; only the system can set it back outside of the main thread."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).signal(number, 0)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(128 + number)
