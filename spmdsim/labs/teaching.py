"""The teacher's material: notes, slides, solutions and typical wrong answers, which only the source tree contains.

Installed packages are without it, so that no student's program can run the solutions. ``labs/teacher/lab1.md`` has a text
for teachers, ``## Slides`` and, per function, ``## function`` with the solution and a ``### sentence`` for each typical
wrong answer: the sentence that it gets, what its authors think, and the code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spmdsim._version import REPOSITORY
from spmdsim.errors import InputError
from spmdsim.labs.declaration import Lab, LabTask, WrongAnswer, lab, split_blocks, split_sections

#: The source tree of an editable installation, and where the teacher's material lies in a source tree.
TREE = Path(__file__).resolve().parents[2]
TEACHER = Path("labs") / "teacher"


def read_teacher_text(name: str, source: Path | None = None) -> str:
    """Return a file of the teacher's material.

    Args:
        name: the file's name, such as ``GUIDE.md``.
        source: the source tree; that of an editable installation if left out.

    Raises:
        InputError: If the source tree has no such file.
    """
    path = (TREE if source is None else source) / TEACHER / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        where = "this installation has" if source is None else f"{source} has"
        raise InputError(
            f"{where} no {TEACHER / name}: the teacher's material is in the source tree alone: "
            "name its folder, as in --source spmdsim"
        ) from None


def read_teacher_lab(number: int, source: Path | None = None) -> Lab:
    """Return a lab with notes, slides, solutions and typical wrong answers.

    Args:
        number: the lab's.
        source: the source tree; that of an editable installation if left out.

    Raises:
        InputError: If there is no lab of this number, or the source tree has no teacher's material.
    """
    of = lab(number)
    notes, sections = split_sections(read_teacher_text(f"lab{number}.md", source), "## ")
    tasks = tuple(_add_answers(task, sections[task.name]) for task in of.tasks)
    return replace(of, tasks=tasks, notes=notes.strip(), slides=sections["Slides"].strip())


def _add_answers(task: LabTask, text: str) -> LabTask:
    solution, sentences = split_sections(text, "### ")
    wrong = tuple(
        WrongAnswer(sentence, _join_blocks(answer, "text", " "), _join_blocks(answer, "code"))
        for sentence, answer in sentences.items()
    )
    return replace(task, solution=_join_blocks(solution, "code"), wrong=wrong)


def _join_blocks(text: str, wanted: str, between: str = "") -> str:
    return between.join(content for kind, content in split_blocks(text) if kind == wanted)
