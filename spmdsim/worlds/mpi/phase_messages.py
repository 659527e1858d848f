"""Steps in the middle of local functions on MPI: exclusive scans, and parts of any length from each to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from spmdsim.core.reductions import check_reduce, fold, identity
from spmdsim.errors import WorldError
from spmdsim.redistribution.exclusive_scan import ScanStep
from spmdsim.redistribution.parts import Parts
from spmdsim.redistribution.ways.way import Way
from spmdsim.worlds.local_lookup import Peers
from spmdsim.worlds.mpi import datatypes
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.datatypes import element, native_op, number_view
from spmdsim.worlds.mpi.reduce import Group

Run = Callable[[np.ndarray], np.ndarray]


def scan(step: ScanStep, group: Group, dtype: np.dtype, way: Way) -> Run:
    """An exclusive scan of a rank's array."""
    op = check_reduce(step.op, dtype)
    order = group.order[::-1] if step.backward else group.order
    me = order.index(group.me)
    first = identity(op, dtype)
    if way.name == "identity":
        return lambda array: np.full(array.shape, first)
    native = native_op(op, dtype)

    def gathered(array: np.ndarray) -> np.ndarray:
        rows = np.empty((len(order), *array.shape), dtype)
        kind = element(dtype.itemsize)
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

    def run(array: np.ndarray) -> np.ndarray:
        out = np.full(array.shape, first)
        group.comm.Exscan(number_view(array), number_view(out), native)
        if me == 0:  # where MPI leaves open what it does with it
            out.fill(first)
        return out

    return run


def send_parts(
    comm: Counted, order: Sequence[int], rank: int, dtype: np.dtype, given: Parts
) -> tuple[list[list[np.ndarray]], list[Peers]]:
    """A part to each member in one Alltoallv; what a rank gives itself stays where it is.

    Raises:
        WorldError: more elements than MPI can count.
    """
    places, me = [order.index(member) for member in sorted(order)], order.index(rank)
    sent = [0 if k == me else len(given.arrays[k]) for k in places]
    counts = [0 if k == me else int(given.counts[k]) for k in places]
    if max(sum(sent), sum(counts)) > datatypes.MAX_COUNT:
        raise WorldError(f"rank {rank} would exchange more elements than MPI can count in one call")
    others = [np.ascontiguousarray(given.arrays[k]) for k in places if k != me]
    packed = np.concatenate(others) if others else np.empty(0, dtype)
    landed, kind = np.empty(sum(counts), dtype), element(dtype.itemsize)
    starts = [0, *accumulate(counts)]
    if len(order) > 1:
        comm.Alltoallv(
            [packed, (sent, [0, *accumulate(sent)][:-1]), kind], [landed, (counts, starts[:-1]), kind]
        )
    found = [given.arrays[me]] * len(order)
    for k, start, count in zip(places, starts, counts):
        if k != me:
            found[k] = landed[start : start + count]
    peers = tuple((order[k], count) for k, count in sorted(zip(places, counts)) if count)
    return [found], [peers]
