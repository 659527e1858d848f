"""OneFlow's rules about sbp tuples: routes and costs between them, free transitions, fewer axes, and reshapes.

Semantics after ``core/framework/sbp_infer_util.cpp``, ``placement_sbp_util.cpp`` and
``user/ops/reshape_user_op_util.cpp``. An sbp tuple is a sequence of placements, one per mesh axis, major axis first;
P is a pending sum. Costs are bytes that all ranks together receive, plus OneFlow's penalties: 1 for B -> S, and
``4 T (p + p')`` for anything that becomes pending. This package's own plans are compared with them in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from spmdsim.core import Layout, Mesh, Partial, Placement, Replicate, Shard, split_block
from spmdsim.dialects.oneflow.placements import can_merge
from spmdsim.errors import PlanError, many
from spmdsim.redistribution.lower_bound import lower_bound

Sbp = Sequence[Placement]
Sizes = Sequence[int]
Route = tuple[str, ...]
Shape = tuple[int, ...]
Placements = tuple[Placement, ...]


@dataclass(frozen=True)
class PlacementStep:
    """A transition on the groups along one mesh axis: the axis, and its placement before and after."""

    axis: int
    before: Placement
    after: Placement


def boxing_cost(src: Placement, dst: Placement, parts: int, nbytes: float) -> float:
    """OneFlow's cost of a transition on one axis of ``parts`` ranks; ``nbytes`` is the whole tensor."""
    if src == dst:
        return 0.0
    if isinstance(dst, Partial):
        return 4.0 * nbytes * (parts + parts)
    if isinstance(src, Replicate):
        return 1.0
    if isinstance(src, Partial):
        return (2.0 if isinstance(dst, Replicate) else 1.0) * nbytes * (parts - 1)
    if isinstance(dst, Replicate):
        return float(nbytes * (parts - 1))
    return nbytes * (parts - 1) / parts


def cross_placement_cost(
    src: Placement, dst: Placement, src_parts: int, dst_parts: int, nbytes: float
) -> float:
    """OneFlow's cost of a transition between two sets of ranks."""
    cost = float(nbytes)
    if isinstance(dst, Replicate):
        cost += (dst_parts - 1) * nbytes
    if isinstance(src, Partial):
        cost += (src_parts - 1) * nbytes
    if isinstance(dst, Partial):
        cost += 4 * nbytes * (src_parts + dst_parts)
    return cost


def boxing_route(
    src: Placement, dst: Placement, parts: int | None = None, shape: Sizes | None = None
) -> Route:
    """The interpreters that OneFlow runs one after the other on one axis of ``parts`` ranks.

    With a ``shape``, dims that do not divide take the pairwise ("naive") way.
    """
    if src == dst:
        return ("identity",)
    if isinstance(dst, Partial):
        return ("symmetric-b-to-p",) if isinstance(src, Replicate) else ("symmetric-s-to-p",)
    if isinstance(src, Replicate):
        return ("symmetric-b-to-s",)
    ways = "p" if isinstance(src, Partial) else "s", "b" if isinstance(dst, Replicate) else "s"
    direct = (f"ccl-{ways[0]}-to-{ways[1]}",)
    if ways == ("p", "b"):
        return direct
    dims = {placement.dim for placement in (src, dst) if isinstance(placement, Shard)}
    if ways != ("s", "s"):
        dims |= {0}  # the collectives gather and scatter dim 0
    if parts and shape and any(shape[dim] % parts for dim in dims):
        return (f"naive-{ways[0]}-to-{ways[1]}",)
    if ways == ("s", "s") or dims == {0}:
        return direct
    return ("ccl-s-to-s", *direct) if ways[1] == "b" else (*direct, "ccl-s-to-s")


#: The collective behind an interpreter; those that are not here move nothing.
_COLLECTIVES = {
    "ccl-p-to-b": "all_reduce",
    "ccl-p-to-s": "reduce_scatter",
    "ccl-s-to-b": "all_gather",
    "ccl-s-to-s": "all_to_all",
}


def boxing_collectives(
    src: Placement, dst: Placement, parts: int | None = None, shape: Sizes | None = None
) -> Route:
    """The collectives of :func:`boxing_route`, ``send_recv`` for the pairwise way; none for a local transition."""
    route = boxing_route(src, dst, parts, shape)
    collectives = ("send_recv" if name.startswith("naive") else _COLLECTIVES.get(name) for name in route)
    return tuple(name for name in collectives if name)


def axis_sequence(src: Sbp, dst: Sbp) -> list[int] | None:
    """The order in which axes can be converted one by one, or None if they wait for each other in a circle.

    An axis that is to split a dim waits for the changing axes that split it now.
    """
    waiting = [axis for axis, (one, other) in enumerate(zip(src, dst)) if one != other]
    order: list[int] = []
    while waiting:
        for axis in waiting:
            blocked = any(other != axis and dst[axis] == src[other] for other in waiting)
            if not blocked or not isinstance(dst[axis], Shard):
                break
        else:
            return None
        order.append(axis)
        waiting.remove(axis)
    return order


