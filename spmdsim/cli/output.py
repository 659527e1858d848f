"""What commands print with: one rank speaks, tables on a terminal or in a file, JSON for programs.

Every function may be called by all ranks; only rank 0 (or the only process) writes, unless each rank has a log.
Results go to stdout, progress and remarks to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spmdsim.ending.notes import has_log
from spmdsim.errors import InputError
from spmdsim.launcher import is_root, terminal_columns

if TYPE_CHECKING:
    import argparse

    from rich.console import Console
    from rich.table import Table

NO_TERMINAL_WIDTH = 200
"""Columns of a table that goes into a file or a pipe: nobody wraps it, so nothing is cut."""


def is_speaker() -> bool:
    """True in the process that speaks for all: rank 0, or the only one."""
    return is_root()


def is_heard() -> bool:
    """True where printing makes sense: in the process that speaks for all, and on ranks with a log of their own."""
    return is_speaker() or has_log()


def console(stderr: bool = False) -> Console:
    """A rich console: colour only on a terminal, wide enough for tables when there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    columns = terminal_columns(stream)
    width = None if "COLUMNS" in os.environ else columns or NO_TERMINAL_WIDTH
    return Console(
        file=stream,
        width=width,
        force_terminal=columns is not None,
        highlight=False,
        quiet=not is_heard(),
        legacy_windows=False,
    )


def say(*lines: object) -> None:
    """Print lines on the speaking rank, and into each rank's own log; each is written in one piece.

    In files and pipes they are as they are; on a terminal that is narrower they go on in the next line, words stay whole.
    """
    if is_heard():
        width = _said_columns() or terminal_columns(sys.stdout)
        for line in lines:
            text = str(line)
            if width:
                text = "\n".join(folded(one, width) for one in text.split("\n"))
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _said_columns() -> int:
    """The width that the environment asks for, 0 if it asks for none."""
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() else 0


def folded(line: str, width: int) -> str:
    """A line of at most so many characters, or several: broken between the cells of a table, else between words.

    >>> print(folded("operator  layouts         time", 20))
    operator  layouts
               time
    """
    if len(line) <= width:
        return line
    import re
    import textwrap

    gaps = [gap for gap in re.finditer(r"(?<=\S) {2,}", line) if gap.start() <= width]
    if gaps:  # rows of a table break at one place, so columns stay below each other
        rest = "    " + line[gaps[-1].start() + 2 :]
        rest = rest if len(rest) <= width else "    " + rest.lstrip()
        return f"{line[: gaps[-1].start()]}\n{folded(rest, width)}"
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.strip(), width, initial_indent=indent, subsequent_indent=indent + "    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def remark(*lines: object) -> None:
    """Like :func:`say`, on stderr: what a reader wants to know and a program does not."""
    if is_heard():
        for line in lines:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    title: str | None = None,
    right: Sequence[str] = (),
) -> Table:
    """A plain table to give to ``console().print``.

    Args:
        columns: headings.
        rows: cells, shown with ``str``; a rich object (coloured text) is kept.
        title: a line above it.
        right: headings of the columns to align right (numbers).
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import ConsoleRenderable
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        grid.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(c if isinstance(c, ConsoleRenderable) else Text(str(c)) for c in row))
    return grid


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """Print a table, or, where words would have to be cut to make it fit, a paragraph for each row.

    Args:
        columns: headings; the first column needs none in a paragraph.
        rows: cells, shown with ``str``.
        title: a line above it.
        right: headings of the columns to align right.
    """
    from rich.measure import Measurement

    out, grid = console(), table(columns, rows, title, right)
    unbounded = out.options.update_width(100_000)
    room = Measurement.get(out, unbounded, grid)
    if room.minimum <= out.width:
        if room.maximum > out.width:
            _fit(grid, columns, rows, out.width - room.maximum)
        out.print(grid)
        return
    if title:
        say(title)
    for first, *rest in rows:
        cells = [f"{name} {cell}" for name, cell in zip(columns[1:], rest) if str(cell)]
        say(_paragraph(f"{first}: {'; '.join(cells)}", out.width))


def _fit(grid: Table, columns: Sequence[str], rows: Sequence[Sequence[object]], spare: int) -> None:
    """Narrow the columns by ``-spare`` characters in all, such that words stay whole."""
    texts = [[name, *map(str, cells)] for name, cells in zip(columns, zip(*rows))]
    least = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    widths = [max(map(len, column)) for column in texts]
    while (
        spare < 0 and (wide := max(range(len(widths)), key=lambda i: widths[i] * (widths[i] > least[i]))) >= 0
    ):
        if widths[wide] <= least[wide]:
            break
        widths[wide], spare = widths[wide] - 1, spare + 1
    for column, width in zip(grid.columns, widths):
        column.width = width


def _paragraph(text: str, width: int) -> str:
    import textwrap

    return textwrap.fill(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _plain(value: Any) -> Any:
    """What json does not know: numpy numbers and arrays, sets, objects with ``to_dict``."""
    for method in ("to_dict", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def emit_json(value: object) -> None:
    """Print one JSON document on the speaking rank."""
    say(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a file on the speaking rank.

    Raises:
        InputError: it cannot be written.
    """
    if is_speaker():
        with writing(path):
            Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def write_pictures(args: argparse.Namespace, *values: object, title: str = "", **options: Any) -> bool:
    """Write the files that ``--svg`` and ``--html`` ask for, on the speaking rank; false where nothing is asked for.

    Args:
        args: of a command that declared ``pictures()``.
        *values: what is drawn: values of the package, or figures of theirs.
        title: of a page; that of its first figure if left out.
        **options: what the figures take, such as ``shape``.

    Raises:
        InputError: a file cannot be written, or there is too much to draw.
    """
    if (args.svg is None and args.html is None) or not is_speaker():
        return args.svg is not None or args.html is not None
    from spmdsim.draw.figures import Figure, figure_of, page, stacked

    figures = [value if isinstance(value, Figure) else figure_of(value, **options) for value in values]
    title = title or figures[0].title
    if args.svg is not None:
        write_file(args.svg, (figures[0] if len(figures) == 1 else stacked(title, figures)).svg())
        remark(f"wrote {args.svg}")
    if args.html is not None:
        write_file(args.html, page(title, figures))
        remark(f"wrote {args.html}")
    return True


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Say in one line that a file cannot be written, if it cannot.

    Raises:
        InputError: with the system's reason.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from None


class Progress(Protocol):
    """Told of each piece of work that is done."""

    def __call__(self, label: str = "") -> None:
        """One more piece is done; ``label`` names the next one."""


@contextmanager
def progress(total: int, what: str) -> Iterator[Progress]:
    """Show how far a long command is: on the speaking rank, on a terminal, on stderr, without communication.

    >>> with progress(2, "cases") as step:
    ...     step("matmul")
    ...     step()
    """
    shown = is_speaker() and terminal_columns(sys.stderr) is not None
    done = 0

    def step(label: str = "") -> None:
        nonlocal done
        done += 1
        if shown:
            sys.stderr.write(f"\r\x1b[2K{what} {done}/{total} {label}")
            sys.stderr.flush()

    try:
        yield step
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
