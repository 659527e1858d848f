"""Draw figures of meshes, layouts and tensors: the grid of ranks, and the tensor with the owners of each block.

Cells of ranks with equal number and fill are replicas. If a reduction is pending, cells are hatched and numbered as
addends. :func:`_draw_grid` draws ranks, and :func:`_draw_tensor` draws shards.
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
    choose_indices,
    grid_axes,
    mesh_grid,
    rank_grid,
    rank_panels,
    split_into_digits,
)
from spmdsim.figures.shard_picture import (
    MOST_BLOCKS,
    dims_text,
    draw_shards,
    drawn_dims,
    interval,
    is_uneven,
    owner_of,
    owners_text,
)
from spmdsim.layout.addends import ownership_words, partial_reduction
from spmdsim.redistribution.plans.plan_table import bytes_text

if TYPE_CHECKING:
    from spmdsim.arrays import Tensor

HIGH = 38
MOST_NAMED = 8
"""Largest number of columns in which cells have the word "rank" before the number."""


def mesh_figure(mesh: Mesh) -> Figure:
    """Draw the grid of a mesh's ranks."""
    note = "numbers are ranks; they count along the last axis first"
    title = f"mesh {mesh}: {many(mesh.size, 'rank')}"
    drawing = _draw_grid(Layout(mesh, ()), None, plain=True)
    return Figure(title, (drawing,), (note,), lambda width: [str(mesh), mesh_grid(mesh, width).rich()])


def layout_figure(layout: Layout, shape: Sequence[int] | None = None) -> Figure:
    """Draw the grid of ranks with their shards, and with a ``shape`` also the cut tensor.

    Notes explain the colours, the numbers and a pending reduction.

    Args:
        layout: the layout.
        shape: the global shape of a tensor; None draws the grid only.

    Raises:
        LayoutError: If the layout does not fit the shape.
    """
    reduction = partial_reduction(layout)
    notes = [ownership_words(layout)]
    if reduction is not None:
        notes.append(f"hatched, {reduction.sentence}")
    if layout.shard_count > MOST_FILLS:
        notes.append(f"more than {MOST_FILLS} shards have no colours: numbers tell them apart")
    if any(panel is not None and not _fits_rank_word(panel) for panel in rank_panels(layout.mesh)):
        notes.append("in a cell of the grid: the rank, and below it the # of its shard")
    if "[" in layout.placement_text():
        notes.append(
            f"{layout.placement_text()}: S(d)[k] is axis number k of those that split dim d, [0] the outermost"
        )
    title, drawings = f"layout {layout}", [_draw_grid(layout, shape)]
    if shape is not None:
        layout.check_shape(shape)
        title += f" of {'x'.join(map(str, shape)) or 'a scalar'}"
        drawings.append(_draw_tensor(layout, shape))
    return Figure(
        title, tuple(drawings), tuple(notes), lambda width: [str(layout), *layout_words(layout, shape, width)]
    )


def layout_words(layout: Layout, shape: Sequence[int] | None, width: int) -> list[Words]:
    """Return text of the grid of ranks, and with a ``shape`` also of the tensor with its shards.

    Args:
        layout: the layout.
        shape: the global shape; None for the grid only.
        width: the largest number of characters of a line.
    """
    words: list[Words] = [rank_grid(layout, width).rich()]
    return words if shape is None else [*words, "", draw_shards(layout, shape, width).rich()]


def tensor_figure(tensor: Tensor) -> Figure:
    """Draw the layout of a tensor, with the bytes of the tensor and of the first rank's shard.

    The values are not read, and nothing is communicated.
    """
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
    """Return the number of a shard's fill, or None if there are more shards than fills."""
    return shard if layout.shard_count <= MOST_FILLS else None


def _draw_grid(layout: Layout, shape: Sequence[int] | None, plain: bool = False) -> Canvas:
    """Draw the ranks of the mesh as cells.

    The last two axes are rows and columns. Each combination of indices of the other axes has a panel. Large meshes are
    abbreviated with gaps.
    """
    panels = [
        panel and (panel.name, _draw_panel(layout, shape, panel, plain)) for panel in rank_panels(layout.mesh)
    ]
    return side_by_side([panel or _draw_gap() for panel in panels])


