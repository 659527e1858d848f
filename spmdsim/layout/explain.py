"""Derive the shard numbers of a layout in three steps, as MindSpore teaches it, and show them as tables.

1. *number*: every rank has a coordinate on the device matrix, the last axis fastest. Each column counts in the base
   of its axis.
2. *adjust*: put the columns in the order of the tensor map and drop the columns that it does not use. Ranks that
   differ only in dropped columns become replicas.
3. *compute*: the stride of a column is the product of the sizes of the columns to its right. A rank's shard number
   is the sum of its digits times their strides.

``.shard`` cuts need no second step: their tensor map always has the order of the device matrix.
All numbers come from :class:`Layout` and :class:`Mesh`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from spmdsim.core.layout import Bounds, Layout
from spmdsim.layout.addends import partial_reduction
from spmdsim.tables import Table


@dataclass(frozen=True)
class Stride:
    """The number that one step along ``axis`` adds to the shard number.

    Attributes:
        axis: the axis.
        right: the axes to its right in the order of the tensor map, each with its size.
    """

    axis: str
    right: tuple[tuple[str, int], ...]

    @property
    def value(self) -> int:
        """Product of the sizes to the right; 1 for the last column."""
        return math.prod(size for _, size in self.right)

    def __str__(self) -> str:
        if not self.right:
            return f"stride[{self.axis}] = 1"
        names = " * ".join(f"device_matrix[{axis}]" for axis, _ in self.right)
        sizes = " * ".join(str(size) for _, size in self.right)
        return f"stride[{self.axis}] = {names} = {sizes}" + (
            f" = {self.value}" if len(self.right) > 1 else ""
        )


@dataclass(frozen=True)
class RankDerivation:
    """Row of the derivation for a rank.

    Attributes:
        rank: the rank.
        number: its coordinate on the device matrix (step 1).
        adjusted: the digits that the tensor map uses, in its order (step 2).
        terms: digit times stride, one for each adjusted digit (step 3).
        replicas: the ranks that own the same shard, with this one.
    """

    rank: int
    number: tuple[int, ...]
    adjusted: tuple[int, ...]
    terms: tuple[int, ...]
    replicas: tuple[int, ...]

    @property
    def shard_number(self) -> int:
        """Sum of the terms."""
        return sum(self.terms)


class Derivation:
    """Derivation of the shard numbers of a layout, for some or all of its ranks.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
    >>> derivation = Derivation(mesh("b", "d", "e", "c", "a"))
    >>> [row.shard_number for row in derivation.rows]
    [0, 4, 2, 6, 1, 5, 3, 7]
    >>> print(derivation.strides[0])
    stride[b] = device_matrix[d] * device_matrix[e] * device_matrix[c] * device_matrix[a] = 2 * 1 * 2 * 2 = 8
    """

    def __init__(self, layout: Layout, ranks: Iterable[int] | None = None) -> None:
        self.layout = layout
        self.ranks = layout.mesh.rank_list if ranks is None else tuple(ranks)

    @property
    def adjusted_axes(self) -> tuple[str, ...]:
        """Columns after step two, in the order of the tensor map."""
        return self.layout.split_axes

    @property
    def dropped_axes(self) -> tuple[str, ...]:
        """Columns that the tensor map does not use, in mesh order."""
        used = set(self.layout.split_axes)
        return tuple(axis for axis in self.layout.mesh.axes if axis not in used)

    @property
    def needs_adjusting(self) -> bool:
        """True if step two reorders columns; dropping columns alone does not count."""
        order = [self.layout.mesh.axes.index(axis) for axis in self.adjusted_axes]
        return order != sorted(order)

    @cached_property
    def strides(self) -> tuple[Stride, ...]:
        """Strides of the adjusted columns, in their order."""
        size = self.layout.mesh.axis_size
        sized = tuple((axis, size(axis)) for axis in self.adjusted_axes)
        return tuple(Stride(axis, sized[i + 1 :]) for i, (axis, _) in enumerate(sized))

    @cached_property
    def rows(self) -> tuple[RankDerivation, ...]:
        """Rows of the derivation, in the order of `ranks`."""
        return tuple(self._row(rank) for rank in self.ranks)

    def _row(self, rank: int) -> RankDerivation:
        """Return one row of the derivation: coordinates, digits, terms and replicas of ``rank``.

        Digits are those of the rank's coordinates that the tensor map uses, in its order. Each term is a digit times
        its stride. Replicas include the rank.
        """
        mesh = self.layout.mesh
        coords = mesh.coords(rank)
        coord_of = dict(zip(mesh.axes, coords))
        digits = tuple(coord_of[axis] for axis in self.adjusted_axes)
        terms = tuple(digit * stride.value for digit, stride in zip(digits, self.strides))
        return RankDerivation(rank, coords, digits, terms, self.layout.replica_ranks(rank))

    def tables(self) -> tuple[Table, ...]:
        """Return one table for each step; step two is missing if no column moves."""
        steps = [self._number_table()]
        if self.needs_adjusting:
            steps.append(self._adjust_table())
        return (*steps, self._compute_table())

    def _number_table(self) -> Table:
        """Return the table of step one: the coordinate of each rank on the device matrix."""
        mesh = self.layout.mesh
        columns = ("rank", *(f"{axis} (base {size})" for axis, size in zip(mesh.axes, mesh.shape)))
        rows = tuple((str(row.rank), *map(str, row.number)) for row in self.rows)
        return Table(columns, rows, "number the device matrix, the last axis fastest", (0,))

    def _adjust_table(self) -> Table:
        """Return the table of step two: each rank's digits in the order of the tensor map."""
        columns = ("rank", *self.adjusted_axes)
        rows = tuple((str(row.rank), *map(str, row.adjusted)) for row in self.rows)
        title = "adjust: put the columns in the order of the tensor map"
        return Table(columns, rows, title, (0,), self._dropped_note())

    def _compute_table(self) -> Table:
        """Return the table of step three: how the shard number of each rank is computed.

        There is one row per rank of :attr:`rows`. Its columns are the rank, the sum of digits times strides (such as
        "1*2 + 0*1"), the shard number, and the ranks with the same shard. If a reduction is pending, a column with the number
        of the rank's addend is inserted before the last column, which then has the ranks with the same addend.

        Below the table are notes: one about dropped columns, unless step two has a table, which then has this note; if a
        reduction is pending, a sentence about the addends; and one line per stride.
        """
        reduction = partial_reduction(self.layout)
        shared = "shard" if reduction is None else reduction.noun
        columns: tuple[str, ...]
        rows: list[tuple[str, ...]]
        columns = ("rank", "digits * strides", "shard number", f"ranks with the same {shared}")
        rows = [
            (str(row.rank), self._format_sum(row), str(row.shard_number), ranks_text(row.replicas))
            for row in self.rows
        ]
        if reduction is not None:
            columns = (*columns[:3], reduction.noun, columns[3])
            rows = [(*row[:3], reduction.label(int(row[0])), row[3]) for row in rows]
        notes = () if self.needs_adjusting else self._dropped_note()
        notes += () if reduction is None else (reduction.sentence,)
        return Table(columns, rows, "compute the shard numbers", (0, 2), (*notes, *map(str, self.strides)))

    def _format_sum(self, row: RankDerivation) -> str:
        """Return the sum of a row's digits times strides, as text."""
        products = (f"{digit}*{stride.value}" for digit, stride in zip(row.adjusted, self.strides))
        return " + ".join(products) or "nothing is split"

    def _dropped_note(self) -> tuple[str, ...]:
        """Return a tuple of one sentence about the dropped columns, or an empty tuple."""
        if not self.dropped_axes:
            return ()
        axes = ", ".join(self.dropped_axes)
        return (f"not in the tensor map, so dropped: {axes}",)


