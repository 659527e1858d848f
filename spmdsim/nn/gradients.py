"""Gradients of parameters, their norm and clipping. Tensors that need equal collectives share messages.

Read `backward` first, then `SharedMoves`, which sorts tensors into buckets, then `Bucket`, which runs one collective
on the concatenated shards of its tensors. `global_norm` and `clip` at the end stand alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from functools import partial, reduce
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.core.tape import accumulate_grad, add_gradients, pull_back, reduce_gradients
from spmdsim.core.tensor import Meta
from spmdsim.errors import LayoutError, UsageTypeError
from spmdsim.nn.module import Module, Parameter, parameters_of
from spmdsim.redistribution.plans.merge import (
    BUCKET_BYTES,
    Merge,
    common_replica_axes,
    merge_of,
    shard_elements,
)
from spmdsim.worlds.programs import Posted
from spmdsim.worlds.provenance import find_provenance_number
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.recorder import programs
from spmdsim.wrong_calls import explained

__all__ = ["backward", "clip", "global_norm"]

#: One array per owned rank.
Arrays = list[np.ndarray]
#: The caller's name for a tensor, the tensor, and the layout to move it to.
MoveItem = tuple[Hashable, Tensor, Layout]
#: Returns the collective that can move a tensor of a shape between two layouts in a shared message; None if none can.
Merging = Callable[[Layout, Layout, tuple[int, ...]], Merge | None]


def move_sharing_messages(items: Sequence[tuple[Tensor, Layout]], operator: str) -> dict[Hashable, Tensor]:
    """Move each tensor to its layout with shared reductions; all ranks must call.

    Return the results by position in ``items``.

    Args:
        items: pairs of a tensor and its new layout.
        operator: the name of the collectives in traces.
    """
    moves = SharedMoves(operator)
    for number, (tensor, layout) in enumerate(items):
        moves.add(number, tensor, layout)
    return moves.finish()


class SharedMoves:
    """Moves of tensors to other layouts, in which tensors that need equal collectives share messages.

    Tensors are concatenated in buckets, in the order of `add`. Each bucket needs one collective; the values equal those
    of one collective per tensor. A full bucket (``BUCKET_BYTES``) runs at once and releases its tensors. If the world
    overlaps communication, the bucket only starts, and `finish` waits for it.

    Args:
        operator: the name of the collectives in traces.
        merging: returns the collective that a tensor needs, or None if it cannot share a message. Default: reductions.
    """

    def __init__(self, operator: str, merging: Merging = merge_of) -> None:
        self.operator, self.merging = operator, merging
        self._open: dict[tuple[Any, ...], Bucket] = {}
        self._closed: list[Bucket] = []
        self._done: dict[Hashable, Tensor] = {}

    def add(self, name: Hashable, tensor: Tensor, layout: Layout) -> None:
        """Add a tensor to the bucket of its collective; run or start the bucket if it is now full.

        A bucket is a list of tensors that one collective moves together. Two tensors share a bucket if their worlds and
        dtypes are equal and ``merging`` returns equal collectives for them. There are three cases:

        - ``merging`` returns None: the tensor is redistributed at once, without a bucket.
        - The bucket's result now has ``BUCKET_BYTES`` (25 MiB) or more on one rank: the bucket is closed, so later
          tensors go to a new one. If the world overlaps communication with calculation, the collective starts in the
          background, and all_reduces of earlier buckets start their second half, except that of the last one. In other
          worlds the collective runs to its end.
        - Otherwise the tensor waits in the bucket, at the latest until `finish`.

        All ranks must add equal tensors in equal order.

        Args:
            name: key of the tensor in the result of `finish`; a name that is used again replaces the earlier tensor.
            tensor: the tensor; its arrays are released when its bucket runs.
            layout: the layout to move it to.
        """
        merge = self.merging(tensor.layout, layout, tensor.shape)
        if merge is None:
            self._done[name] = tensor.to(layout)
            return
        key = (tensor.world, merge, tensor.dtype)
        bucket = self._open.get(key)
        if bucket is None:
            bucket = self._open[key] = Bucket(merge, self.operator)
        bucket.items.append((name, tensor, layout))
        shard_count = merge.ranks if merge.collective == "all_gather" else 1
        bucket.nbytes += shard_count * _count_elements(tensor) * tensor.meta.storage_dtype.itemsize
        world = tensor.world
        del tensor  # Only the bucket may refer to the tensor, so that running the bucket frees its memory.
        if bucket.nbytes >= BUCKET_BYTES:
            del self._open[key]
            if world.overlaps(merge.mesh):
                self._closed.append(bucket)
                # An all_reduce has two halves. Start the second half of all buckets but the latest two.
                for earlier in self._closed[:-2]:
                    earlier.advance()
                bucket.post()
            else:
                self._done |= bucket.collect_results()
        world.proceed()

    def finish(self) -> dict[Hashable, Tensor]:
        """Run or wait for the collectives of all buckets; return the moved tensors by name.

        The names are those passed to `add`; each tensor is in the layout passed with it. Tensors that were moved at
        once are included. Tensors that `post_all` returned are not: its caller waits for them. Afterwards the object
        is empty and can be used again. All ranks must call it.
        """
        is_overlapping = any(bucket.posted for bucket in self._closed)
        self._closed += self._open.values()
        self._open.clear()
        for bucket in self._closed if is_overlapping else ():
            bucket.post()
        for bucket in self._closed:
            bucket.advance()
        done, self._done = self._done, {}
        for bucket in self._closed:
            done |= bucket.collect_results()
        self._closed.clear()
        return done

    def post_all(self) -> dict[Hashable, Callable[[Hashable], Tensor]]:
        """Start the collectives of all buckets that can run beside calculations, without waiting.

        These are buckets in worlds that overlap communication with calculation. Buckets in other worlds, and tensors
        that were moved at once, remain for `finish`. All ranks must call it.

        Returns:
            By name of each tensor in a started bucket, a function of that name, which waits for the tensor and returns
            it. `finish` does not return these tensors any more. Empty if no bucket was started.
        """
        waiting: dict[Hashable, Callable[[Hashable], Tensor]] = {}
        for bucket in (*self._closed, *self._open.values()):
            if bucket.items[0][1].world.overlaps(bucket.merge.mesh):
                bucket.post()
                waiting.update((name, bucket.take) for name, _, _ in bucket.items)
        self._closed = [bucket for bucket in self._closed if bucket.posted is None]
        self._open = {key: bucket for key, bucket in self._open.items() if bucket.posted is None}
        return waiting


class Bucket:
    """Tensors that share one collective, or a few collectives in which replicas divide the work.

    Attributes:
        merge: the collective.
        operator: its name in traces.
        items: name, tensor and new layout of each tensor.
        nbytes: size of the result on one rank, in bytes.
        posted: the collective that was started; None before `post`.
    """

    def __init__(self, merge: Merge, operator: str) -> None:
        self.merge, self.operator = merge, operator
        self.items: list[MoveItem] = []
        self.nbytes = 0
        self.posted: Posted | None = None
        self._steps: tuple[Step, ...] = ()
        self._results: dict[Hashable, Tensor] | None = None

    def post(self) -> None:
        """Start the first collective, unless it was started."""
        if self.posted is None:
            self.posted = self._post_first_step()

    def advance(self) -> None:
        """Wait for the first half of a started collective, then start its second half."""
        if self.posted is not None:
            self.posted.advance()

    def collect_results(self) -> dict[Hashable, Tensor]:
        """Return the tensors in their new layouts, by name.

        - The bucket was started (`post`): wait for the collective, then run its remaining steps, if there are any.
        - It was not started and has one tensor: redistribute it without copying it to a buffer.
        - It was not started and has several: concatenate their shards, run the collective, and cut the result.

        Call it once, because it releases the arrays of the tensors before the move.
        """
        if self.posted is None and len(self.items) == 1:
            ((name, tensor, layout),) = self.items
            return {name: tensor.to(layout)}
        if self.posted is not None:
            after, steps = self.posted.wait(), self._steps[1:]
        else:
            after, steps = self._concatenate_shards()
        tensors = [tensor for _, tensor, _ in self.items]
        world = tensors[0].world
        try:
            with recorder.operator(self.operator):
                for step in steps:
                    world.call_provenance = find_provenance_number(tensors)
                    after = world.run(step, after)
        finally:
            world.call_provenance = 0
        return self._split_result(after)

    def take(self, name: Hashable) -> Tensor:
        """Return one tensor in its layout and forget it. The first call waits for the whole bucket."""
        if self._results is None:
            self._results = self.collect_results()
        return self._results.pop(name)

    def _post_first_step(self) -> Posted:
        """Start the first collective on the concatenated shards; return the object to wait for.

        The call does not wait. A bucket needs one step, or several if replicas divide the work between them;
        `collect_results` runs the further steps.
        """
        joined, self._steps = self._concatenate_shards()
        tensors = [tensor for _, tensor, _ in self.items]
        world = tensors[0].world
        world.call_provenance = find_provenance_number(tensors)
        try:
            with recorder.operator(self.operator):
                posted: Posted = world.post(self._steps[0], joined)
        finally:
            world.call_provenance = 0
        return posted

    def _concatenate_shards(self) -> tuple[list[Any], tuple[Step, ...]]:
        """Concatenate the shards of all tensors, then release the tensors' arrays.

        For example, tensors with shards of 6 and 4 elements give one flat array of 10 elements per owned rank.

        Returns:
            ``(joined, steps)``: a flat array per owned rank, and the collectives that reduce, scatter or gather it.
            In a world without data there is one array, with a length but without memory, and the tensors keep their
            arrays.
        """
        tensors = [tensor for _, tensor, _ in self.items]
        world, dtype = tensors[0].world, tensors[0].meta.storage_dtype
        total = sum(map(_count_elements, tensors))
        copies = common_replica_axes(tensor.layout for tensor in tensors)
        steps = self.merge.steps(total, copies, dtype.itemsize, world.machine)
        if not world.has_data:
            return [world.empty((total,), dtype)], steps
        run = partial(_concatenate_by_rank, self.merge, tensors[0].layout.mesh, dtype, world.ranks)
        joined = world.perform(run, *[tensor.stored_shards for tensor in tensors])
        self.items = [(name, _without_data(tensor), layout) for name, tensor, layout in self.items]
        return joined, steps

    def _split_result(self, after: list[Any]) -> dict[Hashable, Tensor]:
        """Cut the flat arrays into the shards of the bucket's tensors; return these by name.

        The tensors are in their new layouts, and keep their dtype and provenance number. In the array they follow one
        another in the order of ``items``; after a reduce_scatter over n ranks, 1 / n of each. For example, tensors of
        6 and 4 elements that are scattered over 2 ranks have 3 and 2 elements in each rank's array. In a world
        without data, the shards have a shape but no memory.

        Args:
            after: one flat array per owned rank, the result of the bucket's last collective.
        """
        merge, world = self.merge, self.items[0][1].world
        parts = merge.ranks if merge.collective == "reduce_scatter" else 1
        ends = np.cumsum([0, *(_count_elements(tensor) // parts for _, tensor, _ in self.items)])
        tensors: dict[Hashable, Tensor] = {}
        for (name, tensor, layout), start, stop in zip(self.items, ends, ends[1:]):
            meta = Meta.of(layout, tensor.shape, tensor.dtype)
            if not world.has_data:
                shards = [
                    world.empty(layout.local_shape(meta.shape, r), meta.storage_dtype) for r in world.ranks
                ]
            else:
                pieces = world.perform(partial(_cut_shards, merge, start, stop, meta, world.ranks), after)
                shards = world.in_type(pieces, meta.storage_dtype)
            tensors[name] = Tensor(world, meta, shards, provenance_number=tensor.provenance_number)
        return tensors


def _without_data(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that has no arrays, only its layout, shape, type and provenance."""
    described = copy(tensor)
    described.stored_shards = []
    return described


