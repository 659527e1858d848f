"""Merge collectives of several tensors into one message.

Gradients that are reduced along equal mesh axes, or scattered along them over the same dimension, are concatenated and
sent in one call per bucket. The bytes are equal, and the latency is paid once. Parameters that are gathered after a step of
a split optimiser are merged, too. Training and the strategy search both use this module.
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
from spmdsim.redistribution.plans.planner import cheapest

#: The bytes of one rank's shards at which a bucket is full, before a reduction or after a gather.
BUCKET_BYTES = 25 * 1024 * 1024

Item = TypeVar("Item")


@dataclass(frozen=True)
class Merge:
    """The common properties of collectives that can share a message.

    The first axis is the major one; ``dim`` is scattered or gathered. A reduce_scatter reduces along ``rest``, too, without
    scattering: ranks along ``rest`` own equal sums.
    """

    collective: str
    mesh: Mesh
    axes: tuple[str, ...]
    op: str | None
    dim: int | None = None
    rest: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks of a group."""
        return self.mesh.axis_size(*self.axes)

    def received(self, elements: float) -> float:
        """Return the elements that a rank receives if every rank owns ``elements``."""
        message = elements * self.ranks if self.collective == "all_gather" else elements
        return received_per_message(self.collective, self.ranks) * message

    def step(self, elements: int) -> Step:
        """Return the collective on a flat tensor of ``elements`` per rank. It does not reduce along ``rest``."""
        if self.op is None:
            pieces = Layout(self.mesh, (self.axes,))
            return Step(
                self.collective, self.axes, pieces, Layout(self.mesh, (None,)), (elements * self.ranks,)
            )
        flat = Layout(self.mesh, (None,), [(axis, self.op) for axis in self.axes])
        after = flat.reduced if self.dim is None else Layout(self.mesh, (self.axes,))
        return Step(self.collective, self.axes, flat, after, (elements,), self.op)

    def steps(
        self, elements: int, copies: Sequence[str] = (), itemsize: int = 4, machine: CostModel | None = None
    ) -> tuple[Step, ...]:
        """Return the collective, or for a reduction the steps of the plan, which uses replicas and reduces along ``rest``.

        Every rank owns ``elements``; along the axes ``copies``, ranks own replicas of all tensors.

        >>> [str(step) for step in Merge("all_reduce", Mesh((4, 2), ("dp", "tp")), ("dp",), "sum").steps(64, ["tp"])]
        ['reduce_scatter over dp: P(sum)R -> S(0)S(0)', 'all_gather over dp,tp: S(0)S(0) -> RR']
        >>> [str(step) for step in Merge("reduce_scatter", Mesh((4, 2), ("dp", "tp")), ("dp",), "sum", 0, ("tp",)).steps(64)]
        ['reduce_scatter over dp: P(sum)P(sum) -> S(0)P(sum)', 'all_reduce over tp: S(0)P(sum) -> S(0)R']
        """
        model: Any = machine  # a cost model is a value, though its protocol does not say so
        return _message_steps(self, elements, tuple(copies), itemsize, model)


@lru_cache(maxsize=4096)
def _message_steps(
    merge: Merge, elements: int, copies: tuple[str, ...], itemsize: int, machine: Any
) -> tuple[Step, ...]:
    """Return what :meth:`Merge.steps` returns; messages of equal layers are planned once."""
    if merge.op is None or not (copies or merge.rest):
        return (merge.step(elements),)
    reduced = (*merge.axes, *merge.rest)
    apart = tuple(axis for axis in merge.mesh.axes if axis not in (*reduced, *copies))
    flat = Layout(merge.mesh, (apart,), [(axis, merge.op) for axis in reduced]).canonical
    after = flat.reduced if merge.dim is None else Layout(merge.mesh, ((*apart, *merge.axes),)).canonical
    return cheapest(flat, after, (merge.mesh.axis_size(*apart) * elements,), itemsize, machine).steps


@lru_cache(maxsize=4096)
def merge_of(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Merge | None:
    """Return how a reduction can share a message; None if it is not a reduction or shards differ in size.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> merge_of(mesh(None, "tp", partial="dp"), mesh(None, "tp"), (8, 8)).collective
    'all_reduce'
    >>> merge_of(mesh(None, "tp", partial="dp"), mesh("dp", "tp"), (8, 8)).dim
    0
    >>> merge_of(mesh(None, None, partial=("dp", "tp")), mesh("dp", None), (8, 8)).rest
    ('tp',)
    """
    src, dst = src.canonical, dst.canonical
    ops = {op for _, op in src.partial}
    if len(ops) != 1 or isinstance(src, Windowed) or not _alike(src, dst, shape):
        return None
    changed = _changed(src, dst)
    if not changed:
        return Merge("all_reduce", src.mesh, src.partial_axes, ops.pop())
    added = _further(src.dims[changed[0]], dst.dims[changed[0]])
    if len(changed) > 1 or not added or not {*added} <= {*src.partial_axes}:
        return None
    rest = tuple(axis for axis in src.partial_axes if axis not in added)
    return Merge("reduce_scatter", src.mesh, added, ops.pop(), changed[0], rest)


@lru_cache(maxsize=4096)
def gather_of(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Merge | None:
    """Return how the all_gather of a dimension can share a message; None if it is not a gather or shards differ in size.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> gather_of(mesh("dp", "tp"), mesh(None, "tp"), (8, 8)).axes
    ('dp',)
    """
    src, dst = src.canonical, dst.canonical
    changed = _changed(src, dst)
    if src.partial or len(changed) != 1 or not _alike(src, dst, shape):
        return None
    gathered = _further(dst.dims[changed[0]], src.dims[changed[0]])
    return Merge("all_gather", src.mesh, gathered, None, changed[0]) if gathered else None


def _alike(src: Layout, dst: Layout, shape: tuple[int, ...]) -> bool:
    """Return True if one collective may lead from one layout to the other, and all shards are equal in size."""
    if dst.partial or src.mesh != dst.mesh or len(src.dims) != len(dst.dims):
        return False
    return src.reduced.is_even(shape) and dst.is_even(shape)


def _changed(src: Layout, dst: Layout) -> list[int]:
    return [d for d, (before, after) in enumerate(zip(src.dims, dst.dims)) if before != after]


def _further(less: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that split a dimension further; none if ``more`` does not begin with ``less``."""
    return more[len(less) :] if more[: len(less)] == less else ()


def shared_copies(layouts: Iterable[Layout]) -> tuple[str, ...]:
    """Return the axes longer than 1 along which tensors of all layouts, on one mesh, are replicated."""
    copied = [layout.canonical.replicated_axes for layout in layouts]
    return tuple(axis for axis in copied[0] if all(axis in some for some in copied))


def elements_held(src: Layout, shape: Sequence[int]) -> int:
    """Return the elements of a shard, for a layout whose shards are equal in size."""
    return math.prod(size // parts for size, parts in zip(shape, src.cuts))


def buckets(items: Iterable[tuple[Item, int]], most: int = BUCKET_BYTES) -> list[list[Item]]:
    """Return the items in order, in lists. A list ends with the item that makes it ``most`` bytes or more.

    >>> buckets([("a", 10), ("b", 10), ("c", 15), ("d", 40)], most=20)
    [['a', 'b'], ['c', 'd']]
    """
    filled: list[list[Item]] = []
    size = most
    for item, nbytes in items:
        if size >= most:
            filled.append([])
            size = 0
        filled[-1].append(item)
        size += nbytes
    return filled
