"""What OneFlow does between two sbp, in OneFlow's words: routes, costs, steps, and what it moves.

The rules are those of :mod:`spmdsim.imitations.oneflow.boxing_rules`; here sbp are written in any of OneFlow's ways: ``"S(0)"``,
``"(B, S(0))"``, ``["B", "S0"]``, ``flow.sbp.split(0)`` or a tuple of these.

>>> traffic((2, 2), ["B", "S0"], ["S0", "S0"], (8, 8, 16), itemsize=4)
2048
>>> transition("P", "S(1)", 4, 2048)
BoxingTransition(route=('ccl-p-to-s', 'ccl-s-to-s'), collectives=('reduce_scatter', 'all_to_all'), cost=6144.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spmdsim.core import Placement
from spmdsim.dialects.oneflow.sbp import Sbp, as_tuple, from_placement
from spmdsim.errors import LayoutError
from spmdsim.imitations.oneflow import boxing_rules as rules

SbpLike = Sbp | str | Sequence[Sbp | str]
Sizes = Sequence[int]
Placements = tuple[Placement, ...]


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


def traffic(hierarchy: Sizes, src: SbpLike, dst: SbpLike, shape: Sizes, itemsize: int = 1) -> int:
    """Bytes that all ranks of a placement of this shape must receive: what they need less what they hold."""
    return rules.total_traffic(
        rules.mesh_of(hierarchy), *_pair(src, dst, len(tuple(hierarchy))), shape, itemsize
    )


def steps(src: SbpLike, dst: SbpLike) -> list[AxisStep]:
    """One transition per changed axis, in a possible order.

    Raises:
        ValueError: the axes wait for each other.
    """
    transitions = rules.decompose(*_pair(src, dst))
    return [AxisStep(s.axis, from_placement(s.before), from_placement(s.after)) for s in transitions]


def _placements(value: SbpLike, axes: int | None = None) -> Placements:
    return tuple(entry.placement for entry in as_tuple(value, axes))


def _single(value: SbpLike) -> Placement:
    return _placements(value, 1)[0]


def _pair(src: SbpLike, dst: SbpLike, axes: int | None = None) -> tuple[Placements, Placements]:
    one, other = _placements(src, axes), _placements(dst, axes)
    if len(one) != len(other):
        raise LayoutError(f"sbp of {len(one)} and of {len(other)} axes are not on one placement")
    return one, other