def _fits_rank_word(panel: RankPanel) -> bool:
    """Return True if the cells of a panel can have the word "rank"; many columns would be too wide."""
    return len(panel.heads) <= MOST_NAMED


def _draw_gap() -> tuple[str, Canvas]:
    """Return an empty heading and a drawing of dots."""
    out = Canvas()
    out.text(0, 12, GAP)
    return "", out


def _draw_panel(layout: Layout, shape: Sequence[int] | None, panel: RankPanel, plain: bool) -> Canvas:
    """Draw one table of ranks, each with the number of its shard and of its addend.

    For example, a cell has the lines "rank 3", "#1" and "+2". It has the colour of its shard, and is hatched if a
    reduction is pending. With more than :data:`MOST_NAMED` columns, cells lack the word "rank".

    Args:
        layout: the layout.
        shape: shape of the tensor, whose bounds a pointer shows; None to omit them.
        panel: the ranks of the table; None among them is drawn as a gap.
        plain: True to draw the ranks only, without shards and colours.
    """
    mesh, out, (_, row, column) = layout.mesh, Canvas(), grid_axes(layout.mesh)
    reduction = None if plain else partial_reduction(layout)
    rank_word = "rank " if _fits_rank_word(panel) else ""
    cell_texts = [f"{rank_word}{max(mesh.ranks or [mesh.size - 1])}", f"#{layout.shard_count}"]
    cell_texts += [] if reduction is None else [reduction.label(mesh.rank_at(mesh.size - 1))]
    cell_width = max(*map(width_of, cell_texts), width_of(f"{column}=00") - 6) + 14
    cell_height = 24 if plain else HIGH if reduction is None else HIGH + 14
    margin = width_of(f"{row}=000") if row else 0
    for k, words in enumerate(panel.heads):
        out.text(margin + k * cell_width + cell_width / 2, 12, words, "faint", "middle")
    for j, (label, ranks) in enumerate(panel.rows):
        y = 18 + j * cell_height
        if row:
            out.text(0, y + cell_height / 2 + 4, label, "faint")
        for k, rank in enumerate(ranks):
            x = margin + k * cell_width
            if rank is None:
                out.text(x + cell_width / 2, y + cell_height / 2 + 4, GAP, "faint", "middle")
                continue
            coords = " ".join(f"{axis}={index}" for axis, index in zip(mesh.axes, mesh.coords(rank)))
            lines, pointer_text, fill = [f"{rank_word}{rank}"], f"rank {rank} at {coords}", None
            if not plain:
                shard = layout.shard_index(rank)
                lines.append(f"#{shard}")
                lines += [] if reduction is None else [reduction.label(rank)]
                pointer_text += f": {_owned_text(layout, shape, rank)}"
                fill = _fill(layout, shard)
            out.cell(x, y, cell_width, cell_height, lines, fill, pointer_text, hatched=reduction is not None)
    return out


def _owned_text(layout: Layout, shape: Sequence[int] | None, rank: int) -> str:
    """Return the shard or the addend that a rank owns as text, with its bounds if ``shape`` is not None."""
    reduction = partial_reduction(layout)
    bounds = "" if shape is None else f" = {box_text(layout.bounds(shape, rank))}"
    addend = "" if reduction is None else f"{reduction.long_label(rank)} of "
    return f"{addend}shard #{layout.shard_index(rank)}{bounds}"


def _draw_tensor(layout: Layout, shape: Sequence[int]) -> Canvas:
    """Draw the tensor with its shards, cut at their bounds.

    * Two dimensions are drawn, as rows and columns; see :func:`drawn_dims`.
    * If more dimensions are split, there is a drawing for each block of the others, at most ``MOST_PANELS`` of them.
    * A tensor of three dimensions with at most ``MOST_BLOCKS`` blocks in each is also drawn as a block in space.

    Args:
        layout: the layout of the tensor.
        shape: its global shape.
    """
    row, column, others = drawn_dims(layout, shape)
    counts = [layout.cuts[dim] for dim in others]
    drawings: list[tuple[str, Canvas]] = []
    if len(shape) == 3 and max(layout.cuts) <= MOST_BLOCKS:
        has_uneven_blocks = any(is_uneven(layout, shape, dim) for dim in range(3))
        words = "dim 0 goes back, dim 1 down, dim 2 to the right" + (
            "; not scaled" if has_uneven_blocks else ""
        )
        drawings.append((words, _draw_block(layout, shape)))
    for number in choose_indices(math.prod(counts), MOST_PANELS):
        if number is None:
            drawings.append(_draw_gap())
            continue
        block_of = dict(zip(others, split_into_digits(number, counts)))
        ends = {dim: interval(layout, shape, dim, i) for dim, i in block_of.items()}
        position = ", ".join(f"dim {dim}: {start}:{stop}" for dim, (start, stop) in ends.items())
        drawings.append((position, _draw_boxes(layout, shape, row, column, block_of)))
    return side_by_side(drawings)


