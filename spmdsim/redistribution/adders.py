"""Who can add up which elements of a pending sum, and what the busiest rank then receives at least.

Each element is given to one rank that adds it up, its *adder*: ranks send it their contributions. If a rank that wants
the result holds a contribution, its own is left out and it adds that itself, at the end. Whoever then has the result sends
it to all others that want it. What a rank wants it receives once in any case; what an element costs its adder besides
follows from who holds and who wants it, so elements are alike in a few groups. How much of which group each rank adds up
so that the busiest receives the least is a small linear programme. It is solved by the simplex method, in operations
element by element only: all ranks must come to the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from spmdsim.core import Bounds, Layout
from spmdsim.core.step import overlap, volume
from spmdsim.redistribution.exchange.exchange_volume import boxes_of
from spmdsim.redistribution.exchange.grid import piece_numbers, ranks_of

#: Pivots after which the first column that improves is taken instead of the best one, and those after which it ends.
PATIENCE, MOST_PIVOTS = 60, 400
#: Coefficients below are rounding.
TINY = 1e-9


class SumCell(NamedTuple):
    """Elements that the same ranks hold and want: the ranks that hold each contribution, and each rank's own."""

    box: Bounds
    holders: tuple[tuple[int, ...], ...]
    wanting: tuple[int, ...]
    own: dict[int, int]

    def finishers(self, adders: Collection[int]) -> list[int]:
        """The ranks that could add their own contribution last, if these add the others; none if one of these can."""
        own, wanting = self.own, self.wanting
        if [rank for rank in adders if rank in own and rank in wanting]:
            return []
        theirs = [own.get(rank) for rank in adders]
        return [rank for rank in wanting if rank in own and own[rank] not in theirs]

    def joins(self, rank: int, adders: Collection[int]) -> bool:
        """Whether a rank can add up a part of an element, too, without a reception more in all."""
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
        """Per adder its receptions per element, but for the one that a rank which wants the result has anyway."""
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

    @property
    def shares(self) -> np.ndarray:
        """``[group, rank]``, the elements that each rank adds up so that the busiest receives the least, in fractions."""
        return self._solution[0]

    def least(self, parts: int = 1) -> int:
        """Elements that the busiest rank receives at least: no weights of ranks make more of it than these.

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
    """By problem (the place along axes that stay pending) and box: its ranks and their positions; no empty ones."""
    problem = piece_numbers(layout.mesh, kept).tolist()
    ranks = ranks_of(layout.mesh).rank.tolist()
    boxes: dict[tuple[int, Bounds], list[tuple[int, int]]] = {}
    for position, box in enumerate(boxes_of(layout, shape)):
        if volume(box):
            boxes.setdefault((problem[position], box), []).append((ranks[position], position))
    return boxes


def balanced(extras: np.ndarray, volumes: np.ndarray, loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How much of each group every rank takes so that the largest load is the least: ``[group, rank]``, in fractions.

    A unit of a group, of which there are ``volumes``, adds ``extras[group, rank]`` to the rank's load, beside what it has
    anyway. Besides, per rank its weight in the proof that no largest load is less: it is no less than their average.

    >>> shares, weights = balanced(np.array([[1, 1, 2]]), np.array([13]), np.array([6, 6, 0]))
    >>> shares.tolist(), weights.tolist()
    ([[4.0, 4.0, 5.0]], [0.4, 0.4, 0.2])
    """
    groups, ranks = extras.shape
    slack, most, right = groups * ranks, groups * ranks + ranks, groups * ranks + ranks + 1
    table = np.zeros((groups + ranks, right + 1))
    every, columns = np.arange(ranks), np.arange(slack).reshape(groups, ranks)
    table[np.arange(groups)[:, None], columns] = 1
    table[groups + every, columns] = extras
    table[groups + every, slack + every] = 1
    table[groups:, most] = -1
    table[:groups, right], table[groups:, right] = volumes, -loads
    taken, first = loads.astype(float), np.zeros(groups, np.int64)
    for group in (-volumes).argsort(kind="stable"):  # each whole group to the rank that has the least then
        after = taken + extras[group] * volumes[group]
        rank = first[group] = after.argmin()
        taken[rank] = after[rank]
        table[groups + rank] -= extras[group, rank] * table[group]
    basis = np.concatenate([columns[:, 0] + first, slack + every])
    line = groups + int(taken.argmax())
    scratch = np.empty_like(table)
    _pivot(table, line, most, scratch)
    basis[line] = most
    gains, amounts = table[line, :most], table[:, right]
    for count in range(MOST_PIVOTS):
        column = int(gains.argmax() if count < PATIENCE else (gains > TINY).argmax())
        if gains[column] <= TINY:
            break
        pairs = zip(amounts.tolist(), table[:, column].tolist())
        ratios = [amount / rate if rate > TINY else math.inf for amount, rate in pairs]
        leaving = ratios.index(min(ratios))
        if leaving == line:
            break
        _pivot(table, leaving, column, scratch)
        basis[leaving] = column
    dealt = np.zeros(slack)
    shares = basis < slack
    dealt[basis[shares]] = amounts[shares]
    return np.maximum(dealt, 0).reshape(groups, ranks), -table[line, slack:most]


def _pivot(table: np.ndarray, line: int, column: int, scratch: np.ndarray) -> None:
    pivoted = table[line]
    pivoted /= pivoted[column]
    factors = table[:, column : column + 1].copy()
    factors[line] = 0
    np.multiply(factors, pivoted, out=scratch)
    table -= scratch
