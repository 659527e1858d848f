"""OneFlow's ``placement`` and ``device``, and the layout and sizes that a placement and an sbp imply.

Semantics: ``oneflow/api/python/symbol/placement_symbol.cpp`` and ``oneflow/core/job/parallel_desc.cpp`` (a device
type and an n-D array of ranks, whose shape is the mesh), ``oneflow/core/job/nd_sbp_util.cpp`` (the range of a rank),
``oneflow/core/operator/operator.cpp`` (the size rule), ``oneflow/core/framework/sbp_infer_util.cpp`` (merged splits),
``oneflow/core/functional/impl/global_cast.cpp`` (from local to global).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.core import Bounds, Layout, Mesh
from spmdsim.core.layout import block_sizes
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.sbp import OneFlowError, Sbp
from spmdsim.dialects.session import current_world
from spmdsim.errors import LayoutError, many
from spmdsim.layout.written import flatten_integers, nest

DEVICE_TYPES = ("cpu", "cuda")
SbpLike = Sbp | str | Sequence[Sbp | str]


def _check_type(word: Any, full_text: Any) -> None:
    """Raise OneFlowError unless ``word`` is a device type; the message quotes ``full_text``."""
    text = f"Expected one of {', '.join(DEVICE_TYPES)} device type at start of device string: {full_text}"
    refuse({text: word not in DEVICE_TYPES}, OneFlowError)


@dataclass(frozen=True, init=False)
class device:
    """Device of a local tensor: ``device("cpu")``, ``device("cuda:1")``, ``device("cpu", 2)``.

    >>> device("cuda:1"), str(device("cpu", 2)), device("cpu") == device("cpu:0")
    (device(type='cuda', index=1), 'cpu:2', True)
    """

    type: str
    index: int

    def __init__(self, type: Any, index: Any = None) -> None:
        kind, colon, number = str(type).partition(":")
        _check_type(kind, type)
        digits = number if colon else "0" if index is None else str(index)
        if not digits.isdecimal() or (colon and index is not None):
            raise OneFlowError(
                f"device: index must be one integer, as in {kind}:1, got {type!r} and index {index}"
            )
        vars(self).update(type=kind, index=int(digits))  # because the class is frozen

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@dataclass(frozen=True, init=False)
class placement:
    """``placement("cpu", ranks=[[0, 1], [2, 3]])``: ranks 0 to 3 as a mesh of 2 x 2.

    **Ranks keep their order.** OneFlow itself sorts them (``[0, 2, 1, 3]`` acts like ``[0, 1, 2, 3]`` there);
    ``sort_ranks=True`` sorts them too.

    Args:
        type: ``"cpu"`` or ``"cuda"``.
        ranks: integers in any number of dimensions (lists, tuples, a range or an array); the shape is the mesh.
        sort_ranks: sort the ranks, like OneFlow.
        world_size: if given, ranks must be below it.
        devices_per_node: if given, every node with ranks must have an equal number of them.

    Raises:
        OneFlowError: (a RuntimeError) If the device type is unknown, a rank is repeated or out of range, nodes are
            uneven, or nested lists are ragged.
        UsageTypeError: If ranks are no integers.

    >>> placement("cpu", ranks=[[0, 1], [2, 3]])
    oneflow.placement(type="cpu", ranks=[[0, 1], [2, 3]])
    >>> placement("cpu", [0, 2, 1, 3]).mesh.rank_list, placement("cpu", [0, 2, 1, 3], sort_ranks=True).mesh.rank_list
    ((0, 2, 1, 3), (0, 1, 2, 3))
    """

    type: str
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def __init__(
        self, type: str, ranks: Any, *, sort_ranks: bool = False, world_size: int | None = None,
        devices_per_node: int | None = None,
    ) -> None:  # fmt: skip
        _check_type(type, type)
        if isinstance(ranks, dict):
            raise OneFlowError(
                f"placement: ranks must be nested lists, got nodes with devices, {ranks}; nearest: [0, 1]"
            )
        shape, order = flatten_integers(ranks, "placement ranks", OneFlowError)
        _check_ranks(order, world_size, devices_per_node)
        vars(self).update(type=type, shape=shape, order=tuple(sorted(order)) if sort_ranks else order)

    @classmethod
    def all(cls, type: str, world_size: int | None = None) -> placement:
        """Return the placement of all ranks along one axis; by default all ranks of the running world."""
        return cls(type, range(current_world().size if world_size is None else world_size))

    ranks = property(lambda self: nest(self.order, self.shape), doc="The ranks as nested lists.")
    device_type = property(lambda self: self.type, doc="OneFlow's older name of ``type``.")
    hierarchy = property(lambda self: self.shape, doc="OneFlow's older name of the shape.")
    ndim = property(lambda self: len(self.shape), doc="The number of mesh axes.")

    @property
    def mesh(self) -> Mesh:
        """Mesh with axes ``d0``, ``d1``, ..."""
        return Mesh(self.shape, [f"d{i}" for i in range(len(self.shape))], self.order)

    def __repr__(self) -> str:
        return f'oneflow.placement(type="{self.type}", ranks={self.ranks})'


def _check_ranks(order: tuple[int, ...], world_size: int | None, devices_per_node: int | None) -> None:
    """Raise OneFlowError unless ranks may form a placement.

    They must be different and not negative, and fit the two limits below.

    Args:
        order: the ranks, at least one.
        world_size: each rank must be below this number; None for no limit.
        devices_per_node: nodes of the placement must have equally many of its ranks, if rank r is on node
            ``r // devices_per_node``. With 4, ranks 0, 1, 4, 5 are correct, and 0, 1, 4 are not. None for no such rule.
    """
    ranks, highest = [*order], max(order)
    repeated = [rank for rank, times in Counter(order).items() if times > 1]
    nodes = Counter(rank // devices_per_node for rank in order) if devices_per_node else {}
    refuse({
        f"the ranks of a placement must differ, but {[*repeated, 0][0]} is repeated in {ranks}": bool(repeated),
        f"the ranks of a placement must not be negative, but got {ranks}": min(order) < 0,
        f"Placement is invalid because rank must be less than world size! rank {highest} of {ranks}, world size {world_size}":
            world_size is not None and highest >= world_size,
        f"every node of a placement must contribute the same number of devices, but nodes of {devices_per_node} contribute "
        f"{dict(nodes)} (node: devices)": len({*nodes.values()}) > 1,
    }, OneFlowError)  # fmt: skip


def layout(placement: placement, sbp: SbpLike, ndim: int) -> Layout:
    """Return the layout of a tensor with ``ndim`` dims.

    Of several axes that split a dim, the first is major.

    Args:
        placement: the placement, whose mesh axes are named ``d0``, ``d1`` and so on.
        sbp: one entry per mesh axis, or their text; see `as_tuple`.
        ndim: number of dims of the tensor.

    Raises:
        OneFlowError: (a RuntimeError) If ``placement`` is no placement, or the sbp does not have one entry per mesh axis, or
            splits a dim that the tensor lacks.
        LayoutError: If a text is no sbp.

    >>> str(layout(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))", 2).placement_text())
    'RS(0)'
    """
    check_kind(placement)
    entries = sbp_module.as_tuple(sbp, placement.ndim)
    for entry in entries:
        if entry.axis is not None and entry.axis >= ndim:
            raise OneFlowError(
                f"Split axis out of range (expected to be in range of [0, {ndim}), but got {entry.axis}!)"
            )
    return Layout.from_placements(placement.mesh, [entry.placement for entry in entries], ndim)


_Placement = placement


def check_kind(placement: Any) -> None:
    """Raise OneFlowError unless the value is a placement."""
    if not isinstance(placement, _Placement):
        raise OneFlowError(
            f"placement must be a oneflow.placement, got {placement!r}; nearest: placement('cpu', [0, 1])"
        )


def sbp_of(layout: Layout) -> tuple[Sbp, ...]:
    """Return the sbp of a layout: split, broadcast or partial_sum per mesh axis.

    Raises:
        LayoutError: If axes on one dim are not in mesh order, or a pending reduction is no sum.

    >>> sbp_of(layout(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))", 2))
    (oneflow.sbp.broadcast, oneflow.sbp.split(dim=0))
    """
    for dim, entry in enumerate(layout.dims):
        if sorted(entry, key=layout.mesh.axes.index) != [*entry]:
            raise LayoutError(
                f"sbp nests the axes of one dim in mesh order, but dim {dim} is split by {entry} on mesh {layout.mesh}; reorder "
                "the mesh or the axes"
            )
    return tuple(sbp_module.from_placement(placement) for placement in layout.placements)


def check_sizes(placement: placement, sbp: SbpLike, shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor, after checking that each dim is long enough to be split.

    If several mesh axes split a dim, they do so one after the other. An axis of n ranks may split it if the smallest
    block of the axes before has at least n elements; splits may be uneven. A dim of size 0 may always be split.

    For example, 2 x 2 ranks may split a dim of size 5 twice: the smallest block after the first axis has 2 elements. A
    dim of size 3 is refused, because a block has only 1.

    Args:
        placement: device type, and ranks as a mesh.
        sbp: split, broadcast or partial_sum, per mesh axis of the placement; or their text.
        shape: global shape.

    Raises:
        OneFlowError: If a dim is too short, or the sbp does not fit; see `layout`.
    """
    smallest_sizes, entries = list(shape), sbp_module.as_tuple(sbp, placement.ndim)
    where = layout(placement, entries, len(smallest_sizes))
    for axis, (entry, parts) in enumerate(zip(entries, placement.shape)):
        if entry.axis is None or shape[entry.axis] == 0:
            continue
        if smallest_sizes[entry.axis] < parts:
            raise OneFlowError(
                f"Expected size at split axis ({entry.axis}) of logical shape must be greater than or equal to parallel num, but got "
                f"logical_shape: {tuple(shape)}, parallel_num: {parts} (mesh axis {axis}, smallest part left: {smallest_sizes[entry.axis]})"
            )
        smallest_sizes[entry.axis] //= parts
    return where


