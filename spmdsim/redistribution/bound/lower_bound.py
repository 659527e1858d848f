"""Compute the fewest elements that ranks must receive in a redistribution, whatever the algorithm.

``docs/explanations/bounds.md`` proves the bounds. For one element with ``n`` addends and ``N`` owners in the target:

* ``n = 1``: each owner that lacks the element receives it once.
* ``n > 1``: all ranks together receive it ``(n - 1) + (N - 1)`` times, and once more if no rank owns an addend and
  needs the result.
* An incomplete sum of 16-bit floats travels as float32 and counts twice.

The busiest rank receives at least its target shard, and at least a weighted average over the ranks. The weights are
the dual of a linear programme (:mod:`~spmdsim.redistribution.bound.adder_shares`); any weights give a valid bound. On
more than :data:`MOST_RANKS` ranks per mesh, all weights are equal, and the bound may be too low.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from spmdsim.core import Bounds, Layout
from spmdsim.core.step import overlap, volume
from spmdsim.redistribution.bound.adder_shares import balance_loads, level_shares
from spmdsim.redistribution.grid import list_boxes, piece_numbers, ranks_of, source_positions, split_bounds

#: The largest number of ranks per mesh for which the bound weighs the ranks.
MOST_RANKS = 16


class ReceptionBound(NamedTuple):
    """Lower bound of received elements.

    If values only move, every number is exact. If values are reduced, the bound of each rank is the larger of its
    target shard and the average; single ranks may receive less, but no algorithm keeps every rank below its bound.

    Attributes:
        busiest: the elements that at least one rank must receive.
        total: the elements that all ranks together must receive.
        ranks: the elements of each position of the target mesh.
    """

    busiest: int
    total: int
    ranks: np.ndarray

    @classmethod
    def of_each(cls, ranks: np.ndarray, total: int | None = None) -> ReceptionBound:
        """Return the bound from the bounds of single ranks; ``total`` is their sum unless it is given."""
        return cls(int(ranks.max(initial=0)), int(ranks.sum()) if total is None else total, ranks)


def kept_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """Return the axes that are pending with equal reductions in both layouts, in mesh order."""
    if not src.partial or not dst.partial or src.mesh != dst.mesh:
        return ()
    return tuple(axis for axis, op in src.partial if (axis, op) in dst.partial)


def reduced_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """Return the axes whose pending values have to be reduced, in mesh order."""
    still_partial = kept_axes(src, dst)
    return tuple(axis for axis in src.partial_axes if axis not in still_partial)


def count_addends(src: Layout, dst: Layout) -> int:
    """Return the number of addends that are combined into one element; 1 if values only move."""
    return src.mesh.axis_size(*reduced_axes(src, dst)) if src.partial else 1


@lru_cache(maxsize=1024)
def lower_bound(src: Layout, dst: Layout, shape: tuple[int, ...], parts: int = 1) -> ReceptionBound:
    """Return a lower bound of the elements that ranks receive in a redistribution, for any algorithm.

    At least one rank must receive ``busiest`` elements, whichever messages the ranks send.
    ``docs/explanations/bounds.md`` has the proof. There are two cases:

    - Values are summed, no axis becomes pending, and the meshes have at most :data:`MOST_RANKS` (16) ranks: the bound
      considers which ranks best add up each element.
    - Otherwise it is :func:`least_on_average`. That is exact if values only move, and may be too low for sums.

    Args:
        src: the layout before.
        dst: the layout after, on any mesh.
        shape: the global shape.
        parts: the number of elements as which an incomplete sum counts on its way. It is 2 for 16-bit floats, which
            are added in float32.

    Returns:
        ``(busiest, total, ranks)``: the bound of the busiest rank, of all ranks together, and of each position of the
        target mesh. Results are cached by value.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 4), ("a", "b"))
    >>> lower_bound(mesh(None, partial="a"), mesh(None), (64,))[:2]  # (2 - 1) + (8 - 1) receptions per element
    (64, 512)
    """
    average = least_on_average(src, dst, shape, parts)
    common_partial, reduced = kept_axes(src, dst), reduced_axes(src, dst)
    has_new_partial = len(dst.partial) > len(common_partial)
    if (
        not reduced
        or has_new_partial
        or not average.total
        or not shape
        or max(src.mesh.size, dst.mesh.size) > MOST_RANKS
    ):
        return average
    least = sums(src, dst, shape, common_partial, reduced).least(parts)
    return ReceptionBound(max(average.busiest, least), average.total, np.maximum(average.ranks, least))


@lru_cache(maxsize=1024)
def least_on_average(src: Layout, dst: Layout, shape: tuple[int, ...], parts: int = 1) -> ReceptionBound:
    """Return a lower bound that is never above :func:`lower_bound` and takes less time to compute.

    If values only move, the bound of a rank is the number of elements that it lacks.

    If values are summed, let E be the elements of the tensor, n the addends of each, N the replicas in the target,
    and C the elements of which some rank owns both an addend and the result. All ranks together receive
    ``E * ((n - 1) * parts + N) - C`` elements. The bound of a rank is the larger one of the elements that it needs
    and the average over the ranks of both meshes. For example, an all_reduce of 16 elements on 4 ranks has a total of
    ``16 * (3 + 4) - 16 = 96``, so 24 per rank.

    If axes become pending in the target, an element may arrive on any one of the ranks along them. So what these ranks
    need together is divided among them.

    Args:
        src: the layout before.
        dst: the layout after, on any mesh.
        shape: the global shape.
        parts: as in :func:`lower_bound`.

    Returns:
        ``(busiest, total, ranks)`` as in :func:`lower_bound`.
    """
    mesh, common_partial = dst.mesh, kept_axes(src, dst)
    terms = count_addends(src, dst)
    new_partial = tuple(axis for axis in dst.partial_axes if axis not in common_partial)
    owned, wanted, source_pieces = _compare_shards(src, dst, shape)
    # Along new pending axes, an element may arrive on any one rank.
    sharing_ranks = mesh.axis_size(*new_partial)
    if terms == 1 or (new_partial and src.mesh != mesh):
        missing = wanted - owned
        if new_partial:
            lines = piece_numbers(mesh, tuple(axis for axis in mesh.axes if axis not in new_partial))
            first = _first_of_each(lines, source_pieces)
            missing = wanted - np.bincount(lines[first], owned[first], len(lines)).astype(np.int64)[lines]
        return ReceptionBound.of_each(-(-missing // sharing_ranks), int(missing.sum()) // sharing_ranks)
    # Overlaps of different source or target pieces share no element, so their sizes add up.
    target_pieces = piece_numbers(mesh, (*dst.split_axes, *common_partial))
    covered = int(owned[_first_of_each(target_pieces, source_pieces)].sum())
    elements = math.prod(shape) * mesh.axis_size(*common_partial)
    replicas = mesh.size // mesh.axis_size(*dst.split_axes, *common_partial, *new_partial)
    total = elements * ((terms - 1) * parts + replicas) - covered
    all_ranks = mesh.size + int((source_positions(mesh, src.mesh) < 0).sum())
    average = -(-total // all_ranks)
    return ReceptionBound.of_each(np.maximum(-(-wanted // sharing_ranks), average), total)


def _compare_shards(
    src: Layout, dst: Layout, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what the rank at each position of the target mesh owns before and needs after.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.

    Returns:
        ``(owned, wanted, source_pieces)``, arrays by target position: the number of elements of the target shard that
        the rank owns before; the number of all elements of its target shard; and the number of its shard before, from
        1. Ranks outside of the source mesh own no element; their shard has the number 0.
    """
    positions = source_positions(src.mesh, dst.mesh)
    is_in_source = positions >= 0
    want = split_bounds(dst.mesh, dst.dims, shape)
    have = split_bounds(src.mesh, src.dims, shape)[..., positions]  # Those of position -1 are not used.
    overlap_lengths = np.minimum(want[1], have[1]) - np.maximum(want[0], have[0])
    owned = np.where(is_in_source, np.maximum(overlap_lengths, 0).prod(axis=0), 0)
    source_pieces = np.where(is_in_source, piece_numbers(src.mesh, src.split_axes)[positions] + 1, 0)
    return owned, (want[1] - want[0]).prod(axis=0), source_pieces


