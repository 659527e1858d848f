"""Lines of the user's program: find the frame that calls this package, and name its line.

A name is ``model.py:12``, or for a notebook's cell the name that Jupyter uses.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from itertools import count, islice
from types import CodeType, FrameType

from spmdsim.shutdown.stop import PACKAGE

#: Lines of a call and its callers that are compared or printed at most.
MOST_LINES = 8
#: The lines whose calls are replayed now by recorded programs; the last one is current.
lines_again: list[str | None] = []


def cell(file: str) -> str | None:
    """Return the name of a notebook's cell, such as ``Cell In[4]``; None for other files.

    It asks the running shell, so that IPython is not imported here. Without a shell, every file is another file.

    Args:
        file: the name of the source file, which IPython made up for a cell.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    words = getattr(getattr(shell, "compile", None), "format_code_name", None)
    words_of = None if words is None else words(file)
    return None if words_of is None else " ".join(words_of)


def format_place(file: str, line: int | None, folder: bool = False) -> str:
    """Return a place in a source file as text; for a notebook's cell with the name of the cell.

    Args:
        file: the path of the file.
        line: the line.
        folder: True for the whole path, False for the file's name.

    >>> format_place("/home/me/model.py", 12), format_place("/home/me/model.py", 12, folder=True)
    ('model.py:12', '/home/me/model.py:12')
    """
    name = cell(file)
    if name is not None:
        return f"{name}, line {line}"
    return f"{file if folder else os.path.basename(file)}:{line}"


def source_line(frame: FrameType | None = None) -> str | None:
    """Return ``file:line`` of the user's call: the innermost frame outside this package.

    For a notebook's cell, it is the cell's name and line. While a compiled function is replayed, it is the recorded
    line, if ``frame`` is None.

    Args:
        frame: a frame of another thread; None for the caller's frame.

    Returns:
        The line; None if no frame is the user's.
    """
    if lines_again and frame is None:
        return lines_again[-1]
    return next(_user_lines(sys._getframe(1) if frame is None else frame), None)


def user_place() -> tuple[str, int]:
    """Return the file and the line of the innermost frame outside this package.

    ``("unknown", 0)`` without one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("unknown", 0)


def source_lines() -> str:
    """Return the lines of the user's call and of its callers: ``"model.py:12 < train.py:40"``.

    The innermost line is the first; at most :data:`MOST_LINES` (8) lines are returned. Without a user's line it is "".
    """
    return " < ".join(islice(_user_lines(sys._getframe(1)), MOST_LINES))


def is_user_file(name: str) -> bool:
    """Return True if a source file counts as the user's: any file, or a notebook's cell.

    Files of this package, ``contextlib`` and generated code (``<...>``) do not count; other installed packages do.

    Args:
        name: the file's name, as a code object has it.
    """
    return (
        not name.startswith(PACKAGE)
        and name != contextlib.__file__
        and (not name.startswith("<") or bool(cell(name)))
    )


def _user_lines(frame: FrameType | None) -> Iterator[str]:
    """Yield the lines of the user's files on the call stack, from a frame outwards to its callers.

    A line is text such as "model.py:12". Frames of other files are passed over. In a notebook, the last line is the
    one of the cell's top level, because the callers of the cell only run it.

    Args:
        frame: the innermost frame; None yields nothing.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            yield format_place(name, frame.f_lineno)
            if frame.f_code.co_name.startswith(("<module", "<cell")) and cell(name):
                return  # The callers of the cell only run it.
        frame = frame.f_back


# -- frames, found in a fraction of a microsecond

#: Number of functions that are stored; then all are removed.
KEPT = 8192

#: By the identity of a function's code: 0 if it is not the user's, else its number.
functions: dict[int, int] = {}
#: The code objects of ``functions``. As long as they are referred to, no other code gets their identity.
_codes: list[CodeType] = []
_numbers = count(1)


def user_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the innermost frame of the user's code, and a number that stands for its function.

    The search goes from ``frame`` to its callers; if no frame is the user's, the result is ``(None, 0)``. The numbers
    start at 1 and are valid in this process. If the cache is cleared, a function may get another number.

    Args:
        frame: the first frame; None gives ``(None, 0)``.
    """
    while frame is not None:
        function = functions.get(id(frame.f_code))
        if function is None:
            function = _store_number(frame.f_code)
        if function:
            return frame, function
        frame = frame.f_back
    return None, 0


def _store_number(code: CodeType) -> int:
    """Store and return the number of a function that is not stored yet.

    A function of the user's gets a new number, any other function 0. If :data:`KEPT` (8,192) functions are stored, all are
    removed first; their numbers are not used again.

    Args:
        code: the function's code.
    """
    if len(_codes) >= KEPT:
        functions.clear()
        _codes.clear()
    _codes.append(code)
    function = functions[id(code)] = next(_numbers) if is_user_file(code.co_filename) else 0
    return function


def threads_in_calls() -> list[str]:
    """Return the names of the user's threads that are in a call of the package now.

    A thread is in a call if a frame of this package comes before the innermost one of the user's. The package's own
    threads ("spmdsim ...") are left out.
    """
    thread_names = []
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame: FrameType | None = frames.get(thread.ident or 0)
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            if frame.f_code.co_filename.startswith(PACKAGE) and not thread.name.startswith("spmdsim "):
                thread_names.append(thread.name)
                break
            frame = frame.f_back
    return thread_names
