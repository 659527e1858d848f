"""Functions that several algorithms share: folding to a power of two, blocks of folded ranks, rings and trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from spmdsim.collectives.factors import powers_below
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, recv_reduce, send


def power_below(size: int) -> int:
    """Return the largest power of two that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def doublings(size: int) -> Iterable[int]:
    """Return the powers of two 1, 2, 4, ... below ``size``."""
    return powers_below(size, 2)


#: Function of the peer's rank, the own new number, the peer's new number, and their distance, that returns the
#: instructions of a survivor.
Exchange: TypeAlias = Callable[[int, int, int, int], list[Instruction]]


class Fold(NamedTuple):
    """Pairing of ranks after which a power of two, or another number, of ranks survives.

    Of the first ``2 * extra`` ranks, every second one drops out. The survivors are renumbered in rank order.

    Attributes:
        power: the number of survivors.
        extra: the number of pairs.
        survivor: 1 if the odd rank of a pair survives, 0 if the even one.
    """

    power: int
    extra: int
    survivor: int = 1

    @staticmethod
    def of(size: int, survivor: int = 1) -> Fold:
        """Return the fold of ``size`` ranks to the largest power of two."""
        power = power_below(size)
        return Fold(power, size - power, survivor)

    def is_paired(self, rank: int) -> bool:
        """Return True if the rank is one of a pair."""
        return rank < 2 * self.extra

    def survives(self, rank: int) -> bool:
        """Return True if the rank takes part in the power-of-two phase."""
        return not self.is_paired(rank) or rank % 2 == self.survivor

    def new(self, rank: int) -> int:
        """Return the new number of a surviving rank, from 0 to ``power - 1``."""
        return rank // 2 if self.is_paired(rank) else rank - self.extra

    def old(self, new: int) -> int:
        """Return the rank of the survivor with the new number ``new``."""
        return 2 * new + self.survivor if new < self.extra else new + self.extra

    def pair_round(self, rank: int, survivor: list[Instruction], dropped: list[Instruction]) -> Rounds:
        """Yield the round of pairs: ``survivor`` on the rank that survives, else ``dropped``.

        One rank of a pair survives, the other drops out. The round of a rank without a partner is empty. Without
        pairs no round is yielded.

        Args:
            rank: the rank whose round is yielded.
            survivor: the instructions of a rank that survives.
            dropped: the instructions of a rank that drops out.
        """
        if self.extra:
            yield [] if not self.is_paired(rank) else survivor if self.survives(rank) else dropped

    def meetings(self, rank: int, distances: Iterable[int], exchange: Exchange) -> Rounds:
        """Yield one round per distance, in which survivors at that distance exchange.

        Survivors are the ranks that do not drop out of a pair. They have new numbers, and their distance is the
        exclusive-or of these numbers. Ranks that dropped out are idle (``[]``).

        Args:
            rank: the rank whose rounds are yielded.
            distances: the distance of each round; powers of two below the number of survivors.
            exchange: ``exchange(peer, new, new_of_peer, distance)`` returns the instructions of a survivor.
                ``peer`` is the peer's rank; ``new`` and ``new_of_peer`` are the new numbers.
        """
        for distance in distances:
            if self.survives(rank):
                new = self.new(rank)
                yield exchange(self.old(new ^ distance), new, new ^ distance, distance)
            else:
                yield []

    def blocks(self, new: int, stop: int | None = None) -> range:
        """Return the blocks of the survivors ``new`` ... ``stop - 1`` and of their dropped partners.

        They are contiguous. ``stop`` is ``new + 1`` if left out.
        """
        last = new + 1 if stop is None else stop
        return range(self._first_block(new), self._first_block(last))

    def _first_block(self, new: int) -> int:
        """Return the first block of a survivor: its own, or that of the lower rank of its pair."""
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


def circulant_skips(size: int) -> list[tuple[int, int]]:
    """Return ``(distance, blocks)`` of each round of the circulant algorithms, from far to near.

    Each distance is half of the one before, rounded up, down to 1; the first is half of ``size``, the rank count. A
    round moves as many blocks as its distance is smaller than the one before (in the first round: than ``size``).

    >>> circulant_skips(6), circulant_skips(8)
    ([(3, 3), (2, 1), (1, 1)], [(4, 4), (2, 2), (1, 1)])
    """
    skips, distance = [], size
    while distance > 1:
        nearer = (distance + 1) // 2
        skips.append((nearer, distance - nearer))
        distance = nearer
    return skips


