"""Pictures of collective algorithms: who holds what after each round, and messages as arrows, for terminals and as figures.

As text, what is new in a step stands in brackets, and is coloured on terminals. In figures ranks are lines, time goes to the
right, a slanted arrow is a message and says its chunks. At every rank and round stand the rank's chunks: the fuller a box,
the more ranks have contributed; a frame marks what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spmdsim.collectives.facts import as_share, bound_bytes, facts_of
from spmdsim.collectives.history import History, RankState, RoundMessage, unroll
from spmdsim.collectives.instructions import name_chunks, name_runs
from spmdsim.errors import SpmdError, many
from spmdsim.figures.canvas import Canvas, fill_of, ink_of, number, width_of
from spmdsim.figures.figures import Figure, Part, Words, fact_rows, short, side_by_side
from spmdsim.figures.figures import facts_of as plain_facts
from spmdsim.tables import Table

if TYPE_CHECKING:
    from rich.text import Text

    from spmdsim.collectives import Algorithm, Schedule
    from spmdsim.collectives.facts import Counts, Facts

MOST_CHUNKS_APART = 24
"""More chunks than this are shown as a count per source."""

MOST_COLUMNS = 20
"""Ranks side by side in a terminal."""


def state_lines(story: History, index: int) -> list[str]:
    """One state with its heading: ``start``, or the round after which it is."""
    return ["start" if index == 0 else f"after round {index - 1}", *state_table(story, index)]


def message_lines(story: History) -> list[str]:
    """The messages as arrows, and what stands on the arrows."""
    reduces = story.schedule.collective.reduces
    words = f"arrows: chunk numbers, 4..7 is 4, 5, 6, 7{'; + is reduced on arrival' if reduces else ''}"
    return [words, *grid(story)]


def state_legend(schedule: Schedule) -> str:
    """Return the meaning of the words in cells."""
    if schedule.collective.reduces:
        return "cells: the ranks whose input is in the chunk, 0..2 is 0+1+2; [new]; ∑ is the sum of all ranks"
    return "cells: the rank the chunk comes from; [new]"


def state_table(story: History, index: int) -> list[str]:
    """One state as lines of text, number 0 the one before the first step: a row per rank, a column per chunk.

    A cell names the ranks whose input is in the chunk; ``∑`` is the sum of all ranks, ``·`` nothing. For
    collectives that reduce nothing it names the rank the chunk comes from. ``[...]`` is new.
    """
    state = story.states[index]
    heads, rows = _columns(story, state)
    if not heads:
        return []
    widths = [max(len(head), *(len(row[i]) for row in rows)) for i, head in enumerate(heads)]
    first = max(4, len(str(len(rows) - 1)))
    lines = ["rank".rjust(first) + "".join("  " + h.center(w) for h, w in zip(heads, widths)).rstrip()]
    for rank, row in enumerate(rows):
        cells = "".join("  " + cell.center(width) for cell, width in zip(row, widths))
        lines.append(str(rank).rjust(first) + cells.rstrip())
    return lines


def _columns(story: History, state: RankState) -> tuple[list[str], list[list[str]]]:
    cells, count = story.cells, story.schedule.chunk_count
    ranks = range(story.schedule.size)
    if len(cells) > MOST_CHUNKS_APART:
        return _by_origin(story, state)
    heads = [f"chunk {c}" if c < count else f"scratch {c // count}" for c in cells]
    if len(cells) > 4:
        heads = [str(c) if c < count else f"s{c // count}" for c in cells]
    return heads, [[_cell(story, state, rank, cell) for cell in cells] for rank in ranks]


def _cell(story: History, state: RankState, rank: int, cell: int) -> str:
    value = state.holds[rank].get(cell)
    if value is None:
        return "·"
    words = value_words(story, value)
    return f"[{words}]" if cell in state.new[rank] else words


def value_words(story: History, value: int) -> str:
    """Return a value in few letters: ``∑`` for the sum of all ranks, ``0..2+5`` for that of ranks 0, 1, 2 and 5."""
    ranks = story.contributors(value)
    if story.schedule.collective.reduces and len(ranks) == story.schedule.size > 1:
        return "∑"
    return "+".join(name_runs(ranks))


def _by_origin(story: History, state: RankState) -> tuple[list[str], list[list[str]]]:
    """Too many chunks for a column each: a column per rank they come from, with the number held."""
    size, count = story.schedule.size, story.schedule.chunk_count

    def held(rank: int, origin: int) -> str:
        mine = [c for c in state.holds[rank] if c % count * size // count == origin]
        text = _which(mine, count, size)
        return f"[{text}]" if any(c in state.new[rank] for c in mine) else text

    rows = [[held(rank, origin) for origin in range(size)] for rank in range(size)]
    word = "from" if story.schedule.collective.before in ("row", "owner") else "part"
    return [f"{word} {origin}" for origin in range(size)], rows


def _which(chunks: list[int], count: int, size: int) -> str:
    if not chunks:
        return "·"
    if count == size * size:
        return name_chunks(tuple(sorted(c % size for c in chunks))).partition(" ")[2].replace(" ", "")
    return f"{len(chunks)}"


def grid(story: History) -> list[str]:
    """Messages as arrows, ranks from left to right, rounds from top to bottom; a line says so if there are too many."""
    size = story.schedule.size
    if size > MOST_COLUMNS:
        return [f"({size} ranks are too many for a picture in a terminal; --svg draws it)"]
    width = max(6, 4 + max((len(label(story, m)) for s in story.steps for m in s), default=0))
    margin = len(f"round {len(story.steps)}") + 2
    lines = [" " * margin + "".join(str(r).ljust(width) for r in range(size)).rstrip()]
    for step, messages in enumerate(story.steps):
        title = f"round {step}".ljust(margin)
        for lane in _lanes(messages) or [[]]:
            remark = "" if messages else "  local only"
            lines.append((title + _lane(story, lane, size, width)).rstrip() + remark)
            title = " " * margin
    return lines


def label(story: History, message: RoundMessage) -> str:
    """What stands on a message's arrow: its chunks, or how many they are."""
    if story.schedule.chunk_count == 1 or not message.chunks:
        return "+" if message.reduces else ""
    words = name_chunks(message.chunks).partition(" ")[2].replace(" ", "")
    if len(words) > 7:
        words = f"{len(message.chunks)} chunks"
    return ("+" if message.reduces else "") + words


