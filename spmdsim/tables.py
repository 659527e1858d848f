"""Tables with heads and rows of text, written as text of any width or as HTML."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import zip_longest

COMFORTABLE = 24
"""Length up to which a cell is not broken in lines, because several tables are easier to read than long cells."""

_WORD = re.compile(r"(?:\[[^][]*\]|\([^()]{,20}\))[.,:;]*|\S+")
"""Characters that stay in one line: a word, a slice, or at most 20 characters between two parentheses.

Punctuation behind a slice or parenthesis belongs to it.
"""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        heads: names of the columns, with units in parentheses.
        rows: a text for each column; other values are converted with ``str``.
        title: a line above the table.
        right: numbers of the columns that are aligned right.
        notes: lines below the table.

    >>> print(Table(("name", "n"), [("a", 1), ("bc", 23)], right=(1,)).text())
    name   n
    ----  --
    a      1
    bc    23
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    right: Container[int] = ()
    notes: tuple[str, ...] = ()

    def shorten(self, most: int) -> Table:
        """Return the table without rows before the last one if it has more than ``most`` rows.

        The result then has the first ``most - 1`` rows, a row such as "... 7 more" with the number of rows that are
        left out, and the last row. A table that is not longer is returned itself.

        Args:
            most: the number of rows above which rows are left out.
        """
        if len(self.rows) <= most:
            return self
        gap = (f"... {len(self.rows) - most} more", *("",) * (len(self.heads) - 1))
        return replace(self, rows=(*self.rows[: most - 1], gap, self.rows[-1]))

    @property
    def cells(self) -> list[list[str]]:
        """Texts of all cells, row by row; the first row has the heads."""
        return [[str(cell) for cell in row] for row in (self.heads, *self.rows)]

    def text(self, width: int | None = None) -> str:
        """Return the table with its title and notes as one string, without a newline at the end.

        A table that is wider than ``width`` becomes several tables below each other, with some columns each. Each of
        them repeats the columns that distinguish the rows, for example "name". If these columns leave no room, the
        tables number the rows instead. Long cells are broken between words. A word that is longer than ``width``
        makes its line longer.

        Args:
            width: the characters of a line; None for no limit.
        """
        columns = [list(column) for column in zip(*self.cells)]
        groups = _group_columns(columns, width)
        repeated = [columns[k] for k in groups[0] if k in groups[-1]]
        # Number the rows if the repeated columns do not distinguish them, or leave no room for the others.
        if self.heads[:1] != ("#",) and (
            len({*zip(*repeated)}) < len({*zip(*columns)}) or _is_too_wide(columns, groups, width)
        ):
            return self._numbered().text(width)
        blocks = ["\n".join(self._render_columns(columns, group, width)) for group in groups]
        around = ["\n".join(_wrap(line, width)) for line in (self.title, *self.notes)]
        return "\n".join([*filter(None, around[:1]), "\n\n".join(blocks), *around[1:]])

    def _numbered(self) -> Table:
        """Return the table with a first column that numbers the rows."""
        rows = [(number, *row) for number, row in enumerate(self.rows, 1)]
        right = {0, *(k + 1 for k in range(len(self.heads)) if k in self.right)}
        return replace(self, heads=("#", *self.heads), rows=rows, right=right)

    def _render_columns(self, columns: list[list[str]], group: list[int], width: int | None) -> Iterator[str]:
        """Yield the lines of some columns of the table: heads, a dashed line, rows.

        Two blanks separate columns. If the line would be too long, the widest columns are narrowed, and their cells
        are broken between words, so that a row has several lines.

        Args:
            columns: the texts of each column of the table, its head first.
            group: the numbers of the columns to write.
            width: the characters of a line; None for no limit.
        """
        widths = [max(map(len, columns[k])) for k in group]
        if width is not None:
            _narrow(widths, [_longest_word(columns[k]) for k in group], width - 2 * (len(group) - 1))
        for number, row in enumerate(zip(*(columns[k] for k in group))):
            for line in zip_longest(*map(_wrap, row, widths), fillvalue=""):
                cells = [
                    cell.rjust(wide) if k in self.right else cell.ljust(wide)
                    for k, cell, wide in zip(group, line, widths)
                ]
                yield "  ".join(cells).rstrip()
            if number == 0:
                yield "  ".join("-" * wide for wide in widths)

    def html(self) -> str:
        """Return the table as an HTML element, followed by its notes, with all texts escaped.

        Heads have ``scope="col"``, so that screen readers announce them. The title is the table's caption. Cells of
        columns aligned right have the class "right". Each note that is not empty is a paragraph after the table.
        """
        sides = [' class="right"' if k in self.right else "" for k in range(len(self.heads))]
        head, *rows = self.cells
        columns = "".join(
            f'<th scope="col"{side}>{escape_words(text)}</th>' for text, side in zip(head, sides)
        )
        body = "".join(
            f"<tr>{''.join(f'<td{side}>{escape_words(cell)}</td>' for cell, side in zip(row, sides))}</tr>"
            for row in rows
        )
        caption = f"<caption>{escape_words(self.title)}</caption>" if self.title else ""
        notes = "".join(f"<p>{escape_words(note)}</p>" for note in filter(None, self.notes))
        return f"<table>{caption}<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>{notes}"


def join_text(parts: Iterable[str | Table], width: int | None = None) -> str:
    """Return lines and tables below each other as one text; tables are at most ``width`` characters wide."""
    return "\n".join(item.text(width) if isinstance(item, Table) else item for item in parts)


def strip_lines(text: str) -> str:
    """Return the text without blanks at the ends of its lines."""
    return "\n".join(map(str.rstrip, text.split("\n")))


def escape_words(text: str) -> str:
    """Return text as HTML in which no line breaks inside of an arrow ``->``."""
    return escape(text).replace("-&gt;", '<span style="white-space:nowrap">-&gt;</span>')


def _line_length(widths: list[int]) -> int:
    """Return the length of a line of columns of these widths, with two blanks between columns."""
    return sum(widths) + 2 * len(widths) - 2


def _longest_word(column: list[str]) -> int:
    """Return the length of the longest word of a column."""
    return max(len(word) for text in column for word in _WORD.findall(text) or [""])


def _group_columns(columns: list[list[str]], width: int | None) -> list[list[int]]:
    """Distribute the columns over several tables below each other; return their column numbers.

    Each table begins with the leading columns, and gets further columns as long as it fits into ``width`` characters.
    So a table is wider than ``width`` only if one column does not fit beside the leading ones. Cells of up to
    :data:`COMFORTABLE` (24) characters are not broken.

    The leading columns are the shortest run of first columns in which all rows differ. If they need more than half of
    the width, or no run distinguishes the rows, it is only the first column.

    Args:
        columns: the texts of each column, its head first.
        width: the characters of a line; None puts all columns into one table.

    >>> _group_columns([["name", "x", "y"], ["forward", "1", "2"], ["reverse", "3", "4"]], 11)
    [[0, 1], [0, 2]]
    """
    every = list(range(len(columns)))
    widths = [max(_longest_word(column), min(max(map(len, column)), COMFORTABLE)) for column in columns]
    if width is None or _line_length(widths) <= width:
        return [every]
    rows = list(zip(*columns))
    # The number of the first column with which all rows differ.
    last_leading = next((k for k in every if len({row[: k + 1] for row in rows}) == len(rows)), 0)
    leading = every[: last_leading + 1]
    if sum(widths[k] + 2 for k in leading) > width // 2:
        leading = every[:1]
    groups: list[list[int]] = []
    for number in every[len(leading) :]:
        if not groups or _line_length([widths[k] for k in (*groups[-1], number)]) > width:
            groups.append([*leading])
        groups[-1].append(number)
    return groups or [every]


def _is_too_wide(columns: list[list[str]], groups: list[list[int]], width: int | None) -> bool:
    """Return True if a table is too wide, but each column would fit beside a column of row numbers.

    A column needs at least the characters of its longest word; two blanks separate columns.
    """
    if width is None:
        return False
    least_widths = [_longest_word(column) for column in columns]
    digits = len(str(len(columns[0]) - 1)) if columns else 0  # of the largest row number
    fits_beside_numbers = all(_line_length([digits, least]) <= width for least in least_widths)
    return fits_beside_numbers and any(
        _line_length([least_widths[k] for k in group]) > width for group in groups
    )


def _narrow(widths: list[int], least: list[int], room: int) -> None:
    """Reduce the largest of ``widths`` in place until their sum is at most ``room``, none below ``least``."""
    while sum(widths) > room:
        reducible = [k for k in range(len(widths)) if widths[k] > least[k]]
        if not reducible:
            break
        widest = max(reducible, key=lambda k: widths[k])
        widths[widest] -= 1


def _wrap(text: str, width: int | None) -> list[str]:
    """Return a text in lines of at most ``width`` characters, broken between words.

    - A text that fits is returned unchanged. Otherwise several blanks become one; only blanks give one empty line.
    - A word longer than ``width`` has a line of its own.
    - A text in square brackets, and up to 20 characters in parentheses, count as one word.

    >>> _wrap("the rows (of x) here", 10)
    ['the rows', '(of x)', 'here']
    """
    if width is None or len(text) <= width:
        return [text]
    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines
