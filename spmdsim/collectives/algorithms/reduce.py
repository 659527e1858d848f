"""reduce: the root ends with the reduction of all vectors."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms.broadcast import renamed
from spmdsim.collectives.algorithms.rank_arithmetic import Fold, doublings
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, recv_reduce, send


@declare(
    "reduce",
    "linear",
    chunks="1",
    about="the root receives from one rank after another, in an order that keeps the ranks in order",
    formula=Formula("n-1", "n-1", "n-1", "n-1"),
    libraries=(("openmpi", "linear basic_linear 1"),),
    in_order=True,
)
def linear(rank: int, size: int, root: int = 0) -> Rounds:
    """The root takes its lower neighbours from near to far, then its upper ones."""
    order = [*reversed(range(root)), *range(root + 1, size)]
    for source in order:
        if rank == root:
            yield [recv_reduce(source, 0)]
        else:
            yield [send(root, 0)] if rank == source else []


def binomial_of(rank: int, size: int, chunks: Chunks, root: int = 0) -> Rounds:
    """The binomial reduction of any chunks."""
    v = (rank - root) % size
    for mask in doublings(size):
        if v % (2 * mask) == 0 and v + mask < size:
            yield [recv_reduce((v + mask + root) % size, chunks, left=False)]
        elif v % (2 * mask) == mask:
            yield [send((v - mask + root) % size, chunks)]
        else:
            yield []


@declare(
    "reduce",
    "binomial",
    chunks="1",
    about="half of the ranks that still have a partial sum send it on, nearest first",
    formula=Formula("c", "c", "c", "c"),
    libraries=(("mpich", "binomial"), ("openmpi", "binomial 5")),
    in_order=True,
)
def binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """Counted from the root, so it keeps the order of the ranks for root 0 only."""
    return binomial_of(rank, size, range(1), root)


@declare(
    "reduce",
    "binomial_in_order",
    chunks="1",
    about="binomial reduction to rank 0, then one message to the root; keeps the order for every root",
    formula=Formula("c + r", "c + r", "c", "c"),
    in_order=True,
)
def binomial_in_order(rank: int, size: int, root: int = 0) -> Rounds:
    """What MPICH does for non-commutative operators."""
    yield from binomial(rank, size)
    if root:
        yield [send(root, 0)] if rank == 0 else [recv(0, 0)] if rank == root else []


@declare(
    "reduce",
    "knomial",
    chunks="1",
    about="a tree whose ranks receive from radix-1 others per level, one after another",
    libraries=(("openmpi", "knomial 8"),),
    in_order=True,
)
def knomial(rank: int, size: int, root: int = 0, radix: int = 4) -> Rounds:
    """With radix 2 the binomial tree; keeps the order of the ranks for root 0 only."""
    v = (rank - root) % size
    mask = 1
    while mask < size:
        for digit in range(1, radix):
            if v % (radix * mask) == 0 and v + digit * mask < size:
                yield [recv_reduce((v + digit * mask + root) % size, 0, left=False)]
            elif v % (radix * mask) == digit * mask:
                yield [send((v - digit * mask + root) % size, 0)]
            else:
                yield []
        mask *= radix


@declare(
    "reduce",
    "chain",
    chunks="1",
    about="the partial sum travels along a chain to the root",
    formula=Formula("n-1", "n-1", "n-1", "n-1"),
    libraries=(("openmpi", "chain 2"),),
    in_order=True,
)
def chain(rank: int, size: int, root: int = 0) -> Rounds:
    """The pipelined chain with a single segment."""
    return pipelined_chain(rank, size, root, segments=1)


@declare(
    "reduce",
    "pipelined_chain",
    chunks="s",
    about="segments follow one another along a chain to the root",
    formula=Formula(
        "(n-2+s if n > 1 else 0)",
        "((n-2+s)/s if n > 1 else 0)",
        "((n-2+s)/s if n > 1 else 0)",
        "n-1",
    ),
    libraries=(("openmpi", "pipeline 3"),),
    in_order=True,
)
def pipelined_chain(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """The farthest rank starts; at time t the rank d hops from it sends segment t - d."""
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


@declare(
    "reduce",
    "binary_tree",
    chunks="1",
    about="up a binary tree whose subtrees are runs of ranks; keeps the order of the ranks",
    libraries=(("openmpi", "in_order_binary 6"),),
    in_order=True,
)
def binary_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Each run's middle rank joins the runs to its left and right; one last message to the root if need be."""
    top = size // 2
    for level in reversed(range((size).bit_length())):
        first, second = _join(rank, size, level, left=True), _join(rank, size, level, left=False)
        yield first
        yield second
    if root != top:
        yield [send(root, 0)] if rank == top else [recv(top, 0)] if rank == root else []


