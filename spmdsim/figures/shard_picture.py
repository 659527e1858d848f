"""Draw a tensor as text: its shards at their positions, with the ranks that own them or their addends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spmdsim.core import Layout
from spmdsim.figures.layout_picture import (
    GAP,
    MOST_PANELS,
    GridCell,
    Picture,
    choose_indices,
    split_into_digits,
)
from spmdsim.layout.addends import partial_reduction
from spmdsim.layout.explain import ranks_text

MOST_BLOCKS = 8
"""Largest number of blocks of a dim that are drawn; of more, the first ones and the last."""


def draw_shards(layout: Layout, shape: Sequence[int], width: int = 100) -> Picture:
    """Draw a tensor as text: its shards, the ranks that own them or their addends, the cuts.

    A drawing shows two dimensions, with a box per shard. The box has the number of the shard and its ranks; the numbers
    at its edges are the first indices of blocks. A tensor with more than two split dimensions gets several drawings of
    the last two, one per block of the others. At most 8 blocks per dimension and 8 drawings are shown; ".." stands for
    the others.

    Args:
        layout: the layout of the tensor.
        shape: its global shape.
        width: the largest number of characters of a line; at least three columns are drawn.

    Raises:
        LayoutError: If the layout does not fit the shape.

    >>> from spmdsim.core import Mesh
    >>> print(draw_shards(Mesh((2, 2), ("dp", "mp"))("mp", None), (4, 6)).to_text())
    rows: dim 0, columns: dim 1
          0           6
       0  +-----------+
          |     #0    |
          | ranks 0,2 |
       2  +-----------+
          |     #1    |
          | ranks 1,3 |
       4  +-----------+
    >>> print(draw_shards(Mesh((2, 2), ("dp", "mp"))("mp", partial="dp"), (5,)).to_text())
    columns: dim 0; not scaled
          0               3               5
          +---------------+---------------+
          | #0 = sum of 2 | #1 = sum of 2 |
          |   ranks 0+2   |   ranks 1+3   |
          +---------------+---------------+
    """
    layout.check_shape(shape)
    row, column, others = drawn_dims(layout, shape)
    head = dims_text(layout, row, column)
    if any(is_uneven(layout, shape, dim) for dim in (row, column)):
        head += "; not scaled"
    lines: list[tuple[GridCell, ...]] = [(GridCell(head),)]
    counts = [layout.cuts[dim] for dim in others]
    for panel in choose_indices(math.prod(counts), MOST_PANELS):
        if panel is None:
            lines.append((GridCell(GAP),))
            continue
        block_of = dict(zip(others, split_into_digits(panel, counts)))
        if block_of:
            position = ", ".join(f"dim {d}: {interval(layout, shape, d, i)}" for d, i in block_of.items())
            lines.append((GridCell(position),))
        lines += _panel_lines(layout, shape, row, column, block_of, width)
    return Picture(tuple(lines), layout.shard_count)


def drawn_dims(layout: Layout, shape: Sequence[int]) -> tuple[int | None, int | None, list[int]]:
    """Return the dimension of rows, the dimension of columns, and the other split dimensions.

    The last two split dimensions are drawn; if fewer are split, the last ones of the tensor, too. The drawn ones are in
    ascending order. The dimension of rows is None for tensors of one dimension, and both are None for scalars. For
    example, a tensor of four dims of which dims 0, 1 and 2 are split gives ``(1, 2, [0])``. If only dim 0 is split, the
    result is ``(0, 3, [])``.

    Args:
        layout: the layout of the tensor.
        shape: its global shape; only its length counts.
    """
    split = [dim for dim, parts in enumerate(layout.cuts) if parts > 1]
    dims_to_draw = split[-2:]
    for dim in reversed(range(len(shape))):
        if len(dims_to_draw) < 2 and dim not in dims_to_draw:
            dims_to_draw = sorted([*dims_to_draw, dim])
    others = [dim for dim in split if dim not in dims_to_draw]
    if len(dims_to_draw) == 1:
        return None, dims_to_draw[0], others
    return (dims_to_draw[0], dims_to_draw[1], others) if dims_to_draw else (None, None, others)


def dims_text(layout: Layout, row: int | None, column: int | None) -> str:
    """Return text that names the drawn dimensions, and those that are left out because they are not split.

    If no dimension is drawn, the text begins with "a scalar".

    Args:
        layout: the layout of the tensor.
        row: the dimension of rows, or None.
        column: the dimension of columns, or None.

    >>> from spmdsim.core import Mesh
    >>> dims_text(Mesh((2, 2), ("a", "b"))("a", None, "b", None), 0, 2)
    'rows: dim 0, columns: dim 2; not drawn: dims 1, 3, which are whole'
    """
    dims = {"rows": row, "columns": column}
    drawn_text = (
        ", ".join(f"{name}: dim {dim}" for name, dim in dims.items() if dim is not None) or "a scalar"
    )
    unsplit = [str(dim) for dim, parts in enumerate(layout.cuts) if parts == 1 and dim not in (row, column)]
    if not unsplit:
        return drawn_text
    if len(unsplit) == 1:
        return f"{drawn_text}; not drawn: dim {unsplit[0]}, which is whole"
    return f"{drawn_text}; not drawn: dims {', '.join(unsplit)}, which are whole"


def is_uneven(layout: Layout, shape: Sequence[int], dim: int | None) -> bool:
    """Return True if a dimension is split into blocks of different sizes.

    For a ``dim`` of None return False.
    """
    return dim is not None and shape[dim] % layout.cuts[dim] != 0


def interval(layout: Layout, shape: Sequence[int], dim: int | None, index: int) -> tuple[int, int]:
    """Return the first element of block ``index`` of a dimension, and the one after its last.

    Return ``(0, 0)`` if ``dim`` is None.
    """
    if dim is None:
        return 0, 0
    return layout.bounds(shape, owner_of(layout, {dim: index}))[dim]


def owner_of(layout: Layout, blocks: Mapping[Any, int]) -> int:
    """Return the first rank that owns the shard with the given blocks.

    It has coordinate 0 on all axes that do not split the tensor.

    Args:
        layout: the layout of the tensor.
        blocks: the number of the block by dimension; missing dimensions have block 0, and the key None is ignored.
    """
    mesh = layout.mesh
    coords: dict[str, int] = dict.fromkeys(mesh.axes, 0)
    for dim, index in blocks.items():
        if dim is not None:
            sizes = [mesh.axis_size(axis) for axis in layout.dims[dim]]
            coords.update(zip(layout.dims[dim], split_into_digits(index, sizes)))
    return mesh.rank_of([coords[axis] for axis in mesh.axes])


def _panel_lines(
    layout: Layout,
    shape: Sequence[int],
    row: int | None,
    column: int | None,
    chosen: dict[int, int],
    width: int,
) -> Iterator[tuple[GridCell, ...]]:
    """Yield the text lines of one drawing: a box for each block of two dimensions.

    At most 8 (``MOST_BLOCKS``) rows are drawn, and as many columns as fit into ``width``: at least three, at most 8. Of
    more, the first ones and the last are drawn, and ".." stands for the others.

    Args:
        layout: the layout of the tensor.
        shape: its global shape.
        row: the dimension whose blocks go down, or None for a single row.
        column: the dimension whose blocks go to the right, or None for a single column.
        chosen: for each other split dimension, the number of the block that is drawn. For example, ``{0: 2}`` draws the
            shards in block 2 of dimension 0.
        width: largest number of characters of a line. Three columns are drawn even if they do not fit.
    """
    rows = choose_indices(1 if row is None else layout.cuts[row], MOST_BLOCKS)
    margin = max(4, len(str(max(shape, default=0))) + 2)
    for most_columns in range(MOST_BLOCKS, 2, -1):
        columns = choose_indices(1 if column is None else layout.cuts[column], most_columns)
        content = {
            (r, c): owners_text(layout, {**chosen, row: r, column: c})
            for r, c in itertools.product(rows, columns)
            if r is not None and c is not None
        }
        starts = [_cut_text(layout, shape, column, c, k) for k, c in enumerate(columns)]
        inner_width = max(len(text) for texts, _ in content.values() for text in texts) + 2
        widths = [
            max(len(GAP) + 2 if c is None else inner_width, len(s) + 1) for c, s in zip(columns, starts)
        ]
        is_narrow_enough = margin + 2 + sum(widths) + len(widths) < width
        if is_narrow_enough:
            break
    return _table_lines(
        layout, shape, (row, column), rows, columns, content, starts, widths, " " * (margin + 2)
    )


def _cut_text(
    layout: Layout, shape: Sequence[int], dim: int | None, index: int | None, gap_index: int
) -> str:
    """Return the first index of a block as text; "" if ``dim`` is None.

    An ``index`` of None is a gap. It starts where block ``gap_index`` does.
    """
    if dim is None:
        return ""
    return str(interval(layout, shape, dim, gap_index if index is None else index)[0])


def _table_lines(
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
    """Yield the lines of a table of boxes; a box is a shard, with two lines of text.

    The lines are: the first index of each column's block (if columns are a dimension), then for each row of boxes a rule
    and two lines of text, then a last rule. A rule begins with the first index of the row's block. A gap of rows is a rule
    and a line with "..". See the examples of :func:`draw_shards`.

    Args:
        layout: the layout.
        shape: shape of the tensor.
        dims: the dimensions of rows and of columns; None for a single row or column.
        rows: numbers of the drawn blocks of the rows, such as ``[0, 1, None, 9]``; None is a gap.
        columns: numbers of the drawn blocks of the columns, None for a gap.
        content: ``{(row, column): ((first line, second line), number of the shard)}`` of each drawn block.
        starts: the number above each column, as text: the first index of its block.
        widths: widths of the columns, in characters.
        margin: blanks before each line, at least two; numbers of rows are written into them.
    """
    row, column = dims
    if column is not None:
        column_starts = "".join(start.ljust(width + 1) for start, width in zip(starts, widths))
        yield (GridCell(f"{margin}{column_starts}{shape[column]}"),)
    rule = "+" + "+".join("-" * width for width in widths) + "+"
    for k, r in enumerate(rows):
        start_text = _cut_text(layout, shape, row, r, k).rjust(len(margin) - 2)
        yield (GridCell(f"{start_text}  {rule}"),)
        if r is None:
            yield (GridCell(f"{margin}{GAP}"),)
            continue
        for text_line in range(2):
            line = [GridCell(f"{margin}|")]
            for c, width in zip(columns, widths):
                texts, shard = ((GAP, GAP), None) if c is None else content[r, c]
                line += [GridCell(texts[text_line].center(width), shard), GridCell("|")]
            yield tuple(line)
    stop_text = ("" if row is None else str(shape[row])).rjust(len(margin) - 2)
    yield (GridCell(f"{stop_text}  {rule}"),)


def owners_text(layout: Layout, blocks: Mapping[Any, int]) -> tuple[tuple[str, str], int]:
    """Return the two lines of text in the box of a shard, and the number of the shard.

    The first line is the number, such as "#0", or "#0 = sum of 2" if a reduction of two addends is pending. The second
    line lists the ranks that own the shard, such as "ranks 0,2", or those that own its addends, such as "ranks 0+2". More
    than six ranks are written as ranges.

    Args:
        layout: the layout of the tensor.
        blocks: the number of the block by dimension; missing dimensions have block 0, and the key None is ignored.

    Returns:
        ``((first line, second line), number of the shard)``.

    >>> from spmdsim.core import Mesh
    >>> owners_text(Mesh((2, 2), ("dp", "mp"))("mp", None), {0: 1})
    (('#1', 'ranks 1,3'), 1)
    """
    rank = owner_of(layout, blocks)
    shard = layout.shard_index(rank)
    split = set(layout.split_axes)
    owners = layout.mesh.group(rank, *(axis for axis in layout.mesh.axes if axis not in split))
    reduction = partial_reduction(layout)
    if len(owners) > 6:
        text = ranks_text(owners)
    else:
        text = ",".join(map(str, owners)) if reduction is None else reduction.owner_words(rank)
    name = f"#{shard}" if reduction is None else f"#{shard} = {reduction.result_words}"
    return (name, f"{'rank' if len(owners) == 1 else 'ranks'} {text}"), shard
