"""The user's lines as numbers on the board, each told there once in words."""

from __future__ import annotations

import sys
from types import FrameType

from spmdsim.sides import number_of
from spmdsim.trace.source_lines import source_line, user_frame
from spmdsim.worlds.mpi.board import Board, as_float


def this_line(board: Board, depth: int = 1) -> float:
    """The number of the user's line that called, the same on all ranks, to be written; 0 if there is none."""
    frame, function = user_frame(sys._getframe(depth))
    if frame is None:
        return 0.0
    lines = board.lines_of(function)
    return lines.get(frame.f_lasti) or name(frame, lines, board)


def these_lines(board: Board, under: FrameType, most: int) -> tuple[float, ...]:
    """Return the numbers of the user's call and of the calls around it, innermost first, the same on all ranks."""
    numbers: list[float] = []
    frame, function = user_frame(under)
    while frame is not None and len(numbers) < most:
        lines = board.lines_of(function)
        numbers.append(lines.get(frame.f_lasti) or name(frame, lines, board))
        frame, function = user_frame(frame.f_back)
    return tuple(numbers)


def name(frame: FrameType, lines: dict[int, float], board: Board) -> float:
    """The number of a frame's line, told in words and kept among its function's lines."""
    words = source_line(frame) or "an unknown place"
    number = number_of(words)
    board.tell(number, words)
    line = lines[frame.f_lasti] = as_float(number)
    return line
