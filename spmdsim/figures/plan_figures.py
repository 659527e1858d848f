"""Draw redistributions: the boxes that ranks send, one step, and a plan with its bound and alternatives.

A cell is the box between two neighbouring cuts in every dimension; cuts are the bounds of shards before and after.
:func:`cut_cells` finds the cells, and text and figures draw them. :func:`plan_figure` draws a whole plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from spmdsim.core import Bounds, Layout
from spmdsim.errors import SpmdError, many
from spmdsim.figures.canvas import Canvas, width_of
from spmdsim.figures.figures import Figure, Part, Words, side_by_side
from spmdsim.figures.layout_picture import GridCell, Picture, box_text
from spmdsim.layout.addends import partial_reduction
from spmdsim.layout.explain import ranks_text
from spmdsim.redistribution.exchange.direct import receives
from spmdsim.redistribution.plans.plan_table import (
    bytes_text,
    candidates_table,
    plan_parts,
    seconds_text,
    steps_table,
)
from spmdsim.worlds.trace.event_table import pairs

if TYPE_CHECKING:
    from spmdsim.core.step import Step
    from spmdsim.redistribution.plans.planner import Plan

MOST_CELLS, MOST_LINES, MOST_RANKS, MOST_LISTED = 16, 8, 64, 64


def moving_words(plan: Plan) -> str:
    """Return a remark that ranks send addends of a pending reduction; "" without one."""
    reduction = partial_reduction(plan.src)
    return (
        "" if reduction is None else f"; what moves are {reduction.noun}s: the {reduction.op} stays pending"
    )


class SentBox(NamedTuple):
    """A box that one rank sends to another."""

    sender: int
    receiver: int
    box: Bounds


def transfers(
    src: Layout, dst: Layout, shape: Sequence[int], ranks: Sequence[int] | None = None
) -> list[SentBox]:
    """Return all boxes of a direct exchange, also those that stay on their rank, by receiver.

    In a direct exchange each receiver gets each element from one rank that owns it. Receivers are in ascending order.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        ranks: the receivers, in their order in the result; None for all ranks of ``dst``.

    Raises:
        PlanError: If the layouts have no direct exchange, because their pending reductions differ.
    """
    receivers = sorted(dst.mesh.rank_list) if ranks is None else ranks
    return [
        SentBox(transfer.peer, rank, transfer.box)
        for rank in receivers
        for transfer in receives(src, dst, shape, rank)
    ]


def transfers_picture(src: Layout, dst: Layout, shape: Sequence[int]) -> Picture | None:
    """Draw a direct exchange as text: a grid of cells, each with sender and receivers.

    Return None if the drawing would be too large; see :func:`cut_cells`.

    Args:
        src: the layout before.
        dst: the layout after, with the pending reductions of ``src``.
        shape: the global shape.
    """
    grid = cut_cells(src, dst, shape)
    if grid is None:
        return None
    cells, cuts, colour_numbers = grid
    lines = tuple(_grid_lines(cells, cuts, colour_numbers, len(shape)))
    return Picture(lines, shards=len(colour_numbers))


#: For each cell its (text, sender) pairs; the cuts of each dim; the number of each rank's colour.
Cut = tuple[list[list[list[tuple[str, int]]]], list[list[int]], dict[int, int]]


def cut_cells(src: Layout, dst: Layout, shape: Sequence[int]) -> Cut | None:
    """Cut a tensor at the bounds of both layouts, and list the transfers of each cell.

    A cell is the box between two neighbouring cuts in every dimension. For example, 4 elements that 2 ranks own in
    halves are gathered: there is a single row with the cells 0:2 and 2:4. The first has the transfers "0" (rank 0 keeps
    it) and "0>1", the second "1>0" and "1".

    Args:
        src: the layout before.
        dst: the layout after, with the pending reductions of ``src``.
        shape: the global shape.

    Returns:
        Three values: by row and column, the list of ``(text, sender)`` pairs of each cell; the cuts of rows and those
        of columns; for each rank the number of its colour. None if the tensor has no elements, no dimension or more
        than two, or if the drawing would be too large: more than 64 ranks, 16 cells along a dimension, or 8 transfers
        in a cell.

    Raises:
        PlanError: If the layouts have no direct exchange.
    """
    if not 1 <= len(shape) <= 2 or dst.mesh.size > MOST_RANKS or 0 in shape:
        return None
    # A tensor of one dimension is drawn as one row.
    one_row: Bounds = () if len(shape) == 2 else ((0, 1),)
    sent = [(sender, receiver, (*one_row, *box)) for sender, receiver, box in transfers(src, dst, shape)]
    cuts = [sorted({edge for _, _, box in sent for edge in box[dim]}) for dim in range(2)]
    if max(len(edges) - 1 for edges in cuts) > MOST_CELLS:
        return None
    row_bounds, column_bounds = (list(pairwise(edges)) for edges in cuts)
    cells = [[_cell_texts(sent, (rows, columns)) for columns in column_bounds] for rows in row_bounds]
    if max(len(cell) for row in cells for cell in row) > MOST_LINES:
        return None
    return cells, cuts, {rank: k for k, rank in enumerate(_all_ranks(src, dst))}


def _all_ranks(src: Layout, dst: Layout) -> list[int]:
    """Return the ranks of both meshes in ascending order.

    The index of a rank is the number of its colour.
    """
    return sorted({*src.mesh.rank_list, *dst.mesh.rank_list})


def transfers_list(src: Layout, dst: Layout, shape: Sequence[int], rank: int | None = None) -> list[str]:
    """Return the transfers to ``rank``, or to all ranks if it is None, as lines of text.

    Lines are like "3 > 0 [0:2, 4:8]" (rank 3 sends to rank 0), or "3 keeps [0:2, 4:8]". Boxes are global indices. After
    64 transfers a line has the number of further ones.

    Args:
        src: the layout before.
        dst: the layout after, with the pending reductions of ``src``.
        shape: the global shape.
        rank: the receiver, or None.
    """
    boxes = transfers(src, dst, shape, None if rank is None else (rank,))
    lines = [
        f"{sender} keeps {box_text(box)}" if sender == receiver else f"{sender} > {receiver} {box_text(box)}"
        for sender, receiver, box in boxes[:MOST_LISTED]
    ]
    if len(boxes) > MOST_LISTED:
        lines.append(f".. and {len(boxes) - MOST_LISTED} more")
    return lines


def _cell_texts(
    sent: Sequence[tuple[int, int, Bounds]], cell: Sequence[tuple[int, int]]
) -> list[tuple[str, int]]:
    """Return (text, sender) for each transfer whose box contains a cell.

    The text is "3>0" if rank 3 sends the cell to rank 0, or "3" if rank 3 keeps it.
    """
    return [
        (str(sender) if sender == receiver else f"{sender}>{receiver}", sender)
        for sender, receiver, box in sent
        if all(start <= low and high <= stop for (start, stop), (low, high) in zip(box, cell))
    ]


def _grid_lines(
    cells: list[list[list[tuple[str, int]]]], cuts: list[list[int]], number: dict[int, int], ndim: int
) -> Iterator[tuple[GridCell, ...]]:
    """Yield the text lines of the grid of cells, with cuts of rows at the left, columns above.

    The line above the grid has the cuts of columns. Each row of cells then has a rule, and as many lines as its fullest
    cell has transfers. A last rule follows.

    Args:
        cells: the ``(text, sender)`` pairs of each cell, by row and column.
        cuts: the cuts of rows and of columns: one more than there are cells.
        number: the number of each rank's colour.
        ndim: number of dimensions; for 1 the cuts of rows are left out.
    """
    heads = [str(edge) for edge in cuts[1]]
    texts = [len(text) for row in cells for cell in row for text, _ in cell]
    width = max([*texts, *map(len, heads)]) + 2
    margin = max(len(str(edge)) for edge in cuts[0]) + 1 if ndim == 2 else 1
    yield (GridCell(" " * margin + "".join(head.ljust(width + 1) for head in heads)),)
    rule = "+" + "+".join("-" * width for _ in cells[0]) + "+"
    for k, row in enumerate(cells):
        label = str(cuts[0][k]) if ndim == 2 else ""
        yield (GridCell(label.rjust(margin - 1) + " " + rule),)
        for line in range(max(len(cell) for cell in row)):
            line_cells = [GridCell(" " * margin + "|")]
            for cell in row:
                text, sender = cell[line] if line < len(cell) else ("", -1)
                line_cells += [GridCell(f" {text}".ljust(width), number.get(sender)), GridCell("|")]
            yield tuple(line_cells)
    last_edge = str(cuts[0][-1]) if ndim == 2 else ""
    yield (GridCell(last_edge.rjust(margin - 1) + " " + rule),)


MOST_PEERS = 32
"""Largest number of ranks in a table of senders and receivers."""


def step_figure(step: Step, itemsize: int = 4) -> Figure:
    """Draw the bytes from each sender to each receiver of one step.

    Args:
        step: the step of a redistribution.
        itemsize: bytes of an element.
    """
    over = f" over {','.join(step.axes)}" if step.axes else ""
    shape = "x".join(map(str, step.shape)) or "a scalar"
    title = f"{step.collective}{over}: {step.src.placement_text()} -> {step.dst.placement_text()} of {shape}"
    note = f"bytes, with {itemsize} for an element; rows send, columns receive"
    return Figure(title, (_draw_matrix(step, itemsize),), (note,))


def plan_figure(plan: Plan) -> Figure:
    """Draw a plan of a redistribution.

    In order, the figure has:

    * the layouts with an arrow per step, and a table of the steps;
    * the transfers, cell by cell, if the plan has no reduction and no reshape, and the drawing is small enough (see
      :func:`cut_cells`);
    * for at most ``MOST_PEERS`` ranks, a table of the messages of each step that has some;
    * a table of candidates: other plans that were priced, but not chosen.

    Notes have the received bytes beside their lower bounds, the time and the peak memory.
    """
    shape = "x".join(map(str, plan.shape)) or "scalar"
    parts: list[Part] = [_draw_layouts(plan)]
    if plan.steps:
        parts.append(steps_table(plan))
    if plan.src.partial == plan.dst.partial and plan.to_shape is None:
        boxes = _draw_transfers(plan)
        parts += [boxes] if boxes is not None else []
    ranks = max(plan.src.mesh.size, plan.dst.mesh.size)
    if ranks <= MOST_PEERS:
        moving = [step for step in plan.steps if any(pairs(step, rank) for rank in step.dst.mesh.rank_list)]
        tables = [
            (f"{number}. {step.collective}: bytes from row to column", _draw_matrix(step, plan.itemsize))
            for number, step in enumerate(moving, 1)
        ]
        parts += [side_by_side(tables)] if tables else []
    parts.append(candidates_table(plan))
    machine = "by bytes alone" if plan.machine is None else f"on {plan.machine.name}"
    notes = (
        f"the busiest rank receives {bytes_text(plan.max_nbytes)}, at least {bytes_text(plan.max_lower_bound)} are needed; "
        f"all ranks {bytes_text(plan.total_nbytes)}, at least {bytes_text(plan.total_lower_bound)}",
        f"{seconds_text(plan.seconds)} {machine}; a rank holds {bytes_text(plan.peak_nbytes)} at most",
    )
    return Figure(
        f"plan for {plan.dtype}[{shape}]: {plan.src} -> {plan.dst}",
        tuple(parts),
        notes,
        lambda _: _plan_words(plan),
    )


def _plan_words(plan: Plan) -> list[Words]:
    """Return the text of a plan: its tables, and a picture of a direct exchange between its two layouts.

    The picture shows for each cell of the tensor who sends it to whom. It is left out if ranks reduce, if the shape
    changes, or if it would be too large (:func:`cut_cells`).
    """
    parts: list[Words] = [*plan_parts(plan)]
    if plan.src.partial == plan.dst.partial and plan.to_shape is None:
        picture = transfers_picture(plan.src, plan.dst, plan.shape)
        if picture is not None:
            parts.append(f"\nwho sends what to whom (sender>receiver){moving_words(plan)}:")
            parts.append(picture.rich())
    return parts


def _draw_layouts(plan: Plan) -> Canvas:
    """Draw the layouts of a plan in order, with collective and bytes on each arrow.

    The bytes are what the busiest rank receives in the step. A plan without steps shows source and target, and an
    arrow "nothing to do". Partial layouts are hatched and name their reduction. Cells have no fill, because the fills
    of the figure are ranks that send.
    """
    canvas, x = Canvas(), 0.0
    states = plan.states if plan.steps else (plan.src, plan.dst)
    height = 54 if any(map(partial_reduction, states)) else 40
    for number, layout in enumerate(states):
        words = [layout.placement_text() or "scalar", str(layout.mesh)]
        reduction = partial_reduction(layout)
        if reduction is not None:
            words.append(f"{reduction.result_words} {reduction.noun}s")
        width = max(map(width_of, words)) + 20
        canvas.cell(x, 0, width, height, words, None, str(layout), hatched=reduction is not None)
        x += width
        if number < len(states) - 1:
            step = plan.steps[number] if number < len(plan.steps) else None
            name = "nothing to do" if step is None else step.collective
            size = "" if step is None else bytes_text(plan.prices[number][0] * plan.itemsize)
            arrow_length = max(width_of(name), width_of(size)) + 26
            canvas.arrow(x + 4, 20, x + arrow_length - 4, 20)
            canvas.text(x + arrow_length / 2, 14, name, anchor="middle")
            canvas.text(x + arrow_length / 2, 36, size, "faint", "middle")
            x += arrow_length
    return canvas


def _draw_transfers(plan: Plan) -> Canvas | None:
    """Draw the tensor cut at all bounds; a cell has a line for each rank that gets it.

    A line "3→0" goes from rank 3 to rank 0, and "3" alone stays on rank 3; its colour is the sender's. Return None if
    the drawing would be too large, or the layouts have no direct exchange. ``plan`` has the layouts before and after;
    its steps do not matter.
    """
    try:
        grid = cut_cells(plan.src, plan.dst, plan.shape)
    except SpmdError:
        return None
    if grid is None:
        return None
    cells, cuts, number = grid
    width = max(width_of(text) for row in cells for cell in row for text, _ in cell) + 18
    margin = max(width_of(str(edge)) for edge in cuts[0]) + 8
    canvas = Canvas()
    legend = "who sends which box: 3→0 goes from rank 3 to rank 0; a number alone stays; colours are senders"
    canvas.text(0, 12, legend + moving_words(plan), "faint")
    top = 36.0
    has_one_dim = len(plan.shape) == 1
    for k, edge in enumerate(cuts[1]):
        canvas.text(margin + k * width, top - 6, str(edge), "faint", "middle" if k else "start")
    for row, cuts_row in zip(cells, cuts[0]):
        height = max(len(cell) for cell in row) * 18 + 8
        if not has_one_dim:
            canvas.text(margin - 6, top + 4, str(cuts_row), "faint", "end")
        for k, cell in enumerate(row):
            x = margin + k * width
            for j, (text, sender) in enumerate(cell):
                line_height = height / len(cell)
                canvas.cell(
                    x, top + j * line_height, width, line_height, [text.replace(">", "→")], number[sender]
                )
        top += height
    if not has_one_dim:
        canvas.text(margin - 6, top + 4, str(cuts[0][-1]), "faint", "end")
    return canvas


def _draw_matrix(step: Step, itemsize: int) -> Canvas:
    """Draw a table of the bytes from rank to rank: rows send, columns receive.

    If the larger mesh has more than ``MOST_PEERS`` (32) ranks, draw sentences about the first eight receivers instead.

    Args:
        step: the step of a plan.
        itemsize: bytes of an element.
    """
    out = Canvas()
    rank_count = max(step.src.mesh.size, step.dst.mesh.size)
    if rank_count > MOST_PEERS:
        for line, rank in enumerate(step.dst.mesh.rank_list[:8]):
            incoming = pairs(step, rank)
            total = bytes_text(sum(count for _, count in incoming) * itemsize)
            peers = ranks_text([peer for peer, _ in incoming]) if incoming else "nobody"
            out.text(0, 12 + 16 * line, f"rank {rank} receives {total} from {peers}"[:120])
        out.text(0, 12 + 16 * 8, f"and {many(rank_count - 8, 'more rank')}", "faint")
        return out
    ranks, receivers = _all_ranks(step.src, step.dst), step.dst.mesh.rank_list
    counts = {(peer, rank): count * itemsize for rank in receivers for peer, count in pairs(step, rank)}
    largest_count = max(counts.values(), default=1)
    width = max(width_of(f"{largest_count:,}") + 8, 26)
    for k, rank in enumerate(ranks):
        out.text(34 + k * width + width / 2, 12, str(rank), "faint", "middle")
        out.text(28, 18 + k * 20 + 14, str(rank), "faint", "end")
    for j, sender in enumerate(ranks):
        for k, receiver in enumerate(ranks):
            count = counts.get((sender, receiver), 0)
            words = [f"{count:,}"] if count else ["·"] if sender == receiver else [""]
            pointer_text = f"rank {sender} sends {many(count, 'byte')} to rank {receiver}"
            out.cell(34 + k * width, 18 + j * 20, width, 20, words, j if count else None, pointer_text)
    return out
