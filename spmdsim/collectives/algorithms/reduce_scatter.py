"""reduce_scatter: rank r ends with block r of the reduction of all vectors."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms import gather_scatter, reduce
from spmdsim.collectives.algorithms.all_reduce import fold_in
from spmdsim.collectives.algorithms.rank_arithmetic import Fold
from spmdsim.collectives.instructions import Instruction, Rounds, recv, recv_reduce, send


@declare(
    "reduce_scatter",
    "ring",
    chunks="n",
    about="partial sums travel around the ring; each stops at its owner",
    formula=Formula("n-1", "q", "q", "n-1"),
    symmetry="shift",
    libraries=(("openmpi", "ring 3"), ("nccl", "ring")),
    in_order=False,
)
def ring(rank: int, size: int) -> Rounds:
    """Step i sends the partial sum of chunk r-1-i to the right."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [
            send(right, (rank - 1 - i) % size),
            recv_reduce(left, (rank - 2 - i) % size, left=True),
        ]


@declare(
    "reduce_scatter",
    "pairwise",
    chunks="n",
    about="each block goes straight to its owner, one partner per round",
    formula=Formula("n-1", "q", "q", "n-1"),
    symmetry="shift",
    libraries=(("mpich", "pairwise"),),
    in_order=False,
)
def pairwise(rank: int, size: int) -> Rounds:
    """Round i sends the original block r+i to its owner and adds what arrives from r-i."""
    for i in range(1, size):
        to = (rank + i) % size
        yield [send(to, to), recv_reduce((rank - i) % size, rank, left=True)]


def _hand_back(rank: int, fold: Fold) -> list[Instruction]:
    """The round in which a survivor gives its dropped neighbour the neighbour's own block."""
    if not fold.paired(rank):
        return []
    return [send(rank ^ 1, rank ^ 1)] if fold.survives(rank) else [recv(rank ^ 1, rank)]


@declare(
    "reduce_scatter",
    "recursive_halving",
    chunks="n",
    about="send the half on the partner's side, farthest partner first",
    formula=Formula("f", "q", "q", "c", only="n == p"),
    symmetry="n == p: xor",
    libraries=(("mpich", "recursive_halving"), ("openmpi", "recursive_halving 2")),
    in_order=False,
)
def recursive_halving(rank: int, size: int) -> Rounds:
    """Distance p/2 first; with a fold, survivors carry two blocks and give one back at the end."""
    fold = Fold.of(size)
    if fold.extra:
        yield fold_in(rank, fold, range(size))
    first, stop = 0, fold.power
    while stop - first > 1:
        half = (stop - first) // 2
        if fold.survives(rank):
            new, middle = fold.new(rank), first + half
            other = new ^ half
            low, high = fold.blocks(first, middle), fold.blocks(middle, stop)
            keep, give = (low, high) if new < middle else (high, low)
            yield [send(fold.old(other), give), recv_reduce(fold.old(other), keep, left=True)]
            first, stop = (first, middle) if new < middle else (middle, stop)
        else:
            yield []
            stop = first + half
    if fold.extra:
        yield _hand_back(rank, fold)


@declare(
    "reduce_scatter",
    "butterfly",
    chunks="n",
    about="halving with distance 1 first on blocks in bit-reversed order; keeps the order of the ranks",
    formula=Formula("f", "q", "q", "c", only="n == p"),
    symmetry="n == p: xor",
    libraries=(("mpich", "noncommutative"), ("openmpi", "butterfly 4")),
    in_order=True,
)
def butterfly(rank: int, size: int) -> Rounds:
    """Traff's butterfly: before step j a survivor works on blocks that agree with it in j low bits."""
    fold = Fold.of(size)
    if fold.extra:
        yield fold_in(rank, fold, range(size))
    for bit in range(fold.power.bit_length() - 1):
        if fold.survives(rank):
            new = fold.new(rank)
            other = new ^ 1 << bit
            give, keep = (_strided(fold, owner, 2 << bit) for owner in (other, new))
            yield [send(fold.old(other), give), recv_reduce(fold.old(other), keep)]
        else:
            yield []
    if fold.extra:
        yield _hand_back(rank, fold)


def _strided(fold: Fold, owner: int, stride: int) -> range | tuple[int, ...]:
    """The blocks of all survivors that agree with ``owner`` modulo ``stride``."""
    if not fold.extra:
        return range(owner % stride, fold.power, stride)
    news = range(owner % stride, fold.power, stride)
    return tuple(block for new in news for block in fold.blocks(new))


@declare(
    "reduce_scatter",
    "recursive_doubling",
    chunks="n",
    about="exchange all blocks outside the own group of 1, 2, 4, ... ranks; keeps the order of the ranks",
    formula=Formula("f", "f - q", "f - q", "c", only="n == p"),
    symmetry="n == p: xor",
    libraries=(("mpich", "recursive_doubling"),),
    in_order=True,
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Before step j a survivor has partial sums over its aligned group of 2**j survivors."""
    fold = Fold.of(size)
    if fold.extra:
        yield fold_in(rank, fold, range(size))
    for bit in range(fold.power.bit_length() - 1):
        if fold.survives(rank):
            new = fold.new(rank)
            other = new ^ 1 << bit
            give, keep = (_outside(fold, member >> bit << bit, 1 << bit) for member in (new, other))
            yield [send(fold.old(other), give), recv_reduce(fold.old(other), keep)]
        else:
            yield []
    if fold.extra:
        yield _hand_back(rank, fold)


def _outside(fold: Fold, first: int, count: int) -> tuple[int, ...]:
    """All blocks but those of survivors ``first`` ... ``first + count - 1``."""
    return (*fold.blocks(0, first), *fold.blocks(first + count, fold.power))


@declare(
    "reduce_scatter",
    "reduce_scatterv",
    chunks="n",
    about="binomial reduce to rank 0, then a linear scatter",
    formula=Formula("c + n-1", "c + q", "c", "c"),
    libraries=(("openmpi", "non_overlapping 1"),),
    in_order=True,
)
def reduce_scatterv(rank: int, size: int) -> Rounds:
    """Works for any operator; slow for long vectors."""
    yield from reduce.binomial_of(rank, size, range(size))
    yield from gather_scatter.scatter_linear(rank, size)