def _first_of_each(groups: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """Return one position, the first, for each pair of a group and a piece."""
    first: np.ndarray = np.unique(groups * (pieces.max(initial=0) + 1) + pieces, return_index=True)[1]
    return first


class SumCell(NamedTuple):
    """Box of elements that have equal owners before and after a reduction.

    Attributes:
        box: the box of the global tensor.
        owners: for each addend, the ranks that own it.
        wanting: the ranks that own the result.
        term_of: the number of the addend that a rank owns, by rank.
    """

    box: Bounds
    owners: tuple[tuple[int, ...], ...]
    wanting: tuple[int, ...]
    term_of: dict[int, int]

    def finishers(self, adders: Collection[int]) -> list[int]:
        """Return the ranks that can add their own addend after ``adders``, and keep the result.

        They want the result, and own an addend that none of ``adders`` owns. The list, in the order of ``wanting``,
        is empty if one of ``adders`` wants the result and owns an addend: then that one adds last.

        Args:
            adders: the ranks that add up addends of the element.
        """
        term_of, wanting = self.term_of, self.wanting
        if any(rank in term_of and rank in wanting for rank in adders):
            return []
        used_terms = [term_of.get(rank) for rank in adders]
        return [rank for rank in wanting if rank in term_of and term_of[rank] not in used_terms]

    def joins(self, rank: int, adders: Collection[int]) -> bool:
        """Return True if ``rank``, too, can add up addends of an element without more receptions.

        - The rank owns no addend: it can only be the last adder. So it must want the result, and no other adder
          without an addend may want it.
        - The rank owns an addend: no adder may own an equal one, since an addend is added once. And if some rank that
          wants the result owns an addend, a rank of this kind must still be able to add last; else the result needs
          one more message.

        Args:
            rank: the rank.
            adders: the other ranks that add up addends of the element and pass the sum on.
        """
        term_of, wanting = self.term_of, self.wanting
        if rank not in term_of:  # It can only be the last adder.
            return rank in wanting and all(adder in term_of or adder not in wanting for adder in adders)
        if term_of[rank] in [term_of.get(adder) for adder in adders]:
            return False
        return (
            not self._adds_last
            or rank in wanting
            or any(adder in term_of and adder in wanting for adder in adders)
            or bool(self.finishers((rank, *adders)))
        )

    @property
    def _adds_last(self) -> bool:
        """True if a rank that wants the result owns an addend."""
        return not self.term_of.keys().isdisjoint(self.wanting)

    @property
    def fewest(self) -> int:
        """Smallest number of receptions of an adder, counted as in :meth:`extras`."""
        return len(self.owners) - 1 - self._adds_last

    def extras(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return how many more receptions per element each rank has if it adds all addends up.

        More than without adding: each rank that wants the result receives it anyway. So a rank that wants the result
        and owns the only addend has -1. Receptions of the other ranks are not counted. Of n addends,

        * a rank that owns none and does not want the result receives n, or n - 1 if a rank that wants the result owns
          an addend and adds it last;
        * a rank that owns none and wants the result receives n - 1 more: the last reception brings the result itself;
        * a rank that owns one receives n - 1 more, or n - 2 if it wants the result or a rank with another addend does.

        Args:
            ranks: the ranks, in the order of the result; they must include the cell's owners and ``wanting``.
        """
        terms, term_of, wanting = len(self.owners), self.term_of, self.wanting
        # A rank that wants the result can add one of these addends last; then the adder does not receive it.
        last_terms = {term_of[rank] for rank in wanting if rank in term_of}
        extras = dict.fromkeys(ranks, terms - bool(last_terms))
        # The last reception of an adder that wants the result brings the result itself.
        extras.update(dict.fromkeys(wanting, terms - 1))
        for rank, term in term_of.items():
            saves_last = rank in wanting or bool(last_terms - {term})
            extras[rank] = terms - 1 - saves_last
        return tuple(extras.values())


class Sums:
    """Elements of a reduction, grouped by owners before and after, and the best shares of the adding.

    Each combination of coordinates on the axes ``common_partial``, which stay pending, is a problem of its own.

    Attributes:
        ranks: the ranks of both meshes, sorted.
        want: the number of elements that each rank wants.
        groups: the cells, grouped by what they cost each adder.
        extras: ``[group, rank]``, the receptions per element of a group that a rank has as its adder.
        inside: for each group, the ranks with the lowest cost.
        volumes: the number of elements of each group.
    """

    def __init__(
        self,
        src: Layout,
        dst: Layout,
        shape: tuple[int, ...],
        common_partial: Sequence[str],
        reduced: Sequence[str],
    ) -> None:
        self.ranks = sorted({*ranks_of(src.mesh).rank.tolist(), *ranks_of(dst.mesh).rank.tolist()})
        term_numbers = piece_numbers(src.mesh, tuple(reduced)).tolist()
        want, targets = dict.fromkeys(self.ranks, 0), []
        for (problem, box), members in _owners_by_box(dst, shape, tuple(common_partial)).items():
            wanting = tuple([rank for rank, _ in members])
            want.update(dict.fromkeys(wanting, volume(box)))
            targets.append((problem, box, wanting))
        self.want = np.array(list(want.values()))
        groups: dict[tuple[int, ...], list[SumCell]] = {}
        for (problem, box), members in _owners_by_box(src, shape, tuple(common_partial)).items():
            term_of_rank = {rank: term_numbers[position] for rank, position in members}
            owners: list[list[int]] = [[] for _ in range(src.mesh.axis_size(*reduced))]
            for rank, term in term_of_rank.items():
                owners[term].append(rank)
            owners_of_terms = tuple(map(tuple, owners))
            for target_problem, target, wanting in targets:
                if problem == target_problem and (common := overlap(box, target)) is not None:
                    cell = SumCell(common, owners_of_terms, wanting, term_of_rank)
                    groups.setdefault(cell.extras(self.ranks), []).append(cell)
        rows = sorted(groups)
        self.groups = [groups[row] for row in rows]
        self.extras = np.array(rows)
        self.inside = [
            [rank for rank, cost in zip(self.ranks, row) if cost == least]
            for row, least in zip(rows, map(min, rows))
        ]
        self.volumes = np.array([sum(volume(cell.box) for cell in cells) for cells in self.groups])

    @cached_property
    def _solution(self) -> tuple[np.ndarray, np.ndarray]:
        """Fractional shares ``[group, rank]`` and the weights of the ranks; see :func:`balance_loads`."""
        return balance_loads(self.extras, self.volumes, self.want)

    @cached_property
    def shares(self) -> np.ndarray:
        """Elements of each group that each rank adds up, ``[group, rank]``.

        For up to ``2 * MOST_RANKS`` ranks, the shares are fractions that minimise the receptions of the busiest rank.
        For more ranks, they are whole numbers and the busiest rank may receive more than the minimum.
        """
        if len(self.ranks) > 2 * MOST_RANKS:
            return level_shares(self.extras, self.volumes, self.want)
        return self._solution[0]

    def least(self, parts: int = 1) -> int:
        """Return a lower bound of the elements that the busiest rank receives.

        It is the average of the ranks' receptions with the weights of :func:`balance_loads`, where the rank with the
        least weighted cost adds up each group; rounded up.

        Args:
            parts: the number of elements as which an incomplete sum counts; 2 for 16-bit floats.
        """
        weights = np.maximum(self._solution[1], 0)
        adding = parts * (self.volumes * (weights * self.extras).min(axis=1)).sum()
        average = float(((weights * self.want).sum() + adding) / weights.sum())
        return int(np.ceil(average * (1 - 1e-12) - 1e-6))


sums = lru_cache(maxsize=512)(Sums)


def _owners_by_box(
    layout: Layout, shape: tuple[int, ...], common_partial: tuple[str, ...]
) -> dict[tuple[int, Bounds], list[tuple[int, int]]]:
    """Return the owners of each non-empty box of a layout, by problem and box.

    A problem is a combination of coordinates on ``common_partial``, the axes that stay pending: values of different
    problems are never added up.

    Args:
        layout: the layout before or after.
        shape: the global shape.
        common_partial: the axes that stay pending.

    Returns:
        ``{(problem, box): [(rank, mesh position), ...]}``; owners are in the order of positions.
    """
    problem = piece_numbers(layout.mesh, common_partial).tolist()
    ranks = ranks_of(layout.mesh).rank.tolist()
    boxes: dict[tuple[int, Bounds], list[tuple[int, int]]] = {}
    for position, box in enumerate(list_boxes(layout, shape)):
        if volume(box):
            boxes.setdefault((problem[position], box), []).append((ranks[position], position))
    return boxes
