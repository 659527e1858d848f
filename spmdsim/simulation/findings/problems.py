"""Findings: one sentence each, with its ranks, calls and source lines as values.

A running call stores only its code object and instruction offset (two attribute reads). The line is looked
up when a finding needs it. A blocked rank stores no place, because its suspended stack has it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from spmdsim.collectives.instructions import name_runs
from spmdsim.pictured import ShortRepr
from spmdsim.worlds.trace.source_lines import format_place

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # folder of the simulator
#: Files of Python's modules in which threads wait.
_THREAD_FILES = tuple(
    os.path.join(os.path.dirname(threading.__file__), name)
    for name in ("threading.py", "queue.py", "concurrent" + os.sep)
)
#: A call site: the code object and the offset of its instruction.
Site = tuple[CodeType, int]


@dataclass(frozen=True)
class ProgramPlace:
    """The place of one rank's call in the program, such as ``Recv at ring.py:12``.

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
        """File name without folder, and line; in a notebook the cell and line."""
        return format_place(self.file, self.line)

    def to_dict(self) -> dict[str, Any]:
        """Return the place as JSON values."""
        return {"rank": self.rank, "call": self.call, "file": self.file, "line": self.line}


def line_of(code: CodeType, offset: int) -> int:
    """Return the source line of an instruction; the function's first line if the instruction has none.

    Args:
        code: the code object.
        offset: position of the instruction in bytes.
    """
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def site_key(site: Site) -> tuple[str, int, int]:
    """Return a call site as a value that is fast to hash: (file, first line of the function, offset).

    Hashing a code object visits all of its contents.
    """
    code, offset = site
    return code.co_filename, code.co_firstlineno, offset


def describe_call_place(rank: int, call: str, site: Site) -> ProgramPlace:
    """Return the place of a recorded call."""
    code, offset = site
    return ProgramPlace(rank, call, code.co_filename, line_of(code, offset))


def is_ours(frame: FrameType) -> bool:
    """Return True if a frame belongs to the simulator instead of the user's program."""
    return frame.f_code.co_filename.startswith(HERE)


def users_frame(frame: FrameType) -> FrameType:
    """Return ``frame``; for a generated method, return the frame of the program that called it.

    The methods that dataclasses and named tuples generate have the file ``<string>``, which shows the reader no line.
    If the program has no other file, as with ``python -c``, ``frame`` itself is returned.
    """
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename == "<string>":
        caller = caller.f_back
    return frame if caller is None or is_ours(caller) else caller


def site_of(frame: FrameType) -> Site:
    """Return the call site of a caller's frame; see `users_frame`."""
    frame = users_frame(frame)
    return frame.f_code, frame.f_lasti


def user_call(frame: FrameType | None) -> tuple[str, FrameType | None]:
    """Return the name of the simulated MPI call in a stack, and the frame of the program that made it.

    Args:
        frame: the innermost frame of the stack; None for an empty stack.

    Returns:
        The name of the outermost function of the simulator before the user's, which is empty if the stack begins in
        the user's program; the frame, or None if the stack has no frame of the user's program.
    """
    call, user = _leave_frames(frame, is_ours)
    if user is not None and _is_of_threads(user):
        in_threads, caller = _leave_frames(frame, lambda frame: is_ours(frame) or _is_of_threads(frame))
        call, user = (in_threads, caller) if caller is not None else (call, user)
    return call, users_frame(user) if user is not None else None


def _leave_frames(
    frame: FrameType | None, is_inside: Callable[[FrameType], bool]
) -> tuple[str, FrameType | None]:
    """Leave the first frames of a stack that are inside; return the last one's name and the next frame.

    Args:
        frame: the innermost frame of the stack; None for an empty stack.
        is_inside: returns True if a frame is inside.
    """
    call = ""
    while frame is not None and is_inside(frame):
        call = frame.f_code.co_name
        frame = frame.f_back
    return call, frame


def _is_of_threads(frame: FrameType) -> bool:
    """Return True if a frame belongs to a module of Python in which threads wait, such as ``queue``."""
    return frame.f_code.co_filename.startswith(_THREAD_FILES)


def place_in_stack(rank: int, frame: FrameType | None) -> ProgramPlace:
    """Return the place of a suspended rank: its MPI call and the user's line that made it.

    Without a frame of the user's program, the file is "?" and the line 0.

    Args:
        rank: the rank, which becomes a part of the result.
        frame: the innermost frame of the stack; None for an empty stack.
    """
    call, user = user_call(frame)
    if user is None:
        return ProgramPlace(rank, call or "start", "?", 0)
    return ProgramPlace(rank, call, user.f_code.co_filename, user.f_lineno)


def ranks_text(ranks: Any, limit: int = 12) -> str:
    """Return ranks as text, with runs as ranges; of more than ``limit`` runs the middle ones are left out.

    Args:
        ranks: an iterable of at least one rank, in any order; repeated ones count once.
        limit: the number of runs that are shown, with the mark … for those left out.

    >>> ranks_text([3])
    'rank 3'
    >>> ranks_text([0, 1, 2, 5, 7])
    'ranks 0..2, 5, 7'
    """
    numbers = sorted(set(ranks))
    words = name_runs(numbers)
    if len(words) > limit:
        words = [*words[: limit - 1], "…", words[-1]]
    return f"rank {words[0]}" if len(numbers) == 1 else f"ranks {', '.join(words)}"


ERROR = "error"
WARNING = "warning"


@dataclass(frozen=True, repr=False)
class Problem(ShortRepr):
    """Finding about the program.

    Attributes:
        kind: a stable word for programs, such as ``deadlock`` or ``collective_mismatch``.
        severity: ``error`` (against the standard, or the program cannot end) or ``warning`` (it ends only by luck).
        message: one sentence that names the ranks, the calls and the lines.
        ranks: the concerned ranks of the program, ascending.
        places: the concerned calls.
        cycle: ranks of a deadlock; each waits for the next one, the last one for the first. Empty without a cycle.
        details: more lines, such as the wait of every blocked rank.

    >>> from spmdsim import simulate
    >>> from spmdsim.simulation import SimulationError
    >>> def program():
    ...     from mpi4py import MPI
    ...     MPI.COMM_WORLD.recv(source=0)
    >>> try:
    ...     simulate(program, 2)
    ... except SimulationError as error:
    ...     error.report.problems[0].kind
    'deadlock'
    """

    kind: str
    severity: str
    message: str
    ranks: tuple[int, ...] = ()
    places: tuple[ProgramPlace, ...] = ()
    cycle: tuple[int, ...] = ()
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind.replace('_', ' ')}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values.

        Keys are the attributes' names. "ranks", "cycle" and "details" are lists; "places" is a list of {"rank",
        "call", "file", "line"}.
        """
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "ranks": list(self.ranks),
            "places": [location.to_dict() for location in self.places],
            "cycle": list(self.cycle),
            "details": list(self.details),
        }
