"""What commands print with: one rank speaks, tables on a terminal or in a file, JSON for programs.

Every function may be called by all ranks; only rank 0 (or the only process) writes, unless each rank has a log.
Results go to stdout, progress and remarks to stderr. Streams whose encoding lacks a glyph get a similar character. What
commands refuse before the work is here, too: places that cannot be written, and options that would change nothing beside
the others.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EFBIG, EIO, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError, working_folder
from spmdsim.launcher import beside_root, has_log, is_root, terminal_columns
from spmdsim.shutdown.stop import READER_LEFT, describe_error, note_exit_code
from spmdsim.tables import Table, strip_lines

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

NO_TERMINAL_WIDTH = 200
"""Columns of a table that goes into a file or a pipe: nobody wraps it, so nothing is cut."""

LIKENESS = {**dict(zip("│┼●▶◀→←·×≤≥─µ", "|+*><><.x<>-u")), "∑": "S", "…": "...", "✓": "ok", "✗": "x"}
"""Similar characters for the glyphs of pictures, for streams that cannot encode them."""

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
    return "".join(LIKENESS.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("likeness", _likeness)


def to_encoding(text: str, encoding: str | None) -> str:
    """Return the text with similar characters for those that an encoding lacks.

    >>> to_encoding("0 → 1 ≤ 2", "ascii")
    '0 > 1 < 2'
    """
    return text.encode(encoding or "utf-8", "likeness").decode(encoding or "utf-8")


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


def say(*lines: object, encoding: str | None = None) -> None:
    """Print lines on the speaking rank, and into each rank's own log; each is written in one piece.

    Args:
        lines: texts, tables, or ``rich`` texts, which have colours on terminals. On a narrow terminal lines are broken
            between words, and tables between columns. Files and pipes have no width.
        encoding: the encoding of the text, if it is not the stream's.
    """
    if not is_heard():
        return
    width, out = line_columns(), sys.stdout
    for line in lines:
        if hasattr(line, "plain"):
            if terminal_columns(out) is not None and encoding is None:
                console().print(line, soft_wrap=True)
                continue
            text = strip_lines(line.plain)
        else:
            text = line.text(width) if isinstance(line, Table) else folded(str(line), width)
        out.write(to_encoding(text, encoding or getattr(out, "encoding", None)) + "\n")
    out.flush()


def line_columns() -> int | None:
    """The characters of a line that the environment asks for, or the terminal has; None in files and pipes."""
    said = os.environ.get("COLUMNS", "")
    return (int(said) if said.isdecimal() else 0) or terminal_columns(sys.stdout)


def folded(text: str, width: int | None) -> str:
    r"""Return text whose lines are broken between words where they have more than ``width`` characters.

    >>> print(folded("one two three\n  four five", 9))
    one two
        three
      four
          five
    """
    return text if width is None else "\n".join(_folded_line(line, width) for line in text.split("\n"))


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


def to_plain(value: Any) -> Any:
    """Return a value in the types of JSON: numpy numbers and arrays, sets and objects with ``to_dict`` are converted.

    Floats that JSON lacks become None.

    >>> to_plain({"losses": (1.5, float("nan"), float("inf")), "ranks": {2, 1}})
    {'losses': [1.5, None, None], 'ranks': [1, 2]}
    """
    if isinstance(value, dict):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, set | frozenset):
        return to_plain(sorted(value))
    for method in ("to_dict", "tolist"):
        if hasattr(value, method):
            return to_plain(getattr(value, method)())
    return str(value)


def emit_json(value: object) -> None:
    """Print one JSON document on the speaking rank."""
    say(json.dumps(to_plain(value), indent=2, allow_nan=False, ensure_ascii=False))


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
    from spmdsim.figures.figures import figure, page, stacked

    figures = [figure(value) for value in values]
    title = title or figures[0].title
    drawn: dict[str, str] = {}
    if args.svg is not None:
        drawn[args.svg] = (figures[0] if len(figures) == 1 else stacked(title, figures)).svg
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
    if path.is_dir():
        wrong = "it is a folder, not a file"
    else:
        wrong = "" if os.access(there, os.W_OK) else os.strerror(EACCES if there.exists() else ENOENT)
    if wrong and beside_root():
        raise InputError(f"cannot write {text!r}: {wrong}")


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
    remark(*[describe_error(error, args.parser.prog) for error in unwritten])
    return note_exit_code(2) if unwritten else code


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
