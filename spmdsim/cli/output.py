"""What commands print with: one rank speaks, tables on a terminal or in a file, JSON for programs.

Every function may be called by all ranks; only rank 0 (or the only process) writes, unless each rank has a log.
Results go to stdout, progress and remarks to stderr. On terminals and pipes that know only ASCII or an old code page
arrows and lines become their likeness. What they refuse before the work is here, too: places that cannot be written, and
options that would change nothing beside the others.
"""

from __future__ import annotations

import codecs
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EFBIG, EIO, EISDIR, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from spmdsim.ending.stop import READER_LEFT, describe, leave
from spmdsim.errors import InputError, working_folder
from spmdsim.launcher import beside_root, has_log, is_root, terminal_columns

if TYPE_CHECKING:
    import argparse

    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

COMFORTABLE = 24
"""Characters that a cell may have before it goes on in a second line."""

NO_TERMINAL_WIDTH = 200
"""Columns of a table that goes into a file or a pipe: nobody wraps it, so nothing is cut."""

LIKENESS = {
    **dict(zip("│┃┼●▶◀→←·×≤≥–━═─", "||+*><><.x<>--=-")),
    **{
        "∑": "S",
        "…": "...",
        "α": "alpha",
        "β": "beta",
        "γ": "gamma",
        "µ": "u",
        "█": "#",
        "✓": "ok",
        "✗": "x",
    },
}

unwritten: list[InputError] = []
"""What a command could not write, to be said when it has shown what it computed."""

REFUSING = ("strict", "backslashreplace", "surrogateescape")
"""How streams treat what their encoding does not have, where nobody said otherwise."""

NO_ROOM = (ENOSPC, EDQUOT, EFBIG, EIO)
"""Why a file that was open cannot be written any more."""

LIMITS = "--time-limit --memory-limit --output-limit"
"""Of commands that run somebody's program."""


def _likeness(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(LIKENESS.get(c, "?") for c in wrong), error.end


codecs.register_error("likeness", _likeness)


def print_anywhere() -> None:
    """Let stdout and stderr write what their encoding does not have as something alike instead of failing.

    A stream that was closed before (``>&-``) goes nowhere: what a command writes besides must not fail for it, nor get
    its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
            os.set_inheritable(getattr(sys, name).fileno(), True)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        # In the C locale Python lets bytes through that it read, and those alone.
        if reconfigure is not None and getattr(stream, "errors", "") in REFUSING:
            reconfigure(errors="likeness")


@contextmanager
def printing() -> Iterator[None]:
    """Say in one line that what is printed cannot be written, as on a full disk, or that the folder is gone.

    That who reads it has left is no mistake, and passes.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno == ENOENT and error.filename is None:
            working_folder()
        if error.errno == ENAMETOOLONG:
            raise InputError(f"{error.filename!r:.60} is no file: {error.strerror}") from None
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        # What is still held goes nowhere, or Python complains of it in the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"cannot write any more: {error.strerror}") from None


def in_encoding_of(stream: IO[str], text: str) -> str:
    """The text as this stream can write it, whoever made the stream.

    >>> import io
    >>> in_encoding_of(io.TextIOWrapper(io.BytesIO(), "ascii"), "0 → 1 ≤ 2")
    '0 > 1 < 2'
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "likeness").decode(encoding)


def is_heard() -> bool:
    """True where printing makes sense: in the process that speaks for all, and on ranks with a log of their own."""
    return is_root() or has_log()


def console() -> Console:
    """A rich console: colour only on a terminal, wide enough for tables when there is none."""
    from rich.console import Console

    class Printing(Console):
        """Leaves with the same code as what prints by itself when who reads it has left: rich's would be that of a verdict."""

        def on_broken_pipe(self) -> None:
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
        quiet=not is_heard(),
        legacy_windows=False,
    )


def say(*lines: object) -> None:
    """Print lines on the speaking rank, and into each rank's own log; each is written in one piece.

    In files and pipes they are as they are; on a terminal that is narrower, words and columns of tables stay whole.
    """
    if is_heard():
        width = line_columns()
        for line in lines:
            sys.stdout.write(f"{folded(str(line), width) if width else line}\n")
        sys.stdout.flush()


