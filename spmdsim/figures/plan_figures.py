"""Redistributions: who sends which box to whom, as text and as a drawing; a step, and a plan with its bound and alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """Return a remark about boxes that are addends, or nothing."""
    reduction = partial_reduction(plan.src)
    return (
        "" if reduction is None else f"; what moves are {reduction.noun}s: the {reduction.op} stays pending"
    )


class SentBox(NamedTuple):
    """A box that goes from one rank to another."""

    sender: int
    receiver: int
    box: Bounds


def transfers(
    src: Layout, dst: Layout, shape: Sequence[int], ranks: Sequence[int] | None = None
) -> list[SentBox]:
    """All boxes of the direct exchange, or those of some receivers."""
    receivers = sorted(dst.mesh.rank_list) if ranks is None else ranks
    return [
        SentBox(transfer.peer, rank, transfer.box)
        for rank in receivers
        for transfer in receives(src, dst, shape, rank)
    ]


def transfers_picture(src: Layout, dst: Layout, shape: Sequence[int]) -> Picture | None:
    """The picture of a direct exchange of one or two dims that reduces nothing, or None where there is too much to draw."""
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
    boxes = transfers(src, dst, shape, None if rank is None else (rank,))
    lines = [
        f"{sender} keeps {box_text(box)}" if sender == receiver else f"{sender} > {receiver} {box_text(box)}"
        for sender, receiver, box in boxes[:MOST_LISTED]
    ]
    if len(boxes) > MOST_LISTED:
        lines.append(f".. and {len(boxes) - MOST_LISTED} more")
    return lines


def _texts(sent: Sequence[tuple[int, int, Bounds]], cell: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """What happens to one cell: texts with the sending rank."""
    return [
        (str(sender) if sender == receiver else f"{sender}>{receiver}", sender)
        for sender, receiver, box in sent
        if all(start <= low and high <= stop for (start, stop), (low, high) in zip(box, cell))
    ]


def _lines(
    cells: list[list[list[tuple[str, int]]]], cuts: list[list[int]], number: dict[int, int], ndim: int
) -> Iterator[tuple[GridCell, ...]]:
    """The grid with its borders, the row borders' indices on the left and the column borders' above."""
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
            parts = [GridCell(" " * margin + "|")]
            for cell in row:
                text, sender = cell[line] if line < len(cell) else ("", -1)
                parts += [GridCell(f" {text}".ljust(width), number.get(sender)), GridCell("|")]
            yield tuple(parts)
    last = str(cuts[0][-1]) if ndim == 2 else ""
    yield (GridCell(last.rjust(margin - 1) + " " + rule),)


MOST_PEERS = 32
"""Ranks along an edge of a table of senders and receivers."""


def step_figure(step: Step, itemsize: int = 4) -> Figure:
    """One collective: bytes from each sender to each receiver."""
    over = f" over {','.join(step.axes)}" if step.axes else ""
    shape = "x".join(map(str, step.shape)) or "a scalar"
    title = f"{step.collective}{over}: {step.src.short()} -> {step.dst.short()} of {shape}"
    note = f"bytes, with {itemsize} for an element; rows send, columns receive"
    return Figure(title, (_matrix(step, itemsize),), (note,))


def plan_figure(plan: Plan) -> Figure:
    """A plan: its way, its steps, who sends what to whom, what was considered, and the bound of each."""
    shape = "x".join(map(str, plan.shape)) or "scalar"
    parts: list[Part] = [_way(plan)]
    if plan.steps:
        parts.append(steps_table(plan))
    if plan.src.partial == plan.dst.partial and plan.to_shape is None:
        boxes = _transfers(plan)
        parts += [boxes] if boxes is not None else []
    ranks = max(plan.src.mesh.size, plan.dst.mesh.size)
    if ranks <= MOST_PEERS:
        moving = [step for step in plan.steps if any(pairs(step, rank) for rank in step.dst.mesh.rank_list)]
        tables = [
            (f"{number}. {s.collective}: bytes from row to column", _matrix(s, plan.itemsize))
            for number, s in enumerate(moving, 1)
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
        lambda _: _words(plan),
    )


def _words(plan: Plan) -> list[Words]:
    """Return the plan's table, and the text picture of its boxes if that is small."""
    parts: list[Words] = [*plan_parts(plan)]
    if plan.src.partial == plan.dst.partial and plan.to_shape is None:
        picture = transfers_picture(plan.src, plan.dst, plan.shape)
        if picture is not None:
            parts.append(f"\nwho sends what to whom (sender>receiver){moving_words(plan)}:")
            parts.append(picture.rich())
    return parts


