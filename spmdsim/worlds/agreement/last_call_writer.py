"""A file with the last calls of all ranks, written when the job is stopped or when a signal asks for it.

The main thread may be inside of MPI, where Python runs no signal handler. So a thread waits for signals at the end of a pipe,
to which Python's handler in C writes. It reads the logs of all ranks on the board and writes the file.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpi4py import MPI

from spmdsim.shutdown.exit_notes import ASKED, ENDING, find_job_folder, note_recording, read_request
from spmdsim.shutdown.stop import run_before_end, write_line
from spmdsim.sides import name_ranks
from spmdsim.worlds.agreement.descriptions import describe_exit
from spmdsim.worlds.agreement.shared_board import RECORDS, SharedBoard
from spmdsim.worlds.trace import last_calls
from spmdsim.worlds.trace.last_calls import LastCall

#: Seconds to wait for another rank's writing, and seconds for which ranks that get the same signal write nothing again.
PATIENCE = 1.0
#: Values of ``RECORDS``: the rank writes now; it has written for the last time. Other values are the time of writing.
WRITING, WRITTEN = 1, 2

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]


class LastCallWriter:
    """Writer of a file with the last calls of this process, and of all ranks whose logs it can read."""

    def __init__(self, path: str) -> None:
        self.path, self.boards, self.size = path, list[SharedBoard](), MPI.COMM_WORLD.Get_size()
        self.hosts: dict[int, str] = {}
        self._lock, self._process = threading.Lock(), os.getpid()
        run_before_end(lambda why: self.write(why, last=True))
        atexit.register(self._finish)
        self._hear()

    def add_board(self, board: SharedBoard, hosts: Mapping[int, str]) -> None:
        """Write the calls on a board, too, from now on.

        Also note for the job's starter that calls are recorded.

        Args:
            board: the board.
            hosts: the host of each of its ranks, by the rank's number in the job.
        """
        self.hosts |= hosts
        if board not in self.boards:
            self.boards.append(board)
        note_recording()

    def _finish(self) -> None:
        """Let the thread end its writing before the process ends."""
        # In a forked child the lock may belong to a thread that the child does not have.
        if os.getpid() == self._process:
            with self._lock:
                pass

    # -- signals ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Let SIGTERM and SIGUSR1 write the file: set handlers, and start the daemon thread that writes.

        The main thread may be inside of MPI, where it runs no handler. So each signal becomes a byte in a pipe, which
        the daemon thread reads (:func:`signal.set_wakeup_fd`; an earlier wakeup descriptor is replaced).

        - If a signal has the system's default handler, set :meth:`_handle`. Do so, too, if SIGUSR1 is ignored, because
          the start of the rank ignores it.
        - Keep any other handler: it is the program's. The pipe gets the byte nevertheless.
        - Outside of the main thread do nothing, because Python sets no handlers there.
        """
        if threading.current_thread() is not threading.main_thread():
            return  # no handlers can be set here
        read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        for number in _SIGNALS:
            # The start of the rank has made SIGUSR1 ignored; see `start_supervisor`.
            ignored = number != signal.SIGTERM and signal.getsignal(number) == signal.SIG_IGN
            if ignored or signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(read,), name="spmdsim records", daemon=True).start()

    def _handle(self, number: int, _: object) -> None:
        """Write signal ``number`` to the pipe.

        So the thread learns of it even if the program has replaced the wakeup descriptor. In a forked child, which has
        no thread that listens, end the process by the signal.
        """
        if os.getpid() != self._process:  # A forked child has no thread that listens.
            _end_by(number)
        with suppress(OSError):
            os.write(self._pipe, bytes([number]))

    def _listen(self, read: int) -> None:
        """Write the file at each signal that arrives at a pipe; runs in its own thread.

        Args:
            read: the descriptor of the pipe's end for reading.
        """
        while signal_bytes := os.read(read, 1024):
            for number in set(signal_bytes) & {*map(int, _SIGNALS)}:
                self._answer(number)

    def _answer(self, number: int) -> None:
        """Write the file for signal ``number``.

        SIGTERM writes the file for the last time. Then the process ends by the signal, unless the program replaced the
        handler. SIGUSR1 writes it with the reason that :func:`read_request` returns, or "SIGUSR1" if there is no
        request; the process goes on.
        """
        if number == signal.SIGTERM:
            self.write("SIGTERM", last=True)
            if signal.getsignal(number) == self._handle:
                _end_by(number)
        else:
            self.write(read_request() or "SIGUSR1", last=False)

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, reason: str, last: bool) -> None:
        """Write the file with the last calls of all ranks, unless another rank does.

        Do nothing in these cases:

        - There are no boards, or this process is a forked child.
        - A rank has written the file within the last :data:`PATIENCE` (1) seconds, or has written it for the last time.

        Block up to :data:`PATIENCE` seconds while ranks with lower places write. Replace an earlier file. An error of
        writing is printed, not raised.

        Args:
            reason: why the file is written; it becomes part of the file.
            last: True if the job ends. No rank writes the file after that.
        """
        if not self.boards or os.getpid() != self._process:
            return
        with self._lock:
            numbers, end, done = self.boards[0].numbers, time.monotonic() + PATIENCE, 0
            if self._is_written():
                return
            numbers[RECORDS] = WRITING
            for board in self.boards:
                board.refresh()
            try:  # let ranks with lower numbers write first
                while WRITING in self._states()[: self.boards[0].me] and time.monotonic() < end:
                    time.sleep(0.005)
                if not self._is_written():
                    self._write(reason, last)
                    done = WRITTEN if last else time.monotonic_ns()
            finally:
                numbers[RECORDS] = done

    def _states(self) -> list[int]:
        """Return the number ``RECORDS`` of each rank on the first board, by place."""
        return [self.boards[0].state(place, RECORDS) for place in self.boards[0].places()]

    def _is_written(self) -> bool:
        """Return True if a rank has written the file lately, or for the last time.

        Lately means within :data:`PATIENCE` (1) seconds.
        """
        lately = time.monotonic_ns() - int(PATIENCE * 1e9)
        return any(state == WRITTEN or state > lately for state in self._states())

    def _write(self, reason: str, last: bool) -> None:
        """Write the file, and print its path unless the starter of the job prints it.

        The starter is the process that launched the ranks. It prints the path when the job ends or when the user asked
        for the file. If the boards lack ranks of the job, their nodes write files of their own. Then the lowest rank of
        this file is in its name: "calls.json" becomes "calls.rank4.json". An error of writing is printed, not raised.

        Args:
            reason: why the file is written.
            last: True if the job ends.
        """
        ranks, path = sorted({rank for board in self.boards for rank in board.members}), Path(self.path)
        if len(ranks) < self.size:  # other nodes write theirs
            path = path.with_name(f"{path.stem}.rank{ranks[0]}{path.suffix}")
        try:
            last_calls.write_document(path, self._document(ranks, reason))
        except Exception as error:  # the job goes on, or ends for a reason of its own
            cause = error.strerror if isinstance(error, OSError) else repr(error)
            write_line(f"what the ranks called last cannot be written to {path}: {cause}")
            return
        folder = find_job_folder()
        if folder is None or not (last or any((folder / note).exists() for note in (ENDING, ASKED))):
            # Else the starter prints the path.
            ranks_text = "the ranks" if len(ranks) == self.size else name_ranks(ranks)
            write_line(f"what {ranks_text} called last is in {path}")

    def _document(self, ranks: Sequence[int], reason: str) -> dict[str, Any]:
        """Return the content of the file: see :func:`spmdsim.worlds.trace.last_calls.document`.

        Args:
            ranks: the ranks whose calls are in the file, by their numbers in the job.
            reason: why the file is written. In the file, a clause is added for each rank that left, failed or ended,
                such as "; rank 2 failed".
        """
        read = [(board, place) for board in self.boards for place in board.places()]
        calls = [call for board, place in read for call in read_last_calls(board, place)]
        states = {board.members[place]: describe_exit(board, place) for board, place in read}
        why = "; ".join([reason, *(f"rank {rank} {how}" for rank, how in sorted(states.items()) if how)])
        return last_calls.document(calls, ranks, why, time.monotonic_ns(), self.hosts)


