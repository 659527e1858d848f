"""broadcast: every rank ends with the root's vector. Ranks are counted from the root, ``v = (rank - root) % size``."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms import all_gather
from spmdsim.collectives.algorithms.rank_arithmetic import doublings
from spmdsim.collectives.instructions import Rounds, recv, send


def renamed(rounds: Rounds, size: int, root: int) -> Rounds:
    """Rounds written for root 0, for ranks counted from ``root``."""
    if root == 0:
        yield from rounds
        return
    for moves in rounds:
        yield [move if move.peer < 0 else move._replace(peer=(move.peer + root) % size) for move in moves]


@declare(
    "broadcast",
    "linear",
    chunks="1",
    about="the root sends to one rank after another",
    formula=Formula("n-1", "n-1"),
    libraries=(("openmpi", "basic_linear linear 1"),),
)
def linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Round i: the root sends to root + i."""
    v = (rank - root) % size
    for i in range(1, size):
        if v == 0:
            yield [send((root + i) % size, 0)]
        else:
            yield [recv(root, 0)] if v == i else []


@declare(
    "broadcast",
    "binomial",
    chunks="1",
    about="the number of ranks that have the vector doubles each round, farthest first",
    formula=Formula("c", "c"),
    libraries=(("mpich", "binomial"), ("openmpi", "binomial 6")),
)
def binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """Distances from high to low; a rank with the vector sends to v + distance."""
    v = (rank - root) % size
    for mask in reversed(list(doublings(size))):
        if v % (2 * mask) == 0 and v + mask < size:
            yield [send((v + mask + root) % size, 0)]
        elif v % (2 * mask) == mask:
            yield [recv((v - mask + root) % size, 0)]
        else:
            yield []


@declare(
    "broadcast",
    "knomial",
    chunks="1",
    about="a tree whose ranks send to radix-1 others per level, one after another",
    libraries=(("openmpi", "knomial 7"),),
)
def knomial(rank: int, size: int, root: int = 0, radix: int = 4) -> Rounds:
    """With radix 2 the binomial tree."""
    v = (rank - root) % size
    mask = 1
    while mask < size:
        mask *= radix
    while mask > 1:
        mask //= radix
        for digit in range(1, radix):
            if v % (radix * mask) == 0 and v + digit * mask < size:
                yield [send((v + digit * mask + root) % size, 0)]
            elif v % (radix * mask) == digit * mask:
                yield [recv((v - digit * mask + root) % size, 0)]
            else:
                yield []


@declare(
    "broadcast",
    "chain",
    chunks="1",
    about="from rank to rank along a chain",
    formula=Formula("n-1", "n-1"),
    libraries=(("openmpi", "chain 2"),),
)
def chain(rank: int, size: int, root: int = 0) -> Rounds:
    """The pipelined chain with a single segment."""
    return pipelined_chain(rank, size, root, segments=1)


@declare(
    "broadcast",
    "pipelined_chain",
    chunks="s",
    about="segments follow one another along a chain",
    formula=Formula("(n-2+s if n > 1 else 0)", "((n-2+s)/s if n > 1 else 0)"),
    libraries=(("openmpi", "pipeline 3"),),
)
def pipelined_chain(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """At time t rank v sends segment t - v to v + 1."""
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


@declare(
    "broadcast",
    "binary_tree",
    chunks="1",
    about="down a binary tree, first one child, then the other",
    libraries=(("openmpi", "binary_tree binary 5 split_binary_tree 4"),),
)
def binary_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Children of v are 2v+1 and 2v+2; a rank at depth d is reached by round 2d at the latest."""
    v = (rank - root) % size
    reached = _reached(v)
    for t in range(1, 2 * size.bit_length() - 1):
        child = 2 * v + (t - reached)
        if t == reached:
            yield [recv(((v - 1) // 2 + root) % size, 0)]
        elif t - reached in (1, 2) and child < size:
            yield [send((child + root) % size, 0)]
        else:
            yield []


def _reached(v: int) -> int:
    """The round, counted from 1, that brings the vector to ``v``; the first child is one round earlier."""
    rounds = 0
    while v:
        rounds += 2 - v % 2
        v = (v - 1) // 2
    return rounds


def binomial_scatter(v: int, size: int) -> Rounds:
    """Blocks to their owners down the binomial tree of rank 0; block numbers are relative ranks."""
    for mask in reversed(list(doublings(size))):
        if v % (2 * mask) == 0 and v + mask < size:
            yield [send(v + mask, range(v + mask, min(v + 2 * mask, size)))]
        elif v % (2 * mask) == mask:
            yield [recv(v - mask, range(v, min(v + mask, size)))]
        else:
            yield []


@declare(
    "broadcast",
    "scatter_ring",
    chunks="n",
    about="binomial scatter of n blocks, then a ring all_gather",
    formula=Formula("(c + n-1 if n > 1 else 0)", "2*q"),
    libraries=(
        ("mpich", "scatter_ring_allgather"),
        ("openmpi", "scatter_allgather_ring 9"),
    ),
)
def scatter_ring(rank: int, size: int, root: int = 0) -> Rounds:
    """Van de Geijn's broadcast for long vectors."""
    v = (rank - root) % size
    yield from renamed(binomial_scatter(v, size), size, root)
    yield from renamed(all_gather.ring(v, size), size, root)


@declare(
    "broadcast",
    "scatter_recursive_doubling",
    chunks="n",
    about="binomial scatter of n blocks, then a recursive doubling all_gather",
    formula=Formula("2*f", "2*q", only="n == p"),
    libraries=(
        ("mpich", "scatter_recursive_doubling_allgather"),
        ("openmpi", "scatter_allgather 8"),
    ),
)
def scatter_recursive_doubling(rank: int, size: int, root: int = 0) -> Rounds:
    """For vectors of middle length."""
    v = (rank - root) % size
    yield from renamed(binomial_scatter(v, size), size, root)
    yield from renamed(all_gather.recursive_doubling(v, size), size, root)
