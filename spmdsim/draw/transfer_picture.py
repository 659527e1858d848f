"""Who sends which box to whom: a tensor cut at all source and target borders, each cell with its senders.

``3>0`` in a cell: rank 3 sends it to rank 0; ``0`` alone: rank 0 holds it before and after. Cells are coloured by
sender. Tensors of one dim are drawn as one row; of more than two dims, and on many ranks, transfers are listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.core import Bounds, Layout
from spmdsim.draw.layout_picture import GridCell, Picture
from spmdsim.redistribution.exchange.direct import receives

MOST_CELLS, MOST_LINES, MOST_RANKS, MOST_LISTED = 16, 8, 64, 64

#: A box that goes from one rank to another.
Sent = tuple[int, int, Bounds]


def transfers(src: Layout, dst: Layout, shape: Sequence[int]) -> list[Sent]:
    """All boxes of the direct exchange as ``(sender, receiver, box)``, by receiver."""
    boxes: list[Sent] = []
    for rank in sorted(dst.mesh.rank_list):
        boxes += [(got.peer, rank, got.box) for got in receives(src, dst, shape, rank)]
    return boxes


def transfers_picture(src: Layout, dst: Layout, shape: Sequence[int]) -> Picture | None:
    """The picture of a direct exchange, or None where there is too much to draw.

    Args:
        src: the layout before, with nothing pending that is not pending afterwards.
        dst: the layout after.
        shape: global shape, of one or two dims.
    """
    grid = cut_cells(src, dst, shape)
    if grid is None:
        return None
    cells, cuts, number = grid
    return Picture(tuple(_lines(cells, cuts, number, len(shape))), len(number))


#: Texts with their senders per cell, where the cuts are, and a number for each sender.
Cut = tuple[list[list[list[tuple[str, int]]]], list[list[int]], dict[int, int]]


def cut_cells(src: Layout, dst: Layout, shape: Sequence[int]) -> Cut | None:
    """The tensor cut at all borders of both layouts, with what happens to each cell; None where that is too much."""
    if not 1 <= len(shape) <= 2 or dst.mesh.size > MOST_RANKS or 0 in shape:
        return None
    sent = [(a, b, box if len(shape) == 2 else ((0, 1), *box)) for a, b, box in transfers(src, dst, shape)]
    cuts = [sorted({edge for _, _, box in sent for edge in box[dim]}) for dim in range(2)]
    if max(len(some) - 1 for some in cuts) > MOST_CELLS:
        return None
    cells = [
        [_texts(sent, (rows, columns)) for columns in zip(cuts[1], cuts[1][1:])]
        for rows in zip(cuts[0], cuts[0][1:])
    ]
    if max(len(cell) for row in cells for cell in row) > MOST_LINES:
        return None
    return cells, cuts, {rank: k for k, rank in enumerate(sorted({a for a, _, _ in sent}))}


def transfers_list(src: Layout, dst: Layout, shape: Sequence[int], rank: int | None = None) -> list[str]:
    """The transfers as lines, of one receiving rank or of all."""
    if rank is not None:
        boxes = [(got.peer, rank, got.box) for got in receives(src, dst, shape, rank)]
    else:
        boxes = transfers(src, dst, shape)
    lines = []
    for sender, receiver, box in boxes[:MOST_LISTED]:
        where = ", ".join(f"{start}:{stop}" for start, stop in box)
        lines.append(
            f"{sender} keeps [{where}]" if sender == receiver else f"{sender} > {receiver} [{where}]"
        )
    if len(boxes) > MOST_LISTED:
        lines.append(f".. and {len(boxes) - MOST_LISTED} more")
    return lines


def _texts(sent: Sequence[Sent], cell: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """What happens to one cell: texts with the sending rank."""
    texts = []
    for sender, receiver, box in sent:
        if all(start <= low and high <= stop for (start, stop), (low, high) in zip(box, cell)):
            texts.append((str(sender) if sender == receiver else f"{sender}>{receiver}", sender))
    return texts


def _lines(
    cells: list[list[list[tuple[str, int]]]], cuts: list[list[int]], number: dict[int, int], ndim: int
) -> list[tuple[GridCell, ...]]:
    """The grid with its borders, the row borders' indices on the left and the column borders' above."""
    heads = [str(edge) for edge in cuts[1]]
    texts = [len(text) for row in cells for cell in row for text, _ in cell]
    width = max([*texts, *map(len, heads)]) + 2
    margin = max(len(str(edge)) for edge in cuts[0]) + 1 if ndim == 2 else 1
    lines: list[tuple[GridCell, ...]] = [
        (GridCell(" " * margin + "".join(head.ljust(width + 1) for head in heads)),)
    ]
    rule = "+" + "+".join("-" * width for _ in cells[0]) + "+"
    for k, row in enumerate(cells):
        label = str(cuts[0][k]) if ndim == 2 else ""
        lines.append((GridCell(label.rjust(margin - 1) + " " + rule),))
        for line in range(max(len(cell) for cell in row)):
            parts = [GridCell(" " * margin + "|")]
            for cell in row:
                text, sender = cell[line] if line < len(cell) else ("", -1)
                parts += [GridCell(f" {text}".ljust(width), number.get(sender)), GridCell("|")]
            lines.append(tuple(parts))
    last = str(cuts[0][-1]) if ndim == 2 else ""
    lines.append((GridCell(last.rjust(margin - 1) + " " + rule),))
    return lines
