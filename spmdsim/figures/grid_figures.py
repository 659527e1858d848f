"""Figures of meshes, layouts and tensors: the grid of ranks, and the tensor with the ranks that own each box.

Ranks of one fill and number own copies. Where a reduction is pending, cells are hatched and numbered as its addends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.core import Layout, Mesh
from spmdsim.errors import many
from spmdsim.figures.canvas import MOST_FILLS, Canvas, fill_of, width_of
from spmdsim.figures.figures import Figure, Words, side_by_side
from spmdsim.figures.layout_picture import (
    GAP,
    MOST_PANELS,
    RankPanel,
    box_text,
    digits,
    grid_axes,
    mesh_grid,
    rank_grid,
    rank_panels,
    shown,
)
from spmdsim.figures.shard_picture import (
    MOST_PIECES,
    dims_text,
    drawn_dims,
    holder,
    holders_text,
    interval,
    is_uneven,
    tensor_pieces,
)
from spmdsim.layout.addends import ownership_words, partial_reduction
from spmdsim.redistribution.plans.plan_table import bytes_text

if TYPE_CHECKING:
    from spmdsim.arrays import Tensor

HIGH = 38
MOST_NAMED = 8
"""Columns of ranks whose cells have the word rank, not only its number."""


def mesh_figure(mesh: Mesh) -> Figure:
    """The grid of a mesh's ranks."""
    note = "numbers are ranks; the last axis is the one along which they count"
    title = f"mesh {mesh}: {many(mesh.size, 'rank')}"
    drawing = _grid(Layout(mesh, ()), None, plain=True)
    return Figure(title, (drawing,), (note,), lambda width: [str(mesh), mesh_grid(mesh, width).rich()])


def layout_figure(layout: Layout, shape: Sequence[int] | None = None) -> Figure:
    """Draw the grid of ranks with the shard of each, and with a shape the tensor with its shards."""
    reduction = partial_reduction(layout)
    notes = [ownership_words(layout)]
    if reduction is not None:
        notes.append(f"hatched, {reduction.sentence}")
    if layout.shard_count > MOST_FILLS:
        notes.append(f"more than {MOST_FILLS} shards have no colours: numbers tell them apart")
    if any(panel is not None and not _has_room(panel) for panel in rank_panels(layout.mesh)):
        notes.append("in a cell of the grid: the rank, and below it the # of its shard")
    if "[" in layout.short():
        notes.append(
            f"{layout.short()}: S(d)[k] is axis number k of those that split dim d, [0] the outermost"
        )
    title, drawings = f"layout {layout}", [_grid(layout, shape)]
    if shape is not None:
        layout.check_shape(shape)
        title += f" of {'x'.join(map(str, shape)) or 'a scalar'}"
        drawings.append(_pieces(layout, shape))
    return Figure(
        title, tuple(drawings), tuple(notes), lambda width: [str(layout), *layout_words(layout, shape, width)]
    )


def layout_words(layout: Layout, shape: Sequence[int] | None, width: int) -> list[Words]:
    """Return the grid of ranks, and with a shape the tensor with its shards, in lines of ``width`` characters."""
    words: list[Words] = [rank_grid(layout, width).rich()]
    return words if shape is None else [*words, "", tensor_pieces(layout, shape, width).rich()]


def tensor_figure(tensor: Tensor) -> Figure:
    """Draw the layout of a tensor, with its size. Values are not looked at."""
    layout, shape, itemsize = tensor.layout, tensor.meta.shape, tensor.dtype.itemsize
    figure = layout_figure(layout, shape)
    first = layout.mesh.rank_at(0)
    owned = math.prod(layout.local_shape(shape, first)) * itemsize
    size = f"{bytes_text(math.prod(shape) * itemsize)} in all, {bytes_text(owned)} on rank {first}; {tensor.world!r}"
    return Figure(
        repr(tensor),
        figure.parts,
        (*figure.notes, size),
        lambda width: [repr(tensor), str(layout), *layout_words(layout, shape, width)],
    )


def _fill(layout: Layout, shard: int) -> int | None:
    """The number of a shard's fill; None where there are more shards than fills."""
    return shard if layout.shard_count <= MOST_FILLS else None


def _grid(layout: Layout, shape: Sequence[int] | None, plain: bool = False) -> Canvas:
    """The ranks of the mesh as cells: the last two axes as rows and columns, a panel per index of the others."""
    panels = [
        panel and (panel.name, _panel(layout, shape, panel, plain)) for panel in rank_panels(layout.mesh)
    ]
    return side_by_side([panel or _gap() for panel in panels])


