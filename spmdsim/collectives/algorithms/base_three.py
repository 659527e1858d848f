"""Trivance and ReTri: messages to both sides at distances 1, 3, 9, ..., with two ports and ceil(log3 n) rounds.

Sources: "Trivance" (arXiv 2602.17254) and "ReTri" (arXiv 2605.26930). With distances 3 ** k to both sides, a round triples what
a rank knows, and the longest path on a ring is a third of that of Bruck's algorithm.
"""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import around, reduce_backwards
from spmdsim.collectives.factors import powers_below
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, send

TRIVANCE, RETRI = "arXiv 2602.17254", "arXiv 2605.26930"


def keep_full(moves: list[Instruction]) -> list[Instruction]:
    """Return the instructions without those of empty messages."""
    return [move for move in moves if move.chunks]


@built_in("all_gather", "n", Formula("c3", "q"), symmetry="shift", ports="2", source=TRIVANCE)
def all_gather_trivance(rank: int, size: int) -> Rounds:
    """Send all blocks to both sides at distances 1, 3, 9, ..., with two ports (Trivance).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. Before the round of distance
    d, a rank has the blocks of d ranks around it. In the last round only missing blocks travel. Block b is chunk b.
    """
    for distance in powers_below(size, 3):
        before, after = (rank - distance) % size, (rank + distance) % size
        yield keep_full(
            [
                send(before, missing_blocks(before, distance, size)[1]),
                send(after, missing_blocks(after, distance, size)[0]),
                recv(after, missing_blocks(rank, distance, size)[1]),
                recv(before, missing_blocks(rank, distance, size)[0]),
            ]
        )


def missing_blocks(rank: int, distance: int, size: int) -> tuple[Chunks, Chunks]:
    """Return the blocks that a rank gets from its left and from its right in the round of a distance.

    A rank that lacks fewer than ``2 * distance`` blocks gets half of them from each side; the right one may have one more.

    >>> missing_blocks(4, 3, 9), missing_blocks(4, 3, 6)
    ((range(0, 3), range(6, 9)), (range(2, 3), range(0, 2)))
    """
    missing, reach = size - distance, distance // 2
    left = min(distance, missing // 2)
    right = min(distance, missing - left)
    return around(rank - reach - left, left, size), around(rank + reach + 1, right, size)


@built_in(
    "reduce_scatter",
    "n",
    Formula("c3", "q", "q"),
    symmetry="shift",
    ports="2",
    in_order=False,
    source=TRIVANCE,
)
def reduce_scatter_trivance(rank: int, size: int) -> Rounds:
    """Send partial sums to both sides at distances ..., 9, 3, 1, with two ports (Trivance).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of the all_gather in reverse. The order of
    the operands is not kept.
    """
    return reduce_backwards(all_gather_trivance(rank, size))


@built_in(
    "all_reduce",
    "n",
    Formula("2*c3", "2*q", "q"),
    symmetry="shift",
    ports="2",
    in_order=False,
    source=TRIVANCE,
)
def all_reduce_trivance(rank: int, size: int) -> Rounds:
    """Reduce to block owners and gather, in 2 ceil(log3 n) rounds with two ports (Trivance).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. All ranks get equal bits. The order of the
    operands is not kept.
    """
    yield from reduce_scatter_trivance(rank, size)
    yield from all_gather_trivance(rank, size)


def balanced_digits(number: int, count: int) -> list[int]:
    """Return the lowest ``count`` digits of ``number`` in base 3, each -1, 0 or 1, the lowest first.

    >>> balanced_digits(5, 3), balanced_digits(-4, 3)
    ([-1, -1, 1], [-1, -1, 0])
    """
    digits = []
    for _ in range(count):
        digit = (number + 1) % 3 - 1
        digits.append(digit)
        number = (number - digit) // 3
    return digits


@built_in(
    "all_to_all",
    "n*n",
    Formula("c3", "nz3/n"),
    symmetry="shift",
    ports="2",
    source=RETRI,
)
def all_to_all_retri(rank: int, size: int) -> Rounds:
    """Move blocks by the digits -1, 0, 1 of their distance, in ceil(log3 n) rounds (ReTri).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. The distance of a block is
    destination minus source, modulo ``size``, between -n/2 and n/2. Its digits are those of base 3, balanced. A rank has two
    ports. Round k moves blocks with the
    digit 1 by 3 ** k ranks, and those with the digit -1 by as many ranks back.
    """
    count = len(list(powers_below(size, 3)))
    distances = [j if 2 * j <= size else j - size for j in range(size)]
    digits = [balanced_digits(distance, count) for distance in distances]

    def resting(member: int, k: int, sign: int) -> list[int]:
        """Return the blocks on a rank before round k that the round moves in a direction."""
        moved = [j for j in range(size) if digits[j][k] == sign]
        sources = [(member - sum(d * 3**i for i, d in enumerate(digits[j][:k]))) % size for j in moved]
        return [source * size + (source + j) % size for source, j in zip(sources, moved)]

    for k in range(count):
        sides = [(sign, (rank + sign * 3**k) % size, (rank - sign * 3**k) % size) for sign in (1, -1)]
        sends = [send(to, resting(rank, k, sign)) for sign, to, _ in sides]
        yield keep_full(sends + [recv(source, resting(source, k, sign)) for sign, _, source in sides])
