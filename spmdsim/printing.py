"""Print lines on the ranks that print: rank 0, the only process, or ranks with a log of their own.

Lines are as wide as the terminal. Streams whose encoding lacks a glyph get "?".
"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

from spmdsim.launcher import has_log, is_root, terminal_columns
from spmdsim.shutdown.stop import READER_LEFT
from spmdsim.tables import Table, strip_lines

if TYPE_CHECKING:
    from rich.console import Console

NO_TERMINAL_WIDTH = 200
"""Width of a rich console in a file or a pipe, where lines need not be wrapped."""


def to_encoding(text: str, encoding: str | None) -> str:
    """Return the text with "?" instead of characters that an encoding lacks; None is UTF-8.

    >>> to_encoding("0 → 1 ≤ 2", "ascii")
    '0 ? 1 ? 2'
    """
    return text.encode(encoding or "utf-8", "replace").decode(encoding or "utf-8")


def is_printing_rank() -> bool:
    """Return True if this process prints.

    It is rank 0, the only process, or a rank with a log of its own.
    """
    return is_root() or has_log()


def console() -> Console:
    """Return a rich console for stdout, which prints on rank 0 and on ranks with a log file.

    On other ranks it prints nothing. It has colours only on a terminal. Its width is the first of: the environment
    variable COLUMNS, the terminal's width, :data:`NO_TERMINAL_WIDTH`. If the program that reads stdout has closed the
    pipe, printing raises SystemExit with the code :data:`READER_LEFT`.
    """
    from rich.console import Console

    class Printing(Console):
        """Console that exits with :data:`READER_LEFT` if its reader closed the pipe.

        The exit code of rich, 1, would mean that a verdict does not hold.
        """

        def on_broken_pipe(self) -> None:
            """Exit with :data:`READER_LEFT`."""
            try:
                super().on_broken_pipe()
            except SystemExit:
                raise SystemExit(READER_LEFT) from None

    columns = terminal_columns(sys.stdout)
    width = None if "COLUMNS" in os.environ else columns or NO_TERMINAL_WIDTH
    return Printing(
        file=sys.stdout,
        width=width,
        force_terminal=columns is not None,
        highlight=False,
        quiet=not is_printing_rank(),
        legacy_windows=False,
    )


def say(*lines: object, folds: bool = True) -> None:
    """Print lines to stdout on rank 0 and on ranks with a log file; other ranks print nothing.

    If stdout is a terminal, long lines are broken between words, and wide tables between columns. In files and pipes
    nothing is broken. A ``rich`` text is never broken here. Each line is written with one call, and stdout is flushed
    at the end.

    Args:
        lines: what to print: a Table, a ``rich`` text (with colours on a terminal), or any object, printed as its
            ``str``.
        folds: False to break no line.
    """
    if not is_printing_rank():
        return
    width, out = line_columns() if folds else None, sys.stdout
    for line in lines:
        if hasattr(line, "plain"):
            if terminal_columns(out) is not None:
                console().print(line, soft_wrap=True)
                continue
            text = strip_lines(line.plain)
        else:
            text = line.text(width) if isinstance(line, Table) else fold_lines(str(line), width)
        out.write(to_encoding(text, getattr(out, "encoding", None)) + "\n")
    out.flush()


def line_columns() -> int | None:
    """Return the width of printed lines in characters; None in files and pipes.

    The variable COLUMNS sets the width, also in files and pipes. Without it, the terminal does.
    """
    columns = os.environ.get("COLUMNS", "")
    return (int(columns) if columns.isdecimal() else 0) or terminal_columns(sys.stdout)


def fold_lines(text: str, width: int | None) -> str:
    r"""Break the lines of a text between words if they have more than ``width`` characters.

    >>> print(fold_lines("one two three\n  four five", 9))
    one two
        three
      four
          five
    """
    return text if width is None else "\n".join(_fold_line(line, width) for line in text.split("\n"))


def _fold_line(line: str, width: int) -> str:
    """Break one line between words into lines of at most ``width`` characters.

    The second and later lines are indented by four more blanks than the first. A longer word is not broken, so
    its line is longer than ``width``. A line that fits is returned unchanged.
    """
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.strip(), width, initial_indent=indent, subsequent_indent=indent + "    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
