"""The teacher's material: notes, slides, solutions and typical wrong answers, which only the source tree contains.

Installed packages do not have it, so that a student's program cannot run the solutions. ``labs/teacher/lab1.md`` has
a text for teachers, ``## Slides``, and ``## function`` for each task. Below ``## function`` is the solution, and a
``### sentence`` for each typical wrong answer: the message of the checker, the misunderstanding, and the code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spmdsim.errors import InputError
from spmdsim.labs.declaration import Lab, LabTask, WrongAnswer, lab, split_blocks, split_sections

#: The source tree of an editable installation, and the folder of the teacher's material in a source tree.
TREE = Path(__file__).resolve().parents[2]
TEACHER = Path("labs") / "teacher"


def read_teacher_text(name: str, source: Path | None = None) -> str:
    """Return the text of a file of the teacher's material.

    Args:
        name: name of the file, such as ``GUIDE.md``.
        source: the source tree; None for the tree of an editable installation.

    Raises:
        InputError: If the source tree has no such file.
    """
    path = (TREE if source is None else source) / TEACHER / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        subject = "this installation has" if source is None else f"{source} has"
        raise InputError(
            f"{subject} no {TEACHER / name}: only the source tree has the teacher's material; name its folder, "
            "such as --source spmdsim"
        ) from None


def read_teacher_lab(number: int, source: Path | None = None) -> Lab:
    """Return a lab with notes, slides, solutions and typical wrong answers.

    Args:
        number: number of the lab.
        source: the source tree; None for the tree of an editable installation.

    Raises:
        InputError: If no lab has this number, or the source tree has no teacher's material.
    """
    student_lab = lab(number)
    notes, sections = split_sections(read_teacher_text(f"lab{number}.md", source), "## ")
    tasks = tuple(_add_answers(task, sections[task.name]) for task in student_lab.tasks)
    return replace(student_lab, tasks=tasks, notes=notes.strip(), slides=sections["Slides"].strip())


def _add_answers(task: LabTask, text: str) -> LabTask:
    """Return a task with its solution and its typical wrong answers.

    Args:
        task: the task without them.
        text: the section of the task in the teacher's material: code before the first ``### sentence`` is the solution.
            Each ``### sentence`` begins a wrong answer: the heading is the message that a student gets for it, the text
            below explains the misunderstanding, and the code is the answer.
    """
    solution, sentences = split_sections(text, "### ")
    wrong = tuple(
        WrongAnswer(sentence, _join_blocks(answer, "text", " "), _join_blocks(answer, "code"))
        for sentence, answer in sentences.items()
    )
    return replace(task, solution=_join_blocks(solution, "code"), wrong=wrong)


def _join_blocks(text: str, wanted: str, separator: str = "") -> str:
    """Return all blocks of one kind of a text, joined."""
    return separator.join(content for kind, content in split_blocks(text) if kind == wanted)
