"""Figures of collective algorithms: space and time, with chunk numbers; who holds what after each round; counts and bounds.

Ranks are lines, time goes to the right, a slanted arrow is a message and says its chunks. At every rank and round stand the
rank's chunks: the fuller a box, the more ranks have contributed; a frame marks what is new.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spmdsim.collectives.facts import facts_of
from spmdsim.collectives.history import History, RoundMessage, unroll
from spmdsim.collectives.instructions import name_chunks
from spmdsim.draw.canvas import Canvas, fill_of, ink_of, number, width_of
from spmdsim.draw.figures import FactTable, Figure, Part, fact_rows, short, side_by_side
from spmdsim.draw.figures import facts_of as plain_facts
from spmdsim.draw.schedule_text import fact_lines, label, value_words
from spmdsim.errors import SpmdError

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule
    from spmdsim.collectives.facts import Facts

ROW, MARGIN, TOP = 46.0, 64.0, 34.0
MOST_RANKS, MOST_CHUNKS, MOST_ARROWS, MOST_CELLS = 64, 16, 2_000, 4_000


def schedule_figure(schedule: Schedule) -> Figure:
    """A schedule; of one with too many ranks or messages, its counts."""
    if schedule.size <= MOST_RANKS:
        return history_figure(unroll(schedule))
    why = f"{schedule.size:,} ranks are too many for arrows: these are its counts"
    return counts_figure(facts_of(schedule), why)


def history_figure(story: History) -> Figure:
    """A schedule unrolled, right or wrong."""
    arrows = sum(map(len, story.steps))
    if arrows > MOST_ARROWS:
        why = f"{arrows:,} messages are too many for arrows: these are its counts"
        return counts_figure(facts_of(story.schedule), why)
    notes = [story.schedule.algorithm.about] if story.schedule.algorithm.about else []
    parts: list[Part] = [space_time(story), _legend(story)]
    if 0 < len(story.cells) * story.schedule.size * len(story.states) <= MOST_CELLS:
        parts.append(_tables(story))
    if story.findings:
        notes += [f"wrong: {finding}" for finding in story.findings[:5]]
    else:
        notes += fact_lines(facts_of(story.schedule))
    return Figure(story.schedule.name, tuple(parts), tuple(notes))


def algorithm_figure(algorithm: Algorithm) -> Figure:
    """What an algorithm says of itself, and, where four ranks can run it, its picture on them."""
    from spmdsim.collectives import make_schedule

    told = plain_facts(algorithm)
    if algorithm.formula:
        formula = plain_facts(algorithm.formula).items()
        told["formula"] = ", ".join(f"{key} {value}" for key, value in formula if value)
    table = fact_rows((key, short(value)) for key, value in told.items() if value)
    try:
        drawn = schedule_figure(make_schedule(algorithm, 4))
    except SpmdError:
        return Figure(f"algorithm {algorithm.name}", (table,))
    return Figure(f"algorithm {algorithm.name}, on four ranks", (*drawn.parts, table), drawn.notes)


def counts_figure(facts: Facts, why: str = "") -> Figure:
    """The counts of a schedule beside their bounds."""
    counted = ("rounds", "critical", "reduced")
    lines = fact_lines(facts)
    rows = tuple((line[:16].strip(), line[16:].strip()) for line in lines if line.startswith(counted))
    rest = [line for line in lines if not line.startswith(counted)]
    table = FactTable(("count", "of the busiest rank"), rows)
    return Figure(facts.verdict.schedule.name, (table,), tuple(filter(None, (why, *rest))))


def _cells(story: History) -> list[int]:
    own = [c for c in story.cells if c < story.schedule.chunk_count]
    return own if 0 < len(own) <= MOST_CHUNKS else []


def space_time(story: History) -> Canvas:
    """Ranks from top to bottom, rounds from left to right."""
    out, cells = Canvas(), _cells(story)
    size, steps = story.schedule.size, len(story.steps)
    wide = 20 if len(cells) <= 8 else 9
    boxes = max(wide * len(cells) + 10, 24)
    column = boxes + 110
    for step in range(steps):
        out.text(MARGIN + step * column + boxes + 55, 14, f"round {step}", "faint", "middle")
    end = MARGIN + steps * column + boxes
    for rank in range(size):
        y = TOP + rank * ROW
        out.text(0, y + 4, f"rank {rank}")
        out.line(MARGIN, y, end, y)
    for step, messages in enumerate(story.steps):
        x = MARGIN + step * column + boxes
        taken: list[tuple[float, float]] = []
        for draw in (_arrow, partial(_label, taken=taken)):  # words above all arrows
            for message in messages:
                draw(out, story, message, x, x + column - boxes - 4)
    for index in range(len(story.states)):
        for rank in range(size):
            _state(out, story, cells, index, rank, MARGIN + index * column + 4, TOP + rank * ROW - 9, wide)
    out.reach(end + 8, TOP + size * ROW - 16)
    return out


def _arrow(out: Canvas, story: History, message: RoundMessage, x1: float, x2: float) -> None:
    source, target, numbers, reduces = message
    count = story.schedule.chunk_count
    ink = ink_of((numbers[0] if numbers else 0) % count) if count > 1 else ""
    dashed = story.schedule.collective.reduces and not reduces
    out.arrow(x1, TOP + source * ROW, x2, TOP + target * ROW, ink, _told(message), dashed)


def _told(message: RoundMessage) -> str:
    reduced = ", reduced" if message.reduces else ""
    return f"{message.source} → {message.target}: {name_chunks(message.chunks)}{reduced}"


def _label(
    out: Canvas, story: History, message: RoundMessage, x1: float, x2: float, taken: list[tuple[float, float]]
) -> None:
    """A message's chunks beside its arrow, where no other words of the round are."""
    source, target, *_ = message
    if not (words := label(story, message)):
        return
    half = width_of(words) / 2 + 2
    # Near its beginning, if there is room: in the middle arrows cross.
    spots = [
        (x1 + share * (x2 - x1), TOP + (source + share * (target - source)) * ROW)
        for share in (0.26, 0.74, 0.38, 0.62, 0.5)
    ]
    free = (
        spot for spot in spots if all(abs(spot[0] - x) > 2 * half or abs(spot[1] - y) > 13 for x, y in taken)
    )
    x, y = next(free, spots[0])
    taken.append((x, y))
    out.parts.append(
        f'<rect class="ground" x="{number(x - half)}" y="{number(y - 7)}" width="{number(2 * half)}" height="13" rx="3"/>'
    )
    out.text(x, y + 4, words, anchor="middle", title=_told(message))


