"""Merge collectives of several tensors into one message.

Gradients that are reduced along equal mesh axes, or scattered along them over the same dimension, are concatenated
and sent in one call per bucket. The bytes are equal, and the latency is paid once. Parameters that are gathered after
a step of a split optimiser are merged, too. Training and the strategy search both use this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.cost.closed_forms import received_per_message
from spmdsim.cost.machine import CostModel
from spmdsim.layout.windowed_layout import Windowed
from spmdsim.redistribution.grid import next_axes
from spmdsim.redistribution.plans.planner import cheapest_candidate

#: The bytes of one rank's shards at which a bucket is full: before a reduction, or after a gather.
BUCKET_BYTES = 25 * 1024 * 1024

Item = TypeVar("Item")


@dataclass(frozen=True)
class Merge:
    """Common properties of collectives that can share a message.

    Attributes:
        collective: "all_reduce", "reduce_scatter" or "all_gather".
        mesh: the mesh.
        axes: the axes of the groups; the first one is the major one.
        op: the reduction; None for a gather.
        dim: the dimension that is scattered or gathered; None for an all_reduce.
        unscattered_axes: further axes along which a reduce_scatter reduces without scattering. Ranks that differ only
            along them own equal sums.
    """

    collective: str
    mesh: Mesh
    axes: tuple[str, ...]
    op: str | None
    dim: int | None = None
    unscattered_axes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Number of ranks of a group."""
        return self.mesh.axis_size(*self.axes)

    def received_elements(self, elements: float) -> float:
        """Return the number of elements that a rank receives if every rank owns ``elements`` before."""
        message = elements * self.ranks if self.collective == "all_gather" else elements
        return received_per_message(self.collective, self.ranks) * message

    def step(self, elements: int) -> Step:
        """Return the merged collective as a step on a one-dimensional tensor.

        The tensor and its layouts depend on the collective. The numbers are for 8 elements on each of 4 ranks:

        * all_gather: a tensor of ``elements`` times the group's ranks (32) is split before and replicated after.
        * all_reduce: a tensor of ``elements`` (8) is partial before and replicated after.
        * reduce_scatter: a tensor of ``elements`` (8) is partial before. After, it is split along :attr:`axes` (2 per
          rank).

        Only :attr:`axes` are reduced; :meth:`steps` adds the reduction along :attr:`unscattered_axes`.

        Args:
            elements: the number of elements that each rank owns before the step.
        """
        if self.op is None:
            split = Layout(self.mesh, (self.axes,))
            return Step(
                self.collective, self.axes, split, Layout(self.mesh, (None,)), (elements * self.ranks,)
            )
        flat = Layout(self.mesh, (None,), [(axis, self.op) for axis in self.axes])
        after = flat.reduced if self.dim is None else Layout(self.mesh, (self.axes,))
        return Step(self.collective, self.axes, flat, after, (elements,), self.op)

    def steps(
        self, elements: int, copies: Sequence[str] = (), itemsize: int = 4, machine: CostModel | None = None
    ) -> tuple[Step, ...]:
        """Return the steps of the merged message.

        A reduction with ``copies`` or :attr:`unscattered_axes` takes the steps of a plan that uses the replicas and
        also reduces along ``unscattered_axes``. Any other message is one collective.

        Args:
            elements: the number of elements that every rank owns.
            copies: the axes along which ranks own replicas of all tensors.
            itemsize: the bytes of an element.
            machine: the cost model that chooses the plan; None to count bytes.

        >>> [str(step) for step in Merge("all_reduce", Mesh((4, 2), ("dp", "tp")), ("dp",), "sum").steps(64, ["tp"])]
        ['reduce_scatter over dp: P(sum)R -> S(0)S(0)', 'all_gather over dp,tp: S(0)S(0) -> RR']
        >>> [str(step) for step in Merge("reduce_scatter", Mesh((4, 2), ("dp", "tp")), ("dp",), "sum", 0, ("tp",)).steps(64)]
        ['reduce_scatter over dp: P(sum)P(sum) -> S(0)P(sum)', 'all_reduce over tp: S(0)P(sum) -> S(0)R']
        """
        model: Any = machine  # A cost model is hashable, but its protocol does not declare it.
        return _message_steps(self, elements, tuple(copies), itemsize, model)


@lru_cache(maxsize=4096)
def _message_steps(
    merge: Merge, elements: int, copies: tuple[str, ...], itemsize: int, machine: Any
) -> tuple[Step, ...]:
    """Return the collectives of a message that moves several tensors at once; see :meth:`Merge.steps`.

    - A gather is one step.
    - A reduction is one step if no axes have replicas (``copies``) and all pending axes are scattered or reduced
      together (``unscattered_axes`` is empty).
    - Another reduction is the cheapest plan that reduces a one-dimensional tensor from its pending layout to its final
      one. Replicas can then share the work: each reduces a part, and a gather follows. Axes of the mesh that are
      neither reduced nor in ``copies`` split this tensor; after a reduce_scatter, ``merge.axes`` split it further.

    Up to 4096 results are cached.

    Args:
        merge: the properties of the message.
        elements: the number of elements that every rank owns before.
        copies: the axes along which ranks own replicas of all tensors.
        itemsize: the bytes of an element.
        machine: the cost model that chooses the plan, which must be hashable; None to count bytes.
    """
    if merge.op is None or not (copies or merge.unscattered_axes):
        return (merge.step(elements),)
    reduced = (*merge.axes, *merge.unscattered_axes)
    other_axes = tuple(axis for axis in merge.mesh.axes if axis not in (*reduced, *copies))
    partial_layout = Layout(merge.mesh, (other_axes,), [(axis, merge.op) for axis in reduced]).canonical
    if merge.dim is None:
        final_layout = partial_layout.reduced
    else:
        final_layout = Layout(merge.mesh, ((*other_axes, *merge.axes),)).canonical
    shape = (merge.mesh.axis_size(*other_axes) * elements,)
    return cheapest_candidate(partial_layout, final_layout, shape, itemsize, machine).steps


