"""The calls of one group: noted by each rank before it makes them, and compared with what the others noted.

A call is noted on the board before MPI is asked for anything, so who has another rank's data can read what that rank
called: numbers are compared before they leave the program, and nobody waits for it. Every call is compared, from the
first one on; only when, and by whom, is a matter of time.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from spmdsim.bounded import Bounded
from spmdsim.core.elements import contiguous
from spmdsim.errors import DisagreementError
from spmdsim.sides import NUMBERS, name_ranks, number_of, sides
from spmdsim.trace.source_lines import source_lines, threads_in_calls
from spmdsim.worlds.mpi import board as area
from spmdsim.worlds.mpi.board import Board, NotedCall, as_number, column, differences
from spmdsim.worlds.mpi.line_numbers import this_line
from spmdsim.worlds.mpi.tensor_reads import TensorReads
from spmdsim.worlds.mpi.waiting import NEVER, absence, held_up
from spmdsim.worlds.programs import Run
from spmdsim.worlds.provenance import differing_ancestors

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.checker import Check, Checker


#: Seconds for which a rank that waits does not sleep, between two looks of one that does, and between two longer looks.
AWAKE, NAP, LOOK = 0.005, 0.0005, 0.25
#: Seconds that a rank which sees that the ranks disagree gives the others to come there, too.
GRACE, SHORT = 1.0, 0.05
#: Calls, a power of two, after which a group's are compared if nobody asked before.
EVERY = 64
#: Calls that are compared one by one sooner than all at once.
FEW = 8
#: Kinds of calls that are remembered to have been made.
KINDS = 4096
#: Calls before the one that ranks disagree about that are told, too.
BEFORE = 3


class Calls:
    """The calls of one group, as this rank made and compared them.

    ``members`` are its ranks in their world, sorted, and ``places`` theirs on the board. ``number`` calls were begun,
    ``settled`` when they were last compared; they are compared again when they are ``due``, at the latest, unless all so
    far were seen to be ``alike``. ``computed`` tensors were computed before the latest call. ``told`` says that somebody was told already that ranks disagree or do not come, ``awake``
    that this rank waits where it looks around itself, and not inside of MPI. ``peers`` are the other members that were
    found on the board.
    """

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
        self.computed = 0
        self.key = number_of(f"{name} {members}")
        self.start = board.enter(self.key, " ".join(map(str, places)))
        # What each rank of this node called so far, all its calls in one number: who reads there of everybody its own, or
        # its own before its latest call, has seen that they called the same, and that nobody is in another call; else what
        # they noted says more. Who is in one that moves much expects much, and whoever calls something else then would be
        # overrun or overrun it: each notes its own call and then looks, so that one of them stays out of MPI.
        near = [place for place in places if place not in board.far]
        self.row, self.place = board.row(self.key, len(near)), near.index(board.me)
        self.latest = self.before = self.key
        self.alike = 0
        self.kinds: Bounded[int, None] = Bounded(KINDS)
        self.others = [place for place in places if place != board.me]
        self.far = [place for place in self.others if place in board.far]
        self._compared = dict.fromkeys(self.others, 0)
        self._begins: dict[int, int] = {}
        self.peers: tuple[tuple[memoryview, int], ...] = ()
        self._lock = Lock()  # the thread of ``waiting`` compares, too
        self.provenance, self.deadline = checker.world.provenance, checker.deadline
        self.reads = TensorReads(self, strict)
        self.strict, self.world = strict, checker.world

    # -- writing ----------------------------------------------------------------------------------------

    def begin(self, digest: int) -> int:
        """Write that this rank begins a call; return its number in the group."""
        board, numbers, tensor, number = self.board, self.board.numbers, self.world.about, self.number
        line = this_line(board)
        if self.strict:
            words = board.words(board.me, digest)
            digest ^= number_of(source_lines())
            board.tell(digest, words or "")
        _BEGIN.pack_into(
            numbers, column(self.start, 0, number) * 8, digest ^ tensor, digest, line, time.monotonic()
        )
        self.number = numbers[self.start + area.BEGUN] = number + 1
        self.computed = self.provenance.count
        numbers[area.INSIDE] = board.inside(
            self.start
        )  # the last one: else it would seem to wait in the call before
        self.before = self.latest
        self.row[self.place] = self.latest = hash((self.latest, digest ^ tensor))
        return number

    def end(self, number: int) -> None:
        """Write that a call has ended."""
        self.board.numbers[column(self.start, area.END, number)] = as_number(time.monotonic())

    def noted(self, run: Run, check: Check) -> Run:
        """Return a run that writes and compares its calls, of a kind that the group has compared before."""
        return RepeatedCall(self, run, check).run

    def look(self, number: int) -> None:
        """Compare now if another rank is in another call and either of the two moves much."""
        if not self.far:
            row = self.row.tolist()
            if row.count(self.latest) + row.count(self.before) == len(row):
                self.alike = number
                return
        if self.unlike(number):
            self.compare()

    def new(self, kind: int) -> bool:
        """Whether the group has not made this kind of call yet, as far as this rank remembers."""
        if kind in self.kinds:
            return False
        self.kinds[kind] = None
        return True

    def forget(self, failed: bool = False) -> None:
        """Give its place on the board back."""
        self.reads.forget(failed)
        self.board.forget(self.key, failed)

    # -- comparing --------------------------------------------------------------------------------------

    def differs(self) -> int | None:
        """The first call that a member made otherwise, among those that both made and that were not compared yet."""
        with self._lock:
            return self._differs()

    def _differs(self) -> int | None:
        areas, compared, places, key = self.board.areas, self._compared, self._begins, self.key
        own, first, least, alike = self.number, None, self.number, self.alike
        for place, since in compared.items():
            at, theirs = places.get(place), areas[place]
            if at is None or theirs[at + area.KEY] != key:
                at = self._at(place)
            if at is not None:
                begun = theirs[at + area.BEGUN]
                until = begun if begun < own else own
                since = since if alike < since else alike
                if since < until:
                    since = compared[place] = self._alike(theirs, at, since, until)
                    if since < until and (first is None or since < first):
                        first = since
            if since < least:
                least = since
        self.board.numbers[self.start + area.COMPARED] = least
        return first

    def _alike(self, theirs: memoryview, at: int, since: int, until: int) -> int:
        """Up to which call, of some that both ranks made, another rank's are as this rank's."""
        numbers, step = self.board.numbers, area.COLUMNS
        while since < until:
            a, b = column(self.start, area.AGREED, since), column(at, area.AGREED, since)
            many = min(until - since, area.RING - since % area.RING)
            if many > FEW and numbers[a : a + many * step : step] == theirs[b : b + many * step : step]:
                since += many
                continue
            for _ in range(many):
                if numbers[a] != theirs[b]:
                    return since
                a, b, since = a + step, b + step, since + 1
        return since

    def unlike(self, number: int) -> bool:
        """Whether a member that has begun this call, too, made it otherwise, and either moves much; of those found before."""
        row, begun, key = column(0, area.AGREED, number), area.BEGUN, self.key
        mine = self.board.numbers[self.start + row]
        return any(
            theirs[at + begun] > number
            and (its := theirs[at + row]) != mine
            and its | mine >= NUMBERS
            and theirs[at + area.KEY] == key
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
        return 0 if at is None else int(self.board.areas[place][at + area.BEGUN])

    def room(self) -> bool:
        """Whether the next calls may be noted without writing over some that others have not compared yet."""
        least = self.number - area.RING + 2 * EVERY
        if least <= 0:
            return True
        areas = self.board.areas
        return all(
            (at := self._at(place)) is not None and areas[place][at + area.COMPARED] >= least
            for place in self.others
        )

    def _at(self, place: int) -> int | None:
        """Where another member's numbers of this group begin."""
        at = self._begins.get(place)
        if at is None or self.board.areas[place][at + area.KEY] != self.key:
            self._begins.pop(place, None)
            at = self.board.find(place, self.key)
            if at is not None:
                self._begins[place] = at
            self.peers = tuple([(self.board.areas[there], begin) for there, begin in self._begins.items()])
        return at

    def compare(self) -> None:
        """Compare all that was called so far with what the others called so far."""
        self.board.refresh()
        number = self.differs()
        if number is not None:
            self.tell_tensor(number)
            end = time.monotonic() + min(GRACE, self.deadline)
            while not self.said(number) and time.monotonic() < end:
                time.sleep(NAP)
                self.board.refresh()
            time.sleep(SHORT)  # the others say the rest
            self.board.refresh()
            self._refuse(self.disagreement(number))
        if (text := self.reads.disagreement()) is not None:
            self._refuse(text)
        if self.came(self.number - 1, self.far):  # else their copies are older than what they sent
            self.settled = self.number

    def wait(self, number: int, there: Callable[[], bool]) -> None:
        """Wait until the other ranks are where they must be before this rank goes on with a call."""
        begin = time.monotonic()
        look, self.awake = begin + LOOK, True
        try:
            while not there():
                if self.far:
                    self.board.refresh()
                if (now := time.monotonic()) - begin < AWAKE:
                    os.sched_yield()
                    continue
                if now > look:
                    look = now + LOOK
                    self.compare()
                    if self.board.me in held_up(self.board):
                        self._missing(number, NEVER)
                if now - begin > self.deadline:
                    self._missing(number, f"did not come within {self.deadline:g} s")
                time.sleep(NAP)
        finally:
            self.awake = False

    def meet(self) -> None:
        """Inside of a call: wait until all others have begun it, too, and compare."""
        number = self.number - 1
        self.wait(number, lambda: self.came(number, self.others))
        self.compare()

    def reach(self, number: int, places: Sequence[int]) -> None:
        """Wait until these members have come to a call that this rank began before, in sight of the others."""
        if self.came(number, places):
            return
        numbers, last = self.board.numbers, column(self.start, area.END, self.number - 1)
        numbers[last] = 0  # as if it were still in its last one
        numbers[area.INSIDE] = self.board.inside(self.start)
        try:
            self.wait(number, lambda: self.came(number, places))
        finally:
            numbers[last] = as_number(time.monotonic())

    def _missing(self, number: int, how: str) -> NoReturn:
        self._refuse(absence(self.board, self, number, how))

    def _refuse(self, why: str) -> NoReturn:
        self.told = True
        self.board.speak()
        raise DisagreementError(why)

    # -- in words ---------------------------------------------------------------------------------------

    def record(self, place: int, number: int) -> NotedCall | None:
        """A member's call; None if it is not kept."""
        at = self.start if place == self.board.me else self._at(place)
        if at is None or number not in self.board.kept(place, at):
            return None
        return self.board.call(place, at, number)

    def text(self, number: int, place: int | None = None) -> str:
        """A call as this rank, or the one at a place, made it."""
        call = self.record(self.board.me if place is None else place, number)
        return "a call that is not kept" if call is None else f"{call.record}, at {call.line}"

    def title(self, number: int) -> str:
        """Which call it is."""
        return f"call {number} of {name_ranks(self.members)}"

    def tell_tensor(self, number: int) -> None:
        """Let the others know which tensor a call of this rank is about, and how it was computed."""
        call = self.record(self.board.me, number)
        if call is not None and call.about:
            for ancestor, words in self.provenance.ancestors(call.about):
                self.board.tell(ancestor, words)

    def said(self, number: int) -> bool:
        """Return True if all members have begun a call, and said which tensor it is about."""
        calls = [(place, self.record(place, number)) for place in self.places]
        return all(c and (not c.about or self.board.words(p, c.about) is not None) for p, c in calls)

    def disagreement(self, number: int) -> str:
        """One sentence: who made which call otherwise than the others, and what all had called before."""
        asked = {rank: self.record(place, number) for rank, place in zip(self.members, self.places)}
        calls = {rank: kept for rank, kept in asked.items() if kept is not None}
        absent = [rank for rank in asked if rank not in calls]
        groups = [ranks for ranks, _ in sides((rank, call.agreed) for rank, call in calls.items())]
        firsts = [calls[ranks[0]] for ranks in groups]
        names = differences([call.record for call in firsts])
        if not names:
            names = ["tensor"] if len({call.about for call in firsts}) > 1 else ["source"]
        told, tensors = [], [""] * len(groups)
        if names == ["tensor"]:
            place_of = dict(zip(self.members, self.places))
            one_of_each = [(place_of[ranks[0]], call.about) for ranks, call in zip(groups, firsts)]
            tensors = differing_ancestors(one_of_each, self.board.words)
        for ranks, call, tensor in [*zip(groups, firsts, tensors)][:4]:
            lines = " and ".join(dict.fromkeys(calls[rank].line for rank in ranks))
            told.append(f"{name_ranks(ranks)}: {call.record}{tensor and ', '}{tensor}, at {lines}")
        late = f"; {name_ranks(absent)} did not come there" if absent else ""
        if len(threads := threads_in_calls()) > 1:
            late += f"; the threads {' and '.join(threads)} call at once, each rank's in an order of its own"
        return f"ranks disagree about {self.title(number)} in its {', '.join(names)}; {'; '.join(told)}{late}{self._before(number)}"

    def parted(self) -> str:
        """Since when equal calls come from other lines, in words: there a member made one more or one less than the rest."""
        areas, members = self.board.areas, zip(self.members, self.places)
        forks = [
            (r, place, self.start if place == self.board.me else self._at(place)) for r, place in members
        ]
        there = [(rank, place, at) for rank, place, at in forks if at is not None]
        begun = [areas[place][at + area.BEGUN] for _, place, at in there]
        for number in range(max(0, max(begun) - area.RING), min(begun)):
            if len({areas[place][column(at, area.LINE, number)] for _, place, at in there}) > 1:
                records = ((rank, self.record(place, number)) for rank, place, _ in there)
                lines = sides((rank, "?" if call is None else call.line) for rank, call in records)
                told = ", ".join(f"{name_ranks(ranks)} at {line}" for ranks, line in lines)
                return f"; the calls are from other lines since call {number}: {told}"
        return ""

    def _before(self, number: int) -> str:
        kept = [self.record(self.board.me, k) for k in range(max(0, number - BEFORE), number)]
        calls = [call for call in kept if call is not None]
        told = ", ".join(f"{call.record.call} at {call.line}" for call in calls)
        return f" (before that, all: {told})" if calls else ""


#: The numbers of a call's row that are written when it begins; see ``as_float``.
_BEGIN = struct.Struct("qqdd")


class RepeatedCall:
    """The run of a step between the begin and the end of its call."""

    def __init__(self, calls: Calls, run: Run, check: Check) -> None:
        self._calls, self._run, self._check = calls, run, check

    def run(self, array: np.ndarray) -> np.ndarray:
        """Run the step on a shard."""
        calls, check = self._calls, self._check
        number = calls.begin(check.digest)
        try:
            calls.look(number)
            out = self._run(contiguous(array))
        except BaseException as error:
            calls.end(number)
            check.failed(error)
            raise
        calls.end(number)
        if number % EVERY == 0 or (time.monotonic() > calls.due and calls.alike != number):
            check.compare()
        return out
