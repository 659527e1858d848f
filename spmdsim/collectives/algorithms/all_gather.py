"""all_gather: every rank ends with the blocks of all ranks."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms.common import around, doublings
from spmdsim.collectives.moves import Rounds, recv, send


@declare(
    "all_gather",
    "ring",
    chunks="n",
    about="blocks travel around the ring",
    formula=Formula("n-1", "q"),
    symmetry="shift",
    libraries=(("mpich", "ring"), ("openmpi", "ring 4"), ("nccl", "ring")),
)
def ring(rank: int, size: int) -> Rounds:
    """Round i sends block r-i to the right."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv(left, (rank - 1 - i) % size)]


@declare(
    "all_gather",
    "recursive_doubling",
    chunks="n",
    about="exchange all blocks gathered so far with partners at distance 1, 2, 4, ...",
    formula=Formula("f", "q"),
    condition="n == p",
    condition_words="a power of two",
    symmetry="xor",
    libraries=(("mpich", "recursive_doubling"), ("openmpi", "recursive_doubling 3")),
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Partner r^k; both own the aligned group of k blocks around them."""
    for k in doublings(size):
        mine, theirs = rank & -k, (rank ^ k) & -k
        yield [
            send(rank ^ k, range(mine, mine + k)),
            recv(rank ^ k, range(theirs, theirs + k)),
        ]


@declare(
    "all_gather",
    "bruck",
    chunks="n",
    about="send the blocks gathered so far to rank r-1, r-2, r-4, ...; any rank count in ceil(log2 n) rounds",
    formula=Formula("c", "q"),
    symmetry="shift",
    libraries=(("mpich", "brucks"), ("openmpi", "bruck bruck_k_fanout 2")),
)
def bruck(rank: int, size: int) -> Rounds:
    """With k blocks in hand, send the first min(k, n-k) to r-k and receive as many from r+k."""
    for k in doublings(size):
        count = min(k, size - k)
        yield [
            send((rank - k) % size, around(rank, count, size)),
            recv((rank + k) % size, around(rank + k, count, size)),
        ]


@declare(
    "all_gather",
    "neighbor_exchange",
    chunks="n",
    about="two blocks per round to alternating neighbours",
    formula=Formula("n/2", "q"),
    condition="n % 2 == 0 or n == 1",
    condition_words="an even rank count",
    libraries=(("openmpi", "neighbor 5"),),
)
def neighbor_exchange(rank: int, size: int) -> Rounds:
    """Swap blocks with the pair partner, then hand the newest two blocks to the other side each round."""
    if size == 1:
        return
    sign = 1 if rank % 2 == 0 else -1
    neighbours = ((rank + sign) % size, (rank - sign) % size)
    yield [send(neighbours[0], rank), recv(neighbours[0], neighbours[0])]
    pair = rank - rank % 2
    newest, arriving = pair, [pair, pair]
    for i in range(1, size // 2):
        side = i % 2
        arriving[side] = (arriving[side] + (2 * sign if side == 0 else -2 * sign)) % size
        peer, start = neighbours[side], arriving[side]
        yield [send(peer, range(newest, newest + 2)), recv(peer, range(start, start + 2))]
        newest = start


@declare(
    "all_gather",
    "sparbit",
    chunks="n",
    about="a binomial tree from every rank at once, farthest first; blocks need no rotation at the end",
    formula=Formula("c", "q"),
    symmetry="shift",
    libraries=(("openmpi", "sparbit 7"),),
)
def sparbit(rank: int, size: int) -> Rounds:
    """At distance d a rank holds blocks r, r-2d, r-4d, ... and sends as many of them to r+d as are missing there."""
    held = 1
    for distance in reversed(list(doublings(size))):
        count = min(held, -(-size // distance) - held)
        mine = [(rank - 2 * i * distance) % size for i in range(count)]
        theirs = [(rank - (2 * i + 1) * distance) % size for i in range(count)]
        yield [send((rank + distance) % size, mine), recv((rank - distance) % size, theirs)]
        held += count


@declare(
    "all_gather",
    "linear",
    chunks="n",
    about="each block straight to every rank, one partner per round",
    formula=Formula("n-1", "q"),
    symmetry="shift",
    libraries=(("openmpi", "linear direct two_proc 1 6 8"),),
)
def linear(rank: int, size: int) -> Rounds:
    """Round i sends the own block to r+i."""
    for i in range(1, size):
        to, source = (rank + i) % size, (rank - i) % size
        yield [send(to, rank), recv(source, source)]
