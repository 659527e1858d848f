"""Gradients of parameters: reduced once each, and those that reduce alike in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.errors import LayoutError
from spmdsim.nn.module import Parameter
from spmdsim.redistribution.merge import Merge, buckets, elements_held, merge_of
from spmdsim.tensor import Tensor
from spmdsim.tensor.meta import Meta
from spmdsim.tensor.tape import Pending, added, keep, pull_back, settle
from spmdsim.trace import recorder
from spmdsim.worlds.reduce_ops import in_type


def backward(loss: Tensor, *, merge: bool = True) -> None:
    """Gradients of everything ``loss`` depends on, into ``.grad``.

    Args:
        loss: a tensor of one element.
        merge: reduce gradients that wait for the same reduction together (data parallelism: one call per
            bucket instead of one per parameter). The values are the same either way.

    Raises:
        LayoutError: a loss of more than one element.
    """
    if loss.size != 1:
        raise LayoutError(
            f"backward() starts from one element, but the loss has shape {loss.shape}; sum it first"
        )
    leaves = pull_back(loss)
    merged = _bucketed(leaves) if merge else {}
    for leaf, pending in leaves:
        total = merged.get(id(leaf))
        keep(leaf, settle(pending, leaf.layout.dual()) if total is None else total)


Key = tuple[Any, ...]


def _bucketed(leaves: Sequence[tuple[Tensor, Pending]]) -> dict[int, Tensor]:
    waiting: dict[Key, list[tuple[Tensor, Tensor]]] = {}
    for leaf, pending in leaves:
        if len({id(gradient.meta) for gradient in pending}) != 1:
            continue
        total = added(pending)
        merge = merge_of(total.layout, leaf.layout.dual(), total.shape)
        if merge is not None:
            waiting.setdefault((total.world, merge, total.dtype), []).append((leaf, total))
    done: dict[int, Tensor] = {}
    for (_, merge, _), group in waiting.items():
        for bucket in buckets((pair, _held(pair[1]) * pair[1].meta.held.itemsize) for pair in group):
            if len(bucket) > 1:
                done.update(_reduce_together(merge, bucket))
    return done


def _held(gradient: Tensor) -> int:
    return elements_held(gradient.layout, gradient.shape)


def _reduce_together(merge: Merge, bucket: list[tuple[Tensor, Tensor]]) -> dict[int, Tensor]:
    """One collective over all local pieces, laid end to end."""
    gradients = [gradient for _, gradient in bucket]
    world, ranks = gradients[0].world, merge.ranks if merge.dim is not None else 1
    sizes = [_held(gradient) for gradient in gradients]
    if world.has_data:
        joined = [
            np.concatenate([_rows(g.held[k], merge, ranks) for g in gradients], axis=1).reshape(-1)
            for k in range(len(world.ranks))
        ]
    else:
        joined = [world.empty((sum(sizes),), gradients[0].meta.held)]
    with recorder.operator("gradients"):
        reduced = world.run(merge.step(sum(sizes)), joined)
    ends = np.cumsum([0, *(size // ranks for size in sizes)])
    found = {}
    for (leaf, gradient), start, stop in zip(bucket, ends, ends[1:]):
        meta = Meta.of(leaf.layout.dual(), gradient.shape, gradient.dtype)
        if world.has_data:
            shapes = (meta.layout.local_shape(meta.shape, rank) for rank in world.ranks)
            pieces = [flat[start:stop].reshape(shape) for flat, shape in zip(reduced, shapes)]
            shards = in_type(pieces, meta.held)
        else:
            shards = [world.empty(meta.layout.local_shape(meta.shape, r), meta.held) for r in world.ranks]
        found[id(leaf)] = Tensor(world, meta, shards)
    return found


def _rows(shard: np.ndarray, merge: Merge, ranks: int) -> np.ndarray:
    """A local piece with one row per rank that it is scattered over; one row if all of it is reduced."""
    if merge.dim is None:
        return shard.reshape(1, -1)
    before, size, after = shard.shape[: merge.dim], shard.shape[merge.dim], shard.shape[merge.dim + 1 :]
    parts = shard.reshape(math.prod(before), ranks, size // ranks, math.prod(after))
    return parts.swapaxes(0, 1).reshape(ranks, -1)


def global_norm(parameters: Sequence[Parameter]) -> float:
    """Root of the sum of squares of all gradients, the same on every rank."""
    import spmdsim.ops as ops
    from spmdsim.ops.reduce import wide

    total = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            slope = wide(parameter.grad)
            total += float(ops.sum(ops.multiply(slope, slope)).item())
    return math.sqrt(total)


def clip(parameters: Sequence[Parameter], largest: float) -> float:
    """Scale all gradients down together so that their global norm is at most ``largest``; returns the norm."""
    import spmdsim.ops as ops
    from spmdsim.ops.reduce import as_type, wide

    norm = global_norm(parameters)
    if norm > largest:
        for parameter in parameters:
            if parameter.grad is not None:
                scaled = ops.multiply(wide(parameter.grad), largest / (norm + 1e-6))
                parameter.value.grad = as_type(scaled, parameter.grad.dtype)
    return norm