def circulant_reduction(rank: int, size: int) -> Rounds:
    """Yield the rounds of a reduce_scatter that halves the distance in each round, for any rank count.

    At distance d, a rank sends its partial sums of the blocks from ``rank + d`` on to their nearest rank ``rank + d``, and
    adds those that it gets to its blocks from ``rank`` on. Block b is chunk b; there are ``size`` blocks.
    """
    for distance, count in circulant_skips(size):
        to = (rank + distance) % size
        yield [
            send(to, around(to, count, size)),
            recv_reduce((rank - distance) % size, around(rank, count, size)),
        ]


def circulant_gather(rank: int, size: int) -> Rounds:
    """Yield the rounds of ``rank`` in an all_gather that reverses :func:`circulant_reduction`.

    There are ``size`` ranks and as many blocks.
    """
    for distance, count in reversed(circulant_skips(size)):
        source = (rank + distance) % size
        yield [
            send((rank - distance) % size, around(rank, count, size)),
            recv(source, around(source, count, size)),
        ]


def reduce_backwards(rounds: Iterable[list[Instruction]]) -> Rounds:
    """Yield the rounds of a reduction that reverses rounds in which each rank receives a chunk once.

    The last round comes first. A rank sends what it received, and reduces what it sent. So a broadcast becomes a reduce, and an
    all_gather a reduce_scatter.
    """
    for moves in reversed(list(rounds)):
        yield [
            send(move.peer, move.chunks) if move.receives else recv_reduce(move.peer, move.chunks)
            for move in moves
        ]


def opposite(rounds: Iterable[list[Instruction]]) -> Rounds:
    """Yield the rounds with the direction of every message reversed."""
    for moves in rounds:
        yield [
            send(move.peer, move.chunks) if move.receives else recv(move.peer, move.chunks) for move in moves
        ]


def ring_rounds(
    right: int, left: int, size: int, chunk: int, reduces: bool = False, first: int = 0
) -> Rounds:
    """Yield the rounds of a rank in a ring, one less than the ring has ranks.

    In each round, the rank sends a chunk to the right and receives the chunk before it, modulo ``size``, from the
    left. The received chunk is sent in the next round.

    Args:
        right: the right neighbour.
        left: the left neighbour.
        size: the number of ranks of the ring.
        chunk: the chunk that this rank sends first, from 0 to ``size - 1``.
        reduces: True to reduce received chunks with own ones, False to store them.
        first: number of the ring's first chunk.
    """
    for i in range(size - 1):
        sent, theirs = first + (chunk - i) % size, first + (chunk - 1 - i) % size
        yield [send(right, sent), recv_reduce(left, theirs, left=True) if reduces else recv(left, theirs)]


def star_rounds(
    rank: int,
    root: int,
    others: Iterable[int],
    at_root: Callable[[int], Instruction],
    peer_instruction: Instruction,
) -> Rounds:
    """Yield the rounds of a rank in which the root exchanges with one other rank after another.

    Each other rank has one round, in which it and the root have one instruction; all further ranks are idle (``[]``).

    Args:
        rank: the rank.
        root: the root.
        others: the other ranks, in the order of their rounds.
        at_root: ``at_root(peer)`` returns the root's instruction in the round of a peer.
        peer_instruction: the instruction of the peer, if ``rank`` is one.
    """
    for peer in others:
        yield [at_root(peer)] if rank == root else [peer_instruction] if rank == peer else []


def tree_rounds(
    v: int,
    size: int,
    parent: Callable[[int, int], Instruction],
    child: Callable[[int, int], Instruction],
    radix: int = 2,
    down: bool = False,
) -> Rounds:
    """Yield the rounds of a rank up or down a tree with radix-1 children per level.

    Radix 2 gives the binomial tree. A round has one instruction, or none (``[]``) if the rank is idle. All ranks have
    equally many rounds. For example, up the tree of 4 ranks: rank 1 sends to 0, and rank 3 to 2; then rank 2 sends
    to 0.

    Args:
        v: the rank as counted from the root.
        size: the number of ranks.
        parent: ``parent(child, distance)`` returns the instruction of ``v`` in a round in which it is the parent.
            ``distance`` is the difference of the two ranks' numbers.
        child: ``child(parent, distance)`` returns the instruction of ``v`` in a round in which it is the child.
        radix: a parent has ``radix - 1`` children per level.
        down: True to start at the root, False to end there.
    """
    masks = []
    mask = 1
    while mask < size:
        masks.append(mask)
        mask *= radix
    for mask in reversed(masks) if down else masks:
        for step in range(mask, radix * mask, mask):
            if v % (radix * mask) == 0 and v + step < size:
                yield [parent(v + step, step)]
            elif v % (radix * mask) == step:
                yield [child(v - step, step)]
            else:
                yield []
