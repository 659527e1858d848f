"""Grade a student's functions: run each in a child process with limits; return points, or a sentence.

Read :func:`score`, which runs a checker, :func:`score_limited`, which limits it, and :func:`grade` and :class:`Grader`,
which scripts and notebooks call.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from spmdsim.errors import InputError, SpmdError
from spmdsim.labs.answers import function_of, run_apart
from spmdsim.labs.declaration import Lab, LabTask, lab
from spmdsim.labs.judging import RANKS, first_mistake
from spmdsim.launch.limits import Limits, describe_mistake, run_limited
from spmdsim.launcher import is_root, launched
from spmdsim.reading import read_text
from spmdsim.simulation import simulate
from spmdsim.worlds import world
from spmdsim.wrong_calls import explained

CHECKING = "spmdsim-check"
"""The tag of cells that grade; they do not belong to the program."""


def compile_answer(path: Path) -> list[CodeType]:
    """Compile a program: a notebook's code cells in order, or a script as one code.

    Cells that grade are left out. An empty notebook gives an empty list.

    Args:
        path: the file; a name that ends in ``.ipynb`` is a notebook, any other a script.

    Raises:
        InputError: If the file cannot be read, is not a notebook, or has a syntax error; the message has its line.
    """
    text = read_text(path, "a program")
    sources = _read_cells(text, path) if path.suffix == ".ipynb" else {str(path): text}
    codes = []
    for name, code in sources.items():
        try:
            codes.append(compile(code, name, "exec"))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise InputError(
                f"{name}{f':{line}' if line else ''}: {type(error).__name__}: {error.args[0]}"
            ) from None
    return codes


def run_program(codes: list[CodeType], path: Path) -> dict[str, Any]:
    """Run a program as an imported module and return its names.

    ``if __name__ == "__main__"`` blocks do not run. Texts that the program prints now are discarded, because the
    program runs once per task. Its functions print as usual when they are called.

    Args:
        codes: the compiled program; see :func:`compile_answer`.
        path: its file, which gives the program its ``__name__`` and ``__file__``.
    """
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for code in codes:
            exec(code, names)
    return names


def _read_cells(text: str, path: Path) -> dict[str, str]:
    """Return the source of each code cell of a notebook, by ``PATH[cell N]``.

    N counts all code cells from 1. Cells that grade (tag :data:`CHECKING`) are left out. Magic commands, lines
    with "%" or "!" in the first column, become empty lines, so the numbers of lines stay. Of a cell that starts with
    "%%", only this line becomes empty.

    Args:
        text: the notebook's JSON.
        path: its file, for names and messages.

    Raises:
        InputError: If the text is not a notebook.
    """
    try:
        code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        checks = [CHECKING in cell.get("metadata", {}).get("tags", ()) for cell in code]
        sources = ["".join(cell["source"]) for cell in code]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{path} must be a notebook with cells in JSON, got other text; save it as a notebook, or name a script *.py"
        ) from None
    return {
        f"{path}[cell {number}]": "\n".join(
            "" if line.startswith(("%", "!")) else line for line in source.splitlines()
        )
        for number, source in enumerate(sources, 1)
        if not checks[number - 1]
    }


Program = Callable[[], Mapping[str, Any]]
"""Function that returns the student's names; it runs in the process with limits."""


