"""The direct reduction on MPI: Alltoallv of packed boxes, a few, and additions between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from spmdsim.core import Bounds
from spmdsim.core.step import Step, within
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.exchange.direct_reduction import Part, parts, rounds
from spmdsim.worlds.local_steps import add_on, add_up
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.datatypes import element
from spmdsim.worlds.pool import empty

#: An array per part, by its number.
Arrays = dict[int, np.ndarray]


class _Round:
    """One round's messages of a rank: which parts go to and come from each of the members, one after the other.

    Args:
        found: all parts.
        hops: all messages, as :func:`~spmdsim.redistribution.exchange.direct_reduction.rounds` says.
        members: the ranks of the communicator.
        me: this rank.
    """

    def __init__(
        self, found: Sequence[Part], hops: list[tuple[int, int, int]], members: Sequence[int], me: int
    ) -> None:
        self.silent = not hops
        self.gives = [k for member in members for giver, taker, k in hops if (giver, taker) == (me, member)]
        self.takes = [
            (member, k) for member in members for giver, taker, k in hops if (giver, taker) == (member, me)
        ]
        self.shapes = {k: tuple(stop - start for start, stop in found[k].box) for _, k in self.takes}
        count = dict.fromkeys(members, 0)
        sent, received = dict(count), dict(count)
        for giver, taker, k in hops:
            if giver == me:
                sent[taker] += found[k].count
            if taker == me:
                received[giver] += found[k].count
        self.sent, self.received = _places(list(sent.values())), _places(list(received.values()))

    def run(self, comm: Counted, values: Arrays, dtype: np.dtype) -> list[tuple[int, int, np.ndarray]]:
        """Send what the parts are, and return what came: from whom, of which part."""
        if self.silent:
            return []
        packed, landing = empty((sum(self.sent[0]),), dtype), empty((sum(self.received[0]),), dtype)
        start = 0
        for k in self.gives:
            piece = values[k]
            packed[start : start + piece.size].reshape(piece.shape)[...] = piece
            start += piece.size
        kind = element(dtype.itemsize)
        comm.Alltoallv([packed, self.sent, kind], [landing, self.received, kind])
        came, start = [], 0
        for member, k in self.takes:
            stop = start + prod(self.shapes[k])
            came.append((member, k, landing[start:stop].reshape(self.shapes[k])))
            start = stop
        return came


def _places(counts: list[int]) -> tuple[list[int], list[int]]:
    return counts, [0, *accumulate(counts)][:-1]


def sum_directly(
    step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype
) -> Callable[[np.ndarray], np.ndarray]:
    """This rank's part of a direct reduction over a communicator of the given world ranks."""
    op, shares = check_reduce(step.op, dtype), parts(step.src, step.dst, step.shape)
    contributions, *passed, results = [_Round(shares, hops, members, rank) for hops in rounds(shares)]
    have = _indices(shares, step.src.bounds(step.shape, rank) if rank in step.src.mesh else None)
    want = _indices(shares, step.dst.bounds(step.shape, rank) if rank in step.dst.mesh else None)
    target = step.dst.local_shape(step.shape, rank) if rank in step.dst.mesh else (0,) * len(step.shape)
    mine = {k: ranks for k, part in enumerate(shares) for adder, ranks in part.adders if adder == rank}

    def first_sums(own: Arrays) -> Arrays:
        came: dict[int, dict[int, np.ndarray]] = {k: {} for k in mine}
        for member, k, piece in contributions.run(comm, own, dtype):
            came[k][member] = piece
        return {
            k: add_up(
                op, [own[k] if one == rank else came[k][one] for one in ranks], len(shares[k].adders) == 1
            )
            for k, ranks in mine.items()
        }

    def run(array: np.ndarray) -> np.ndarray:
        own = {k: array[index] for k, index in have.items()}
        total = first_sums(own)
        for some in passed:
            for _, k, piece in some.run(comm, total, dtype):
                total[k] = add_on(op, piece, total[k], shares[k].terms if shares[k].last == rank else None)
        came = results.run(comm, total, dtype)
        out = empty(target, dtype)  # not before what was packed is gone
        for _, k, piece in came:
            out[want[k]] = piece
        for k in mine:
            if shares[k].last == rank and rank in shares[k].wanting:
                out[want[k]] = total[k]
        return out

    return run


def _indices(found: Sequence[Part], mine: Bounds | None) -> dict[int, tuple[slice, ...]]:
    """Where the parts lie that a box contains."""
    if mine is None:
        return {}
    return {
        k: within(part.box, mine)
        for k, part in enumerate(found)
        if all(a <= start and stop <= b for (start, stop), (a, b) in zip(part.box, mine))
    }
