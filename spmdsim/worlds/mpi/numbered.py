"""The exchange by row-major element numbers as one Alltoallv of packed elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from spmdsim.worlds.mpi.datatypes import element
from spmdsim.worlds.pool import empty
from spmdsim.worlds.reshaping import NumberedExchange


def place_numbered(
    part: NumberedExchange, comm: MPI.Comm, members: Sequence[int], dtype: np.dtype
) -> Callable[[np.ndarray], np.ndarray]:
    """This rank's part of the exchange over a communicator of the given world ranks."""
    sent, outgoing = _side(part.sends, members)
    received, incoming = _side(part.receives, members)
    kind, own = element(dtype.itemsize), part.own

    def run(array: np.ndarray) -> np.ndarray:
        flat, out, landing = array.reshape(-1), empty(part.target, dtype), empty((len(incoming),), dtype)
        packed = flat[outgoing]
        comm.Alltoallv([packed, sent, kind], [landing, received, kind])
        target = out.reshape(-1)
        target[incoming] = landing
        if own is not None:
            target[own[1]] = flat[own[0]]
        return out

    return run


def _side(
    pieces: Sequence[tuple[int, np.ndarray]], members: Sequence[int]
) -> tuple[tuple[list[int], list[int]], np.ndarray]:
    """Counts and offsets per member, and all element numbers in the members' order."""
    numbers = dict(pieces)
    counts = [len(numbers[member]) if member in numbers else 0 for member in members]
    lists = [numbers[member] for member in members if member in numbers]
    at = np.concatenate(lists) if lists else np.zeros(0, np.int64)
    return (counts, [0, *accumulate(counts)][:-1]), at
