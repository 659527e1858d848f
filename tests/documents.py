"""Documents are tests: each block of commands shows the output of its commands.

Marks in the text show where the output may differ:

- A line ``...`` stands for omitted lines. At the end of a table's head, ``...`` stands for columns. At the end of
  another line, it stands for the remainder of the line.
- ``2.30…`` is a number whose further digits depend on the machine. It differs by at most 1 in the last digit.
- ``<1e-05`` is any number with an absolute value below 1e-05.
- ``~10.2`` was measured. Any number matches, but a negative number matches only if the document shows a sign.

Other text must match exactly. Empty lines do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_MARK = re.compile(rf"~({_NUMBER})|(?<!\w)<({_NUMBER})|({_NUMBER})…(?![\w.])")
_FENCE = re.compile(r"^```(\w*|\{[\w-]+\})(?: [^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.

    Attributes:
        language: the word after the opening fence; directives of the manual are in braces.
        line: the number of its first line of text in the file, from 1 on.
        text: the lines between the fences.
    """

    language: str
    line: int
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands after ``$``, each with its output in the document."""
        texts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        return list(zip(texts[1::2], texts[2::2]))


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for match in _FENCE.finditer(text):
        yield Block(match[1], text.count("\n", 0, match.start(2)) + 1, match[2])


def difference(wanted: str, printed: str) -> str:
    """Return the differing lines of ``wanted``, from the document, and ``printed``; empty if they agree."""
    wanted_lines = [line.rstrip() for line in wanted.splitlines() if line.strip()]
    printed_lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    sections: list[list[str]] = [[]]
    for line in wanted_lines:
        sections.append([]) if line.strip() == LEFT_OUT else sections[-1].append(line)
    at = 0
    for i, section in enumerate(sections):
        first, last = i == 0, i == len(sections) - 1
        remaining_lines = _remove_columns(section, printed_lines[at:])
        offset = _find_section(section, remaining_lines, first, last)
        if offset is None:
            return _show_difference(section, remaining_lines, first, last)
        at += offset + len(section)
    return ""


def _find_section(section: list[str], lines: list[str], first: bool, last: bool) -> int | None:
    """Return the index in ``lines`` at which a section of the document begins, or None if it is absent.

    The ``first`` section must begin at index 0, and the ``last`` one must end with the last line.
    """
    if first and last and len(section) != len(lines):
        return None
    end = len(lines) - len(section)
    places = [0] if first else [end] if last else range(end + 1)
    for at in places:
        if 0 <= at <= end and all(map(agree, section, lines[at : at + len(section)])):
            return at
    return None


def _remove_columns(section: list[str], lines: list[str]) -> list[str]:
    """Return the printed ``lines`` without the table columns that the section omits.

    Removes the mark of omitted columns from ``section`` in place.
    """
    heads = [line for line in section if line.endswith(f" {LEFT_OUT}")]
    if not heads:
        return lines
    names = _cells(heads[0])[:-1]
    rows = [_cells(line) for line in lines]
    head = next((row for row in rows if set(names) <= set(row)), None)
    if head is None or head[: len(names)] == names:  # The mark stands for the remainder of each line.
        return lines
    width, columns = len(head), [head.index(name) for name in names]
    cut = ["   ".join(row[i] for i in columns) for row in rows if len(row) == width]
    end = next((i for i, row in enumerate(rows) if i > rows.index(head) + 1 and len(row) != width), len(rows))
    section[:] = [
        "   ".join(_cells(line.removesuffix(LEFT_OUT))) if len(_cells(line)) > 1 else line for line in section
    ]
    return [line for line in cut if set(line) - {"-", "─", " "}] + lines[end:]


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def agree(wanted: str, printed: str) -> bool:
    """Return True if the line ``printed`` matches the document's line ``wanted`` and its marked numbers.

    >>> agree("loss is 2.30…, off by <1e-05 in ~20 ms", "loss is 2.3051, off by 2.4e-07 in 345.1 ms")
    True
    >>> agree("loss is 2.30…", "loss is 2.32"), agree("off by <1e-05", "off by 0.1"), agree("1 B", "2 B")
    (False, False, False)
    """
    if wanted.endswith(f" {LEFT_OUT}"):
        words, wanted = len(wanted.split()) - 1, wanted.removesuffix(LEFT_OUT).rstrip()
        printed = (re.match(rf"\s*(?:\S+\s*){{{words}}}", printed) or [printed])[0].rstrip()
    marks = list(_MARK.finditer(wanted))
    if wanted == printed or not marks:
        return wanted == printed
    pattern, at = "", 0
    for mark in marks:
        pattern += _make_pattern(wanted[at : mark.start()]) + f"({_NUMBER})"
        at = mark.end()
    match = re.fullmatch(pattern + _make_pattern(wanted[at:]), printed)
    return match is not None and all(map(_matches_mark, marks, match.groups()))


def _make_pattern(text: str) -> str:
    """Return a pattern for a text with any widths of its spaces, because widths of numbers differ."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


def _matches_mark(mark: re.Match[str], printed: str) -> bool:
    """Return True if a printed number matches a mark of the document: ``~10.2``, ``<1e-05`` or ``2.30…``."""
    measured, above, shown = mark.groups()
    value = float(printed.replace(",", ""))
    if above is not None:
        return abs(value) < float(above.replace(",", ""))
    if measured is not None:
        return measured[0] in "+-" or value >= 0
    number = float(shown.replace(",", ""))
    decimals = len(shown.partition(".")[2])
    return abs(value - number) <= 1.0001 * 10.0**-decimals


def _show_difference(section: list[str], lines: list[str], first: bool, last: bool) -> str:
    """Return the lines of a section beside the most similar ``lines``, where ``first`` and ``last`` allow.

    Lines of the document have the mark ``-``, printed lines ``+``, and equal lines none.
    """
    size = max(len(section), len(lines)) if first and last else len(section)
    places = [0] if first else [max(0, len(lines) - size)] if last else range(max(1, len(lines) - size + 1))
    at = max(places, key=lambda i: sum(map(agree, section, lines[i : i + size])), default=0)
    output_lines = ["the document (-) and what is printed (+) differ:"]
    near = lines[at : at + size]
    for i in range(max(len(section), len(near))):
        one, other = section[i] if i < len(section) else None, near[i] if i < len(near) else None
        if one is not None and other is not None and agree(one, other):
            output_lines.append(f"  {one}")
            continue
        output_lines += [f"{sign} {line}" for sign, line in (("-", one), ("+", other)) if line is not None]
    return "\n".join(output_lines)
