"""Which sbp of a reshape's input and output go together without moving data.

Dims of size 1 aside, the two shapes fall into groups of equal product; the first dims of a group go together if they
are equal or both divide. On several axes the rule holds per axis, on what the axes before have left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from spmdsim.core import Partial, Placement, Replicate, Shard
from spmdsim.errors import PlanError

Sbp = tuple[Placement, ...]


def group_starts(in_shape: Sequence[int], out_shape: Sequence[int]) -> list[tuple[int, int]]:
    """The first dims of the groups of equal product, as pairs of an input and an output dim.

    Raises:
        PlanError: shapes of different numbers of elements.

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


def broadcast_only(in_shape: Sequence[int]) -> bool:
    """Whether an input is reshaped whole only: one number, or nothing at all."""
    return not in_shape or 0 in in_shape


def reshape_pairs(
    in_shape: Sequence[int], out_shape: Sequence[int], parts: int
) -> list[tuple[Placement, Placement]]:
    """All pairs on one axis of ``parts`` ranks: split ones, then pending, then broadcast.

    >>> [f"{a}->{b}" for a, b in reshape_pairs((12, 32), (12, 4, 8), 4)]
    ['S(0)->S(0)', 'S(1)->S(1)', 'P(sum)->P(sum)', 'R->R']
    """
    pairs: list[tuple[Placement, Placement]] = []
    if not broadcast_only(in_shape):
        for one, other in group_starts(in_shape, out_shape):
            a, b = in_shape[one], out_shape[other]
            if a == b or not (a % parts or b % parts):
                pairs.append((Shard(one), Shard(other)))
        pairs.append((Partial(), Partial()))
    return [*pairs, (Replicate(), Replicate())]


def reshape_signatures(
    in_shape: Sequence[int], out_shape: Sequence[int], mesh: Sequence[int]
) -> list[tuple[Sbp, Sbp]]:
    """All pairs of sbp tuples between which a reshape of evenly split tensors moves nothing.

    On a single axis a dim that both shapes have may be split unevenly.
    """
    pairs = []
    if broadcast_only(in_shape):
        return [((Replicate(),) * len(mesh),) * 2]
    if len(mesh) == 1:
        return [((one,), (other,)) for one, other in reshape_pairs(in_shape, out_shape, mesh[0])]
    for pending in product((Partial(), Replicate(), None), repeat=len(mesh)):
        pairs += _complete(tuple(in_shape), tuple(out_shape), tuple(mesh), pending, (), ())
    return list(dict.fromkeys(pairs))


def reshape_sbp(
    in_shape: Sequence[int], out_shape: Sequence[int], mesh: Sequence[int], in_sbp: Sequence[Placement]
) -> Sbp | None:
    """The output's sbp for an input's, or None if the input has to be converted first.

    Raises:
        PlanError: shapes of different numbers of elements, or not one placement per axis.

    >>> reshape_sbp((8, 4), (2, 4, 4), (2, 2), (Shard(0), Shard(0)))
    (Shard(dim=0), Shard(dim=1))
    >>> reshape_sbp((9, 9, 8), (81, 8), (2,), (Shard(0),)) is None
    True
    """
    if broadcast_only(in_shape):
        return tuple(in_sbp) if set(in_sbp) <= {Replicate()} else None
    if len(in_sbp) != len(mesh):
        raise PlanError(f"a mesh of {len(mesh)} axes takes as many placements, not {len(in_sbp)}")
    if len(mesh) == 1 and isinstance(in_sbp[0], Shard):
        pairs = dict(reshape_pairs(in_shape, out_shape, mesh[0]))
        return (pairs[in_sbp[0]],) if in_sbp[0] in pairs else None
    known = tuple(None if isinstance(one, Shard) else one for one in in_sbp)
    for one, other in _complete(tuple(in_shape), tuple(out_shape), tuple(mesh), known, (), ()):
        if one == tuple(in_sbp):
            return other
    return None


def _complete(
    in_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    mesh: tuple[int, ...],
    known: tuple[Placement | None, ...],
    one: Sbp,
    other: Sbp,
) -> list[tuple[Sbp, Sbp]]:
    """All ways to fill in the split axes (None) of a pair of tuples, axis by axis."""
    if len(one) == len(mesh):
        return [(one, other)]
    placement, parts = known[len(one)], mesh[len(one)]
    if placement is not None:
        return _complete(in_shape, out_shape, mesh, known, (*one, placement), (*other, placement))
    pairs = []
    for a, b in group_starts(in_shape, out_shape):
        if in_shape[a] % parts or out_shape[b] % parts:
            continue
        smaller = (*in_shape[:a], in_shape[a] // parts, *in_shape[a + 1 :])
        after = (*out_shape[:b], out_shape[b] // parts, *out_shape[b + 1 :])
        pairs += _complete(smaller, after, mesh, known, (*one, Shard(a)), (*other, Shard(b)))
    return pairs
