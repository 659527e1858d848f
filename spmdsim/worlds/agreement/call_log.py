"""The call log of one group of ranks: each rank writes its calls before it makes them, and compares them with the others'.

A rank writes a call to the board before it calls MPI. So whoever has another rank's data can read what that rank
called. Every call is compared before numbers leave the program; only the time of the comparison varies.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from spmdsim.bounded import Bounded
from spmdsim.errors import DisagreementError
from spmdsim.sides import NUMBERS, hash_text
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.descriptions import (
    NEVER,
    describe_absence,
    describe_disagreement,
    find_stuck_ranks_twice,
)
from spmdsim.worlds.agreement.group_log import GroupLog, TensorHistory
from spmdsim.worlds.agreement.read_log import ReadLog
from spmdsim.worlds.agreement.shared_board import SharedBoard, locate, split_at_ring_end
from spmdsim.worlds.trace.source_lines import source_lines

#: Seconds for which a waiting rank polls without sleeping, between two polls after that, and between two comparisons.
AWAKE, NAP, LOOK = 0.005, 0.0005, 0.25
#: Seconds that a rank which sees a disagreement gives the others to come to the call and to publish their texts.
GRACE, SHORT = 1.0, 0.05
#: Seconds after the deadline that the watching thread has to end the job if a host cannot be reached.
LOST_SECONDS = 15.0
#: Calls, a power of two, after which a group's calls are compared if nothing else made a rank compare them.
EVERY = 64
#: Nanoseconds after which calls are compared; at least this many times the duration of the last comparison.
LATEST, SHARE = 2_000_000, 50
#: Kinds of calls that a group remembers.
KINDS = 4096
#: The columns of a call that are written when it begins.
_BEGIN = struct.Struct("qqqq")


def read_agreed(area: memoryview, start: int, first: int, count: int) -> np.ndarray:
    """Return the numbers that must agree of ``count`` consecutive calls, as a view of int64.

    The calls must not pass the end of the ring; see :func:`split_at_ring_end`.

    Args:
        area: the numbers of one rank's area of the board.
        start: the index of the group's slot in them.
        first: the number of the first call in the group.
        count: the number of calls.
    """
    begin = locate(start, layout.AGREED, first)
    return np.asarray(area[begin : begin + count * layout.COLUMNS : layout.COLUMNS])


class CallLog(GroupLog):
    """Calls of one group, as this rank makes and compares them.

    Args:
        board: the memory of the ranks' logs.
        name: the name of the world.
        members: the group's ranks in the job, sorted.
        places: their places on the board.
        history: how this rank's tensors were computed.
        deadline: seconds that a rank waits for the others.
        strict: True if the user's source lines must agree, too.

    Attributes:
        compared: how many calls this rank had begun when it last compared them with all ranks.
        has_reported: True if this rank has raised an error about the group.
        is_polling: True while this rank waits here, and not inside of MPI.
    """

    def __init__(
        self,
        board: SharedBoard,
        name: str,
        members: tuple[int, ...],
        places: tuple[int, ...],
        history: TensorHistory,
        deadline: float,
        strict: bool = False,
    ) -> None:
        super().__init__(board, name, members, places, history)
        self.deadline, self.strict = deadline, strict
        self.compared = 0
        self.has_reported = self.is_polling = False
        self._due = 0  # the time of the next comparison in nanoseconds
        self._numbers, self._slot = board.numbers, board.slot_number(self.start)
        self._kinds: Bounded[int, None] = Bounded(KINDS)
        self.others = [place for place in places if place != board.me]
        self.far = [place for place in self.others if place in board.far]
        self._compared = dict.fromkeys(self.others, 0)
        self._lock = Lock()  # the thread of ``wait_watch`` compares, too
        self.reads = ReadLog(self, strict)

    def close(self, failed: bool = False) -> None:
        """Free the group's slots on the board."""
        self.reads.close(failed)
        self.board.close_group(self.key, failed)

    # -- begin and end ------------------------------------------------------------------------------------

    def begin(self, call: Call, tensor: int = 0) -> int:
        """Log that this rank begins a call, and return the call's number in the group, from 0.

        The caller runs the call after this method returns. Before that, the method does one of these things:

        - For a local call: nothing more than logging.
        - If the call's kind is new to the group, or in strict mode: wait until all ranks have begun their call with
          this number, and compare.
        - If another rank is in a different call, and one of the two calls could damage memory: compare without waiting.
        - Otherwise: nothing more than logging; :meth:`end` compares later.

        Args:
            call: the call.
            tensor: the provenance number of the tensor that moves; 0 for none.

        Raises:
            DisagreementError: If the calls differ, or ranks do not come before the deadline. The call is then logged as
                ended.
        """
        number, code, numbers = self.number, call.number, self._numbers
        is_new = call.kind not in self._kinds
        if is_new or code != call.kind:
            self.board.publish(code, call.description.pack())
            self._kinds[call.kind] = None
        line = self.board.number_line(sys._getframe(1))
        if self.strict:
            code = self._add_source_lines(code)
        # Write the row before the count of calls, and the active group last: before that, this rank would seem to be in
        # the group's call before.
        agreed, offset = code ^ tensor, locate(self.start, 0, number) * 8
        _BEGIN.pack_into(numbers, offset, agreed, code, line, time.monotonic_ns())
        self.number = numbers[self.start + layout.BEGUN] = number + 1
        self.computed = self.history.count
        numbers[layout.ACTIVE_GROUP] = self._slot
        if call.is_local:
            return number
        try:
            if is_new or self.strict:
                self.wait(number)
            elif self._is_unsafe(number, agreed):
                self.compare()
        except BaseException:
            self.write_end(number)
            raise
        return number

    def _add_source_lines(self, code: int) -> int:
        """Publish a call's words under a number that depends on the user's lines, too; return that number.

        Used in strict mode.

        Args:
            code: the number of the call, under which its words are published already.
        """
        number = code ^ hash_text(source_lines())
        self.board.publish(number, self.board.text(self.board.me, code) or "")
        return number

    def write_end(self, number: int) -> int:
        """Write the current time as the end of call ``number``.

        Returns:
            The time in nanoseconds of the monotonic clock.
        """
        now = self._numbers[locate(self.start, layout.END, number)] = time.monotonic_ns()
        return now

    def end(self, number: int, error: BaseException | None = None) -> None:
        """Log that a call has ended; compare all calls so far if a comparison is due.

        - After a success: compare if ``number`` is a multiple of :data:`EVERY` (64), or if enough time has passed since
          the last comparison. Enough are 2 ms, or 50 times the duration of the last comparison if that is longer.
        - After an error of MPI, such as a message that is longer than expected: compare at once.
        - After any other error: do not compare.

        Args:
            number: the number of the call in the group.
            error: the error that ended the call; None if it succeeded.

        Raises:
            DisagreementError: If calls or reads differ, or the log is full and a rank does not compare before the
                deadline.
        """
        now = self.write_end(number)
        if error is not None:
            if isinstance(error, MPI.Exception):
                self.compare()
        elif now > self._due or number % EVERY == 0:
            self.compare_and_make_space()

    def _is_unsafe(self, number: int, agreed: int) -> bool:
        """Return True if another rank logged a different call ``number``, and one of the two calls is heavy.

        A heavy call (``Call.number`` of at least ``NUMBERS``) can write behind the buffer of a rank in another call.
        Each rank first logs its call and then looks at the others. So of two ranks in different calls, at least one
        sees the difference before it enters MPI. Only ranks whose slot for this group is known already are read.

        For example, this rank logs a large all-gather as call 7. If another rank logged a barrier as call 7, return
        True. If the other rank has not begun call 7, return False: that rank will look later.

        Args:
            number: the number of this rank's call in the group.
            agreed: the number that must be equal on all ranks, as this rank logged it for this call.
        """
        offset_in_slot = locate(0, layout.AGREED, number)
        for place, start in self._starts.items():
            area = self.board.areas[place]
            if area[start + layout.BEGUN] > number and area[start + layout.KEY] == self.key:
                other_agreed = area[start + offset_in_slot]
                if other_agreed != agreed and other_agreed | agreed >= NUMBERS:
                    return True
        return False

    # -- comparing ----------------------------------------------------------------------------------------

    def find_difference(self) -> int | None:
        """Return the number of the first call that another rank made differently, or None.

        Compare this rank's calls with those that the other ranks have logged, without messages and without waiting.
        A call is compared once both ranks have logged it; an equal call is not compared again. None means that all
        calls compared so far are equal. For example, this rank has logged calls 0 to 5. Rank 1 has logged calls 0 to 3,
        all equal, and rank 2 differs in call 4: the result is 4.

        Also write to the board the number of leading calls that are equal on all ranks: 4 in the example. Two threads
        may call this method at once.
        """
        with self._lock:
            first, least = None, self.number
            for place, equal_until in self._compared.items():
                start = self.find_start(place)
                if start is not None:
                    area = self.board.areas[place]
                    until = min(area[start + layout.BEGUN], self.number)
                    equal_until = self._skip_equal(area, start, equal_until, until)
                    self._compared[place] = equal_until
                    if equal_until < until and (first is None or equal_until < first):
                        first = equal_until
                least = min(least, equal_until)
            self.board.numbers[self.start + layout.COMPARED] = least
            return first

    def _skip_equal(self, area: memoryview, start: int, since: int, until: int) -> int:
        """Return the number of the first call from ``since`` on that another rank made differently.

        For example, with ``since`` 3 and ``until`` 6: 4 if call 3 is equal and call 4 differs, and 6 if calls 3, 4, 5
        are equal.

        Args:
            area: the numbers of the other rank's area of the board.
            start: the index of the group's slot in them.
            since: the first call to compare.
            until: the call before which to stop; it is returned if all calls are equal (``since`` if that is larger).
        """
        for first, count in split_at_ring_end(since, until):
            own_numbers = read_agreed(self.board.numbers, self.start, first, count)
            differing = np.flatnonzero(own_numbers != read_agreed(area, start, first, count))
            if differing.size:
                return first + int(differing[0])
        return max(since, until)

    def has_space(self) -> bool:
        """Return True if the next :data:`EVERY` (64) calls overwrite no call that a rank must compare.

        A rank's log is a ring with the last ``RING`` (256) calls of the group. So each other rank must have compared
        all calls but the last 128, which leaves a margin. For example, after 200 calls each must have compared at least
        72.
        """
        return all(self._has_space_for(place) for place in self.others)

    def _has_space_for(self, place: int) -> bool:
        """Return True if the next :data:`EVERY` (64) calls overwrite no call that one rank must compare."""
        least = self.number - layout.RING + 2 * EVERY
        return least <= 0 or self._count_compared(place) >= least

    def _count_compared(self, place: int) -> int:
        """Return the number of this group's calls that a rank has compared with all ranks.

        It is 0 if the rank has made no call in this group. ``place`` is the rank's place on the board.
        """
        start = self.find_start(place)
        return 0 if start is None else int(self.board.areas[place][start + layout.COMPARED])

    def compare(self) -> None:
        """Compare all calls and reads so far with those that the other ranks have logged.

        Calls that another rank has not logged yet are not waited for.

        - If a call differs: publish how this rank computed the call's tensor, wait up to :data:`GRACE` (1) seconds
          until the other ranks have published theirs, and raise an error that describes the difference.
        - If a read differs: raise an error that describes it.
        - If nothing differs: set ``compared`` to the number of this rank's calls. Leave it if a rank of another node
          has not begun this rank's last call, because the copy of its log is older than its data.

        Raises:
            DisagreementError: If calls or reads differ. This rank claims on the board that it reports the reason.
        """
        self.board.refresh(self._list_behind())
        number = self.find_difference()
        if number is not None:
            self.publish_tensor(number)
            end = time.monotonic() + min(GRACE, self.deadline)
            while not self.is_described(number) and time.monotonic() < end:
                time.sleep(NAP)
                self.board.refresh()
            time.sleep(SHORT)  # the others publish the last texts
            self.board.refresh()
            self._raise(describe_disagreement(self, number))
        if (text := self.reads.find_disagreement()) is not None:
            self._raise(text)
        if self.have_begun(self.number - 1, self.far):  # else copies are older than the data that came
            self.compared = self.number

    def _list_behind(self) -> list[int]:
        """Return the places of ranks on other nodes whose copies a comparison has to renew.

        - A copy lacks calls that this rank has made, or has another one.
        - In a copy, the rank has not compared enough calls for the log to have space (:meth:`has_space`).
        - This rank doubts a read: all ranks of the group on other nodes.
        """
        if self.reads.has_doubts:
            return self.far
        return [p for p in self.far if self._compared[p] < self.number or not self._has_space_for(p)]

    def compare_and_make_space(self) -> None:
        """Compare all calls so far, and wait until the log has space for :data:`EVERY` (64) more calls.

        The log overwrites its oldest calls. So a rank that is far ahead waits here until the slower ranks have compared
        theirs (:meth:`has_space`). Also set the time of the next comparison; see :meth:`end`.

        Raises:
            DisagreementError: If calls or reads differ, ranks wait for one another in a circle, or a rank does not
                compare its calls before the deadline.
        """
        begin = time.monotonic_ns()
        self.compare()
        end = time.monotonic_ns()
        self._due = end + max(LATEST, SHARE * (end - begin))
        if not self.has_space():
            self._poll(self.number - 1, self._compare_for_space)

    def _compare_for_space(self) -> bool:
        self.compare()
        return self.has_space()

    def publish_tensor(self, number: int) -> None:
        """Publish on the board how this rank computed the tensor of its call ``number``.

        Do nothing if the call is not readable any more, or moves no tensor.
        """
        call = self.read(self.board.me, number)
        if call is not None and call.tensor:
            self.publish_ancestors(call.tensor)

    def is_described(self, number: int) -> bool:
        """Return True if all ranks have begun a call and published how they computed its tensor.

        Return False, too, if a rank's log has overwritten the call.

        Args:
            number: the number of the call in the group.
        """
        for place in self.places:
            call = self.read(place, number)
            if call is None or (call.tensor and self.board.text(place, call.tensor) is None):
                return False
        return True

    # -- waiting ------------------------------------------------------------------------------------------

    def wait(self, number: int | None = None) -> None:
        """Wait until all other ranks have begun a call, and compare all calls so far.

        Args:
            number: the number of the call in the group; None for the latest call of this rank.

        Raises:
            DisagreementError: If calls differ, or ranks do not come before the deadline.
        """
        number = self.number - 1 if number is None else number
        self.wait_for(number, self.others)
        self.compare()

    def wait_for(self, number: int, places: Sequence[int]) -> None:
        """Wait until some ranks have begun a call; return at once if they have.

        If this rank's latest call has ended, its end is erased from the log during the wait and written anew
        afterwards. So the other ranks see this rank in that call, and can name it or find a circle of waiting ranks.

        Args:
            number: the number of the call in the group.
            places: the ranks' places on the board.

        Raises:
            DisagreementError: As in :meth:`_poll`.
        """
        if self.have_begun(number, places):
            return
        numbers, last = self.board.numbers, self.number - 1
        end = locate(self.start, layout.END, last)
        has_ended = numbers[end] >= numbers[locate(self.start, layout.BEGIN, last)]
        if has_ended:
            numbers[end] = 0
            numbers[layout.ACTIVE_GROUP] = self._slot
        try:
            self._poll(number, lambda: self.have_begun(number, places))
        finally:
            if has_ended:
                self.write_end(last)

    def _poll(self, number: int, is_over: Callable[[], bool]) -> None:
        """Wait until ``is_over()`` is true; compare all calls meanwhile.

        - In the first :data:`AWAKE` (0.005) seconds, yield the processor between polls.
        - Later, sleep :data:`NAP` (0.0005) seconds between polls. Every :data:`LOOK` (0.25) seconds ask all other nodes,
          compare all calls, and look for ranks that wait for one another.
        - A poll asks only the nodes with ranks that have not come, as far as their copies show.
        - After the deadline, raise an error. If a host cannot be reached, raise it :data:`LOST_SECONDS` (15) seconds
          later: the thread of :mod:`~.wait_watch` ends the job before, because these ranks cannot agree on one report
          by MPI.

        Args:
            number: the number of the call that other ranks have to come to, for errors.
            is_over: function without arguments.

        Raises:
            DisagreementError: If calls or reads differ, ranks wait for one another in a circle, or ``deadline`` seconds
                are over.
        """
        begin = time.monotonic()
        look, self.is_polling = begin + LOOK, True
        try:
            while True:
                now = time.monotonic()
                self.board.refresh([place for place in self.far if self.count_begun(place) <= number])
                # Look after the refresh: this process may not have run for a long time.
                if is_over():
                    return
                if now - begin < AWAKE:
                    os.sched_yield()
                    continue
                if now > look:
                    look = now + LOOK
                    self.board.refresh()
                    self.compare()
                    if self.board.me in find_stuck_ranks_twice(self.board):
                        self._raise(describe_absence(self, number, NEVER))
                if now - begin > self.deadline + (LOST_SECONDS if self.board.lost_places() else 0.0):
                    self._raise(describe_absence(self, number, f"did not come within {self.deadline:g} s"))
                time.sleep(NAP)
        finally:
            self.is_polling = False

    def _raise(self, text: str) -> NoReturn:
        """Raise DisagreementError with a text, and claim the report of it."""
        self.has_reported = True
        self.board.claim_report()
        raise DisagreementError(text)
