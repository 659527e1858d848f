"""Documents as tests: their blocks of commands with what these print.

What may differ from the text, a reader can see in it:

- a line ``...`` stands for lines that are left out, at the end of a table's head for columns, of a line for its rest;
- ``2.30…`` is a number whose further digits depend on the machine: it differs by at most one in the last one shown;
- ``<1e-05`` is a number that is smaller;
- ``~10.2`` was measured: on another machine another number stands there; a negative one only where the sign is shown.

Everything else is printed as it stands, but for empty lines.
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
    """One fenced block of a document.

    Attributes:
        language: what stands behind the fence, a directive of the manual in braces.
        line: where its first line stands in the file.
        text: what is in it.
    """

    language: str
    line: int
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Commands after ``$``, each with what it prints."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2]))


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document."""
    for match in _FENCE.finditer(text):
        yield Block(match[1], text.count("\n", 0, match.start(2)) + 1, match[2])


def difference(wanted: str, printed: str) -> str:
    """What a command printed that a document does not say, line beside line; empty if they agree."""
    ours = [line.rstrip() for line in wanted.splitlines() if line.strip()]
    theirs = [line.rstrip() for line in printed.splitlines() if line.strip()]
    parts: list[list[str]] = [[]]
    for line in ours:
        parts.append([]) if line.strip() == LEFT_OUT else parts[-1].append(line)
    at = 0
    for i, part in enumerate(parts):
        first, last = i == 0, i == len(parts) - 1
        space = _only_columns(part, theirs[at:])
        offset = _find(part, space, first, last)
        if offset is None:
            return _beside(part, space, first, last)
        at += offset + len(part)
    return ""


def _find(part: list[str], lines: list[str], first: bool, last: bool) -> int | None:
    """Where the lines of a part stand together: at the begin if it is the first one, at the end if it is the last."""
    if first and last and len(part) != len(lines):
        return None
    end = len(lines) - len(part)
    places = [0] if first else [end] if last else range(end + 1)
    for at in places:
        if 0 <= at <= end and all(map(agree, part, lines[at : at + len(part)])):
            return at
    return None


def _only_columns(part: list[str], lines: list[str]) -> list[str]:
    """Without the columns that a table of the document leaves out."""
    heads = [line for line in part if line.endswith(f" {LEFT_OUT}")]
    if not heads:
        return lines
    names = _cells(heads[0])[:-1]
    rows = [_cells(line) for line in lines]
    head = next((row for row in rows if set(names) <= set(row)), None)
    if head is None or head[: len(names)] == names:  # the rest of the lines is left out
        return lines
    width, kept = len(head), [head.index(name) for name in names]
    cut = ["   ".join(row[i] for i in kept) for row in rows if len(row) == width]
    end = next((i for i, row in enumerate(rows) if i > rows.index(head) + 1 and len(row) != width), len(rows))
    part[:] = [
        "   ".join(_cells(line.removesuffix(LEFT_OUT))) if len(_cells(line)) > 1 else line for line in part
    ]
    return [line for line in cut if set(line) - {"-", "─", " "}] + lines[end:]


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def agree(wanted: str, printed: str) -> bool:
    """Whether a line was printed as it stands in the document, but for numbers that are marked.

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
        pattern += _loosely(wanted[at : mark.start()]) + f"({_NUMBER})"
        at = mark.end()
    match = re.fullmatch(pattern + _loosely(wanted[at:]), printed)
    return match is not None and all(map(_right, marks, match.groups()))


def _loosely(text: str) -> str:
    """A pattern for a text in which the widths of numbers may have moved what follows."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


def _right(mark: re.Match[str], printed: str) -> bool:
    measured, above, shown = mark.groups()
    value = float(printed.replace(",", ""))
    if above is not None:
        return abs(value) < float(above.replace(",", ""))
    if measured is not None:
        return measured[0] in "+-" or value >= 0
    number = float(shown.replace(",", ""))
    decimals = len(shown.partition(".")[2])
    return abs(value - number) <= 1.0001 * 10.0**-decimals


def _beside(part: list[str], lines: list[str], first: bool, last: bool) -> str:
    """The lines of a part beside those that are nearest to it."""
    size = max(len(part), len(lines)) if first and last else len(part)
    places = [0] if first else [max(0, len(lines) - size)] if last else range(max(1, len(lines) - size + 1))
    at = max(places, key=lambda i: sum(map(agree, part, lines[i : i + size])), default=0)
    told = ["the document (-) and what is printed (+) differ:"]
    near = lines[at : at + size]
    for i in range(max(len(part), len(near))):
        one, other = part[i] if i < len(part) else None, near[i] if i < len(near) else None
        if one is not None and other is not None and agree(one, other):
            told.append(f"  {one}")
            continue
        told += [f"{sign} {line}" for sign, line in (("-", one), ("+", other)) if line is not None]
    return "\n".join(told)
