"""Reads of whole tensors by ``full()`` and ``item()``, compared between ranks although no collective runs.

A replicated tensor is read without a message, and a correct program may read it on some ranks only. So each rank writes its
latest reads to the board, and compares them with its neighbours' once all ranks have made their next call. Two reads belong
together if they are in equal lines of the user's, after equally many calls, equally many calculations since the latest call,
and equally many reads in these lines since the latest calculation.

Ranks disagree if all of them read there, the bits of two neighbours differ, and each of the two lacks the other's calculation.
More than half of the ranks must have read one tensor: where each rank reads a number of its own, such as
``offsets[rank].item()``, the ranks do not disagree. ``SPMDSIM_CHECK=1`` does without this majority.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spmdsim.sides import name_ranks, number_of, sides
from spmdsim.worlds.mpi import board as area
from spmdsim.worlds.mpi.board import as_number, column
from spmdsim.worlds.mpi.line_numbers import these_lines
from spmdsim.worlds.provenance import differing_ancestors

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.noted_calls import Calls

#: Reads of a rank that wait to be compared, and those of which the neighbour's opinion is not known yet.
WAITING, DOUBTED = 128, 8
#: The user's lines that tell reads apart, innermost first.
LINES = 8


class Read(NamedTuple):
    """One read of a whole tensor on this rank.

    Attributes:
        call: the calls of the group that this rank had begun.
        key: the number of the place in the program, equal on ranks that read there.
        origin: the tensor's provenance number.
        value: a checksum of the elements.
        line: the user's line, as the board writes it.
        entry: the number of its entry on the board.
    """

    call: int
    key: int
    origin: int
    value: int
    line: float
    entry: int


class TensorReads:
    """The reads of one group's ranks.

    They are written to a ring of the board like calls, as a group of their own: the provenance number, the key and the
    checksum stand where a call has ``AGREED``, ``KIND`` and ``LINE``. A rank that lacks the calculation of a neighbour's
    read adds an entry that says so.
    """

    def __init__(self, calls: Calls, strict: bool) -> None:
        self._calls, self._board, self._strict = calls, calls.board, strict
        self._key, self._start, self._count = number_of(f"reads of {calls.key}"), 0, 0
        turn = calls.places.index(self._board.me)
        self._neighbours = {calls.places[turn - 1], calls.places[(turn + 1) % len(calls.places)]}
        self._waiting: deque[Read] = deque(maxlen=WAITING)
        self._doubted: deque[tuple[Read, int, int]] = deque(maxlen=DOUBTED)
        self._place: tuple[int, int, tuple[float, ...]] = 0, 0, ()
        self._repeats = 0

    def add(self, origin: int, value: int) -> None:
        """Write a read of a tensor to the board."""
        calls, board = self._calls, self._board
        if origin not in calls.provenance:  # other ranks have forgotten it, too
            return
        if not self._start:
            self._start = board.enter(self._key, " ".join(map(str, calls.places)))
        lines = these_lines(board, sys._getframe(1), LINES)
        place = calls.number, calls.provenance.count - calls.computed, lines
        self._repeats = self._repeats + 1 if place == self._place else 0
        self._place = place
        read = Read(
            calls.number,
            hash((*place, self._repeats)),
            origin,
            value,
            lines[0] if lines else 0.0,
            self._count,
        )
        self._write(read.key, origin, value)
        self._waiting.append(read)

    def disagreement(self, at_end: bool = False) -> str | None:
        """Compare reads that all ranks have passed with the neighbours'; return a disagreement in words, or None.

        Args:
            at_end: whether all ranks have ended the program.
        """
        calls = self._calls
        while self._waiting and (at_end or calls.came(self._waiting[0].call, calls.places)):
            read = self._waiting.popleft()
            for place in self._neighbours:
                theirs = self._find(place, read.key, read.entry)
                if theirs is None or theirs[0] == read.origin or theirs[1] == read.value:
                    continue
                if theirs[0] not in calls.provenance and self._sides(read.key):
                    self._doubt(read, place, theirs[0])
        for doubt in list(self._doubted):
            read, place, origin = doubt
            if self._find(place, _doubt_key(read.key, read.origin)) is not None:  # it lacks this rank's, too
                self._doubted.remove(doubt)
                if (text := self._in_words(read, place, origin)) is not None:
                    return text
            elif calls.came(read.call + area.RING, [place]):  # it has compared this read long ago
                self._doubted.remove(doubt)
        return None

    def forget(self, failed: bool) -> None:
        """Give the place on the board back."""
        if self._start:
            self._board.forget(self._key, failed)

    def _doubt(self, read: Read, place: int, origin: int) -> None:
        """Write that this rank lacks the calculation that a neighbour read, and how this rank computed its own."""
        for ancestor, words in self._calls.provenance.ancestors(read.origin):
            self._board.tell(ancestor, words)
        self._write(_doubt_key(read.key, origin), origin, 0)
        self._doubted.append((read, place, origin))
        self._board.refresh()

    def _write(self, key: int, origin: int, value: int) -> None:
        numbers, at = self._board.numbers, column(self._start, 0, self._count)
        numbers[at + area.KIND], numbers[at + area.AGREED], numbers[at + area.LINE] = key, origin, value
        numbers[at + area.BEGIN] = 0  # it is no call
        self._count += 1
        numbers[self._start + area.BEGUN] = self._count

    def _find(self, place: int, key: int, guess: int = 0) -> tuple[int, int] | None:
        """Return the provenance number and the checksum of an entry with a key; None if a rank has none.

        Args:
            place: the rank's, on the board.
            key: of a read or of a doubt.
            guess: the number of the entry to look at first.
        """
        start = self._board.find(place, self._key)
        if start is None:
            return None
        numbers, first = self._board.areas[place], column(start, 0, 0)
        at = column(start, 0, guess)
        if numbers[at + area.KIND] == key and numbers[start + area.BEGUN] > guess:
            return numbers[at + area.AGREED], numbers[at + area.LINE]
        kept = min(numbers[start + area.BEGUN], area.RING)
        rows = np.asarray(numbers[first : first + kept * area.COLUMNS]).reshape(kept, area.COLUMNS)
        (places,) = (rows[:, area.KIND] == key).nonzero()
        return (int(rows[places[0], area.AGREED]), int(rows[places[0], area.LINE])) if places.size else None

    def _sides(self, key: int) -> list[tuple[list[int], int]]:
        """Return the ranks that read one tensor, most of them first, and its provenance number, for each tensor.

        The list is empty where some ranks did not read there, or no tensor was read by more than half of the ranks.
        """
        entries = [
            (rank, self._find(place, key)) for rank, place in zip(self._calls.members, self._calls.places)
        ]
        groups = sides((rank, entry[0]) for rank, entry in entries if entry is not None)
        readers = sum(len(ranks) for ranks, _ in groups)
        has_majority = self._strict or 2 * len(groups[0][0]) > readers
        return groups if readers == len(entries) and has_majority else []

    def _in_words(self, read: Read, place: int, origin: int) -> str | None:
        board, groups = self._board, self._sides(read.key)
        if not groups or (not self._strict and groups[0][1] not in (read.origin, origin)):
            return None
        told = differing_ancestors([(board.me, read.origin), (place, origin)], board.words)
        words = dict(zip((read.origin, origin), told))
        said = "; ".join(
            f"{name_ranks(ranks)}: {words.get(number, 'a tensor computed otherwise')}"
            for ranks, number in groups
        )
        line = board.words(board.me, as_number(read.line)) or "an unknown place"
        return (
            f"ranks disagree about the tensor that they read at {line}; {said}; "
            "for calculations of a rank's own, use the arrays of local()"
        )


def _doubt_key(key: int, origin: int) -> int:
    """Return the key of the entry that says: this rank lacks the calculation with this provenance number."""
    return hash((key, origin))