def _run_of(rank: int, size: int, level: int) -> tuple[int, int, int] | None:
    """The run at depth ``level`` that the rank is the middle of: ``(start, middle, stop)``; None if it is not."""
    start, stop = 0, size
    for depth in range(level + 1):
        middle = (start + stop) // 2
        if rank == middle:
            return (start, middle, stop) if depth == level else None
        start, stop = (start, middle) if rank < middle else (middle + 1, stop)
    return None


def _join(rank: int, size: int, level: int, left: bool) -> list[Instruction]:
    """Messages from the middles of depth level + 1 to those of depth ``level``, left or right children."""
    run = _run_of(rank, size, level)
    if run:
        start, middle, stop = run
        low, high = (start, middle) if left else (middle + 1, stop)
        return [recv_reduce((low + high) // 2, 0)] if low < high else []
    below = _run_of(rank, size, level + 1)
    if below:
        parent = _parent_middle(rank, size)
        return [send(parent, 0)] if (rank < parent) == left else []
    return []


def _parent_middle(rank: int, size: int) -> int:
    start, stop, parent = 0, size, rank
    while True:
        middle = (start + stop) // 2
        if rank == middle:
            return parent
        parent = middle
        start, stop = (start, middle) if rank < middle else (middle + 1, stop)


@declare(
    "reduce",
    "binary_levels",
    chunks="1",
    about="up a binary tree numbered level by level: rank r of level l has the children r + 2^l and r + 2^(l+1)",
    libraries=(("openmpi", "binary 4"),),
    in_order=False,
)
def binary_levels(rank: int, size: int, root: int = 0) -> Rounds:
    """Ranks are counted from the root; level l has the ranks from 2^l - 1 on, first children report first."""
    v = (rank - root) % size
    level = (v + 1).bit_length() - 1
    for l in reversed(range(size.bit_length() - 1)):
        for child in (1, 2):
            step = child << l
            if level == l and v + step < size:
                yield [recv_reduce((v + step + root) % size, 0, left=False)]
            elif level == l + 1 and (v - (1 << level) + 1 >= 1 << l) == (child == 2):
                yield [send((v - step + root) % size, 0)]
            else:
                yield []


@declare(
    "reduce",
    "rabenseifner",
    chunks="p",
    about="recursive halving (distance 1 first), then a binomial gather of the blocks",
    formula=Formula("2*f + x", "2*qp + x", "qp + x", "c"),
    libraries=(("mpich", "reduce_scatter_gather"), ("openmpi", "rabenseifner 7")),
    in_order=False,
)
def rabenseifner(rank: int, size: int, root: int = 0) -> Rounds:
    """Ranks are counted from the root; the even rank of a folded pair survives."""
    return renamed(_rabenseifner((rank - root) % size, size), size, root)


def _rabenseifner(rank: int, size: int) -> Rounds:
    from spmdsim.collectives.algorithms.all_reduce import fold_in, halve, halving_range

    fold = Fold.of(size, survivor=0)
    if fold.extra:
        yield fold_in(rank, fold, range(fold.power))
    yield from halve(rank, fold)
    for bit in reversed(range(fold.power.bit_length() - 1)):
        new = fold.new(rank)
        if not fold.survives(rank) or new >> bit + 1:
            yield []
            continue
        partner = fold.old(new ^ 1 << bit)
        kept = halving_range(max(new, new ^ 1 << bit), bit + 1, fold.power)
        yield [send(partner, kept)] if new >> bit & 1 else [recv(partner, kept)]
