"""The calls of one group: noted by each rank before it makes them, and compared with what the others noted.

A call is noted on the board before MPI is asked for anything, so who has another rank's data can read what that rank
called: numbers are compared before they leave the program, and nobody waits for it. Every call is compared, from the
first one on; only when, and by whom, is a matter of time.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Sequence
from threading import Lock
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.bounded import Bounded
from spmdsim.core.lockstep import contiguous
from spmdsim.sides import name_ranks, number_of, sides
from spmdsim.trace.recorder import source_lines
from spmdsim.worlds.mpi.board import (
    AGREED,
    BEGUN,
    COLUMNS,
    COMPARED,
    END,
    INSIDE,
    KEY,
    KIND,
    LINE,
    RING,
    Board,
    as_float,
    column,
)
from spmdsim.worlds.mpi.fingerprint import Record, differences
from spmdsim.worlds.mpi.lines import line_above, this_line, threads_in_calls

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.checker import Checker

Run = Callable[[np.ndarray], np.ndarray]
#: From what a call does, its number, whether it moves much, what refuses one that another rank makes otherwise, what looks
#: after errors, and what compares.
Noted = Callable[
    [Run, int, bool, Callable[[], None], Callable[[BaseException], None], Callable[[], None]], Run
]

#: Calls, a power of two, after which a group's are compared if nobody asked before.
EVERY = 64
#: Calls that are compared one by one sooner than all at once.
FEW = 8
#: Kinds of calls that are remembered to have been made.
KINDS = 4096
#: Calls before the one that ranks disagree about that are told, too.
BEFORE = 3


class Calls:
    """The calls of one group, as this rank made and compared them."""

    __slots__ = (
        "_compared",
        "_found",
        "_lock",
        "_tensor_words",
        "awake",
        "begin",
        "board",
        "due",
        "end",
        "far",
        "key",
        "kinds",
        "marks",
        "members",
        "noted",
        "number",
        "others",
        "peers",
        "places",
        "settled",
        "start",
        "told",
    )

    def __init__(
        self,
        board: Board,
        name: str,
        members: tuple[int, ...],
        places: tuple[int, ...],
        checker: Checker,
        strict: bool,
    ) -> None:
        self.board, self.members, self.places = board, members, places
        self.number, self.settled, self.told, self.awake, self.due = 0, 0, False, False, 0.0
        self.key = number_of(f"{name} {members}")
        self.start = board.enter(self.key, " ".join(map(str, places)))
        self.marks = board.marks(self.key)
        self.kinds: Bounded[int, None] = Bounded(KINDS)
        self.others = [place for place in places if place != board.me]
        self.far = [place for place in self.others if place in board.far]
        self._compared = dict.fromkeys(self.others, 0)
        self._found: dict[int, int] = {}
        self.peers: tuple[tuple[memoryview, int], ...] = ()
        self._lock = Lock()  # the thread of ``waiting`` compares, too
        self._tensor_words = checker.tensor
        self.begin, self.end, self.noted = _noting(self, checker.world, strict)

    def new(self, kind: int) -> bool:
        """Whether the group has not made this kind of call yet, as far as this rank remembers."""
        if kind in self.kinds:
            return False
        self.kinds[kind] = None
        return True

    def forget(self, failed: bool = False) -> None:
        """Give its place on the board back."""
        self.board.forget(self.key, failed)

    # -- comparing --------------------------------------------------------------------------------------

    def differs(self) -> int | None:
        """The first call that a member made otherwise, among those that both made and that were not compared yet."""
        with self._lock:
            return self._differs()

    def _differs(self) -> int | None:
        areas, numbers, own, first, least = (
            self.board.areas,
            self.board.numbers,
            self.number,
            None,
            self.number,
        )
        compared, places, key = self._compared, self._found, self.key
        for place, since in compared.items():
            at, theirs = places.get(place), areas[place]
            if at is None or theirs[at + KEY] != key:
                at = self._at(place)
            if at is not None:
                begun = theirs[at + BEGUN]
                until = begun if begun < own else own
                if since < until:
                    since = compared[place] = self._alike(theirs, at, since, until)
                    if since < until and (first is None or since < first):
                        first = since
            if since < least:
                least = since
        numbers[self.start + COMPARED] = least
        return first

    def _alike(self, theirs: memoryview, at: int, since: int, until: int) -> int:
        """Up to which call, of some that both ranks made, another rank's are as this rank's."""
        numbers, step = self.board.numbers, COLUMNS
        while since < until:
            a, b = column(self.start, AGREED, since), column(at, AGREED, since)
            many = min(until - since, RING - since % RING)
            if many > FEW and numbers[a : a + many * step : step] == theirs[b : b + many * step : step]:
                since += many
                continue
            for _ in range(many):
                if numbers[a] != theirs[b]:
                    return since
                a, b, since = a + step, b + step, since + 1
        return since

    def mark(self, number: int) -> None:
        """Let the others know that a call moves much."""
        self.marks[number % RING] = number ^ self.key

    def unlike(self, number: int) -> bool:
        """Whether a member that has begun this call, too, made it otherwise; of those that were found before."""
        row, begun, key = column(0, AGREED, number), BEGUN, self.key
        mine = self.board.numbers[self.start + row]
        return any(
            theirs[at + begun] > number and theirs[at + row] != mine and theirs[at + KEY] == key
            for theirs, at in self.peers
        )

    def arrived(self, number: int) -> list[int]:
        """The members that have begun this call, by their ranks."""
        return [rank for rank, place in zip(self.members, self.places) if self._begun(place) > number]

    def came(self, number: int, places: Sequence[int]) -> bool:
        """Whether the members at some places have begun this call."""
        return all(self._begun(place) > number for place in places)

    def _begun(self, place: int) -> int:
        at = self.start if place == self.board.me else self._at(place)
        return 0 if at is None else int(self.board.areas[place][at + BEGUN])

    def room(self) -> bool:
        """Whether the next calls may be noted without writing over some that others have not compared yet."""
        least = self.number - RING + 2 * EVERY
        if least <= 0:
            return True
        areas = self.board.areas
        return all(
            (at := self._at(place)) is not None and areas[place][at + COMPARED] >= least
            for place in self.others
        )

    def _at(self, place: int) -> int | None:
        """Where another member's numbers of this group begin."""
        at = self._found.get(place)
        if at is None or self.board.areas[place][at + KEY] != self.key:
            self._found.pop(place, None)
            at = self.board.find(place, self.key)
            if at is not None:
                self._found[place] = at
            self.peers = tuple([(self.board.areas[there], begin) for there, begin in self._found.items()])
        return at

    # -- in words ---------------------------------------------------------------------------------------

    def record(self, place: int, number: int) -> tuple[Record, str, int, int] | None:
        """A member's call in words, its line, its tensor and the number that must agree; None if it is not kept."""
        at = self.start if place == self.board.me else self._at(place)
        if at is None:
            return None
        board, numbers = self.board, self.board.areas[place]
        if number not in board.kept(place, at):
            return None
        agreed, kind, line = (numbers[column(at, what, number)] for what in (AGREED, KIND, LINE))
        words = self._words(place, kind)
        where = self._words(place, line) or board.words(place, line)
        return (
            Record.unpacked(words or "a call without words"),
            where or "an unknown place",
            agreed ^ kind,
            agreed,
        )

    def _words(self, place: int, number: int) -> str | None:
        return self.board.words(self.board.me, number) or self.board.words(place, number)

    def text(self, number: int, place: int | None = None) -> str:
        """A call as this rank, or the one at a place, made it."""
        record = self.record(self.board.me if place is None else place, number)
        return "a call that is not kept" if record is None else f"{record[0]}, at {record[1]}"

    def title(self, number: int) -> str:
        """Which call it is."""
        return f"call {number} of {name_ranks(self.members)}"

    def tell_tensor(self, number: int) -> None:
        """Let the others know which tensor a call of this rank is about."""
        record = self.record(self.board.me, number)
        if record is not None and (words := self._tensor_words(record[2])) is not None:
            self.board.tell(record[2], words)

    def disagreement(self, number: int) -> str:
        """One sentence: who made which call otherwise than the others, and what all had called before."""
        asked = {rank: self.record(place, number) for rank, place in zip(self.members, self.places)}
        records = {rank: kept for rank, kept in asked.items() if kept is not None}
        absent = [rank for rank in asked if rank not in records]
        groups = sides((rank, agreed) for rank, (_, _, _, agreed) in records.items())
        names = differences([records[ranks[0]][0] for ranks, _ in groups])
        if not names:
            names = ["tensor"] if len({records[ranks[0]][2] for ranks, _ in groups}) > 1 else ["source"]
        told = []
        for ranks, _ in groups[:4]:
            record, _, tensor, _ = records[ranks[0]]
            of = f", {self._tensor(tensor)}" if names == ["tensor"] else ""
            lines = dict.fromkeys(records[rank][1] for rank in ranks)
            told.append(f"{name_ranks(ranks)}: {record}{of}, at {' and '.join(lines)}")
        late = f"; {name_ranks(absent)} did not come there" if absent else ""
        if len(threads := threads_in_calls()) > 1:
            late += f"; the threads {' and '.join(threads)} call at once, each rank's in an order of its own"
        return f"ranks disagree about {self.title(number)} in its {', '.join(names)}; {'; '.join(told)}{late}{self._before(number)}"

    def parted(self) -> str:
        """Since when equal calls come from other lines, in words: there a member made one more or one less than the rest."""
        areas, here = self.board.areas, self.board.me
        forks = [
            (rank, place, self.start if place == here else self._at(place))
            for rank, place in zip(self.members, self.places)
        ]
        there = [(rank, place, at) for rank, place, at in forks if at is not None]
        begun = [areas[place][at + BEGUN] for _, place, at in there]
        for number in range(max(0, max(begun) - RING), min(begun)):
            if len({areas[place][column(at, LINE, number)] for _, place, at in there}) > 1:
                records = ((rank, self.record(place, number)) for rank, place, _ in there)
                lines = sides((rank, "?" if record is None else record[1]) for rank, record in records)
                told = ", ".join(f"{name_ranks(ranks)} at {line}" for ranks, line in lines)
                return f"; the calls are from other lines since call {number}: {told}"
        return ""

    def _tensor(self, tensor: int) -> str:
        words = next(filter(None, (self.board.words(place, tensor) for place in self.board.places())), None)
        return words or f"a tensor computed otherwise (number {tensor % 0xFFFF:04x})"

    def _before(self, number: int) -> str:
        some = range(max(0, number - BEFORE), number)
        calls = [record for k in some if (record := self.record(self.board.me, k)) is not None]
        return (
            f" (before that, all: {', '.join(f'{call.call} at {line}' for call, line, *_ in calls)})"
            if calls
            else ""
        )


