"""The rounds of one rank with array positions instead of chunk numbers: ready to run, and cached.

Three arrays contain a rank's chunks: its input (never written), its output, and a work array. Input is read in place
until a chunk changes, so that no chunk is copied without need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from spmdsim.collectives.instructions import COMBINE, COPY, RECV, SEND, Chunks, Instruction, find_runs
from spmdsim.collectives.round_table import collector_paused
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import ScheduleError

INPUT, OUTPUT, WORK = 0, 1, 2


class ArraySpan(NamedTuple):
    """The elements ``start`` ... ``stop - 1`` of one of the three arrays."""

    array: int
    start: int
    stop: int


class Action(NamedTuple):
    """Local operation on arrays.

    It is ``target = first op second``, or a copy of ``first`` if ``second`` is None.
    """

    target: ArraySpan
    first: ArraySpan
    second: ArraySpan | None = None


class RankStep(NamedTuple):
    """Round of a rank: pack messages, exchange them, then act on the arrived data.

    Attributes:
        packs: copies of chunks into contiguous messages.
        receives: pairs of sender and span to receive into.
        sends: pairs of receiver and span to send.
        actions: copies and reductions after the exchange.
    """

    packs: tuple[Action, ...]
    receives: tuple[tuple[int, ArraySpan], ...]
    sends: tuple[tuple[int, ArraySpan], ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class RankProgram:
    """Rounds of one rank with array positions, ready to run.

    Attributes:
        steps: the rounds.
        finish: the copies of unchanged input to the output at the end.
        input_count: elements of the input.
        output_count: elements of the output.
        work_count: elements of the work array.
        same_places: True if input and output may be one memory.
        input_shift: position of the input in the output if they are one memory.
    """

    steps: tuple[RankStep, ...]
    finish: tuple[Action, ...]
    input_count: int
    output_count: int
    work_count: int
    same_places: bool
    input_shift: int

    @property
    def received_elements(self) -> int:
        """Number of elements that a rank receives."""
        return sum(span.stop - span.start for step in self.steps for _, span in step.receives)

    @property
    def sent_elements(self) -> int:
        """Number of elements that a rank sends."""
        return sum(span.stop - span.start for step in self.steps for _, span in step.sends)


@lru_cache(maxsize=4096)
def program_for(schedule: Schedule, rank: int, count: int) -> RankProgram:
    """Return the program of a rank for a vector of ``count`` elements; cached.

    ``count`` is as in ``Schedule.chunk_elements``.
    """
    return compile_program(schedule, rank, schedule.chunk_elements(count))


@lru_cache(maxsize=4096)
def program_for_sizes(schedule: Schedule, rank: int, sizes: tuple[int, ...]) -> RankProgram:
    """Return the program of a rank for given chunk sizes in elements; cached."""
    return compile_program(schedule, rank, sizes)


def compile_program(schedule: Schedule, rank: int, sizes: Sequence[int]) -> RankProgram:
    """Build the program of a rank for given chunk sizes in elements."""
    return _Compiler(schedule, rank, sizes).program()


NOWHERE = 3
"""Array number of chunks that are not on this rank."""


class _Compiler:
    """Translator of one rank's rounds, which follows the array position of each chunk.

    ``now`` and ``home`` have one byte per chunk number: the array that contains the chunk now, and the array for its
    changed values. Within an array, chunks are in the order of their numbers, so a run of chunks in one array is one
    span.
    """

    def __init__(self, schedule: Schedule, rank: int, sizes: Sequence[int]) -> None:
        self.rank, self.schedule = rank, schedule
        self.sizes, self.count = sizes, schedule.chunk_count
        self.rounds = [list(moves) for moves in schedule.rounds(rank)]
        starts, ends = schedule.starts_with(rank), schedule.ends_with(rank)
        written = {c for moves in self.rounds for m in moves if m.kind != SEND for c in m.chunks}
        # Chunks that change here but are no result are in the work array.
        others = sorted(written.difference(ends))
        read = {max(c, default=0) for moves in self.rounds for m in moves for c in (m.chunks, m.source)}
        cells = 1 + max(self.count - 1, max(written | read, default=0))
        self.now, self.home = bytearray([NOWHERE]) * cells, bytearray([NOWHERE]) * cells
        self.offsets: list[dict[int, int]] = [{}, {}, {}]
        self.input_count = self._assign_positions(INPUT, starts, self.now)
        self.output_count = self._assign_positions(OUTPUT, ends, self.home)
        self.work_count = self.cells_end = self._assign_positions(WORK, others, self.home)
        self.ends = ends
        # Input and output may be one memory if all chunks of the input are in the output, at one distance.
        first, second = self.offsets[INPUT], self.offsets[OUTPUT]
        shifts = {second[c] - start for c, start in first.items() if c in second}
        self.same_places = len(shifts) == 1 and all(c in second for c in first)
        self.shift = shifts.pop() if self.same_places else 0

    def _size(self, cell: int) -> int:
        """Return the number of elements of a chunk or of a scratch copy of it."""
        return self.sizes[cell % self.count]

    def _assign_positions(self, array: int, cells: Sequence[int], kinds: bytearray) -> int:
        """Assign consecutive positions in an array to chunks; return the number of elements.

        Args:
            array: the number of the array: INPUT, OUTPUT or WORK.
            cells: the numbers of the chunks, in the order of their positions; scratch chunks have numbers from
                the chunk count on.
            kinds: ``self.now`` or ``self.home``, the number of the array of each chunk; changed for ``cells``.
        """
        position, offsets = 0, self.offsets[array]
        for cell in cells:
            offsets[cell] = position
            kinds[cell] = array
            position += self._size(cell)
        return position

    @collector_paused()
    def program(self) -> RankProgram:
        """Translate the rank's rounds to copies, reductions and messages of array elements.

        Rounds without instructions are left out. Chunks of the result that are elsewhere after the last round are
        copied to their position in the output.

        Raises:
            ScheduleError: If the rank uses a chunk that it does not have.
        """
        steps = tuple(self._translate_round(moves) for moves in self.rounds if moves)
        ends = (
            Action(self._span(self.home, first, stop), self._current_span(first, stop))
            for first, stop in self._list_runs(self.ends)
        )
        return RankProgram(
            steps,
            tuple(_without_empty([end for end in ends if end.target != end.first])),
            self.input_count,
            self.output_count,
            self.work_count,
            self.same_places,
            self.shift,
        )

    def _list_runs(self, chunks: Chunks) -> Iterator[tuple[int, int]]:
        """Cut chunks into runs that can be moved as one span, and yield each as ``(first, stop)``.

        A run has consecutive numbers, and its chunks are in one array, now and at their final positions. For example,
        the chunks 4, 5, 6, 1 are the runs (4, 7) and (1, 2); but if 6 is in another array, they are (4, 6), (6, 7) and
        (1, 2).

        Args:
            chunks: the chunk numbers; without chunks nothing is yielded.
        """
        if len(chunks) == 1:
            yield chunks[0], chunks[0] + 1
            return
        for first, stop in _consecutive(chunks):
            now, home = self.now[first:stop], self.home[first:stop]
            if now.count(now[0]) == home.count(home[0]) == stop - first:
                yield first, stop
                continue
            # Cut the run where the array of the chunks, or of their final positions, changes.
            begin = first
            for _, members in groupby(zip(now, home)):
                end = begin + sum(1 for _ in members)
                yield begin, end
                begin = end

    def _span(self, kinds: bytearray, first: int, stop: int) -> ArraySpan:
        """Return the span of the chunks ``first`` ... ``stop - 1``.

        ``kinds`` maps each chunk to its array.
        """
        array = kinds[first]
        offsets = self.offsets[array]
        return ArraySpan(array, offsets[first], offsets[stop - 1] + self._size(stop - 1))

    def _current_span(self, first: int, stop: int) -> ArraySpan:
        """Return the current span of chunks. Raise ScheduleError if the rank does not have them."""
        if self.now[first] == NOWHERE:
            text = f"rank {self.rank} uses chunk {first}, which it does not hold"
            raise ScheduleError(text, schedule=self.schedule.name)
        return self._span(self.now, first, stop)

    def _translate_round(self, moves: list[Instruction]) -> RankStep:
        """Return a round as a step: its messages, and the local work before and after them.

        All sends are planned first, with the positions of chunks before the round; then the receives, then local
        copies and reductions. Afterwards ``self.now`` has the positions after the round. The work array grows if the
        round needs more memory for messages. Operations without elements are left out.

        Args:
            moves: the instructions of the round.

        Raises:
            ScheduleError: If the rank uses a chunk that it does not have.
        """
        self.aside = self.cells_end
        packs: list[Action] = []
        sends = []
        busy: set[int] = set()
        for move in moves:
            if move.kind == SEND:
                sends.append((move.peer, self._plan_send(move.chunks, packs)))
                busy.update(move.chunks)
        receives: list[tuple[int, ArraySpan]] = []
        actions: list[Action] = []
        for move in moves:
            if move.receives:
                receives.append((move.peer, self._plan_receive(move, busy, actions)))
                # A later message to these chunks must not be received into them directly.
                if move.kind != RECV or not busy.isdisjoint(move.chunks):
                    busy.update(move.chunks)
        for move in moves:
            if move.kind in (COPY, COMBINE):
                self._local(move, actions)
        self.work_count = max(self.work_count, self.aside)
        exchanged = tuple(receives), tuple(sends)
        return RankStep(tuple(_without_empty(packs)), *exchanged, tuple(_without_empty(actions)))

    def _set_aside(self, size: int) -> ArraySpan:
        """Reserve ``size`` elements at the end of the work array."""
        self.aside += size
        return ArraySpan(WORK, self.aside - size, self.aside)

    def _plan_send(self, chunks: Chunks, packs: list[Action]) -> ArraySpan:
        """Return the span of memory from which the chunks can be sent in one message.

        If the chunks follow one another in one array, it is their span. Otherwise it is a new span of the work
        array, and the copies into it are added to ``packs``.
        """
        places = [self._current_span(first, stop) for first, stop in self._list_runs(chunks)]
        contiguous = _join_spans(places)
        if contiguous is not None:
            return contiguous
        packed = self._set_aside(sum(p.stop - p.start for p in places))
        packs += [Action(target, source) for target, source in zip(_split_span(packed, places), places)]
        return packed

    def _plan_receive(self, move: Instruction, busy: set[int], actions: list[Action]) -> ArraySpan:
        """Return the span into which a message is received, and plan the work after it.

        The message is received directly at the final positions of its chunks. In three cases it is received into the
        work array instead, and copies or reductions from there are added to ``actions``:

        * the final positions do not follow one another in one array;
        * the message is reduced;
        * another message of the round uses one of the chunks.

        The chunks count as being at their final positions afterwards.

        Args:
            move: the instruction.
            busy: the chunks that other messages of the round use.
            actions: what to do after the messages; extended.

        Raises:
            ScheduleError: If the message is reduced into a chunk that the rank does not have.
        """
        runs = list(self._list_runs(move.chunks))
        targets = [self._span(self.home, first, stop) for first, stop in runs]
        reducing = move.kind != RECV
        # Input and output may be one memory, so never receive directly into a chunk that is being sent.
        clash = not busy.isdisjoint(move.chunks)
        contiguous = None if reducing or clash else _join_spans(targets)
        if contiguous is not None:
            for first, stop in runs:
                self.now[first:stop] = self.home[first:stop]
            return contiguous
        arrived = self._set_aside(sum(p.stop - p.start for p in targets))
        left = move.incoming_left(self.rank)
        for (first, stop), piece in zip(runs, _split_span(arrived, targets)):
            actions.append(self._plan_store(first, stop, piece, reducing, left))
        return arrived

    def _local(self, move: Instruction, actions: list[Action]) -> None:
        """Append to ``actions`` one copy or reduction per chunk of a local instruction."""
        reducing, left = move.kind == COMBINE, bool(move.left)
        for source, cell in zip(move.source, move.chunks):
            value = self._current_span(source, source + 1)
            actions.append(self._plan_store(cell, cell + 1, value, reducing, left))

    def _plan_store(self, first: int, stop: int, value: ArraySpan, reducing: bool, left: bool) -> Action:
        """Return the action that stores a value into chunks, or reduces it into them.

        The action writes to the final positions of the chunks ``first`` to ``stop - 1``. Later reads use these
        positions.
        """
        target = self._span(self.home, first, stop)
        if reducing:
            current = self._current_span(first, stop)
            action = Action(target, value, current) if left else Action(target, current, value)
        else:
            action = Action(target, value)
        self.now[first:stop] = self.home[first:stop]
        return action


def _consecutive(chunks: Chunks) -> Iterator[tuple[int, int]]:
    """Yield ``(first, stop)`` of each run of consecutive chunk numbers; ``stop`` is excluded.

    Args:
        chunks: the chunk numbers, in any order.

    >>> list(_consecutive((4, 5, 6, 1)))
    [(4, 7), (1, 2)]
    """
    if isinstance(chunks, range) and chunks.step == 1:
        if chunks:
            yield chunks.start, chunks.stop
        return
    yield from ((first, last + 1) for first, last in find_runs(chunks))


def _join_spans(places: Sequence[ArraySpan]) -> ArraySpan | None:
    """Return one span for spans that follow one another without gaps in one array, else None.

    For no spans, it is an empty span.
    """
    if len(places) == 1:
        return places[0]
    if not places:
        return ArraySpan(WORK, 0, 0)
    for span, following in pairwise(places):
        if span.array != following.array or span.stop != following.start:
            return None
    return ArraySpan(places[0].array, places[0].start, places[-1].stop)


def _split_span(span: ArraySpan, like: Sequence[ArraySpan]) -> list[ArraySpan]:
    """Divide a span into consecutive spans that are as long as other spans.

    For example, a span from 10 to 15 is divided like spans of lengths 2 and 3 into 10 to 12 and 12 to 15.
    """
    pieces, position = [], span.start
    for template in like:
        stop = position + template.stop - template.start
        pieces.append(ArraySpan(span.array, position, stop))
        position = stop
    return pieces


def _without_empty(actions: list[Action]) -> list[Action]:
    """Return the actions that have at least one element."""
    return [action for action in actions if action.target.start < action.target.stop]
