"""Figures of meshes, layouts and tensors: the grid of ranks, and the tensor with who holds which box."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spmdsim.core import Layout, Mesh
from spmdsim.draw.canvas import Canvas, fill_of, width_of
from spmdsim.draw.figures import Figure, fact_rows, side_by_side
from spmdsim.draw.layout_picture import (
    GAP,
    MOST_PANELS,
    MOST_PIECES,
    RankPanel,
    box_text,
    digits,
    dims_text,
    drawn_dims,
    grid_axes,
    holder,
    holders_text,
    interval,
    rank_panels,
    shown,
)
from spmdsim.errors import many

if TYPE_CHECKING:
    from spmdsim.tensor import Tensor

HIGH = 38


def mesh_figure(mesh: Mesh) -> Figure:
    """The grid of a mesh's ranks."""
    note = "numbers are ranks; the last axis is the one along which they count"
    title = f"mesh {mesh}: {many(mesh.size, 'rank')}"
    return Figure(title, (_grid(Layout(mesh, ()), None, plain=True),), (note,))


def layout_figure(layout: Layout, shape: Sequence[int] | None = None) -> Figure:
    """The grid of ranks, coloured by what they hold; with a shape, the tensor with its pieces, too."""
    partial = ", ".join(f"{axis} ({op})" for axis, op in layout.partial)
    notes = [
        f"{many(layout.shard_count, 'piece')} on {many(layout.mesh.size, 'rank')}: ranks of one # hold the same piece"
    ]
    if partial:
        notes.append(f"pending over {partial}: every rank along it holds a part that is still to be added up")
    if shape is None:
        return Figure(f"layout {layout}", (_grid(layout, None),), tuple(notes))
    layout.check_shape(shape)
    text = "x".join(map(str, shape)) or "a scalar"
    return Figure(f"layout {layout} of {text}", (_grid(layout, shape), _pieces(layout, shape)), tuple(notes))


def tensor_figure(tensor: Tensor) -> Figure:
    """The layout of a tensor: which rank holds which box. Values are not looked at."""
    figure = layout_figure(tensor.layout, tensor.meta.shape)
    itemsize = tensor.dtype.itemsize
    held = math.prod(tensor.layout.local_shape(tensor.meta.shape, tensor.layout.mesh.rank_at(0))) * itemsize
    facts = (
        ("shape", "x".join(map(str, tensor.meta.shape)) or "scalar"),
        ("dtype", str(tensor.dtype)),
        ("in all", f"{many(math.prod(tensor.meta.shape) * itemsize, 'byte')}"),
        ("rank 0's shard" if 0 in tensor.layout.mesh else "first shard", many(held, "byte")),
        ("world", repr(tensor.world)),
    )
    return Figure(repr(tensor), (*figure.parts, fact_rows(facts)), figure.notes)


def _grid(layout: Layout, shape: Sequence[int] | None, plain: bool = False) -> Canvas:
    """The ranks of the mesh as cells: the last two axes as rows and columns, a panel per index of the others."""
    panels = [
        panel and (panel.name, _panel(layout, shape, panel, plain)) for panel in rank_panels(layout.mesh)
    ]
    return side_by_side([panel or _gap() for panel in panels])


def _gap() -> tuple[str, Canvas]:
    out = Canvas()
    out.text(0, 12, GAP)
    return "", out


def _panel(layout: Layout, shape: Sequence[int] | None, panel: RankPanel, plain: bool) -> Canvas:
    mesh, out, (_, row, column) = layout.mesh, Canvas(), grid_axes(layout.mesh)
    longest = f"rank {max(mesh.ranks or [mesh.size - 1])}"
    wide = max(width_of(longest) + 14, width_of(f"{column}=00") + 8)
    high = 24 if plain else HIGH
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
                out.cell(x, y, wide, high, [f"rank {rank}"], None, told)
                continue
            shard = layout.shard_index(rank)
            box = "" if shape is None else f" = {box_text(layout.bounds(shape, rank))}"
            out.cell(x, y, wide, high, [f"rank {rank}", f"#{shard}"], shard, f"{told}: piece {shard}{box}")
    return out


def _pieces(layout: Layout, shape: Sequence[int]) -> Canvas:
    """The tensor with its pieces, cut where they end; of more than two split dims a panel per piece of the others."""
    row, column, others = drawn_dims(layout, shape)
    counts = [layout.cuts[dim] for dim in others]
    drawings: list[tuple[str, Canvas]] = []
    if len(shape) == 3 and max(layout.cuts) <= MOST_PIECES:
        drawings.append(("dim 0 goes back, dim 1 down, dim 2 to the right", _block(layout, shape)))
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
    for a, b, c in sorted(cells, key=lambda at: (-at[0], -at[1], at[2])):  # what hides another comes later
        texts, shard = cells[a, b, c]
        told = (
            f"piece {shard}, {box_text(layout.bounds(shape, holder(layout, {0: a, 1: b, 2: c})))}: {texts[1]}"
        )
        x, y = c * (width + gap) + a * (back + gap), 8 + b * (height + gap) + (deep - a) * (up + gap)
        letters = fill_of(shard)[1]
        over = [(x, y), (x + back, y - up), (x + back + width, y - up), (x + width, y)]
        beside = [over[3], over[2], (x + width + back, y + height - up), (x + width, y + height)]
        out.face(over, shard, 0.06, told)
        out.face(beside, shard, 0.14, told)
        out.cell(x, y, width, height, texts if a == 0 else [], shard, told)
        if b == 0 and a:
            out.text(x + (width + back) / 2, y - up / 2 + 4, texts[0], anchor="middle", colour=letters)
        if c == wide - 1 and a and b:
            middle = x + width + back / 2, y + (height - up) / 2 + 4
            out.text(*middle, texts[0], anchor="middle", colour=letters)
    return out


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
    inner = max(width_of(text) for texts, _ in cells.values() for text in texts) + 16
    left = width_of(str(max(shape, default=0))) + 10
    top = 34.0
    out.text(left, 12, dims_text(row, column), "faint")
    for k, c in enumerate([*columns, None]):
        if column is not None and (k == len(columns) or c is not None):
            cut = shape[column] if k == len(columns) else interval(layout, shape, column, c or 0)[0]
            out.text(left + k * inner, top - 6, str(cut), "faint", "middle" if k else "start")
    for j, r in enumerate([*rows, None]):
        y = top + j * (HIGH + 4)
        if row is not None and (j == len(rows) or r is not None):
            cut = shape[row] if j == len(rows) else interval(layout, shape, row, r or 0)[0]
            out.text(left - 6, y + 4, str(cut), "faint", "end")
        if j == len(rows):
            break
        for k, c in enumerate(columns):
            x = left + k * inner
            if r is None or c is None:
                out.text(x + inner / 2, y + HIGH / 2 + 4, GAP, "faint", "middle")
                continue
            texts, shard = cells[r, c]
            rank = holder(layout, {**chosen, row: r, column: c})
            told = f"piece {shard}, {box_text(layout.bounds(shape, rank))}: {texts[1]}"
            out.cell(x, y, inner, HIGH + 4, texts, shard, told)
    return out
