"""Each of the seven classic wrong programs is diagnosed in one sentence with its ranks and lines."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from spmdsim.simulation import Report, simulate

pytest.importorskip("greenlet")

FOLDER = Path(__file__).parents[2] / "examples" / "buggy_programs"
README = (FOLDER / "README.md").read_text(encoding="utf-8")

# The key is (program, ranks). The value is (kind, severity, ranks and lines in the message).
CASES = {
    ("bug1_tags.py", 2): ("deadlock", "error", (0, 1), {10, 13}),
    ("bug1_tags.py", 5): ("deadlock", "error", (0, 1), {10, 13}),
    ("bug2_types.py", 2): ("type_mismatch", "error", (0, 1), {11, 15}),
    ("bug3_init.py", 4): ("not_initialized", "error", (0,), {12}),
    ("bug4_reduce.py", 4): ("deadlock", "error", (0, 1, 2, 3), {21}),
    ("bug5_flood.py", 2): ("run_ahead", "warning", (0, 1), {15}),
    ("bug6_requests.py", 4): ("not_waited", "error", (2, 3), {16}),
    ("bug7_broadcast.py", 4): ("collective_mismatch", "error", (1, 2, 3), {11}),
}


@cache
def report_on(program: str, ranks: int) -> Report:
    """Return the report on a program of the folder. Several tests read it."""
    return simulate(FOLDER / program, ranks, check=False, emit=lambda rank, line: None)


@pytest.mark.parametrize(("program", "ranks"), CASES)
def test_the_message_is_one_sentence_with_ranks_and_lines(program: str, ranks: int) -> None:
    kind, severity, named, lines = CASES[program, ranks]
    report = report_on(program, ranks)
    assert [problem.kind for problem in report.problems] == [kind]
    (problem,) = report.problems
    assert problem.severity == severity
    assert problem.ranks == named
    for line in lines:
        assert f"{program}:{line}" in problem.message
    assert "\n" not in problem.message
    assert report.exit_code == (1 if severity == "error" else 0)


@pytest.mark.parametrize(("program", "ranks"), [case for case in CASES if case[1] != 5])
def test_the_readme_shows_the_message(program: str, ranks: int) -> None:
    report = report_on(program, ranks)
    assert report.problems[0].message in " ".join(README.split())


@pytest.mark.parametrize(("program", "ranks"), CASES)
def test_every_program_fails_with_strict(program: str, ranks: int) -> None:
    report = simulate(FOLDER / program, ranks, check=False, strict=True, emit=lambda r, line: None)
    assert not report.ok and report.exit_code == 1


def test_a_deadlock_of_two_ranks_has_a_cycle() -> None:
    report = report_on("bug1_tags.py", 2)
    assert report.problems[0].cycle == (1, 0)


def test_the_output_shows_wrong_numbers_after_a_lost_request() -> None:
    report = report_on("bug6_requests.py", 4)
    lines = {line for _, line in report.output}
    assert "rank 0 has 1.0 from rank 1" in lines
    assert "rank 3 has 0.0 from rank 2" in lines


def test_missing_greenlet_is_a_one_line_error() -> None:
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from spmdsim.simulation import simulate\n"
        "from spmdsim.errors import WorldError\n"
        "try: simulate(lambda comm: None, 2)\n"
        "except WorldError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=FOLDER.parent.parent,
        check=False,
    )
    assert done.stdout.count("\n") == 1, done.stderr
    assert "pip install greenlet" in done.stdout
