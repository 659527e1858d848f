"""Tensors that need the same collective to come into their layouts share its messages: gradients, norms, parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.elements import in_type
from spmdsim.core.meta import Meta
from spmdsim.core.step import Step
from spmdsim.core.world import performed
from spmdsim.redistribution.merge import BUCKET_BYTES, Merge, elements_held, merge_of, shared_copies
from spmdsim.tensor import Tensor
from spmdsim.tensor.tensor import origin_of
from spmdsim.trace import recorder
from spmdsim.worlds.programs import Posted

#: One array per owned rank.
Arrays = list[np.ndarray]
#: What a tensor is called by who waits for it, the tensor, and the layout that it is wanted in.
Wanted = tuple[Hashable, Tensor, Layout]
#: How two layouts may share messages: reductions, or all_gathers.
Merging = Callable[[Layout, Layout, tuple[int, ...]], Merge | None]


def brought(items: Sequence[tuple[Tensor, Layout]], operator: str) -> dict[Hashable, Tensor]:
    """The tensors that share reductions on their way into the layouts wanted, by their numbers; others are left out."""
    together = Together(operator)
    for number, (tensor, layout) in enumerate(items):
        together.add(number, tensor, layout)
    return together.finish()


class Together:
    """Tensors on their way into other layouts: those that are reduced, scattered or gathered alike share messages.

    They are laid end to end in buckets, in the order in which they come, and each bucket takes one call; the values are
    those of one call per tensor. Where the world overlaps, a bucket is begun as soon as it is full, and waited for at
    the end; else all run at the end. Buckets are the same either way. The calls have the operator's name in traces.
    """

    def __init__(self, operator: str, merging: Merging = merge_of) -> None:
        self.operator, self.merging = operator, merging
        self._open: dict[tuple[Any, ...], Bucket] = {}
        self._full: list[Bucket] = []

    def add(self, name: Hashable, tensor: Tensor, layout: Layout) -> None:
        """One more tensor, wanted in a layout."""
        merge = self.merging(tensor.layout, layout, tensor.shape)
        if merge is None:
            return
        key = (tensor.world, merge, tensor.dtype)
        bucket = self._open.get(key)
        if bucket is None:
            bucket = self._open[key] = Bucket(merge, self.operator)
        bucket.items.append((name, tensor, layout))
        whole = merge.ranks if merge.collective == "all_gather" else 1
        bucket.nbytes += whole * _held(tensor) * tensor.meta.held.itemsize
        if bucket.nbytes >= BUCKET_BYTES:
            self._full.append(self._open.pop(key))
            if tensor.world.overlaps(merge.mesh):
                for before in self._full[:-2]:  # an all_reduce has two halves: the second ones begin, too
                    before.advance()
                bucket.post()
        tensor.world.proceed()

    def finish(self) -> dict[Hashable, Tensor]:
        """Wait for all: the tensors in their layouts by name, but for those that nothing was shared with."""
        begun = any(bucket.posted for bucket in self._full)
        self._full += self._open.values()
        self._open.clear()
        for bucket in self._full if begun else ():
            bucket.post()
        for bucket in self._full:
            bucket.advance()
        done: dict[Hashable, Tensor] = {}
        for bucket in self._full:
            if bucket.posted or len(bucket.items) > 1:
                done |= bucket.bring()
        self._full.clear()
        return done

    def leave(self) -> dict[Hashable, Callable[[Hashable], Tensor]]:
        """Begin all buckets where the world overlaps; by name who waits for a tensor that is under way, and gives it."""
        waiting: dict[Hashable, Callable[[Hashable], Tensor]] = {}
        for bucket in (*self._full, *self._open.values()):
            if bucket.items[0][1].world.overlaps(bucket.merge.mesh):
                bucket.post()
                waiting.update((name, bucket.one) for name, _, _ in bucket.items)
        self._full = [bucket for bucket in self._full if bucket.posted is None]
        self._open = {key: bucket for key, bucket in self._open.items() if bucket.posted is None}
        return waiting


class Bucket:
    """Tensors that take one collective together, or the few in which ranks with copies help."""

    def __init__(self, merge: Merge, operator: str) -> None:
        self.merge, self.operator = merge, operator
        self.items: list[Wanted] = []
        self.nbytes = 0
        self.posted: Posted | None = None
        self._steps: tuple[Step, ...] = ()
        self._brought: dict[Hashable, Tensor] | None = None

    def post(self) -> None:
        """Begin its collective, the first if there are several."""
        if self.posted is None:
            self.posted = self._begun()

    def advance(self) -> None:
        """Wait for the first half of one that was begun, and begin the second."""
        if self.posted is not None:
            self.posted.advance()

    def bring(self) -> dict[Hashable, Tensor]:
        """The tensors in their layouts."""
        tensors = [tensor for _, tensor, _ in self.items]
        world = tensors[0].world
        if self.posted is not None:
            after, steps = self.posted.wait(), self._steps[1:]
        else:
            after, steps = self._joined()
        with recorder.operator(self.operator):
            for step in steps:
                world.about = origin_of(tensors)
                after = world.run(step, after)
        world.about = 0
        return self._parted(after)

    def one(self, name: Hashable) -> Tensor:
        """One of its tensors, in its layout; the first time it waits for all."""
        if self._brought is None:
            self._brought = self.bring()
        return self._brought.pop(name)

    def _begun(self) -> Posted:
        joined, self._steps = self._joined()
        tensors = [tensor for _, tensor, _ in self.items]
        world = tensors[0].world
        world.about = origin_of(tensors)
        with recorder.operator(self.operator):
            posted: Posted = world.post(self._steps[0], joined)
        world.about = 0
        return posted

    def _joined(self) -> tuple[list[Any], tuple[Step, ...]]:
        """All local pieces laid end to end, and the collectives that they take."""
        tensors = [tensor for _, tensor, _ in self.items]
        world, held = tensors[0].world, tensors[0].meta.held
        total = sum(map(_held, tensors))
        copies = shared_copies(tensor.layout for tensor in tensors)
        steps = self.merge.steps(total, copies, held.itemsize, world.machine)
        if not world.has_data:
            return [world.empty((total,), held)], steps
        run = partial(_joined, self.merge, tensors[0].layout.mesh, held, world.ranks)
        return performed(run, *[tensor.held for tensor in tensors]), steps

    def _parted(self, after: list[Any]) -> dict[Hashable, Tensor]:
        merge, world = self.merge, self.items[0][1].world
        parts = merge.ranks if merge.collective == "reduce_scatter" else 1
        ends = np.cumsum([0, *(_held(tensor) // parts for _, tensor, _ in self.items)])
        parted: dict[Hashable, Tensor] = {}
        for (name, tensor, layout), start, stop in zip(self.items, ends, ends[1:]):
            meta = Meta.of(layout, tensor.shape, tensor.dtype)
            if not world.has_data:
                shards = [world.empty(layout.local_shape(meta.shape, r), meta.held) for r in world.ranks]
            else:
                pieces = performed(partial(_pieces, merge, start, stop, meta, world.ranks), after)
                shards = in_type(pieces, meta.held)
            parted[name] = Tensor(world, meta, shards, origin=tensor.origin)
        return parted


def _held(tensor: Tensor) -> int:
    return elements_held(tensor.layout, tensor.shape)


def _joined(merge: Merge, mesh: Mesh, kind: np.dtype, ranks: Sequence[int], *lists: Arrays) -> Arrays:
    """The ranks' local pieces, each rank's end to end."""
    rows: dict[tuple[int, ...], np.ndarray] = {}
    keys = [tuple(map(id, pieces)) for pieces in zip(*lists)]
    for key, pieces in zip(keys, zip(*lists)):
        if key not in rows:
            rows[key] = np.concatenate([_rows(piece, merge) for piece in pieces], axis=1).ravel()
    outside = np.zeros(0, kind)
    return [rows[key] if rank in mesh else outside.copy() for rank, key in zip(ranks, keys)]


def _pieces(merge: Merge, start: int, stop: int, meta: Meta, ranks: Sequence[int], flats: Arrays) -> Arrays:
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
