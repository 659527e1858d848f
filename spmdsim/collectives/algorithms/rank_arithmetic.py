"""Arithmetic several algorithms share: folding to a power of two, blocks of folded ranks, relative ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, send


def power_below(size: int) -> int:
    """The largest power of two that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def doublings(size: int) -> Iterable[int]:
    """1, 2, 4, ... below ``size``."""
    return (1 << bit for bit in range((size - 1).bit_length()))


class Fold(NamedTuple):
    """Ranks paired up so that a power of two, or another number, survives.

    Of the first ``2 * extra`` ranks every second one drops out; the survivors are renumbered in rank order.

    Attributes:
        power: number of survivors.
        extra: how many drop out.
        survivor: 1 when the odd rank of a pair survives, 0 when the even one does.
    """

    power: int
    extra: int
    survivor: int = 1

    @staticmethod
    def of(size: int, survivor: int = 1) -> Fold:
        """The fold of ``size`` ranks."""
        power = power_below(size)
        return Fold(power, size - power, survivor)

    def paired(self, rank: int) -> bool:
        """Whether the rank is one of a pair."""
        return rank < 2 * self.extra

    def survives(self, rank: int) -> bool:
        """Whether the rank takes part in the power-of-two phase."""
        return not self.paired(rank) or rank % 2 == self.survivor

    def new(self, rank: int) -> int:
        """The survivor's new number."""
        return rank // 2 if self.paired(rank) else rank - self.extra

    def old(self, new: int) -> int:
        """The rank of a survivor."""
        return 2 * new + self.survivor if new < self.extra else new + self.extra

    def blocks(self, new: int, stop: int | None = None) -> range:
        """The blocks of the ranks that survivors ``new`` ... ``stop - 1`` stand for (contiguous)."""
        last = new + 1 if stop is None else stop
        return range(self._first_block(new), self._first_block(last))

    def _first_block(self, new: int) -> int:
        return 2 * new if new < self.extra else new + self.extra


def around(start: int, count: int, size: int) -> Chunks:
    """``count`` numbers from ``start`` on, around the end of ``size``.

    >>> around(4, 3, 6), around(1, 2, 6)
    ((4, 5, 0), range(1, 3))
    """
    start %= size
    if start + count <= size:
        return range(start, start + count)
    return (*range(start, size), *range(start + count - size))


def opposite(rounds: Iterable[list[Instruction]]) -> Rounds:
    """The rounds in which every message goes the other way."""
    for moves in rounds:
        yield [
            send(move.peer, move.chunks) if move.receives else recv(move.peer, move.chunks) for move in moves
        ]