def _state(
    out: Canvas, story: History, cells: list[int], index: int, rank: int, x: float, y: float, wide: float
) -> None:
    state, size = story.states[index], story.schedule.size
    for k, cell in enumerate(cells):
        left, value = x + wide * k, state.holds[rank].get(cell)
        told = f"rank {rank}, chunk {cell}: nothing"
        fresh = cell in state.new[rank]
        letters = "var(--faint)"
        out.parts.append(
            f'<rect class="open" x="{number(left)}" y="{number(y)}" width="{wide - 1:.0f}" height="18"/>'
        )
        if value is not None:
            share = len(story.contributors(value)) / size if story.schedule.collective.reduces else 1.0
            high = max(3.0, 18 * share)
            out.bar(left, y + 18 - high, wide - 1, high, fill_of(cell)[0])
            told = f"rank {rank}, chunk {cell}: {value_words(story, value)}"
            letters = fill_of(cell)[1] if share > 0.7 else "var(--ink)"
        edge = f'class="edge" stroke-width="{2 if fresh else 0.5}"'
        out.parts.append(
            f'<rect {edge} x="{number(left)}" y="{number(y)}" width="{wide - 1:.0f}" height="18"><title>{told}</title></rect>'
        )
        if wide >= 20 and letters == "var(--ink)":  # half of it lies on the ground: with a rim
            out.parts.append(
                f'<text x="{number(left + (wide - 1) / 2)}" y="{number(y + 13)}" text-anchor="middle" '
                f'style="paint-order:stroke;stroke:var(--ground);stroke-width:3px">{cell}</text>'
            )
        elif wide >= 20:
            out.text(left + (wide - 1) / 2, y + 13, str(cell), anchor="middle", colour=letters, title=told)


def _legend(story: History) -> Canvas:
    """What boxes and arrows mean, in lines that fit a telephone."""
    out, reduces = Canvas(), story.schedule.collective.reduces
    boxes = ["a chunk, with its number", "a thick frame: new in this round"]
    arrows = ["a message, in its first chunk's colour"]
    if reduces:
        boxes.insert(1, "the fuller, the more ranks are in it")
        arrows += ["+ and a full line: reduced on arrival", "dashed: copied"]
    out.parts.append('<rect class="open" x="0" y="0" width="19" height="18"/>')
    out.bar(0, 9, 19, 9, fill_of(0)[0])
    out.arrow(0, 14 + 16 * len(boxes), 22, 14 + 16 * len(boxes), ink_of(0))
    for line, said in enumerate((*boxes, *arrows)):
        out.text(28, 13 + 16 * line + 5 * (line >= len(boxes)), said)
    return out


def _tables(story: History) -> Canvas:
    """Who holds what after each round, in words."""
    drawings, count = [], story.schedule.chunk_count
    for index, state in enumerate(story.states):
        one = Canvas()
        words = [
            [value_words(story, held[cell]) if cell in held else "·" for cell in story.cells]
            for held in state.holds
        ]
        wide = max(28.0, max(width_of(text) for row in words for text in row) + 8)
        for k, cell in enumerate(story.cells):
            name = str(cell) if cell < count else f"s{cell // count}"
            one.text(30 + k * wide + wide / 2, 12, name, "faint", "middle")
        for rank, row in enumerate(words):
            one.text(24, 18 + rank * 20 + 14, str(rank), "faint", "end")
            for k, (cell, text) in enumerate(zip(story.cells, row)):
                index_of = cell if cell in state.new[rank] else None
                told = f"rank {rank}, chunk {cell}: {text}"
                one.cell(30 + k * wide, 18 + rank * 20, wide, 20, [text], index_of, told)
        drawings.append(("at the start: rank by chunk" if index == 0 else f"after round {index - 1}", one))
    return side_by_side(drawings)
