"""Draw collective algorithms: the chunks of each rank after each round, and messages as arrows; as text and as figures.

In text, chunks that are new in a round are in brackets, and coloured on terminals. In figures ranks are lines and time
goes to the right. A slanted arrow is a message with its chunks. A box at a rank and round is a chunk: the fuller the
box, the more ranks have contributed; a thick frame marks a new chunk. A story is the :class:`History` of a schedule:
the messages of each round, and the state (the chunks of all ranks) after it. A cell of a state is the number of a
chunk, or of a copy of it in scratch memory.
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
from spmdsim.figures.figures import Figure, Part, Words, fact_rows, shorten_value, side_by_side
from spmdsim.figures.figures import list_fields as plain_facts
from spmdsim.tables import Table

if TYPE_CHECKING:
    from rich.text import Text

    from spmdsim.collectives import Algorithm, Schedule
    from spmdsim.collectives.facts import Counts, Facts

MOST_CHUNKS_APART = 24
"""Largest number of chunks with a column each; more chunks are counted per source."""

MOST_COLUMNS = 20
"""Largest number of ranks side by side in text."""


def state_lines(story: History, index: int) -> list[str]:
    """Return the lines of one state below a heading: "start" for state 0, else "after round …"."""
    return ["start" if index == 0 else f"after round {index - 1}", *state_table(story, index)]


def message_lines(story: History) -> list[str]:
    """Return a legend, and the lines of all messages as arrows."""
    return [message_legend(story.schedule), *arrow_lines(story)]


def message_legend(schedule: Schedule) -> str:
    """Return a line that explains the arrows of messages."""
    reduces = schedule.collective.reduces
    return f"arrows: chunk numbers, 4..7 is 4, 5, 6, 7{'; + is reduced on arrival' if reduces else ''}"


def state_legend(schedule: Schedule) -> str:
    """Return a line that explains the cells of a state."""
    if schedule.collective.reduces:
        return "cells: the ranks whose input is in the chunk, 0..2 is 0+1+2; [new]; ∑ is the sum of all ranks"
    return "cells: the rank the chunk comes from; [new]"


def state_table(story: History, index: int) -> list[str]:
    """Return the state after some rounds as lines of text: a row per rank, a column per chunk.

    A cell names the ranks whose input is in the chunk: "0+2" is the sum of ranks 0 and 2, ``∑`` the sum of all ranks,
    ``·`` nothing. In collectives without reduction a cell names the rank from which the chunk comes. ``[0+2]`` is new
    in this round. For example, after the first round of a ring all_reduce, two of the lines are::

        rank  chunk 0  chunk 1  chunk 2
           0     0      [0+2]      0

    The list is empty if no rank has a chunk at any time.

    Args:
        story: the executed schedule.
        index: number of the state; 0 is the state before the first round.
    """
    state = story.states[index]
    heads, rows = _state_columns(story, state)
    if not heads:
        return []
    widths = [max(len(head), *(len(row[i]) for row in rows)) for i, head in enumerate(heads)]
    first = max(4, len(str(len(rows) - 1)))
    lines = []
    for label, row in (("rank", heads), *((str(rank), row) for rank, row in enumerate(rows))):
        cells = "".join("  " + cell.center(width) for cell, width in zip(row, widths))
        lines.append(label.rjust(first) + cells.rstrip())
    return lines


def _state_columns(story: History, state: RankState) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns of a state, and for each rank the texts of its row.

    There is one column per chunk, and one per copy of a chunk in scratch memory. Up to four columns are headed "chunk
    3" and "scratch 1"; more are headed "3" and "s1". More than ``MOST_CHUNKS_APART`` (24) columns are merged into one
    per source rank; see :func:`_columns_by_origin`.

    Args:
        story: the executed schedule.
        state: one of its states.
    """
    cells, count = story.cells, story.schedule.chunk_count
    ranks = range(story.schedule.size)
    if len(cells) > MOST_CHUNKS_APART:
        return _columns_by_origin(story, state)
    if len(cells) > 4:
        heads = [str(c) if c < count else f"s{c // count}" for c in cells]
    else:
        heads = [f"chunk {c}" if c < count else f"scratch {c // count}" for c in cells]
    return heads, [[_cell_text(story, state, rank, cell) for cell in cells] for rank in ranks]


