"""Windows of a split dim on MPI: one message from each neighbour that holds something, and one to each that reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from spmdsim.core.lockstep import contiguous
from spmdsim.redistribution.halo import HaloPiece, HaloStep, elements, received, sent
from spmdsim.redistribution.ways.rank_transfers import flat_offset
from spmdsim.worlds.local_steps import assembled
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.datatypes import counted_parts, element
from spmdsim.worlds.pool import allocator, empty

#: The ranks of a group, sorted, and their communicator.
Members = tuple[tuple[int, ...], Counted]


def exchange_halo(
    step: HaloStep, rank: int, group: Members | None, dtype: np.dtype
) -> Callable[[np.ndarray], np.ndarray]:
    """This rank's part; without a group there is nobody to talk to."""
    shape, kind = step.dst.local_shape(step.shape, rank), element(dtype.itemsize)
    incoming, outgoing = received(step, rank), sent(step, rank)
    if group is None or not elements((*incoming, *outgoing), rank):
        return lambda array: assembled(step, shape, dtype, [(array, pieces) for _, pieces in incoming])
    ranks, comm = group
    number = {member: k for k, member in enumerate(ranks)}
    fresh = allocator(shape, dtype) if not step.back and any(peer != rank for peer, _ in incoming) else None
    places = {peer: None if step.back else _place(shape, pieces) for peer, pieces in incoming}

    def run(array: np.ndarray) -> np.ndarray:
        out: np.ndarray | None = (
            None if fresh is None else fresh()
        )  # own elements alone may stay where they are
        requests, landed = [], {}
        for peer, pieces in incoming:
            if peer == rank:
                continue
            count, place = sum(piece.size for piece in pieces), places[peer]
            landing = (
                empty((count,), dtype)
                if out is None or place is None
                else out.reshape(-1)[place : place + count]
            )
            landed[peer] = landing
            requests += [comm.Irecv([part, kind], number[peer]) for part in counted_parts(landing)]
        for peer, pieces in outgoing:
            if peer != rank:
                packed = _packed(array, pieces)
                requests += [comm.Isend([part, kind], number[peer]) for part in counted_parts(packed)]
        parts: list[tuple[np.ndarray, Sequence[HaloPiece]]] = []
        for peer, pieces in incoming:
            if peer == rank:
                parts.append((array, pieces))
            elif places[peer] is None:
                parts += _apart(shape, landed[peer], pieces)
        MPI.Request.Waitall(requests)
        return assembled(step, shape, dtype, parts, out)

    return run


def _place(shape: tuple[int, ...], pieces: Sequence[HaloPiece]) -> int | None:
    """Where the only piece begins in the flat array, if it is contiguous there."""
    return flat_offset(shape, pieces[0].target) if len(pieces) == 1 else None


def _packed(array: np.ndarray, pieces: Sequence[HaloPiece]) -> np.ndarray:
    """Pieces one after the other; a contiguous one as it is."""
    if len(pieces) == 1:
        return contiguous(array[pieces[0].source])
    return np.concatenate([array[piece.source].reshape(-1) for piece in pieces])


def _apart(
    shape: tuple[int, ...], landed: np.ndarray, pieces: Sequence[HaloPiece]
) -> list[tuple[np.ndarray, Sequence[HaloPiece]]]:
    """What has landed, piece by piece, each with its place."""
    found: list[tuple[np.ndarray, Sequence[HaloPiece]]] = []
    start = 0
    for piece in pieces:
        sizes = [len(range(*part.indices(n))) for part, n in zip(piece.target, shape)]
        whole = tuple(slice(None) for _ in sizes)
        found.append(
            (landed[start : start + piece.size].reshape(sizes), [HaloPiece(whole, piece.target, piece.size)])
        )
        start += piece.size
    return found
