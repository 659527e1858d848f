"""gather: the root ends with all blocks. scatter: every rank ends with its block of the root's vector."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms.rank_arithmetic import around, doublings, opposite
from spmdsim.collectives.instructions import Rounds, recv, send


@declare(
    "gather",
    "linear",
    chunks="n",
    about="the root receives from one rank after another",
    formula=Formula("n-1", "q"),
    libraries=(("openmpi", "basic_linear linear_sync linear 1 3"),),
)
def gather_linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Round i: rank root + i sends its block."""
    for i in range(1, size):
        source = (root + i) % size
        if rank == root:
            yield [recv(source, source)]
        else:
            yield [send(root, rank)] if rank == source else []


@declare(
    "gather",
    "binomial",
    chunks="n",
    about="blocks of whole subtrees up the binomial tree",
    formula=Formula("c", "q"),
    libraries=(("mpich", "binomial"), ("openmpi", "binomial 2")),
)
def gather_binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """A rank at distance v from the root collects the blocks of v ... v + mask - 1."""
    v = (rank - root) % size
    for mask in doublings(size):
        count = min(mask, size - v - mask)
        if v % (2 * mask) == 0 and count > 0:
            peer = (rank + mask) % size
            yield [recv(peer, around(peer, count, size))]
        elif v % (2 * mask) == mask:
            yield [send((rank - mask) % size, around(rank, min(mask, size - v), size))]
        else:
            yield []


@declare(
    "scatter",
    "linear",
    chunks="n",
    about="the root sends to one rank after another",
    formula=Formula("n-1", "q"),
    libraries=(("openmpi", "basic_linear linear_nb linear 1 3"),),
)
def scatter_linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Round i: the root sends rank root + i its block."""
    return opposite(gather_linear(rank, size, root))


@declare(
    "scatter",
    "binomial",
    chunks="n",
    about="blocks of whole subtrees down the binomial tree",
    formula=Formula("c", "q"),
    libraries=(("mpich", "binomial"), ("openmpi", "binomial 2")),
)
def scatter_binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """The binomial gather in reverse."""
    return opposite(reversed(list(gather_binomial(rank, size, root))))
