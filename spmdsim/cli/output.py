"""Output of commands: text and tables, JSON, files, and remarks.

All ranks may call every function; only rank 0 (or the only process) writes, unless each rank has a log. Results go to
stdout, progress and remarks to stderr. Streams whose encoding lacks a glyph get a similar character. The module also
checks, before the work starts, that files can be written and that every option has an effect.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EFBIG, EIO, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError, working_folder
from spmdsim.launcher import beside_root, is_root
from spmdsim.printing import is_printing_rank, say
from spmdsim.shutdown.stop import describe_error, note_exit_code

if TYPE_CHECKING:
    import argparse


unwritten: list[InputError] = []
"""Errors of files that a command could not write, printed after its results."""

REFUSING = ("strict", "backslashreplace", "surrogateescape")
"""Error handlers of streams that Python sets by default; only these are replaced."""

NO_ROOM = (ENOSPC, EDQUOT, EFBIG, EIO)
"""Error numbers of writes to an open file on a full or broken disk."""

LIMITS = "--time-limit --memory-limit --output-limit"
"""Options of commands that run a user's program."""


def print_anywhere() -> None:
    """Make stdout and stderr print "?" for characters that their encoding lacks.

    A stream whose error handler the user has chosen keeps it. Standard streams that are closed (``>&-``) are
    opened as the null device. Otherwise writes to them would fail, or a file that is opened later would get their
    number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
            os.set_inheritable(getattr(sys, name).fileno(), True)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        # Replace only Python's default handlers; in the C locale that is "surrogateescape".
        if reconfigure is not None and getattr(stream, "errors", "") in REFUSING:
            reconfigure(errors="replace")


@contextmanager
def report_print_errors() -> Iterator[None]:
    """Return a context that turns errors of printing in its body into InputErrors of one line.

    The value of the context is None. stdout is flushed at the end of the body. If stdout's disk is full or broken,
    buffered and further output is dropped, because Python would otherwise report a second error when it exits.

    All other errors pass unchanged. Among them are the error of a pipe whose reader has closed it, and the error of a
    full disk that names a file.

    Raises:
        InputError: If stdout's disk is full or broken, a file name is too long, or the working folder was deleted.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno == ENOENT and error.filename is None:
            working_folder()  # raises InputError if the working folder was deleted
        if error.errno == ENAMETOOLONG:
            raise InputError(f"{error.filename!r:.60} is no file: {error.strerror}") from None
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        # Discard buffered output, because Python would report a second error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"cannot write any more: {error.strerror}") from None


