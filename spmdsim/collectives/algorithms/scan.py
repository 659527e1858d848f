"""scan and exscan: rank r ends with the reduction of the vectors of ranks 0 ... r, or 0 ... r-1.

Chunk 0 is the result, scratch chunk 1 the sum over the aligned group so far, and scratch chunk 2 the received sum.
"""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import doublings
from spmdsim.collectives.instructions import Rounds, combine, copy, recv, recv_reduce, send


@built_in(
    "scan",
    "1",
    Formula("c", "c", "2*c"),
    in_order=True,
    mpich="recursive_doubling",
    openmpi="recursivedoubling 2",
)
def scan_recursive_doubling(rank: int, size: int) -> Rounds:
    """Exchange sums of aligned groups of ranks at distance 1, 2, 4 and so on.

    The result starts with the own vector; sums of lower groups are combined into it. Yields the rounds (lists of
    instructions) of ``rank``; none for one rank.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
    """
    return _run_doubling(rank, size, includes_own=True)


def _run_doubling(rank: int, size: int, includes_own: bool) -> Rounds:
    """Yield the rounds of a scan or exscan by exchanges at distance k = 1, 2, 4, ... (r^k).

    Chunk 0 is the result. Chunk 1 is the sum over the rank's aligned group of k ranks: in round k it is sent to the
    partner, and reduced with the partner's sum. If the partner has a lower number, its sum also enters the result, on
    the left. Without a partner a rank is idle. For example, rank 2 of 4 has no lower partner at distance 1, and gets
    the sum of ranks 0 and 1 at distance 2.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        includes_own: True for scan, whose result starts with the own vector. The result of exscan starts with the
            first sum from a lower partner.
    """
    started = includes_own
    if size > 1:
        yield [copy(0, 1)]
    for k in doublings(size):
        partner = rank ^ k
        if partner >= size:
            yield []
            continue
        moves = [send(partner, 1), recv(partner, 2), combine(2, 1, left=partner < rank)]
        if partner < rank:
            moves.append(combine(2, 0, left=True) if started else copy(2, 0))
            started = True
        yield moves


@built_in(
    "exscan",
    "1",
    Formula("c", "c", "(2*c - 1 - (n == p + 1) if n > 1 else 0)"),
    in_order=True,
    mpich="recursive_doubling",
    openmpi="recursivedoubling 2",
)
def exscan_recursive_doubling(rank: int, size: int) -> Rounds:
    """Exchange sums of aligned groups as for scan, but keep the own vector out of the result.

    The first sum that arrives from a lower rank starts the result. Yields the rounds (lists of instructions) of
    ``rank``; none for one rank.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
    """
    return _run_doubling(rank, size, includes_own=False)


@built_in("scan", "1", Formula("n-1", "n-1", "n-1", "n-1"), in_order=True, openmpi="linear 1")
def scan_linear(rank: int, size: int) -> Rounds:
    """Add up the vectors along a chain: a rank adds its own to the sum of the lower ranks.

    Yields the ``size - 1`` rounds (lists of instructions) of ``rank``. In round i, from 0, rank i sends its sum
    to rank i + 1; other ranks are idle (``[]``).

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
    """
    for i in range(size - 1):
        if rank == i:
            yield [send(rank + 1, 0)]
        else:
            yield [recv_reduce(rank - 1, 0)] if rank == i + 1 else []


@built_in("exscan", "1", Formula("n-1", "n-1", "n-1"), in_order=True, openmpi="linear 1")
def exscan_linear(rank: int, size: int) -> Rounds:
    """Add up the vectors along a chain; the result of a rank is the sum of the lower ranks.

    Yields the ``size`` rounds (lists of instructions) of ``rank``; none for one rank. Chunk 0 has the result,
    scratch chunk 1 the sum that is sent:

    * In round 0, every rank copies its vector to chunk 1.
    * In round r + 1, rank r sends its chunk 1 to rank r + 1. That rank stores it in chunk 0, and adds it to its
      chunk 1, as the left operand.

    Chunk 0 of rank 0 stays its own vector.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
    """
    if size > 1:
        yield [copy(0, 1)]
    for i in range(size - 1):
        if rank == i:
            yield [send(rank + 1, 1)]
        elif rank == i + 1:
            yield [recv(rank - 1, 0), combine(0, 1, left=True)]
        else:
            yield []
