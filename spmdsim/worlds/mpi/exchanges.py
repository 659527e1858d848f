"""Steps as one or a few exchanges of packed elements: by element numbers, of sums, of prefixes, and of parts of any length."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from spmdsim.core import Bounds
from spmdsim.core.elements import fold, identity
from spmdsim.core.step import Step, within
from spmdsim.errors import WorldError
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.exchange.direct_reduction import Part, parts, rounds
from spmdsim.redistribution.exchange.flat import flat_receives, flat_sends
from spmdsim.redistribution.group_steps import Parts, ScanStep, one_array
from spmdsim.redistribution.ways.way import Way
from spmdsim.worlds.local_steps import Arrived, add_on, add_up
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.messages import Stretches, element, native_op, number_view
from spmdsim.worlds.mpi.reducing import ReduceGroup
from spmdsim.worlds.pool import empty
from spmdsim.worlds.programs import Run

#: An array per part, by its number.
Arrays = dict[int, np.ndarray]


def exchange_numbered(step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype) -> Run:
    """This rank's part of an exchange by row-major element numbers that changes the shape; of these ranks."""
    exchange = (step.src, step.dst, step.shape, step.shape_after, rank)
    received = flat_receives(*exchange)
    own = next(((one.source, one.target) for one in received if one.peer == rank), None)
    sent, outgoing = _side(dict(flat_sends(*exchange)), members, rank)
    taken, incoming = _side({one.peer: one.target for one in received}, members, rank)
    shape, kind = step.dst.local_shape(step.shape_after, rank), element(dtype.itemsize)

    def run(array: np.ndarray) -> np.ndarray:
        flat, out, landing = array.reshape(-1), empty(shape, dtype), empty((len(incoming),), dtype)
        packed = flat[outgoing]
        comm.Alltoallv([packed, sent, kind], [landing, taken, kind])
        target = out.reshape(-1)
        target[incoming] = landing
        if own is not None:
            target[own[1]] = flat[own[0]]
        return out

    return run


def _side(numbers: Arrays, members: Sequence[int], rank: int) -> tuple[Stretches, np.ndarray]:
    """What goes to, or comes from, each member but this rank: how much, and all element numbers in their order."""
    nothing = np.zeros(0, np.int64)
    lists = [nothing if member == rank else numbers.get(member, nothing) for member in members]
    return Stretches.of(list(map(len, lists))), np.concatenate(lists)


# -- the direct reduction: exchanges of packed boxes, a few, and additions between them ------------------


class _Round:
    """One round's messages of a rank: which parts go to and come from each of the members, one after the other."""

    def __init__(
        self, shares: Sequence[Part], hops: list[tuple[int, int, int]], members: Sequence[int], me: int
    ) -> None:
        self.silent = not hops
        self.gives = [k for member in members for giver, taker, k in hops if (giver, taker) == (me, member)]
        self.takes = [(m, k) for m in members for giver, taker, k in hops if (giver, taker) == (m, me)]
        self.shapes = {k: tuple(stop - start for start, stop in shares[k].box) for _, k in self.takes}
        sent, received = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
        for giver, taker, k in hops:
            if giver == me:
                sent[taker] += shares[k].count
            if taker == me:
                received[giver] += shares[k].count
        self.sent, self.received = Stretches.of(list(sent.values())), Stretches.of(list(received.values()))

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


def sum_directly(step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype) -> Run:
    """This rank's part of a direct reduction over a communicator of the given world ranks."""
    op, shares = check_reduce(step.op, dtype), parts(step.src, step.dst, step.shape)
    contributions, *passed, results = [_Round(shares, hops, members, rank) for hops in rounds(shares)]
    have = _indices(shares, step.src.bounds(step.shape, rank)) if rank in step.src.mesh else {}
    want = _indices(shares, step.dst.bounds(step.shape, rank)) if rank in step.dst.mesh else {}
    target = step.dst.local_shape(step.shape, rank) if rank in step.dst.mesh else (0,) * len(step.shape)
    mine = {k: ranks for k, part in enumerate(shares) for adder, ranks in part.adders if adder == rank}

    def first_sums(own: Arrays) -> Arrays:
        came = {(k, member): piece for member, k, piece in contributions.run(comm, own, dtype)}
        terms = {k: [own[k] if one == rank else came[k, one] for one in ranks] for k, ranks in mine.items()}
        return {k: add_up(op, some, len(shares[k].adders) == 1) for k, some in terms.items()}

    def run(array: np.ndarray) -> np.ndarray:
        total = first_sums({k: array[index] for k, index in have.items()})
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


def _indices(shares: Sequence[Part], mine: Bounds) -> dict[int, tuple[slice, ...]]:
    """Where the parts lie that a box contains."""
    return {
        k: within(part.box, mine)
        for k, part in enumerate(shares)
        if all(a <= start and stop <= b for (start, stop), (a, b) in zip(part.box, mine))
    }


# -- in the middle of local functions ----------------------------------------------------------------------


def scan(step: ScanStep, group: ReduceGroup, dtype: np.dtype, way: Way) -> Run:
    """An exclusive scan of a rank's array."""
    op = check_reduce(step.op, dtype)
    order = group.order[::-1] if step.backward else group.order
    me, first, native = order.index(group.me), identity(op, dtype), native_op(op, dtype)
    if way.name == "identity":
        return lambda array: np.full(array.shape, first)

    def gathered(array: np.ndarray) -> np.ndarray:
        rows, kind = np.empty((len(order), *array.shape), dtype), element(dtype.itemsize)
        group.comm.Allgather([array, array.size, kind], [rows, array.size, kind])
        out = np.full(array.shape, first)
        for place, k in enumerate(order[:me]):  # as ``scanned`` does it
            if place:
                fold(op, [out, rows[k]], out=out)
            else:
                out[...] = rows[k]
        return out

    if native is None or way.name != "scan":
        return gathered

    def exclusive(array: np.ndarray) -> np.ndarray:
        out = np.full(array.shape, first)
        group.comm.Exscan(number_view(array), number_view(out), native)
        if me == 0:  # where MPI leaves open what it does with it
            out.fill(first)
        return out

    return exclusive


def send_parts(comm: Counted, order: Sequence[int], rank: int, dtype: np.dtype, outgoing: Parts) -> Arrived:
    """A part to each member in one Alltoallv; what a rank gives itself is copied."""
    places, me = [order.index(member) for member in sorted(order)], order.index(rank)
    parts, counts = [outgoing.arrays[k] for k in places], [int(outgoing.counts[k]) for k in places]
    if max(sum(map(len, parts)), sum(counts)) > messages.MAX_COUNT:
        raise WorldError(f"rank {rank} would exchange more elements than MPI can count in one call")
    packed, landed, kind = one_array(parts), empty((sum(counts),), dtype), element(dtype.itemsize)
    here = places.index(me)
    sent, taken = Stretches.of(list(map(len, parts))), Stretches.of(counts)
    if len(order) > 1:
        comm.Alltoallv([packed, sent.without(here), kind], [landed, taken.without(here), kind])
    blocks = [outgoing.arrays[me]] * len(order)
    for k, start, count in zip(places, taken.starts, counts):
        blocks[k] = landed[start : start + count]
    blocks[me][...] = outgoing.arrays[me]  # so that all that came lies in one stretch
    peers = tuple((order[k], count) for k, count in sorted(zip(places, counts)) if count and k != me)
    return [blocks], [peers]
