"""Closed pipes and streams, full disks and removed folders lead to one line and the right exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = "plan --mesh dp=2,tp=2 --src dp,tp --dst tp,dp --shape 4,4"
#: Commands that print lines and tables, and an option that the parser prints.
COMMANDS = [
    PLAN,
    "collective list all_reduce",
    "collective check ring -n 2..3",
    "--version",
]


def run_in_shell(command: str, redirected: str, folder: Path, buffered: bool = True) -> tuple[int, str, str]:
    """Run a command with redirected streams; return its exit code, stdout and stderr."""
    line = f'"{sys.executable}" -m spmdsim {command}'
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    ran = subprocess.run(
        ["bash", "-c", f"{line} {redirected}"], capture_output=True, text=True, cwd=folder, env=environment
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe_has_exit_code_141(command: str, tmp_path: Path) -> None:
    code, _, errors = run_in_shell(command, "| true; exit ${PIPESTATUS[0]}", tmp_path, buffered=False)
    assert (code, errors) == (141, "")


@pytest.mark.parametrize(("command", "closed"), [*zip(COMMANDS, [">&-", "<&- >&- 2>&-"] * 2)])
def test_closed_streams_are_no_error(command: str, closed: str, tmp_path: Path) -> None:
    code, _, errors = run_in_shell(command, closed, tmp_path)
    assert (code, errors) == (0, "")


def test_a_written_file_is_intact_if_streams_are_closed(tmp_path: Path) -> None:
    assert run_in_shell(f"{PLAN} --svg x.svg", ">&- 2>&-", tmp_path)[0] == 0
    assert (tmp_path / "x.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize(("command", "buffered"), [*zip(COMMANDS, [True, False, False, True])])
def test_a_full_disk_is_reported_in_one_line(command: str, buffered: bool, tmp_path: Path) -> None:
    code, _, errors = run_in_shell(command, "> /dev/full", tmp_path, buffered)
    assert code == 2
    assert re.fullmatch(r"spmdsim[a-z ]*: error: cannot write any more: No space left on device\n", errors), (
        errors
    )


def test_a_removed_working_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("greenlet")
    program = tmp_path / "program.py"
    program.write_text("print('here')\n")
    for command in (f"simulate '{program}'", "labs copy x", f"launch -n 2 --world lockstep '{program}'"):
        line = f'mkdir gone; cd gone; rmdir ../gone; "{sys.executable}" -m spmdsim {command}'
        ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        message = f"the working folder of this process was removed; change to another folder{chr(10)}"
        assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.endswith(f": error: {message}"), command
        assert ran.stderr.count(chr(10)) == 1


@pytest.mark.parametrize("command", ["simulate", "search", "collective check"])
def test_names_that_the_locale_cannot_write_are_reported_in_one_line(command: str, tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [
        sys.executable,
        "-m",
        "spmdsim",
        *command.split(),
        "n\u00f6.py:f" if " " in command else "n\u00f6.py",
    ]
    ran = subprocess.run(words, capture_output=True, cwd=tmp_path, env={**os.environ, **locale})
    pattern = rb"spmdsim %b: error: [^\n]*n\?+\.py[^\n]*\n" % command.encode()
    assert ran.returncode == 2 and re.fullmatch(pattern, ran.stderr), ran.stderr
