"""``spmdsim labs``: list the labs, copy them, grade an answer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from spmdsim.cli.main import CommandGroup, command, declare_flag, positive, value, whole_number
from spmdsim.cli.output import emit_json, refuse_options, remark, require_folder
from spmdsim.errors import InputError, many
from spmdsim.launcher import is_root
from spmdsim.printing import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spmdsim.labs import Lab, Score
    from spmdsim.labs.declaration import LabTask

#: Default limit on the processor time of each task, in seconds.
SECONDS = 10

EXAMPLES = """\
examples:
  spmdsim labs list
  spmdsim labs copy course                       notebooks and scripts for students
  spmdsim labs check 1                           grade lab1.py or lab1.ipynb of this folder
  spmdsim labs check 1 --task most_bytes --hint 2
"""

LIMITS = """\
examples:
  spmdsim labs check 1                           grade lab1.py or lab1.ipynb of this folder
  spmdsim labs check 1 --task most_bytes --hint 2

Each task runs in a child process with limits. A program that calls sys.exit(0) or terminates its process scores 0 for the
task, and the processes that it started are terminated with it. Another process grades, and reads results as plain data:
operators on tensors are recorded and run again on numbers that the program does not know, and each rank of lab 9 is a
process whose messages the grader delivers. On real ranks (mpirun) functions are graded in their own processes: for
practice, not for marks. With --time-limit S a task may take 2 S of wall-clock time, or 2 S + 5 while it works, and up to
8 S more in which it waits for a processor.

Exit code: 0 all points, 1 points are missing, 2 nothing could be graded.
"""


LIST_EXAMPLE = """\
examples:
  spmdsim labs list
"""

COPY_EXAMPLES = """\
examples:
  spmdsim labs copy course              notebooks and scripts for students
  spmdsim labs copy guide --teacher     guide, slides and solutions
