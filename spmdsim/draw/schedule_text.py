"""Pictures of a collective algorithm for terminals: who holds what, and messages as arrows between ranks.

Everything is built as plain text first; what is new in a step stands in brackets, and is coloured on terminals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spmdsim.collectives.facts import as_share
from spmdsim.collectives.history import History, RankState, RoundMessage
from spmdsim.collectives.instructions import name_chunks

if TYPE_CHECKING:
    from rich.text import Text

    from spmdsim.collectives.facts import Facts

MOST_CELLS = 24
"""More chunks than this are shown as a count per source."""

ASCII = str.maketrans({**dict(zip("│─┼●▶◀→·━═", "|-+*><>.-=")), "∑": "S", "…": ".."})


def state_lines(story: History, index: int) -> list[str]:
    """One state with its heading: ``start``, or the round after which it is."""
    return ["start" if index == 0 else f"after round {index - 1}", *state_table(story, index)]


def message_lines(story: History) -> list[str]:
    """The messages as arrows, and what stands on the arrows."""
    reduces = story.schedule.collective.reduces
    return [f"arrows: chunk numbers{'; + is reduced on arrival' if reduces else ''}", *grid(story)]


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
    if len(cells) > MOST_CELLS:
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
    """A value in few letters: ``∑`` for all ranks, ``0-2+5`` for some."""
    ranks = story.contributors(value)
    if story.schedule.collective.reduces and len(ranks) == story.schedule.size > 1:
        return "∑"
    words: list[str] = []
    for start, stop in _runs(ranks):
        words += [f"{start}-{stop}"] if stop - start > 1 else map(str, range(start, stop + 1))
    return "+".join(words)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


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


def grid(story: History, most_ranks: int = 20, ascii_only: bool = False) -> list[str]:
    """Messages as arrows, ranks from left to right, rounds from top to bottom; a line says so if there are too many."""
    size = story.schedule.size
    if size > most_ranks:
        return [f"({size} ranks are too many for a picture in a terminal; --svg draws it)"]
    width = max(6, 4 + max((len(label(story, m)) for s in story.steps for m in s), default=0))
    margin = len(f"round {len(story.steps)}") + 2
    lines = [" " * margin + "".join(str(r).ljust(width) for r in range(size)).rstrip()]
    for number, messages in enumerate(story.steps):
        title = f"round {number}".ljust(margin)
        for lane in _lanes(messages) or [[]]:
            remark = "" if messages else "  local only"
            lines.append((title + _lane(story, lane, size, width)).rstrip() + remark)
            title = " " * margin
    if ascii_only:
        lines = [line.translate(ASCII) for line in lines]
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


def fact_lines(facts: Facts) -> list[str]:
    """Rounds, bytes and reduction of a correct schedule against their lower bounds."""
    verdict, bound, schedule = facts.verdict, facts.bound, facts.verdict.schedule
    lines = [
        f"m = {schedule.collective.size_means}",
        f"rounds          {facts.steps}  (lower bound {bound.steps})",
        f"critical bytes  {as_share(facts.beta)}  (lower bound {as_share(bound.beta)})",
    ]
    if schedule.collective.reduces:
        order = "kept: fit" if verdict.in_order else "not kept: unfit"
        bits = "yes" if verdict.same_tree else "no"
        lines += [
            f"reduced bytes   {as_share(facts.gamma)}  (lower bound {as_share(bound.gamma)})",
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
