"""Pictures of a layout: the grid of ranks coloured by shard, and a tensor drawn with its pieces.

A :class:`Picture` is lines of cells, each of which may belong to a shard. ``plain()`` is text for files and
pipes; ``rich()`` is the same text with one colour per shard, for terminals. What is too large is abbreviated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.draw.canvas import FILLS, fill_of
from spmdsim.layout.explain import ranks_text

if TYPE_CHECKING:
    from rich.text import Text

MOST_ROWS, MOST_COLUMNS, MOST_PANELS = 16, 16, 8
MOST_PIECES = 8
GAP = ".."


class GridCell(NamedTuple):
    """A piece of a line; ``shard`` decides its colour."""

    text: str
    shard: int | None = None


@dataclass(frozen=True)
class Picture:
    """Lines of cells."""

    lines: tuple[tuple[GridCell, ...], ...]
    shards: int

    def plain(self) -> str:
        """The picture as text."""
        return "\n".join("".join(cell.text for cell in line).rstrip() for line in self.lines)

    def rich(self) -> Text:
        """The picture with colours."""
        from rich.text import Text

        out = Text(no_wrap=True)
        for i, line in enumerate(self.lines):
            for cell in line:
                out.append(cell.text, style="" if cell.shard is None else colour(cell.shard, self.shards))
            if i + 1 < len(self.lines):
                out.append("\n")
        return out


def colour(shard: int, shards: int) -> str:
    """A rich style whose background tells the shard from the others; its number stands in every cell, too."""
    fill, letters = fill_of(shard)
    bold = " bold" if shard // len(FILLS) % 2 else ""
    return f"{'white' if letters == '#fff' else 'black'}{bold} on {fill}"


def shown(count: int, most: int) -> list[int | None]:
    """Which of ``count`` indices are drawn: all, or the first ones, a gap (None), and the last.

    >>> shown(3, 8), shown(100, 4)
    ([0, 1, 2], [0, 1, None, 99])
    """
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def box_text(bounds: Sequence[tuple[int, int]]) -> str:
    """Bounds as numpy writes slices.

    >>> box_text(((0, 16), (196, 392)))
    '[0:16, 196:392]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"


# -- the grid of ranks ----------------------------------------------------------------------------------


