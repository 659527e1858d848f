"""What a placement and an sbp say about a tensor: its layout, its sizes, and local against logical shape.

Semantics: ``oneflow/core/job/nd_sbp_util.cpp`` (which range a rank holds), ``oneflow/core/operator/operator.cpp``
(the size rule), ``oneflow/core/framework/sbp_infer_util.cpp`` (when splits merge),
``oneflow/core/functional/impl/global_cast.cpp`` (from local to global).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.core import Bounds, Layout
from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError, Sbp
from spmdsim.errors import LayoutError
from spmdsim.layout.blocks import block_sizes

SbpLike = Sbp | str | Sequence[Sbp | str]


def layout(placement: Placement, sbp: SbpLike, ndim: int) -> Layout:
    """The layout of a tensor of ``ndim`` dims; mesh axes on one dim are nested, the major axis outermost.

    Raises:
        RuntimeError: not one sbp entry per mesh axis, or a split of a dim that the tensor does not have.

    >>> from spmdsim.dialects.oneflow import placement
    >>> str(layout(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))", 2).short())
    'RS(0)'
    """
    if not isinstance(placement, Placement):
        raise OneFlowError(
            f"placement is a oneflow.placement, not {placement!r}; nearest: placement('cpu', [0, 1])"
        )
    entries = sbp_module.as_tuple(sbp, placement.ndim)
    for entry in entries:
        if entry.axis is not None and entry.axis >= ndim:
            raise OneFlowError(
                f"Split axis out of range (expected to be in range of [0, {ndim}), but got {entry.axis}!)"
            )
    return Layout.from_placements(placement.mesh, [entry.placement for entry in entries], ndim)


def sbp_of(layout: Layout) -> tuple[Sbp, ...]:
    """The sbp tuple of a layout.

    Raises:
        ValueError: axes nested in another order than the mesh's, or a reduction other than sum: no sbp says so.
    """
    for dim, entry in enumerate(layout.dims):
        order = [layout.mesh.axes.index(axis) for axis in entry]
        if order != sorted(order):
            raise LayoutError(
                f"sbp nests the axes of one dim in mesh order, but dim {dim} is split by {entry} on mesh "
                f"{layout.mesh}; reorder the mesh or the axes"
            )
    return tuple(sbp_module.from_placement(placement) for placement in layout.placements)


def check_sizes(placement: Placement, sbp: SbpLike, shape: Sequence[int]) -> None:
    """OneFlow's size rule: when a mesh axis splits a dim, every rank's part so far is at least that long.

    A dim of size 0 is allowed. (This package's own layouts allow empty shards.)

    Raises:
        RuntimeError: naming the axis and the sizes.
    """
    rest = list(shape)
    entries = sbp_module.as_tuple(sbp, placement.ndim)
    layout(placement, entries, len(rest))
    for axis, (entry, parts) in enumerate(zip(entries, placement.shape)):
        if entry.axis is None or shape[entry.axis] == 0:
            continue
        if rest[entry.axis] < parts:
            raise OneFlowError(
                f"Expected size at split axis ({entry.axis}) of logical shape must be greater than or equal to "
                f"parallel num, but got logical_shape: {tuple(shape)}, parallel_num: {parts} (mesh axis {axis}, "
                f"smallest part left: {rest[entry.axis]})"
            )
        rest[entry.axis] //= parts


def local_range(placement: Placement, sbp: SbpLike, shape: Sequence[int], rank: int) -> Bounds:
    """``(start, stop)`` per dim of what ``rank`` holds, after the size rule.

    >>> from spmdsim.dialects.oneflow import placement
    >>> local_range(placement("cpu", [[0, 1], [2, 3]]), "(S(0), S(1))", (5, 5), 1)
    ((0, 3), (3, 5))
    """
    check_sizes(placement, sbp, shape)
    return layout(placement, sbp, len(shape)).bounds(shape, rank)


def local_shape(placement: Placement, sbp: SbpLike, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """The shape of what ``rank`` holds."""
    return tuple(stop - start for start, stop in local_range(placement, sbp, shape, rank))


def logical_shape(placement: Placement, sbp: SbpLike, local: Sequence[int]) -> tuple[int, ...]:
    """The logical shape when every rank holds a local tensor of this shape (``check_meta=False``).

    >>> from spmdsim.dialects.oneflow import placement
    >>> logical_shape(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))", (1, 2, 8))
    (2, 2, 8)
    """
    parts = layout(placement, sbp, len(local)).parts
    return tuple(size * n for size, n in zip(local, parts))


def logical_shape_of(placement: Placement, sbp: SbpLike, locals_: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The logical shape of local tensors with these shapes, one per rank in mesh order (``check_meta=True``).

    They are put together from the innermost mesh axis outwards, and must be exactly the balanced parts.

    Raises:
        RuntimeError: shapes that are no balanced split, or that differ in another dim.

    >>> from spmdsim.dialects.oneflow import placement
    >>> logical_shape_of(placement("cpu", [[0, 1], [2, 3]]), "(S0, S1)", [(3, 3), (3, 2), (2, 3), (2, 2)])
    (5, 5)
    """
    entries = sbp_module.as_tuple(sbp, placement.ndim)
    if len(locals_) != math.prod(placement.shape):
        raise OneFlowError(
            f"{placement} has {math.prod(placement.shape)} ranks, but {len(locals_)} local shapes were given"
        )
    layout(placement, entries, len(locals_[0]))
    shapes = [(rank, tuple(shape)) for rank, shape in zip(placement.order, locals_)]
    for entry, parts in reversed(list(zip(entries, placement.shape))):
        groups = [shapes[i : i + parts] for i in range(0, len(shapes), parts)]
        shapes = [_joined(group, entry) for group in groups]
    return shapes[0][1]


