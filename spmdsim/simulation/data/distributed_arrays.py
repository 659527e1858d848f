"""Distributed arrays of MPI datatypes: the indices of a rank in each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import (
    DISTRIBUTE_BLOCK,
    DISTRIBUTE_CYCLIC,
    DISTRIBUTE_DFLT_DARG,
    DISTRIBUTE_NONE,
    MPIError,
)


def owned_indices(
    size: int,
    rank: int,
    gsizes: Sequence[int],
    distribs: Sequence[int],
    dargs: Sequence[int],
    psizes: Sequence[int],
) -> list[Any]:
    """Return the indices that a rank owns in each dimension.

    Args:
        size: number of ranks.
        rank: the rank.
        gsizes: the array's shape.
        distribs: the kind of distribution of each dimension.
        dargs: the block length of each dimension, or DISTRIBUTE_DFLT_DARG.
        psizes: the shape of the grid of ranks.

    Raises:
        MPIError: If the grid does not have ``size`` ranks, or blocks are too short.

    >>> owned_indices(2, 1, [5], [DISTRIBUTE_CYCLIC], [2], [2])[0].tolist()
    [2, 3]
    """
    if int(np.prod(psizes)) != size or not 0 <= rank < size:
        raise MPIError(
            "ERR_ARG", f"Create_darray: psizes must have {size} ranks and rank be one, got {psizes}, {rank}"
        )
    coords = np.unravel_index(rank, tuple(psizes))
    return [
        _indices(length, kind, block, count, int(coord))
        for length, kind, block, count, coord in zip(gsizes, distribs, dargs, psizes, coords)
    ]


def _indices(length: int, kind: int, block: int, count: int, coord: int) -> Any:
    """Return the indices of one dimension that a coordinate owns.

    Args:
        length: extent of the dimension.
        kind: DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC or DISTRIBUTE_NONE.
        block: the block length, or DISTRIBUTE_DFLT_DARG for one block per coordinate, or 1 if cyclic.
        count: number of coordinates.
        coord: the coordinate.

    Raises:
        MPIError: If blocks are too short.
    """
    indices = np.arange(length)
    if kind == DISTRIBUTE_NONE:
        return indices
    if block == DISTRIBUTE_DFLT_DARG:
        block = 1 if kind == DISTRIBUTE_CYCLIC else -(-length // count)
    if block < 1 or (kind == DISTRIBUTE_BLOCK and block * count < length):
        raise MPIError(
            "ERR_ARG", f"Create_darray: a block must have {-(-length // count)} values or more, got {block}"
        )
    return indices[indices // block % count == coord]