def rank_grid(layout: Layout, width: int = 100, plain: bool = False) -> Picture:
    """The device grid, ``rank:shard`` in each cell.

    Axes of size 1 are left out. One axis is a row, two are a table, more are one table per index of the
    leading axes. At most ``width`` columns of text are used. ``plain``: ranks alone, as a mesh has them.

    >>> from spmdsim.core import Mesh
    >>> print(rank_grid(Mesh((2, 2), ("dp", "mp"))("mp", None)).plain())
    rank:shard  mp=0  mp=1
    dp=0        0:0   1:1
    dp=1        2:0   3:1
    """
    mesh, (*_, column) = layout.mesh, grid_axes(layout.mesh)
    cell = max(len(f"{max(mesh.ranks or [mesh.size])}:{layout.shard_count}"), len(f"{column}=00"))
    most = max(3, min(MOST_COLUMNS, (width - len("rank:shard")) // (cell + 2)))
    lines: list[tuple[GridCell, ...]] = []
    for i, panel in enumerate(rank_panels(mesh, most)):
        if panel is None:
            lines += [(), (GridCell(GAP),)]
            continue
        if panel.name:
            lines += [()] * (i > 0) + [(GridCell(panel.name),)]
        table = [[GridCell(text) for text in ("rank" if plain else "rank:shard", *panel.heads)]]
        for label, ranks in panel.rows:
            table.append([GridCell(label), *(_rank_cell(layout, rank, plain) for rank in ranks)])
        lines += _aligned(table)
    return Picture(tuple(lines), layout.shard_count)


def _rank_cell(layout: Layout, rank: int | None, plain: bool) -> GridCell:
    if rank is None:
        return GridCell(GAP)
    shard = None if plain else layout.shard_index(rank)
    return GridCell(str(rank) if shard is None else f"{rank}:{shard}", shard)


def mesh_grid(mesh: Mesh, width: int = 100) -> Picture:
    """The grid of a mesh's ranks.

    >>> from spmdsim.core import Mesh
    >>> print(mesh_grid(Mesh((2, 2), ("dp", "mp"))).plain())
    rank  mp=0  mp=1
    dp=0  0     1
    dp=1  2     3
    """
    return rank_grid(Layout(mesh, ()), width, plain=True)


class RankPanel(NamedTuple):
    """The ranks at one index of a mesh's leading axes, with what stands above the columns and beside the rows."""

    name: str
    heads: list[str]
    rows: list[tuple[str, list[int | None]]]


def grid_axes(mesh: Mesh) -> tuple[list[str], str | None, str | None]:
    """The axes longer than 1: the leading ones, that of the rows and that of the columns."""
    axes = [axis for axis, size in zip(mesh.axes, mesh.shape) if size > 1] or list(mesh.axes[:1])
    return axes[:-2], (axes[-2] if len(axes) > 1 else None), (axes[-1] if axes else None)


def rank_panels(mesh: Mesh, most: int = MOST_COLUMNS) -> Iterator[RankPanel | None]:
    """A panel per index of the leading axes; a panel, or a rank, that is left out is None."""
    leading, row, column = grid_axes(mesh)
    sizes = [mesh.axis_size(axis) for axis in leading]
    rows = shown(mesh.axis_size(row) if row else 1, MOST_ROWS)
    columns = shown(mesh.axis_size(column) if column else 1, most)
    for number in shown(math.prod(sizes), MOST_PANELS):
        if number is None:
            yield None
            continue
        index = dict(zip(leading, digits(number, sizes)))

        def rank(r: int | None, c: int | None, index: Mapping[str, int] = index) -> int | None:
            if r is None or c is None:
                return None
            at = {row: r, column: c}
            return mesh.rank_of([at.get(axis, index.get(axis, 0)) for axis in mesh.axes])

        yield RankPanel(
            " ".join(f"{axis}={place}" for axis, place in index.items()),
            [_place(column, c) for c in columns],
            [(_place(row, r), [rank(r, c) for c in columns]) for r in rows],
        )


def _place(axis: str | None, index: int | None) -> str:
    return GAP if index is None else f"{axis}={index}" if axis else ""


def _aligned(table: list[list[GridCell]]) -> Iterator[tuple[GridCell, ...]]:
    widths = [max(len(row[i].text) for row in table) for i in range(len(table[0]))]
    for row in table:
        line: list[GridCell] = []
        for i, (cell, width) in enumerate(zip(row, widths)):
            line += [GridCell("  ")] * (i > 0) + [GridCell(cell.text.ljust(width), cell.shard)]
        yield tuple(line)


# -- the tensor with its pieces -------------------------------------------------------------------------


def tensor_pieces(layout: Layout, shape: Sequence[int], width: int = 100) -> Picture:
    """The tensor with its pieces: ``#shard`` and the ranks that hold it, and where the cuts are.

    Two dims are drawn. A tensor of more dims is drawn along the last two that are split, once per piece of
    the others. At most ``width`` columns of text are used.

    >>> from spmdsim.core import Mesh
    >>> print(tensor_pieces(Mesh((2, 2), ("dp", "mp"))("mp", None), (4, 6)).plain())
    rows: dim 0, columns: dim 1
          0           6
       0  +-----------+
          |     #0    |
          | ranks 0,2 |
       2  +-----------+
          |     #1    |
          | ranks 1,3 |
       4  +-----------+
    """
    layout.check_shape(shape)
    row, column, others = drawn_dims(layout, shape)
    lines: list[tuple[GridCell, ...]] = [(GridCell(dims_text(row, column)),)]
    counts = [layout.cuts[dim] for dim in others]
    for panel in shown(math.prod(counts), MOST_PANELS):
        if panel is None:
            lines.append((GridCell(GAP),))
            continue
        chosen = dict(zip(others, digits(panel, counts)))
        if chosen:
            where = ", ".join(f"dim {d}: {interval(layout, shape, d, i)}" for d, i in chosen.items())
            lines.append((GridCell(where),))
        lines += _boxes(layout, shape, row, column, chosen, width)
    return Picture(tuple(lines), layout.shard_count)


def drawn_dims(layout: Layout, shape: Sequence[int]) -> tuple[int | None, int | None, list[int]]:
    """Which dims are drawn as rows and as columns, and which split ones are left for panels."""
    split = [dim for dim, parts in enumerate(layout.cuts) if parts > 1]
    drawn = split[-2:]
    for dim in reversed(range(len(shape))):
        if len(drawn) < 2 and dim not in drawn:
            drawn = sorted([*drawn, dim])
    others = [dim for dim in split if dim not in drawn]
    if len(drawn) == 1:
        return None, drawn[0], others
    return (drawn[0], drawn[1], others) if drawn else (None, None, others)


def dims_text(row: int | None, column: int | None) -> str:
    """Which dims are drawn, in words."""
    dims = {"rows": row, "columns": column}
    return ", ".join(f"{name}: dim {dim}" for name, dim in dims.items() if dim is not None) or "a scalar"


def interval(layout: Layout, shape: Sequence[int], dim: int | None, index: int) -> tuple[int, int]:
    """Where piece ``index`` of a dim begins and ends."""
    if dim is None:
        return 0, 0
    return layout.bounds(shape, holder(layout, {dim: index}))[dim]


def holder(layout: Layout, pieces: Mapping[Any, int]) -> int:
    """The first rank that holds the given piece of each dim (piece 0 of those not given)."""
    mesh = layout.mesh
    coords: dict[str, int] = dict.fromkeys(mesh.axes, 0)
    for dim, index in pieces.items():
        if dim is not None:
            sizes = [mesh.axis_size(axis) for axis in layout.dims[dim]]
            coords.update(zip(layout.dims[dim], digits(index, sizes)))
    return mesh.rank_of([coords[axis] for axis in mesh.axes])


def _boxes(
    layout: Layout,
    shape: Sequence[int],
    row: int | None,
    column: int | None,
    chosen: dict[int, int],
    width: int,
) -> Iterator[tuple[GridCell, ...]]:
    rows = shown(1 if row is None else layout.cuts[row], MOST_PIECES)
    margin = max(4, len(str(max(shape, default=0))) + 2)
    for most in range(MOST_PIECES, 2, -1):
        columns = shown(1 if column is None else layout.cuts[column], most)
        content = {
            (r, c): holders_text(layout, {**chosen, row: r, column: c})
            for r, c in itertools.product(rows, columns)
            if r is not None and c is not None
        }
        starts = [_start(layout, shape, column, c, k) for k, c in enumerate(columns)]
        inner = max(len(text) for texts, _ in content.values() for text in texts) + 2
        widths = [max(len(GAP) + 2 if c is None else inner, len(s) + 1) for c, s in zip(columns, starts)]
        if margin + 2 + sum(widths) + len(widths) < width:
            break
    return _ruled(layout, shape, (row, column), rows, columns, content, starts, widths, " " * (margin + 2))


def _start(layout: Layout, shape: Sequence[int], dim: int | None, index: int | None, place: int) -> str:
    """The number at a cut; a gap begins where the piece before it ends."""
    if dim is None:
        return ""
    return str(interval(layout, shape, dim, place if index is None else index)[0])


def _ruled(
    layout: Layout,
    shape: Sequence[int],
    dims: tuple[int | None, int | None],
    rows: list[int | None],
    columns: list[int | None],
    content: dict[tuple[int, int], tuple[tuple[str, str], int]],
    starts: list[str],
    widths: list[int],
    margin: str,
) -> Iterator[tuple[GridCell, ...]]:
    row, column = dims
    if column is not None:
        above = "".join(start.ljust(width + 1) for start, width in zip(starts, widths))
        yield (GridCell(f"{margin}{above}{shape[column]}"),)
    rule = "+" + "+".join("-" * width for width in widths) + "+"
    for k, r in enumerate(rows):
        begin = _start(layout, shape, row, r, k).rjust(len(margin) - 2)
        yield (GridCell(f"{begin}  {rule}"),)
        if r is None:
            yield (GridCell(f"{margin}{GAP}"),)
            continue
        for part in range(2):
            line = [GridCell(f"{margin}|")]
            for c, width in zip(columns, widths):
                texts, shard = ((GAP, GAP), None) if c is None else content[r, c]
                line += [GridCell(texts[part].center(width), shard), GridCell("|")]
            yield tuple(line)
    end = ("" if row is None else str(shape[row])).rjust(len(margin) - 2)
    yield (GridCell(f"{end}  {rule}"),)


def holders_text(layout: Layout, pieces: Mapping[Any, int]) -> tuple[tuple[str, str], int]:
    """The number of a piece and who holds it, in words, and the number."""
    rank = holder(layout, pieces)
    shard = layout.shard_index(rank)
    split = set(layout.split_axes)
    holders = layout.mesh.group(rank, *(axis for axis in layout.mesh.axes if axis not in split))
    text = ranks_text(holders) if len(holders) > 6 else ",".join(map(str, holders))
    return (f"#{shard}", f"{'rank' if len(holders) == 1 else 'ranks'} {text}"), shard


def digits(index: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """A number as digits, the first one major; ``sizes`` are their bases."""
    return tuple(map(int, np.unravel_index(index, tuple(sizes))))
