"""Steps in the middle of local functions on MPI: exclusive scans, and parts of any length from each to each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from spmdsim.core.elements import fold, identity
from spmdsim.errors import WorldError
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.exclusive_scan import ScanStep
from spmdsim.redistribution.parts import Parts, one_array
from spmdsim.redistribution.ways.way import Way
from spmdsim.worlds.local_lookup import Peers
from spmdsim.worlds.mpi import datatypes
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.datatypes import element, native_op, number_view
from spmdsim.worlds.mpi.reducing import ReduceGroup
from spmdsim.worlds.pool import empty

Run = Callable[[np.ndarray], np.ndarray]


class Stretches(NamedTuple):
    """How many elements of an array belong to each rank, and where they begin, as MPI takes it."""

    counts: list[int]
    starts: list[int]


def starts(lengths: Iterable[int]) -> list[int]:
    """Where stretches begin that lie one after the other."""
    return [0, *accumulate(lengths)][:-1]


def scan(step: ScanStep, group: ReduceGroup, dtype: np.dtype, way: Way) -> Run:
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
    """A part to each member in one Alltoallv; what a rank gives itself is copied.

    Raises:
        WorldError: more elements than MPI can count.
    """
    places, me = [order.index(member) for member in sorted(order)], order.index(rank)
    parts, counts = [given.arrays[k] for k in places], [int(given.counts[k]) for k in places]
    if max(sum(map(len, parts)), sum(counts)) > datatypes.MAX_COUNT:
        raise WorldError(f"rank {rank} would exchange more elements than MPI can count in one call")
    packed, landed, kind = one_array(parts), empty((sum(counts),), dtype), element(dtype.itemsize)
    sent = Stretches([0 if k == me else len(part) for k, part in zip(places, parts)], starts(map(len, parts)))
    taken = Stretches([0 if k == me else count for k, count in zip(places, counts)], starts(counts))
    if len(order) > 1:
        comm.Alltoallv([packed, sent, kind], [landed, taken, kind])
    blocks = [given.arrays[me]] * len(order)
    for k, start, count in zip(places, taken.starts, counts):
        blocks[k] = landed[start : start + count]
    blocks[me][...] = given.arrays[me]  # so that all that came lies in one stretch
    peers = tuple((order[k], count) for k, count in sorted(zip(places, taken.counts)) if count)
    return [blocks], [peers]
