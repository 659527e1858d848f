"""Partners and trees of Swing and Bine: signed distances 1, -1, 3, -5, 11, …

The step ``k`` has the distance ``(1 - (-2) ** (k + 1)) / 3``: the number whose ``k + 1`` digits in base -2 are all 1. Even
ranks add it, odd ranks subtract it. On a ring, these distances are about two thirds of 1, 2, 4, 8, 16, …

Sources: De Sensi and others, "Swing" (NSDI 2024, arXiv 2401.09356) and "Bine Trees" (SC 2025, arXiv 2508.17311). They
need a power of two of ranks; other counts are folded to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from spmdsim.collectives.algorithms.rank_arithmetic import Fold
from spmdsim.collectives.instructions import Instruction, Rounds

#: Function of the peer, the own blocks and the peer's blocks that returns the instructions of a rank in a step.
Exchange = Callable[[int, tuple[int, ...], tuple[int, ...]], list[Instruction]]


def partner(rank: int, step: int, size: int) -> int:
    """Return the rank with which ``rank`` exchanges in step ``step``, of which the first is 0.

    It is ``rank`` plus the signed distance of the step if ``rank`` is even, minus it if odd, modulo ``size``.

    >>> [partner(0, step, 16) for step in range(4)], [partner(5, step, 16) for step in range(4)]
    ([1, 15, 3, 11], [4, 6, 2, 10])
    """
    distance: int = (1 - (-2) ** (step + 1)) // 3
    return (rank + distance if rank % 2 == 0 else rank - distance) % size


@lru_cache(maxsize=1 << 16)
def reached_ranks(rank: int, step: int, size: int) -> tuple[int, ...]:
    """Return the ranks that get a rank's data in the steps from ``step`` on, itself included, sorted.

    >>> reached_ranks(0, 1, 8), reached_ranks(0, 2, 8)
    ((0, 3, 4, 7), (0, 3))
    """
    if step == steps(size):
        return (rank,)
    peer = partner(rank, step, size)
    return tuple(sorted((*reached_ranks(rank, step + 1, size), *reached_ranks(peer, step + 1, size))))


def steps(size: int) -> int:
    """Return the number of steps on a power of two of ranks."""
    return size.bit_length() - 1


def exchange_rounds(rank: int, fold: Fold, exchange: Exchange, far_first: bool = False) -> Rounds:
    """Yield the rounds of a rank, one per step, in which a fold's survivors exchange with their partners.

    The blocks of a survivor in step k are those of the survivors that it reaches in the later steps, and of their dropped
    partners. Dropped ranks idle.

    Args:
        rank: the rank whose rounds are yielded.
        fold: the fold to a power of two.
        exchange: ``exchange(peer, own_blocks, blocks_of_the_peer)`` returns the instructions of a survivor.
        far_first: True to take the last step first.
    """
    size = fold.power
    for step in reversed(range(steps(size))) if far_first else range(steps(size)):
        if not fold.survives(rank):
            yield []
            continue
        new = fold.new(rank)
        peer = partner(new, step, size)
        blocks = [join_blocks(fold, reached_ranks(number, step + 1, size)) for number in (new, peer)]
        yield exchange(fold.old(peer), *blocks)


def join_blocks(fold: Fold, survivors: Iterable[int]) -> tuple[int, ...]:
    """Return the blocks of survivors, by their new numbers, and of their dropped partners."""
    return tuple(block for new in survivors for block in fold.blocks(new))


def tree_down(rank: int, fold: Fold, give: Exchange, take: Exchange) -> Rounds:
    """Yield the rounds of a rank down the Bine tree from rank 0, farthest first.

    In each round, the ranks that have the data send it to their partners. So the number of ranks with data doubles.
    The tree has all survivors of a fold; dropped ranks idle.

    Args:
        rank: the rank whose rounds are yielded.
        fold: the fold to a power of two, in which rank 0 survives.
        give: ``give(child, own_blocks, blocks_of_the_child)`` returns the instructions of a parent. The blocks are those of
            the ranks that get them from this rank: itself and all below it in the tree.
        take: ``take(parent, own_blocks, blocks_of_the_parent)`` returns those of a child.
    """
    size, has_data = fold.power, rank == 0
    new = fold.new(rank) if fold.survives(rank) else -1
    for step in reversed(range(steps(size))):
        peer = partner(new, step, size)
        if new < 0 or not (has_data or peer in holders(step + 1, size)):
            yield []
            continue
        blocks = [join_blocks(fold, below(number, step, size)) for number in (new, peer)]
        yield give(fold.old(peer), *blocks) if has_data else take(fold.old(peer), *blocks)
        has_data = True


@lru_cache(maxsize=1 << 10)
def holders(step: int, size: int) -> frozenset[int]:
    """Return the ranks that have rank 0's data before the steps ``step - 1``, ..., 0 of :func:`tree_down`.

    >>> sorted(holders(3, 8)), sorted(holders(2, 8)), sorted(holders(1, 8))
    ([0], [0, 3], [0, 3, 4, 7])
    """
    ranks = {0}
    for later in reversed(range(step, steps(size))):
        ranks |= {partner(rank, later, size) for rank in ranks}
    return frozenset(ranks)


def below(rank: int, step: int, size: int) -> tuple[int, ...]:
    """Return a rank and all ranks that its data reaches, directly or through others, in ascending order.

    In each of the steps ``step - 1``, ..., 0, every rank that has the data sends it to its partner.

    >>> below(3, 2, 8)
    (2, 3, 4, 5)
    """
    ranks = [rank]
    for later in reversed(range(step)):
        ranks += [partner(one, later, size) for one in ranks]
    return tuple(sorted(ranks))