def _draw_block(layout: Layout, shape: Sequence[int]) -> Canvas:
    """Draw the shards of a 3-D tensor as equal boxes with gaps, seen from front, above and right.

    Dimension 0 goes to the back, 1 down, and 2 to the right. Boxes in front name the ranks that own the shards. A box
    behind has its shard number on the top or right side, if the side is visible. Boxes with a pending reduction are
    hatched. A pointer over a box shows the bounds of the shard.

    Args:
        layout: the layout of the tensor.
        shape: its global shape.
    """
    canvas = Canvas()
    depth_cuts, height_cuts, width_cuts = layout.cuts
    cells = {
        (a, b, c): owners_text(layout, {0: a, 1: b, 2: c})
        for a, b, c in itertools.product(range(depth_cuts), range(height_cuts), range(width_cuts))
    }
    width = max(width_of(text) for texts, _ in cells.values() for text in texts) + 12
    height, depth, rise, gap = 40.0, 30.0, 20.0, 5.0
    hatched = partial_reduction(layout) is not None
    for a, b, c in sorted(cells, key=lambda at: (-at[0], -at[1], at[2])):  # draw from back to front
        texts, shard = cells[a, b, c]
        pointer_text = _shard_words(layout, shape, {0: a, 1: b, 2: c})
        x, y = c * (width + gap) + a * (depth + gap), 8 + b * (height + gap) + (depth_cuts - a) * (rise + gap)
        upper_face = [(x, y), (x + depth, y - rise), (x + depth + width, y - rise), (x + width, y)]
        right_face = [
            upper_face[3],
            upper_face[2],
            (x + width + depth, y + height - rise),
            (x + width, y + height),
        ]
        canvas.face(upper_face, shard, 0.06, pointer_text, hatched)
        canvas.face(right_face, shard, 0.14, pointer_text, hatched)
        canvas.cell(x, y, width, height, texts if a == 0 else [], shard, pointer_text, hatched=hatched)
        middles = []
        if a > 0 and b == 0:  # behind the front: only the upper side is visible
            middles.append((x + (width + depth) / 2, y - rise / 2 + 4))
        elif a > 0 and c == width_cuts - 1:  # only the right side is visible
            middles.append((x + width + depth / 2, y + (height - rise) / 2 + 4))
        for middle in middles:
            _draw_shard_number(canvas, middle, shard, hatched)
    return canvas


def _draw_shard_number(out: Canvas, middle: tuple[float, float], shard: int, hatched: bool) -> None:
    """Draw the number of a shard on one of its sides, with a plate behind it if the side is hatched."""
    fill, letters = fill_of(shard)
    if hatched:
        out.plate(*middle, f"#{shard}", fill)
    out.text(*middle, f"#{shard}", anchor="middle", colour=letters)


def _shard_words(layout: Layout, shape: Sequence[int], blocks: Mapping[Any, int]) -> str:
    """Return words for a shard: its number, its bounds, and the ranks that own it.

    If a reduction is pending, the ranks own addends of it.
    """
    (name, ranks), _ = owners_text(layout, blocks)
    box = box_text(layout.bounds(shape, owner_of(layout, blocks)))
    shard, _, reduced = name.partition(" = ")
    return f"shard {shard}, {box}: {reduced}{' on ' if reduced else ''}{ranks}"


