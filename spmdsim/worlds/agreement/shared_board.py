"""Memory in which every rank logs its calls and reads those of the others, without a message.

A rank writes only its own area. ``docs/internals/agreement.md`` shows the layout.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from spmdsim.errors import WorldError
from spmdsim.sides import hash_text
from spmdsim.worlds.agreement.call import CallDescription
from spmdsim.worlds.agreement.process_state import LOST, RUNNING, find_process_state
from spmdsim.worlds.trace.source_lines import source_line, user_frame

#: Calls of a group that stay readable, a power of two. No rank is further ahead of another one.
RING = 256
#: Groups that a rank can take part in at a time, and groups of closed worlds that stay readable.
GROUPS, CLOSED_GROUPS = 2048, 32
#: Bytes for the texts of an area.
TEXT = 1 << 20
#: Lines of the user's program that a rank remembers.
LINES = 1 << 16

#: Numbers at the begin of an area: how the rank left, the group of its latest call (counted from 1), its process id,
#: bytes of texts, how often the texts began anew, group slots in use, whether it writes the last calls of all ranks,
#: the state of its process and the time of its node's last answer in nanoseconds (in copies on other nodes), and whether
#: it reports why the job ends.
EXIT, ACTIVE_GROUP, PROCESS, TEXT_BYTES, TEXT_RESTARTS, SLOTS, RECORDS, PROCESS_STATE, REPORTS, HEARD = range(
    10
)
HEAD = 12
#: Numbers at the begin of a group slot: the group's number, calls begun, and calls compared with all other ranks.
KEY, BEGUN, COMPARED = range(3)
_GROUP_HEAD = 4
#: Numbers of a logged call: the number that must agree (that of the call xor that of its tensor), the number of the
#: call, the user's line, and the times of begin and end in nanoseconds.
AGREED, CALL, LINE, BEGIN, END = range(5)
COLUMNS = 5
GROUP = _GROUP_HEAD + COLUMNS * RING
#: The index of the texts, and the numbers in an area.
TEXTS = HEAD + GROUPS * GROUP
AREA = TEXTS + TEXT // 8

#: Seconds within which several ranks begin to report at once; if a host cannot be reached, each waits for its answer.
AT_ONCE, LOST_AT_ONCE = 0.05, 1.5
#: Values of ``EXIT``.
STAYS, DONE, FAILED = range(3)
#: Values of ``REPORTS``: the rank raises an error that its program may catch, or it ends the job.
RAISES, ENDS_JOB = 1, 2


class LoggedCall(NamedTuple):
    """Call as one rank logged it.

    Attributes:
        description: the call in words.
        line: the user's line.
        tensor: the provenance number of the tensor that the call moves.
        agreed: the number that must be equal on all ranks.
        begin: the start in nanoseconds.
        end: the end in nanoseconds; before ``begin`` if the call has not ended.
    """

    description: CallDescription
    line: str
    tensor: int
    agreed: int
    begin: int
    end: int


def locate(start: int, column: int, number: int) -> int:
    """Return the index of a column of a call, in the group slot that begins at ``start``.

    A slot has a head of 4 numbers, then a row of 5 columns for each of the last :data:`RING` (256) calls.

    >>> locate(1000, LINE, 3), locate(1000, LINE, 259)
    (1021, 1021)
    """
    return start + _GROUP_HEAD + number % RING * COLUMNS + column


def split_at_ring_end(since: int, until: int) -> Iterator[tuple[int, int]]:
    """Yield ``(first, count)`` for each range of calls whose slots in the ring are contiguous.

    The ranges together are the calls ``since``, ..., ``until - 1``. A ring has slots for :data:`RING` (256) calls.

    >>> list(split_at_ring_end(250, 260))
    [(250, 6), (256, 4)]
    """
    while since < until:
        count = min(until - since, RING - since % RING)
        yield since, count
        since += count


class SharedBoard:
    """Memory of some ranks, an area each. A rank writes its calls, their texts and its state to its own area.

    Args:
        areas: each rank's numbers, zeros at first. Areas of other nodes' ranks are copies.
        members: the ranks' numbers in ``MPI.COMM_WORLD``, sorted. A rank's index in it is its place.
        me: this rank's place.
        far: the places of ranks on other nodes.
        refresh: updates their copies on a board; its second argument is that of :meth:`refresh`.
    """

    def __init__(
        self,
        areas: Sequence[memoryview],
        members: Sequence[int],
        me: int,
        far: frozenset[int] = frozenset(),
        refresh: Callable[[SharedBoard, Collection[int] | None], None] = lambda board, places: None,
    ) -> None:
        self.members, self.me, self.far = tuple(members), me, far
        self.areas, self.numbers = tuple(areas), areas[me]
        self._refresh = refresh
        self._bytes = [area.cast("B") for area in areas]
        self._worlds: Counter[tuple[int, ...]] = Counter()
        self._starts: dict[int, int] = {}
        self._closed: deque[int] = deque()
        self._published: dict[int, str] = {}
        self._lines: dict[tuple[int, int], int] = {}
        self._read: dict[int, tuple[tuple[int, int], dict[int, str]]] = {}
        self.numbers[PROCESS] = os.getpid()

    def name_world(self, places: tuple[int, ...]) -> str:
        """Return a name for the next world of these ranks, equal on all of them."""
        return f"{places} {self._worlds[places]}"

    def count_world(self, places: tuple[int, ...]) -> None:
        """Count a world of these ranks, all of which have come to make it."""
        self._worlds[places] += 1

    # -- this rank writes ---------------------------------------------------------------------------------

    def open_group(self, key: int, places: Sequence[int]) -> int:
        """Take a slot for the calls of a group, and publish the group's places there.

        A slot is the range of numbers in this rank's area in which it logs the group's calls. Take a new slot. If more
        than :data:`CLOSED_GROUPS` (32) groups are closed, reuse the slot that was closed first instead.

        Args:
            key: the number of the group.
            places: the places of the group's ranks.

        Returns:
            The index of the slot's first number in this rank's area.

        Raises:
            WorldError: If all :data:`GROUPS` (2048) slots are in use.
        """
        if len(self._closed) > CLOSED_GROUPS:
            slot = self._closed.popleft()
        elif (slot := self.numbers[SLOTS]) >= GROUPS:
            raise WorldError(f"{GROUPS} different groups of ranks are in use; close() a world to free them")
        self.publish(key, " ".join(map(str, places)))
        start = self._starts[key] = HEAD + slot * GROUP
        self.numbers[start + BEGUN] = self.numbers[start + COMPARED] = 0
        self.numbers[start + KEY] = key
        self.numbers[SLOTS] = max(self.numbers[SLOTS], slot + 1)
        return start

    def close_group(self, key: int, failed: bool = False) -> None:
        """Give the slot of group ``key`` back, for a later group.

        It stays readable for a while unless the group ``failed``.

        Raises:
            KeyError: If the group is not open.
        """
        start = self._starts.pop(key)
        if failed:
            self.numbers[start + KEY] = 0
        self._closed.append((start - HEAD) // GROUP)

    def slot_number(self, start: int) -> int:
        """Return the number of a group slot, counted from 1."""
        return (start - HEAD) // GROUP + 1

    def set_exit(self, how: int) -> None:
        """Write that this rank makes no more calls; ``how`` is :data:`DONE` or :data:`FAILED`."""
        self.numbers[EXIT] = how

    def claim_report(self) -> None:
        """Write that this rank reports why the job ends, unless its program catches the error."""
        self.numbers[REPORTS] = max(self.numbers[REPORTS], RAISES)

    def is_first_to_report(self) -> bool:
        """Claim the report of why the job ends; return True if this rank shall write it.

        - If another rank has claimed it: return False at once.
        - Otherwise claim it and wait :data:`AT_ONCE` (0.05) seconds, or :data:`LOST_AT_ONCE` (1.5) if a host cannot be
          reached. Then look for ranks that claimed it meanwhile. If one of them has a lower place, withdraw the claim
          and return False; else return True.

        For example, ranks 1 and 2 claim it at one time: rank 1 writes the report.
        """
        self.refresh()
        if any(self.state(place, REPORTS) for place in self.places() if place != self.me):
            return False
        self.numbers[REPORTS] = ENDS_JOB
        time.sleep(LOST_AT_ONCE if self.lost_places() else AT_ONCE)
        self.refresh()
        if any(self.state(place, REPORTS) for place in range(self.me)):
            self.numbers[REPORTS] = 0
            return False
        return True

    def is_reported(self) -> bool:
        """Return True if another rank ends the job, and has written why."""
        return any(self.state(place, REPORTS) == ENDS_JOB for place in self.places() if place != self.me)

    def publish(self, number: int, text: str) -> None:
        """Write to this rank's area the text that a number stands for, unless it is there.

        A text has at most 1000 bytes in UTF-8; the rest is cut off. If the area has no room for the text, start the
        texts anew: write only the latest 1024 again, this one among them, and count the restart in ``TEXT_RESTARTS``.

        Args:
            number: the number; the caller sees to it that equal numbers have equal texts.
            text: the text.
        """
        if number in self._published:
            return
        self._published[number] = text
        if not self._append(number, text):  # begin anew, with the latest texts
            latest = list(self._published.items())[-(TEXT >> 10) :]
            self._published = dict(latest)
            self._lines.clear()
            self.numbers[TEXT_BYTES] = 0
            self.numbers[TEXT_RESTARTS] += 1
            for key, words in latest:
                self._append(key, words)

    def _append(self, number: int, text: str) -> bool:
        """Write a text to this rank's area; write nothing and return False if the area has no room for it.

        The text is cut to 1000 bytes; the cut may split a character.

        Args:
            number: the number that stands for the text.
            text: the text.
        """
        used, data = self.numbers[TEXT_BYTES], text.encode()[:1000]
        # The number, the length, and the text in whole numbers of 8 bytes each.
        entry_bytes = 16 + (len(data) + 7) // 8 * 8
        if used + entry_bytes > TEXT:
            return False
        first = TEXTS + used // 8
        self.numbers[first], self.numbers[first + 1] = number, len(data)
        self.write_copy(self.me, first + 2, data)
        self.numbers[TEXT_BYTES] = used + entry_bytes
        return True

    def number_line(self, frame: FrameType | None) -> int:
        """Return the number of the user's line that calls this package, and publish the line.

        The number follows from the line's text, such as "model.py:12", so it is equal on all ranks. It is 0 without a
        user's line.

        Args:
            frame: the innermost frame, of this package or of the user; None gives 0.
        """
        frame, function = user_frame(frame)
        if frame is None:
            return 0
        number = self._lines.get((function, frame.f_lasti))
        return self._publish_line(frame, function) if number is None else number

    def number_lines(self, frame: FrameType | None, most: int) -> tuple[int, ...]:
        """Return the numbers of the user's lines in the current chain of calls, and publish the lines.

        The innermost line comes first. The numbers are those of :meth:`number_line`. Frames of this package and of
        libraries are left out.

        Args:
            frame: the innermost frame; None gives no numbers.
            most: the largest number of lines.
        """
        numbers: list[int] = []
        while len(numbers) < most and (frame := user_frame(frame)[0]) is not None:
            numbers.append(self.number_line(frame))
            frame = frame.f_back
        return tuple(numbers)

    def _publish_line(self, frame: FrameType, function: int) -> int:
        """Publish the text of the source line that a user's frame is at, and return its number.

        The number is a hash of the text, such as "model.py:12". It is cached for the frame's current instruction. The
        cache is emptied when it has :data:`LINES` (65,536) numbers.

        Args:
            frame: the frame.
            function: the number of its function, from :func:`user_frame`.
        """
        text = source_line(frame) or "an unknown place"
        number = hash_text(text)
        self.publish(number, text)
        if len(self._lines) >= LINES:
            self._lines.clear()
        self._lines[function, frame.f_lasti] = number
        return number

    # -- all ranks read -----------------------------------------------------------------------------------

    def refresh(self, places: Collection[int] | None = None) -> None:
        """Bring the copies of other nodes' areas up to date, as far as those nodes answer.

        Args:
            places: the places of ranks whose nodes are asked; None for all. Nothing is asked if they are empty.
        """
        if places is None or places:
            self._refresh(self, places)

    def write_copy(self, place: int, index: int, data: bytes) -> None:
        """Write bytes into a rank's area, from the number at ``index`` on.

        Args:
            place: the rank's place.
            index: the index of the first number of 8 bytes.
            data: the bytes.
        """
        self._bytes[place][index * 8 : index * 8 + len(data)] = data

    def places(self) -> range:
        """Return the places of the ranks."""
        return range(len(self.members))

    def state(self, place: int, index: int) -> int:
        """Return a number of the head of a rank's area.

        ``index`` is a constant such as :data:`EXIT`.
        """
        return int(self.areas[place][index])

    def process_state(self, place: int) -> int:
        """Return the state of a rank's process, such as ``RUNNING``; see :mod:`~.process_state`.

        For another node, it is what that node reported last, ``SILENT`` or ``LOST``; ``RUNNING`` before the first report.
        """
        if place in self.far:
            return self.state(place, PROCESS_STATE) or RUNNING
        return find_process_state(self.state(place, PROCESS))

    def lost_places(self) -> list[int]:
        """Return the places of the ranks whose hosts cannot be reached."""
        return [place for place in sorted(self.far) if self.state(place, PROCESS_STATE) == LOST]

    def silent_seconds(self, place: int) -> float:
        """Return the seconds since the node of the rank at ``place`` answered last.

        0 for ranks of this node, and before the first answer.
        """
        heard = self.state(place, HEARD) if place in self.far else 0
        return (time.monotonic_ns() - heard) / 1e9 if heard else 0.0

    def find_group(self, place: int, key: int) -> int | None:
        """Return the index of a rank's slot of a group; None if the rank has none.

        Args:
            place: the rank's place.
            key: the number of the group.
        """
        if place == self.me:
            return self._starts.get(key)
        return next((start for start, group in self.groups(place) if group == key), None)

    def groups(self, place: int) -> Iterator[tuple[int, int]]:
        """Yield the index and the group's number of each slot of the rank at ``place``.

        Slots of closed groups are among them until they are reused; those of failed groups are not.
        """
        numbers, end = self.areas[place], HEAD + self.state(place, SLOTS) * GROUP
        return ((start, numbers[start + KEY]) for start in range(HEAD, end, GROUP) if numbers[start + KEY])

    def count_begun(self, place: int, key: int) -> int:
        """Return the number of calls that the rank at ``place`` has begun in group ``key``.

        Return 0 if the rank has no slot of the group.
        """
        start = self.find_group(place, key)
        return 0 if start is None else int(self.areas[place][start + BEGUN])

    def group_places(self, place: int, key: int) -> list[int]:
        """Return the places of group ``key``'s ranks, as the rank at ``place`` wrote them.

        Return [] if the rank has not written them.
        """
        return [int(word) for word in (self.text(place, key) or "").split()]

    def readable_calls(self, place: int, start: int) -> range:
        """Return the numbers of the calls that a slot still has.

        They are the last :data:`RING` (256) calls, or all if there are fewer.

        Args:
            place: the rank's place.
            start: the index of the group's slot.
        """
        count = self.areas[place][start + BEGUN]
        return range(max(count - RING, 0), count)

    def current_call(self, place: int) -> tuple[int, int] | None:
        """Return ``(group's number, call's number in the group)`` of the call that a rank is in.

        Return None if the rank's latest call has ended, or if it has made none. The log is reused: an end time before
        the begin time belongs to an older call, so the latest call has not ended.

        Args:
            place: the rank's place.
        """
        slot = self.state(place, ACTIVE_GROUP)
        if not slot:
            return None
        start, numbers = HEAD + (slot - 1) * GROUP, self.areas[place]
        number = numbers[start + BEGUN] - 1
        if number < 0 or numbers[locate(start, END, number)] >= numbers[locate(start, BEGIN, number)]:
            return None
        return numbers[start + KEY], number

    def read_call(self, place: int, start: int, number: int) -> LoggedCall:
        """Return a call that the rank at ``place`` has logged.

        The log has numbers for the call's words and for its line; the texts are looked up. Without a text, they become
        "a call without words" and "an unknown place". The caller must know that the slot still has the call
        (:meth:`readable_calls`).

        Args:
            place: the place of the rank.
            start: the index of the group's slot.
            number: the number of the call in the group.
        """
        first = locate(start, 0, number)
        agreed, call, line, begin, end = self.areas[place][first : first + COLUMNS]
        # A number stands for one text on all ranks. This rank's own texts need no search in shared memory.
        call_text = self.text(self.me, call) or self.text(place, call)
        line_text = self.text(self.me, line) or self.text(place, line)
        description = CallDescription.unpack(call_text or "a call without words")
        return LoggedCall(description, line_text or "an unknown place", agreed ^ call, agreed, begin, end)

    def text(self, place: int, number: int) -> str | None:
        """Return the text that a rank published for a number; None if it did not, or dropped it.

        Texts of other ranks are cached until the rank publishes more.

        Args:
            place: the rank's place.
            number: the number that stands for the text.
        """
        if place == self.me:
            return self._published.get(number)
        state = (self.state(place, TEXT_RESTARTS), self.state(place, TEXT_BYTES))
        entry = self._read.get(place)
        if entry is None or entry[0] != state:
            entry = self._read[place] = state, self._read_texts(place, state[1])
        return entry[1].get(number)

    def _read_texts(self, place: int, used: int) -> dict[int, str]:
        """Return the texts in a rank's area by the numbers that they stand for.

        The rank may start its texts anew while this rank reads them. Then a length is out of range; return the texts
        before it. Bytes that are not UTF-8 are replaced.

        Args:
            place: the rank's place.
            used: how many bytes of the area are texts.
        """
        texts, numbers, data = {}, self.areas[place], self._bytes[place]
        index, end = TEXTS, TEXTS + used // 8
        while index < end:
            length = numbers[index + 1]
            if not 0 <= length <= TEXT:  # the texts begin anew just now
                break
            text = bytes(data[index * 8 + 16 : index * 8 + 16 + length])
            texts[numbers[index]] = text.decode(errors="replace")
            index += 2 + (length + 7) // 8
        return texts
