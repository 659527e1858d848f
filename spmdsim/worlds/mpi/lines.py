"""The line of the user's program that runs now, as a number, found in a fraction of a microsecond."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import spmdsim
from spmdsim.bounded import Bounded
from spmdsim.sides import number_of
from spmdsim.trace.recorder import source_line, users
from spmdsim.worlds.mpi.board import as_float

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.board import Board

#: Where the package is.
_PACKAGE = os.path.dirname(spmdsim.__file__) + os.sep
#: Functions and lines that are remembered.
KEPT = 8192

#: By the identity of a function's code: 0 if it is not the user's, else its number.
functions: dict[int, int] = {}
#: The code of these, so that their identity stays their own.
_codes: Bounded[int, CodeType] = Bounded(KEPT, lambda code: functions.pop(id(code)))
_numbers = count(1)


def user_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The first frame of the user's from this one on, and the number of its function."""
    while frame is not None:
        function = functions.get(id(frame.f_code))
        if function is None:
            function = remember(frame.f_code)
        if function:
            return frame, function
        frame = frame.f_back
    return None, 0


def threads_in_calls() -> list[str]:
    """The user's threads that are in a call of the package now, by name."""
    here = []
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame: FrameType | None = frames.get(thread.ident or 0)
        while frame is not None and not users(frame.f_code.co_filename):
            if frame.f_code.co_filename.startswith(_PACKAGE) and not thread.name.startswith("spmdsim "):
                here.append(thread.name)
                break
            frame = frame.f_back
    return here


def this_line(board: Board, depth: int = 1) -> float:
    """The number of the user's line that called, the same on all ranks, to be written; 0 if there is none."""
    frame, function = user_frame(sys._getframe(depth))
    if frame is None:
        return 0.0
    lines = board.lines_of(function)
    return lines.get(frame.f_lasti) or name(frame, lines, board)


def line_above(
    board: Board, under: FrameType
) -> tuple[float, CodeType | None, Callable[[int], float | None], int]:
    """``this_line`` of a call, the code it is in, what knows that one's lines, and how many frames above the given one's callee."""
    frame, function = user_frame(under)
    lines, above = board.lines_of(function), 1
    if frame is None:
        return 0.0, None, lines.get, above
    line = lines.get(frame.f_lasti) or name(frame, lines, board)
    while under is not frame and under.f_back is not None:
        under, above = under.f_back, above + 1
    return line, frame.f_code, lines.get, above


def remember(code: CodeType) -> int:
    """The number of a function; 0 if it is not the user's."""
    function = functions[id(code)] = next(_numbers) if users(code.co_filename) else 0
    _codes[id(code)] = code
    return function


def name(frame: FrameType, lines: dict[int, float], board: Board) -> float:
    """The number of a frame's line, told in words and kept among its function's lines."""
    words = source_line(frame) or "an unknown place"
    number = number_of(words)
    board.tell(number, words)
    line = lines[frame.f_lasti] = as_float(number)
    return line
