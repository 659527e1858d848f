"""Grading: a student's functions run in a child process with limits, and each earns points or a sentence."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from spmdsim.errors import InputError, SpmdError
from spmdsim.labs.answers import answer_apart, function_of
from spmdsim.labs.declaration import Lab, LabTask, lab
from spmdsim.labs.judging import RANKS, first_mistake
from spmdsim.launch.limits import Limits, describe_mistake, run_limited
from spmdsim.launcher import is_root, launched
from spmdsim.reading import read_text
from spmdsim.simulation import simulate
from spmdsim.worlds import world

CHECKING = "spmdsim-check"
"""The tag of cells that grade: they are no part of the program."""


def compiled(path: Path) -> list[CodeType]:
    """Compile the cells of a program in order."""
    text = read_text(path, "a program")
    pieces = _cells(text, path) if path.suffix == ".ipynb" else {str(path): text}
    codes = []
    for name, code in pieces.items():
        try:
            codes.append(compile(code, name, "exec"))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise InputError(
                f"{name}{f':{line}' if line else ''}: {type(error).__name__}: {error.args[0]}"
            ) from None
    return codes


def run_program(codes: list[CodeType], path: Path) -> dict[str, Any]:
    """Run a program as an imported module and return its names; ``if __name__ == "__main__"`` blocks do not run."""
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    for code in codes:
        exec(code, names)
    return names


def _cells(text: str, path: Path) -> dict[str, str]:
    try:
        code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        checks = [CHECKING in cell.get("metadata", {}).get("tags", ()) for cell in code]
        sources = ["".join(cell["source"]) for cell in code]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path} is no notebook") from None
    return {
        f"{path}[cell {number}]": "\n".join(
            "" if line.startswith(("%", "!")) else line for line in source.splitlines()
        )
        for number, source in enumerate(sources, 1)
        if not checks[number - 1]
    }


Program = Callable[[], Mapping[str, Any]]
"""Gives the student's names; it runs where the limits hold."""


@dataclass(frozen=True)
class Score:
    """The points of an answer to one task.

    Attributes:
        task: its name.
        points: what it earned.
        most: what it could earn.
        mistake: the first mistake, in one sentence; None if there is none.

    >>> Score("block", 2, 3, "block(7, 4, 0) gives ...").points
    2
    """

    task: str
    points: int
    most: int
    mistake: str | None = None

    def __str__(self) -> str:
        mark = "ok  " if self.points == self.most else "    "
        head = f"{mark}{self.task}: {self.points} of {self.most} points"
        return f"{head}: {self.mistake}" if self.mistake else head


def score(of: Lab, task: LabTask, program: Program) -> Score:
    """Run a checker on a student's function and return the score.

    The function runs in a process of its own; on launched ranks, or without ``os.fork``, it runs in this process.

    Args:
        of: the lab.
        task: one of its tasks.
        program: called without arguments; gives the names of the student's program, the function among them.

    Returns:
        The points, and the first mistake; on ranks the fewest points of any rank.

    >>> from spmdsim.labs import lab
    >>> score(lab(1), lab(1).task("block"), dict).points
    0
    """
    checker = of.checker(task)  # what judges is there before the program runs
    points, first = 0, None
    try:
        if launched() or not hasattr(os, "fork"):
            points, first = first_mistake(checker(function_of(program(), task.name)))
        else:
            ranks = RANKS if getattr(checker, "is_per_rank", False) else 0
            with answer_apart(program, task.name, ranks) as answer:
                points, first = first_mistake(checker(answer))
    except (Exception, SystemExit) as error:
        first = describe_mistake(error)
    if launched():
        here = world(RANKS)
        everywhere = here.gather_objects([(points, first)] * len(here.ranks), "the grades of a lab")
        points = min(each for each, _ in everywhere)
        first = next((said for _, said in everywhere if said), None)
    if first is None and points < task.points:
        first = f"its checker came to {points} of {task.points} points without a mistake"
    return Score(task.name, min(points, task.points), task.points, first)