def remark(*lines: object) -> None:
    """Print lines to stderr, on rank 0 and on ranks with a log.

    Remarks are for readers; programs that use the output do not need them.
    """
    if is_printing_rank():
        for line in lines:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def to_plain(value: Any) -> Any:
    """Convert a value to the types of JSON.

    * Dicts, lists and tuples: their entries are converted; the keys of dicts stay.
    * Sets become sorted lists; NumPy numbers and arrays become numbers and lists.
    * NaN and infinities become None.
    * Objects with a method ``to_dict`` become what it returns; others become their text.

    Args:
        value: any object; it is not changed.

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
    """Print ``value`` as one JSON document, converted by :func:`to_plain`.

    The document is indented by two blanks, and printed as by :func:`say`. Its lines are not broken, not even on narrow
    terminals.
    """
    say(json.dumps(to_plain(value), indent=2, allow_nan=False, ensure_ascii=False), folds=False)


def write_file(path: str | Path, content: str | bytes) -> bool:
    """Write a file on rank 0; return False if that failed, else True.

    Other ranks write nothing and return True. An existing file is replaced. An OSError is not raised:
    :func:`run_and_report_unwritten` prints it after the results, and the command exits with code 2.

    Args:
        path: the file.
        content: its bytes, or a text that is written as UTF-8.
    """
    errors_before = len(unwritten)
    if is_root():
        with collect_write_error(path):
            Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    return len(unwritten) == errors_before


def wants_pictures(args: argparse.Namespace) -> bool:
    """Return True if ``--svg`` or ``--html`` is given."""
    return args.svg is not None or args.html is not None


def write_pictures(args: argparse.Namespace, *values: object, title: str = "") -> bool:
    """Write the pictures of ``values`` to the files of ``--svg`` and ``--html`` on rank 0.

    Each file has all pictures, one below the other. A line on stderr names each written file. A file that cannot be
    written is reported at the end of the command, as by :func:`write_file`.

    Args:
        args: the command's arguments: ``svg`` and ``html``, each a path or None.
        values: objects of the package that have pictures, or figures; at least one if files are requested.
        title: title of the page and of an SVG with several pictures; if empty, the title of the first figure.

    Returns:
        On rank 0 True if at least one file was written, so the command need not print its result. On other ranks,
        which write nothing, True if files were requested.
    """
    if not wants_pictures(args) or not is_root():
        return wants_pictures(args)
    from spmdsim.figures.figures import figure, page, stacked

    figures = [figure(value) for value in values]
    title = title or figures[0].title
    text_by_path: dict[str, str] = {}
    if args.svg is not None:
        text_by_path[args.svg] = (figures[0] if len(figures) == 1 else stacked(title, figures)).svg
    if args.html is not None:
        text_by_path[args.html] = page(title, figures)
    written_paths = [path for path, text in text_by_path.items() if write_file(path, text)]
    remark(*[f"wrote {path}" for path in written_paths])
    return bool(written_paths)


def writable(text: str) -> str:
    """Return the text if it names a file that can be written; a ``type`` for argparse.

    For the conditions see :func:`require_writable_file`. The file is neither opened nor created.

    Raises:
        ArgumentTypeError: If the file cannot be written.
    """
    from argparse import ArgumentTypeError

    try:
        require_writable_file(text)
    except InputError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def require_writable_file(text: str) -> None:
    """Raise InputError if the file with the path ``text`` cannot be written.

    The file need not exist, but its folder must; a folder is refused. Nothing is written, so a command can call
    it before its work starts. Ranks that do not share rank 0's file system raise nothing.
    """
    path = Path(text)
    target = path if path.exists() else path.parent
    if path.is_dir():
        reason = "it is a folder, not a file"
    elif os.access(target, os.W_OK):
        return
    else:
        reason = os.strerror(EACCES if target.exists() else ENOENT)
    if beside_root():
        raise InputError(f"cannot write {text!r}: {reason}")


def require_folder(folder: Path) -> None:
    """Raise InputError if a folder can be neither written to nor created.

    If the folder does not exist, its nearest existing parent must be a writable folder. Nothing is created, so a
    command can call it before its work starts. Ranks that do not share rank 0's file system raise nothing.
    """
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        error_number = ENOTDIR
    elif not os.access(nearest, os.W_OK):
        error_number = EACCES
    else:
        return
    if beside_root():
        raise InputError(f"cannot write to {folder}: {os.strerror(error_number)}")


@contextmanager
def collect_write_error(path: str | Path) -> Iterator[None]:
    """Append the error of the body of ``with`` to :data:`unwritten` if a file cannot be written.

    :func:`run_and_report_unwritten` prints it after the results.
    """
    try:
        yield
    except OSError as error:
        unwritten.append(InputError(f"cannot write {str(path)!r}: {error.strerror}"))


def run_and_report_unwritten(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command, then print the errors of files that could not be written.

    The errors go to stderr, one line each. Errors that the command raises are not caught, and then no such line is
    printed.

    Args:
        run: gets ``args`` and returns the exit code.
        args: the command's arguments; ``parser`` has the program's name for the messages.

    Returns:
        The command's exit code, or 2 if there were errors.

    Raises:
        InputError: If printing fails because the disk is full.
    """
    unwritten.clear()
    with report_print_errors():  # This function may run in a child process, which has no other handler.
        code = run(args)
    remark(*[describe_error(error, args.parser.prog) for error in unwritten])
    return note_exit_code(2) if unwritten else code


def changed_options(args: argparse.Namespace, flags: str) -> list[str]:
    """Return the options of ``flags`` (separated by blanks) whose values are not their defaults.

    They have the order of ``flags``. An option that is set to its default counts as not set. ``args`` has the command's
    arguments, with the ``parser`` that defines the options.

    Raises:
        KeyError: If the command does not have one of ``flags``.
    """
    options = args.parser._option_string_actions
    return [flag for flag in flags.split() if getattr(args, options[flag].dest) != options[flag].default]


def refuse_options(args: argparse.Namespace, flags: str, others: str) -> None:
    """Raise InputError if one of ``flags`` is set; the error names what it goes with.

    Args:
        args: the command's arguments, with the ``parser`` that defines the options.
        flags: the options that have no effect here, separated by blanks. The error is about the first one that is not
            its default.
        others: the text after "goes with", such as the option that is missing.

    >>> from spmdsim.cli.main import build_parser
    >>> args = build_parser("tune").parse_args(["tune", "-o", "all.json", "--sizes", "64"])
    >>> refuse_options(args, "-n --sizes", "-n RANKS")
    Traceback (most recent call last):
    spmdsim.errors.InputError: --sizes goes with -n RANKS
    """
    for flag in changed_options(args, flags):
        raise InputError(f"{flag} goes with {others}")
