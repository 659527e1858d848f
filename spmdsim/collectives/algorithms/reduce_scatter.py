"""reduce_scatter: rank r ends with block r of the reduction of all vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import gather_scatter, negabinary, reduce
from spmdsim.collectives.algorithms.halving import fold_in
from spmdsim.collectives.algorithms.rails import Rails
from spmdsim.collectives.algorithms.rank_arithmetic import Fold, circulant_reduction, doublings, ring_rounds
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, recv_reduce, send


@built_in(
    "reduce_scatter",
    "n",
    Formula("n-1", "q", "q", "n-1"),
    symmetry="shift",
    in_order=False,
    openmpi="ring 3",
    nccl="ring",
)
def ring(rank: int, size: int) -> Rounds:
    """Send partial sums around the ring; each stops at its owner.

    Step i sends the partial sum of chunk r-1-i to the right.
    """
    return ring_rounds((rank + 1) % size, (rank - 1) % size, size, rank - 1, reduces=True)


@built_in(
    "reduce_scatter", "n", Formula("n-1", "q", "q", "n-1"), symmetry="shift", in_order=False, mpich="pairwise"
)
def pairwise(rank: int, size: int) -> Rounds:
    """Send each block straight to its owner, one partner per round.

    Round i sends the original block r+i to its owner and adds the block from r-i.
    """
    for i in range(1, size):
        to = (rank + i) % size
        yield [send(to, to), recv_reduce((rank - i) % size, rank, left=True)]


def _fold_and_exchange(
    rank: int,
    fold: Fold,
    size: int,
    distances: Iterable[int],
    exchanged: Callable[[int, int, int], Iterable[Chunks]],
    left: bool | None = None,
) -> Rounds:
    """Yield rounds in which survivors of a fold exchange and reduce blocks at given distances.

    A fold pairs some ranks (``rank`` and ``rank ^ 1``), and one rank of each pair drops out, so that a power of
    two is left. The rounds are:

    1. The dropped rank sends its whole vector to its partner, which reduces it.
    2. The survivors exchange, one round per distance. They end with their own block and that of their dropped
       partner.
    3. The survivor of a pair sends the dropped rank its block.

    Block b is chunk b, and belongs to rank b.

    Args:
        rank: the rank whose rounds are yielded.
        fold: the fold; without pairs no rank drops out.
        size: the number of ranks.
        distances: the distances between survivors, one round each.
        exchanged: called with the own new number, the peer's new number and the distance; returns two lists of
            blocks: those to send, and those to receive and reduce.
        left: True to put received blocks on the left of the operator; None: if the sender has the lower rank.
    """

    def exchange(peer: int, new: int, peer_new: int, distance: int) -> list[Instruction]:
        sent, reduced = exchanged(new, peer_new, distance)
        return [send(peer, sent), recv_reduce(peer, reduced, left=left)]

    yield from fold_in(rank, fold, range(size))
    yield from fold.meetings(rank, distances, exchange)
    yield from fold.pair_round(rank, [send(rank ^ 1, rank ^ 1)], [recv(rank ^ 1, rank)])


@built_in(
    "reduce_scatter",
    "n",
    Formula("f", "q", "q", "c", only="n == p"),
    symmetry="n == p: xor",
    in_order=False,
    mpich="recursive_halving",
    openmpi="recursive_halving 2",
)
def recursive_halving(rank: int, size: int) -> Rounds:
    """Send half of the blocks to a partner and reduce the other half, farthest partner first.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. For example, rank 0 of 4 sends
    blocks 2 and 3 to rank 2 and reduces 0 and 1; then it sends block 1 to rank 1 and reduces 0. Block b is chunk
    b. If the rank count is no power of two, the first ranks form pairs: the even rank sends its vector to the odd
    one, idles, and gets its block at the end.
    """
    fold = Fold.of(size)

    def halves(new: int, peer_new: int, half: int) -> Iterable[Chunks]:
        return (fold.blocks(number & -half, (number & -half) + half) for number in (peer_new, new))

    return _fold_and_exchange(rank, fold, size, reversed(list(doublings(fold.power))), halves, left=True)


@built_in(
    "reduce_scatter",
    "n",
    Formula("f", "q", "q", "c", only="n == p"),
    symmetry="n == p: xor",
    in_order=True,
    mpich="noncommutative",
    openmpi="butterfly 4",
)
def butterfly(rank: int, size: int) -> Rounds:
    """Halve the blocks at distance 1, 2, 4, ..., so that the rank order is kept (Traff).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. In the round of distance d, a rank
    keeps the blocks whose number agrees with its own number in the bit of value d, and sends the others to its
    partner. So rank 0 of 4 keeps blocks 0 and 2, then block 0. Block b is chunk b. If the rank count is no power of
    two, the first ranks form pairs: the even rank sends its vector to the odd one, idles, and gets its block at the
    end.
    """
    fold = Fold.of(size)

    def strided(new: int, peer_new: int, distance: int) -> Iterable[Chunks]:
        return (_strided(fold, owner, 2 * distance) for owner in (peer_new, new))

    return _fold_and_exchange(rank, fold, size, doublings(fold.power), strided)


def _strided(fold: Fold, owner: int, stride: int) -> range | tuple[int, ...]:
    """Return the blocks of all survivors whose number equals ``owner`` modulo ``stride``."""
    if not fold.extra:
        return range(owner % stride, fold.power, stride)
    news = range(owner % stride, fold.power, stride)
    return tuple(block for new in news for block in fold.blocks(new))


@built_in(
    "reduce_scatter",
    "n",
    Formula("f", "f - q", "f - q", "c", only="n == p"),
    symmetry="n == p: xor",
    in_order=True,
    mpich="recursive_doubling",
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Exchange all blocks outside the own group of 1, 2, 4, ... ranks; keeps the rank order.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. In the round of distance d, a rank
    has sums over its aligned group of d ranks. It sends its partner these sums of all blocks outside of this
    group, and reduces the received ones. Block b is chunk b. If the rank count is no power of two, the first
    ranks form pairs: the even rank sends its vector to the odd one, idles, and gets its block at the end.
    """
    fold = Fold.of(size)

    def outside(new: int, peer_new: int, distance: int) -> Iterable[Chunks]:
        firsts = (member & -distance for member in (new, peer_new))
        return ((*fold.blocks(0, k), *fold.blocks(k + distance, fold.power)) for k in firsts)

    return _fold_and_exchange(rank, fold, size, doublings(fold.power), outside)