@dataclass(frozen=True)
class RankShard:
    """The shard that one rank owns: its number, its bounds (empty without a shape) and the ranks that own it too."""

    rank: int
    coords: tuple[int, ...]
    shard_number: int
    bounds: Bounds
    replicas: tuple[int, ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the shard."""
        return tuple(stop - start for start, stop in self.bounds)


def describe_rank_shard(layout: Layout, shape: Sequence[int] | None, rank: int) -> RankShard:
    """Return the shard of one rank.

    Args:
        layout: the layout.
        shape: the shape of the tensor; None: the shard has a number, but no bounds.
        rank: the rank.
    """
    bounds = () if shape is None else layout.bounds(shape, rank)
    number, replicas = layout.shard_index(rank), layout.replica_ranks(rank)
    return RankShard(rank, layout.mesh.coords(rank), number, bounds, replicas)


def ranks_text(ranks: Sequence[int], most: int = 8) -> str:
    """Return ranks as a short text: a range, a list, or an excerpt of more than ``most`` ranks.

    Four or more consecutive ranks are a range, whatever ``most``. An excerpt has the first three, the last, and the
    number of ranks. Ranks are not sorted; none give "".

    >>> ranks_text(range(16)), ranks_text((0, 4)), ranks_text(range(0, 64, 2))
    ('0..15', '0, 4', '0, 2, 4, .., 62 (32 ranks)')
    """
    if len(ranks) > 3 and all(b - a == 1 for a, b in itertools.pairwise(ranks)):
        return f"{ranks[0]}..{ranks[-1]}"
    if len(ranks) <= most:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:3]))}, .., {ranks[-1]} ({len(ranks)} ranks)"