def _lanes(messages: Iterable[RoundMessage]) -> list[list[RoundMessage]]:
    """Share the messages out over lines so that no two arrows of a line overlap."""
    lanes: list[list[RoundMessage]] = []
    by_length = sorted(messages, key=lambda m: (abs(m.source - m.target), min(m.source, m.target)))
    for message in by_length:
        low, high = sorted((message.source, message.target))
        for lane in lanes:
            if all(high <= min(m[:2]) or low >= max(m[:2]) for m in lane):
                lane.append(message)
                break
        else:
            lanes.append([message])
    return lanes


def _lane(story: History, lane: Sequence[RoundMessage], size: int, width: int) -> str:
    line = list(("│" + " " * (width - 1)) * size)[: (size - 1) * width + 1]
    for message in lane:
        low, high = sorted((message.source, message.target))
        start, stop = low * width, high * width
        for i in range(start + 1, stop):
            line[i] = "┼" if i % width == 0 else "─"
        line[start] = line[stop] = "●"
        if message.target > message.source:
            line[stop - 1] = "▶"
        else:
            line[start + 1] = "◀"
        if words := label(story, message):
            spot = start + 2 + (message.target < message.source)
            line[spot : spot + len(words)] = words
    return "".join(line)


def fact_lines(facts: Facts, counted: Counts | None = None, nbytes: int = 0) -> list[str]:
    """Return the rounds, bytes and reduction of a correct schedule against their lower bounds.

    Args:
        facts: the facts of the schedule.
        counted: counts for messages of ``nbytes`` bytes; None for multiples of the message size m.
        nbytes: the message size.
    """
    verdict, bound, schedule = facts.verdict, facts.bound, facts.verdict.schedule
    moved, reduced = as_share(facts.beta), as_share(facts.gamma)
    moved_bound, reduced_bound = as_share(bound.beta), as_share(bound.gamma)
    size = ""
    if counted is not None:
        size = f": {many(nbytes, 'byte')}"
        moved, reduced = f"{counted.critical_bytes:,}", f"{counted.critical_worked_bytes:,}"
        moved_bound, reduced_bound = (f"{one:,}" for one in bound_bytes(schedule, nbytes))
    lines = [
        f"m = {schedule.collective.size_means}{size}",
        f"rounds          {facts.steps}  (lower bound {bound.steps})",
        f"critical bytes  {moved}  (lower bound {moved_bound})",
    ]
    if schedule.collective.reduces:
        order = "kept: fit" if verdict.in_order else "not kept: unfit"
        bits = "yes" if verdict.same_tree else "no"
        lines += [
            f"reduced bytes   {reduced}  (lower bound {reduced_bound})",
            f"reduction tree  depth {verdict.depth}",
            f"rank order      {order} for operators that do not commute",
        ]
        if schedule.collective.value == "sum":
            lines.append(f"same bits on all ranks: {bits}")
    lines += [f"warning: {f}" for f in verdict.findings]
    return lines


def highlighted(lines: Sequence[str]) -> Text:
    """The lines with everything in brackets in colour."""
    from rich.text import Text

    text = Text("\n".join(lines), no_wrap=True)
    text.highlight_regex(r"\[[^\]]*\]", "bold green")
    text.highlight_regex(r"[●▶◀]", "cyan")
    text.highlight_regex(r"∑", "bold magenta")
    return text


# ---------------------------------------------------------------- figures


ROW, MARGIN, TOP = 46.0, 64.0, 34.0
MOST_RANKS, MOST_CHUNKS, MOST_ARROWS, MOST_CELLS = 64, 16, 2_000, 4_000


def schedule_figure(schedule: Schedule) -> Figure:
    """Return the figure of a schedule: its messages, or, if these are too many, its counts."""
    written = partial(_words, schedule)
    if schedule.size <= MOST_RANKS:
        return replace(history_figure(unroll(schedule)), written=written)
    why = f"{schedule.size:,} ranks are too many for arrows: these are its counts"
    return replace(counts_figure(facts_of(schedule), why), written=written)


def _words(schedule: Schedule, width: int) -> list[Words]:
    """Return the states and messages of a schedule of few ranks, and its counts, as text."""
    if schedule.size > MOST_COLUMNS:
        return [schedule.name, *fact_lines(facts_of(schedule))]
    story = unroll(schedule)
    words: list[Words] = [schedule.name, *([state_legend(schedule)] if story.states else [])]
    words += [highlighted([*state_lines(story, index), ""]) for index in range(len(story.states))]
    words.append(highlighted([*message_lines(story), ""]))
    return words + ([] if story.findings else [*fact_lines(facts_of(schedule))])


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
    table = Table(("count", "of the busiest rank"), rows)
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
    arrows = ["a message, in its first chunk's colour, with its chunks; 4..7 is 4, 5, 6, 7"]
    if reduces:
        boxes.insert(1, "the fuller, the more ranks are in it")
        boxes.append("in words: ranks whose input is in it; 0..2 is 0+1+2, ∑ all ranks")
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
