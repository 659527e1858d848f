"""Log of reads of whole tensors by ``full()`` and ``item()``: ranks compare them although no collective runs.

A replicated tensor is read without a message, and a correct program may read it on some ranks only. So each rank
writes its latest reads to the board, and compares them with its neighbours' once all ranks have made their next call.
Two reads belong together if they are in equal lines of the user's, after equally many calls, equally many calculations
since the latest call, and equally many reads in these lines since the latest calculation.

Ranks disagree if all of them read there, the bits of two neighbours differ, and each of the two lacks the other's
calculation. More than half of the ranks must have read one tensor: if each rank reads a number of its own, such as
``offsets[rank].item()``, the ranks do not disagree. With ``SPMDSIM_CHECK=1`` no majority is needed.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import NamedTuple

import numpy as np

from spmdsim.sides import hash_text, sides
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.descriptions import describe_ancestors
from spmdsim.worlds.agreement.group_log import GroupLog
from spmdsim.worlds.agreement.rank_hosts import name_ranks_on_hosts
from spmdsim.worlds.agreement.shared_board import locate

#: Reads of a rank that wait to be compared, and those of which the neighbour's opinion is not known yet.
WAITING, DOUBTED = 128, 8
#: The user's lines that tell reads apart, innermost first.
LINES = 8


class Read(NamedTuple):
    """Read of a whole tensor on this rank.

    Attributes:
        call: the number of the group's calls that this rank had begun.
        key: the number of the position in the program, equal on ranks that read there.
        provenance_number: the tensor's provenance number.
        value: a checksum of the elements.
        line: the number of the user's line.
        entry: the number of its entry on the board.
    """

    call: int
    key: int
    provenance_number: int
    value: int
    line: int
    entry: int


class ReadLog:
    """Reads of one group's ranks.

    They are written to a slot of the board like calls, as a group of their own: the provenance number, the key and the
    checksum are in the columns ``AGREED``, ``CALL`` and ``LINE``. A rank that lacks the calculation of a neighbour's
    read adds an entry that says so (a doubt).

    Args:
        log: the calls of the group.
        strict: True if two ranks disagree without a majority, too.
    """

    def __init__(self, log: GroupLog, strict: bool) -> None:
        self._log, self._board, self._strict = log, log.board, strict
        self._key, self._start, self._count = hash_text(f"reads of {log.key}"), 0, 0
        turn = log.places.index(self._board.me)
        self._neighbours = {log.places[turn - 1], log.places[(turn + 1) % len(log.places)]}
        self._waiting: deque[Read] = deque(maxlen=WAITING)
        self._doubted: deque[tuple[Read, int, int]] = deque(maxlen=DOUBTED)
        self._place: tuple[int, int, tuple[int, ...]] = 0, 0, ()
        self._repeats = 0

    def add(self, provenance_number: int, value: int) -> None:
        """Log on the board that this rank reads a whole tensor; compare nothing yet.

        The read is logged with a key for its position in the program: the user's lines, the number of calls so far, the
        number of calculations since the last call, and the number of reads directly before it at this position. Ranks
        that read at one position have equal keys.

        Do nothing if this rank has forgotten how the tensor was computed. Of reads that wait to be compared, only the
        latest :data:`WAITING` (128) are kept.

        Args:
            provenance_number: the provenance number of the tensor.
            value: a checksum of its elements.

        Raises:
            WorldError: If it is the first read and the board has no slot for another group.
        """
        log, board = self._log, self._board
        if provenance_number not in log.history:  # other ranks have forgotten it, too
            return
        if not self._start:
            self._start = board.open_group(self._key, log.places)
        lines = board.number_lines(sys._getframe(1), LINES)
        position = log.number, log.history.count - log.computed, lines
        self._repeats = self._repeats + 1 if position == self._place else 0
        self._place = position
        key = hash((*position, self._repeats))
        self._waiting.append(
            Read(log.number, key, provenance_number, value, lines[0] if lines else 0, self._count)
        )
        self._write(key, provenance_number, value)

    @property
    def has_doubts(self) -> bool:
        """True if this rank doubts a neighbour's read, and waits for the neighbour's doubt."""
        return bool(self._doubted)

    def find_disagreement(self, at_end: bool = False) -> str | None:
        """Compare this rank's reads with those of both neighbours; return the first disagreement in words.

        Two steps show that neighbours disagree:

        1. Compare each read once, when all ranks have begun their next call. Doubt a neighbour's read if its value and
           its tensor differ from this rank's, this rank does not know that tensor's calculation, and all ranks read
           there, most of them one tensor (:meth:`_group_readers`). The doubt is written to the board.
        2. If the neighbour doubts this rank's read, too, they disagree. Its doubt may come later, so each run of this
           method looks again, until the neighbour has made :data:`~.shared_board.RING` (256) more calls.

        Args:
            at_end: True if all ranks have ended the program, so that all reads are compared.

        Returns:
            The first disagreement in words; None if none is known yet.
        """
        log = self._log
        while self._waiting and (at_end or log.have_begun(self._waiting[0].call, log.places)):
            read = self._waiting.popleft()
            for place in self._neighbours:
                entry = self._find(place, read.key, read.entry)
                if entry is None or entry[0] == read.provenance_number or entry[1] == read.value:
                    continue
                if entry[0] not in log.history and self._group_readers(read.key):
                    self._doubt(read, place, entry[0])
        for doubt in list(self._doubted):
            read, place, provenance_number = doubt
            # Each of both ranks lacks the other's calculation if the neighbour has an entry with this key.
            neighbours_doubt = self._find(place, _doubt_key(read.key, read.provenance_number))
            if neighbours_doubt is not None:
                self._doubted.remove(doubt)
                if (text := self._describe(read, place, provenance_number)) is not None:
                    return text
            elif log.have_begun(read.call + layout.RING, [place]):  # it has compared this read long ago
                self._doubted.remove(doubt)
        return None

    def close(self, failed: bool) -> None:
        """Free the slot on the board, if there is one.

        ``failed`` makes the reads unreadable at once.
        """
        if self._start:
            self._board.close_group(self._key, failed)

    def _doubt(self, read: Read, place: int, provenance_number: int) -> None:
        """Write that this rank lacks the calculation that a neighbour read, and remember the doubt.

        Also publish how this rank computed its own tensor. Only the latest :data:`DOUBTED` doubts are remembered.

        Args:
            read: this rank's read.
            place: the neighbour's place on the board.
            provenance_number: the provenance number of the neighbour's tensor.
        """
        self._log.publish_ancestors(read.provenance_number)
        self._write(_doubt_key(read.key, provenance_number), provenance_number, 0)
        self._doubted.append((read, place, provenance_number))
        self._board.refresh([place])

    def _write(self, key: int, provenance_number: int, value: int) -> None:
        """Write an entry to the board: a read, or a doubt about a neighbour's read.

        The entries form a ring: if it is full, the oldest one is overwritten.

        Args:
            key: the position in the program (:class:`Read`), or the key of a doubt (:func:`_doubt_key`).
            provenance_number: the tensor's provenance number.
            value: a checksum of the elements; 0 for a doubt.
        """
        numbers, first = self._board.numbers, locate(self._start, 0, self._count)
        numbers[first + layout.CALL], numbers[first + layout.AGREED] = key, provenance_number
        numbers[first + layout.LINE], numbers[first + layout.BEGIN] = value, 0  # a read is no call
        self._count += 1
        numbers[self._start + layout.BEGUN] = self._count

    def _find(self, place: int, key: int, guess: int = 0) -> tuple[int, int] | None:
        """Return the provenance number and the checksum of an entry with a key, or None.

        None means that the rank has no entry with this key, or has overwritten it. If ranks read in one order, the
        entry has one number on all of them, so the entry ``guess`` is looked at before all others.

        Args:
            place: the rank's place: its index on the shared board of call logs.
            key: the key of a read or of a doubt.
            guess: the number of the entry to look at first.
        """
        start = self._board.find_group(place, self._key)
        if start is None:
            return None
        numbers, first = self._board.areas[place], locate(start, 0, 0)
        index = locate(start, 0, guess)
        if numbers[index + layout.CALL] == key and numbers[start + layout.BEGUN] > guess:
            return numbers[index + layout.AGREED], numbers[index + layout.LINE]
        count = min(numbers[start + layout.BEGUN], layout.RING)
        rows = np.asarray(numbers[first : first + count * layout.COLUMNS]).reshape(count, layout.COLUMNS)
        (entries,) = (rows[:, layout.CALL] == key).nonzero()
        if not entries.size:
            return None
        row = rows[entries[0]]
        return int(row[layout.AGREED]), int(row[layout.LINE])

    def _group_readers(self, key: int) -> list[tuple[list[int], int]]:
        """Group the ranks by the tensor that they read at a position; the largest group comes first.

        For example, [([0, 1, 3], 17), ([2], 25)] if ranks 0, 1, 3 read the tensor 17 and rank 2 read the tensor 25.

        Args:
            key: the number of the position in the program (:class:`Read`).

        Returns:
            Pairs of the sorted ranks and their tensor's provenance number. The list is empty if a rank did not read
            there. Outside of strict mode it is also empty if no tensor was read by more than half of the ranks.
        """
        entries = [(rank, self._find(place, key)) for rank, place in zip(self._log.members, self._log.places)]
        # An entry is a pair of a provenance number and a checksum.
        provenance_numbers = {rank: entry[0] for rank, entry in entries if entry is not None}
        if len(provenance_numbers) < len(entries):  # A later read has replaced the entry, maybe on all ranks.
            return []
        groups = sides(provenance_numbers.items())
        has_majority = self._strict or 2 * len(groups[0][0]) > len(entries)
        return groups if has_majority else []

    def _describe(self, read: Read, place: int, provenance_number: int) -> str | None:
        """Return the message for a read on which the ranks disagree, or None if they need not agree.

        They need not agree if a rank did not read at this position. Outside of strict mode, they also need not agree in
        two cases: no tensor was read by more than half of the ranks, or that tensor is neither this rank's nor the
        neighbour's.

        Args:
            read: this rank's read.
            place: the neighbour's place on the board.
            provenance_number: the provenance number of the neighbour's tensor.
        """
        board, groups = self._board, self._group_readers(read.key)
        both_numbers = read.provenance_number, provenance_number
        if not groups or (not self._strict and groups[0][1] not in both_numbers):
            return None
        calculations = describe_ancestors([*zip((board.me, place), both_numbers)], board.text)
        words = dict(zip(both_numbers, calculations))
        texts = "; ".join(
            f"{name_ranks_on_hosts(ranks)}: {words.get(number, 'a tensor computed otherwise')}"
            for ranks, number in groups
        )
        line = board.text(board.me, read.line) or "an unknown place"
        return (
            f"ranks disagree about the tensor that they read at {line}; {texts}; "
            "for calculations of a rank's own, use the arrays of local()"
        )


def _doubt_key(key: int, provenance_number: int) -> int:
    """Return the key of the entry that says: this rank lacks a calculation.

    Args:
        key: the position in the program of the read.
        provenance_number: the provenance number of the tensor whose calculation the rank lacks.
    """
    return hash((key, provenance_number))
