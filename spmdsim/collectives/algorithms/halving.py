"""Recursive halving and doubling among the ranks that a fold leaves; reduce and all_reduce are made of them."""

from __future__ import annotations

from spmdsim.collectives.algorithms.rank_arithmetic import Fold, doublings
from spmdsim.collectives.instructions import Instruction, Rounds, recv, recv_reduce, send


def fold_in(rank: int, fold: Fold, chunks: range) -> Rounds:
    """Yield the round in which a dropped rank sends ``chunks``, which its survivor reduces."""
    return fold.pair_round(rank, [recv_reduce(rank ^ 1, chunks)], [send(rank ^ 1, chunks)])


def fold_out(rank: int, fold: Fold, chunks: range) -> Rounds:
    """Yield the round in which a survivor sends the resulting ``chunks`` to its dropped rank."""
    return fold.pair_round(rank, [send(rank ^ 1, chunks)], [recv(rank ^ 1, chunks)])


def halving_range(new: int, steps: int, power: int) -> range:
    """Return the chunks that a rank still works on after some rounds of :func:`halve`.

    All ``power`` chunks are left before the first round. Each round keeps one half: the lower one if a bit of
    ``new`` is 0, the upper one if it is 1. The first round reads the lowest bit, the next round the next bit, and
    so on.

    Args:
        new: the rank's number among the ranks that take part.
        steps: the number of rounds.
        power: the number of ranks that take part, a power of two.

    >>> halving_range(1, 1, 8), halving_range(1, 2, 8)
    (range(4, 8), range(4, 6))
    """
    start, length = 0, power
    for bit in range(steps):
        length //= 2
        start += length * (new >> bit & 1)
    return range(start, start + length)


def halve(rank: int, fold: Fold) -> Rounds:
    """Yield a reduce_scatter among a fold's survivors by halving, at distances 1, 2, 4, ...

    A fold pairs ranks, of which one drops out and idles here, so that a power of two survives. There are as many
    chunks as survivors. Each survivor ends with one chunk, whose number is the survivor's new number with the
    bits reversed: of 4 survivors, number 1 (01) ends with chunk 2 (10). A received value is the left operand.

    Args:
        rank: the rank whose rounds are yielded.
        fold: the fold.
    """

    def exchange(peer: int, new: int, peer_new: int, distance: int) -> list[Instruction]:
        sent = halving_range(peer_new, distance.bit_length(), fold.power)
        reduced = halving_range(new, distance.bit_length(), fold.power)
        return [send(peer, sent), recv_reduce(peer, reduced, left=True)]

    return fold.meetings(rank, doublings(fold.power), exchange)


def double(rank: int, fold: Fold) -> Rounds:
    """Yield an all_gather among a fold's survivors that reverses :func:`halve`.

    It starts from the chunks with which :func:`halve` ends, at the largest distance. At its end each survivor has
    all chunks. Dropped ranks idle.

    Args:
        rank: the rank whose rounds are yielded.
        fold: the fold of :func:`halve`.
    """

    def exchange(peer: int, new: int, peer_new: int, distance: int) -> list[Instruction]:
        sent = halving_range(new, distance.bit_length(), fold.power)
        received = halving_range(peer_new, distance.bit_length(), fold.power)
        return [send(peer, sent), recv(peer, received)]

    return fold.meetings(rank, reversed(list(doublings(fold.power))), exchange)