"""


@command("List the labs and their tasks.", LIST_EXAMPLE, help="list the labs and their tasks")
def list_labs(args: argparse.Namespace) -> int:
    """Print number, title, time, points and tasks of each lab in two lines; return 0.

    ``args`` is not used; all commands have it.
    """
    from spmdsim.labs import lab, lab_numbers

    for current in map(lab, lab_numbers()):
        say(f"{current.number}  {current.title} ({current.minutes} minutes, {current.points} points)")
        say(f"   {', '.join(task.name for task in current.tasks)}")
    return 0


@command(
    "Write the labs into a folder. Without --replace, an existing file is an error.",
    COPY_EXAMPLES,
    value("folder", "DIR", "the folder; it is created if it does not exist"),
    declare_flag("--teacher", "write the guide, slides, solutions and nbgrader's form instead"),
    value(
        "--source",
        "DIR",
        "the source tree, which has the files of teachers (default: that of an editable installation)",
    ),
    declare_flag("--replace", "replace existing files"),
    help="write the labs, or the files of teachers, into a folder",
)
def copy_files(args: argparse.Namespace) -> int:
    """Write the files of students, or with ``--teacher`` of teachers, into a folder; return 0.

    Folders are made as needed. Only rank 0 writes. A line on stderr has the number of files.

    Args:
        args: the command's arguments: ``folder``, ``teacher``, ``replace``, and ``source``, the source tree with the
            files of teachers. If ``source`` is None, the source tree of an editable installation is used.

    Raises:
        InputError: If a file exists and ``--replace`` is not set, ``--source`` is set without ``--teacher``, the
            source tree lacks files, or the folder cannot be written to.
    """
    from spmdsim.labs.forms import student_files, teacher_files

    if not args.teacher:
        refuse_options(args, "--source", "--teacher")
    source = Path(args.source) if args.source is not None else None
    files = teacher_files(source) if args.teacher else student_files()
    folder = Path(args.folder)
    existing_names = [name for name in files if (folder / name).exists()]
    if existing_names and not args.replace:
        raise InputError(
            f"{folder / existing_names[0]} is there already, maybe with answers: take another folder, or --replace"
        )
    require_folder(folder)
    if is_root():
        try:
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    remark(f"wrote {many(len(files), 'file')} into {folder}")
    return 0


@command(
    "Grade an answer: points, and the first mistake of each task.",
    LIMITS,
    value("number", "N", "the lab", positive),
    value("file", "FILE", "the script or notebook (labN.py or labN.ipynb)", nargs="?"),
    value("--task", "NAME", "grade only this task"),
    value(
        "--hint",
        "",
        "print hints for the first task that lacks points, up to this level",
        whole_number,
        choices=(1, 2, 3),
    ),
    "--json",
    help="grade an answer, give hints",
    limits=SECONDS,
)
def grade_answer(args: argparse.Namespace) -> int:
    """Grade an answer and print the report; return 0 if all points are reached, else 1.

    * ``--json`` prints the points of each task, and the hints, as JSON.
    * ``--hint`` also prints hints of the first task that lacks points.
    * ``--task`` with ``--hint`` prints the hints of this task, grades nothing, and returns 0.

    Args:
        args: the command's arguments. ``number`` is the lab. ``file`` is the answer; see :func:`_find_answer_file` for
            None. ``hint`` is the highest level of hints, 1 to 3, or None.

    Raises:
        InputError: If the lab, the task or the answer file does not exist.
    """
    from spmdsim.labs import lab
    from spmdsim.labs.grading import format_report, hints

    current = lab(args.number)
    if args.task and args.hint:
        lines = hints(current.task(args.task), args.hint)
        emit_json({"lab": current.number, "hints": [*lines]}) if args.json else say(*lines)
        return 0
    tasks = [current.task(args.task)] if args.task else current.tasks
    path = _find_answer_file(current, args.file)
    scores = _grade_tasks(current, tasks, path, args)
    incomplete_scores = [each for each in scores if each.points < each.most]
    lines = (
        hints(current.task(incomplete_scores[0].task), args.hint) if incomplete_scores and args.hint else []
    )
    if args.json:
        from dataclasses import asdict

        points = sum(each.points for each in scores)
        most = sum(each.most for each in scores)
        entries = list(map(asdict, scores))
        emit_json({"lab": current.number, "points": points, "of": most, "tasks": entries, "hints": [*lines]})
    else:
        say(*format_report(current, scores, path), *lines)
    return int(bool(incomplete_scores))


def _grade_tasks(current: Lab, tasks: Iterable[LabTask], path: Path, args: argparse.Namespace) -> list[Score]:
    """Run and grade tasks of a lab, each in a process with limits.

    The answer file is compiled once and run once per task.
    """
    from spmdsim.labs.grading import compile_answer, run_program, score_limited
    from spmdsim.launch.limits import MIB, Limits

    codes = compile_answer(path)
    limits = Limits(args.time_limit, int(args.memory_limit * MIB), int(args.output_limit * MIB))
    return [score_limited(current, task, lambda: run_program(codes, path), limits) for task in tasks]


def _find_answer_file(current: Lab, name: str | None) -> Path:
    """Return the answer file: ``name``, or without a name the file of the lab in this folder.

    For lab 3 it is lab3.py or lab3.ipynb; of both, the one that was changed last. A file of the given ``name`` need
    not exist. ``current`` is the lab.

    Raises:
        InputError: If ``name`` is None and neither file exists.
    """
    if name is not None:
        return Path(name)
    answers = [
        path
        for path in (Path(f"lab{current.number}.py"), Path(f"lab{current.number}.ipynb"))
        if path.exists()
    ]
    if not answers:
        raise InputError(
            f"there is no lab{current.number}.py or lab{current.number}.ipynb here: `spmdsim labs copy DIR` writes them"
        )
    return max(answers, key=lambda path: path.stat().st_mtime)  # the one that was worked on


main = CommandGroup(
    "Labs that grade themselves: with notebooks, and on real ranks.",
    EXAMPLES,
    "list|copy|check",
    lambda: {"list": list_labs, "copy": copy_files, "check": grade_answer},
)
