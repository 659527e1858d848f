"""Draw shapes and words as SVG, with one style for all pictures.

Fills are the colour-blind safe ones of Okabe and Ito. Every filled cell also has a number or a name, so that no fact
is shown by colour only. Cells beyond the number of colours are striped; addends of a pending sum are hatched. Lines
do not cross words. A picture has its own background: light or dark as the reader's system or notebook, light in
print. It needs no script and no other file, its words can be selected, and its ``<title>`` describes it. If a picture
is wider than its page, its edge fades.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil

from spmdsim.tables import Table

#: Fills that people with colour blindness can distinguish (Okabe and Ito), each with the colour of letters on it.
FILLS = (
    ("#56b4e9", "#000"), ("#e69f00", "#000"), ("#009e73", "#000"), ("#f0e442", "#000"),
    ("#cc79a7", "#000"), ("#0072b2", "#fff"), ("#d55e00", "#000"), ("#bbbbbb", "#000"),
)  # fmt: skip

#: Number of cells that fills and stripes distinguish; more cells have no fill.
MOST_FILLS = 4 * len(FILLS)

MOST_CHARACTERS = 1 << 20
"""Largest number of characters of one picture, because longer ones make a page slow."""

#: Colours of thin lines, in the order of FILLS, for light and dark backgrounds.
INKS = ("#3d97cc", "#d08f00", "#009e73", "#a89400", "#c2659a", "#2b7fc0", "#d55e00", "#888888")

FONT = 12
ROW = 18
"""Height of a line, in pixels."""
LETTER = 7.25
"""Width of a letter of the monospaced font, in pixels."""

LIGHT = "--ink:#1b1f24;--faint:#5b6470;--line:#c4cad1;--ground:#fff;--bad:#b3261e"
DARK = "--ink:#e8eaed;--faint:#a8b0ba;--line:#4a525c;--ground:#16191d;--bad:#ff9b8f"

STYLE = f"""
.spmdsim{{{LIGHT};color:var(--ink);font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}}
@media (prefers-color-scheme:dark){{.spmdsim{{{DARK}}}}}
[data-jp-theme-light=true] .spmdsim,body.vscode-light .spmdsim,html[theme=light] .spmdsim,[data-theme=light] .spmdsim{{{LIGHT}}}
[data-jp-theme-light=false] .spmdsim,body.vscode-dark .spmdsim,html[theme=dark] .spmdsim,[data-theme=dark] .spmdsim{{{DARK}}}
@media print{{.spmdsim,html:root .spmdsim{{{LIGHT}}}}}
svg.spmdsim text{{fill:var(--ink)}}
.spmdsim .title{{font-size:14px;font-weight:600}}
svg.spmdsim .faint{{fill:var(--faint)}}
svg.spmdsim .bad{{fill:var(--bad)}}
svg.spmdsim .ground{{fill:var(--ground)}}
svg.spmdsim .line{{stroke:var(--line);fill:none}}
svg.spmdsim .edge{{stroke:var(--ink);fill:none}}
svg.spmdsim .open{{stroke:var(--line);fill:var(--ground)}}
.spmdsim p.bad{{color:var(--bad)}}
div.spmdsim,body.spmdsim{{background:var(--ground)}}
div.spmdsim{{padding:4px 8px}}
body.spmdsim{{margin:0 auto;padding:8px 12px;max-width:1200px}}
.spmdsim h1,.spmdsim h2,.spmdsim h4{{font:600 15px system-ui,sans-serif;color:var(--ink);margin:.9em 0 .3em;overflow-wrap:anywhere}}
.spmdsim h1{{font-size:22px}}
.spmdsim p{{color:var(--faint);margin:.2em 0;max-width:120ch;overflow-wrap:anywhere}}
.spmdsim .scroll{{overflow-x:auto;margin:.5em 0}}
@supports (animation-timeline:scroll()){{.spmdsim .scroll{{animation:spmdsim-more linear both;animation-timeline:scroll(self inline)}}}}
@keyframes spmdsim-more{{from{{mask-image:linear-gradient(to right,#000 calc(100% - 2em),#0003)}}
1%,99%{{mask-image:linear-gradient(to right,#0003,#000 2em calc(100% - 2em),#0003)}}
to{{mask-image:linear-gradient(to right,#0003,#000 2em)}}}}
.spmdsim svg{{display:block}}
.spmdsim table{{border-collapse:collapse;font-size:{FONT}px;margin:0}}
.spmdsim caption{{text-align:left;color:var(--faint);padding:.2em 0}}
.spmdsim th{{color:var(--faint);font-weight:400;border-bottom:1px solid var(--line)}}
.spmdsim td,.spmdsim th{{text-align:left;padding:1px 14px 1px 0;white-space:pre;vertical-align:top;background:none}}
.spmdsim .right{{text-align:right}}
@media (min-width:700px),print{{.spmdsim td:not(.right){{white-space:pre-wrap}}}}
@media print{{.spmdsim .scroll{{overflow:visible}}.spmdsim .scroll svg{{max-width:100%;height:auto}}}}
""".strip()


def number(value: float) -> str:
    """Return a coordinate as text with at most one decimal.

    >>> number(3.0), number(3.14159)
    ('3', '3.1')
    """
    return f"{value:.1f}".removesuffix(".0")


def width_of(text: str, size: float = FONT) -> float:
    """Return the width of a text in pixels; ``size`` is the font size in pixels.

    All letters of the monospaced font count as equally wide.
    """
    return len(text) * LETTER * size / FONT


def fill_of(index: int) -> tuple[str, str]:
    """Return the fill of cell number ``index``, and the colour of letters on it.

    Both repeat after 8 cells.
    """
    return FILLS[index % len(FILLS)]


def ink_of(index: int) -> str:
    """Return the colour of line number ``index``."""
    return INKS[index % len(INKS)]


@dataclass
class Canvas:
    """A drawing: a list of SVG elements, and the size that they need."""

    parts: list[str] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def reach(self, x: float, y: float) -> None:
        """Extend the size of the drawing so that it includes the point ``(x, y)``."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        kind: str = "",
        anchor: str = "start",
        colour: str = "",
        title: str = "",
    ) -> None:
        """Draw words with their base line at ``y``.

        Words are escaped for SVG. The drawing is extended to the right and downwards so that it includes them.

        Args:
            x: horizontal position, in pixels.
            y: base line, in pixels; y increases downwards.
            words: one line of text.
            kind: CSS class: "title" (large and bold), "faint" or "bad" (red); "" for plain words.
            anchor: "start", "middle" or "end": the point of the text that is at ``x``.
            colour: colour of the letters; "" for the colour of the class.
            title: text that a pointer or a screen reader shows; "" for none.
        """
        text_width = width_of(words, 14 if kind == "title" else FONT)
        self.reach(x + {"start": text_width, "middle": text_width / 2, "end": 0}[anchor], y + 4)
        kinds = f' class="{kind}"' if kind else ""
        anchors = f' text-anchor="{anchor}"' if anchor != "start" else ""
        colours = f' style="fill:{colour}"' if colour else ""
        self.parts.append(
            f'<text x="{number(x)}" y="{number(y)}"{kinds}{anchors}{colours}>{_title_element(title)}{escape(words)}</text>'
        )

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: Sequence[str],
        index: int | None,
        title: str = "",
        shade: float = 0.0,
        hatched: bool = False,
    ) -> None:
        """Draw a box with lines of words in its middle.

        Stripes and hatching do not cross the words. Words that are too wide are drawn beyond the box.

        Args:
            x: left edge, in pixels.
            y: upper edge.
            width: width of the box.
            height: height of the box.
            words: lines of text, 14 pixels apart; [] for none.
            index: number of the fill, 0 and up; None for no fill. Fills 0 to 7 are 8 plain colours. Fills 8 to 31 are
                these colours with slanted, horizontal or vertical stripes. From 32 on, the fills repeat: 33 is 1.
            title: text that a pointer or a screen reader shows; "" for none.
            shade: opacity of grey over the box, 0 to 1; only used if ``index`` is None.
            hatched: True for close slanted lines, which mark an addend.
        """
        self.reach(x + width, y + height)
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        letters, lines, fill = "", "", "var(--ground)"
        if index is None:
            self.parts.append(f'<g>{_title_element(title)}<rect class="open" {box}/>')
            if shade:
                self.parts.append(f'<rect {box} fill="var(--ink)" fill-opacity="{shade:.2f}"/>')
        else:
            fill, letters = fill_of(index)
            self.parts.append(f'<g>{_title_element(title)}<rect {box} fill="{fill}" stroke="var(--ground)"/>')
            if stripe_kind := index // len(FILLS) % 4:
                lines = _stripes(x, y, width, height, stripe_kind)
        if hatched:
            lines += _hatching([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], letters)
        self.parts += [lines] if lines else []
        top = y + height / 2 - (len(words) - 1) * 7 + 4
        for line, text in enumerate(words):
            base = top + 14 * line
            if lines and text:
                self.plate(x + width / 2, base, text, fill)
            self.text(x + width / 2, base, text, anchor="middle", colour=letters)
        self.parts.append("</g>")

    def plate(self, x: float, y: float, words: str, fill: str) -> None:
        """Draw a box of the colour ``fill`` behind words, so that stripes do not cross them.

        The words themselves are not drawn. They will be centred at ``x``, and their base line will be at ``y``
        (pixels).

        Args:
            x: the middle of the box.
            y: base line of the words; the box begins 11 pixels above it and is 14 high.
            words: the text, for the width.
            fill: colour of the box.
        """
        plate_width = width_of(words) + 4
        self.parts.append(
            f'<rect class="plate" x="{number(x - plate_width / 2)}" y="{number(y - 11)}" width="{number(plate_width)}" height="14" '
            f'fill="{fill}"/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, fill: str, title: str = "") -> None:
        """Draw a filled box without words.

        Args:
            x: left edge, in pixels.
            y: upper edge.
            width: width of the box; at least half a pixel is drawn.
            height: height of the box.
            fill: its colour, such as "#56b4e9".
            title: text that a pointer or a screen reader shows; "" for none.
        """
        self.reach(x + width, y + height)
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.5))}" height="{number(height)}"'
            f' fill="{fill}">{_title_element(title)}</rect>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        kind: str = "line",
        extra: str = "",
        title: str = "",
        bend: float = 0.0,
    ) -> None:
        """Draw a straight line, or a curve if ``bend`` is not 0.

        The size of the drawing includes both ends, but not the bulge of a curve.

        Args:
            x1: start, in pixels.
            y1: start.
            x2: end.
            y2: end.
            kind: CSS class: "line" for a faint line, "edge" for a dark one.
            extra: further SVG attributes as text that begins with a blank, such as a colour or dashes.
            title: text that a pointer or a screen reader shows; "" for none.
            bend: distance in pixels of the middle of the curve from the straight line. A positive number bends a line
                from left to right downwards.
        """
        self.reach(max(x1, x2), max(y1, y2))
        command = "L"
        if bend:
            length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 0.1)
            # The control point is twice as far from the straight line as the middle of the curve.
            control_x = (x1 + x2) / 2 - 2 * bend * (y2 - y1) / length
            control_y = (y1 + y2) / 2 + 2 * bend * (x2 - x1) / length
            command = f"Q{number(control_x)} {number(control_y)} "
        path = f"M{number(x1)} {number(y1)}{command}{number(x2)} {number(y2)}"
        self.parts.append(f'<path class="{kind}" d="{path}"{extra}>{_title_element(title)}</path>')

    def face(
        self,
        corners: Sequence[tuple[float, float]],
        index: int,
        shade: float,
        title: str = "",
        hatched: bool = False,
    ) -> None:
        """Draw one side of a three-dimensional box as a filled parallelogram.

        Args:
            corners: its four corners ``(x, y)`` in pixels, in order around it.
            index: number of its fill, as in :meth:`cell`, but without stripes.
            shade: opacity of black over the fill, 0 to 1.
            title: text that a pointer or a screen reader shows; "" for none.
            hatched: True for close slanted lines, which mark an addend.
        """
        self.reach(max(x for x, _ in corners), max(y for _, y in corners))
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        self.parts.append(
            f'<g stroke="var(--ground)">{_title_element(title)}<polygon points="{points}" fill="{fill_of(index)[0]}"/>'
            f'<polygon points="{points}" fill="#000" fill-opacity="{shade:g}"/></g>'
        )
        if hatched:
            self.parts.append(_hatching(corners, fill_of(index)[1]))

    def table(self, table: Table, y: float) -> None:
        """Draw a table at the left edge: its title, the row of heads, all rows, and its notes.

        A column is as wide as its longest cell and two letters more. :meth:`Table.shorten` limits the rows of a long
        table.

        Args:
            table: the table.
            y: its upper edge, in pixels.
        """
        head, *rows = table.cells
        widths = [(max(map(len, column)) + 2) * LETTER for column in zip(head, *rows)]
        starts = [sum(widths[:k]) for k in range(len(widths) + 1)]
        if table.title:
            self.text(0, y + 12, table.title, "faint")
            y += ROW
        for line, cells in enumerate((head, *rows)):
            for k, cell in enumerate(cells):
                x, anchor = (starts[k + 1] - 2 * LETTER, "end") if k in table.right else (starts[k], "start")
                self.text(x, y + 12 + ROW * line, cell, "" if line else "faint", anchor)
        self.line(0, y + ROW - 1, starts[-1] - LETTER, y + ROW - 1)
        y += ROW * (len(rows) + 1)
        self.reach(starts[-1], y)
        for line, note in enumerate(table.notes):
            self.text(0, y + 12 + ROW * line, note, "faint")

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        colour: str = "",
        title: str = "",
        dashed: bool = False,
        wide: float = 1.6,
    ) -> None:
        """Draw a straight line with an arrow head at its end; the canvas grows to hold it.

        Args:
            x1: start, in pixels.
            y1: start.
            x2: end, where the head is.
            y2: end.
            colour: colour of line and head; "" for the colour of words.
            title: text that a pointer or a screen reader shows; "" for none.
            dashed: True for a dashed line.
            wide: width of the line, in pixels.
        """
        self.reach(max(x1, x2), max(y1, y2))
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 0.1)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        head = [
            (x2 - 7 * ux - 3.5 * uy, y2 - 7 * uy + 3.5 * ux),
            (x2 - 7 * ux + 3.5 * uy, y2 - 7 * uy - 3.5 * ux),
        ]
        points = "".join(f"L{number(x)} {number(y)}" for x, y in head)
        ink = colour or "var(--ink)"
        dashes = ' stroke-dasharray="5 3"' if dashed else ""
        self.parts.append(
            f'<g class="arrow" stroke="{ink}" fill="{ink}">{_title_element(title)}<path fill="none" stroke-width="{wide}"{dashes} '
            f'd="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"/>'
            f'<path stroke="none" d="M{number(x2)} {number(y2)}{points}z"/></g>'
        )


def _title_element(title: str) -> str:
    """Return the ``<title>`` element of a shape, or "" without a title.

    A pointer or a screen reader shows it.
    """
    return f"<title>{escape(title)}</title>" if title else ""


HATCH_OPACITY = 0.45
"""Opacity of hatching, in the colour of letters: visible on every fill, but lighter than words."""


def _hatching(corners: Sequence[tuple[float, float]], ink: str) -> str:
    """Return the SVG path of close lines over a parallelogram; they mark an addend of a pending sum.

    The lines rise to the right, and are 6 pixels apart along the sides.

    Args:
        corners: the four corners ``(x, y)`` in pixels, in order around it, the upper left one first.
        ink: colour of the lines; "" for the colour of words.
    """
    (x0, y0), (x1, y1), _, (x3, y3) = corners
    width = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1.0)
    height = max(((x3 - x0) ** 2 + (y3 - y0) ** 2) ** 0.5, 1.0)

    def point(across: float, down: float) -> str:
        a, b = across / width, down / height
        return f"{number(x0 + a * (x1 - x0) + b * (x3 - x0))} {number(y0 + a * (y1 - y0) + b * (y3 - y0))}"

    lines = []
    # Each line goes from the point (0, reach) on the left side to (reach, 0) on the upper one. A line that would leave
    # the parallelogram starts at the lower side or ends at the right one.
    for reach in range(5, int(width + height), 6):
        low, right = min(reach, height), min(reach, width)
        lines.append(f"M{point(reach - low, low)}L{point(right, reach - right)}")
    stroke = ink or "var(--ink)"
    return f'<path class="hatching" d="{"".join(lines)}" stroke="{stroke}" stroke-opacity="{HATCH_OPACITY:g}" fill="none"/>'


def _stripes(x: float, y: float, width: float, height: float, kind: int) -> str:
    """Return the SVG path of wide white lines over a box, to distinguish boxes of one fill.

    The lines are 9 pixels apart. They are no SVG pattern, because patterns of two pictures on a page could have one
    name.

    Args:
        x: left edge, in pixels.
        y: upper edge.
        width: width of the box.
        height: height of the box.
        kind: 1 for slanted, 2 for horizontal, 3 for vertical lines.
    """
    lines = []
    step = 9
    if kind == 1:  # slanted
        for start in range(-int(height), int(width), step):
            x1, y1 = x + max(start, 0), y + max(-start, 0)
            run = min(x + width - x1, y + height - y1)
            lines.append(f"M{number(x1)} {number(y1)}l{number(run)} {number(run)}")
    elif kind == 2:
        lines += [f"M{number(x)} {number(y + k)}h{number(width)}" for k in range(4, int(height), step)]
    else:
        lines += [f"M{number(x + k)} {number(y)}v{number(height)}" for k in range(4, int(width), step)]
    return f'<path d="{"".join(lines)}" stroke="#fff" stroke-opacity=".45" stroke-width="2" fill="none"/>'


def svg(canvas: Canvas, title: str, margin: float = 12, description: str = "") -> str:
    """Return a drawing as one SVG image with its style, which needs no other file.

    The text is a complete ``<svg>`` element with a background, and ends with a newline. Its size is the size of the
    drawing with margins, rounded up to pixels.

    Args:
        canvas: the drawing.
        title: title of the image.
        margin: margin on all sides, in pixels.
        description: text that screen readers read after the title; "" for none.
    """
    desc = f"<desc>{escape(description)}</desc>" if description else ""
    width, height = ceil(canvas.width + 2 * margin), ceil(canvas.height + 2 * margin)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="spmdsim" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title, True)}">'
        f"<title>{escape(title)}</title>{desc}<style>{STYLE}</style>"
        f'<rect class="ground" width="100%" height="100%" rx="6"/>'
        f'<g transform="translate({number(margin)} {number(margin)})">{"".join(canvas.parts)}</g></svg>\n'
    )