def _way(plan: Plan) -> Canvas:
    """The layouts that the tensor goes through, with the collective on each arrow."""
    out, x = Canvas(), 0.0
    states = plan.states if plan.steps else (plan.src, plan.dst)
    high = 54 if any(map(partial_reduction, states)) else 40
    for number, layout in enumerate(states):
        words, reduction = [layout.short() or "scalar", str(layout.mesh)], partial_reduction(layout)
        words += [] if reduction is None else [f"{reduction.result_words} {reduction.noun}s"]
        wide = max(map(width_of, words)) + 20
        out.cell(x, 0, wide, high, words, number, str(layout), hatched=reduction is not None)
        x += wide
        if number < len(states) - 1:
            step = plan.steps[number] if number < len(plan.steps) else None
            name = "nothing to do" if step is None else step.collective
            size = "" if step is None else bytes_text(plan.prices[number][0] * plan.itemsize)
            room = max(width_of(name), width_of(size)) + 26
            out.arrow(x + 4, 20, x + room - 4, 20)
            out.text(x + room / 2, 14, name, anchor="middle")
            out.text(x + room / 2, 36, size, "faint", "middle")
            x += room
    return out


def _transfers(plan: Plan) -> Canvas | None:
    """The tensor cut at all borders, each cell in its sender's colour with who gets it from whom."""
    try:
        grid = cut_cells(plan.src, plan.dst, plan.shape)
    except SpmdError:
        return None
    if grid is None:
        return None
    cells, cuts, number = grid
    wide = max(width_of(text) for row in cells for cell in row for text, _ in cell) + 18
    margin = max(width_of(str(edge)) for edge in cuts[0]) + 8
    out = Canvas()
    legend = "who sends which box: 3→0 goes from rank 3 to rank 0; a number alone stays; colours are senders"
    out.text(0, 12, legend + moving_words(plan), "faint")
    top = 36.0
    flat = len(plan.shape) == 1
    for k, edge in enumerate(cuts[1]):
        out.text(margin + k * wide, top - 6, str(edge), "faint", "middle" if k else "start")
    for row, cuts_row in zip(cells, cuts[0]):
        high = max(len(cell) for cell in row) * 18 + 8
        if not flat:
            out.text(margin - 6, top + 4, str(cuts_row), "faint", "end")
        for k, cell in enumerate(row):
            x = margin + k * wide
            for j, (text, sender) in enumerate(cell):
                part = high / len(cell)
                out.cell(x, top + j * part, wide, part, [text.replace(">", "→")], number[sender])
        top += high
    if not flat:
        out.text(margin - 6, top + 4, str(cuts[0][-1]), "faint", "end")
    return out


def _matrix(step: Step, itemsize: int) -> Canvas:
    """Bytes from rank to rank, rows send and columns receive; of many ranks a sample of receivers in words."""
    out = Canvas()
    ranks = sorted({*step.src.mesh.rank_list[:MOST_PEERS], *step.dst.mesh.rank_list[:MOST_PEERS]})
    every = max(step.src.mesh.size, step.dst.mesh.size)
    if every > MOST_PEERS:
        for line, rank in enumerate(step.dst.mesh.rank_list[:8]):
            incoming = pairs(step, rank)
            total = bytes_text(sum(count for _, count in incoming) * itemsize)
            peers = ranks_text([peer for peer, _ in incoming]) if incoming else "nobody"
            out.text(0, 12 + 16 * line, f"rank {rank} receives {total} from {peers}"[:120])
        out.text(0, 12 + 16 * 8, f"and {many(every - 8, 'more rank')}", "faint")
        return out
    receivers = step.dst.mesh.rank_list
    counts = {(peer, rank): count * itemsize for rank in receivers for peer, count in pairs(step, rank)}
    most = max(counts.values(), default=1)
    wide = max(width_of(f"{most:,}") + 8, 26)
    for k, rank in enumerate(ranks):
        out.text(34 + k * wide + wide / 2, 12, str(rank), "faint", "middle")
        out.text(28, 18 + k * 20 + 14, str(rank), "faint", "end")
    for j, sender in enumerate(ranks):
        for k, receiver in enumerate(ranks):
            count = counts.get((sender, receiver), 0)
            words = [f"{count:,}"] if count else ["·"] if sender == receiver else [""]
            told = f"rank {sender} sends {many(count, 'byte')} to rank {receiver}"
            out.cell(34 + k * wide, 18 + j * 20, wide, 20, words, j if count else None, told)
    return out