def score_limited(of: Lab, task: LabTask, program: Program, limits: Limits) -> Score:
    """Like :func:`score`, but with limits: a program that exits, hangs or runs out of memory earns nothing."""
    if getattr(of.checker(task), "is_per_rank", False):  # the checker is loaded before the program runs
        _prepare_simulations()
    with tempfile.TemporaryFile("w+") as box:

        def body() -> int:
            box.write(json.dumps(asdict(score(of, task, program))))
            box.flush()
            return 0

        try:
            run_limited(body, limits)
            box.seek(0)
            return Score(**json.loads(box.read()))
        except InputError as error:
            return Score(task.name, 0, task.points, str(error))
        except (ValueError, TypeError):
            return Score(
                task.name,
                0,
                task.points,
                "the program writes to the grader's files: nothing can be said of it",
            )


@cache
def _prepare_simulations() -> None:
    """Let the simulator look through the modules that are loaded, once for all tasks: their processes are forks of this one."""
    with suppress(SpmdError):  # greenlet is not installed: the first simulation of a task says so
        simulate(len, 1, (), check=False)


def report(of: Lab, scores: Iterable[Score]) -> list[str]:
    """Return the lines of a student's report: the lab's title, a line per task, and the sum."""
    scores = list(scores)
    earned, most = sum(each.points for each in scores), sum(each.most for each in scores)
    lines = [f"lab {of.number}: {of.title}", *map(str, scores), f"{earned} of {most} points"]
    first = next((each.task for each in scores if each.mistake), None)
    if first is not None:
        lines[-1] += f"; stuck? spmdsim labs check {of.number} --task {first} --hint 1"
    return lines


def hints(task: LabTask, level: int) -> list[str]:
    """Return the hints for a task up to a level."""
    return [f"hint {number}: {text}" for number, text in enumerate(task.hints[:level], 1)]


def _say(lines: Iterable[str]) -> None:
    if is_root():
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def grade(number: int, names: Mapping[str, Any], limits: Limits | None = None) -> int:
    """Grade a lab's functions and print what they earn: the last line of a lab's script.

    Args:
        number: the lab's.
        names: where the functions are, such as ``globals()``.
        limits: per task; those of ``spmdsim labs check`` if left out.

    Returns:
        0 if all points are earned, else 1.

    >>> grade(1, {})
    lab 1: Where does my tensor live?
        layouts: 0 of 3 points: there is no function layouts in the program
        block: 0 of 3 points: there is no function block in the program
        owners: 0 of 2 points: there is no function owners in the program
        most_bytes: 0 of 2 points: there is no function most_bytes in the program
    0 of 10 points; stuck? spmdsim labs check 1 --task layouts --hint 1
    1
    """
    of = lab(number)
    scores = [score_limited(of, task, lambda: names, limits or Limits()) for task in of.tasks]
    _say(report(of, scores))
    return int(any(each.points < each.most for each in scores))


class Grader:
    """The grader of a notebook: called with a function, it prints the function's score.

    Args:
        number: the lab's.
        strict: raise instead of printing where points are missing, as automatic graders want it.

    >>> check = Grader(1)
    >>> def my_bytes(layout, shape, itemsize):
    ...     return 0
    >>> check.hint("most_bytes", 1)
    hint 1: Only the elements that a rank holds count, not the tensor's.
    """

    def __init__(self, number: int, strict: bool = False) -> None:
        self.lab = lab(number)
        self.strict = strict
        self.scores: dict[str, Score] = {}

    def __call__(self, function: Callable[..., Any]) -> None:
        """Grade one function, found by its name.

        Raises:
            InputError: the lab has no task of this name.
            AssertionError: ``strict``, and points are missing; the sentence says why.
        """
        task = self.lab.task(getattr(function, "__name__", repr(function)))
        marks = score_limited(self.lab, task, lambda: {task.name: function}, Limits())
        self.scores[task.name] = marks
        if self.strict and marks.points < marks.most:
            raise AssertionError(str(marks).strip())
        _say([str(marks)])

    def hint(self, task: str, level: int = 1) -> None:
        """Print the hints for a task up to a level, 1 to 3."""
        _say(hints(self.lab.task(task), level))

    def total(self) -> None:
        """Print what all functions that were graded so far earn together."""
        nothing = {task.name: Score(task.name, 0, task.points, "not graded yet") for task in self.lab.tasks}
        _say(report(self.lab, (nothing | self.scores).values()))
