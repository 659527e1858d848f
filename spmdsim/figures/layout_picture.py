"""Draw the grid of ranks of a layout as text, coloured by shard.

A :class:`Picture` has lines of cells; a cell can belong to a shard. ``to_text()`` returns text for files and pipes;
``rich()`` returns the same text with one colour per shard, for terminals. Large grids are abbreviated. If a reduction
is pending, each cell has its addend: ``0:0+1`` is rank 0 with addend 1 of shard 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.figures.canvas import FILLS, MOST_FILLS, fill_of
from spmdsim.layout.addends import PartialReduction, partial_reduction

if TYPE_CHECKING:
    from rich.text import Text

MOST_ROWS, MOST_COLUMNS, MOST_PANELS = 16, 16, 8
GAP = ".."


class GridCell(NamedTuple):
    """Some characters of a line of text; ``shard`` selects their colour."""

    text: str
    shard: int | None = None


@dataclass(frozen=True)
class Picture:
    """A picture as lines of cells; ``shards`` is the number of shards that colours distinguish."""

    lines: tuple[tuple[GridCell, ...], ...]
    shards: int

    def to_text(self) -> str:
        """Return the picture as text."""
        return "\n".join("".join(cell.text for cell in line).rstrip() for line in self.lines)

    def rich(self) -> Text:
        """Return the picture as ``rich`` text with one colour per shard, for terminals.

        Cells without a shard, and all cells of pictures with too many shards, have no colour; see :func:`colour`.
        """
        from rich.text import Text

        out = Text(no_wrap=True)
        for i, line in enumerate(self.lines):
            for cell in line:
                out.append(cell.text, style="" if cell.shard is None else colour(cell.shard, self.shards))
            if i + 1 < len(self.lines):
                out.append("\n")
        return out


def colour(shard: int, shards: int) -> str:
    """Return the rich style of a shard, such as "black on #56b4e9": letters on its fill.

    The eight fills repeat; bold letters distinguish every second turn. Return "" if there are more ``shards`` than
    ``MOST_FILLS``.

    Args:
        shard: number of the shard, from 0.
        shards: number of all shards.
    """
    if shards > MOST_FILLS:
        return ""
    fill, letters = fill_of(shard)
    bold = " bold" if shard // len(FILLS) % 2 else ""
    return f"{'white' if letters == '#fff' else 'black'}{bold} on {fill}"


def choose_indices(count: int, most: int) -> list[int | None]:
    """Return the indices below ``count`` to draw, with None for a gap.

    If ``count`` is at most ``most``, they are all indices. Otherwise the list has ``most`` entries: the first indices,
    a gap, and the last index. ``most`` is at least 2.

    >>> choose_indices(3, 8), choose_indices(100, 4)
    ([0, 1, 2], [0, 1, None, 99])
    """
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def box_text(bounds: Sequence[tuple[int, int]]) -> str:
    """Return bounds as numpy writes slices.

    >>> box_text(((0, 16), (196, 392)))
    '[0:16, 196:392]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"


