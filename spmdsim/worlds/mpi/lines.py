"""The line of the user's program that runs now, as a number, found in a fraction of a microsecond."""

from __future__ import annotations

import sys
from itertools import count
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple

from spmdsim.bounded import Bounded
from spmdsim.sides import number_of
from spmdsim.trace.recorder import source_line, users

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.board import Board

#: Functions and lines that are remembered.
KEPT = 8192

#: By the identity of a function's code: 0 if it is not the user's, else where the numbers of its instructions begin.
instructions: dict[int, int] = {}
#: The code of these, so that their identity stays their own.
_codes: Bounded[int, CodeType] = Bounded(KEPT, lambda code: instructions.pop(id(code)))
_numbers = count(1)


class UserFrame(NamedTuple):
    """Where on the stack the user's program is.

    Attributes:
        code: the code of the function; None if no function is the user's.
        first: where the numbers of its instructions begin.
        depth: how many frames below are not the user's.
    """

    code: CodeType | None
    first: int
    depth: int


def user_frame(frame: FrameType | None) -> tuple[FrameType | None, UserFrame]:
    """The first frame of the user's from this one on."""
    depth = 0
    while frame is not None:
        first = instructions.get(id(frame.f_code))
        if first is None:
            first = remember(frame)
        if first:
            return frame, UserFrame(frame.f_code, first, depth)
        frame, depth = frame.f_back, depth + 1
    return None, UserFrame(None, 0, depth)


def this_line(board: Board, depth: int = 1) -> int:
    """The number of the user's line that called, the same on all ranks; 0 if there is none.

    Args:
        board: where the line is told in words, the first time.
        depth: frames to leave out.
    """
    frame, user = user_frame(sys._getframe(depth))
    if frame is None:
        return 0
    return board.lines.get(user.first + frame.f_lasti) or name(frame, user.first + frame.f_lasti, board)


def remember(frame: FrameType) -> int:
    """Where the numbers of a frame's instructions begin; 0 if it is not the user's."""
    code = frame.f_code
    first = instructions[id(code)] = next(_numbers) << 32 if users(code.co_filename) else 0
    _codes[id(code)] = code
    return first


def name(frame: FrameType, instruction: int, board: Board) -> int:
    """The number of a frame's line, told in words."""
    words = source_line(frame) or "an unknown place"
    line = board.lines[instruction] = number_of(words)
    board.tell(line, words)
    return line