def line_columns() -> int | None:
    """The characters of a line that the environment asks for, or the terminal has; None in files and pipes."""
    said = os.environ.get("COLUMNS", "")
    return (int(said) if said.isdecimal() else 0) or terminal_columns(sys.stdout)


def folded(text: str, width: int) -> str:
    r"""Text with no line longer than so many characters, where its words allow it.

    A table goes on below itself, with its first column once more; other lines are broken between words.

    >>> print(folded("operator  layouts  time\nmatmul      S(0)R    12\nrelu        S(0)R     3", 20))
    operator  layouts
    matmul      S(0)R
    relu        S(0)R
    <BLANKLINE>
    operator  time
    matmul      12
    relu         3
    """
    lines = []
    for cells, several in itertools.groupby(text.split("\n"), key=_has_columns):
        block = list(several)
        if cells and max(map(len, block)) > width:
            block = _folded_table(block, width)
        lines += [_folded_line(line, width) for line in block]
    return "\n".join(lines)


def _has_columns(line: str) -> bool:
    return len(re.split(r" {2,}", line.strip())) > 2


def _folded_table(lines: list[str], width: int) -> list[str]:
    """Rows whose columns stand below each other, as several tables of fewer columns, all with those that tell rows apart."""
    inked = "".join(
        " x"[any(cell.strip() for cell in column)] for column in itertools.zip_longest(*lines, fillvalue="")
    )
    ends = [column.end() for column in re.finditer(r"x(?: ?x)*", inked)]
    telling = [end for end in ends if end <= width // 2 and len({line[:end] for line in lines}) == len(lines)]
    first = (telling or ends)[0]
    parts: list[tuple[int, int]] = []
    # A column begins where the one before it ends: numbers stay below each other.
    for end in ends[ends.index(first) + 1 :]:
        if parts and first + end - parts[-1][0] <= width:
            parts[-1] = parts[-1][0], end
        else:
            parts.append((parts[-1][1] if parts else first, end))
    shown = [["", *((line[:first].ljust(first) + line[a:b]).rstrip() for line in lines)] for a, b in parts]
    return [line for part in shown for line in part][1:] or lines


def _folded_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
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
    """A plain table to give to ``console().print``: headings, cells as ``str`` or rich objects, headings of numbers."""
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
    box: Box | None = None,
) -> None:
    """Print a table, or, where words would have to be cut to make it fit, several with fewer columns.

    Where the first column does not tell rows apart, it is a paragraph for each row instead.
    """
    out = console()
    texts = [[name, *(str(row[k]) for row in rows)] for k, name in enumerate(columns)]
    groups = _groups(texts, out.width) if rows else [range(len(columns))]
    for part in groups:
        shown = [[row[k] for k in part] for row in rows]
        grid = table([columns[k] for k in part], shown, title, right)
        grid.box = box or grid.box
        _fit(grid, [texts[k] for k in part], out.width)
        out.print(grid)
        title = None
    if not groups:
        say(*([title] if title else []))
        for first, *rest in rows:
            cells = [f"{name} {cell}" for name, cell in zip(columns[1:], rest) if str(cell)]
            say(_folded_line(f"{first}: {'; '.join(cells)}", out.width))


def _least(column: Sequence[str]) -> int:
    """The width of a column that keeps words whole, and what stands in brackets."""
    return max(
        len(word) for text in column for word in re.findall(r"\[[^][]*\]|\([^()]*\)|\S+", text) or [""]
    )


def _room(widths: Sequence[int]) -> int:
    """The characters of a row: between columns there are three, and one at each end."""
    return sum(widths) + 3 * len(widths) - 1


def _groups(texts: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[int]]:
    """The columns of each of the tables to print, the first column in all of them; none where rows cannot be told by it."""
    least, most = [_least(column) for column in texts], [max(map(len, column)) for column in texts]
    every = range(len(texts))
    if len(set(texts[0])) < len(texts[0]):
        return [every] if _room(least) <= width else []
    # Better another table than short cells in many lines.
    wanted = [max(one, min(other, COMFORTABLE)) for one, other in zip(least, most)]
    for count in every[:-1]:
        ways = [
            [[0, *range(a, b)] for a, b in itertools.pairwise((1, *cuts, len(texts)))]
            for cuts in itertools.combinations(every[2:], count)
        ]
        if fitting := [way for way in ways if all(_room([wanted[k] for k in part]) <= width for part in way)]:
            return min(fitting, key=lambda way: max(_room([most[k] for k in part]) for part in way))
    return []


