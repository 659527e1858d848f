"""What OneFlow does between two sbp, in OneFlow's words: routes, costs, order of axes, and what it moves.

The rules are those of :mod:`spmdsim.dialects.imitations.oneflow.boxing_rules`; here sbp are written in any of OneFlow's ways: ``"S(0)"``,
``"(B, S(0))"``, ``["B", "S0"]``, ``flow.sbp.split(0)`` or a tuple of these.

>>> zero_comm("(S(0), B)", "(S(0), S(0))"), zero_comm("(B, S(0))", "(S(0), S(0))")
(True, False)
>>> traffic((2, 2), ["B", "S0"], ["S0", "S0"], (8, 8, 16), itemsize=4)
2048
>>> transition("P", "S(1)", 4, 2048)
BoxingTransition(route=('ccl-p-to-s', 'ccl-s-to-s'), collectives=('reduce_scatter', 'all_to_all'), cost=6144.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spmdsim.core import Placement
from spmdsim.dialects.imitations.oneflow import boxing_rules as rules
from spmdsim.dialects.imitations.oneflow.boxing_rules import Placements, Shape, Sizes
from spmdsim.dialects.oneflow.sbp import Sbp, as_tuple, from_placement
from spmdsim.errors import LayoutError, many

SbpLike = Sbp | str | Sequence[Sbp | str]
NdSbp = tuple[Sbp, ...]


class BoxingTransition(NamedTuple):
    """A transition on one mesh axis: the interpreters that run one after the other, the collectives they call, the cost.

    The cost is OneFlow's, in bytes that all ranks together receive, penalties included.
    """

    route: tuple[str, ...]
    collectives: tuple[str, ...]
    cost: float


class AxisStep(NamedTuple):
    """A transition along one axis of a placement: the axis, and its sbp before and after."""

    axis: int
    before: Sbp
    after: Sbp


def transition(
    src: SbpLike, dst: SbpLike, parts: int, nbytes: float, shape: Sizes | None = None
) -> BoxingTransition:
    """How OneFlow goes from one sbp to another on one axis of ``parts`` ranks, with ``nbytes`` of the whole tensor.

    With its ``shape``, dims that do not divide take the pairwise ("naive") way.
    """
    one, other = _single(src), _single(dst)
    uneven = (parts, shape) if shape is not None else (None, None)
    return BoxingTransition(
        rules.boxing_route(one, other, *uneven),
        rules.boxing_collectives(one, other, *uneven),
        rules.boxing_cost(one, other, parts, nbytes),
    )


def cross_placement_cost(src: SbpLike, dst: SbpLike, src_parts: int, dst_parts: int, nbytes: float) -> float:
    """OneFlow's cost of a transition from ``src_parts`` ranks to ``dst_parts`` others."""
    return rules.cross_placement_cost(_single(src), _single(dst), src_parts, dst_parts, nbytes)


def zero_comm(src: SbpLike, dst: SbpLike) -> bool:
    """Whether a transition between splits and broadcasts needs no communication, for sizes that divide."""
    return rules.zero_comm(*_pair(src, dst))


def traffic(hierarchy: Sizes, src: SbpLike, dst: SbpLike, shape: Sizes, itemsize: int = 1) -> int:
    """Bytes that all ranks of a placement of this shape must receive: what they need less what they hold."""
    return rules.total_traffic(
        rules.mesh_of(hierarchy), *_pair(src, dst, len(tuple(hierarchy))), shape, itemsize
    )


def axis_order(src: SbpLike, dst: SbpLike) -> list[int] | None:
    """The order in which axes can be converted one by one; None if they wait for each other in a circle.

    >>> axis_order("(S0, S1, S2)", "(S1, S2, S3)"), axis_order("(S0, S1)", "(S1, S0)")
    ([2, 1, 0], None)
    """
    return rules.axis_sequence(*_pair(src, dst))


def steps(src: SbpLike, dst: SbpLike) -> list[AxisStep]:
    """One transition per changed axis, in a possible order.

    Raises:
        ValueError: the axes wait for each other; :func:`generic_states` is the way then.
    """
    transitions = rules.decompose(*_pair(src, dst))
    return [AxisStep(s.axis, from_placement(s.before), from_placement(s.after)) for s in transitions]


def generic_states(src: SbpLike, dst: SbpLike) -> list[NdSbp]:
    """The sbp tuples on the way when nothing else is possible: by B from the last axis down, then forward."""
    return [_sbps(state) for state in rules.generic_steps(*_pair(src, dst))]


def expand(shape: Sizes, hierarchy: Sizes, src: SbpLike, dst: SbpLike) -> tuple[Shape, NdSbp, NdSbp]:
    """A shape in which one axis each splits a dim, and both sbp for it."""
    sizes, one, other = rules.expand_shape(shape, hierarchy, *_pair(src, dst, len(tuple(hierarchy))))
    return sizes, _sbps(one), _sbps(other)


def reduce_dims(hierarchy: Sizes, sbps: Sequence[SbpLike], shape: Sizes) -> tuple[Shape, tuple[NdSbp, ...]]:
    """The same distributions on a placement with fewer axes.

    >>> reduce_dims((2, 4), ["(S0, S0)", "(B, B)"], (8, 8))
    ((8,), ((oneflow.sbp.split(dim=0),), (oneflow.sbp.broadcast,)))
    """
    listed = [_placements(entry, len(tuple(hierarchy))) for entry in sbps]
    mesh, placements = rules.reduce_dims(hierarchy, listed, shape)
    return mesh, tuple(_sbps(entry) for entry in placements)


def reshape(in_shape: Sizes, out_shape: Sizes, hierarchy: Sizes, in_sbp: SbpLike) -> NdSbp | None:
    """The sbp of a reshape's result, or None if the operand has to be converted first."""
    placements = rules.reshape_sbp(in_shape, out_shape, hierarchy, _placements(in_sbp, len(tuple(hierarchy))))
    return None if placements is None else _sbps(placements)


def subgroup(hierarchy: Sizes, rank: int, selected: Sequence[bool]) -> Shape:
    """The ranks that differ from ``rank`` along the selected axes only.

    >>> subgroup((4, 4), 6, [True, False])
    (2, 6, 10, 14)
    """
    return rules.subgroup(rules.mesh_of(hierarchy), rank, selected)


def _placements(value: SbpLike, axes: int | None = None) -> Placements:
    return tuple(entry.placement for entry in as_tuple(value, axes))


def _single(value: SbpLike) -> Placement:
    return _placements(value, 1)[0]


def _pair(src: SbpLike, dst: SbpLike, axes: int | None = None) -> tuple[Placements, Placements]:
    one, other = _placements(src, axes), _placements(dst, axes)
    if len(one) != len(other):
        raise LayoutError(
            f"sbp of {len(one)} and of {many(len(other), 'axis', 'axes')} are not on one placement"
        )
    return one, other


def _sbps(placements: Sequence[Placement]) -> NdSbp:
    return tuple(from_placement(entry) for entry in placements)
