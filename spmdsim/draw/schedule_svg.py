"""A collective algorithm as one SVG picture: a line per rank, time to the right, a slanted arrow per message.

At every rank and round a row of small squares shows the rank's chunks: the fuller, the more ranks have
contributed; a frame marks what is new. The picture needs no other file and follows the page's light or dark colours.
"""

from __future__ import annotations

import colorsys
from html import escape

from spmdsim.collectives.history import History, RoundMessage
from spmdsim.collectives.instructions import name_chunks
from spmdsim.draw.schedule_text import value_words
from spmdsim.errors import InputError

ROW, MARGIN, TOP = 46, 64, 58
MOST_CHUNKS, MOST_ARROWS = 16, 20_000

_STYLE = """
  text { font: 11px system-ui, sans-serif; fill: currentColor }
  .title { font-size: 15px; font-weight: 600 }
  .faint { opacity: .6 }
  .rank { stroke: currentColor; stroke-opacity: .25 }
  .arrow { fill: none; stroke-width: 1.6; stroke-opacity: .85 }
  .box { fill: none; stroke: currentColor; stroke-opacity: .35 }
  .new { fill: none; stroke: currentColor; stroke-width: 1.4 }
""".strip("\n")


def schedule_svg(story: History, title: str | None = None) -> str:
    """Draw a schedule.

    Args:
        story: an unrolled schedule, right or wrong.
        title: a heading; by default the schedule's name.

    Returns:
        A complete SVG document.

    Raises:
        InputError: when there would be too many arrows to see anything.
    """
    arrows = sum(map(len, story.steps))
    if arrows > MOST_ARROWS:
        raise InputError(f"{arrows} messages are too many for one picture; at most {MOST_ARROWS} are drawn")
    return _Picture(story, title or story.schedule.name).text()


class _Picture:
    def __init__(self, story: History, title: str) -> None:
        self.story, self.title = story, title
        self.count = story.schedule.chunk_count
        cells = [c for c in story.cells if c < self.count]
        self.cells = cells if 0 < len(cells) <= MOST_CHUNKS else []
        self.boxes = max(8 * len(self.cells) + 10, 24)
        self.column = self.boxes + 96
        self.parts: list[str] = []

    def _x(self, state: int) -> int:
        return MARGIN + state * self.column

    def _y(self, rank: int) -> int:
        return TOP + rank * ROW

    def text(self) -> str:
        size, steps = self.story.schedule.size, len(self.story.steps)
        width = self._x(steps) + self.boxes + 24
        height = self._y(size) + 8 + 16 * min(len(self.story.findings), 5)
        self._frame(size, steps)
        for step, messages in enumerate(self.story.steps):
            for message in messages:
                self._arrow(step, message)
        for index in range(len(self.story.states)):
            for rank in range(size):
                self._state(index, rank)
        for i, finding in enumerate(self.story.findings[:5]):
            y = self._y(size) + 8 + 16 * i
            self.parts.append(f'<text x="16" y="{y}" style="fill:#c62828">{escape(str(finding))}</text>')
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" color="#777">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{_STYLE}\n</style>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto"><path d="M0 0 8 4 0 8z" fill="context-stroke"/></marker></defs>\n'
            f"{body}\n</svg>\n"
        )

    def _frame(self, size: int, steps: int) -> None:
        put = self.parts.append
        put(f'<text class="title" x="16" y="22">{escape(self.title)}</text>')
        for step in range(steps):
            x = self._x(step) + self.boxes + 48
            put(f'<text class="faint" x="{x}" y="42" text-anchor="middle">round {step}</text>')
        for rank in range(size):
            y = self._y(rank)
            put(f'<text x="16" y="{y + 4}">rank {rank}</text>')
            end = self._x(steps) + self.boxes
            put(f'<line class="rank" x1="{self._x(0)}" y1="{y}" x2="{end}" y2="{y}"/>')

    def _arrow(self, step: int, message: RoundMessage) -> None:
        source, target, numbers, reduces = message
        colour = self._colour(numbers[0] if numbers else 0)
        x1, x2 = self._x(step) + self.boxes, self._x(step + 1) - 4
        y1, y2 = self._y(source), self._y(target)
        words = f"{source} → {target}: {name_chunks(numbers)}{', reduced' if reduces else ''}"
        dash = "" if reduces or not self.story.schedule.collective.reduces else ' stroke-dasharray="5 3"'
        self.parts.append(
            f'<path class="arrow" d="M{x1} {y1}L{x2} {y2}" stroke="{colour}"{dash}'
            f' marker-end="url(#head)"><title>{escape(words)}</title></path>'
        )

    def _state(self, index: int, rank: int) -> None:
        state, size = self.story.states[index], self.story.schedule.size
        x, y = self._x(index) + 4, self._y(rank) - 7
        reduces = self.story.schedule.collective.reduces
        for i, cell in enumerate(self.cells):
            left = x + 8 * i
            value = state.holds[rank].get(cell)
            words = f"rank {rank}, chunk {cell}: nothing"
            if value is not None:
                share = len(self.story.contributors(value)) / size if reduces else 1.0
                high = max(2, round(14 * share))
                self.parts.append(
                    f'<rect x="{left}" y="{y + 14 - high}" width="7" height="{high}" fill="{self._colour(cell)}"/>'
                )
                words = f"rank {rank}, chunk {cell}: {value_words(self.story, value)}"
            kind = "new" if cell in state.new[rank] else "box"
            self.parts.append(
                f'<rect class="{kind}" x="{left}" y="{y}" width="7" height="14"><title>{escape(words)}</title></rect>'
            )

    def _colour(self, chunk: int) -> str:
        hue = chunk % self.count / max(1, self.count)
        red, green, blue = (round(255 * v) for v in colorsys.hls_to_rgb(hue, 0.48, 0.62))
        return f"#{red:02x}{green:02x}{blue:02x}"