def _count_elements(tensor: Tensor) -> int:
    """Return the number of elements of the tensor that a rank owns."""
    return shard_elements(tensor.layout, tensor.shape)


def _concatenate_by_rank(
    merge: Merge, mesh: Mesh, kind: np.dtype, ranks: Sequence[int], *lists: Arrays
) -> Arrays:
    """Return one flat array per owned rank: the concatenated shards of all tensors on that rank.

    For a reduce_scatter the elements are ordered by receiving rank (:func:`_arrange_by_receiver`): first all tensors'
    elements for the first rank, then those for the second, and so on.

    Args:
        merge: the collective.
        mesh: ranks outside of this mesh get an empty array.
        kind: the dtype of these empty arrays.
        ranks: the owned ranks.
        lists: one list per tensor, with one shard per owned rank. Ranks that share all their shards share one result.
    """
    rows: dict[tuple[int, ...], np.ndarray] = {}
    keys = [tuple(map(id, pieces)) for pieces in zip(*lists)]
    for key, pieces in zip(keys, zip(*lists)):
        if key not in rows:
            rows[key] = np.concatenate(
                [_arrange_by_receiver(piece, merge) for piece in pieces], axis=1
            ).ravel()
    outside = np.zeros(0, kind)
    return [rows[key] if rank in mesh else outside.copy() for rank, key in zip(ranks, keys)]


