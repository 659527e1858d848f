"""reduce: the root ends with the reduction of all vectors."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import broadcast
from spmdsim.collectives.algorithms.broadcast import count_from_root
from spmdsim.collectives.algorithms.halving import fold_in, halve, halving_range
from spmdsim.collectives.algorithms.rank_arithmetic import (
    Fold,
    doublings,
    reduce_backwards,
    star_rounds,
    tree_rounds,
)
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, recv_reduce, send


@built_in("reduce", "1", Formula("n-1", "n-1", "n-1", "n-1"), in_order=True, openmpi="linear basic_linear 1")
def linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Receive at the root from one rank after another; keep the order of the ranks.

    The root receives from its lower neighbours from near to far, then from its upper ones. Yields the ``size - 1``
    rounds (lists of instructions) of ``rank``.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    order = [*reversed(range(root)), *range(root + 1, size)]
    return star_rounds(rank, root, order, lambda source: recv_reduce(source, 0), send(root, 0))


def tree_reduction(rank: int, size: int, chunks: int | Chunks, root: int = 0, radix: int = 2) -> Rounds:
    """Yield the rounds of a rank in a reduction up a tree to ``root``; see :func:`tree_rounds`.

    A received value is the right operand. Ranks are counted from the root in the tree, so the operands are in
    rank order for root 0 only.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        chunks: the chunks that are reduced, all in each message.
        root: the rank of the result.
        radix: a parent receives from radix-1 children per level; 2 gives the binomial tree.
    """
    return tree_rounds(
        (rank - root) % size,
        size,
        lambda child, _: recv_reduce((child + root) % size, chunks, left=False),
        lambda parent, _: send((parent + root) % size, chunks),
        radix,
    )


@built_in("reduce", "1", Formula("c", "c", "c", "c"), in_order=True, mpich="binomial", openmpi="binomial 5")
def binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """Send partial sums up a binomial tree to the root, between nearest ranks first.

    In each round, half of the ranks that still have a partial sum send it to another one. Ranks are counted from the
    root, so the order of the ranks is kept for root 0 only.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    return tree_reduction(rank, size, range(1), root)


@built_in("reduce", "1", Formula("c + r", "c + r", "c", "c"), in_order=True)
def binomial_in_order(rank: int, size: int, root: int = 0) -> Rounds:
    """Reduce up a binomial tree to rank 0, then send the result to the root.

    The order of the ranks is kept for every root. The last round is left out for root 0. MPICH uses this algorithm for
    non-commutative operators.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    yield from binomial(rank, size)
    if root:
        yield [send(root, 0)] if rank == 0 else [recv(0, 0)] if rank == root else []


@built_in("reduce", "1", in_order=True, openmpi="knomial 8")
def knomial(rank: int, size: int, root: int = 0, radix: int = 4) -> Rounds:
    """Send up a tree whose ranks receive from radix - 1 others per level, one after another.

    With radix 2 it is the binomial tree. It keeps the order of the ranks for root 0 only.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
        radix: a parent receives from ``radix - 1`` children per level.
    """
    return tree_reduction(rank, size, 0, root, radix)


@built_in("reduce", "1", Formula("n-1", "n-1", "n-1", "n-1"), in_order=True, openmpi="chain 2")
def chain(rank: int, size: int, root: int = 0) -> Rounds:
    """Send the partial sum along a chain to the root.

    This is the pipelined chain with a single segment.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    return pipelined_chain(rank, size, root, segments=1)


