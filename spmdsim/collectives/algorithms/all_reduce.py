"""all_reduce: every rank ends with the reduction of all vectors."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import Fold, doublings, ring_rounds
from spmdsim.collectives.instructions import Instruction, Rounds, combine, copy, recv, recv_reduce, send
from spmdsim.errors import ScheduleError

INDEX_RULES = {"mpich": 1, "openmpi": 0}
"""How far behind its own number a rank starts to send; rank r ends the first half with chunk r or r + 1."""


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
    """Reduce_scatter, then all_gather, both around the ring."""
    # Ring with MPICH's index rule: step i sends chunk r-1-i; ``index="openmpi"`` sends chunk r-i.
    if index not in INDEX_RULES:
        raise ScheduleError(f"unknown ring index rule {index!r}; known are 'mpich' and 'openmpi'")
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
    """The ring with Open MPI's index rule: step i sends chunk r-i."""
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
    """The ring's reduce_scatter segment by segment, then its all_gather in whole blocks."""
    # Open MPI's segmented ring; block b has the chunks b*segments ... (b+1)*segments - 1.
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
    """Whole vectors exchanged with partners at distance 1, 2, 4, ...."""
    # Pairs fold first when the rank count is no power of two; the odd rank of a pair survives.
    fold = Fold.of(size)
    yield from fold_in(rank, fold, range(1))
    yield from fold.meetings(
        rank, doublings(fold.power), lambda peer, *_: [send(peer, 0), recv_reduce(peer, 0)]
    )
    yield from fold_out(rank, fold, range(1))


def fold_in(rank: int, fold: Fold, chunks: range) -> Rounds:
    """The round in which the rank that drops out gives its vector to its neighbour."""
    return fold.pair_round(rank, [recv_reduce(rank ^ 1, chunks)], [send(rank ^ 1, chunks)])


def fold_out(rank: int, fold: Fold, chunks: range) -> Rounds:
    """The round in which the survivor gives the result back."""
    return fold.pair_round(rank, [send(rank ^ 1, chunks)], [recv(rank ^ 1, chunks)])


def halving_range(new: int, steps: int, power: int) -> range:
    """The chunks survivor ``new`` still works on after ``steps`` halvings, distance 1 first."""
    start, length = 0, power
    for bit in range(steps):
        length //= 2
        start += length * (new >> bit & 1)
    return range(start, start + length)


def halve(rank: int, fold: Fold) -> Rounds:
    """reduce_scatter by recursive vector halving among the survivors, distance 1 first."""

    def exchange(peer: int, new: int, other: int, distance: int) -> list[Instruction]:
        sent, kept = (halving_range(one, distance.bit_length(), fold.power) for one in (other, new))
        return [send(peer, sent), recv_reduce(peer, kept, left=True)]

    return fold.meetings(rank, doublings(fold.power), exchange)


def double(rank: int, fold: Fold) -> Rounds:
    """all_gather that undoes :func:`halve`, in the reverse order of distances."""

    def exchange(peer: int, new: int, other: int, distance: int) -> list[Instruction]:
        mine, theirs = (halving_range(one, distance.bit_length(), fold.power) for one in (new, other))
        return [send(peer, mine), recv(peer, theirs)]

    return fold.meetings(rank, reversed(list(doublings(fold.power))), exchange)


@built_in(
    "all_reduce",
    "p",
    Formula("2*f + 2*x", "2*qp + 2*x", "qp + x", "c"),
    symmetry="n == p: xor",
    in_order=False,
    mpich="reduce_scatter_allgather",
)
def rabenseifner(rank: int, size: int) -> Rounds:
    """Recursive halving (distance 1 first), then recursive doubling back; MPICH's fold."""
    # Rabenseifner's algorithm; MPICH folds with the whole vector, the odd rank survives.
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
    """Rabenseifner's algorithm; paired ranks reduce half a vector each before the odd one drops out."""
    fold = Fold.of(size, survivor=0)
    lower, upper = range(fold.power // 2), range(fold.power // 2, fold.power)
    halves = [
        [send(rank ^ 1, sent), recv_reduce(rank ^ 1, kept, left=True)]
        for sent, kept in ((upper, lower), (lower, upper))
    ]
    yield from fold.pair_round(rank, *halves)
    yield from fold.pair_round(rank, [recv(rank ^ 1, upper)], [send(rank ^ 1, upper)])
    yield from halve(rank, fold)
    yield from double(rank, fold)
    yield from fold_out(rank, fold, range(fold.power))


@built_in(
    "all_reduce",
    "1",
    Formula("n-1", "n-1", "n-1", "n-1"),
    symmetry="shift",
    in_order=True,
    openmpi="allgather_reduce 7",
)
def all_gather_reduce(rank: int, size: int) -> Rounds:
    """All vectors to all ranks, each then reduces them in rank order."""
    # Rank j's vector is kept in scratch chunk 1 + j until all are there.
    for i in range(1, size):
        yield [send((rank + i) % size, 0), recv((rank - i) % size, 1 + (rank - i) % size)]
    if size > 1:
        keep = [copy(0, 1 + rank), copy(1, 0)]
        yield keep + [combine(1 + j, 0, left=False) for j in range(1, size)]
