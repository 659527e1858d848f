"""Build the files of a lab: notebook, script, page of the instructor's guide, slides, notebook for nbgrader.

:func:`student_files` and :func:`teacher_files` return all files. ``of`` is the lab in all functions.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spmdsim._version import REPOSITORY
from spmdsim.labs.declaration import COURSE, Lab, LabTask, lab, lab_numbers
from spmdsim.labs.grading import CHECKING
from spmdsim.labs.judging import RANKS
from spmdsim.labs.teaching import read_teacher_lab, read_teacher_text


def _cell(kind: str, source: str, name: str, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a notebook cell; ``kind`` is "code" or "markdown", ``name`` its id."""
    code: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = source.strip("\n").splitlines(keepends=True)
    return {"cell_type": kind, "id": name, "metadata": metadata or {}, **code, "source": lines}


def _heading(task: LabTask) -> str:
    """Return the heading of a task in Markdown, with its name and points."""
    return f"## {task.title}\n\n*{task.name}, {task.points} point{'s' * (task.points > 1)}*\n\n"


def _goals(of: Lab) -> str:
    """Return title, minutes, points and goals of a lab in Markdown."""
    goals = "".join(f"- {goal}\n" for goal in of.goals)
    return f"# Lab {of.number}: {of.title}\n\n{of.minutes} minutes, {of.points} points. Afterwards you can\n\n{goals}\n"


def notebook(of: Lab, nbgrader: bool = False) -> str:
    """Build a notebook (nbformat 4) without outputs.

    ``nbgrader`` adds the solutions, and the grading metadata of the cells.
    """
    cells = list(_build_cells(of, nbgrader))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _build_cells(of: Lab, nbgrader: bool) -> Iterator[dict[str, Any]]:
    """Yield the cells of a lab's notebook, in their order.

    1. the goals, the text of the lab, and a cell that makes the grader ``check``;
    2. for each task its text and code, and a cell that calls ``check``;
    3. the sum of the points.

    With ``nbgrader`` the code of tasks includes the solution, code and checks have nbgrader's metadata, checks raise
    errors for missing points, and the sum is left out.

    Args:
        of: the lab; with the teacher's material if ``nbgrader``.
        nbgrader: True for the teacher's notebook for nbgrader, False for the students' notebook.
    """
    check = f"from spmdsim.labs import Grader\n\ncheck = Grader({of.number}{', strict=True' * nbgrader})"
    tag = {"tags": [CHECKING]}
    yield _cell("markdown", _goals(of), "goals")
    for number, (kind, text) in enumerate(of.parts):
        yield _cell("markdown" if kind == "text" else "code", text, f"start-{number}")
    yield _cell(
        "code", check, "check", {**tag, **(_nbgrader_metadata("check", locked=True) if nbgrader else {})}
    )
    for task in of.tasks:
        heading = _heading(task)
        for number, (kind, text) in enumerate(task.parts):
            shown = heading + text if kind == "text" else text
            heading = "" if kind == "text" else heading
            metadata = {}
            if kind == "code" and nbgrader:
                shown += f"\n\n### BEGIN SOLUTION\n{task.solution}### END SOLUTION"
                metadata = _nbgrader_metadata(task.name, solution=True)
            yield _cell("markdown" if kind == "text" else "code", shown, f"{task.name}-{number}", metadata)
        graded = _nbgrader_metadata(f"check-{task.name}", points=task.points, grade=True, locked=True)
        metadata = {**tag, **(graded if nbgrader else {})}
        yield _cell("code", f"check({task.name})", f"check-{task.name}", metadata)
    if not nbgrader:
        first = of.tasks[0].name
        hint_text = f'Stuck? `check.hint("{first}", 1)` says a little, with 2 and 3 more. The sum:'
        yield _cell("markdown", hint_text, "sum-text")
        yield _cell("code", "check.total()", "sum", tag)


