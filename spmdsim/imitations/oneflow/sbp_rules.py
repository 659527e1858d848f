"""Rules about pairs of sbp tuples: free transitions, exact traffic, and meshes with fewer axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.core import Layout, Mesh, Placement, Replicate, Shard, split_block
from spmdsim.dialects.oneflow.tensors import can_merge
from spmdsim.redistribution.lower_bound import lower_bound

Sbp = Sequence[Placement]


def zero_comm(src: Sbp, dst: Sbp) -> bool:
    """Whether a transition without pending sums needs no communication, for sizes that divide.

    It is free if every axis that changes goes from B to S(d), and no later axis holds S(d) before: what is split
    afterwards would have to be split first.

    >>> R, S = Replicate(), Shard
    >>> zero_comm((S(0), R), (S(0), S(0))), zero_comm((R, S(0)), (S(0), S(0)))
    (True, False)
    """
    for axis, (one, other) in enumerate(zip(src, dst)):
        if one == other:
            continue
        if not isinstance(one, Replicate) or not isinstance(other, Shard) or other in src[axis + 1 :]:
            return False
    return True


def total_traffic(mesh: Mesh, src: Sbp, dst: Sbp, shape: Sequence[int], itemsize: int) -> int:
    """Bytes that all ranks together must receive: what they need less what they hold.

    >>> R, S = Replicate(), Shard
    >>> total_traffic(Mesh((2, 2), ("a", "b")), (R, S(0)), (S(0), S(0)), (8, 8, 16), 4)
    2048
    """
    one, other = (Layout.from_placements(mesh, placements, len(shape)) for placements in (src, dst))
    return itemsize * lower_bound(one, other, tuple(shape)).total


def reduce_dims(
    mesh: Sequence[int], sbps: Sequence[Sbp], shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[tuple[Placement, ...], ...]]:
    """The same distributions on a mesh with fewer axes.

    Axes of size 1 are dropped; neighbours along which all the given tuples say the same are merged, split ones only
    where every size that can occur is cut alike.

    Args:
        mesh: the mesh shape.
        sbps: the tuples that are to hold on the reduced mesh, such as source and target.
        shape: the global shape.

    Returns:
        The reduced mesh shape, and the tuples on it.

    >>> reduce_dims((2, 4), [(Shard(0), Shard(0)), (Replicate(), Replicate())], (8, 8))[0]
    (8,)
    """
    sizes: list[int] = []
    columns: list[tuple[Placement, ...]] = []
    possible = [{dim: {size} for dim, size in enumerate(shape)} for _ in sbps]
    before = possible
    for size, column in zip(mesh, zip(*sbps)):
        if size == 1:
            continue
        if columns and columns[-1] == column and _mergeable(before, column, sizes[-1] * size):
            sizes[-1] *= size
        else:
            sizes.append(size)
            columns.append(column)
            before = possible
        possible = [_split(known, placement, size) for known, placement in zip(possible, column)]
    if not sizes:
        return (1,), tuple((Replicate(),) for _ in sbps)
    return tuple(sizes), tuple(tuple(column[k] for column in columns) for k in range(len(sbps)))


def _mergeable(known: list[dict[int, set[int]]], column: tuple[Placement, ...], parts: int) -> bool:
    return all(
        all(can_merge(size, parts) for size in sizes[placement.dim])
        for sizes, placement in zip(known, column)
        if isinstance(placement, Shard)
    )


def _split(known: dict[int, set[int]], placement: Placement, parts: int) -> dict[int, set[int]]:
    """The sizes that can occur per dim after one more split."""
    if not isinstance(placement, Shard):
        return known
    dim = placement.dim
    sizes = {split_block(0, size, parts, i)[1] for size in known[dim] for i in (0, parts - 1)}
    return {**known, dim: sizes}


def mesh_of(shape: Sequence[int]) -> Mesh:
    """A mesh with axes named by their number, over ranks 0 .. n-1."""
    return Mesh(tuple(shape), tuple(f"axis{k}" for k in range(len(shape))), range(math.prod(shape)))