def _edge_labels(
    layout: Layout, shape: Sequence[int], dim: int | None, blocks: Sequence[int | None]
) -> list[tuple[int, str]]:
    """Return the labels of the edges between drawn blocks of a dimension, as ``(edge, text)``.

    Edge ``k`` is the one before ``blocks[k]``; its text is the first index of that block. The edge after the last block
    has the size of the dimension. The edge before a gap has no label.
    """
    if dim is None:
        return []
    labels = [
        (k, str(interval(layout, shape, dim, block)[0]))
        for k, block in enumerate(blocks)
        if block is not None
    ]
    return [*labels, (len(blocks), str(shape[dim]))]


def _draw_boxes(
    layout: Layout, shape: Sequence[int], row: int | None, column: int | None, chosen: dict[int, int]
) -> Canvas:
    """Draw the blocks of two dimensions with their owners, to scale if no block is empty.

    At most ``MOST_BLOCKS`` (8) blocks per dimension are drawn, with a gap instead of the others. The blocks of a
    pending reduction are hatched. Numbers at the edges are the indices at which blocks begin.

    Args:
        layout: the layout of the tensor.
        shape: its global shape.
        row: the dimension that goes down, or None for a single row.
        column: the dimension that goes to the right, or None for a single column.
        chosen: for each other split dimension, the number of the block that is drawn: ``{0: 1}`` draws the second block
            of dimension 0.
    """
    out = Canvas()
    rows = choose_indices(1 if row is None else layout.cuts[row], MOST_BLOCKS)
    columns = choose_indices(1 if column is None else layout.cuts[column], MOST_BLOCKS)
    cells = {
        (r, c): owners_text(layout, {**chosen, row: r, column: c})
        for r, c in itertools.product(rows, columns)
        if r is not None and c is not None
    }
    hatched = partial_reduction(layout) is not None
    least_width = max(width_of(text) for texts, _ in cells.values() for text in texts) + 16
    lefts, columns_scaled = _block_edges(layout, shape, column, columns, least_width)
    tops, rows_scaled = _block_edges(layout, shape, row, rows, HIGH + 4)
    left = width_of(str(max(shape, default=0))) + 10
    top = 34.0
    out.text(
        left,
        12,
        dims_text(layout, row, column) + ("" if columns_scaled and rows_scaled else "; not scaled"),
        "faint",
    )
    for k, label in _edge_labels(layout, shape, column, columns):
        out.text(left + lefts[k], top - 6, label, "faint", "middle" if k else "start")
    for j, label in _edge_labels(layout, shape, row, rows):
        out.text(left - 6, top + tops[j] + 4, label, "faint", "end")
    for j, r in enumerate(rows):
        y, height = top + tops[j], tops[j + 1] - tops[j]
        for k, c in enumerate(columns):
            x, width = left + lefts[k], lefts[k + 1] - lefts[k]
            if r is None or c is None:
                out.text(x + width / 2, y + height / 2 + 4, GAP, "faint", "middle")
                continue
            texts, shard = cells[r, c]
            pointer_text = _shard_words(layout, shape, {**chosen, row: r, column: c})
            out.cell(x, y, width, height, texts, _fill(layout, shard), pointer_text, hatched=hatched)
    return out


def _block_edges(
    layout: Layout, shape: Sequence[int], dim: int | None, blocks: Sequence[int | None], least: float
) -> tuple[list[float], bool]:
    """Return the edges of a dimension's blocks in pixels, and True if they are to scale.

    The first edge is 0.0, and there is one edge more than ``blocks``. Blocks that are all empty count as to scale.

    Args:
        layout: the layout of the tensor.
        shape: its global shape.
        dim: the dimension; None for a single block.
        blocks: numbers of the drawn blocks; None for a gap.
        least: length of the smallest block and of a gap, in pixels. If a block is empty, all blocks have this length.
    """
    sizes = []
    for block in blocks:
        start, stop = (0, 1) if dim is None or block is None else interval(layout, shape, dim, block)
        sizes.append(stop - start)
    block_sizes = [size for size, block in zip(sizes, blocks) if block is not None]
    to_scale = min(block_sizes) > 0
    unit = least / min(block_sizes) if to_scale else 0.0
    lengths = [size * unit if to_scale and block is not None else least for size, block in zip(sizes, blocks)]
    return [0.0, *itertools.accumulate(lengths)], to_scale or max(block_sizes) == 0
