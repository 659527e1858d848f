"""The least that ranks have to receive, whatever the algorithm, with its proof.

**What is counted.** A *reception* is one element that arrives at a rank from another one: a contribution, or any
combination of contributions that its sender knows. Only the ranks of the two meshes take part, ``P`` of them. Idle
ranks of the world cannot lower the bound where values only move. They could take over a part of a reduction, so a bound
of sums holds for the ranks of the two meshes only, and tables say for how many.
A rank *knows* what it holds and what it received. Look at one element. Its ``n`` contributions lie in ``n`` classes of
ranks (copies along other axes are in one class; with nothing to reduce ``n = 1``), ``H`` is all of them together, and
``W`` are the ``N`` ranks that want the result.

**Values only move** (``n = 1``). A rank of ``W`` that is not in ``H`` receives the element, nobody else has to:
``|target - source|`` on every rank, and the direct exchange receives no more.

**Values are reduced** (``n > 1``). *At least* ``(n - 1) + (N - 1)`` *receptions, and one more if no rank is in both*
``H`` *and* ``W``. Proof. Call a rank complete when all ``n`` contributions have gone into what it knows, and let ``x``
be a rank that becomes complete before any rank that it heard from, directly or through others. Take the classes, each
as one node, and every rank outside of ``H`` as a node of its own, and join two nodes whenever one receives from the
other. What ``x`` heard joined the ``n`` classes and ``x``: that takes ``n - 1`` receptions, ``n`` if ``x`` is not in
``H``, and none of them made another rank complete. Every rank of ``W`` but ``x`` becomes complete by a reception of its
own, so there are ``N - 1`` more, or ``N`` if ``x`` is not in ``W``. Both are least if ``x`` can be in ``H`` and ``W``; if
no rank is, one of the two is one more. A chain through the classes that ends in ``W``, and from there to the others of
``W``, reaches it. Copies along other axes are in ``N`` and in the classes: they are helpers, not problems of their own.

**The busiest rank.** A rank of ``W`` knows less than all at first, so it receives each element of its target at least
once; and some rank receives at least the average: ``max(largest target, ceil(total / P))``.

**Weighted ranks.** Not all ranks can help equally well. Let ``e`` be what one element takes besides the ``N`` receptions of
``W``: ``n - 2`` if some rank is in both ``H`` and ``W``, else ``n - 1``. Call a rank *inside* if it is in both; or in ``H``,
unless it is the only class that has a rank in both; or, if no rank is in both, in ``W``. *If a rank that is not inside has
any of these receptions, there are at least* ``e + 1``. For with ``e`` of them the proof above has no reception to spare:
each either joins two of its nodes or completes a rank of ``W``. A rank outside of ``H`` that hears of the element before
it is complete is one node more to be joined (if no rank is in both, ``x`` itself may be that node, in ``H`` or in ``W``);
and one of the class of all ranks that are in both can pass what it heard only to a rank of its own class, or to one that
is then complete without being in both, and neither joins or completes what it should. So for weights of the ranks that add
up to 1, some rank receives at least ``sum of weight * target``, and for each element ``min(e * least weight inside, (e + 1)
* least weight)``. :mod:`~spmdsim.redistribution.bound.adder_shares` has the weights that make the most of this, the dual of a linear
programme; any weights make a bound, so it does not depend on how well they were found.

**Sums that are rounded in the end.** Floats of 16 bits are added up in 32, and a reception of a sum that lacks something is
of so many; a result may travel in its own 16. Of the receptions above those that join nodes lack something, so they count
``parts`` results each, the others one: ``(n - 1) * parts + (N - 1)``, the one more is a result, and ``e`` counts ``parts``.

**Axes that stay pending** with the same reduction: each of their coordinates is a problem of its own, with ``N``
counted inside of it. All ranks may still help, so the average is over all.

**Pending targets.** Along a newly pending axis the ranks of a line together hold the result, in parts of their choice.
Take each line as one rank in all of the above: ``N`` counts lines, and a line shares what it has to receive among its
ranks. From another mesh a line may hold several classes; there only what none of its ranks holds is counted.

The bound is tight per element, in all, and, on up to :data:`MOST_RANKS` ranks per mesh, for the busiest rank in fractions
of elements; of more ranks it is the average, without weights, which may be too low. Tables print the ratio where a plan
does not reach it.

**Who adds up.** Each element is given to one rank that adds it up, its *adder*: ranks send it their contributions. If a rank
that wants the result holds a contribution, its own is left out and it adds that itself, at the end. Whoever then has the
result sends it to all others that want it. What a rank wants it receives once in any case; what an element costs its adder
besides follows from who holds and who wants it, so elements are alike in a few groups. How much of which group each rank adds
up so that the busiest receives the least is a small linear programme. It is solved by the simplex method, for more than 32
ranks together by dealing out whole elements, in operations element by element only: all ranks must come to the same answer.
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
