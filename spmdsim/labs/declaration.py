"""Read the students' part of a lab from its Markdown text; :mod:`spmdsim.labs.teaching` adds the teacher's part.

``course/lab1.md``::

    # Title
    Minutes: 35
    Goals:
    - one per line

    Text, and a block of Python with which every program of the lab starts.

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
from spmdsim.wrong_calls import explained

COURSE = Path(__file__).parent / "course"
PARTS = re.compile(r"^```python(?P<look> look)?\n(?P<code>.*?)^```\n?", re.MULTILINE | re.DOTALL)
TASK = re.compile(r"(?P<name>\w+) \((?P<points>\d+) points?\): (?P<title>.+)")


@dataclass(frozen=True)
class WrongAnswer:
    """A typical wrong answer.

    Attributes:
        sentence: the message that a student gets for it.
        why: the misunderstanding behind it.
        code: the answer.

    >>> WrongAnswer("block(7, 4, 0) gives (0, 1), but it is (0, 2)", "Rounded down.", "...").why
    'Rounded down.'
    """

    sentence: str
    why: str
    code: str


@dataclass(frozen=True)
class LabTask:
    """Task of a lab: a function that a student writes.

    Attributes:
        name: name of the function.
        points: largest number of points; the checker yields once per point.
        title: title in a few words.
        parts: text and code as (kind, text), in order; kinds are ``text``, ``look`` (a cell to look at) and ``code``.
        hints: three hints, each more explicit than the one before; the last one is nearly the answer.
        solution: code that earns all points; empty without the teacher's material.
        wrong: typical wrong answers; empty without the teacher's material.

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
        """The code from which the student starts."""
        return next(text for kind, text in self.parts if kind == "code")


@dataclass(frozen=True)
class Lab:
    """Lab: the student's material, and the teacher's material if it was read.

    Attributes:
        number: number from 1 on.
        title: title of the lab.
        minutes: time that students need.
        goals: abilities that students have after the lab.
        parts: text and code before the first task, as in a task.
        tasks: the tasks in order.
        notes: Markdown for teachers; empty without the teacher's material.
        slides: Markdown, with lines ``---`` between slides; empty without the teacher's material.

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
        """Return the task whose function is called ``name``.

        Raises:
            InputError: If the lab has no task of this name; the message has the nearest one.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        names = [task.name for task in self.tasks]
        raise unknown(f"lab {self.number} has no task {name!r}", name, names, listed="its tasks are")

    def checker(self, task: LabTask) -> Checker:
        """Return the checker of a task, from ``checks/``."""
        checker: Checker = getattr(import_module(f"spmdsim.labs.checks.lab{self.number}"), task.name)
        return checker

    def program(self, answers: dict[str, str]) -> str:
        """Return the program of the lab.

        Args:
            answers: code by name of the task; tasks without an answer keep their starter code.
        """
        return "\n\n".join([self.setup, *(answers.get(task.name, task.starter) for task in self.tasks)])


def lab_numbers() -> list[int]:
    """Return the numbers of all labs.

    >>> lab_numbers()[:1]
    [1]
    """
    return sorted(int(path.stem.removeprefix("lab")) for path in COURSE.glob("lab?.md"))


@explained
@cache
def lab(number: int) -> Lab:
    """Return a lab by its number, without the teacher's material.

    The text is read from ``course/`` once per number.

    Raises:
        InputError: If no lab has this number.

    >>> lab(1).title
    'Where does my tensor live?'
    """
    if number not in lab_numbers():
        raise InputError(f"lab: number must be one of {', '.join(map(str, lab_numbers()))}, got {number!r}")
    text = (COURSE / f"lab{number}.md").read_text(encoding="utf-8")
    head, sections = split_sections(text, "## ")
    title, minutes, goals, body = _parse_head(head)
    tasks = tuple(_parse_task(heading, content) for heading, content in sections.items())
    return Lab(number, title, minutes, goals, split_blocks(body), tasks)


def split_sections(text: str, mark: str) -> tuple[str, dict[str, str]]:
    r"""Split a text at the headings of one level.

    Headings inside code blocks (between lines that start with three backquotes) do not count. Equal headings share one
    section.

    Args:
        text: the text.
        mark: the start of a heading, such as "## ".

    Returns:
        The text before the first heading; and a dict in the order of the text: heading without ``mark`` -> text below
        it.

    >>> split_sections("Title\n## One\na\nb\n## Two\n", "## ")
    ('Title\n', {'One': 'a\nb\n', 'Two': ''})
    """
    before: list[str] = []
    sections: dict[str, list[str]] = {}
    lines, in_code = before, False
    for line in text.splitlines(keepends=True):
        in_code ^= line.startswith("```")
        if line.startswith(mark) and not in_code:
            lines = sections.setdefault(line.removeprefix(mark).strip(), [])
        else:
            lines.append(line)
    return "".join(before), {heading: "".join(section) for heading, section in sections.items()}


def _parse_head(text: str) -> tuple[str, int, tuple[str, ...], str]:
    """Return title, minutes, goals, and the text after them."""
    title, minutes, goals, body = re.fullmatch(
        r"# ([^\n]+)\n+Minutes: (\d+)\nGoals:\n((?:- [^\n]+\n)+)(.*)", text, re.DOTALL
    ).groups()  # type: ignore[union-attr]  # tests verify that all labs match
    return title, int(minutes), tuple(line[2:] for line in goals.splitlines()), body


def split_blocks(text: str) -> tuple[tuple[str, str], ...]:
    r"""Split a Markdown text into text and blocks of Python, as (kind, content) in order.

    The kind of a block is "look" if it starts with ``python look``, else "code". All other content is "text". Empty
    texts are left out.

    >>> split_blocks("Look:\n```python look\nshow(x)\n```\n")
    (('text', 'Look:'), ('look', 'show(x)\n'))
    """
    parts: list[tuple[str, str]] = []
    end = 0
    for block in PARTS.finditer(text):
        parts.append(("text", text[end : block.start()].strip()))
        parts.append(("look" if block["look"] else "code", block["code"]))
        end = block.end()
    parts.append(("text", text[end:].strip()))
    return tuple((kind, content) for kind, content in parts if content)


def _parse_task(heading: str, content: str) -> LabTask:
    """Return a task from its heading and its text.

    The three hints are the numbered items below ``### Hints``; the text before that subsection is shown to the student.
    The texts are the library's own, so a malformed one is not reported with a message.
    """
    name, points, title = TASK.fullmatch(heading).groups()  # type: ignore[union-attr]
    body, subsections = split_sections(content, "### ")
    hint_texts = re.split(r"^\d\. ", subsections["Hints"], flags=re.MULTILINE)[1:]
    hints = tuple(" ".join(hint.split()) for hint in hint_texts)
    return LabTask(name, int(points), title, split_blocks(body), hints)