@built_in(
    "reduce_scatter",
    "n",
    Formula("c", "q", "q", "c"),
    symmetry="shift",
    in_order=False,
    source="arXiv 2410.14234",
)
def circulant(rank: int, size: int) -> Rounds:
    """Halve the distance in each of ceil(log2 n) rounds, on any n (Traff).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks.
    Rounds and bytes are the fewest possible.
    """
    return circulant_reduction(rank, size)


@built_in(
    "reduce_scatter",
    "n",
    Formula("f", "q", "q", "c", only="n == p"),
    in_order=False,
    source="arXiv 2508.17311",
)
def bine(rank: int, size: int) -> Rounds:
    """Exchange halves at distances 1, 1, 3, 5, 11, ... (Bine).

    The largest messages go to the nearest ranks. Yields the rounds (lists of instructions) of
    ``rank`` among ``size`` ranks. Block b is chunk b. If the rank count is no
    power of two, the first ranks form pairs as by :func:`recursive_halving`.
    """
    fold = Fold.of(size)
    yield from fold_in(rank, fold, range(size))
    yield from negabinary.exchange_rounds(
        rank, fold, lambda peer, reduced, sent: [send(peer, sent), recv_reduce(peer, reduced)]
    )
    yield from fold.pair_round(rank, [send(rank ^ 1, rank ^ 1)], [recv(rank ^ 1, rank)])


@built_in(
    "reduce_scatter", "n", Formula("c + n-1", "c + q", "c", "c"), in_order=True, openmpi="non_overlapping 1"
)
def reduce_scatterv(rank: int, size: int) -> Rounds:
    """Binomial reduce to rank 0, then a linear scatter.

    It supports any operator, and is slow for long vectors.
    """
    yield from reduce.tree_reduction(rank, size, range(size))
    yield from gather_scatter.scatter_linear(rank, size)


@built_in(
    "reduce_scatter",
    "n",
    Formula("g-1 + h-1", "q", "q", "g-1 + h-1", only="n % g == 0"),
    in_order=False,
)
def two_level_ring(rank: int, size: int, group: int = 2) -> Rounds:
    """Run a ring in each group, then rings between groups, one for each place in a group.

    In the group, local rank i reduces the blocks of the local ranks i of all groups. Then these ranks reduce them among
    themselves, on rail i. So each group sends one partial sum of each block of other groups. If the last group is
    smaller, its ranks serve several rails each, one after the other. The order of the operands is not kept.

    For example, 4 ranks in groups of 2: rank 0 gets rank 1's blocks 0 and 2, then rank 2's partial sum of block 0.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks, and of blocks.
        group: the number of ranks of a group.
    """
    rails = Rails(size, group)

    def reduce_on(rail: int) -> Rounds:
        return rails.ring_between(rank, rail, rails.owners_on(rail), reduces=True)

    blocks = [rails.owners_served_by(member) for member in rails.members(rank)]
    yield from rails.ring_inside(rank, blocks, reduces=True)
    yield from rails.take_turns(rank, reduce_on, rails.group_count - 1)