def _fit(grid: Table, texts: Sequence[Sequence[str]], width: int) -> None:
    """Narrow the widest columns until a row fits; words stay whole."""
    least, widths = [_least(column) for column in texts], [max(map(len, column)) for column in texts]
    while _room(widths) > width and any(map(int.__gt__, widths, least)):
        widths[max(range(len(widths)), key=lambda k: widths[k] * (widths[k] > least[k]))] -= 1
    for column, room in zip(grid.columns, widths):
        column.width = room


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


def write_file(path: str | Path, content: str | bytes) -> bool:
    """Write a file on the speaking rank; false where it could not be, which is said in the end."""
    before = len(unwritten)
    if is_root():
        with writing(path):
            Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    return len(unwritten) == before


def wants_pictures(args: argparse.Namespace) -> bool:
    """Whether ``--svg`` or ``--html`` is given."""
    return args.svg is not None or args.html is not None


def write_pictures(args: argparse.Namespace, *values: object, title: str = "") -> bool:
    """Write the files that ``--svg`` and ``--html`` ask for, on the speaking rank; false where none is there to be looked at.

    Values are those of the package, or figures of theirs; a page has the title of its first figure if none is given.
    """
    if not wants_pictures(args) or not is_root():
        return wants_pictures(args)
    from spmdsim.draw.figures import Figure, figure_of, page, stacked

    figures = [value if isinstance(value, Figure) else figure_of(value) for value in values]
    title = title or figures[0].title
    drawn: dict[str, str] = {}
    if args.svg is not None:
        drawn[args.svg] = (figures[0] if len(figures) == 1 else stacked(title, figures)).svg()
    if args.html is not None:
        drawn[args.html] = page(title, figures)
    there = [path for path, text in drawn.items() if write_file(path, text)]
    remark(*[f"wrote {path}" for path in there])
    return bool(there)


def writable(text: str) -> str:
    """The type of an argument: a file that can be written, as :func:`require_writable` says."""
    from argparse import ArgumentTypeError

    try:
        require_writable(text)
    except InputError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def require_writable(text: str) -> None:
    """Refuse a file that cannot be written, as far as its place tells: before the work, on all ranks that see the place."""
    path = Path(text)
    there = path if path.exists() else path.parent
    wrong = (
        EISDIR if path.is_dir() else 0 if os.access(there, os.W_OK) else EACCES if there.exists() else ENOENT
    )
    if wrong and beside_root():
        raise InputError(f"cannot write {text!r}: {os.strerror(wrong)}")


def require_folder(folder: Path) -> None:
    """Refuse a folder that can be neither written to nor made, on all ranks that see its place."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    wrong = 0 if there.is_dir() and os.access(there, os.W_OK) else EACCES if there.is_dir() else ENOTDIR
    if wrong and beside_root():
        raise InputError(f"cannot write to {folder}: {os.strerror(wrong)}")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Let a file that cannot be written be said in the end, in one line: results are shown first."""
    try:
        yield
    except OSError as error:
        unwritten.append(InputError(f"cannot write {str(path)!r}: {error.strerror}"))


def saying_unwritten(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command, and say in the end what it could not write; then its exit code is 2."""
    unwritten.clear()
    with printing():  # in a process of its own, too
        code = run(args)
    remark(*[describe(error, args.parser.prog) for error in unwritten])
    return leave(2) if unwritten else code


def chosen(args: argparse.Namespace, flags: str) -> list[str]:
    """Those of some options, between blanks, that have another value than by default."""
    options = args.parser._option_string_actions
    return [flag for flag in flags.split() if getattr(args, options[flag].dest) != options[flag].default]


def only_with(args: argparse.Namespace, flags: str, others: str) -> None:
    """Refuse the options: what they say counts only with the ``others``, which are not there.

    >>> from spmdsim.cli.main import build_parser
    >>> args = build_parser("tune").parse_args(["tune", "-o", "all.json", "--sizes", "64"])
    >>> only_with(args, "-n --sizes", "-n RANKS")
    Traceback (most recent call last):
    spmdsim.errors.InputError: --sizes goes with -n RANKS
    """
    for flag in chosen(args, flags):
        raise InputError(f"{flag} goes with {others}")