def _cut_shards(
    merge: Merge, start: int, stop: int, meta: Meta, ranks: Sequence[int], flats: Arrays
) -> Arrays:
    """Return one tensor's shard per owned rank; ranks outside of its mesh get an empty array.

    Args:
        merge: the collective.
        start: index of the tensor's first element in a flat array. After an all_gather a flat array has one section
            per gathered rank, and the index counts from the start of a section.
        stop: the index behind the tensor's last element.
        meta: layout, shape and dtype of the tensor.
        ranks: the owned ranks.
        flats: one flat array per owned rank. Ranks that share it share the shard, too.
    """
    pieces: dict[int, np.ndarray] = {}  # Ranks that share the flat result share the shard.
    for flat, rank in zip(flats, ranks):
        if id(flat) not in pieces and rank in meta.layout.mesh:
            pieces[id(flat)] = _cut_shard(merge, flat, start, stop, meta.layout.local_shape(meta.shape, rank))
        elif rank not in meta.layout.mesh:
            pieces[id(flat)] = np.zeros((0,) * len(meta.shape), meta.storage_dtype)
    return [pieces[id(flat)] for flat in flats]


def _arrange_by_receiver(shard: np.ndarray, merge: Merge) -> np.ndarray:
    """Return a shard as a matrix with one row per rank that will receive the row.

    A reduce_scatter over n ranks along ``merge.dim`` gives n rows: row k has block k of that dimension, whose size must
    be a multiple of n. For example, two ranks split dim 1 of [[0, 1], [2, 3]] into the rows [0, 2] and [1, 3]. Other
    collectives give one row with all elements.
    """
    if merge.dim is None or merge.collective == "all_gather":
        return shard.reshape(1, -1)
    before, size, after = shard.shape[: merge.dim], shard.shape[merge.dim], shard.shape[merge.dim + 1 :]
    parts = shard.reshape(math.prod(before), merge.ranks, size // merge.ranks, math.prod(after))
    return parts.swapaxes(0, 1).reshape(merge.ranks, -1)


def _cut_shard(merge: Merge, flat: np.ndarray, start: int, stop: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return one tensor's shard of the given shape, cut out of a flat result.

    - After an all_gather, ``flat`` has one section of equal size per gathered rank. The elements ``start:stop`` of all
      sections are joined along the gathered dimension, in a new array. For example, the sections [0, 2] and [1, 3]
      along dim 1 give [[0, 1], [2, 3]].
    - For other collectives the shard is ``flat[start:stop]``, a view.

    Args:
        merge: the collective.
        flat: the flat result of one rank, with the elements of all tensors.
        start: index of the tensor's first element (in each section after an all_gather).
        stop: the index behind its last element.
        shape: the shape of the shard.
    """
    if merge.collective != "all_gather" or merge.dim is None:
        return flat[start:stop].reshape(shape)
    before, size, after = shape[: merge.dim], shape[merge.dim], shape[merge.dim + 1 :]
    parts = flat.reshape(merge.ranks, -1)[:, start:stop]
    parts = parts.reshape(merge.ranks, math.prod(before), size // merge.ranks, math.prod(after))
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(shape)


@explained
def backward(loss: Tensor, *, merge: bool = True) -> None:
    """Compute gradients of all leaves on which ``loss`` depends, and add them to ``.grad``.

    A leaf is a tensor that requires a gradient and is not the result of an operator. The values are those of
    ``loss.backward()``; ``merge`` lowers the number of collectives. All ranks must call it. The graph is released: a
    second call for the same loss raises an error.

    If the leaf has a gradient already, the new one is added to it. The gradient gets the layout
    ``leaf.gradient_layout`` or, if that is None, the split of the leaf itself. Both are without pending reductions.

    Args:
        loss: a tensor of one element.
        merge: True to reduce gradients that need equal collectives in shared messages. In data parallelism this is one
            call per bucket instead of one per parameter. The values do not depend on it.

    Raises:
        LayoutError: If the loss does not have one element.
        UsageTypeError: If the loss is not a tensor, or no tensor that it depends on needs a gradient, or an earlier
            pass released the graph.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> weight.grad.full().tolist()
    [6.0, 8.0]
    """
    if not isinstance(loss, Tensor):
        raise UsageTypeError(
            f"backward: loss must be a tensor, got a {type(loss).__name__}; pass the result of a loss, such as mse_loss(x, y)"
        )
    if loss.size != 1:
        raise LayoutError(f"backward: loss must have one element, got shape {loss.shape}; sum it first")
    moves = SharedMoves("gradients")

    leaves = []
    for leaf, gradients in pull_back(loss):
        leaves.append(leaf)
        # Empty the list of `pull_back`, so that the bucket's reference to the gradient is the only one.
        if merge and len({id(gradient.meta) for gradient in gradients}) == 1:
            gradients[:] = [add_gradients(gradients)]
        else:
            gradients[:] = [reduce_gradients(gradients, _find_gradient_layout(leaf))]
        moves.add(id(leaf), gradients.pop(), _find_gradient_layout(leaf))
    complete = moves.finish()
    for leaf in leaves:
        accumulate_grad(leaf, complete[id(leaf)])


def _find_gradient_layout(leaf: Tensor) -> Layout:
    """Return the layout of a leaf's gradient: its optimiser's state layout or the dual layout."""
    return leaf.gradient_layout or leaf.layout.dual()


def check_shapes(trained: Sequence[Parameter], values: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Raise LayoutError for the first parameter whose gradient has another shape than its value.

    Args:
        trained: the parameters, for the message.
        values: the tensor of each parameter.
        gradients: the gradient of each parameter.
    """
    for parameter, value, gradient in zip(trained, values, gradients):
        if gradient.shape != value.shape:
            raise LayoutError(
                f"the gradient of parameter {parameter.name or parameter.shape} must have the shape of its value, "
                f"{value.shape}, got {gradient.shape}; set .grad to a tensor of that shape"
            )


@explained
def global_norm(parameters: Module | Iterable[Parameter | Tensor]) -> float:
    """Return the root of the sum of squares of all gradients' elements, equal on all ranks.

    All ranks must call it.

    Args:
        parameters: a module, or an iterable of parameters and of tensors that require a gradient. A parameter without
            gradient counts as 0.

    Raises:
        UsageTypeError: If an item of ``parameters`` cannot be trained.
        WorldError: If a parameter has no values yet.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.global_norm([weight])
    10.0
    """
    squares = _sum_gradient_squares([parameter.value for parameter in parameters_of(parameters)])
    return math.sqrt(sum(float(square.item()) for square in squares))


def _sum_gradient_squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of squared magnitudes of each gradient, as replicated tensors of shape ().

    The list is in the order of ``tensors`` and leaves out tensors without gradient. Sums of 16-bit floats are float32.
    All ranks must call it; reductions that are equal share messages.
    """
    from spmdsim.arrays import ops
    from spmdsim.arrays.ops.dim_reductions import to_sum_type

    gradients = [to_sum_type(tensor.grad) for tensor in tensors if tensor.grad is not None]
    squares = [ops.sum(squared_modulus(gradient)) for gradient in gradients]
    replicated = move_sharing_messages([(square, square.layout.reduced) for square in squares], "norm")
    return [replicated[k] for k in range(len(squares))]


def squared_modulus(x: Tensor) -> Tensor:
    """Return the square of the absolute value of each element, as real numbers."""
    from spmdsim.arrays import ops

    return ops.real(ops.multiply(x, ops.conjugate(x))) if x.dtype.kind == "c" else ops.multiply(x, x)


@explained
def clip(parameters: Module | Iterable[Parameter | Tensor], largest: float) -> float | Tensor:
    """Scale all gradients by one factor so that their global norm is at most ``largest``.

    The norm is the root of the sum of squares of all elements of all gradients, in float64. The factor is

    - ``largest / (norm + 1e-6)`` if the norm exceeds ``largest``; 0 for an infinite norm, which turns infinite elements
      into NaN;
    - 1 otherwise, also if the norm is NaN because a gradient has a NaN.

    Each ``.grad`` is replaced by a new tensor of its dtype. All ranks must call it.

    Args:
        parameters: a module, or an iterable of parameters and of tensors that require a gradient. Those without a
            gradient are skipped. An item that occurs twice in the iterable counts and is scaled twice.
        largest: the largest norm that the gradients may have afterwards; its sign is not checked.

    Returns:
        The norm before scaling, equal on all ranks; 0.0 if there are no gradients. While a compiled function is
        recorded, a tensor of shape ().

    Raises:
        UsageTypeError: If an item of ``parameters`` cannot be trained.
        WorldError: If a parameter has no values yet.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())  # the gradient is [6, 8], its norm 10
    >>> nn.clip([weight], 5.0), weight.grad.full().round(3).tolist()
    (10.0, [3.0, 4.0])
    """
    from spmdsim.arrays import ops
    from spmdsim.arrays.ops.dim_reductions import to_sum_type, to_type

    trained = [parameter.value for parameter in parameters_of(parameters)]
    squares = _sum_gradient_squares(trained)
    if not squares:
        return 0.0
    wider = [ops.cast(square, np.float64).to(squares[0].layout) for square in squares]
    norm = ops.sqrt(reduce(ops.add, wider))
    factor = ops.where(norm > largest, largest / (norm + 1e-6), 1.0)
    for tensor in trained:
        if tensor.grad is not None:
            gradient = to_sum_type(tensor.grad)
            tensor.grad = to_type(ops.multiply(gradient, ops.cast(factor, gradient.dtype)), tensor.grad.dtype)
    return norm if programs else float(norm.item())