def local_range(placement: placement, sbp: SbpLike, shape: Sequence[int], rank: int) -> Bounds:
    """Return ``(start, stop)`` per dim of the shard of ``rank``, after the size rule.

    >>> local_range(placement("cpu", [[0, 1], [2, 3]]), "(S(0), S(1))", (5, 5), 1)
    ((0, 3), (3, 5))
    """
    return check_sizes(placement, sbp, shape).bounds(shape, rank)


def local_shape(placement: placement, sbp: SbpLike, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the shape of the shard of ``rank``, after the size rule."""
    return tuple(stop - start for start, stop in local_range(placement, sbp, shape, rank))


def logical_shape(placement: placement, sbp: SbpLike, local: Sequence[int]) -> tuple[int, ...]:
    """Return the global shape if all local tensors have shape ``local`` (``check_meta=False``).

    >>> logical_shape(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))", (1, 2, 8))
    (2, 2, 8)
    """
    return tuple(size * n for size, n in zip(local, layout(placement, sbp, len(local)).parts))


def logical_shape_of(placement: placement, sbp: SbpLike, locals_: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the global shape of a tensor whose local tensors have these shapes.

    Shapes are joined axis by axis, the last mesh axis first. If the axis splits a dim, the sizes of that dim are added.
    Otherwise the shapes must be equal. In the example, ranks 0 and 1 join to (3, 5), ranks 2 and 3 to (2, 5), and both
    to (5, 5). It is used with ``check_meta=True``.

    Args:
        placement: device type, and ranks as a mesh.
        sbp: split, broadcast or partial_sum, per mesh axis of the placement; or their text.
        locals_: shape of each rank's local tensor, in the order of the placement's ranks.

    Raises:
        OneFlowError: (a RuntimeError) If the shapes are not a balanced split, or their number is wrong.

    >>> logical_shape_of(placement("cpu", [[0, 1], [2, 3]]), "(S0, S1)", [(3, 3), (3, 2), (2, 3), (2, 2)])
    (5, 5)
    """
    entries = sbp_module.as_tuple(sbp, placement.ndim)
    ranks, count = len(placement.order), len(locals_)
    if count != ranks:
        raise OneFlowError(
            f"{placement} has {many(ranks, 'rank')}, but {many(count, 'local shape was', 'local shapes were')} given"
        )
    layout(placement, entries, len(locals_[0]))
    shapes = [(rank, tuple(shape)) for rank, shape in zip(placement.order, locals_)]
    for entry, parts in reversed([*zip(entries, placement.shape)]):
        shapes = [_join_shapes(shapes[k : k + parts], entry.axis) for k in range(0, len(shapes), parts)]
    return shapes[0][1]