def _nbgrader_metadata(name: str, points: int = 0, **flags: bool) -> dict[str, Any]:
    """Return the metadata of a cell by nbgrader's schema 3."""
    facts = {"grade": False, "locked": False, "solution": False, "task": False, **flags}
    points_entry = {"points": points} if facts["grade"] else {}
    return {"nbgrader": {**facts, **points_entry, "grade_id": name, "schema_version": 3}}


def script(of: Lab) -> str:
    """Build the lab as a Python script for students, which prints their points when it runs.

    The script starts with the commands that run it: with simulated ranks in one process, or with real ranks by MPI. The
    lab's text becomes comments, and so does code that is only to be read; tasks are functions to fill in.

    Args:
        of: the lab.
    """
    name = f"lab{of.number}.py"
    lines = {
        f"python {name}": f"{RANKS} ranks in lock step, no MPI",
        f"mpirun -n {RANKS} python {name}": f"real ranks (or: spmdsim launch -n {RANKS} {name})",
        f"spmdsim labs check {of.number} --task NAME --hint 1": "a hint; 2 and 3 say more",
    }
    usage = "\n".join(f"{line:<43}{what}" for line, what in lines.items())
    top = f'"""Lab {of.number}: {of.title}\n\n{usage}\n"""'
    sections = [top, *_comment_parts(of.parts)]
    for task in of.tasks:
        first, *other_parts = task.parts
        sections += [_comment(_heading(task) + first[1]), *_comment_parts(tuple(other_parts))]
    text, follows_block = sections[0], False
    for section in [*sections[1:], _grading_lines(of)]:
        starts_block = section.startswith(("def ", "if "))
        blank_lines = 2 if starts_block or follows_block else 1
        text += "\n" * (blank_lines + 1) + section.strip("\n")
        follows_block = starts_block
    return text + "\n"


def _grading_lines(of: Lab) -> str:
    """Return the last lines of a script, which grade it."""
    return f'if __name__ == "__main__":\n    from spmdsim.labs import grade\n\n    raise SystemExit(grade({of.number}, globals()))'


