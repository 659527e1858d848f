"""all_reduce: every rank ends with the reduction of all vectors."""

from __future__ import annotations

from collections.abc import Iterator

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import broadcast, negabinary, reduce
from spmdsim.collectives.algorithms.halving import double, fold_in, fold_out, halve
from spmdsim.collectives.algorithms.rails import Rails, pad_rounds, rename
from spmdsim.collectives.algorithms.rank_arithmetic import (
    Fold,
    circulant_gather,
    circulant_reduction,
    doublings,
    ring_rounds,
)
from spmdsim.collectives.instructions import (
    Instruction,
    Rounds,
    combine,
    copy,
    recv,
    recv_reduce,
    send,
)
from spmdsim.errors import ScheduleError

INDEX_RULES = {"mpich": 1, "openmpi": 0}
"""First chunk that a rank sends, as the distance below its own number, by index rule.

Rank r ends the first half with chunk r (1) or r + 1 (0).
"""


@built_in(
    "all_reduce",
    "n",
    Formula("2*(n-1)", "2*q", "q", "n-1"),
    symmetry="shift",
    in_order=False,
    mpich="ring",
    nccl="ring",
)
def ring(rank: int, size: int, index: str = "mpich") -> Rounds:
    """Run a reduce_scatter, then an all_gather, both around the ring.

    Yields the ``2 * (size - 1)`` rounds (lists of instructions) of ``rank``. Rank r sends to r+1 and receives
    from r-1. In step i, from 0, it sends chunk r-1-i by MPICH's index rule, or chunk r-i by Open MPI's. The order
    of the operands is not kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks, and of chunks.
        index: the index rule, "mpich" or "openmpi".

    Raises:
        ScheduleError: If the index rule is unknown.
    """
    if index not in INDEX_RULES:
        raise ScheduleError(f"ring: index must be 'mpich' or 'openmpi', got {index!r}")
    first, right, left = rank - INDEX_RULES[index], (rank + 1) % size, (rank - 1) % size
    yield from ring_rounds(right, left, size, first, reduces=True)
    yield from ring_rounds(right, left, size, first + 1)


@built_in(
    "all_reduce",
    "n",
    Formula("2*(n-1)", "2*q", "q", "n-1"),
    symmetry="shift",
    in_order=False,
    openmpi="ring 4",
)
def ring_openmpi(rank: int, size: int) -> Rounds:
    """Run the ring with Open MPI's index rule: step i sends chunk r-i."""
    return ring(rank, size, index="openmpi")


@built_in(
    "all_reduce",
    ("n", "s"),
    Formula("(s+1)*(n-1)", "2*q", "q", "n-1"),
    symmetry="shift",
    in_order=False,
    openmpi="segmented_ring 5",
)
def segmented_ring(rank: int, size: int, segments: int = 2) -> Rounds:
    """Run the ring's reduce_scatter segment by segment, then its all_gather in whole blocks.

    This is Open MPI's segmented ring. The vector has a block per rank, and a block has ``segments`` chunks: block b
    has the chunks b*segments ... (b+1)*segments - 1. Rank r sends to rank r+1 in each of ``(segments + 1) * (size -
    1)`` rounds (lists of instructions):

    * reduce_scatter, once per segment s: step i sends chunk s of block r-i;
    * all_gather: step i sends the whole block r+1-i.

    On 3 ranks with 2 segments, rank 0 sends the chunks 0, 4 (segment 0), 1, 5 (segment 1), then the blocks 1 and 0.
    The order of the operands is not kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks, and of blocks.
        segments: the number of segments of each block; at least 1.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    for segment in range(segments):
        for i in range(size - 1):
            sent, theirs = (rank - i) % size, (rank - 1 - i) % size
            yield [
                send(right, sent * segments + segment),
                recv_reduce(left, theirs * segments + segment, left=True),
            ]
    for i in range(size - 1):
        sent, theirs = (rank + 1 - i) % size, (rank - i) % size
        yield [
            send(right, range(sent * segments, (sent + 1) * segments)),
            recv(left, range(theirs * segments, (theirs + 1) * segments)),
        ]


@built_in(
    "all_reduce",
    "1",
    Formula("f + 2*x", "f + 2*x", "f + x", "c"),
    symmetry="n == p: xor",
    in_order=True,
    mpich="recursive_doubling",
    openmpi="recursive_doubling 3",
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Exchange whole vectors with partners at distance 1, 2, 4 and so on.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; the vector is one chunk. If the rank
    count is no power of two, the first ranks form pairs: the even rank sends its vector to the odd one, idles, and
    gets the result at the end. The order of the operands is kept.
    """
    fold = Fold.of(size)
    yield from fold_in(rank, fold, range(1))
    yield from fold.meetings(
        rank, doublings(fold.power), lambda peer, *_: [send(peer, 0), recv_reduce(peer, 0)]
    )
    yield from fold_out(rank, fold, range(1))