def _noting(
    calls: Calls, world: Any, strict: bool
) -> tuple[Callable[[int], int], Callable[[int], None], Noted]:
    """What notes that a call begins, that it ends, and both around one that is made again and again."""
    board, numbers, start = calls.board, calls.board.numbers, calls.start
    clock, this_frame, last = time.monotonic, sys._getframe, RING - 1
    seconds = numbers.cast("B").cast("d")
    begun, here, marks, key = start + BEGUN, board.inside(start), calls.marks, calls.key
    # By a call's place in the ring: the first byte of its row, where its end stands, and where another's number would.
    slots = [
        (column(start, 0, k) * numbers.itemsize, column(start, END, k), column(0, AGREED, k))
        for k in range(RING)
    ]
    write, rewrite = struct.Struct("qqdd").pack_into, struct.Struct("qddd").pack_into  # see ``as_float``

    def begin(digest: int) -> int:
        tensor, line, number = world.about, this_line(board, 2), calls.number
        if strict:
            words = board.words(board.me, digest)
            digest ^= number_of(source_lines())
            board.tell(digest, words or "")
        write(numbers, slots[number & last][0], digest ^ tensor, digest, line, clock())
        calls.number = numbers[begun] = number + 1
        numbers[INSIDE] = here  # the last one: else it would seem to wait in the call before
        return number

    def end(number: int) -> None:
        seconds[slots[number & last][1]] = clock()

    def noted(
        run: Run,
        digest: int,
        heavy: bool,
        refuse: Callable[[], None],
        failed: Callable[[BaseException], None],
        compare: Callable[[], None],
    ) -> Run:
        # The code that the user's call is in, what knows that one's lines, and how far up it was.
        code: CodeType | None = None
        told: Callable[[int], float | None] = board.lines_of(0).get
        above = 1
        kind, but_one, unlike, was_begun = as_float(digest), EVERY - 1, calls.unlike, BEGUN

        def checked(array: np.ndarray) -> np.ndarray:
            """``begin``, the call and ``end`` in one function, which remembers where its user's frame was."""
            nonlocal code, told, above
            try:
                frame = this_frame(above)
                line = told(frame.f_lasti) if frame.f_code is code else None
            except ValueError:  # nobody is so far up
                line = None
            if line is None:  # not as the last time
                line, code, told, above = line_above(board, this_frame(1))
            number = calls.number
            place = number & last
            row, over, agreed = slots[place]
            mine = digest ^ world.about
            rewrite(numbers, row, mine, kind, line, clock())
            calls.number = numbers[begun] = number + 1
            numbers[INSIDE] = here
            try:
                if heavy:
                    marks[place] = number ^ key
                    for (
                        theirs,
                        at,
                    ) in calls.peers:  # as ``unlike`` does it; what begins with the key is the group
                        if (
                            theirs[at + was_begun] > number
                            and theirs[at + agreed] != mine
                            and theirs[at] == key
                        ):
                            refuse()
                elif (mark := marks[place]) and mark == number ^ key and unlike(number):
                    refuse()
                result = run(array if array.flags.c_contiguous else contiguous(array))
            except BaseException as error:
                end(number)
                failed(error)
                raise
            now = seconds[over] = clock()
            if now > calls.due or not number & but_one:
                compare()
            return result

        return checked

    return begin, end, noted
