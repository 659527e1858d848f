"""OneFlow's rules about sbp tuples: routes and costs between them.

Semantics after ``core/framework/sbp_infer_util.cpp`` and ``placement_sbp_util.cpp``. An sbp tuple is a sequence of placements, one per mesh axis, major axis first;
P is a pending sum. Costs are bytes that all ranks together receive, plus OneFlow's penalties: 1 for B -> S, and
``4 T (p + p')`` for anything that becomes pending. This package's own plans are compared with them in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spmdsim.core import Layout, Mesh, Partial, Placement, Replicate, Shard
from spmdsim.errors import PlanError
from spmdsim.redistribution.lower_bound import lower_bound

Sbp = Sequence[Placement]
Sizes = Sequence[int]
Route = tuple[str, ...]


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


def total_traffic(mesh: Mesh, src: Sbp, dst: Sbp, shape: Sizes, itemsize: int) -> int:
    """Bytes that all ranks together must receive: what they need less what they hold."""
    one, other = (Layout.from_placements(mesh, placements, len(shape)) for placements in (src, dst))
    return itemsize * lower_bound(one, other, tuple(shape)).total


def mesh_of(shape: Sizes) -> Mesh:
    """A mesh with axes named by their number, over ranks 0 .. n-1."""
    return Mesh(tuple(shape), tuple(f"axis{k}" for k in range(len(shape))), range(math.prod(shape)))


def broadcast_only(in_shape: Sizes) -> bool:
    """Whether an input is reshaped whole only: one number, or nothing at all."""
    return not in_shape or 0 in in_shape