def _has_room(panel: RankPanel) -> bool:
    """Return True if cells of a grid can have the word rank in them: with many columns it makes pictures wide."""
    return len(panel.heads) <= MOST_NAMED


def _gap() -> tuple[str, Canvas]:
    out = Canvas()
    out.text(0, 12, GAP)
    return "", out


def _panel(layout: Layout, shape: Sequence[int] | None, panel: RankPanel, plain: bool) -> Canvas:
    mesh, out, (_, row, column) = layout.mesh, Canvas(), grid_axes(layout.mesh)
    reduction = None if plain else partial_reduction(layout)
    rank_word = "rank " if _has_room(panel) else ""
    longest = [f"{rank_word}{max(mesh.ranks or [mesh.size - 1])}", f"#{layout.shard_count}"]
    longest += [] if reduction is None else [reduction.label(mesh.rank_at(mesh.size - 1))]
    wide = max(*map(width_of, longest), width_of(f"{column}=00") - 6) + 14
    high = 24 if plain else HIGH if reduction is None else HIGH + 14
    margin = width_of(f"{row}=000") if row else 0
    for k, words in enumerate(panel.heads):
        out.text(margin + k * wide + wide / 2, 12, words, "faint", "middle")
    for j, (label, ranks) in enumerate(panel.rows):
        y = 18 + j * high
        if row:
            out.text(0, y + high / 2 + 4, label, "faint")
        for k, rank in enumerate(ranks):
            x = margin + k * wide
            if rank is None:
                out.text(x + wide / 2, y + high / 2 + 4, GAP, "faint", "middle")
                continue
            told = f"rank {rank} at {' '.join(f'{a}={c}' for a, c in zip(mesh.axes, mesh.coords(rank)))}"
            if plain:
                out.cell(x, y, wide, high, [f"{rank_word}{rank}"], None, told)
                continue
            shard = layout.shard_index(rank)
            box = "" if shape is None else f" = {box_text(layout.bounds(shape, rank))}"
            lines, owned = [f"{rank_word}{rank}", f"#{shard}"], f"shard #{shard}{box}"
            if reduction is not None:
                lines.append(reduction.label(rank))
                owned = f"{reduction.long_label(rank)} of {owned}"
            fill = _fill(layout, shard)
            out.cell(x, y, wide, high, lines, fill, f"{told}: {owned}", hatched=reduction is not None)
    return out


def _pieces(layout: Layout, shape: Sequence[int]) -> Canvas:
    """The tensor with its shards, cut where they end; of more than two split dims a panel per block of the others."""
    row, column, others = drawn_dims(layout, shape)
    counts = [layout.cuts[dim] for dim in others]
    drawings: list[tuple[str, Canvas]] = []
    if len(shape) == 3 and max(layout.cuts) <= MOST_PIECES:
        uneven = any(is_uneven(layout, shape, dim) for dim in range(3))
        words = "dim 0 goes back, dim 1 down, dim 2 to the right" + ("; not scaled" if uneven else "")
        drawings.append((words, _block(layout, shape)))
    for number in shown(math.prod(counts), MOST_PANELS):
        if number is None:
            drawings.append(_gap())
            continue
        chosen = dict(zip(others, digits(number, counts)))
        ends = {dim: interval(layout, shape, dim, i) for dim, i in chosen.items()}
        where = ", ".join(f"dim {dim}: {start}:{stop}" for dim, (start, stop) in ends.items())
        drawings.append((where, _boxes(layout, shape, row, column, chosen)))
    return side_by_side(drawings)


