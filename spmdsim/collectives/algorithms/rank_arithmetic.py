"""Arithmetic several algorithms share: folding to a power of two, blocks of folded ranks, relative ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, recv_reduce, send


def power_below(size: int) -> int:
    """Return the largest power of two that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def doublings(size: int) -> Iterable[int]:
    """Return the powers of two 1, 2, 4, ... below ``size``."""
    return (1 << bit for bit in range((size - 1).bit_length()))


#: What a survivor does with a peer: the peer's rank, both new numbers, the own one first, and their distance.
Exchange: TypeAlias = Callable[[int, int, int, int], list[Instruction]]


class Fold(NamedTuple):
    """A pairing of ranks after which a power of two, or another number, of ranks survives.

    Of the first ``2 * extra`` ranks every second one drops out, the odd one (``survivor`` 0) or the even one (1); the
    survivors are renumbered in rank order.
    """

    power: int
    extra: int
    survivor: int = 1

    @staticmethod
    def of(size: int, survivor: int = 1) -> Fold:
        """Return the fold of ``size`` ranks to the largest power of two."""
        power = power_below(size)
        return Fold(power, size - power, survivor)

    def paired(self, rank: int) -> bool:
        """Return True if the rank is one of a pair."""
        return rank < 2 * self.extra

    def survives(self, rank: int) -> bool:
        """Return True if the rank takes part in the power-of-two phase."""
        return not self.paired(rank) or rank % 2 == self.survivor

    def new(self, rank: int) -> int:
        """Return the new number of a survivor."""
        return rank // 2 if self.paired(rank) else rank - self.extra

    def old(self, new: int) -> int:
        """Return the rank of a survivor."""
        return 2 * new + self.survivor if new < self.extra else new + self.extra

    def pair_round(self, rank: int, survivor: list[Instruction], dropped: list[Instruction]) -> Rounds:
        """Yield the round of pairs, if there are pairs: ``survivor`` on the rank that survives, else ``dropped``.

        The round of a rank without a partner is empty.
        """
        if self.extra:
            yield [] if not self.paired(rank) else survivor if self.survives(rank) else dropped

    def meetings(self, rank: int, distances: Iterable[int], exchange: Exchange) -> Rounds:
        """Yield rounds in which survivors meet at given distances between their new numbers; other ranks are idle."""
        for distance in distances:
            if self.survives(rank):
                new = self.new(rank)
                yield exchange(self.old(new ^ distance), new, new ^ distance, distance)
            else:
                yield []

    def blocks(self, new: int, stop: int | None = None) -> range:
        """Return the contiguous blocks for which the survivors ``new`` ... ``stop - 1`` stand."""
        last = new + 1 if stop is None else stop
        return range(self._first_block(new), self._first_block(last))

    def _first_block(self, new: int) -> int:
        return 2 * new if new < self.extra else new + self.extra


def around(start: int, count: int, size: int) -> Chunks:
    """Return ``count`` numbers from ``start`` on, modulo ``size``.

    >>> around(4, 3, 6), around(1, 2, 6)
    ((4, 5, 0), range(1, 3))
    """
    start %= size
    if start + count <= size:
        return range(start, start + count)
    return (*range(start, size), *range(start + count - size))


def opposite(rounds: Iterable[list[Instruction]]) -> Rounds:
    """Yield the rounds with the direction of every message reversed."""
    for moves in rounds:
        yield [
            send(move.peer, move.chunks) if move.receives else recv(move.peer, move.chunks) for move in moves
        ]


def ring_rounds(
    right: int, left: int, size: int, chunk: int, reduces: bool = False, first: int = 0
) -> Rounds:
    """Yield rounds around a ring: send a chunk to the right neighbour, receive the previous one from the left."""
    for i in range(size - 1):
        mine, theirs = first + (chunk - i) % size, first + (chunk - 1 - i) % size
        yield [send(right, mine), recv_reduce(left, theirs, left=True) if reduces else recv(left, theirs)]


def star_rounds(
    rank: int, root: int, others: Iterable[int], at_root: Callable[[int], Instruction], other: Instruction
) -> Rounds:
    """Yield rounds in which the root exchanges with one rank after another."""
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
    """Yield rounds up or down a tree with radix-1 children per level; radix 2 gives the binomial tree.

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