def read_last_calls(board: SharedBoard, place: int) -> Iterator[LastCall]:
    """Yield the logged calls of one rank that are not overwritten yet.

    They come group by group, and oldest first in each group. Reads of tensors are left out. Times are nanoseconds of
    the monotonic clock; a call that has not ended yet has the end time 0.

    Args:
        board: the memory of the ranks' logs.
        place: the rank's place: its index on the shared board of call logs.
    """
    for start, key in board.groups(place):
        group = tuple(sorted(board.members[other_place] for other_place in board.group_places(place, key)))
        for number in board.readable_calls(place, start):
            call = board.read_call(place, start, number)
            if not call.begin:  # a read, see ``read_log``
                continue
            tensor = board.text(place, call.tensor)
            words = f"{call.description}, {tensor}" if tensor else str(call.description)
            # An end before the begin is that of the call that was logged here before.
            end = call.end if call.end >= call.begin else 0
            numbers = f"{key:x}", number, f"{call.agreed:x}"
            yield LastCall(board.members[place], group, *numbers, words, call.line, call.begin, end)


def _end_by(number: int) -> None:
    """End this process by signal ``number``; does not return.

    Reset its handler by the C library, because Python does so in the main thread only. If the signal does not end the
    process within a second, exit with 128 + ``number``.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).signal(number, 0)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(128 + number)