def _block(layout: Layout, shape: Sequence[int]) -> Canvas:
    """A tensor of three dims, seen from in front, above and the right, a little pulled apart where it is cut."""
    out = Canvas()
    deep, high, wide = layout.cuts
    cells = {
        (a, b, c): holders_text(layout, {0: a, 1: b, 2: c})
        for a, b, c in itertools.product(range(deep), range(high), range(wide))
    }
    width = max(width_of(text) for texts, _ in cells.values() for text in texts) + 12
    height, back, up, gap = 40.0, 30.0, 20.0, 5.0
    hatched = partial_reduction(layout) is not None
    for a, b, c in sorted(cells, key=lambda at: (-at[0], -at[1], at[2])):  # what hides another comes later
        texts, shard = cells[a, b, c]
        told = _owned(layout, shape, {0: a, 1: b, 2: c})
        x, y = c * (width + gap) + a * (back + gap), 8 + b * (height + gap) + (deep - a) * (up + gap)
        over = [(x, y), (x + back, y - up), (x + back + width, y - up), (x + width, y)]
        beside = [over[3], over[2], (x + width + back, y + height - up), (x + width, y + height)]
        out.face(over, shard, 0.06, told, hatched)
        out.face(beside, shard, 0.14, told, hatched)
        out.cell(x, y, width, height, texts if a == 0 else [], shard, told, hatched=hatched)
        middles = [(x + (width + back) / 2, y - up / 2 + 4)] if b == 0 and a else []
        middles += [(x + width + back / 2, y + (height - up) / 2 + 4)] if c == wide - 1 and a and b else []
        for middle in middles:
            fill, letters = fill_of(shard)
            if hatched:
                out.plate(*middle, f"#{shard}", fill)
            out.text(*middle, f"#{shard}", anchor="middle", colour=letters)
    return out


def _owned(layout: Layout, shape: Sequence[int], blocks: Mapping[Any, int]) -> str:
    """A shard in words: its number, its box, and the ranks that own it or its addends."""
    (name, ranks), _ = holders_text(layout, blocks)
    box = box_text(layout.bounds(shape, holder(layout, blocks)))
    shard, _, reduced = name.partition(" = ")
    return f"shard {shard}, {box}: {reduced}{' on ' if reduced else ''}{ranks}"


def _boxes(
    layout: Layout, shape: Sequence[int], row: int | None, column: int | None, chosen: dict[int, int]
) -> Canvas:
    out = Canvas()
    rows = shown(1 if row is None else layout.cuts[row], MOST_PIECES)
    columns = shown(1 if column is None else layout.cuts[column], MOST_PIECES)
    cells = {
        (r, c): holders_text(layout, {**chosen, row: r, column: c})
        for r, c in itertools.product(rows, columns)
        if r is not None and c is not None
    }
    hatched = partial_reduction(layout) is not None
    inner = max(width_of(text) for texts, _ in cells.values() for text in texts) + 16
    lefts, scaled = _edges(layout, shape, column, columns, inner)
    tops, also = _edges(layout, shape, row, rows, HIGH + 4)
    left = width_of(str(max(shape, default=0))) + 10
    top = 34.0
    out.text(left, 12, dims_text(layout, row, column) + ("" if scaled and also else "; not scaled"), "faint")
    for k, c in enumerate([*columns, None]):
        if column is not None and (k == len(columns) or c is not None):
            cut = shape[column] if k == len(columns) else interval(layout, shape, column, c or 0)[0]
            out.text(left + lefts[k], top - 6, str(cut), "faint", "middle" if k else "start")
    for j, r in enumerate([*rows, None]):
        y = top + tops[j]
        if row is not None and (j == len(rows) or r is not None):
            cut = shape[row] if j == len(rows) else interval(layout, shape, row, r or 0)[0]
            out.text(left - 6, y + 4, str(cut), "faint", "end")
        if j == len(rows):
            break
        high = tops[j + 1] - tops[j]
        for k, c in enumerate(columns):
            x, wide = left + lefts[k], lefts[k + 1] - lefts[k]
            if r is None or c is None:
                out.text(x + wide / 2, y + high / 2 + 4, GAP, "faint", "middle")
                continue
            texts, shard = cells[r, c]
            told = _owned(layout, shape, {**chosen, row: r, column: c})
            out.cell(x, y, wide, high, texts, _fill(layout, shard), told, hatched=hatched)
    return out


def _edges(
    layout: Layout, shape: Sequence[int], dim: int | None, blocks: Sequence[int | None], least: float
) -> tuple[list[float], bool]:
    """Return the pixel edges of a dim's blocks, and True if all are to scale; no block is shorter than ``least`` pixels."""
    sizes = []
    for block in blocks:
        start, stop = (0, 1) if dim is None or block is None else interval(layout, shape, dim, block)
        sizes.append(stop - start)
    drawn = [size for size, block in zip(sizes, blocks) if block is not None]
    to_scale = min(drawn) > 0
    unit = least / min(drawn) if to_scale else 0.0
    longs = [size * unit if to_scale and block is not None else least for size, block in zip(sizes, blocks)]
    return [0.0, *itertools.accumulate(longs)], to_scale or max(drawn) == 0
