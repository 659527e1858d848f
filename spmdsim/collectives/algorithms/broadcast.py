"""broadcast: every rank ends with the root's vector. Ranks are counted from the root, ``v = (rank - root) % size``."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import all_gather, negabinary
from spmdsim.collectives.algorithms.rails import Rails, pad_rounds, rename
from spmdsim.collectives.algorithms.rank_arithmetic import Fold, star_rounds, tree_rounds
from spmdsim.collectives.instructions import Rounds, recv, send


def count_from_root(rounds: Rounds, size: int, root: int) -> Rounds:
    """Yield rounds that are written for root 0 with other peers, so that they serve any root.

    Each peer becomes ``(peer + root) % size``. Local instructions and chunks stay.

    Args:
        rounds: the rounds of rank ``(rank - root) % size`` for root 0.
        size: the number of ranks.
        root: the root.
    """
    if root == 0:
        yield from rounds
        return
    for moves in rounds:
        yield [move if move.peer < 0 else move._replace(peer=(move.peer + root) % size) for move in moves]


@built_in("broadcast", "1", Formula("n-1", "n-1"), openmpi="basic_linear linear 1")
def linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Send from the root to one rank after another.

    Round i: the root sends to root + i.
    """
    others = ((root + i) % size for i in range(1, size))
    return star_rounds(rank, root, others, lambda peer: send(peer, 0), recv(root, 0))


@built_in("broadcast", "1", Formula("c", "c"), mpich="binomial", openmpi="binomial 6")
def binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """Double the number of ranks that have the vector in each round, farthest first.

    Distances go from high to low; a rank with the vector sends to v + distance.
    """
    return knomial(rank, size, root, radix=2)


