"""Compute the fewest elements that ranks must receive in a redistribution, whatever the algorithm.

``docs/explanations/bounds.md`` proves the bounds. For one element with ``n`` addends and ``N`` owners in the target:

* ``n = 1``: each owner that lacks the element receives it once.
* ``n > 1``: all ranks together receive it ``(n - 1) + (N - 1)`` times, and once more if no rank owns an addend and needs the result.
* An incomplete sum of 16-bit floats travels as float32 and counts twice.

The busiest rank receives at least its target shard, and at least a weighted average over the ranks. The weights are the dual of a
linear programme (:mod:`~spmdsim.redistribution.bound.adder_shares`); any weights give a valid bound. On more than
:data:`MOST_RANKS` ranks per mesh, all weights are equal, and the bound may be too low.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from spmdsim.core import Bounds, Layout
from spmdsim.core.step import overlap, volume
from spmdsim.redistribution.bound.adder_shares import balanced, level_shares
from spmdsim.redistribution.grid import all_bounds, boxes_of, piece_numbers, positions_in, ranks_of

#: Up to so many ranks per mesh the ranks are weighed, and counted in plain Python.
MOST_RANKS, FEW = 16, 32


class ReceptionBound(NamedTuple):
    """What must be received, in elements: by at least one rank, by all together, and by each of the target's mesh.

    Where values only move, a rank receives exactly that; where they are reduced, it is the larger of its target and the
    average, and no algorithm keeps every rank below.
    """

    busiest: int
    total: int
    ranks: np.ndarray

    @classmethod
    def of_each(cls, ranks: np.ndarray, total: int | None = None) -> ReceptionBound:
        """Return a bound from those of single ranks, with the total if it is not their sum."""
        return cls(int(ranks.max(initial=0)), int(ranks.sum()) if total is None else total, ranks)


def kept_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """Return the axes that are pending with the same reduction in both layouts, in mesh order."""
    if not src.partial or not dst.partial or src.mesh != dst.mesh:
        return ()
    return tuple(axis for axis, op in src.partial if (axis, op) in dst.partial)


def reduced_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """Return the axes whose pending values have to be reduced, in mesh order."""
    kept = kept_axes(src, dst)
    return tuple(axis for axis in src.partial_axes if axis not in kept)


def contributions(src: Layout, dst: Layout) -> int:
    """Return the number of contributions that are combined into one element; 1 if values only move."""
    return src.mesh.axis_size(*reduced_axes(src, dst)) if src.partial else 1


@lru_cache(maxsize=1024)
def lower_bound(src: Layout, dst: Layout, shape: tuple[int, ...], parts: int = 1) -> ReceptionBound:
    """Return what ranks must receive to get from one layout to another.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: global shape.
        parts: elements that an incomplete sum takes while it travels; 2 for 16-bit floats, which are added in float32.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 4), ("a", "b"))
    >>> lower_bound(mesh(None, partial="a"), mesh(None), (64,))[:2]  # (2 - 1) + (8 - 1) receptions per element
    (64, 512)
    """
    average, kept, reduced = (
        least_on_average(src, dst, shape, parts),
        kept_axes(src, dst),
        reduced_axes(src, dst),
    )
    new = len(dst.partial) > len(kept)
    if not reduced or new or not average.total or not shape or max(src.mesh.size, dst.mesh.size) > MOST_RANKS:
        return average
    least = sums(src, dst, shape, kept, reduced).least(parts)
    return ReceptionBound(max(average.busiest, least), average.total, np.maximum(average.ranks, least))


@lru_cache(maxsize=1024)
def least_on_average(src: Layout, dst: Layout, shape: tuple[int, ...], parts: int = 1) -> ReceptionBound:
    """Return a lower bound like :func:`lower_bound`, from the average over all ranks only, in less time."""
    mesh, kept = dst.mesh, kept_axes(src, dst)
    terms = contributions(src, dst)
    new = tuple(axis for axis in dst.partial_axes if axis not in kept)
    if terms > 1 and not new and max(src.mesh.size, mesh.size) <= FEW:
        return _least_of_few(src, dst, shape, kept, (terms - 1) * parts)
    here = ranks_of(src.mesh).positions(ranks_of(mesh).rank)
    want, have = all_bounds(dst, shape), all_bounds(src, shape)[here]
    own = np.minimum(want[..., 1], have[..., 1]) - np.maximum(want[..., 0], have[..., 0])
    held = np.where(here < 0, 0, np.maximum(own, 0).prod(axis=1))
    wanted = (want[..., 1] - want[..., 0]).prod(axis=1)
    lines = mesh.axis_size(*new)
    source = np.where(here < 0, -1, piece_numbers(src.mesh, src.split_axes)[here]) + 1
    if terms == 1 or (new and src.mesh != mesh):
        line = piece_numbers(mesh, tuple(axis for axis in mesh.axes if axis not in new))
        missing = wanted - _distinct(line, source, held)[line] if new else wanted - held
        return ReceptionBound.of_each(-(-missing // lines), int(missing.sum()) // lines)
    # Overlaps of different source or target pieces share no element, so they add up to those held where wanted.
    covered = int(_distinct(piece_numbers(mesh, (*dst.split_axes, *kept)), source, held).sum())
    elements = math.prod(shape) * mesh.axis_size(*kept)
    wanting = mesh.size // mesh.axis_size(*dst.split_axes, *kept, *new)
    total = elements * ((terms - 1) * parts + wanting) - covered
    least = -(-total // (mesh.size + src.mesh.size - int((here >= 0).sum())))
    return ReceptionBound.of_each(np.maximum(-(-wanted // lines), least), total)


def _least_of_few(
    src: Layout, dst: Layout, shape: tuple[int, ...], kept: tuple[str, ...], joining: int
) -> ReceptionBound:
    """Return :func:`least_on_average` of a reduction on few ranks without new pending axes. Uses no arrays."""
    mesh = dst.mesh
    here, want, have = positions_in(src.mesh, mesh), boxes_of(dst, shape), boxes_of(src, shape)
    source = piece_numbers(src.mesh, src.split_axes).tolist()
    target = piece_numbers(mesh, (*dst.split_axes, *kept)).tolist()
    held = {
        (piece, source[position]): volume(common)
        for box, position, piece in zip(want, here, target)
        if position >= 0 and (common := overlap(box, have[position])) is not None
    }
    wanting = mesh.size // mesh.axis_size(*dst.split_axes, *kept)
    total = math.prod(shape) * mesh.axis_size(*kept) * (joining + wanting) - sum(held.values())
    least = -(-total // (mesh.size + src.mesh.size - sum([position >= 0 for position in here])))
    return ReceptionBound.of_each(np.array([max(volume(box), least) for box in want]), total)


def _distinct(group: np.ndarray, piece: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """Return, for each group, the elements of its distinct pieces."""
    _, first = np.unique(group * (piece.max(initial=0) + 1) + piece, return_index=True)
    return np.bincount(group[first], weights=elements[first], minlength=len(group)).astype(np.int64)


class SumCell(NamedTuple):
    """Elements that the same ranks hold and want: the ranks that hold each contribution, and each rank's own."""

    box: Bounds
    holders: tuple[tuple[int, ...], ...]
    wanting: tuple[int, ...]
    own: dict[int, int]

    def finishers(self, adders: Collection[int]) -> list[int]:
        """Return the ranks that can add their own contribution last after ``adders``; none if an adder can do so."""
        own, wanting = self.own, self.wanting
        if [rank for rank in adders if rank in own and rank in wanting]:
            return []
        theirs = [own.get(rank) for rank in adders]
        return [rank for rank in wanting if rank in own and own[rank] not in theirs]

    def joins(self, rank: int, adders: Collection[int]) -> bool:
        """Return True if ``rank`` can add up a part of an element with ``adders`` without another reception."""
        own, wanting = self.own, self.wanting
        if rank not in own:  # it can only be the last one
            return rank in wanting and all(one in own or one not in wanting for one in adders)
        if own[rank] in [own.get(one) for one in adders]:
            return False
        return (
            not self._adds_last
            or rank in wanting
            or any(one in own and one in wanting for one in adders)
            or bool(self.finishers((rank, *adders)))
        )

    @property
    def _adds_last(self) -> bool:
        """Whether a rank that wants the result has a contribution."""
        return not self.own.keys().isdisjoint(self.wanting)

    @property
    def fewest(self) -> int:
        """The least that any adder's receptions are, as :meth:`extras` counts them."""
        return len(self.holders) - 1 - self._adds_last

    def extras(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return each rank's receptions per element as an adder, without the reception of the result itself."""
        terms, own, wanting = len(self.holders), self.own, self.wanting
        last = {own[rank] for rank in wanting if rank in own}
        extras = dict.fromkeys(ranks, terms - bool(last))
        extras.update(dict.fromkeys(wanting, terms - 1))
        for rank, mine in own.items():
            another = len(last) > (mine in last)
            extras[rank] = terms - (2 if another or rank in wanting else 1)
        return tuple(extras.values())


class Sums:
    """The elements of a reduction by who holds and wants them, and how its ranks best share the adding.

    Each place along the axes that stay pending (``kept``) is a problem of its own.
    """

    def __init__(
        self, src: Layout, dst: Layout, shape: tuple[int, ...], kept: Sequence[str], reduced: Sequence[str]
    ) -> None:
        #: The ranks of both meshes.
        self.ranks = sorted({*ranks_of(src.mesh).rank.tolist(), *ranks_of(dst.mesh).rank.tolist()})
        number = piece_numbers(src.mesh, tuple(reduced)).tolist()
        want, targets = dict.fromkeys(self.ranks, 0), []
        for (problem, box), members in _pieces(dst, shape, tuple(kept)).items():
            wanting = tuple([rank for rank, _ in members])
            want.update(dict.fromkeys(wanting, volume(box)))
            targets.append((problem, box, wanting))
        #: Elements that each rank wants.
        self.want = np.array(list(want.values()))
        groups: dict[tuple[int, ...], list[SumCell]] = {}
        for (problem, box), members in _pieces(src, shape, tuple(kept)).items():
            own = {rank: number[position] for rank, position in members}
            holders: list[list[int]] = [[] for _ in range(src.mesh.axis_size(*reduced))]
            for rank, term in own.items():
                holders[term].append(rank)
            held = tuple(map(tuple, holders))
            for other, target, wanting in targets:
                if problem == other and (common := overlap(box, target)) is not None:
                    cell = SumCell(common, held, wanting, own)
                    groups.setdefault(cell.extras(self.ranks), []).append(cell)
        rows = sorted(groups)
        #: Cells that cost every adder the same, together.
        self.groups = [groups[row] for row in rows]
        #: ``[group, rank]``, what they cost it per element.
        self.extras = np.array(rows)
        #: Per group the ranks that it costs the least.
        self.inside = [
            [rank for rank, cost in zip(self.ranks, row) if cost == least]
            for row, least in zip(rows, map(min, rows))
        ]
        #: Elements of each group.
        self.volumes = np.array([sum(volume(cell.box) for cell in cells) for cells in self.groups])

    @cached_property
    def _solution(self) -> tuple[np.ndarray, np.ndarray]:
        return balanced(self.extras, self.volumes, self.want)

    @cached_property
    def shares(self) -> np.ndarray:
        """``[group, rank]``, the elements that each rank adds up so that the busiest receives little.

        Of up to ``2 * MOST_RANKS`` ranks the busiest receives the least, with shares in fractions; of more ranks, shares
        are whole numbers and the busiest may receive more than the least.
        """
        if len(self.ranks) > 2 * MOST_RANKS:
            return level_shares(self.extras, self.volumes, self.want)
        return self._solution[0]

    def least(self, parts: int = 1) -> int:
        """Return the elements that the busiest rank receives at least, by the best weights of ranks.

        What is not complete yet takes ``parts`` elements.
        """
        weights = np.maximum(self._solution[1], 0)
        adding = parts * (self.volumes * (weights * self.extras).min(axis=1)).sum()
        average = float(((weights * self.want).sum() + adding) / weights.sum())
        return int(np.ceil(average * (1 - 1e-12) - 1e-6))


sums = lru_cache(maxsize=512)(Sums)


def _pieces(
    layout: Layout, shape: tuple[int, ...], kept: tuple[str, ...]
) -> dict[tuple[int, Bounds], list[tuple[int, int]]]:
    """Return ``(rank, position)`` of the ranks that own each box, by problem and box, without empty boxes."""
    problem = piece_numbers(layout.mesh, kept).tolist()
    ranks = ranks_of(layout.mesh).rank.tolist()
    boxes: dict[tuple[int, Bounds], list[tuple[int, int]]] = {}
    for position, box in enumerate(boxes_of(layout, shape)):
        if volume(box):
            boxes.setdefault((problem[position], box), []).append((ranks[position], position))
    return boxes
