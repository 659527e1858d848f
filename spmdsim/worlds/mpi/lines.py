"""The line of the user's program that runs now, as a number, found in a fraction of a microsecond."""

from __future__ import annotations

import os
import sys
import threading
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

#: By the identity of a function's code: 0 if it is not the user's, else where the numbers of its instructions begin.
instructions: dict[int, int] = {}
#: The code of these, so that their identity stays their own.
_codes: Bounded[int, CodeType] = Bounded(KEPT, lambda code: instructions.pop(id(code)))
_numbers = count(1)


def user_frame(frame: FrameType | None) -> tuple[FrameType | None, CodeType | None, int]:
    """The first frame of the user's from this one on, its code, and where the numbers of its instructions begin."""
    while frame is not None:
        first = instructions.get(id(frame.f_code))
        if first is None:
            first = remember(frame)
        if first:
            return frame, frame.f_code, first
        frame = frame.f_back
    return None, None, 0


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
    """The number of the user's line that called, the same on all ranks, to be written; 0 if there is none.

    Args:
        board: where the line is told in words, the first time.
        depth: frames to leave out.
    """
    frame, _, first = user_frame(sys._getframe(depth))
    if frame is None:
        return 0.0
    return board.lines.get(first + frame.f_lasti) or name(frame, first + frame.f_lasti, board)


def remember(frame: FrameType) -> int:
    """Where the numbers of a frame's instructions begin; 0 if it is not the user's."""
    code = frame.f_code
    first = instructions[id(code)] = next(_numbers) << 32 if users(code.co_filename) else 0
    _codes[id(code)] = code
    return first


def name(frame: FrameType, instruction: int, board: Board) -> float:
    """The number of a frame's line, told in words."""
    words = source_line(frame) or "an unknown place"
    number = number_of(words)
    board.tell(number, words)
    line = board.lines[instruction] = as_float(number)
    return line
