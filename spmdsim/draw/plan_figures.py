"""Figures of redistributions: who sends what to whom in a step, and a plan with its steps, bound and alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmdsim.draw.canvas import Canvas, width_of
from spmdsim.draw.figures import FactTable, Figure, Part, side_by_side
from spmdsim.draw.transfer_picture import cut_cells
from spmdsim.errors import SpmdError
from spmdsim.layout.explain import ranks_text
from spmdsim.redistribution.plan_table import best_of_each_kind, bytes_text, plan_dict, seconds_text
from spmdsim.trace.event_table import pairs

if TYPE_CHECKING:
    from spmdsim.core.step import Step
    from spmdsim.redistribution.planner import Plan

MOST_PEERS = 32
"""Ranks along an edge of a table of senders and receivers."""


def step_figure(step: Step, itemsize: int = 4) -> Figure:
    """One collective: bytes from each sender to each receiver."""
    over = f" over {','.join(step.axes)}" if step.axes else ""
    shape = "x".join(map(str, step.shape)) or "a scalar"
    title = f"{step.collective}{over}: {step.src.short()} -> {step.dst.short()} of {shape}"
    return Figure(
        title,
        (_matrix(step, itemsize),),
        (f"bytes, with {itemsize} for an element; rows send, columns receive",),
    )


def plan_figure(plan: Plan) -> Figure:
    """A plan: its way, its steps, who sends what to whom, what was considered, and the bound of each."""
    shape = "x".join(map(str, plan.shape)) or "scalar"
    facts = plan_dict(plan)
    parts: list[Part] = [_way(plan)]
    if plan.steps:
        parts.append(_steps(plan, facts))
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
    parts.append(_considered(plan))
    machine = "by bytes alone" if plan.machine is None else f"on {plan.machine.name}"
    notes = (
        f"the busiest rank receives {bytes_text(plan.max_nbytes)}, at least {bytes_text(plan.max_lower_bound)} are needed; "
        f"all ranks {bytes_text(plan.total_nbytes)}, at least {bytes_text(plan.total_lower_bound)}",
        f"{seconds_text(plan.seconds)} {machine}; a rank holds {bytes_text(plan.peak_nbytes)} at most",
    )
    return Figure(f"plan for {plan.dtype}[{shape}]: {plan.src} -> {plan.dst}", tuple(parts), notes)


def _way(plan: Plan) -> Canvas:
    """The layouts that the tensor goes through, with the collective on each arrow."""
    out, x = Canvas(), 0.0
    states = plan.states if plan.steps else (plan.src, plan.dst)
    for number, layout in enumerate(states):
        words = [layout.short() or "scalar", str(layout.mesh)]
        wide = max(map(width_of, words)) + 20
        out.cell(x, 0, wide, 40, words, number, str(layout))
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


def _steps(plan: Plan, facts: dict[str, list[dict[str, object]]]) -> FactTable:
    rows = []
    for number, (step, one) in enumerate(zip(plan.steps, facts["steps"]), 1):
        over = ",".join(step.axes) or "-"
        sizes = [
            bytes_text(float(str(one[key]))) for key in ("max_nbytes", "max_sent_nbytes", "total_nbytes")
        ]
        rows.append(
            (
                str(number),
                step.collective,
                over,
                *sizes,
                str(one["messages"]),
                seconds_text(float(str(one["seconds"]))),
            )
        )
    columns = ("step", "collective", "over", "received", "sent", "in all", "messages", "time")
    return FactTable(columns, tuple(rows), "steps; bytes of the busiest rank", (3, 4, 5, 6, 7))


def _considered(plan: Plan) -> FactTable:
    rows = []
    for one in best_of_each_kind(plan.alternatives):
        way = " + ".join(step.collective for step in one.steps) or "nothing"
        taken = "taken" if one.kind == plan.kind else "" if one.allowed else "holds too much in between"
        rows.append(
            (one.kind, way, bytes_text(one.received * plan.itemsize), seconds_text(one.seconds), taken)
        )
    rows.append(("lower bound", "", bytes_text(plan.max_lower_bound), "", ""))
    return FactTable(
        ("way", "steps", "received", "time", ""),
        tuple(rows),
        "considered, with the least that is possible",
        (2, 3),
    )


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
    out.text(
        0,
        12,
        "who sends which box: 3→0 goes from rank 3 to rank 0; a number alone stays; colours are senders",
        "faint",
    )
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
            got = pairs(step, rank)
            total = bytes_text(sum(count for _, count in got) * itemsize)
            peers = ranks_text([peer for peer, _ in got]) if got else "nobody"
            out.text(0, 12 + 16 * line, f"rank {rank} receives {total} from {peers}"[:120])
        out.text(0, 12 + 16 * 8, f"and {every - 8:,} more ranks", "faint")
        return out
    counts = {
        (peer, rank): count * itemsize
        for rank in step.dst.mesh.rank_list
        for peer, count in pairs(step, rank)
    }
    most = max(counts.values(), default=1)
    wide = max(width_of(f"{most:,}") + 8, 26)
    for k, rank in enumerate(ranks):
        out.text(34 + k * wide + wide / 2, 12, str(rank), "faint", "middle")
        out.text(28, 18 + k * 20 + 14, str(rank), "faint", "end")
    for j, sender in enumerate(ranks):
        for k, receiver in enumerate(ranks):
            count = counts.get((sender, receiver), 0)
            words = [f"{count:,}"] if count else ["·"] if sender == receiver else [""]
            told = f"rank {sender} sends {count:,} bytes to rank {receiver}"
            out.cell(
                34 + k * wide, 18 + j * 20, wide, 20, words, ranks.index(sender) if count else None, told
            )
    return out
