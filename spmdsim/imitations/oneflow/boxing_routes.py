"""OneFlow's routes between sbp tuples, one mesh axis at a time, and what it thinks they cost.

Costs are bytes that all ranks together receive, plus its penalties: 1 for B -> S, and ``4 T (p + p')`` for anything
that becomes pending. This package's own plans are compared with them in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from spmdsim.core import Mesh, Partial, Placement, Replicate, Shard
from spmdsim.errors import PlanError

Sbp = Sequence[Placement]


@dataclass(frozen=True)
class PlacementStep:
    """A transition on the groups along one mesh axis.

    Attributes:
        axis: the mesh axis.
        before: its placement before.
        after: its placement after.
    """

    axis: int
    before: Placement
    after: Placement


def boxing_cost(src: Placement, dst: Placement, parts: int, nbytes: float) -> float:
    """OneFlow's cost of a transition on one axis of ``parts`` ranks; ``nbytes`` is the whole tensor.

    >>> boxing_cost(Shard(0), Shard(1), 4, 2048), boxing_cost(Partial(), Replicate(), 4, 2048)
    (1536.0, 12288.0)
    """
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
    """OneFlow's cost of a transition between two sets of ranks.

    >>> cross_placement_cost(Partial(), Replicate(), 2, 4, 2048)
    10240.0
    """
    cost = float(nbytes)
    if isinstance(dst, Replicate):
        cost += (dst_parts - 1) * nbytes
    if isinstance(src, Partial):
        cost += (src_parts - 1) * nbytes
    if isinstance(dst, Partial):
        cost += 4 * nbytes * (src_parts + dst_parts)
    return cost


def boxing_route(
    src: Placement, dst: Placement, parts: int | None = None, shape: Sequence[int] | None = None
) -> tuple[str, ...]:
    """The interpreters that OneFlow runs one after the other on one axis.

    Args:
        src: the placement before.
        dst: the placement after.
        parts: size of the axis; with ``shape``, dims that do not divide take the pairwise ("naive") way.
        shape: the global shape.

    >>> boxing_route(Partial(), Shard(1))
    ('ccl-p-to-s', 'ccl-s-to-s')
    """
    if src == dst:
        return ("identity",)
    if isinstance(dst, Partial):
        return ("symmetric-b-to-p",) if isinstance(src, Replicate) else ("symmetric-s-to-p",)
    if isinstance(src, Replicate):
        return ("symmetric-b-to-s",)
    if isinstance(src, Partial) and isinstance(dst, Replicate):
        return ("ccl-p-to-b",)
    name = "p" if isinstance(src, Partial) else "s"
    dims = {placement.dim for placement in (src, dst) if isinstance(placement, Shard)}
    if not (isinstance(src, Shard) and isinstance(dst, Shard)):
        dims |= {0}  # the collectives gather and scatter dim 0
    if parts and shape and any(shape[dim] % parts for dim in dims):
        return (f"naive-{name}-to-{'b' if isinstance(dst, Replicate) else 's'}",)
    if isinstance(src, Shard) and isinstance(dst, Shard):
        return ("ccl-s-to-s",)
    if isinstance(dst, Replicate):
        return ("ccl-s-to-b",) if dims == {0} else ("ccl-s-to-s", "ccl-s-to-b")
    return ("ccl-p-to-s",) if dims == {0} else ("ccl-p-to-s", "ccl-s-to-s")


#: The collective behind an interpreter; those that are not here move nothing.
_COLLECTIVES = {
    "ccl-p-to-b": "all_reduce",
    "ccl-p-to-s": "reduce_scatter",
    "ccl-s-to-b": "all_gather",
    "ccl-s-to-s": "all_to_all",
}


def boxing_collectives(
    src: Placement, dst: Placement, parts: int | None = None, shape: Sequence[int] | None = None
) -> tuple[str, ...]:
    """The collectives of :func:`boxing_route`, ``send_recv`` for the pairwise way; none for a local transition.

    >>> boxing_collectives(Shard(1), Replicate()), boxing_collectives(Replicate(), Shard(1))
    (('all_to_all', 'all_gather'), ())
    """
    route = boxing_route(src, dst, parts, shape)
    collectives = ("send_recv" if name.startswith("naive") else _COLLECTIVES.get(name) for name in route)
    return tuple(name for name in collectives if name)


def axis_sequence(src: Sbp, dst: Sbp) -> list[int] | None:
    """The order in which axes can be converted one by one, or None if they wait for each other in a circle.

    An axis that is to split a dim waits for the changing axes that split it now.

    >>> S = Shard
    >>> axis_sequence((S(0), S(1), S(2)), (S(1), S(2), S(3)))
    [2, 1, 0]
    """
    waiting = [axis for axis, (one, other) in enumerate(zip(src, dst)) if one != other]
    order: list[int] = []
    while waiting:
        ready = [
            axis
            for axis in waiting
            if not any(other != axis and dst[axis] == src[other] for other in waiting)
            or not isinstance(dst[axis], Shard)
        ]
        if not ready:
            return None
        order.append(ready[0])
        waiting.remove(ready[0])
    return order


def decompose(src: Sbp, dst: Sbp) -> list[PlacementStep]:
    """One transition per changed axis, in a possible order.

    Raises:
        PlanError: the axes wait for each other.
    """
    order = axis_sequence(src, dst)
    if order is None:
        text = " -> ".join("".join(map(str, sbp)) for sbp in (src, dst))
        raise PlanError(f"the axes of {text} wait for each other in a circle, so none can be converted first")
    return [PlacementStep(axis, src[axis], dst[axis]) for axis in order]


def generic_steps(src: Sbp, dst: Sbp) -> list[tuple[Placement, ...]]:
    """OneFlow's way when all else fails: B from the last axis down to the first that differs, then forward.

    >>> ["".join(map(str, state)) for state in generic_steps((Shard(0), Shard(1)), (Shard(1), Shard(0)))]
    ['S(0)S(1)', 'S(0)R', 'RR', 'S(1)R', 'S(1)S(0)']
    """
    changed = [axis for axis, (one, other) in enumerate(zip(src, dst)) if one != other]
    states = [tuple(src)]
    axes = range(changed[0], len(src)) if changed else range(0)
    wanted = [(axis, Replicate()) for axis in reversed(axes)] + [(axis, dst[axis]) for axis in axes]
    for axis, placement in wanted:
        after = (*states[-1][:axis], placement, *states[-1][axis + 1 :])
        if after != states[-1]:
            states.append(after)
    return states


def expand_shape(
    shape: Sequence[int], mesh: Sequence[int], src: Sbp, dst: Sbp
) -> tuple[tuple[int, ...], tuple[Placement, ...], tuple[Placement, ...]]:
    """Dims that several axes split, written as several dims that one axis each splits.

    Returns:
        The shape and both tuples for it.

    Raises:
        PlanError: a dim that does not divide, or that the two tuples cut differently.

    >>> S = Shard
    >>> expand_shape((16, 4), (4, 4), (S(0), S(0)), (Replicate(), Partial()))[0]
    (4, 4, 4)
    """
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


def _renumbered(mesh: Sequence[int], sbp: Sbp, starts: dict[tuple[int, int], int]) -> tuple[Placement, ...]:
    out: list[Placement] = []
    before: dict[int, int] = {}
    for parts, placement in zip(mesh, sbp):
        if isinstance(placement, Shard):
            done = before.get(placement.dim, 1)
            before[placement.dim] = done * parts
            placement = Shard(starts[placement.dim, done])
        out.append(placement)
    return tuple(out)


def subgroup(mesh: Mesh, rank: int, selected: Sequence[bool]) -> tuple[int, ...]:
    """The ranks that differ from ``rank`` along the selected axes only."""
    return mesh.group(rank, *(axis for axis, chosen in zip(mesh.axes, selected) if chosen))