def _joined(group: list[tuple[int, tuple[int, ...]]], entry: Sbp) -> tuple[int, tuple[int, ...]]:
    """The (first rank, shape) of the parts of one group, put together along one mesh axis."""
    first, expected = group[0]
    dim = entry.axis
    for rank, shape in group[1:]:
        wrong = [d for d, (a, b) in enumerate(zip(expected, shape)) if a != b and d != dim]
        if wrong or len(shape) != len(expected):
            d = next(iter(wrong), 0)
            but = "" if dim is None else f" except in dimension {dim}"
            raise OneFlowError(
                f"Sizes of tensors must match{but}. Expected size {expected[d]} but got size {shape[d]} for tensor "
                f"on rank {rank}!"
            )
    if dim is None:
        return first, expected
    sizes = [shape[dim] for _, shape in group]
    total, balanced = sum(sizes), list(block_sizes(sum(sizes), len(sizes)))
    if sizes != balanced:
        raise OneFlowError(
            f"Sizes of tensors in dimension {dim} must be same or match balanced split distribution. "
            f"Ranks {[rank for rank, _ in group]} hold {sizes}, but a balanced split of {total} is {balanced}"
        )
    return first, (*expected[:dim], total, *expected[dim + 1 :])


def broadcast_groups(placement: Placement, sbp: SbpLike) -> tuple[tuple[int, ...], ...]:
    """The groups whose first rank overwrites the others' data when a local tensor becomes global.

    They are the ranks that differ only on B axes; none when there is no B axis.

    >>> from spmdsim.dialects.oneflow import placement
    >>> broadcast_groups(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))")
    ((0, 2), (1, 3))
    """
    entries = sbp_module.as_tuple(sbp, placement.ndim)
    axes = [axis for axis, entry in zip(placement.mesh.axes, entries) if entry == sbp_module.broadcast]
    return placement.mesh.groups(*axes) if axes else ()


def can_merge(size: int, parts: int) -> bool:
    """Whether splitting ``size`` by ``a`` and then by ``b`` equals splitting by ``a * b == parts`` at once.

    >>> [can_merge(size, 4) for size in (4, 5, 6, 7, 8)]
    [True, True, False, True, True]
    """
    return size % parts in (0, 1, parts - 1)
