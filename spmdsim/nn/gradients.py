"""Gradients of parameters: reduced once each, and those that reduce alike in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.layout import Layout
from spmdsim.nn.module import Parameter
from spmdsim.redistribution.step import Step
from spmdsim.tensor import Tensor
from spmdsim.tensor.meta import Meta
from spmdsim.tensor.tape import Pending, added, pull_back, settle
from spmdsim.trace import recorder

#: Gradients are put together into buckets of at most so many bytes per rank.
BUCKET_BYTES = 25 * 1024 * 1024


def backward(loss: Tensor, *, merge: bool = True) -> None:
    """Gradients of everything ``loss`` depends on, into ``.grad``.

    Args:
        loss: a tensor of one element.
        merge: reduce gradients that wait for the same all_reduce together (data parallelism: one call per
            bucket instead of one per parameter). The values are the same either way.
    """
    leaves = pull_back(loss)
    merged = _bucketed(leaves) if merge else {}
    for leaf, pending in leaves:
        total = merged.get(id(leaf)) or settle(pending, leaf.layout.dual())
        leaf.grad = total if leaf.grad is None else added(leaf.grad, total)


Key = tuple[Any, ...]


def _bucketed(leaves: Sequence[tuple[Tensor, Pending]]) -> dict[int, Tensor]:
    waiting: dict[Key, list[tuple[Tensor, Tensor]]] = {}
    for leaf, pending in leaves:
        if len({id(gradient.meta) for gradient in pending}) != 1:
            continue
        total = pending[0]
        for gradient in pending[1:]:
            total = added(total, gradient)
        src, dst = total.layout, leaf.layout.dual()
        if src.partial and src.reduced == dst and src.is_even(total.shape):
            key = (total.world, src.mesh, src.partial, total.dtype)
            waiting.setdefault(key, []).append((leaf, total))
    done: dict[int, Tensor] = {}
    for group in waiting.values():
        for bucket in _split(group):
            if len(bucket) > 1:
                done.update(_reduce_together(bucket))
    return done


def _split(group: list[tuple[Tensor, Tensor]]) -> list[list[tuple[Tensor, Tensor]]]:
    buckets: list[list[tuple[Tensor, Tensor]]] = [[]]
    size = 0
    for leaf, gradient in group:
        nbytes = math.prod(gradient.layout.local_shape(gradient.shape, gradient.layout.mesh.rank_at(0)))
        nbytes *= gradient.dtype.itemsize
        if buckets[-1] and size + nbytes > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append((leaf, gradient))
        size += nbytes
    return buckets


def _reduce_together(bucket: list[tuple[Tensor, Tensor]]) -> dict[int, Tensor]:
    """One all_reduce of all local pieces, laid end to end."""
    gradients = [gradient for _, gradient in bucket]
    first = gradients[0]
    world, mesh, partial = first.world, first.layout.mesh, first.layout.partial
    sizes = [math.prod(g.layout.local_shape(g.shape, mesh.rank_at(0))) for g in gradients]
    flat = Layout(mesh, (None,), partial)
    step = Step("all_reduce", first.layout.partial_axes, flat, flat.reduced, (sum(sizes),), partial[0][1])
    if world.has_data:
        joined = [
            np.concatenate([g.shards[k].reshape(-1) for g in gradients]) for k in range(len(world.ranks))
        ]
    else:
        joined = [world.empty((sum(sizes),), first.dtype)]
    with recorder.operator("gradients"):
        reduced = world.run(step, joined)
    return {id(leaf): part for (leaf, _), part in zip(bucket, _cut(gradients, sizes, reduced))}


def _cut(gradients: Sequence[Tensor], sizes: Sequence[int], reduced: Sequence[Any]) -> list[Tensor]:
    world, ends = gradients[0].world, np.cumsum([0, *sizes])
    parts = []
    for gradient, start, stop in zip(gradients, ends, ends[1:]):
        meta = Meta.of(gradient.layout.reduced, gradient.shape, gradient.dtype)
        if world.has_data:
            shards = [flat[start:stop].reshape(shard.shape) for flat, shard in zip(reduced, gradient.shards)]
        else:
            shards = list(gradient.shards)
        parts.append(Tensor(world, meta, shards))
    return parts


def global_norm(parameters: Sequence[Parameter]) -> float:
    """Root of the sum of squares of all gradients, the same on every rank."""
    import spmdsim.ops as ops

    total = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            total += float(ops.sum(ops.multiply(parameter.grad, parameter.grad)).item())
    return math.sqrt(total)


def clip(parameters: Sequence[Parameter], largest: float) -> float:
    """Scale all gradients down together so that their global norm is at most ``largest``; returns the norm."""
    import spmdsim.ops as ops

    norm = global_norm(parameters)
    if norm > largest:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.value.grad = ops.multiply(parameter.grad, largest / (norm + 1e-6))
    return norm
