"""A thread that reads the logs while its rank waits inside of MPI.

Inside of a collective a rank can neither look around nor raise. The thread prints now and then which ranks the rank
waits for. It ends the job with the reason if the ranks disagree, wait for each other in a circle, or miss the deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from spmdsim.shutdown.stop import abort_job, end_job, write_line
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.call_log import CallLog
from spmdsim.worlds.agreement.descriptions import (
    describe_absence,
    describe_disagreement,
    find_stuck_ranks_twice,
)
from spmdsim.worlds.agreement.process_state import LOST
from spmdsim.worlds.agreement.shared_board import SharedBoard

#: Seconds between two looks, at most; looks per deadline, at least.
TICK, LOOKS = 0.5, 4
#: Seconds between two lines about ranks that wait.
SECONDS_BETWEEN_LINES = 10.0
#: Seconds for which ranks have waited before the thread says that they wait for ever, and for which a rank that
#: disagrees may come out of MPI and raise itself.
SURE, PATIENT = 2.0, 3.0
#: Seconds that another rank may take to end the job, and that a stopped thread may take to end.
YIELDS, JOIN = 6.0, 1.0
#: The exit code of a job that ends for a mistake of the user's.
CODE = 2


class WaitWatch:
    """Thread that watches the calls of this process on one board, in all worlds, from the first world on."""

    def __init__(self, board: SharedBoard) -> None:
        self._board = board
        self._worlds: list[tuple[dict[tuple[int, ...], CallLog], float]] = []
        self._tick = TICK
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spmdsim waits", daemon=True)

    def follow(self, logs: dict[tuple[int, ...], CallLog], deadline: float) -> None:
        """Watch the logs of a world from now on; the first world starts the thread.

        Args:
            logs: the logs of the world's groups by their ranks; those that are added later are watched, too.
            deadline: the world's deadline in seconds. The thread looks at least :data:`LOOKS` times per deadline.
        """
        self._worlds.append((logs, deadline))
        self._tick = max(min(self._tick, deadline / LOOKS), 0.02)
        if not self._thread.is_alive() and self._thread.ident is None:
            self._thread.start()

    def leave(self, logs: dict[tuple[int, ...], CallLog]) -> None:
        """Watch the logs of a world no longer; ``logs`` is the dict of :meth:`follow` itself."""
        self._worlds = [world for world in self._worlds if world[0] is not logs]

    def _logs(self) -> Sequence[CallLog]:
        """Return the logs of all groups of all watched worlds."""
        return [log for logs, _ in self._worlds for log in list(logs.values())]

    def stop(self) -> None:
        """End the thread, and wait up to :data:`JOIN` seconds for that.

        A thread that wakes up while the interpreter is taken down would crash.
        """
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(JOIN)

    def leave_program(self, code: int, is_last: bool) -> None:
        """Log that this rank makes no more calls; end the job if its calls differ from others'.

        After exit code 0, compare this rank's calls in each group with those of the other ranks. Groups about which this
        rank has raised an error already are skipped.

        Args:
            code: this rank's exit code: 0 if it is done, another number if it failed.
            is_last: True if all ranks have left. Only then is a call that some ranks did not make a mistake; before,
                they may still make it.
        """
        self._board.set_exit(layout.FAILED if code else layout.DONE)
        self._board.refresh()
        for log in self._logs() if code == 0 else ():
            if not log.has_reported:
                self._compare_at_end(log, is_last)

    def _compare_at_end(self, log: CallLog, is_last: bool) -> None:
        """End the job if this rank's calls or reads differ from those of other ranks; else return.

        It also ends if all ranks have left and one of them has not made this rank's last call.

        Args:
            log: the log of one group.
            is_last: True if all ranks have left. Otherwise a missing call may still come and is no reason.
        """
        if (number := log.find_difference()) is not None:
            self._end_job(self._describe_difference(log, number))
        if (text := log.reads.find_disagreement(at_end=is_last)) is not None:
            self._end_job(text)
        if is_last and log.number and len(log.arrived(log.number - 1)) < len(log.members):
            self._end_job(describe_absence(log, log.number - 1))

    def _describe_difference(self, log: CallLog, number: int) -> str:
        """Return the sentence about call ``number``, in which ranks differ.

        Publish how this rank computed its tensor, and wait until the next look, so that the other ranks publish theirs.
        """
        log.publish_tensor(number)
        time.sleep(self._tick)  # the others publish theirs
        self._board.refresh()
        return describe_disagreement(log, number)

    def _run(self) -> None:
        """Look at the board every few moments until :meth:`stop` is called; runs in its own thread.

        Each look does this:

        1. If another rank differs in a call, publish how this rank computed the tensor of that call.
        2. If this rank is still in the call of the last look, check its wait; see :meth:`_check_wait`.
        """
        board, printed_lines = self._board, 0
        last_call: tuple[int, int] | None = None
        since = 0.0
        while not self._done.wait(self._tick):
            board.refresh()
            logs = {log.key: log for log in self._logs()}
            _publish_differences(logs.values())
            current = board.current_call(board.me)
            watched = None if current is None else logs.get(current[0])
            if current is None or watched is None or current != last_call:
                last_call, since, printed_lines = current, time.monotonic(), 0
            elif self._check_wait(watched, current, time.monotonic() - since, printed_lines):
                printed_lines += 1

    def _check_wait(
        self, watched: CallLog, current: tuple[int, int], waited: float, printed_lines: int
    ) -> bool:
        """End the job if more waiting cannot help; return True if this rank prints a line about the wait.

        :meth:`_find_reason` decides if waiting can help. The job is ended only if this rank is still in the call. A
        rank that polls outside of MPI raises the error itself, so the job is not ended, unless a host cannot be
        reached.

        Only the lowest rank that has come to the call prints, once per :data:`SECONDS_BETWEEN_LINES` seconds. The line
        names the missing ranks.

        Args:
            watched: the log of the call.
            current: the key of the log, and the number of the call.
            waited: the seconds since this rank was first seen in the call.
            printed_lines: the number of lines printed during the call.
        """
        board = self._board
        may_raise = watched.is_polling and not board.lost_places()
        text = None if may_raise else self._find_reason(watched, current[1], waited)
        if text is not None and board.current_call(board.me) == current:
            self._end_job(text)
            return False
        if waited <= (printed_lines + 1) * SECONDS_BETWEEN_LINES or not self._is_first(watched, current[1]):
            return False
        write_line(describe_absence(watched, current[1], f"did not come yet, after {waited:.0f} s,"))
        return True

    def _find_reason(self, log: CallLog, number: int, waited: float) -> str | None:
        """Return the reason why this rank must not wait longer in a call, or None.

        There is a reason in three cases:

        1. Calls of ranks differ, and :data:`PATIENT` (3) seconds or the deadline are over, whichever is earlier.
        2. Ranks wait for each other in a circle, and :data:`SURE` (2) seconds are over.
        3. The deadline is over.

        So that one rank reports, one gets the reason first: in cases 1 and 3 the lowest rank that has come to the call,
        in case 2 the rank of the circle with the lowest place. The others get it later: in cases 1 and 3 after four
        more intervals of the watching thread, in case 2 after twice the time. Return None before, and without a reason.

        Args:
            log: the log of the group.
            number: the number of the call.
            waited: the seconds for which this rank has been in the call.
        """
        board, deadline = self._board, log.deadline
        delay = 0 if self._is_first(log, number) else 4 * self._tick
        if waited > min(PATIENT, deadline) + delay and (wrong := log.find_difference()) is not None:
            return self._describe_difference(log, wrong)
        if waited > SURE and board.me in (stuck := find_stuck_ranks_twice(board)):
            is_turn = board.me == min(stuck) or waited > 2 * SURE
            return describe_absence(log, number) if is_turn else None
        if waited > deadline + delay:
            return describe_absence(log, number, f"did not come within {deadline:g} s")
        return None

    def _is_first(self, log: CallLog, number: int) -> bool:
        """Return True if this rank is the lowest one that has come to a call and can be reached.

        Args:
            log: the log of the group.
            number: the number of the call in the group.
        """
        places = (place for place in log.places if log.count_begun(place) > number)
        return next((p for p in places if self._board.process_state(p) != LOST), None) == self._board.me

    def _end_job(self, text: str) -> None:
        """Print a reason and end the job with exit code :data:`CODE`; does not return.

        If another rank reports now, give it :data:`YIELDS` (6) seconds first, and print nothing if it ends the job.

        Args:
            text: the reason.
        """
        if not self._board.is_first_to_report():
            time.sleep(YIELDS)
            if self._board.is_reported():
                abort_job(CODE)
        end_job(text, CODE)


def _publish_differences(logs: Iterable[CallLog]) -> None:
    """Publish the tensors of calls in which another rank differs."""
    for log in logs:
        if (number := log.find_difference()) is not None:
            log.publish_tensor(number)
