"""Arithmetic several algorithms share: folding to a power of two, blocks of folded ranks, relative ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, recv_reduce, send


def power_below(size: int) -> int:
    """The largest power of two that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def doublings(size: int) -> Iterable[int]:
    """1, 2, 4, ... below ``size``."""
    return (1 << bit for bit in range((size - 1).bit_length()))


#: What a survivor does with a peer: the peer's rank, both new numbers, the own one first, and their distance.
Exchange: TypeAlias = Callable[[int, int, int, int], list[Instruction]]


class Fold(NamedTuple):
    """Ranks paired up so that a power of two, or another number, survives.

    Of the first ``2 * extra`` ranks every second one drops out, the odd one (``survivor`` 0) or the even one (1); the
    survivors are renumbered in rank order.
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

    def pair_round(self, rank: int, survivor: list[Instruction], dropped: list[Instruction]) -> Rounds:
        """The round of pairs, if there are any: what the one that survives does, and the one that drops out."""
        if self.extra:
            yield [] if not self.paired(rank) else survivor if self.survives(rank) else dropped

    def meetings(self, rank: int, distances: Iterable[int], exchange: Exchange) -> Rounds:
        """Rounds in which survivors meet at some distances between their new numbers; the others wait."""
        for distance in distances:
            if self.survives(rank):
                new = self.new(rank)
                yield exchange(self.old(new ^ distance), new, new ^ distance, distance)
            else:
                yield []

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


def ring_rounds(
    right: int, left: int, size: int, chunk: int, reduces: bool = False, first: int = 0
) -> Rounds:
    """Rounds around a ring: a chunk goes to the right, then the one before it, and so on; from the left they come."""
    for i in range(size - 1):
        mine, theirs = first + (chunk - i) % size, first + (chunk - 1 - i) % size
        yield [send(right, mine), recv_reduce(left, theirs, left=True) if reduces else recv(left, theirs)]


def star_rounds(
    rank: int, root: int, others: Iterable[int], at_root: Callable[[int], Instruction], other: Instruction
) -> Rounds:
    """Rounds in which the root turns to one rank after another."""
    for peer in others:
        yield [at_root(peer)] if rank == root else [other] if rank == peer else []


def tree_rounds(
    v: int,
    size: int,
    parent: Callable[[int, int], Instruction],
    child: Callable[[int, int], Instruction],
    radix: int = 2,
    down: bool = False,
) -> Rounds:
    """Rounds up or down a tree in which a rank has radix-1 children per level: binomial with radix 2.

    ``v`` is the rank as counted from the root. What a parent does is asked with its child, and what a child does with its
    parent, and how far apart they are.
    """
    masks = [1]
    while masks[-1] < size:
        masks.append(masks[-1] * radix)
    for mask in reversed(masks[:-1]) if down else masks[:-1]:
        for step in range(mask, radix * mask, mask):
            if v % (radix * mask) == 0 and v + step < size:
                yield [parent(v + step, step)]
            elif v % (radix * mask) == step:
                yield [child(v - step, step)]
            else:
                yield []
