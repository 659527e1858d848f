"""Labs as students get them, read from one Markdown text each; :mod:`spmdsim.labs.teaching` adds what teachers have besides.

``course/lab1.md``::

    # Title
    Minutes: 35
    Goals:
    - one per line

    Text, and a block of Python that every program of the lab starts with.

    ## function (2 points): What it is about
    Text, and a block of Python with the function to be written. A block that starts with ``python look`` is only a
    cell of the notebook.

    ### Hints
    1. three of them
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from spmdsim.errors import InputError, unknown
from spmdsim.labs.judging import Checker

COURSE = Path(__file__).parent / "course"
LEVELS = 3
"""How many hints each task has, the last of them nearly the answer."""
PARTS = re.compile(r"^```python(?P<look> look)?\n(?P<code>.*?)^```\n?", re.MULTILINE | re.DOTALL)
TASK = re.compile(r"(?P<name>\w+) \((?P<points>\d+) points?\): (?P<title>.+)")


@dataclass(frozen=True)
class WrongAnswer:
    """A typical wrong answer.

    Attributes:
        sentence: what whoever gives it is told.
        why: what people think who give it.
        code: the answer.

    >>> WrongAnswer("block(7, 4, 0) gives (0, 1), but it is (0, 2)", "Rounded down.", "...").why
    'Rounded down.'
    """

    sentence: str
    why: str
    code: str


@dataclass(frozen=True)
class LabTask:
    """One function that a student writes.

    Attributes:
        name: the function's.
        points: how many it is worth; its checker earns them one by one.
        title: in a few words.
        parts: text and code as (kind, text) in the order in which they stand; kinds are ``text``, ``look`` and ``code``.
        hints: three, each says more than the one before.
        solution: code that earns all points; empty where the teacher's material was not read.
        wrong: typical wrong answers; empty where the teacher's material was not read.

    >>> from spmdsim.labs import lab
    >>> lab(3).tasks[0].name
    'no_communication'
    """

    name: str
    points: int
    title: str
    parts: tuple[tuple[str, str], ...]
    hints: tuple[str, ...]
    solution: str = ""
    wrong: tuple[WrongAnswer, ...] = ()

    @property
    def starter(self) -> str:
        """The code that the student starts from."""
        return next(text for kind, text in self.parts if kind == "code")


@dataclass(frozen=True)
class Lab:
    """One lab: the student's material, and the teacher's material where it was read.

    Attributes:
        number: from 1 on.
        title: of the lab.
        minutes: how long students take.
        goals: what they can do afterwards.
        parts: text and code before the first task, as in a task.
        tasks: in order.
        notes: for teachers, Markdown; empty where the teacher's material was not read.
        slides: Markdown, one slide between two lines ``---``; empty where the teacher's material was not read.

    >>> from spmdsim.labs import lab
    >>> lab(3).title, lab(3).points
    ('Matrix products on grids of ranks', 10)
    """

    number: int
    title: str
    minutes: int
    goals: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    tasks: tuple[LabTask, ...]
    notes: str = ""
    slides: str = ""

    @property
    def setup(self) -> str:
        """The code with which every program of the lab starts."""
        return "".join(text for kind, text in self.parts if kind == "code")

    @property
    def points(self) -> int:
        """The largest number of points."""
        return sum(task.points for task in self.tasks)

    def task(self, name: str) -> LabTask:
        """Find the task of a function by its name.

        Raises:
            InputError: there is none.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        names = [task.name for task in self.tasks]
        raise unknown(f"lab {self.number} has no task {name!r}", name, names, listed="its tasks are")

    def checker(self, task: LabTask) -> Checker:
        """Return the checker of a task."""
        checker: Checker = getattr(import_module(f"spmdsim.labs.checks.lab{self.number}"), task.name)
        return checker

    def program(self, answers: dict[str, str]) -> str:
        """Return the lab's program with some tasks answered by code, and the starter code of the others."""
        return "\n\n".join([self.setup, *(answers.get(task.name, task.starter) for task in self.tasks)])


def lab_numbers() -> list[int]:
    """Return the numbers of all labs.

    >>> lab_numbers()[:1]
    [1]
    """
    return sorted(int(path.stem.removeprefix("lab")) for path in COURSE.glob("lab?.md"))


@cache
def lab(number: int) -> Lab:
    """Return a lab by its number, without the teacher's material.

    Raises:
        InputError: there is none.

    >>> lab(1).title
    'Where does my tensor live?'
    """
    if number not in lab_numbers():
        raise InputError(f"there is no lab {number}; there are {', '.join(map(str, lab_numbers()))}")
    text = (COURSE / f"lab{number}.md").read_text(encoding="utf-8")
    head, sections = split_sections(text, "## ")
    title, minutes, goals, body = _head(head)
    tasks = tuple(_task(heading, content) for heading, content in sections.items())
    return Lab(number, title, minutes, goals, split_blocks(body), tasks)


def split_sections(text: str, mark: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first heading of a level, and the text below each heading; headings in code do not count."""
    before: list[str] = []
    sections: dict[str, list[str]] = {}
    lines, code = before, False
    for line in text.splitlines(keepends=True):
        code ^= line.startswith("```")
        if line.startswith(mark) and not code:
            lines = sections.setdefault(line.removeprefix(mark).strip(), [])
        else:
            lines.append(line)
    return "".join(before), {heading: "".join(some) for heading, some in sections.items()}


def _head(text: str) -> tuple[str, int, tuple[str, ...], str]:
    title, minutes, goals, body = re.fullmatch(
        r"# ([^\n]+)\n+Minutes: (\d+)\nGoals:\n((?:- [^\n]+\n)+)(.*)", text, re.DOTALL
    ).groups()  # type: ignore[union-attr]  # a lab that is written otherwise is told so by the tests
    return title, int(minutes), tuple(line[2:] for line in goals.splitlines()), body


def split_blocks(text: str) -> tuple[tuple[str, str], ...]:
    """Return text and blocks of code as (kind, text), in order; kinds are ``text``, ``look`` and ``code``."""
    parts: list[tuple[str, str]] = []
    end = 0
    for block in PARTS.finditer(text):
        parts.append(("text", text[end : block.start()].strip()))
        parts.append(("look" if block["look"] else "code", block["code"]))
        end = block.end()
    parts.append(("text", text[end:].strip()))
    return tuple((kind, content) for kind, content in parts if content)


def _task(heading: str, content: str) -> LabTask:
    name, points, title = TASK.fullmatch(heading).groups()  # type: ignore[union-attr]
    body, below = split_sections(content, "### ")
    listed = re.split(r"^\d\. ", below["Hints"], flags=re.MULTILINE)[1:]
    hints = tuple(" ".join(hint.split()) for hint in listed)
    return LabTask(name, int(points), title, split_blocks(body), hints)