def decompose(src: Sbp, dst: Sbp) -> list[PlacementStep]:
    """One transition per changed axis, in a possible order."""
    order = axis_sequence(src, dst)
    if order is None:
        text = " -> ".join("".join(map(str, sbp)) for sbp in (src, dst))
        raise PlanError(f"the axes of {text} wait for each other in a circle, so none can be converted first")
    return [PlacementStep(axis, src[axis], dst[axis]) for axis in order]


def generic_steps(src: Sbp, dst: Sbp) -> list[Placements]:
    """OneFlow's way when all else fails: B from the last axis down to the first that differs, then forward."""
    changed = [axis for axis, (one, other) in enumerate(zip(src, dst)) if one != other]
    states = [tuple(src)]
    axes = range(changed[0], len(src)) if changed else range(0)
    wanted = [(axis, Replicate()) for axis in reversed(axes)] + [(axis, dst[axis]) for axis in axes]
    for axis, placement in wanted:
        after = (*states[-1][:axis], placement, *states[-1][axis + 1 :])
        if after != states[-1]:
            states.append(after)
    return states


def expand_shape(shape: Sizes, mesh: Sizes, src: Sbp, dst: Sbp) -> tuple[Shape, Placements, Placements]:
    """Dims that several axes split, written as several dims that one axis each splits: the shape, and both tuples for it."""
    sizes: list[int] = []
    starts: dict[tuple[int, int], int] = {}  # (dim, parts before it) -> new dim
    for dim, size in enumerate(shape):
        products = {1}
        for sbp in (src, dst):
            parts = [n for n, placement in zip(mesh, sbp) if placement == Shard(dim)]
            products |= {*accumulate(parts, mul)}
            if size % math.prod(parts):
                raise PlanError(f"dim {dim} of {tuple(shape)} does not divide in {parts} parts")
        cuts = sorted(products)
        if any(high % low for low, high in pairwise(cuts)):
            raise PlanError(f"dim {dim} of {tuple(shape)} is cut in {cuts} parts, which do not nest")
        factors = [high // low for low, high in pairwise(cuts)]
        for k, low in enumerate(cuts[:-1] or [1]):
            starts[dim, low] = len(sizes)
            sizes.append(factors[k] if k < len(factors) - 1 else size // low)
    return tuple(sizes), _renumbered(mesh, src, starts), _renumbered(mesh, dst, starts)


def _renumbered(mesh: Sizes, sbp: Sbp, starts: dict[tuple[int, int], int]) -> Placements:
    out: list[Placement] = []
    before: dict[int, int] = {}
    for parts, placement in zip(mesh, sbp):
        if isinstance(placement, Shard):
            done = before.get(placement.dim, 1)
            before[placement.dim] = done * parts
            inside = [at for dim, at in starts if dim == placement.dim and done < at < done * parts]
            if inside:
                raise PlanError(
                    f"dim {placement.dim} is cut by an axis of {parts} ranks in {done} to {done * parts} parts,"
                    f" but by the other tuple in {inside[0]}, so that one axis would split two dims"
                )
            placement = Shard(starts[placement.dim, done])
        out.append(placement)
    return tuple(out)


def subgroup(mesh: Mesh, rank: int, selected: Sequence[bool]) -> Shape:
    """The ranks that differ from ``rank`` along the selected axes only."""
    return mesh.group(rank, *(axis for axis, chosen in zip(mesh.axes, selected) if chosen))


def zero_comm(src: Sbp, dst: Sbp) -> bool:
    """Whether a transition without pending sums needs no communication, for sizes that divide.

    It is free if every axis that changes goes from B to S(d), and no later axis holds S(d) before: what is split
    afterwards would have to be split first.
    """
    for axis, (one, other) in enumerate(zip(src, dst)):
        if one == other:
            continue
        if not isinstance(one, Replicate) or not isinstance(other, Shard) or other in src[axis + 1 :]:
            return False
    return True


def total_traffic(mesh: Mesh, src: Sbp, dst: Sbp, shape: Sizes, itemsize: int) -> int:
    """Bytes that all ranks together must receive: what they need less what they hold."""
    one, other = (Layout.from_placements(mesh, placements, len(shape)) for placements in (src, dst))
    return itemsize * lower_bound(one, other, tuple(shape)).total


def reduce_dims(mesh: Sizes, sbps: Sequence[Sbp], shape: Sizes) -> tuple[Shape, tuple[Placements, ...]]:
    """The same distributions, such as source and target, on a mesh with fewer axes: its shape, and they on it.

    Axes of size 1 are dropped; neighbours along which all the given tuples say the same are merged, split ones only
    where every size that can occur is cut alike.
    """
    sizes: list[int] = []
    columns: list[Placements] = []
    possible = [{dim: {size} for dim, size in enumerate(shape)} for _ in sbps]
    before = possible
    for size, column in zip(mesh, zip(*sbps)):
        if size == 1:
            continue
        if columns and columns[-1] == column and _mergeable(before, column, sizes[-1] * size):
            sizes[-1] *= size
        else:
            sizes.append(size)
            columns.append(column)
            before = possible
        possible = [_split(pieces, placement, size) for pieces, placement in zip(possible, column)]
    if not sizes:
        return (1,), tuple((Replicate(),) for _ in sbps)
    return tuple(sizes), tuple(tuple(column[k] for column in columns) for k in range(len(sbps)))


def _mergeable(possible: list[dict[int, set[int]]], column: Placements, parts: int) -> bool:
    return all(
        all(can_merge(size, parts) for size in sizes[placement.dim])
        for sizes, placement in zip(possible, column)
        if isinstance(placement, Shard)
    )


def _split(pieces: dict[int, set[int]], placement: Placement, parts: int) -> dict[int, set[int]]:
    """The sizes that can occur per dim after one more split."""
    if not isinstance(placement, Shard):
        return pieces
    dim = placement.dim
    sizes = {split_block(0, size, parts, i)[1] for size in pieces[dim] for i in (0, parts - 1)}
    return {**pieces, dim: sizes}


def mesh_of(shape: Sizes) -> Mesh:
    """A mesh with axes named by their number, over ranks 0 .. n-1."""
    return Mesh(tuple(shape), tuple(f"axis{k}" for k in range(len(shape))), range(math.prod(shape)))


def group_starts(in_shape: Sizes, out_shape: Sizes) -> list[tuple[int, int]]:
    """The first dims of the groups of equal product, as pairs of an input and an output dim.

    >>> group_starts((4, 5, 2, 3), (2, 2, 5, 6))
    [(0, 0), (1, 2), (2, 3)]
    """
    if math.prod(in_shape) != math.prod(out_shape):
        raise PlanError(
            f"{tuple(in_shape)} cannot be reshaped to {tuple(out_shape)}: other numbers of elements"
        )
    old = [dim for dim, size in enumerate(in_shape) if size != 1]
    new = [dim for dim, size in enumerate(out_shape) if size != 1]
    starts = []
    i = j = 0
    while i < len(old) and j < len(new):
        starts.append((old[i], new[j]))
        a, b = in_shape[old[i]], out_shape[new[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * in_shape[old[i]], i + 1
            else:
                b, j = b * out_shape[new[j]], j + 1
    return starts


def broadcast_only(in_shape: Sizes) -> bool:
    """Whether an input is reshaped whole only: one number, or nothing at all."""
    return not in_shape or 0 in in_shape


def reshape_pairs(in_shape: Sizes, out_shape: Sizes, parts: int) -> list[tuple[Placement, Placement]]:
    """All pairs on one axis of ``parts`` ranks: split ones, then pending, then broadcast."""
    pairs: list[tuple[Placement, Placement]] = []
    if not broadcast_only(in_shape):
        for one, other in group_starts(in_shape, out_shape):
            a, b = in_shape[one], out_shape[other]
            if a == b or not (a % parts or b % parts):
                pairs.append((Shard(one), Shard(other)))
        pairs.append((Partial(), Partial()))
    return [*pairs, (Replicate(), Replicate())]


def reshape_sbp(
    in_shape: Sizes, out_shape: Sizes, mesh: Sizes, in_sbp: Sequence[Placement]
) -> Placements | None:
    """The output's sbp for an input's, or None if the input has to be converted first."""
    if broadcast_only(in_shape):
        return tuple(in_sbp) if set(in_sbp) <= {Replicate()} else None
    if len(in_sbp) != len(mesh):
        raise PlanError(
            f"a mesh of {many(len(mesh), 'axis', 'axes')} takes as many placements, not {len(in_sbp)}"
        )
    if len(mesh) == 1 and isinstance(in_sbp[0], Shard):
        pairs = dict(reshape_pairs(in_shape, out_shape, mesh[0]))
        return (pairs[in_sbp[0]],) if in_sbp[0] in pairs else None
    placements = tuple(None if isinstance(one, Shard) else one for one in in_sbp)
    for one, other in completed(tuple(in_shape), tuple(out_shape), tuple(mesh), placements, (), ()):
        if one == tuple(in_sbp):
            return other
    return None


def completed(
    in_shape: Shape,
    out_shape: Shape,
    mesh: Shape,
    placements: tuple[Placement | None, ...],
    one: Placements,
    other: Placements,
) -> list[tuple[Placements, Placements]]:
    """All ways to fill in the split axes (None) of a pair of tuples, axis by axis."""
    if len(one) == len(mesh):
        return [(one, other)]
    placement, parts = placements[len(one)], mesh[len(one)]
    if placement is not None:
        return completed(in_shape, out_shape, mesh, placements, (*one, placement), (*other, placement))
    pairs = []
    for a, b in group_starts(in_shape, out_shape):
        if in_shape[a] % parts or out_shape[b] % parts:
            continue
        smaller = (*in_shape[:a], in_shape[a] // parts, *in_shape[a + 1 :])
        after = (*out_shape[:b], out_shape[b] // parts, *out_shape[b + 1 :])
        pairs += completed(smaller, after, mesh, placements, (*one, Shard(a)), (*other, Shard(b)))
    return pairs
