"""The line of the user's program that runs now, as a number, found in a fraction of a microsecond."""

from __future__ import annotations

import sys
from itertools import count
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from spmdsim.bounded import Bounded
from spmdsim.sides import number_of
from spmdsim.trace.recorder import source_line, users

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.board import Board

#: Functions and lines that are remembered.
KEPT = 8192

#: By the identity of a function's code: itself (so that it stays its own), and 0 if it is not the user's, else where
#: the numbers of its instructions begin.
_codes: Bounded[int, tuple[CodeType, int]] = Bounded(KEPT)
_numbers = count(1)


def this_line(board: Board, depth: int = 1) -> int:
    """The number of the user's line that called, the same on all ranks; 0 if there is none.

    Args:
        board: where the line is told in words, the first time.
        depth: frames to leave out.
    """
    lines = board.lines
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        known = _codes.get(id(code))
        if known is None:
            known = _remember(frame)
        if known[1]:
            instruction = known[1] + frame.f_lasti
            line = lines.get(instruction)
            return _name(frame, instruction, board) if line is None else line
        frame = frame.f_back
    return 0


def _remember(frame: FrameType) -> tuple[CodeType, int]:
    code = frame.f_code
    known = _codes[id(code)] = code, next(_numbers) << 32 if users(code.co_filename) else 0
    return known


def _name(frame: FrameType, instruction: int, board: Board) -> int:
    words = source_line(frame) or "an unknown place"
    line = board.lines[instruction] = number_of(words)
    board.tell(line, words)
    return line