def _comment_parts(parts: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yield text as comments and code unchanged.

    Code to look at becomes comments, too. An editor can uncomment them, because each line only gets "# " in front.
    """
    for kind, text in parts:
        if kind == "look":
            lines = "\n".join(f"# {line}".rstrip() for line in text.strip("\n").splitlines())
            yield f"# Uncomment these lines to see examples:\n#\n{lines}"
        else:
            yield text if kind == "code" else _comment(text)


def _comment(text: str) -> str:
    """Return a Markdown text as lines of a comment, wrapped at 98 characters."""
    blocks = [
        block for paragraph in text.strip("\n").split("\n\n") for block in (*_wrap_items(paragraph), "")
    ]
    return "\n".join(f"# {line}".rstrip() for block in blocks[:-1] for line in block.split("\n"))


def _wrap_items(paragraph: str) -> Iterator[str]:
    """Yield a paragraph, or each item of a list, wrapped at 98 characters.

    Items begin with ``- `` or a digit and ``. ``; their further lines are indented. Code that is indented, and rows of
    tables (``|``), are not wrapped.
    """
    for item in re.split(r"\n(?=- |\d\. |\|)", paragraph):
        marker = re.match(r"- |\d\. |", item)
        indent = " " * len(marker[0]) if marker else ""
        if item.lstrip("\n").startswith(("    ", "|")):  # code or a table
            yield item
        else:
            yield textwrap.fill(
                item, 98, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )


def guide(of: Lab) -> str:
    """Build the lab's page of the instructor's guide in Markdown.

    It has goals, notes, timing, for each task the solution, hints and typical mistakes with their messages, and slides.
    The introduction gets 5 minutes; the other minutes are divided by points. For example, a lab of 45 minutes and 8 points
    gives a task of 2 points 10 minutes.

    Args:
        of: the lab with the teacher's material.
    """
    lines = [_goals(of) + of.notes, "", "## Timing", ""]
    minutes_per_point = (of.minutes - 5) / of.points
    lines += ["| minutes | what |", "|---|---|", "| 5 | the introduction (slides below) |"]
    lines += [f"| {minutes_per_point * task.points:.0f} | {task.name}: {task.title} |" for task in of.tasks]
    for task in of.tasks:
        lines += ["", f"## {task.name}: {task.title} ({task.points} points)", "", "```python"]
        lines += [task.solution.strip(), "```", "", "Hints:", ""]
        lines += [f"{number}. {hint}" for number, hint in enumerate(task.hints, 1)]
        for wrong in task.wrong:
            lines += ["", f"**What students get wrong.** {wrong.why}", "", "```python", wrong.code.strip()]
            lines += ["```", "", f"They read: “{wrong.sentence}”"]
    lines += ["", "## Slides", "", of.slides]
    return "\n".join(lines) + "\n"


def slides(of: Lab) -> str:
    """Return the slides, with lines ``---`` between them, for Marp, reveal.js or pandoc."""
    return f"# Lab {of.number}: {of.title}\n\n---\n\n{of.slides}\n"


NBGRADER = '''"""Settings of nbgrader for these labs: the text that replaces a solution."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "spmdsim"
c.ClearSolutions.code_stub = {"python": "# Your lines go into the function above."}
'''


def student_files() -> dict[str, str]:
    """Return the text of each file for students by its path."""
    files = {"README.md": (COURSE / "README.md").read_text(encoding="utf-8").replace("LABS\n", _lab_table())}
    for number in lab_numbers():
        files |= {f"lab{number}.ipynb": notebook(lab(number)), f"lab{number}.py": script(lab(number))}
    return files


def teacher_files(source: Path | None = None) -> dict[str, str]:
    """Return the text of each file for teachers by its path: guide, slides, solutions, nbgrader.

    The paths are ``GUIDE.md``, ``guide/labN.md``, ``slides/labN.md``, ``slides/labN-NAME.svg``, ``solutions/labN.py``,
    ``nbgrader/nbgrader_config.py`` and ``nbgrader/source/labN/labN.ipynb``. ``GUIDE.md`` has the address of
    the repository filled in. Nothing is written.

    Args:
        source: the source tree; None for the tree of an editable installation.

    Raises:
        InputError: If the source tree has no teacher's material.
    """
    from spmdsim.labs.slide_pictures import draw_slide_pictures  # it imports much of the library

    files = {
        "GUIDE.md": read_teacher_text("GUIDE.md", source).replace("REPOSITORY", REPOSITORY),
        "nbgrader/nbgrader_config.py": NBGRADER,
        **{f"slides/{name}": picture for name, picture in draw_slide_pictures().items()},
    }
    for number in lab_numbers():
        of = read_teacher_lab(number, source)
        files[f"guide/lab{number}.md"] = guide(of)
        files[f"slides/lab{number}.md"] = slides(of)
        solved_program = of.program({task.name: task.solution for task in of.tasks})
        files[f"solutions/lab{number}.py"] = f"{solved_program}\n\n{_grading_lines(of)}\n"
        files[f"nbgrader/source/lab{number}/lab{number}.ipynb"] = notebook(of, nbgrader=True)
    return files


def _lab_table() -> str:
    """Return a Markdown table of all labs with number, title, minutes, points and links.

    The last line ends with a newline. The links are to notebook and script in one folder.
    """
    rows = "".join(
        f"| {entry.number} | {entry.title} | {entry.minutes} | {entry.points} "
        f"| [notebook](lab{entry.number}.ipynb), [script](lab{entry.number}.py) |\n"
        for entry in map(lab, lab_numbers())
    )
    return f"| lab | | minutes | points | |\n|---|---|---|---|---|\n{rows}"