@built_in(
    "reduce",
    "s",
    Formula("(n-2+s if n > 1 else 0)", "((n-2+s)/s if n > 1 else 0)", "((n-2+s)/s if n > 1 else 0)", "n-1"),
    in_order=True,
    openmpi="pipeline 3",
)
def pipelined_chain(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """Send segments one after another along a chain to the root; each rank adds its own.

    Yields the ``size - 2 + segments`` rounds (lists of instructions) of a rank; none for one rank. The farthest
    rank starts. In round t, from 0, the rank at distance d from it sends segment t - d to the next one, and
    receives segment t - d + 1. A rank that waits yields an empty list. A segment is a chunk.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result; the chain is root + size - 1, ..., root + 1, root, modulo ``size``.
        segments: the number of segments.
    """
    hops = (size - 1) - (rank - root) % size
    if size == 1:
        return
    for t in range(size - 2 + segments):
        moves = []
        if rank != root and 0 <= t - hops < segments:
            moves.append(send((rank - 1) % size, t - hops))
        if hops > 0 and 0 <= t - hops + 1 < segments:
            moves.append(recv_reduce((rank + 1) % size, t - hops + 1, left=False))
        yield moves


@built_in("reduce", "1", in_order=True, openmpi="in_order_binary 6")
def binary_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Reduce up a binary tree of runs of consecutive ranks, in the order of the ranks.

    The parent of a run is its middle rank; of all ranks it is ``size // 2``. It receives the result of the run's
    lower ranks in one round, and of its higher ranks in the next one.

    Yields the rounds (lists of instructions) of ``rank``; [] if it does nothing in a round. Each depth that has
    children takes two rounds, the deepest parents first. If the top of the tree is not the root, it sends the
    result to the root in one more round. The result is in chunk 0. One rank has no rounds.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.

    >>> [len(list(binary_tree(0, size))) for size in (1, 2, 3, 4, 8)]
    [0, 3, 3, 5, 7]
    >>> all(any(round) for round in zip(*(binary_tree(rank, 6) for rank in range(6))))
    True
    """
    top = size // 2
    for level in reversed(range(size.bit_length() - 1)):  # ranks of the last depth have no children
        yield _join_children(rank, size, level, left=True)
        yield _join_children(rank, size, level, left=False)
    if root != top:
        yield [send(root, 0)] if rank == top else [recv(top, 0)] if rank == root else []


def _runs_around(rank: int, size: int) -> list[tuple[int, int, int]]:
    """Return the runs ``(start, middle, stop)`` around a rank, from all ranks down to its own.

    A run of ranks from ``start`` to ``stop - 1`` is halved at its middle rank, which is the parent of the middles
    of both halves. The rank itself is the middle of the last run.

    Args:
        rank: the rank, from 0 to ``size - 1``.
        size: the number of ranks.

    >>> _runs_around(1, 6)
    [(0, 3, 6), (0, 1, 3)]
    """
    start, stop, runs = 0, size, list[tuple[int, int, int]]()
    while True:
        middle = (start + stop) // 2
        runs.append((start, middle, stop))
        if rank == middle:
            return runs
        start, stop = (start, middle) if rank < middle else (middle + 1, stop)


def _join_children(rank: int, size: int, level: int, left: bool) -> list[Instruction]:
    """Return a rank's messages in the round in which depth ``level`` receives from children.

    * A rank of this depth receives and reduces, if it has this child.
    * A rank of the next depth sends, if it is this child.
    * Other ranks have no messages: [].
    """
    *above, (start, middle, stop) = _runs_around(rank, size)
    if len(above) == level:
        low, high = (start, middle) if left else (middle + 1, stop)
        return [recv_reduce((low + high) // 2, 0)] if low < high else []
    if len(above) == level + 1:
        parent = above[-1][1]
        return [send(parent, 0)] if (rank < parent) == left else []
    return []


@built_in("reduce", "1", in_order=False, openmpi="binary 4")
def binary_levels(rank: int, size: int, root: int = 0) -> Rounds:
    """Send partial sums up a binary tree whose ranks are numbered level by level.

    Ranks are counted from the root; level l has the ranks from 2^l - 1 on: rank 0, ranks 1 and 2, ranks 3 to 6, and so
    on. Rank r of level l has the children r + 2^l and r + 2^(l+1): rank 1 has 3 and 5, rank 2 has 4 and 6. There are
    two rounds per level that has children, the deepest level first. In the first of them the first children send, in
    the second one the second children. The order of the ranks is not kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    v = (rank - root) % size
    level = (v + 1).bit_length() - 1
    position = v - ((1 << level) - 1)  # in its level
    for parent_level in reversed(range(size.bit_length() - 1)):
        width = 1 << parent_level
        for child in (1, 2):
            step = child * width
            is_this_child = level == parent_level + 1 and (position >= width) == (child == 2)
            if level == parent_level and v + step < size:
                yield [recv_reduce((v + step + root) % size, 0, left=False)]
            elif is_this_child:
                yield [send((v - step + root) % size, 0)]
            else:
                yield []


@built_in(
    "reduce",
    "p",
    Formula("2*f + x", "2*qp + x", "qp + x", "c"),
    in_order=False,
    mpich="reduce_scatter_gather",
    openmpi="rabenseifner 7",
)
def rabenseifner(rank: int, size: int, root: int = 0) -> Rounds:
    """Halve the vectors recursively, at distance 1 first; then gather the blocks at the root.

    The gather goes up a binomial tree. Ranks are counted from the root. The even rank of a folded pair
    takes part for both ranks.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    return count_from_root(_rabenseifner((rank - root) % size, size), size, root)


def _rabenseifner(rank: int, size: int) -> Rounds:
    """Yield the rounds of Rabenseifner's reduce to rank 0: halving, then a binomial gather.

    The number of chunks is the largest power of two up to the number of ranks. If there are more ranks, the first ones
    form pairs: the odd rank sends its vector to the even one and idles. In halving, two partners swap and reduce
    halves of what they have, until each has one reduced chunk. The gather collects them. On 4 ranks, rank 0 gets chunk
    1 from rank 2, then chunks 2 and 3 from rank 1.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
    """
    fold = Fold.of(size, survivor=0)

    def collect(peer: int, new: int, peer_new: int, distance: int) -> list[Instruction]:
        if new >= 2 * distance:
            return []
        gathered = halving_range(max(new, peer_new), distance.bit_length(), fold.power)
        return [send(peer, gathered)] if new & distance else [recv(peer, gathered)]

    yield from fold_in(rank, fold, range(fold.power))
    yield from halve(rank, fold)
    yield from fold.meetings(rank, reversed(list(doublings(fold.power))), collect)


@built_in("reduce", "1", Formula("c", "c", "c", "c"), in_order=False, source="arXiv 2508.17311")
def bine_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Send partial sums up a tree at distances 1, 1, 3, 5, 11, ... (Bine).

    Yields the rounds (lists of instructions) of a rank:
    those of broadcast's tree in reverse. The order of the operands is
    not kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
    """
    return reduce_backwards(broadcast.bine_tree(rank, size, root))
