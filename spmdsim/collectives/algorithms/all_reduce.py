"""all_reduce: every rank ends with the reduction of all vectors."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms.rank_arithmetic import Fold
from spmdsim.collectives.instructions import Instruction, Rounds, combine, copy, recv, recv_reduce, send
from spmdsim.errors import ScheduleError

INDEX_RULES = {"mpich": 1, "openmpi": 0}
"""How far behind its own number a rank starts to send; rank r ends the first half with chunk r or r + 1."""


@declare(
    "all_reduce",
    "ring",
    chunks="n",
    about="reduce_scatter, then all_gather, both around the ring",
    formula=Formula("2*(n-1)", "2*q", "q", "n-1"),
    symmetry="shift",
    libraries=(("mpich", "ring"), ("nccl", "ring")),
    in_order=False,
)
def ring(rank: int, size: int, index: str = "mpich") -> Rounds:
    """Ring with MPICH's index rule: step i sends chunk r-1-i; ``index="openmpi"`` sends chunk r-i."""
    if index not in INDEX_RULES:
        raise ScheduleError(f"unknown ring index rule {index!r}; known are 'mpich' and 'openmpi'")
    lag, right, left = INDEX_RULES[index], (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        chunk = rank - lag - i
        yield [send(right, chunk % size), recv_reduce(left, (chunk - 1) % size, left=True)]
    for i in range(size - 1):
        chunk = rank + 1 - lag - i
        yield [send(right, chunk % size), recv(left, (chunk - 1) % size)]


@declare(
    "all_reduce",
    "ring_openmpi",
    chunks="n",
    about="the ring with Open MPI's index rule: step i sends chunk r-i",
    formula=Formula("2*(n-1)", "2*q", "q", "n-1"),
    symmetry="shift",
    libraries=(("openmpi", "ring 4"),),
    in_order=False,
)
def ring_openmpi(rank: int, size: int) -> Rounds:
    """The ring, with Open MPI's index rule."""
    return ring(rank, size, index="openmpi")


@declare(
    "all_reduce",
    "segmented_ring",
    chunks=("n", "s"),
    about="the ring's reduce_scatter segment by segment, then its all_gather in whole blocks",
    formula=Formula("(s+1)*(n-1)", "2*q", "q", "n-1"),
    symmetry="shift",
    libraries=(("openmpi", "segmented_ring 5"),),
    in_order=False,
)
def segmented_ring(rank: int, size: int, segments: int = 2) -> Rounds:
    """Open MPI's segmented ring; block b has the chunks b*segments ... (b+1)*segments - 1."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for segment in range(segments):
        for i in range(size - 1):
            mine, theirs = (rank - i) % size, (rank - 1 - i) % size
            yield [
                send(right, mine * segments + segment),
                recv_reduce(left, theirs * segments + segment, left=True),
            ]
    for i in range(size - 1):
        mine, theirs = (rank + 1 - i) % size, (rank - i) % size
        yield [
            send(right, range(mine * segments, (mine + 1) * segments)),
            recv(left, range(theirs * segments, (theirs + 1) * segments)),
        ]


@declare(
    "all_reduce",
    "recursive_doubling",
    chunks="1",
    about="whole vectors exchanged with partners at distance 1, 2, 4, ...",
    formula=Formula("f + 2*x", "f + 2*x", "f + x", "c"),
    symmetry="n == p: xor",
    libraries=(("mpich", "recursive_doubling"), ("openmpi", "recursive_doubling 3")),
    in_order=True,
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Pairs fold first when the rank count is no power of two; the odd rank of a pair survives."""
    fold = Fold.of(size)
    if fold.extra:
        yield fold_in(rank, fold, range(1))
    for bit in range(fold.power.bit_length() - 1):
        if fold.survives(rank):
            partner = fold.old(fold.new(rank) ^ 1 << bit)
            yield [send(partner, 0), recv_reduce(partner, 0)]
        else:
            yield []
    if fold.extra:
        yield fold_out(rank, fold, range(1))


def fold_in(rank: int, fold: Fold, chunks: range) -> list[Instruction]:
    """The round in which the rank that drops out gives its vector to its neighbour."""
    if not fold.paired(rank):
        return []
    if fold.survives(rank):
        return [recv_reduce(rank ^ 1, chunks)]
    return [send(rank ^ 1, chunks)]


def fold_out(rank: int, fold: Fold, chunks: range) -> list[Instruction]:
    """The round in which the survivor gives the result back."""
    if not fold.paired(rank):
        return []
    return [send(rank ^ 1, chunks)] if fold.survives(rank) else [recv(rank ^ 1, chunks)]


def halving_range(new: int, steps: int, power: int) -> range:
    """The chunks survivor ``new`` still works on after ``steps`` halvings, distance 1 first."""
    start, length = 0, power
    for bit in range(steps):
        length //= 2
        start += length * (new >> bit & 1)
    return range(start, start + length)


def halve(rank: int, fold: Fold) -> Rounds:
    """reduce_scatter by recursive vector halving among the survivors, distance 1 first."""
    for bit in range(fold.power.bit_length() - 1):
        if not fold.survives(rank):
            yield []
            continue
        new = fold.new(rank)
        other = new ^ 1 << bit
        partner = fold.old(other)
        yield [
            send(partner, halving_range(other, bit + 1, fold.power)),
            recv_reduce(partner, halving_range(new, bit + 1, fold.power), left=True),
        ]


def double(rank: int, fold: Fold) -> Rounds:
    """all_gather that undoes :func:`halve`, in the reverse order of distances."""
    for bit in reversed(range(fold.power.bit_length() - 1)):
        if not fold.survives(rank):
            yield []
            continue
        new = fold.new(rank)
        other = new ^ 1 << bit
        partner = fold.old(other)
        yield [
            send(partner, halving_range(new, bit + 1, fold.power)),
            recv(partner, halving_range(other, bit + 1, fold.power)),
        ]


@declare(
    "all_reduce",
    "rabenseifner",
    chunks="p",
    about="recursive halving (distance 1 first), then recursive doubling back; MPICH's fold",
    formula=Formula("2*f + 2*x", "2*qp + 2*x", "qp + x", "c"),
    symmetry="n == p: xor",
    libraries=(("mpich", "reduce_scatter_allgather"),),
    in_order=False,
)
def rabenseifner(rank: int, size: int) -> Rounds:
    """Rabenseifner's algorithm; MPICH folds with the whole vector, the odd rank survives."""
    fold = Fold.of(size)
    everything = range(fold.power)
    if fold.extra:
        yield fold_in(rank, fold, everything)
    yield from halve(rank, fold)
    yield from double(rank, fold)
    if fold.extra:
        yield fold_out(rank, fold, everything)


@declare(
    "all_reduce",
    "rabenseifner_half_fold",
    chunks="p",
    about="Rabenseifner with Open MPI's fold: pairs exchange halves, the even rank survives",
    formula=Formula("2*f + 3*x", "2*qp + 2*x", "qp + x/2", "c"),
    symmetry="n == p: xor",
    libraries=(("openmpi", "rabenseifner 6"),),
    in_order=False,
)
def rabenseifner_half_fold(rank: int, size: int) -> Rounds:
    """Rabenseifner's algorithm; paired ranks reduce half a vector each before the odd one drops out."""
    fold = Fold.of(size, survivor=0)
    lower, upper = range(fold.power // 2), range(fold.power // 2, fold.power)
    if fold.extra:
        mine, theirs = (lower, upper) if rank % 2 == 0 else (upper, lower)
        paired = fold.paired(rank)
        yield [send(rank ^ 1, theirs), recv_reduce(rank ^ 1, mine, left=True)] if paired else []
        give = [recv(rank ^ 1, upper)] if rank % 2 == 0 else [send(rank ^ 1, upper)]
        yield give if paired else []
    yield from halve(rank, fold)
    yield from double(rank, fold)
    if fold.extra:
        yield fold_out(rank, fold, range(fold.power))


@declare(
    "all_reduce",
    "all_gather_reduce",
    chunks="1",
    about="all vectors to all ranks, each then reduces them in rank order",
    formula=Formula("n-1", "n-1", "n-1", "n-1"),
    symmetry="shift",
    libraries=(("openmpi", "allgather_reduce 7"),),
    in_order=True,
)
def all_gather_reduce(rank: int, size: int) -> Rounds:
    """Rank j's vector is kept in scratch chunk 1 + j until all are there."""
    for i in range(1, size):
        yield [send((rank + i) % size, 0), recv((rank - i) % size, 1 + (rank - i) % size)]
    if size > 1:
        keep = [copy(0, 1 + rank), copy(1, 0)]
        yield keep + [combine(1 + j, 0, left=False) for j in range(1, size)]
