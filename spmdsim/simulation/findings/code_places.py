"""Where in the user's program a call stands: file and line, found without slowing the call down.

A running call keeps only its code object and instruction offset (two attribute reads); the line is looked
up when a diagnosis needs it. A blocked rank keeps nothing at all: its suspended stack tells.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from spmdsim.collectives.instructions import runs
from spmdsim.trace.source_lines import in_words

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # all of the simulator
Site = tuple[CodeType, int]


@dataclass(frozen=True)
class ProgramPlace:
    """One call of one rank: ``Recv at ring.py:12``.

    >>> str(ProgramPlace(3, "Recv", "/home/me/ring.py", 12))
    'Recv at ring.py:12'
    """

    rank: int
    call: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.call} at {self.where}"

    @property
    def where(self) -> str:
        """File name and line, without the folder; for a notebook, cell and line."""
        return in_words(self.file, self.line)

    def to_dict(self) -> dict[str, Any]:
        """The place as JSON values."""
        return {"rank": self.rank, "call": self.call, "file": self.file, "line": self.line}


def line_of(code: CodeType, offset: int) -> int:
    """The source line of one instruction."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def site_key(site: Site) -> tuple[str, int, int]:
    """A site as a value: hashing a code object would look at all of its contents."""
    code, offset = site
    return code.co_filename, code.co_firstlineno, offset


def place_of(rank: int, call: str, site: Site) -> ProgramPlace:
    """The place of a call that kept its site."""
    code, offset = site
    return ProgramPlace(rank, call, code.co_filename, line_of(code, offset))


def is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to the simulator and not to the user's program."""
    return frame.f_code.co_filename.startswith(HERE)


def user_call(frame: FrameType | None) -> tuple[str, FrameType | None]:
    """The simulated MPI call a stack is in, and the user's frame that made it."""
    call = ""
    while frame is not None and is_ours(frame):
        call = frame.f_code.co_name
        frame = frame.f_back
    return call, frame


def place_in_stack(rank: int, frame: FrameType | None) -> ProgramPlace:
    """Where a suspended rank stands: the outermost simulator call and the user's line that made it."""
    call, user = user_call(frame)
    if user is None:
        return ProgramPlace(rank, call or "start", "?", 0)
    return ProgramPlace(rank, call, user.f_code.co_filename, user.f_lineno)


def site_in_stack(task: Any) -> Site:
    """The site of the call that a rank stands in."""
    _, user = user_call(task.greenlet.gr_frame or sys._getframe())  # the rank that runs has no such frame
    return (ranks_text.__code__, 0) if user is None else (user.f_code, user.f_lasti)


def ranks_text(ranks: Any, limit: int = 12) -> str:
    """Ranks in words, runs as ranges.

    >>> ranks_text([3])
    'rank 3'
    >>> ranks_text([0, 1, 2, 5, 7])
    'ranks 0-2, 5, 7'
    """
    numbers = sorted(set(ranks))
    words = [
        str(low) if low == high else (f"{low}, {high}" if high == low + 1 else f"{low}-{high}")
        for low, high in runs(numbers)
    ]
    if len(words) > limit:
        words = [*words[: limit - 1], "…", words[-1]]
    return f"rank {words[0]}" if len(numbers) == 1 else f"ranks {', '.join(words)}"