def _join_shapes(group: list[tuple[int, tuple[int, ...]]], dim: int | None) -> tuple[int, tuple[int, ...]]:
    """Join the shapes of local tensors of ranks that differ along one mesh axis.

    For example, shapes (3, 4) and (2, 4) join to (5, 4) along dim 0. With ``dim=None`` the shapes must be equal.

    Args:
        group: ``(rank, shape)`` of each local tensor, in mesh order.
        dim: tensor dim that the axis splits, whose sizes are added; None if it splits no dim.

    Returns:
        The rank of the first local tensor; the joined shape.

    Raises:
        OneFlowError: If shapes differ in other dims or in the number of dims, or the sizes of ``dim`` are not those of
            a balanced split.
    """
    first, expected = group[0]
    for rank, shape in group[1:]:
        sizes_by_dim = enumerate(zip(expected, shape))
        wrong = [d for d, (expected_size, size) in sizes_by_dim if size != expected_size and d != dim]
        if wrong or len(shape) != len(expected):
            first_wrong, but = next(iter(wrong), 0), "" if dim is None else f" except in dimension {dim}"
            raise OneFlowError(
                f"Sizes of tensors must match{but}. Expected size {expected[first_wrong]} but got size {shape[first_wrong]} for tensor on rank {rank}!"
            )
    if dim is None:
        return first, expected
    sizes = [shape[dim] for _, shape in group]
    total, balanced = sum(sizes), [*block_sizes(sum(sizes), len(sizes))]
    if sizes != balanced:
        raise OneFlowError(
            f"Sizes of tensors in dimension {dim} must be same or match balanced split distribution. Ranks "
            f"{[rank for rank, _ in group]} hold {sizes}, but a balanced split of {total} is {balanced}"
        )
    return first, (*expected[:dim], total, *expected[dim + 1 :])


def broadcast_groups(placement: placement, sbp: SbpLike) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks that differ only on B axes.

    When a local tensor becomes global, the data of a group's first rank replace the data of the others.

    >>> broadcast_groups(placement("cpu", [[0, 1], [2, 3]]), "(B, S(0))")
    ((0, 2), (1, 3))
    """
    axes = layout(placement, sbp, sbp_module.MAX_SPLIT_AXIS).replicated_axes
    return placement.mesh.groups(*axes) if axes else ()


def can_merge(size: int, parts: int) -> bool:
    """Return True if a split of ``size`` in two steps gives the blocks of one split into ``parts``.

    The first step splits it into ``a`` blocks, the second step each of these into ``b`` blocks, with ``a * b == parts``.

    >>> [can_merge(size, 4) for size in (4, 5, 6, 7, 8)]
    [True, True, False, True, True]
    """
    return size % parts in (0, 1, parts - 1)