@lru_cache(maxsize=4096)
def merge_of(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Merge | None:
    """Return the properties by which a reduction can share a message, or None if it cannot.

    Tensors with equal properties can be concatenated, and one collective reduces them all. A reduction can share a
    message if all of these conditions hold:

    - All pending axes have one reduction, and all are reduced, on one mesh.
    - All shards have equal sizes before and after.
    - The result is split as before (an all_reduce), or further in one dimension, by pending axes only (a
      reduce_scatter).
    - The layouts have no windows.

    Args:
        src: the layout before, with pending values.
        dst: the layout after.
        shape: the global shape.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> merge_of(mesh(None, "tp", partial="dp"), mesh(None, "tp"), (8, 8)).collective
    'all_reduce'
    >>> merge_of(mesh(None, "tp", partial="dp"), mesh("dp", "tp"), (8, 8)).dim
    0
    >>> merge_of(mesh(None, None, partial=("dp", "tp")), mesh("dp", None), (8, 8)).unscattered_axes
    ('tp',)
    """
    src, dst = src.canonical, dst.canonical
    ops = {op for _, op in src.partial}
    if len(ops) != 1 or isinstance(src, Windowed) or not _have_equal_shards(src, dst, shape):
        return None
    changed = _changed_dims(src, dst)
    if not changed:
        return Merge("all_reduce", src.mesh, src.partial_axes, ops.pop())
    before, after = src.dims[changed[0]], dst.dims[changed[0]]
    added = next_axes(before, after, {*after})
    if len(changed) > 1 or not added or not {*added} <= {*src.partial_axes}:
        return None
    unscattered = tuple(axis for axis in src.partial_axes if axis not in added)
    return Merge("reduce_scatter", src.mesh, added, ops.pop(), changed[0], unscattered)


@lru_cache(maxsize=4096)
def gather_of(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Merge | None:
    """Return the properties by which all_gathers of tensors can share a message, or None.

    The result has the gathered dimension and its gathered axes; its ``op`` is None. Results are cached. All of these
    conditions must hold, else the result is None:

    - The change from ``src`` to ``dst`` removes the minor (last) axes of one dimension, and changes no other one.
    - Nothing is pending, and both layouts are on one mesh.
    - All shards have equal sizes before and after.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> gather_of(mesh("dp", "tp"), mesh(None, "tp"), (8, 8)).axes
    ('dp',)
    """
    src, dst = src.canonical, dst.canonical
    changed = _changed_dims(src, dst)
    if src.partial or len(changed) != 1 or not _have_equal_shards(src, dst, shape):
        return None
    before, after = src.dims[changed[0]], dst.dims[changed[0]]
    gathered = next_axes(after, before, {*before})
    return Merge("all_gather", src.mesh, gathered, None, changed[0]) if gathered else None


def _have_equal_shards(src: Layout, dst: Layout, shape: tuple[int, ...]) -> bool:
    """Return True if the meshes are equal and all shards before and after have equal sizes."""
    if dst.partial or src.mesh != dst.mesh or len(src.dims) != len(dst.dims):
        return False
    return src.reduced.is_even(shape) and dst.is_even(shape)


def _changed_dims(src: Layout, dst: Layout) -> list[int]:
    """Return the dimensions that the two layouts split by different axes."""
    return [d for d, (before, after) in enumerate(zip(src.dims, dst.dims)) if before != after]


def common_replica_axes(layouts: Iterable[Layout]) -> tuple[str, ...]:
    """Return the axes longer than 1 along which tensors of all layouts, on one mesh, are replicated."""
    replicated = [layout.canonical.replicated_axes for layout in layouts]
    return tuple(axis for axis in replicated[0] if all(axis in axes for axes in replicated))


def shard_elements(src: Layout, shape: Sequence[int]) -> int:
    """Return the number of elements of a shard, for a layout whose shards are equal in size."""
    return math.prod(size // parts for size, parts in zip(shape, src.cuts))


def fill_buckets(items: Iterable[tuple[Item, int]], full_nbytes: int = BUCKET_BYTES) -> list[list[Item]]:
    """Cut a sequence of items into buckets: lists of items whose bytes travel in one message.

    A bucket ends with the item that brings it to ``full_nbytes`` or more. The order of the items stays. No items give
    no buckets.

    Args:
        items: pairs of an item and its bytes.
        full_nbytes: the bytes at which a bucket is full; 25 MiB by default.

    >>> fill_buckets([("a", 10), ("b", 10), ("c", 15), ("d", 40)], 20)
    [['a', 'b'], ['c', 'd']]
    """
    buckets: list[list[Item]] = []
    bucket_nbytes = full_nbytes  # The first item begins a bucket.
    for item, nbytes in items:
        if bucket_nbytes >= full_nbytes:
            buckets.append([])
            bucket_nbytes = 0
        buckets[-1].append(item)
        bucket_nbytes += nbytes
    return buckets
