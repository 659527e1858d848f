"""barrier: no rank leaves before every rank has entered. All messages are empty."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import doublings, power_below, star_rounds, tree_rounds
from spmdsim.collectives.instructions import Instruction, Rounds, recv, send

#: Chunks of an empty message.
NOTHING = range(0)


@built_in(
    "barrier", "1", Formula("c", "0"), symmetry="shift", mpich="dissemination", openmpi="bruck two_proc 4"
)
def dissemination(rank: int, size: int) -> Rounds:
    """Round k: send to rank r + 2**k, receive from rank r - 2**k.

    After round k a rank has heard from 2**(k+1) ranks.
    """
    for k in doublings(size):
        yield [send((rank + k) % size, NOTHING), recv((rank - k) % size, NOTHING)]


@built_in("barrier", "1", Formula("f + 2*x", "0"), symmetry="n == p: xor", openmpi="recursive_doubling 3")
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Exchange with partners at distance 1, 2, 4, ...; ranks beyond the power of two check in and out.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. Messages have no data. p is the largest
    power of two that is at most ``size``. Rank r >= p first sends to rank r - p, idles while the p ranks exchange, and
    then gets a message from rank r - p. Of 3 ranks, rank 2 checks in at rank 0, ranks 0 and 1 exchange, and rank 0
    checks rank 2 out.
    """
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


@built_in("barrier", "1", Formula("2*c", "0"), openmpi="tree 6")
def tree(rank: int, size: int) -> Rounds:
    """Send empty messages up the binomial tree to rank 0, and down again.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of a binomial gather, then
    those of a binomial broadcast.
    """

    def receive(peer: int, distance: int) -> Instruction:
        return recv(peer, NOTHING)

    def notify(peer: int, distance: int) -> Instruction:
        return send(peer, NOTHING)

    yield from tree_rounds(rank, size, receive, notify)
    yield from tree_rounds(rank, size, notify, receive, down=True)


@built_in("barrier", "1", Formula("2*(n-1)", "0"), openmpi="linear basic_linear 1")
def linear(rank: int, size: int) -> Rounds:
    """Send from every rank to rank 0, which answers every rank.

    Rank 0 receives and sends one message at a time.
    """
    yield from star_rounds(rank, 0, range(1, size), lambda peer: recv(peer, NOTHING), send(0, NOTHING))
    yield from star_rounds(rank, 0, range(1, size), lambda peer: send(peer, NOTHING), recv(0, NOTHING))


@built_in("barrier", "1", Formula("(2*n if n > 1 else 0)", "0"), openmpi="double_ring 2")
def double_ring(rank: int, size: int) -> Rounds:
    """Send an empty message around the ring twice, from rank to rank.

    Yields the ``2 * size`` rounds (lists of instructions) of ``rank``; none for one rank. In round i, rank i
    sends to rank i + 1, modulo ``size``; all others idle (``[]``). After the first lap all ranks have arrived;
    the second lap tells them.
    """
    for step in range(2 * size if size > 1 else 0):
        holder = step % size
        if rank == holder:
            yield [send((rank + 1) % size, NOTHING)]
        else:
            yield [recv(holder, NOTHING)] if rank == (holder + 1) % size else []