@built_in("broadcast", "1", Formula("c", "c"), source="arXiv 2508.17311")
def bine_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Send down a tree at distances ..., 11, 5, 3, 1, 1 to both sides of the root (Bine).

    Yields the rounds (lists of instructions) of a rank.
    In each round the ranks that have the vector send it. The vector is
    one chunk. If the rank count is no power of two, the first ranks form pairs, of which the even rank sends the vector to
    the odd one at the end.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
    """
    v, fold = (rank - root) % size, Fold.of(size, survivor=0)

    def rounds() -> Rounds:
        """Yield the rounds as counted from the root."""
        yield from negabinary.tree_down(
            v, fold, lambda child, *_: [send(child, 0)], lambda parent, *_: [recv(parent, 0)]
        )
        yield from fold.pair_round(v, [send(v ^ 1, 0)], [recv(v ^ 1, 0)])

    return count_from_root(rounds(), size, root)


@built_in("broadcast", "1", openmpi="knomial 7")
def knomial(rank: int, size: int, root: int = 0, radix: int = 4) -> Rounds:
    """Send down a tree in which a rank sends to radix-1 children per level, one after another.

    Returns the rounds (lists of instructions) of a rank. The vector is one chunk. With radix 2 it is the binomial
    tree.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
        radix: 2 or more.
    """
    return tree_rounds(
        (rank - root) % size,
        size,
        lambda child, _: send((child + root) % size, 0),
        lambda parent, _: recv((parent + root) % size, 0),
        radix,
        down=True,
    )


@built_in("broadcast", "1", Formula("n-1", "n-1"), openmpi="chain 2")
def chain(rank: int, size: int, root: int = 0) -> Rounds:
    """Send from rank to rank along a chain.

    This is the pipelined chain with a single segment.
    """
    return pipelined_chain(rank, size, root, segments=1)


@built_in(
    "broadcast", "s", Formula("(n-2+s if n > 1 else 0)", "((n-2+s)/s if n > 1 else 0)"), openmpi="pipeline 3"
)
def pipelined_chain(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """Send segments of the vector one after another along a chain of ranks.

    Yields the ``size - 2 + segments`` rounds (lists of instructions) of a rank; none for one rank. In round t,
    from 0, the rank at distance v from the root sends segment t - v to the next one, and receives segment t - v +
    1. A rank that waits yields an empty list. A segment is a chunk.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
        segments: the number of segments.
    """
    v = (rank - root) % size
    if size == 1:
        return
    for t in range(size - 2 + segments):
        moves = []
        if v + 1 < size and 0 <= t - v < segments:
            moves.append(send((rank + 1) % size, t - v))
        if v > 0 and 0 <= t - v + 1 < segments:
            moves.append(recv((rank - 1) % size, t - v + 1))
        yield moves


@built_in("broadcast", "1", openmpi="binary_tree binary 5 split_binary_tree 4")
def binary_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Send down a binary tree, first to one child, then to the other.

    Yields the rounds (lists of instructions) of a rank; all ranks have equally many. With ranks counted from the
    root, the children of v are 2v+1 and 2v+2. A rank at depth d gets the vector in round 2d at the latest. The
    vector is one chunk.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
    """
    v = (rank - root) % size
    arrival = _arrival_round(v)
    for t in range(1, 2 * size.bit_length() - 1):
        child_number = t - arrival  # The first two rounds after the arrival serve children 1 and 2.
        child = 2 * v + child_number
        if child_number == 0:
            yield [recv(((v - 1) // 2 + root) % size, 0)]
        elif child_number in (1, 2) and child < size:
            yield [send((child + root) % size, 0)]
        else:
            yield []


def _arrival_round(v: int) -> int:
    """Return the round of :func:`binary_tree` that brings the vector to a rank, counted from 1.

    The root has 0. The first child of a rank gets the vector one round before the second.

    >>> [_arrival_round(v) for v in range(5)]
    [0, 1, 2, 2, 3]
    """
    rounds = 0
    while v:
        rounds += 2 - v % 2
        v = (v - 1) // 2
    return rounds


def binomial_scatter(v: int, size: int) -> Rounds:
    """Yield rounds that send blocks from the root to their owners down the binomial tree.

    A message has the blocks of the receiver and of all ranks below it in the tree. Block b is chunk b, and
    belongs to the rank at distance b from the root. Peers are counted from the root; see :func:`count_from_root`.

    Args:
        v: the rank as counted from the root, whose rounds are yielded.
        size: the number of ranks, and of blocks.
    """
    return tree_rounds(
        v,
        size,
        lambda child, mask: send(child, range(child, min(child + mask, size))),
        lambda parent, mask: recv(parent, range(v, min(v + mask, size))),
        down=True,
    )


@built_in(
    "broadcast",
    "n",
    Formula("(c + n-1 if n > 1 else 0)", "2*q"),
    mpich="scatter_ring_allgather",
    openmpi="scatter_allgather_ring 9",
)
def scatter_ring(rank: int, size: int, root: int = 0) -> Rounds:
    """Binomial scatter of n blocks, then a ring all_gather.

    This is van de Geijn's broadcast for long vectors.
    """
    v = (rank - root) % size
    yield from count_from_root(binomial_scatter(v, size), size, root)
    yield from count_from_root(all_gather.ring(v, size), size, root)


@built_in(
    "broadcast",
    "n",
    Formula("2*f", "2*q", only="n == p"),
    mpich="scatter_recursive_doubling_allgather",
    openmpi="scatter_allgather 8",
)
def scatter_recursive_doubling(rank: int, size: int, root: int = 0) -> Rounds:
    """Binomial scatter of n blocks, then a recursive doubling all_gather.

    Libraries use it for vectors of middle length.
    """
    v = (rank - root) % size
    yield from count_from_root(binomial_scatter(v, size), size, root)
    yield from count_from_root(all_gather.recursive_doubling(v, size), size, root)


@built_in("broadcast", "1", Formula("cg + fh + xh", "cg + fh + xh", only="n % g == 0"))
def hierarchical_leader(rank: int, size: int, root: int = 0, group: int = 2) -> Rounds:
    """Send to one rank of each group, then in each group, both along binomial trees.

    A group is ``group`` consecutive ranks; the last one may be smaller. Its first rank is its leader, but the root leads
    its own group. The vector is one chunk, and enters each group once.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
        group: the number of ranks of a group.
    """
    leaders = list(range(0, size, group))
    leaders[root // group] = root
    members, leader = Rails(size, group).members(rank), leaders[rank // group]
    between = binomial(rank // group, len(leaders), root // group) if rank == leader else iter(())
    inside = binomial(rank - members.start, len(members), leader - members.start)
    yield from pad_rounds(rename(between, leaders), (len(leaders) - 1).bit_length())
    yield from rename(inside, members)


@built_in(
    "broadcast",
    ("g", "h"),
    Formula("cg + fh + xh + h-1 + g-1", "2*(g-1)/g + 2*(h-1)/(h*g)", only="n % g == 0"),
)
def two_level_scatter_ring(rank: int, size: int, root: int = 0, group: int = 2) -> Rounds:
    """Scatter in the root's group, broadcast each shard to the other groups, then gather in each group.

    The vector has a shard for each of ``group`` places in a group. Local rank i of the root's group gets shard i, and
    broadcasts it on rail i, which connects the local ranks i, by :func:`scatter_ring`. Then a ring in each group gathers
    the shards. With h groups, shard i has the chunks ``i * h`` to ``(i + 1) * h - 1``. If the last group is smaller, its
    ranks serve several rails each, one after the other.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
        group: the number of ranks of a group, and of shards.
    """
    rails, root_group = Rails(size, group), root // group
    members, count = rails.members(rank), rails.group_count
    shards = [range(served.start * count, served.stop * count) for served in map(rails.rails_of, members)]

    def scatter() -> Rounds:
        """Yield the rounds in the root's group, whose ranks are counted from the root."""
        ranks = [*range(root, members.stop), *range(members.start, root)]
        shards_from_root = [shards[member - members.start] for member in ranks]
        return rename(binomial_scatter(ranks.index(rank), len(ranks)), ranks, shards_from_root)

    def broadcast_on(rail: int) -> Rounds:
        """Yield the rounds on a rail."""
        chunks = [(rail * count + chunk,) for chunk in range(count)]
        return rename(scatter_ring(rank // group, count, root_group), rails.ranks_on(rail), chunks)

    scatter_rounds = (len(rails.members(root)) - 1).bit_length()
    yield from pad_rounds(scatter() if root in members else iter(()), scatter_rounds)
    yield from rails.take_turns(rank, broadcast_on, (count - 1).bit_length() + count - 1)
    yield from rails.ring_inside(rank, shards)
