"""Gradients of parameters, reduced once each; those that reduce alike, norms and what is gathered share messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from functools import partial, reduce
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.program_tensor import origin_of
from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.core.tape import accumulate_grad, add_gradients, pull_back, reduce_gradients
from spmdsim.core.tensor import Meta
from spmdsim.errors import LayoutError
from spmdsim.nn.module import Module, Parameter, parameters_of
from spmdsim.redistribution.plans.merge import BUCKET_BYTES, Merge, elements_held, merge_of, shared_copies
from spmdsim.worlds.programs import Posted
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.recorder import programs
from spmdsim.wrong_calls import explained

__all__ = ["backward", "clip", "global_norm"]

#: One array per owned rank.
Arrays = list[np.ndarray]
#: What a tensor is called by who waits for it, the tensor, and the layout that it is wanted in.
Wanted = tuple[Hashable, Tensor, Layout]
#: How two layouts may share messages: reductions, or all_gathers.
Merging = Callable[[Layout, Layout, tuple[int, ...]], Merge | None]


def brought(items: Sequence[tuple[Tensor, Layout]], operator: str) -> dict[Hashable, Tensor]:
    """The tensors in the layouts wanted, by their numbers; on their way they share reductions."""
    together = Together(operator)
    for number, (tensor, layout) in enumerate(items):
        together.add(number, tensor, layout)
    return together.finish()


class Together:
    """Tensors on their way into other layouts: those that are reduced, scattered or gathered alike share messages.

    They are laid end to end in buckets, in the order in which they come, and each bucket takes one call; the values are
    those of one call per tensor. A bucket runs as soon as it is full, and what lies in it is free then; where the world
    overlaps, it is begun, and waited for at the end. The calls have the operator's name in traces.
    """

    def __init__(self, operator: str, merging: Merging = merge_of) -> None:
        self.operator, self.merging = operator, merging
        self._open: dict[tuple[Any, ...], Bucket] = {}
        self._full: list[Bucket] = []
        self._done: dict[Hashable, Tensor] = {}

    def add(self, name: Hashable, tensor: Tensor, layout: Layout) -> None:
        """One more tensor, wanted in a layout; one that can share nothing goes there at once."""
        merge = self.merging(tensor.layout, layout, tensor.shape)
        if merge is None:
            self._done[name] = tensor.to(layout)
            return
        key = (tensor.world, merge, tensor.dtype)
        bucket = self._open.get(key)
        if bucket is None:
            bucket = self._open[key] = Bucket(merge, self.operator)
        bucket.items.append((name, tensor, layout))
        whole = merge.ranks if merge.collective == "all_gather" else 1
        bucket.nbytes += whole * _held(tensor) * tensor.meta.held.itemsize
        world = tensor.world
        del tensor  # but for the bucket nobody may refer to it
        if bucket.nbytes >= BUCKET_BYTES:
            del self._open[key]
            if world.overlaps(merge.mesh):
                self._full.append(bucket)
                for before in self._full[:-2]:  # an all_reduce has two halves: the second ones begin, too
                    before.advance()
                bucket.post()
            else:
                self._done |= bucket.bring()
        world.proceed()

    def finish(self) -> dict[Hashable, Tensor]:
        """Wait for all: the tensors in their layouts by name."""
        begun = any(bucket.posted for bucket in self._full)
        self._full += self._open.values()
        self._open.clear()
        for bucket in self._full if begun else ():
            bucket.post()
        for bucket in self._full:
            bucket.advance()
        done, self._done = self._done, {}
        for bucket in self._full:
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
        """The tensors in their layouts; one that nothing was shared with goes there by itself."""
        if self.posted is None and len(self.items) == 1:
            ((name, tensor, layout),) = self.items
            return {name: tensor.to(layout)}
        if self.posted is not None:
            after, steps = self.posted.wait(), self._steps[1:]
        else:
            after, steps = self._joined()
        tensors = [tensor for _, tensor, _ in self.items]
        world = tensors[0].world
        try:
            with recorder.operator(self.operator):
                for step in steps:
                    world.call_provenance = origin_of(tensors)
                    after = world.run(step, after)
        finally:
            world.call_provenance = 0
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
        world.call_provenance = origin_of(tensors)
        try:
            with recorder.operator(self.operator):
                posted: Posted = world.post(self._steps[0], joined)
        finally:
            world.call_provenance = 0
        return posted

    def _joined(self) -> tuple[list[Any], tuple[Step, ...]]:
        """All local pieces laid end to end, which are forgotten then, and the collectives that they take."""
        tensors = [tensor for _, tensor, _ in self.items]
        world, held = tensors[0].world, tensors[0].meta.held
        total = sum(map(_held, tensors))
        copies = shared_copies(tensor.layout for tensor in tensors)
        steps = self.merge.steps(total, copies, held.itemsize, world.machine)
        if not world.has_data:
            return [world.empty((total,), held)], steps
        run = partial(_joined, self.merge, tensors[0].layout.mesh, held, world.ranks)
        joined = world.perform(run, *[tensor.held for tensor in tensors])
        self.items = [(name, _without_data(tensor), layout) for name, tensor, layout in self.items]
        return joined, steps

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
                pieces = world.perform(partial(_pieces, merge, start, stop, meta, world.ranks), after)
                shards = world.in_type(pieces, meta.held)
            parted[name] = Tensor(world, meta, shards, origin=tensor.origin)
        return parted


def _without_data(tensor: Tensor) -> Tensor:
    """What is known of a tensor, without its arrays."""
    told = copy(tensor)
    told.held = []
    return told


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


def backward(loss: Tensor, *, merge: bool = True) -> None:
    """Gradients of everything ``loss`` depends on, into ``.grad``.

    Args:
        loss: a tensor of one element.
        merge: reduce gradients that wait for the same reduction together (data parallelism: one call per
            bucket instead of one per parameter). The values are the same either way.

    Raises:
        LayoutError: a loss of more than one element.
        UsageTypeError: nothing that the loss depends on needs a gradient.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> weight.grad.full().tolist()
    [6.0, 8.0]
    """
    if loss.size != 1:
        raise LayoutError(
            f"backward() starts from one element, but the loss has shape {loss.shape}; sum it first"
        )
    together = Together("gradients")

    leaves = []
    for leaf, gradients in pull_back(loss):
        leaves.append(leaf)
        if merge and len({id(gradient.meta) for gradient in gradients}) == 1:
            gradients[:] = [add_gradients(gradients)]
        else:
            gradients[:] = [reduce_gradients(gradients, _wanted(leaf))]
        together.add(id(leaf), gradients.pop(), _wanted(leaf))
    complete = together.finish()
    for leaf in leaves:
        accumulate_grad(leaf, complete[id(leaf)])


def _wanted(leaf: Tensor) -> Layout:
    return leaf.gradient_layout or leaf.layout.dual()


def check_shapes(trained: Sequence[Parameter], values: Sequence[Tensor], slopes: Sequence[Tensor]) -> None:
    """Refuse gradients that are not their parameter's, before any of these is updated."""
    for parameter, value, slope in zip(trained, values, slopes):
        if slope.shape != value.shape:
            raise LayoutError(
                f"the gradient of parameter {parameter.name or parameter.shape} has shape {slope.shape}, but its value "
                f"has {value.shape}"
            )