def rank_grid(layout: Layout, width: int = 100, plain: bool = False) -> Picture:
    """Draw the mesh with ``rank:shard`` in each cell, or ``rank:shard+addend`` if a sum is pending.

    At most 16 rows, 16 columns and 8 tables are drawn, with ".." for gaps.

    Args:
        layout: the layout. Axes of size 1 are left out. One axis gives a row, two give a table, more give one table per
            index of the leading axes.
        width: largest number of characters of a line; at least three columns of ranks are drawn.
        plain: True to draw the ranks only.

    >>> from spmdsim.core import Mesh
    >>> print(rank_grid(Mesh((2, 2), ("dp", "mp"))("mp", None)).to_text())
    rank:shard  mp=0  mp=1
    dp=0        0:0   1:1
    dp=1        2:0   3:1
    >>> print(rank_grid(Mesh((2, 2), ("dp", "mp"))("mp", None, partial="dp")).to_text())
    rank:shard+addend  mp=0   mp=1
    dp=0               0:0+1  1:1+1
    dp=1               2:0+2  3:1+2
    +1, +2: the 2 addends of each shard, not copies; their sum over dp is pending
    """
    mesh, (*_, column) = layout.mesh, grid_axes(layout.mesh)
    reduction = None if plain else partial_reduction(layout)
    head, longest_text = "rank:shard", f"{max(mesh.ranks or [mesh.size])}:{layout.shard_count}"
    if reduction is not None:
        head += "+addend" if reduction.op == "sum" else f" {reduction.op}"
        longest_text += f"{_sign(reduction)}{reduction.count}"
    cell = max(len(longest_text), len(f"{column}=00"))
    most_columns = max(3, min(MOST_COLUMNS, (width - len(head)) // (cell + 2)))
    lines: list[tuple[GridCell, ...]] = []
    for i, panel in enumerate(rank_panels(mesh, most_columns)):
        if panel is None:
            lines += [(), (GridCell(GAP),)]
            continue
        if panel.name:
            lines += [()] * (i > 0) + [(GridCell(panel.name),)]
        table = [[GridCell(text) for text in ("rank" if plain else head, *panel.heads)]]
        for label, ranks in panel.rows:
            table.append([GridCell(label), *(_rank_cell(layout, rank, plain, reduction) for rank in ranks)])
        lines += _align_columns(table)
    if reduction is not None:
        lines += [(GridCell(line),) for line in wrap(reduction.sentence, width)]
    return Picture(tuple(lines), layout.shard_count)


def _sign(reduction: PartialReduction) -> str:
    """Return the text between a shard and the number of its addend.

    It is ``+`` for sums, else a blank and a sign.
    """
    return reduction.sign if reduction.op == "sum" else f" {reduction.sign}"


def _rank_cell(layout: Layout, rank: int | None, plain: bool, reduction: PartialReduction | None) -> GridCell:
    """Return the cell of a rank with the text "rank:shard", coloured by the shard.

    If a reduction is pending, the sign of the reduction and the number of the rank's addend follow. So "3:1+2" is
    rank 3, shard 1, addend 2.
    """
    if rank is None:
        return GridCell(GAP)
    if plain:
        return GridCell(str(rank))
    shard = layout.shard_index(rank)
    addend = "" if reduction is None else f"{_sign(reduction)}{reduction.number(rank)}"
    return GridCell(f"{rank}:{shard}{addend}", shard)


def mesh_grid(mesh: Mesh, width: int = 100) -> Picture:
    """Draw the grid of a mesh's ranks.

    >>> from spmdsim.core import Mesh
    >>> print(mesh_grid(Mesh((2, 2), ("dp", "mp"))).to_text())
    rank  mp=0  mp=1
    dp=0  0     1
    dp=1  2     3
    """
    return rank_grid(Layout(mesh, ()), width, plain=True)


class RankPanel(NamedTuple):
    """The table of ranks at one index of a mesh's leading axes.

    Attributes:
        name: the index, such as "pp=0".
        heads: words above the columns.
        rows: for each row, the word beside it and its ranks; None for a gap.
    """

    name: str
    heads: list[str]
    rows: list[tuple[str, list[int | None]]]


def grid_axes(mesh: Mesh) -> tuple[list[str], str | None, str | None]:
    """Return the mesh axes longer than 1 as `(leading, row, column)`.

    ``column`` is the last axis, ``row`` the axis before it, and ``leading`` are all others. ``row`` is None if there is
    only one axis. If all axes have length 1, the first one is the column.
    """
    axes = [axis for axis, size in zip(mesh.axes, mesh.shape) if size > 1] or list(mesh.axes[:1])
    return axes[:-2], (axes[-2] if len(axes) > 1 else None), (axes[-1] if axes else None)


def rank_panels(mesh: Mesh, most: int = MOST_COLUMNS) -> Iterator[RankPanel | None]:
    """Yield a table of ranks for each index of the leading axes; None for a gap.

    The last two mesh axes longer than 1 are the rows and columns of a table; the axes before are leading (see
    :func:`grid_axes`). A mesh of a=2, b=2, c=2 gives two tables, "a=0" and "a=1", with rows b=0 and b=1 and columns c=0
    and c=1. Without leading axes there is one table without a name.

    Of many ranks, each table has the first rows and columns, a gap, and the last ones; of many tables the first and the
    last are yielded.

    Args:
        mesh: the mesh.
        most: the largest number of columns of a table; rows are limited by ``MOST_ROWS``, tables by ``MOST_PANELS``.
    """
    leading, row, column = grid_axes(mesh)
    sizes = [mesh.axis_size(axis) for axis in leading]
    rows = choose_indices(mesh.axis_size(row) if row else 1, MOST_ROWS)
    columns = choose_indices(mesh.axis_size(column) if column else 1, most)
    for number in choose_indices(math.prod(sizes), MOST_PANELS):
        if number is None:
            yield None
            continue
        index = dict(zip(leading, split_into_digits(number, sizes)))

        def rank(r: int | None, c: int | None, index: Mapping[str, int] = index) -> int | None:
            if r is None or c is None:
                return None
            at = {row: r, column: c}
            return mesh.rank_of([at.get(axis, index.get(axis, 0)) for axis in mesh.axes])

        yield RankPanel(
            " ".join(f"{axis}={position}" for axis, position in index.items()),
            [_index_words(column, c) for c in columns],
            [(_index_words(row, r), [rank(r, c) for c in columns]) for r in rows],
        )


def _index_words(axis: str | None, index: int | None) -> str:
    """Return an index of an axis as text, such as "dp=1".

    Return ".." for an index of None, and "" without an axis.
    """
    return GAP if index is None else f"{axis}={index}" if axis else ""


def _align_columns(table: list[list[GridCell]]) -> Iterator[tuple[GridCell, ...]]:
    """Yield the rows of a table as lines whose columns have equal width, two blanks apart.

    All rows have the number of cells of the first row.
    """
    widths = [max(len(row[i].text) for row in table) for i in range(len(table[0]))]
    for row in table:
        line: list[GridCell] = []
        for i, (cell, width) in enumerate(zip(row, widths)):
            line += [GridCell("  ")] * (i > 0) + [GridCell(cell.text.ljust(width), cell.shard)]
        yield tuple(line)


def split_into_digits(index: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the digits of a number, major first; ``sizes`` are the bases of the digits."""
    return tuple(map(int, np.unravel_index(index, tuple(sizes))))
