"""Tensors that need the same collective to come into their layouts share its messages: gradients, norms, parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.meta import Meta
from spmdsim.core.reductions import in_type
from spmdsim.core.world import performed
from spmdsim.redistribution.merge import Merge, buckets, elements_held, merge_of, shared_copies
from spmdsim.tensor import Tensor
from spmdsim.tensor.tensor import origin_of
from spmdsim.trace import recorder

#: A tensor's number among those given, the tensor, and the layout that it is wanted in.
Wanted = tuple[int, Tensor, Layout]


def brought(
    items: Sequence[tuple[Tensor, Layout]],
    operator: str,
    merging: Callable[[Layout, Layout, tuple[int, ...]], Merge | None] = merge_of,
) -> dict[int, Tensor]:
    """The tensors that share messages on their way into the layouts wanted, by their numbers; others are left out.

    Each group of tensors that are reduced, scattered or gathered alike is laid end to end and takes one call per
    bucket; the values are those of one call per tensor.

    Args:
        items: tensors, and the layout that each is wanted in.
        operator: whose name the calls have in traces.
        merging: which collectives may share messages: reductions, or all_gathers (``gather_of``).
    """
    waiting: dict[tuple[Any, ...], list[Wanted]] = {}
    for number, (tensor, layout) in enumerate(items):
        merge = merging(tensor.layout, layout, tensor.shape)
        if merge is not None:
            waiting.setdefault((tensor.world, merge, tensor.dtype), []).append((number, tensor, layout))
    done: dict[int, Tensor] = {}
    for (_, merge, _), group in waiting.items():
        for bucket in buckets((one, _held(one[1]) * one[1].meta.held.itemsize) for one in group):
            if len(bucket) > 1:
                with recorder.operator(operator):
                    done.update(_together(merge, bucket))
    return done


def _held(tensor: Tensor) -> int:
    return elements_held(tensor.layout, tensor.shape)


def _together(merge: Merge, bucket: list[Wanted]) -> dict[int, Tensor]:
    """One collective over all local pieces, laid end to end, or those in which ranks with copies help."""
    tensors = [tensor for _, tensor, _ in bucket]
    world, sizes = tensors[0].world, [_held(tensor) for tensor in tensors]
    if world.has_data:
        layout, ranks = tensors[0].layout, world.ranks
        joined = performed(
            partial(_joined, merge, layout.mesh, tensors[0].meta.held, ranks), *[t.held for t in tensors]
        )
    else:
        joined = [world.empty((sum(sizes),), tensors[0].meta.held)]
    copies = shared_copies(tensor.layout for tensor in tensors)
    after = joined
    for step in merge.steps(sum(sizes), copies, tensors[0].meta.held.itemsize, world.machine):
        world.about = origin_of(tensors)
        after = world.run(step, after)
    world.about = 0
    parts = merge.ranks if merge.collective == "reduce_scatter" else 1
    ends = np.cumsum([0, *(size // parts for size in sizes)])
    found = {}
    for (number, tensor, layout), start, stop in zip(bucket, ends, ends[1:]):
        meta = Meta.of(layout, tensor.shape, tensor.dtype)
        if not world.has_data:
            shards = [world.empty(layout.local_shape(meta.shape, r), meta.held) for r in world.ranks]
        else:
            pieces = performed(partial(_pieces, merge, start, stop, meta, world.ranks), after)
            shards = in_type(pieces, meta.held)
        found[number] = Tensor(world, meta, shards, origin=tensor.origin)
    return found


def _joined(
    merge: Merge, mesh: Mesh, kind: np.dtype, ranks: Sequence[int], *lists: list[np.ndarray]
) -> list[np.ndarray]:
    """The ranks' local pieces, each rank's end to end."""
    made: dict[tuple[int, ...], np.ndarray] = {}
    keys = [tuple(map(id, pieces)) for pieces in zip(*lists)]
    for key, pieces in zip(keys, zip(*lists)):
        if key not in made:
            made[key] = np.concatenate([_rows(piece, merge) for piece in pieces], axis=1).reshape(-1)
    outside = np.zeros(0, kind)
    return [made[key] if rank in mesh else outside.copy() for rank, key in zip(ranks, keys)]


def _pieces(
    merge: Merge, start: int, stop: int, meta: Meta, ranks: Sequence[int], flats: list[np.ndarray]
) -> list[np.ndarray]:
    """Every rank's piece of one tensor, of what came for all."""
    pieces: dict[int, np.ndarray] = {}  # ranks that share the result share its pieces
    for flat, rank in zip(flats, ranks):
        if id(flat) not in pieces and rank in meta.layout.mesh:
            pieces[id(flat)] = _piece(merge, flat, start, stop, meta.layout.local_shape(meta.shape, rank))
        elif rank not in meta.layout.mesh:
            pieces[id(flat)] = np.zeros((0,) * len(meta.shape), meta.held)
    return [pieces[id(flat)] for flat in flats]


def _rows(shard: np.ndarray, merge: Merge) -> np.ndarray:
    """A local piece with one row per rank that it is scattered over; else one row."""
    if merge.dim is None or merge.collective == "all_gather":
        return shard.reshape(1, -1)
    before, size, after = shard.shape[: merge.dim], shard.shape[merge.dim], shard.shape[merge.dim + 1 :]
    parts = shard.reshape(math.prod(before), merge.ranks, size // merge.ranks, math.prod(after))
    return parts.swapaxes(0, 1).reshape(merge.ranks, -1)


def _piece(merge: Merge, flat: np.ndarray, start: int, stop: int, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor's piece of what came: one part of it, or one of every rank's put together along the gathered dim."""
    if merge.collective != "all_gather" or merge.dim is None:
        return flat[start:stop].reshape(shape)
    before, size, after = shape[: merge.dim], shape[merge.dim], shape[merge.dim + 1 :]
    parts = flat.reshape(merge.ranks, -1)[:, start:stop]
    parts = parts.reshape(merge.ranks, math.prod(before), size // merge.ranks, math.prod(after))
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(shape)