@dataclass(frozen=True)
class Score:
    """The points of an answer to one task.

    Attributes:
        task: name of the task.
        points: points of the answer.
        most: largest number of points.
        mistake: the first mistake as one sentence, or None.

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
    """Run a checker on a student's function; return the points and the first mistake.

    Any error of the student's program becomes the mistake; it is not raised. There are no limits of time and memory.

    - Usually the function runs in another process.
    - On launched ranks, or without ``os.fork``, it runs in this process. All launched ranks must call ``score``. All get
      the fewest points of any rank, and the mistake of the first rank that has one.

    Args:
        of: the lab.
        task: one of its tasks.
        program: function that returns the names of the student's program.

    >>> from spmdsim.labs import lab
    >>> score(lab(1), lab(1).task("block"), dict).points
    0
    """
    checker = of.checker(task)  # load the checker before the student's program can change modules
    points, first = 0, None
    try:
        if launched() or not hasattr(os, "fork"):
            points, first = first_mistake(checker(function_of(program(), task.name)))
        else:
            ranks = RANKS if getattr(checker, "is_per_rank", False) else 0
            with run_apart(program, task.name, ranks) as answer:
                points, first = first_mistake(checker(answer))
    except (Exception, SystemExit) as error:
        first = describe_mistake(error)
    if launched():
        real_world = world(RANKS)
        grades = real_world.gather_objects([(points, first)] * len(real_world.ranks), "the grades of a lab")
        points = min(earned for earned, _ in grades)
        first = next((mistake for _, mistake in grades if mistake), None)
    if first is None and points < task.points:
        first = f"its checker came to {points} of {task.points} points without a mistake"
    return Score(task.name, min(points, task.points), task.points, first)


def score_limited(of: Lab, task: LabTask, program: Program, limits: Limits) -> Score:
    """Score a student's function as :func:`score` does, but in a child process with limits.

    If the program exits, hangs, runs out of memory, or writes to the file of the result, the score is 0 points, and the
    mistake states the reason.

    Args:
        of: the lab.
        task: one of its tasks.
        program: function that returns the names of the student's program; it runs in the child process.
        limits: the limits of time and memory.
    """
    if getattr(of.checker(task), "is_per_rank", False):  # the checker is loaded before the program runs
        _prepare_simulations()
    with tempfile.TemporaryFile("w+") as result_file:

        def body() -> int:
            result_file.write(json.dumps(asdict(score(of, task, program))))
            result_file.flush()
            return 0

        try:
            run_limited(body, limits)
            result_file.seek(0)
            return Score(**json.loads(result_file.read()))
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
    """Let the simulator scan the loaded modules before the processes of tasks are forked from this one."""
    with suppress(SpmdError):  # without greenlet the first simulation of a task reports the error
        simulate(len, 1, (), check=False)


def format_report(of: Lab, scores: Iterable[Score], path: Path | None = None) -> list[str]:
    """Return the lines of a student's report: the lab, a line per score, and the sum.

    If a task has a mistake, the last line has the command that prints a hint for the first of these tasks:
    "5 of 8 points; stuck? spmdsim labs check 1 --task block --hint 1".

    Args:
        of: the lab.
        scores: the scores in the order of the lines; the sum is over these only.
        path: the graded file, which the first line names; None for functions without a file.
    """
    scores = list(scores)
    earned, most = sum(score.points for score in scores), sum(score.most for score in scores)
    title = f"lab {of.number}: {of.title}" + (f" ({path})" if path else "")
    lines = [title, *map(str, scores), f"{earned} of {most} points"]
    stuck_task = next((score.task for score in scores if score.mistake), None)
    if stuck_task is not None:
        lines[-1] += f"; stuck? spmdsim labs check {of.number} --task {stuck_task} --hint 1"
    return lines


def hints(task: LabTask, level: int) -> list[str]:
    """Return the hints of a task up to a level from 1 to 3, one line each."""
    return [f"hint {number}: {text}" for number, text in enumerate(task.hints[:level], 1)]


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines on rank 0, or in the only process."""
    if is_root():
        sys.stdout.write("".join(f"{line}\n" for line in lines))


@explained
def grade(number: int, names: Mapping[str, Any], limits: Limits | None = None) -> int:
    """Grade a lab's functions and print their points; the last line of a lab's script calls it.

    Args:
        number: number of the lab.
        names: names with the functions, such as ``globals()``.
        limits: limits for each task; None for the default limits of ``spmdsim labs check``.

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
    _print_lines(format_report(of, scores))
    return int(any(each.points < each.most for each in scores))


class Grader:
    """The grader of a notebook: called with a function, it prints the function's score.

    Args:
        number: number of the lab.
        strict: True to raise AssertionError for missing points, as automatic graders expect.

    >>> check = Grader(1)
    >>> def my_bytes(layout, shape, itemsize):
    ...     return 0
    >>> check.hint("most_bytes", 1)
    hint 1: Count the elements of one rank's shard, not the elements of the tensor.
    """

    def __init__(self, number: int, strict: bool = False) -> None:
        self.lab = lab(number)
        self.strict = strict
        self.scores: dict[str, Score] = {}

    def __call__(self, function: Callable[..., Any]) -> None:
        """Grade one function, whose name selects the task; print and store its score.

        Raises:
            InputError: If the lab has no task of this name.
            AssertionError: If points are missing and ``strict`` is set; the text has the mistake.
        """
        task = self.lab.task(getattr(function, "__name__", repr(function)))
        result = score_limited(self.lab, task, lambda: {task.name: function}, Limits())
        self.scores[task.name] = result
        if self.strict and result.points < result.most:
            raise AssertionError(str(result).strip())
        _print_lines([str(result)])

    def hint(self, task: str, level: int = 1) -> None:
        """Print the hints for a task up to a level, 1 to 3."""
        _print_lines(hints(self.lab.task(task), level))

    def total(self) -> None:
        """Print the report of all tasks of the lab; a task that was not graded yet has 0 points."""
        ungraded = {task.name: Score(task.name, 0, task.points, "not graded yet") for task in self.lab.tasks}
        _print_lines(format_report(self.lab, (ungraded | self.scores).values()))
