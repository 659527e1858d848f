"""One rank's rounds with every chunk number replaced by a place in an array: ready to run, cached.

Three arrays hold a rank's chunks: its input (never written), its output, and a work array. Input is
used where it lies until a chunk changes, so nothing is copied that need not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from spmdsim.collectives.moves import COMBINE, COPY, SEND, Chunks, Move
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import ScheduleError

INPUT, OUTPUT, WORK = 0, 1, 2


class Place(NamedTuple):
    """Elements ``start`` ... ``stop - 1`` of one of the three arrays."""

    array: int
    start: int
    stop: int


class Action(NamedTuple):
    """``target = first op second``, or a copy of ``first`` when there is no second."""

    target: Place
    first: Place
    second: Place | None = None


class Step(NamedTuple):
    """A round: pack, exchange messages, then act on what arrived."""

    packs: tuple[Action, ...]
    receives: tuple[tuple[int, Place], ...]
    sends: tuple[tuple[int, Place], ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Program:
    """What one rank does, in elements.

    Attributes:
        steps: the rounds.
        finish: copies of unchanged input to the output, done last.
        input_count, output_count, work_count: elements of the three arrays.
        same_places: whether input and output may be the same memory (shifted by ``input_shift`` elements).
        input_shift: where the input starts in the output, if ``same_places``.
    """

    steps: tuple[Step, ...]
    finish: tuple[Action, ...]
    input_count: int
    output_count: int
    work_count: int
    same_places: bool
    input_shift: int


def program_for(schedule: Schedule, rank: int, count: int) -> Program:
    """The program of a rank for a vector of ``count`` elements (see ``Schedule.chunk_elements``)."""
    return _cached(schedule, rank, count)


@lru_cache(maxsize=4096)
def _cached(schedule: Schedule, rank: int, count: int) -> Program:
    return compile_program(schedule, rank, schedule.chunk_elements(count))


def compile_program(schedule: Schedule, rank: int, sizes: Sequence[int]) -> Program:
    """The program of a rank for given chunk sizes in elements.

    Raises:
        ScheduleError: when the rank uses a chunk that it does not hold.
    """
    return _Compiler(schedule, rank, sizes).program()


class _Compiler:
    def __init__(self, schedule: Schedule, rank: int, sizes: Sequence[int]) -> None:
        self.rank, self.schedule = rank, schedule
        self.sizes, self.count = sizes, schedule.chunk_count
        self.rounds = [list(moves) for moves in schedule.rounds(rank)]
        starts, ends = schedule.starts_with(rank), schedule.ends_with(rank)
        written = {c for moves in self.rounds for m in moves if m.kind != SEND for c in m.chunks}
        self.now, self.input_count = self._lay_out(INPUT, starts)
        self.home, self.output_count = self._lay_out(OUTPUT, ends)
        others, self.cells_end = self._lay_out(WORK, sorted(written - self.home.keys()))
        self.work_count = self.cells_end
        self.ends = ends
        shifts = {self.home[c].start - self.now[c].start for c in starts if c in self.home}
        self.same_places = len(shifts) == 1 and all(c in self.home for c in starts)
        self.shift = shifts.pop() if self.same_places else 0
        self.home.update(others)

    def _lay_out(self, array: int, cells: Iterable[int]) -> tuple[dict[int, Place], int]:
        places, position = {}, 0
        for cell in cells:
            stop = position + self.sizes[cell % self.count]
            places[cell] = Place(array, position, stop)
            position = stop
        return places, position

    def program(self) -> Program:
        steps = tuple(self._step(moves) for moves in self.rounds if moves)
        finish = [Action(self.home[c], self._held(c)) for c in self.ends]
        return Program(
            steps,
            tuple(_merged([a for a in finish if a.target != a.first])),
            self.input_count,
            self.output_count,
            self.work_count,
            self.same_places,
            self.shift,
        )

    def _held(self, cell: int) -> Place:
        place = self.now.get(cell)
        if place is None:
            text = f"rank {self.rank} uses chunk {cell}, which it does not hold"
            raise ScheduleError(text, schedule=self.schedule.name)
        return place

    def _step(self, moves: list[Move]) -> Step:
        self.aside = self.cells_end
        packs: list[Action] = []
        sends = []
        sending: set[int] = set()
        for move in moves:
            if move.kind == SEND:
                sends.append((move.peer, self._outgoing(move.chunks, packs)))
                sending.update(move.chunks)
        receives: list[tuple[int, Place]] = []
        actions: list[Action] = []
        for move in moves:
            if move.receives:
                receives.append((move.peer, self._incoming(move, sending, actions)))
        for move in moves:
            if move.kind in (COPY, COMBINE):
                self._local(move, actions)
        self.work_count = max(self.work_count, self.aside)
        return Step(tuple(packs), tuple(receives), tuple(sends), tuple(_merged(actions)))

    def _set_aside(self, chunks: Chunks) -> Place:
        size = sum(self.sizes[c % self.count] for c in chunks)
        self.aside += size
        return Place(WORK, self.aside - size, self.aside)

    def _outgoing(self, chunks: Chunks, packs: list[Action]) -> Place:
        places = [self._held(c) for c in chunks]
        whole = _joined(places)
        if whole is not None:
            return whole
        packed = self._set_aside(chunks)
        packs += _merged([Action(t, f) for t, f in zip(_split(packed, places), places)])
        return packed

    def _incoming(self, move: Move, sending: set[int], actions: list[Action]) -> Place:
        targets = [self.home[c] for c in move.chunks]
        reducing = move.kind != "recv"
        whole = _joined(targets)
        clash = any(c in sending and self.now.get(c) == self.home[c] for c in move.chunks)
        if not reducing and whole is not None and not clash:
            self.now.update((c, self.home[c]) for c in move.chunks)
            return whole
        arrived = self._set_aside(move.chunks)
        left = move.incoming_left(self.rank)
        for cell, piece in zip(move.chunks, _split(arrived, targets)):
            actions.append(self._action(cell, piece, reducing, left))
        return arrived

    def _local(self, move: Move, actions: list[Action]) -> None:
        reducing, left = move.kind == COMBINE, bool(move.left)
        for source, cell in zip(move.source, move.chunks):
            actions.append(self._action(cell, self._held(source), reducing, left))

    def _action(self, cell: int, value: Place, reducing: bool, left: bool) -> Action:
        target = self.home[cell]
        if reducing:
            own = self._held(cell)
            action = Action(target, value, own) if left else Action(target, own, value)
        else:
            action = Action(target, value)
        self.now[cell] = target
        return action


def _joined(places: Sequence[Place]) -> Place | None:
    """The places as one, if they lie side by side."""
    if not places:
        return Place(WORK, 0, 0)
    for one, two in pairwise(places):
        if one.array != two.array or one.stop != two.start:
            return None
    return Place(places[0].array, places[0].start, places[-1].stop)


def _split(whole: Place, like: Sequence[Place]) -> list[Place]:
    """Cut a place into pieces of the sizes of ``like``."""
    pieces, position = [], whole.start
    for place in like:
        stop = position + place.stop - place.start
        pieces.append(Place(whole.array, position, stop))
        position = stop
    return pieces


def _merged(actions: list[Action]) -> list[Action]:
    """Neighbouring actions on neighbouring places as one; empty ones dropped."""
    merged: list[Action] = []
    for action in actions:
        if action.target.start == action.target.stop:
            continue
        if merged and _adjoining(merged[-1], action):
            merged[-1] = _extended(merged[-1], action)
        else:
            merged.append(action)
    return merged


def _adjoining(one: Action, two: Action) -> bool:
    for a, b in zip(one, two):
        if (a is None) != (b is None):
            return False
        if a is not None and b is not None and (a.array != b.array or a.stop != b.start):
            return False
    return True


def _extended(one: Action, two: Action) -> Action:
    """One action that does both."""
    target = one.target._replace(stop=two.target.stop)
    first = one.first._replace(stop=two.first.stop)
    if one.second is None or two.second is None:
        return Action(target, first)
    return Action(target, first, one.second._replace(stop=two.second.stop))