def _cell_text(story: History, state: RankState, rank: int, cell: int) -> str:
    """Return the text of a cell of a rank: "·" if it is empty, in brackets if it is new."""
    value = state.holds[rank].get(cell)
    if value is None:
        return "·"
    words = value_words(story, value)
    return f"[{words}]" if cell in state.new[rank] else words


def value_words(story: History, value: int) -> str:
    """Return the ranks that contributed to a value, such as ``0..2+5`` for ranks 0, 1, 2 and 5.

    The sum of all ranks is ``∑``.
    """
    ranks = story.contributors(value)
    if story.schedule.collective.reduces and len(ranks) == story.schedule.size > 1:
        return "∑"
    return "+".join(name_runs(ranks))


def _columns_by_origin(story: History, state: RankState) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows as ``_state_columns`` does, with one column per source rank.

    The chunks of a vector are divided evenly between the sources, in order. A cell has the text of the source's chunks
    on a rank (see :func:`_chunks_text`), in brackets if one of them is new. Columns are headed "from r" in collectives
    in which these chunks are the input of rank r, else "part r".

    Args:
        story: the executed schedule.
        state: one of its states.
    """
    size, count = story.schedule.size, story.schedule.chunk_count

    def cell_text(rank: int, origin: int) -> str:
        chunks = [c for c in state.holds[rank] if c % count * size // count == origin]
        text = _chunks_text(chunks, count, size)
        return f"[{text}]" if any(c in state.new[rank] for c in chunks) else text

    rows = [[cell_text(rank, origin) for origin in range(size)] for rank in range(size)]
    word = "from" if story.schedule.collective.before in ("row", "owner") else "part"
    return [f"{word} {origin}" for origin in range(size)], rows


def _chunks_text(chunks: list[int], count: int, size: int) -> str:
    """Return text for chunks of one source rank: how many they are, or "·" if there are none.

    If there is a chunk for each pair of ranks, with the number ``source * size + target``, return the targets instead,
    such as "0..2" or "0,2" (see `name_runs`).
    """
    if not chunks:
        return "·"
    if count == size * size:
        return ",".join(name_runs(sorted(c % size for c in chunks)))
    return f"{len(chunks)}"


def arrow_lines(story: History) -> list[str]:
    """Return messages as lines of arrows: ranks from left to right, rounds downwards.

    The first line has the rank numbers. For example, a round in which rank 0 sends chunk 2 to rank 1, which adds it, is ``round 0  ●─+2─▶●``. A round has
    several lines if arrows overlap. A round without messages has "local only". For more than ``MOST_COLUMNS`` (20)
    ranks, the result is one line that says so. ``story`` is the executed schedule.
    """
    size = story.schedule.size
    if size > MOST_COLUMNS:
        return [f"({size} ranks are too many for a picture in a terminal; --svg draws it)"]
    labels = [arrow_label(story, message) for messages in story.steps for message in messages]
    width = max(6, 4 + max(map(len, labels), default=0))
    margin = len(f"round {len(story.steps)}") + 2
    lines = [" " * margin + "".join(str(r).ljust(width) for r in range(size)).rstrip()]
    for step, messages in enumerate(story.steps):
        title = f"round {step}".ljust(margin)
        for lane in _assign_lanes(messages) or [[]]:
            remark = "" if messages else "  local only"
            lines.append((title + _lane_text(story, lane, size, width)).rstrip() + remark)
            title = " " * margin
    return lines


def arrow_label(story: History, message: RoundMessage) -> str:
    """Return the text on the arrow of a message: its chunks, after "+" if they are reduced.

    Examples are "+4..7" and "1,3" (see `name_runs`). If the chunks take more than seven characters, the text says how
    many they are, such as "12 chunks" or "+12 chunks". If the schedule has a single chunk, or the message has none, the
    text is "+" or "".

    Args:
        story: the executed schedule.
        message: one of its messages.
    """
    if story.schedule.chunk_count == 1 or not message.chunks:
        return "+" if message.reduces else ""
    words = ",".join(name_runs(message.chunks))
    if len(words) > 7:
        words = f"{len(message.chunks)} chunks"
    return ("+" if message.reduces else "") + words


def _assign_lanes(messages: Iterable[RoundMessage]) -> list[list[RoundMessage]]:
    """Distribute a round's messages over lanes: text lines in which no two arrows overlap.

    Short arrows come first; each gets the first lane in which it fits. Arrows may meet at a rank: messages 0 to 1, 1 to
    2 and 2 to 0 need two lanes, the second one for the long arrow. No messages give [].
    """
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


def _lane_text(story: History, lane: Sequence[RoundMessage], size: int, width: int) -> str:
    """Return one line of arrows for the messages of a lane.

    An arrow is a line between two dots, with its head at the receiver and its label at the left end, such as
    ``●─+2─▶●``. A rank without an arrow is ``│``, and an arrow crosses it as ``┼``.

    Args:
        story: the executed schedule.
        lane: messages whose arrows do not overlap.
        size: number of ranks.
        width: number of characters per rank, at least 4 more than the longest label.
    """
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
        if words := arrow_label(story, message):
            spot = start + 2 + (message.target < message.source)
            line[spot : spot + len(words)] = words
    return "".join(line)


def fact_lines(facts: Facts, counted: Counts | None = None, nbytes: int = 0) -> list[str]:
    """Return lines with rounds, bytes and reductions of a correct schedule, and lower bounds.

    For example, a line is "rounds          4  (lower bound 2)". Critical bytes are the sum over the rounds of the most
    bytes that one rank sends or receives. Lines on reductions are left out if the collective does not reduce. Warnings
    come last.

    Args:
        facts: the facts of the schedule.
        counted: counts for messages of ``nbytes`` bytes; None to write the bytes as multiples of the message size m.
        nbytes: the message size; used only with ``counted``.
    """
    verdict, bound, schedule = facts.verdict, facts.bound, facts.verdict.schedule
    moved, reduced = as_share(facts.beta), as_share(facts.gamma)
    moved_bound, reduced_bound = as_share(bound.beta), as_share(bound.gamma)
    size = ""
    if counted is not None:
        size = f": {many(nbytes, 'byte')}"
        moved, reduced = f"{counted.critical_bytes:,}", f"{counted.critical_worked_bytes:,}"
        moved_bound, reduced_bound = (f"{nbytes_bound:,}" for nbytes_bound in bound_bytes(schedule, nbytes))
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


def highlight(lines: Sequence[str]) -> Text:
    """Return lines as one ``rich`` text with colours for brackets, arrows and sums.

    The lines are not changed otherwise, and are never wrapped.
    """
    from rich.text import Text

    text = Text("\n".join(lines), no_wrap=True)
    text.highlight_regex(r"\[[^\]]*\]", "bold green")
    text.highlight_regex(r"[●▶◀]", "cyan")
    text.highlight_regex(r"∑", "bold magenta")
    return text


# ---------------------------------------------------------------- figures


ROW, MARGIN, TOP = 46.0, 64.0, 34.0
MOST_RANKS, MOST_CHUNKS, MOST_ARROWS = 64, 16, 2_000
MOST_BOXES, MOST_CELLS = 2_400, 1_200
"""Largest numbers of chunks of all ranks in all states: as boxes, and in tables. More would make the picture too large."""


def schedule_figure(schedule: Schedule) -> Figure:
    """Draw the messages and chunks of a schedule, or its counts for many ranks.

    Many are more than ``MOST_RANKS`` (64).

    Raises:
        ScheduleError: If the schedule is wrong and has many ranks. A wrong one of few ranks is drawn.
    """
    written = partial(_schedule_words, schedule)
    if schedule.size <= MOST_RANKS:
        return replace(history_figure(unroll(schedule)), written=written)
    why = f"{schedule.size:,} ranks are too many for arrows: these are its counts"
    return replace(counts_figure(facts_of(schedule), why), written=written)


def _schedule_words(schedule: Schedule, width: int) -> list[Words]:
    """Return the text of a schedule: its states, messages and counts.

    A schedule of more than ``MOST_COLUMNS`` (20) ranks has only its counts. A wrong one has no counts.
    """
    if schedule.size > MOST_COLUMNS:
        return [schedule.name, *fact_lines(facts_of(schedule))]
    story = unroll(schedule)
    words: list[Words] = [schedule.name, *([state_legend(schedule)] if story.states else [])]
    words += [highlight([*state_lines(story, index), ""]) for index in range(len(story.states))]
    words.append(highlight([*message_lines(story), ""]))
    return words + ([] if story.findings else [*fact_lines(facts_of(schedule))])


def history_figure(story: History) -> Figure:
    """Draw a schedule round by round, also one with mistakes.

    * At most ``MOST_ARROWS`` (2,000) messages: arrows, a legend, and a table for each state. The tables are left out if
      they have more than ``MOST_CELLS`` (1,200) values together.
    * More messages: the figure of :func:`counts_figure` instead.

    Notes have the counts of a correct schedule, or the first five errors of a wrong one.

    Args:
        story: the executed schedule.

    Raises:
        ScheduleError: If the schedule is wrong and has too many messages.
    """
    arrows = sum(map(len, story.steps))
    if arrows > MOST_ARROWS:
        why = f"{arrows:,} messages are too many for arrows: these are its counts"
        return counts_figure(facts_of(story.schedule), why)
    notes = [story.schedule.algorithm.about] if story.schedule.algorithm.about else []
    parts: list[Part] = [space_time(story), _draw_legend(story)]
    if 0 < _count_values(story, story.cells) <= MOST_CELLS:
        parts.append(_draw_tables(story))
    if story.findings:
        notes += [f"wrong: {finding}" for finding in story.findings[:5]]
    else:
        notes += fact_lines(facts_of(story.schedule))
    if story.cells and not _drawn_chunks(story):
        notes.append("too many chunks to draw: arrows show the messages alone")
    return Figure(story.schedule.name, tuple(parts), tuple(notes))


def algorithm_figure(algorithm: Algorithm) -> Figure:
    """Draw an algorithm: its schedule for four ranks, and a table of its non-empty fields.

    The schedule is left out if the algorithm does not support four ranks, or fails.
    """
    from spmdsim.collectives import make_schedule

    field_values = plain_facts(algorithm)
    if algorithm.formula:
        formula = plain_facts(algorithm.formula).items()
        field_values["formula"] = ", ".join(f"{key} {value}" for key, value in formula if value)
    table = fact_rows((key, shorten_value(value)) for key, value in field_values.items() if value)
    try:
        schedule_picture = schedule_figure(make_schedule(algorithm, 4))
    except SpmdError:
        return Figure(f"algorithm {algorithm.name}", (table,))
    return Figure(
        f"algorithm {algorithm.name}, on four ranks", (*schedule_picture.parts, table), schedule_picture.notes
    )


def counts_figure(facts: Facts, why: str = "") -> Figure:
    """Draw a table of the counts of a schedule with their lower bounds.

    Other facts are notes.

    Args:
        facts: the facts of the schedule.
        why: a first note, such as the reason why nothing else is drawn; "" for none.
    """
    counted = ("rounds", "critical", "reduced")
    # Each line starts with a name, filled up with blanks to 16 characters.
    lines = fact_lines(facts)
    rows = tuple((line[:16].strip(), line[16:].strip()) for line in lines if line.startswith(counted))
    other_lines = [line for line in lines if not line.startswith(counted)]
    table = Table(("count", "of the busiest rank"), rows)
    return Figure(facts.verdict.schedule.name, (table,), tuple(filter(None, (why, *other_lines))))


def _drawn_chunks(story: History) -> list[int]:
    """Return the numbers of the chunks to draw as boxes; empty if there are too many.

    Scratch memory is not drawn.
    """
    chunks = [c for c in story.cells if c < story.schedule.chunk_count]
    return chunks if len(chunks) <= MOST_CHUNKS and _count_values(story, chunks) <= MOST_BOXES else []


def _count_values(story: History, cells: Sequence[int]) -> int:
    """Return the number of values that the cells have on all ranks in all states."""
    return len(cells) * story.schedule.size * len(story.states)


def space_time(story: History) -> Canvas:
    """Draw the messages and chunks of a schedule: ranks from top to bottom, rounds to the right.

    A message is an arrow from its sender's line to its receiver's. Before the first round and after each, every rank
    has a row of boxes, one per chunk, unless there are too many (:func:`_drawn_chunks`). Labels are drawn after all
    arrows of their round, so that arrows do not cross them. ``story`` is the executed schedule.
    """
    out, cells = Canvas(), _drawn_chunks(story)
    size, steps = story.schedule.size, len(story.steps)
    box_width = 20 if len(cells) <= 8 else 9
    boxes = max(box_width * len(cells) + 10, 24)
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
        used_spots: list[tuple[float, float]] = []
        for draw in (_draw_arrow, partial(_draw_label, used_spots=used_spots)):  # words cover arrows
            for message in messages:
                draw(out, story, message, x, x + column - boxes - 4)
    for index in range(len(story.states)):
        for rank in range(size):
            _draw_state(
                out, story, cells, index, rank, MARGIN + index * column + 4, TOP + rank * ROW - 9, box_width
            )
    out.reach(end + 8, TOP + size * ROW - 16)
    return out


def _draw_arrow(out: Canvas, story: History, message: RoundMessage, x1: float, x2: float) -> None:
    """Draw the arrow of a message, with a text for a pointer.

    The arrow has the colour of the message's first chunk, or the default colour if the schedule has one chunk only. In
    collectives with reduction, arrows of copies are dashed.
    """
    source, target, numbers, reduces = message
    count = story.schedule.chunk_count
    ink = ink_of((numbers[0] if numbers else 0) % count) if count > 1 else ""
    dashed = story.schedule.collective.reduces and not reduces
    out.arrow(x1, TOP + source * ROW, x2, TOP + target * ROW, ink, _message_words(message), dashed)


def _message_words(message: RoundMessage) -> str:
    """Return the ranks and chunks of a message as text that a pointer shows."""
    reduced = ", reduced" if message.reduces else ""
    return f"{message.source} → {message.target}: {name_chunks(message.chunks)}{reduced}"


def _draw_label(
    out: Canvas,
    story: History,
    message: RoundMessage,
    x1: float,
    x2: float,
    used_spots: list[tuple[float, float]],
) -> None:
    """Draw the chunks of a message on its arrow, if possible away from other words of the round.

    Five positions along the arrow are tried; if none is free, the first one is used. A message without label draws
    nothing.

    Args:
        out: the canvas; changed in place.
        story: the executed schedule.
        message: the message.
        x1: start of the arrow, in pixels.
        x2: end of the arrow.
        used_spots: positions of the words that were drawn in the round; the position of this message's words is
            appended.
    """
    source, target, *_ = message
    if not (words := arrow_label(story, message)):
        return
    half = width_of(words) / 2 + 2
    # Prefer the start of the arrow, because arrows cross in the middle.
    spots = [
        (x1 + share * (x2 - x1), TOP + (source + share * (target - source)) * ROW)
        for share in (0.26, 0.74, 0.38, 0.62, 0.5)
    ]
    free = (
        spot
        for spot in spots
        if all(abs(spot[0] - x) > 2 * half or abs(spot[1] - y) > 13 for x, y in used_spots)
    )
    x, y = next(free, spots[0])
    used_spots.append((x, y))
    out.parts.append(
        f'<rect class="ground" x="{number(x - half)}" y="{number(y - 7)}" width="{number(2 * half)}" height="13" rx="3"/>'
    )
    out.text(x, y + 4, words, anchor="middle", title=_message_words(message))


def _draw_state(
    out: Canvas, story: History, cells: list[int], index: int, rank: int, x: float, y: float, box_width: float
) -> None:
    """Draw the chunks of one rank in one state as a row of boxes.

    * Fill: the share of ranks that have contributed to the chunk, from below. With 2 of 4 ranks the box is half full.
      Without a reduction it is full. An absent chunk is empty.
    * Frame: thick if the chunk is new in the round.

    A tooltip of each box says what it contains.

    Args:
        out: the canvas; changed in place.
        story: the executed schedule.
        cells: numbers of the chunks.
        index: number of the state.
        rank: the rank.
        x: left edge of the first box, in pixels.
        y: upper edge; boxes are 18 pixels high.
        box_width: width of a box; boxes of 20 pixels and more have the number of the chunk.
    """
    state = story.states[index]
    for k, cell in enumerate(cells):
        left, value = x + box_width * k, state.holds[rank].get(cell)
        pointer_text = f"rank {rank}, chunk {cell}: nothing"
        is_new = cell in state.new[rank]
        text_colour = "var(--faint)"
        out.parts.append(
            f'<rect class="open" x="{number(left)}" y="{number(y)}" width="{box_width - 1:.0f}" height="18"/>'
        )
        if value is not None:
            text_colour = _draw_fill(out, story, value, cell, left, y, box_width)
            pointer_text = f"rank {rank}, chunk {cell}: {value_words(story, value)}"
        edge = f'class="edge" stroke-width="{2 if is_new else 0.5}"'
        out.parts.append(
            f'<rect {edge} x="{number(left)}" y="{number(y)}" width="{box_width - 1:.0f}" height="18"><title>{pointer_text}</title></rect>'
        )
        if box_width >= 20:
            _draw_number(out, cell, left + (box_width - 1) / 2, y + 13, text_colour, pointer_text)


def _draw_fill(
    out: Canvas, story: History, value: int, cell: int, left: float, y: float, box_width: float
) -> str:
    """Fill a box from below by the share of contributors; return the colour of the number in it."""
    reduces, size = story.schedule.collective.reduces, story.schedule.size
    fraction = len(story.contributors(value)) / size if reduces else 1.0
    fill_height = max(3.0, 18 * fraction)
    fill, text_colour = fill_of(cell)
    out.bar(left, y + 18 - fill_height, box_width - 1, fill_height, fill)
    return text_colour if fraction > 0.7 else "var(--ink)"


def _draw_number(out: Canvas, cell: int, x: float, y: float, text_colour: str, title: str) -> None:
    """Draw the number of a chunk in its box."""
    if text_colour == "var(--ink)":
        # A number on a partly filled box gets an outline, to be legible.
        out.parts.append(
            f'<text x="{number(x)}" y="{number(y)}" text-anchor="middle" '
            f'style="paint-order:stroke;stroke:var(--ground);stroke-width:3px">{cell}</text>'
        )
    else:
        out.text(x, y, str(cell), anchor="middle", colour=text_colour, title=title)


def _draw_legend(story: History) -> Canvas:
    """Return the legend of a schedule's figure: one line per kind of box and arrow in it.

    * Boxes are explained only if the figure draws chunks, and the fill of boxes only if the collective reduces.
    * The numbers at arrows are explained only if there are several chunks, full and dashed arrows only if the
      collective reduces.

    ``story`` is the executed schedule.
    """
    out, reduces, has_chunks = Canvas(), story.schedule.collective.reduces, story.schedule.chunk_count > 1
    row_height, text_column = 16, 28
    boxes: list[str] = []
    if _drawn_chunks(story):
        out.parts.append('<rect class="open" x="0" y="0" width="19" height="18"/>')
        out.bar(0, 9, 19, 9, fill_of(0)[0])
        boxes = ["a chunk, with its number", "a thick frame: new in this round"]
        if reduces:
            boxes.insert(1, "the fuller, the more ranks are in it")
            boxes.append("in words: ranks whose input is in it; 0..2 is 0+1+2, ∑ all ranks")
    arrows = ["a message"]
    if has_chunks:
        arrows = ["a message, in its first chunk's colour, with its chunks; 4..7 is 4, 5, 6, 7"]
    if reduces:
        arrows += ["+ and a full line: reduced on arrival", "dashed: copied"]
    y = 14.0 + row_height * len(boxes)
    out.arrow(0, y, 22, y, ink_of(0) if has_chunks else "")
    for line, line_text in enumerate((*boxes, *arrows)):
        out.text(text_column, 13 + row_height * line + 5 * (line >= len(boxes)), line_text)
    return out


def _draw_tables(story: History) -> Canvas:
    """Draw a table for each state: a row per rank, a column per chunk, and values as words.

    A value is the ranks whose input is in the chunk, such as "0..2"; "·" is no chunk. Columns "s1" and so on are copies
    in scratch memory. Cells with new values have the fill of their chunk. ``story`` is the executed schedule.
    """
    drawings, count = [], story.schedule.chunk_count
    for index, state in enumerate(story.states):
        table = Canvas()
        words = [
            [value_words(story, values[cell]) if cell in values else "·" for cell in story.cells]
            for values in state.holds
        ]
        cell_width = max(28.0, max(width_of(text) for row in words for text in row) + 8)
        for k, cell in enumerate(story.cells):
            name = str(cell) if cell < count else f"s{cell // count}"
            table.text(30 + k * cell_width + cell_width / 2, 12, name, "faint", "middle")
        for rank, row in enumerate(words):
            table.text(24, 18 + rank * 20 + 14, str(rank), "faint", "end")
            for k, (cell, text) in enumerate(zip(story.cells, row)):
                index_of = cell if cell in state.new[rank] else None
                pointer_text = f"rank {rank}, chunk {cell}: {text}"
                table.cell(
                    30 + k * cell_width, 18 + rank * 20, cell_width, 20, [text], index_of, pointer_text
                )
        drawings.append(("at the start: rank by chunk" if index == 0 else f"after round {index - 1}", table))
    return side_by_side(drawings)