@built_in(
    "all_reduce",
    "p",
    Formula("2*f + 2*x", "2*qp + 2*x", "qp + x", "c"),
    symmetry="n == p: xor",
    in_order=False,
    mpich="reduce_scatter_allgather",
)
def rabenseifner(rank: int, size: int) -> Rounds:
    """Run a reduce_scatter by recursive halving, then an all_gather by recursive doubling.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. The vector has p chunks; p is the
    largest power of two up to ``size``. The first ``2 * (size - p)`` ranks form pairs (MPICH's fold): the even
    rank sends its whole vector to the odd one, idles, and gets the result at the end. The remaining p ranks halve
    from distance 1 on. The order of the operands is not kept.
    """
    fold = Fold.of(size)
    yield from fold_in(rank, fold, range(fold.power))
    yield from halve(rank, fold)
    yield from double(rank, fold)
    yield from fold_out(rank, fold, range(fold.power))


@built_in(
    "all_reduce",
    "p",
    Formula("2*f + 3*x", "2*qp + 2*x", "qp + x/2", "c"),
    symmetry="n == p: xor",
    in_order=False,
    openmpi="rabenseifner 6",
    about="Rabenseifner with Open MPI's fold: pairs exchange halves, the even rank survives",
)
def rabenseifner_half_fold(rank: int, size: int) -> Rounds:
    """Run Rabenseifner's algorithm; paired ranks reduce half a vector each before the odd one drops out.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. p is the largest power of two up to
    ``size``, and the number of chunks of the vector.

    1. The first ``2 * (size - p)`` ranks form pairs, which swap halves. The even rank reduces the lower half, the odd
       rank the upper one.
    2. The odd rank sends its reduced half to the even one, and idles.
    3. The p remaining ranks reduce by recursive halving, and gather by recursive doubling.
    4. The even rank sends the result to the odd one.

    On 3 ranks, ranks 0 and 1 are a pair, and ranks 0 and 2 do step 3. The order of the operands is not kept.
    """
    fold = Fold.of(size, survivor=0)
    lower, upper = range(fold.power // 2), range(fold.power // 2, fold.power)
    halves = [
        [send(rank ^ 1, sent), recv_reduce(rank ^ 1, reduced, left=True)]
        for sent, reduced in ((upper, lower), (lower, upper))
    ]
    yield from fold.pair_round(rank, *halves)
    yield from fold.pair_round(rank, [recv(rank ^ 1, upper)], [send(rank ^ 1, upper)])
    yield from halve(rank, fold)
    yield from double(rank, fold)
    yield from fold_out(rank, fold, range(fold.power))


@built_in(
    "all_reduce",
    "p",
    Formula("2*f + 2*x", "2*qp + 2*x", "qp + x", "c", only="n == p"),
    in_order=False,
    source="arXiv 2401.09356",
)
def swing(rank: int, size: int) -> Rounds:
    """Run a reduce_scatter and an all_gather at distances 1, 1, 3, 5, 11, ... (Swing).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks.
    The largest messages go to the nearest
    ranks; see :mod:`~spmdsim.collectives.algorithms.negabinary`. If the rank count is no power of two, ranks are paired
    as by :func:`rabenseifner`. The order of the operands is not kept.
    """
    fold = Fold.of(size)
    chunks = range(fold.power)
    # Chunk c is reduced on survivor c: a fold without pairs has one block per survivor.
    unpaired = Fold(fold.power, 0)

    def exchange(new: int) -> Rounds:
        """Yield the rounds between the ranks that take part, by their new numbers."""
        yield from negabinary.exchange_rounds(
            new, unpaired, lambda peer, reduced, sent: [send(peer, sent), recv_reduce(peer, reduced)]
        )
        yield from negabinary.exchange_rounds(
            new,
            unpaired,
            lambda peer, owned, missing: [send(peer, owned), recv(peer, missing)],
            far_first=True,
        )

    yield from fold_in(rank, fold, chunks)
    between = exchange(fold.new(rank)) if fold.survives(rank) else iter(())
    survivors = [fold.old(new) for new in chunks]
    yield from pad_rounds(rename(between, survivors), 2 * negabinary.steps(fold.power))
    yield from fold_out(rank, fold, chunks)


@built_in(
    "all_reduce",
    "n",
    Formula("2*c", "2*q", "q", "c"),
    symmetry="shift",
    in_order=False,
    source="arXiv 2410.14234",
)
def circulant(rank: int, size: int) -> Rounds:
    """Reduce to block owners and gather, in 2 ceil(log2 n) rounds on any n (Traff).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks.
    Rounds and bytes are the fewest possible.
    The order of the operands is not kept.
    """
    yield from circulant_reduction(rank, size)
    yield from circulant_gather(rank, size)


@built_in(
    "all_reduce",
    "1",
    Formula("n-1", "n-1", "n-1", "n-1"),
    symmetry="shift",
    in_order=True,
    openmpi="allgather_reduce 7",
)
def all_gather_reduce(rank: int, size: int) -> Rounds:
    """Send all vectors to all ranks; each rank then reduces them in rank order.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. Rank j's vector
    is stored in scratch chunk 1 + j. In a last round without messages, they are combined into chunk 0, the
    result. The order of the operands is kept.
    """
    for i in range(1, size):
        yield [send((rank + i) % size, 0), recv((rank - i) % size, 1 + (rank - i) % size)]
    if size > 1:
        keep = [copy(0, 1 + rank), copy(1, 0)]
        yield keep + [combine(1 + j, 0, left=False) for j in range(1, size)]


@built_in("all_reduce", "1", Formula("2*c", "2*c", "c", "c"), in_order=True, openmpi="nonoverlapping 2")
def reduce_broadcast(rank: int, size: int) -> Rounds:
    """Run a binomial reduce to rank 0, then a binomial broadcast from rank 0.

    The vector is one chunk. The order of the operands is kept.
    """
    yield from reduce.binomial(rank, size)
    yield from broadcast.binomial(rank, size)


@built_in(
    "all_reduce",
    "1",
    Formula("2*(n-1)", "2*(n-1)", "n-1", "n-1"),
    in_order=True,
    openmpi="basic_linear linear 1",
)
def linear(rank: int, size: int) -> Rounds:
    """Send all vectors to rank 0, which sends the result to all ranks.

    Rank 0 receives and sends one message at a time. The vector is one chunk. The order of the operands is kept.
    """
    yield from reduce.linear(rank, size)
    yield from broadcast.linear(rank, size)


def bit_tree_parent(rank: int, size: int) -> int | None:
    """Return the parent of a rank in NCCL's binary tree; None for rank 0, the root.

    Let ``b`` be the lowest set bit of the rank. The parent is ``rank - b`` or ``rank + b``, whichever has the lowest set bit
    ``2 * b``. If that rank is not below ``size``, the parent is ``rank - b``.

    >>> [bit_tree_parent(r, 6) for r in range(6)]
    [None, 2, 4, 2, 0, 4]
    """
    if rank == 0:
        return None
    low = rank & -rank
    up = (rank ^ low) | low << 1
    return up if up < size else rank ^ low


#: Directions of :func:`_rename_for_tree`: the number of ranks by which an odd number of ranks is shifted.
TO_POSITION, TO_RANK = -1, 1


def _rename_for_tree(rank: int, size: int, tree: int, by: int) -> int:
    """Convert a rank to its position in a tree (TO_POSITION), or a position to its rank (TO_RANK).

    Tree 0 has rank r at position r. Tree 1 is its mirror image for an even number of ranks, else it is shifted by one
    rank.
    """
    if tree == 0:
        return rank
    return size - 1 - rank if size % 2 == 0 else (rank + by) % size


def bit_tree_children(rank: int, size: int) -> list[int]:
    """Return the ranks whose parent in NCCL's binary tree is ``rank``, lowest first."""
    # A child is half of the lowest set bit away; one whose other parent would not be below `size` may be nearer.
    low = rank & -rank if rank else 1 << size.bit_length()
    near = {rank - (low >> 1), *(rank + (low >> 1 + i) for i in range(low.bit_length()))}
    return sorted(c for c in near if 0 < c < size and bit_tree_parent(c, size) == rank)


def bit_tree_depth(rank: int, size: int) -> int:
    """Return the number of edges between a rank and the root, rank 0."""
    depth, ancestor = 0, bit_tree_parent(rank, size)
    while ancestor is not None:
        depth, ancestor = depth + 1, bit_tree_parent(ancestor, size)
    return depth


@built_in("all_reduce", "2", ports="2", nccl="tree")
def double_binary_tree(rank: int, size: int) -> Rounds:
    """Send each half of the vector up and down its own binary tree (NCCL).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. The halves are chunks 0 and 1. An
    inner rank of one tree is a leaf of the other, so the work is shared. A round has the messages of all ranks of
    one depth: the deepest send first on the way up, the root first on the way down.
    """
    deepest = (size - 1).bit_length()
    for level in range(deepest, 0, -1):
        yield [m for tree in (0, 1) for m in _tree_moves(rank, size, tree, level, up=True)]
    for level in range(1, deepest + 1):
        yield [m for tree in (0, 1) for m in _tree_moves(rank, size, tree, level, up=False)]


def _tree_moves(rank: int, size: int, tree: int, level: int, up: bool) -> Iterator[Instruction]:
    """Yield a rank's messages in one tree between depth ``level`` and the depth above it.

    Nothing is yielded if the rank has neither of these depths.

    Args:
        rank: the rank.
        size: the number of ranks.
        tree: 0 or 1, the number of the tree and of its chunk.
        level: the depth of the children; the root has depth 0.
        up: True if messages go to the root, and are reduced; False if away from it.
    """
    position = _rename_for_tree(rank, size, tree, TO_POSITION)
    depth = bit_tree_depth(position, size)
    if depth == level:
        parent = bit_tree_parent(position, size)
        # `or 0` is for type checkers only: a position at depth 1 or more has a parent.
        peer = _rename_for_tree(parent or 0, size, tree, TO_RANK)
        yield send(peer, tree) if up else recv(peer, tree)
    elif depth == level - 1:
        for child in bit_tree_children(position, size):
            peer = _rename_for_tree(child, size, tree, TO_RANK)
            yield recv_reduce(peer, tree) if up else send(peer, tree)


@built_in(
    "all_reduce",
    "1",
    Formula("2*cg + fh + 2*xh", "2*cg + fh + 2*xh", "cg + fh + xh", only="n % g == 0"),
    in_order=True,
    mpich="smp",
)
def hierarchical_leader(rank: int, size: int, group: int = 2) -> Rounds:
    """Reduce in each group, recursive doubling among the leaders, broadcast in each group.

    A group is ``group`` consecutive ranks, and its first rank is the leader; the last group may be smaller. So ranks
    0, 4 and 8 lead 10 ranks in groups of 4. Reduce and broadcast go along binomial trees. If the number of leaders is
    no power of two, some form pairs as in :func:`recursive_doubling`. The vector is one chunk. Ranks idle (``[]``) in
    rounds of other ranks, so that all have equally many rounds. The order of the operands is kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        group: the number of ranks of a group; at least 1.
    """
    leaders, members = range(0, size, group), Rails(size, group).members(rank)
    inside = (min(group, size) - 1).bit_length()
    # A fold adds two rounds.
    doubling_rounds = len(leaders).bit_length() - 1 + 2 * (len(leaders) & (len(leaders) - 1) != 0)
    local = rank - members.start
    between = recursive_doubling(rank // group, len(leaders)) if local == 0 else iter(())
    yield from pad_rounds(rename(reduce.binomial(local, len(members)), members), inside)
    yield from pad_rounds(rename(between, leaders), doubling_rounds)
    yield from pad_rounds(rename(broadcast.binomial(local, len(members)), members), inside)


@built_in(
    "all_reduce",
    ("g", "h"),
    Formula(
        "2*(g-1) + 2*(h-1)",
        "2*(g-1)/g + 2*(h-1)/(h*g)",
        "(g-1)/g + (h-1)/(h*g)",
        "g-1 + h-1",
        only="n % g == 0",
    ),
    in_order=False,
    astra_sim="hierarchical",
)
def two_level_ring(rank: int, size: int, group: int = 2) -> Rounds:
    """Run a ring reduce_scatter in groups, ring all_reduce between groups, ring all_gather in groups.

    The vector has ``group`` shards, and local rank i of each group works on shard i. So the rings between groups, also
    called rail rings, have one rank of each group. With h groups, shard i has the chunks ``i * h`` to
    ``(i + 1) * h - 1``. If the last group is smaller, its ranks work on several shards each, in one ring after the
    other. The order of the operands is not kept.

    For example, 4 ranks in groups of 2: rank 0 reduces shard 0 with rank 1, all_reduces it with rank 2 of the other
    group, and then swaps the shards 0 and 1 with rank 1.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        group: the number of ranks of a group, and of shards.
    """
    rails = Rails(size, group)
    count = rails.group_count

    def chunks_of(served: range) -> range:
        """Return the chunks of the shards of some neighbouring rails."""
        return range(served.start * count, served.stop * count)

    def all_reduce_on(rail: int) -> Rounds:
        """Yield the rounds of the rank in the ring all_reduce of one rail."""
        chunks = [(chunk,) for chunk in chunks_of(range(rail, rail + 1))]
        yield from rails.ring_between(rank, rail, chunks, reduces=True)
        yield from rails.ring_between(rank, rail, chunks)

    shards = [chunks_of(rails.rails_of(member)) for member in rails.members(rank)]
    yield from rails.ring_inside(rank, shards, reduces=True)
    yield from rails.take_turns(rank, all_reduce_on, 2 * (count - 1))
    yield from rails.ring_inside(rank, shards)