@explained
def global_norm(parameters: Module | Iterable[Parameter | Tensor]) -> float:
    """Root of the sum of squares of all gradients, the same on every rank.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.global_norm([weight])
    10.0
    """
    squares = _squares([parameter.value for parameter in parameters_of(parameters)])
    return math.sqrt(sum(float(square.item()) for square in squares))


def _squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sum of squares of each gradient, whole on every rank, and reduced together."""
    from spmdsim.arrays import ops
    from spmdsim.arrays.ops.dim_reductions import wide

    slopes = [wide(tensor.grad) for tensor in tensors if tensor.grad is not None]
    squares = [ops.sum(squared_modulus(slope)) for slope in slopes]
    together = brought([(square, square.layout.reduced) for square in squares], "norm")
    return [together[k] for k in range(len(squares))]


def squared_modulus(x: Tensor) -> Tensor:
    """Return the square of each element, of a complex one the square of its absolute value."""
    from spmdsim.arrays import ops

    return ops.real(ops.multiply(x, ops.conjugate(x))) if x.dtype.kind == "c" else ops.multiply(x, x)


@explained
def clip(parameters: Module | Iterable[Parameter | Tensor], largest: float) -> float | Tensor:
    """Scale all gradients down together so that their global norm is at most ``largest``.

    Returns:
        The norm before, the same on every rank; in a function that is compiled, a tensor without dims.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.clip([weight], 5.0), weight.grad.full().round(3).tolist()
    (10.0, [3.0, 4.0])
    """
    from spmdsim.arrays import ops
    from spmdsim.arrays.ops.dim_reductions import as_type, wide

    trained = [parameter.value for parameter in parameters_of(parameters)]
    squares = _squares(trained)
    if not squares:
        return 0.0
    wider = [ops.cast(square, np.float64).to(squares[0].layout) for square in squares]
    norm = ops.sqrt(reduce(ops.add, wider))
    factor = ops.where(norm > largest, largest / (norm + 1e-6), 1.0)
    for tensor in trained:
        if tensor.grad is not None:
            slope = wide(tensor.grad)
            tensor.grad = as_type(ops.multiply(slope, ops.cast(factor, slope.dtype)), tensor.grad.dtype)
    return norm if programs else float(norm.item())
