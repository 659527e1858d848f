"""barrier: no rank leaves before every rank has entered. All messages are empty."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms.rank_arithmetic import doublings, power_below
from spmdsim.collectives.instructions import Instruction, Rounds, recv, send

NOTHING = range(0)


@declare(
    "barrier",
    "dissemination",
    chunks="1",
    about="round k: tell rank r + 2**k, hear from rank r - 2**k",
    formula=Formula("c", "0"),
    symmetry="shift",
    libraries=(("mpich", "dissemination"), ("openmpi", "bruck two_proc 4")),
)
def dissemination(rank: int, size: int) -> Rounds:
    """After round k a rank has heard from 2**(k+1) ranks."""
    for k in doublings(size):
        yield [send((rank + k) % size, NOTHING), recv((rank - k) % size, NOTHING)]


@declare(
    "barrier",
    "recursive_doubling",
    chunks="1",
    about="partners at distance 1, 2, 4, ...; ranks beyond the power of two check in and out",
    formula=Formula("f + 2*x", "0"),
    symmetry="n == p: xor",
    libraries=(("openmpi", "recursive_doubling 3"),),
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Rank r >= p reports to r - p first and waits for its word at the end."""
    power = power_below(size)
    extra = size - power
    inner, late = rank < power, rank >= power
    partner = rank - power if late else rank + power
    paired = late or rank < extra
    if extra:
        check_in = [send(partner, NOTHING)] if late else [recv(partner, NOTHING)]
        yield check_in if paired else []
    for k in doublings(power):
        yield [send(rank ^ k, NOTHING), recv(rank ^ k, NOTHING)] if inner else []
    if extra:
        check_out = [recv(partner, NOTHING)] if late else [send(partner, NOTHING)]
        yield check_out if paired else []


@declare(
    "barrier",
    "tree",
    chunks="1",
    about="up the binomial tree to rank 0 and down again",
    formula=Formula("2*c", "0"),
    libraries=(("openmpi", "tree 6"),),
)
def tree(rank: int, size: int) -> Rounds:
    """A binomial gather and a binomial broadcast of nothing."""
    for k in doublings(size):
        yield _edge(rank, size, k, up=True)
    for k in reversed(list(doublings(size))):
        yield _edge(rank, size, k, up=False)


def _edge(rank: int, size: int, k: int, up: bool) -> list[Instruction]:
    if rank % (2 * k) == 0 and rank + k < size:
        return [recv(rank + k, NOTHING) if up else send(rank + k, NOTHING)]
    if rank % (2 * k) == k:
        return [send(rank - k, NOTHING) if up else recv(rank - k, NOTHING)]
    return []


@declare(
    "barrier",
    "linear",
    chunks="1",
    about="everyone reports to rank 0, which answers everyone",
    formula=Formula("2*(n-1)", "0"),
    libraries=(("openmpi", "linear basic_linear 1"),),
)
def linear(rank: int, size: int) -> Rounds:
    """One message at a time into rank 0 and out of it."""
    for i in range(1, size):
        yield [recv(i, NOTHING)] if rank == 0 else [send(0, NOTHING)] if rank == i else []
    for i in range(1, size):
        yield [send(i, NOTHING)] if rank == 0 else [recv(0, NOTHING)] if rank == i else []


@declare(
    "barrier",
    "double_ring",
    chunks="1",
    about="a token goes around the ring twice",
    formula=Formula("(2*n if n > 1 else 0)", "0"),
    libraries=(("openmpi", "double_ring 2"),),
)
def double_ring(rank: int, size: int) -> Rounds:
    """The first lap collects, the second releases."""
    for step in range(2 * size if size > 1 else 0):
        holder = step % size
        if rank == holder:
            yield [send((rank + 1) % size, NOTHING)]
        else:
            yield [recv(holder, NOTHING)] if rank == (holder + 1) % size else []
