"""What every rank called last, in memory that all ranks of a node read: each writes its own area, and asks nobody."""

from __future__ import annotations

import os
import struct
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spmdsim.bounded import Bounded
from spmdsim.core.step import Step
from spmdsim.errors import WorldError
from spmdsim.settings import RANKS_PER_NODE
from spmdsim.sides import number_of

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.boards import Courier


@dataclass(frozen=True)
class Record:
    """A call in words. Two calls agree if all of it does."""

    call: str
    axes: str = ""
    source_layout: str = ""
    target_layout: str = ""
    shape: str = ""
    dtype: str = ""
    op: str = ""
    algorithm: str = ""
    ids: str = ""

    @staticmethod
    def of(step: Step, dtype: str, algorithm: str | None) -> Record:
        """What a step is in words."""
        return Record(
            step.collective,
            ",".join(step.axes),
            str(step.src),
            str(step.dst),
            str(step.shape) if step.to_shape is None else f"{step.shape} as {step.to_shape}",
            dtype,
            step.op or "",
            algorithm or "",
        )

    def packed(self) -> str:
        """As one text, to be read by others."""
        return "\t".join(astuple(self))

    @staticmethod
    def unpacked(text: str) -> Record:
        """The record that was packed."""
        return Record(*text.split("\t")[: len(fields(Record))])

    def __str__(self) -> str:
        if not self.source_layout:
            return self.call
        over = f" over {self.axes}" if self.axes else ""
        op = f" ({self.op})" if self.op else ""
        by = f" by {self.algorithm}" if self.algorithm else ""
        ids = f" for {self.ids}" if self.ids else ""
        return (
            f"{self.call}{op}{over}{by}{ids} of {self.dtype} {self.shape}, {self.source_layout} to "
            f"{self.target_layout}"
        )


def digest(step: Step, dtype: str, algorithm: str | None) -> int:
    """A positive 61-bit number that equal calls share on all processes and different ones do not."""
    facts = [getattr(step, field.name) for field in fields(step)]
    return number_of(repr((*facts, dtype, algorithm)))


def differences(records: Sequence[Record]) -> list[str]:
    """The names of the fields that are not the same in all records; the first one alone, of calls of other names."""
    names = [field.name for field in fields(Record)]
    rows = [astuple(record) for record in records]
    unlike = [name.replace("_", " ") for name, column in zip(names, zip(*rows)) if len(set(column)) > 1]
    return unlike[:1] if names[0] in unlike else unlike


#: What becomes of a process: it runs, was stopped by a signal or a debugger, has ended, or its node does not answer.
RUNS, STOPPED, ENDED, SILENT = range(1, 5)


class ProcessPlace(NamedTuple):
    """Where a rank runs: processes of one machine, in one namespace, see each other."""

    machine: str
    process: int


def here(rank: int) -> ProcessPlace:
    """Where this rank of all runs."""
    each = RANKS_PER_NODE.read()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no such system
        machine = ""
    return ProcessPlace(machine if each is None else f"{machine} part {rank // each}", os.getpid())


def state_of(process: int) -> int:
    """Whether a process of this machine runs, is stopped, or has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ENDED
    except OSError:  # somebody else's
        return RUNS
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return RUNS
    return {"T": STOPPED, "t": STOPPED, "Z": ENDED, "X": ENDED}.get(state, RUNS)


#: Calls that a rank keeps of each group, a power of two. More than this many calls no rank is ahead of another.
RING = 256
#: Groups at most that a rank takes part in at a time.
GROUPS = 2048
#: Groups of closed worlds that stay readable.
LINGER = 32
#: Functions of the user's of which lines are known.
FUNCTIONS = 8192
#: Bytes for what numbers mean, in words.
TEXT = 1 << 20

#: What stands in a rank's area before its groups: whether it left, the group that it called last (counted from 1),
#: its process, the bytes of its words, how many times they began anew, how many places of groups were ever taken,
#: whether it writes what all ranks called, in copies the state of its process, and whether it says why the job ends.
LEFT, INSIDE, PROCESS, WORDS, ANEW, PLACES, WRITES, SEEN, SPEAKS = range(9)
HEAD = 12
#: What stands before a group's calls: its number, how many were begun, and how many were compared with everybody.
KEY, BEGUN, COMPARED = range(3)
_GROUP_HEAD = 4
#: What is kept of a call, a row of a ring: the number that must agree, that of its kind (the two differ by the tensor's), the
#: line, begin and end (of both the seconds, a float, see ``as_float``).
AGREED, KIND, LINE, BEGIN, END = range(5)
COLUMNS = 5

GROUP = _GROUP_HEAD + COLUMNS * RING
#: Numbers of the rows of what each rank of a node called so far, by group, in the area of its first one.
ROW_NUMBERS = 1 << 16
#: Where the words and these rows stand, and the numbers in an area.
TEXTS = HEAD + GROUPS * GROUP
ROWS = TEXTS + TEXT // 8
AREA = ROWS + ROW_NUMBERS

#: Numbers in a line of a cache.
LINE_NUMBERS = 8

#: Seconds in which ranks begin at once.
AT_ONCE = 0.05

#: How a rank left.
STAYS, DONE, FAILED = range(3)


class NotedCall(NamedTuple):
    """A call in words, with the line, the number of the tensor that it is about, the number that must agree, and when."""

    record: Record
    line: str
    about: int
    agreed: int
    begin: float
    end: float


class Board:
    """The areas of some ranks, by their places: ``members`` are they in ``MPI.COMM_WORLD``, sorted, ``me`` is this rank's.

    The areas are numbers, zeros at first: a rank's own, or copies that the courier keeps up to date.
    """

    def __init__(
        self, areas: Sequence[memoryview], members: Sequence[int], me: int, courier: Courier | None = None
    ) -> None:
        self.members, self.me, self.courier = tuple(members), me, courier
        self.areas, self.numbers = tuple(areas), areas[me]
        self.far = frozenset() if courier is None else courier.places
        self._bytes = [area.cast("B") for area in areas]
        self._worlds: Counter[tuple[int, ...]] = Counter()
        self._used: dict[int, int] = {}
        self._retired: deque[int] = deque()
        self._told: dict[int, str] = {}
        self._lines: Bounded[int, dict[int, float]] = Bounded(FUNCTIONS, dict.clear)
        self._read: dict[int, tuple[tuple[int, int], dict[int, str]]] = {}
        self.numbers[PROCESS] = os.getpid()

    def name(self, places: tuple[int, ...]) -> str:
        """Tells the next world of these ranks from earlier ones; all of its ranks have begun the same ones."""
        return f"{places} {self._worlds[places]}"

    def met(self, places: tuple[int, ...]) -> None:
        """These ranks met to make a world."""
        self._worlds[places] += 1

    # -- this rank writes ---------------------------------------------------------------------------------

    def enter(self, key: int, words: str) -> int:
        """Take a place for the calls of a group and say who is in it: where its numbers begin."""
        if len(self._retired) > LINGER:
            place = self._retired.popleft()
        elif (place := self.numbers[PLACES]) >= GROUPS:
            raise WorldError(f"{GROUPS} different groups of ranks are in use; close() a world to free them")
        self.tell(key, words)
        at = self._used[key] = HEAD + place * GROUP
        for k in (BEGUN, COMPARED):
            self.numbers[at + k] = 0
        self.numbers[at + KEY] = key
        self.numbers[PLACES] = max(self.numbers[PLACES], place + 1)
        return at

    def forget(self, key: int, failed: bool = False) -> None:
        """Give a group's place back; others may read there for a while, but not of a group that came to nothing."""
        at = self._used.pop(key)
        if failed:
            self.numbers[at + KEY] = 0
        self._retired.append((at - HEAD) // GROUP)

    def row(self, key: int, width: int) -> memoryview:
        """Where so many ranks of a node say what they called so far in a group; another group's may stand there, too.

        In one place, unlike the rest that a rank writes: all of it is read before each call.
        """
        room = -(-(len(self.members) - len(self.far)) // LINE_NUMBERS) * LINE_NUMBERS
        at = ROWS + key % (ROW_NUMBERS // room) * room
        row: memoryview = self.areas[min({*self.places()} - self.far)][at : at + width]
        return row

    def inside(self, at: int) -> int:
        """The number of the group whose numbers begin there, counted from 1."""
        return (at - HEAD) // GROUP + 1

    def leave(self, how: int) -> None:
        """Say that this rank makes no more calls."""
        self.numbers[LEFT] = how

    def speak(self) -> None:
        """Say that this rank says why the job ends."""
        self.numbers[SPEAKS] = 1

    def speaks_first(self) -> bool:
        """Whether nobody else says why the job ends, now that this rank does; the first one if several begin at once."""
        if any(self.state(place, SPEAKS) for place in self.places() if place != self.me):
            return False
        self.speak()
        time.sleep(AT_ONCE)
        self.refresh()
        return not any(self.state(place, SPEAKS) for place in range(self.me))

    def tell(self, number: int, words: str) -> None:
        """Say what a number means, once."""
        if number in self._told:
            return
        self._told[number] = words
        if not self._append(number, words):  # begin anew with what is most likely asked for
            kept = list(self._told.items())[-(TEXT >> 10) :]
            self._told = dict(kept)
            for lines in self._lines.values():
                lines.clear()  # they are told again where they are met again
            self.numbers[WORDS] = 0
            self.numbers[ANEW] += 1
            for told, text in kept:
                self._append(told, text)

    def lines_of(self, function: int) -> dict[int, float]:
        """The lines of a function of the user's that were told, by their instructions: numbers to be written (see ``as_float``)."""
        lines = self._lines.get(function)
        if lines is None:
            lines = self._lines[function] = {}
        return lines

    def _append(self, number: int, words: str) -> bool:
        used, data = self.numbers[WORDS], words.encode()[:1000]
        size, first = (len(data) + 7) // 8 * 8, TEXTS + used // 8
        if used + 16 + size > TEXT:
            return False
        self.numbers[first], self.numbers[first + 1] = number, len(data)
        self.put(self.me, first + 2, data)
        self.numbers[WORDS] = used + 16 + size
        return True

    # -- everybody reads ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Bring the copies up to date, as far as the ranks' nodes answer."""
        if self.courier is not None:
            self.courier.refresh(self)

    def put(self, place: int, at: int, numbers: bytes) -> None:
        """Copy what another rank noted."""
        self._bytes[place][at * 8 : at * 8 + len(numbers)] = numbers

    def places(self) -> range:
        """The places of the ranks."""
        return range(len(self.members))

    def state(self, place: int, what: int) -> int:
        """What stands in the head of a rank's area."""
        return int(self.areas[place][what])

    def process(self, place: int) -> int:
        """Whether a rank's process runs, as far as its node says."""
        if place in self.far:
            return self.state(place, SEEN) or RUNS
        return state_of(self.state(place, PROCESS))

    def find(self, place: int, key: int) -> int | None:
        """Where a rank's numbers of a group begin; None if it has not taken part in it."""
        if place == self.me:
            return self._used.get(key)
        return next((at for at, there in self.groups(place) if there == key), None)

    def groups(self, place: int) -> Iterator[tuple[int, int]]:
        """Where a rank's numbers of each of its groups begin, with what the group is called by."""
        numbers, end = self.areas[place], HEAD + self.state(place, PLACES) * GROUP
        return ((at, numbers[at + KEY]) for at in range(HEAD, end, GROUP) if numbers[at + KEY])

    def begun(self, place: int, key: int) -> int:
        """How many calls of a group a rank has begun."""
        at = self.find(place, key)
        return 0 if at is None else int(self.areas[place][at + BEGUN])

    def group(self, place: int, key: int) -> list[int]:
        """The places of a group's ranks, as one of them says."""
        return [int(word) for word in (self.words(place, key) or "").split()]

    def kept(self, place: int, at: int) -> range:
        """The numbers of the calls that are kept of the group whose numbers begin there."""
        begun = self.areas[place][at + BEGUN]
        return range(max(begun - RING, 0), begun)

    def waits(self, place: int) -> tuple[int, int] | None:
        """The group, and the number of its call, that a rank is in now."""
        inside = self.state(place, INSIDE)
        at, numbers = HEAD + (inside - 1) * GROUP, self.areas[place]
        number = numbers[at + BEGUN] - 1 if inside else -1
        if number < 0:
            return None
        begin, end = (as_float(numbers[column(at, what, number)]) for what in (BEGIN, END))
        return (numbers[at + KEY], number) if end < begin else None

    def call(self, place: int, at: int, number: int) -> NotedCall:
        """A rank's call, of the group whose numbers begin there."""
        agreed, kind, line, *seconds = (self.areas[place][column(at, k, number)] for k in range(COLUMNS))
        words, where = (self.words(self.me, n) or self.words(place, n) for n in (kind, line))
        record = Record.unpacked(words or "a call without words")
        return NotedCall(record, where or "an unknown place", agreed ^ kind, agreed, *map(as_float, seconds))

    def words(self, place: int, number: int) -> str | None:
        """What a rank says that a number means."""
        if place == self.me:
            return self._told.get(number)
        state = (self.state(place, ANEW), self.state(place, WORDS))
        entry = self._read.get(place)
        if entry is None or entry[0] != state:
            entry = self._read[place] = state, self._all_words(place, state[1])
        return entry[1].get(number)

    def _all_words(self, place: int, used: int) -> dict[int, str]:
        words, numbers, data = {}, self.areas[place], self._bytes[place]
        at, end = TEXTS, TEXTS + used // 8
        while at < end:
            length = numbers[at + 1]
            if not 0 <= length <= TEXT:  # it is being written anew
                break
            text = bytes(data[at * 8 + 16 : at * 8 + 16 + length])
            words[numbers[at]] = text.decode(errors="replace")
            at += 2 + (length + 7) // 8
        return words


def as_float(number: int) -> float:
    """The float of the same bits: as such a number is written to the board in less time."""
    (value,) = struct.unpack("d", struct.pack("q", number))
    return float(value)


def as_number(value: float) -> int:
    """The number that was made a float."""
    (number,) = struct.unpack("q", struct.pack("d", value))
    return int(number)


def column(at: int, what: int, number: int) -> int:
    """Where something about a call stands, of the group whose numbers begin at ``at``."""
    return at + _GROUP_HEAD + number % RING * COLUMNS + what
