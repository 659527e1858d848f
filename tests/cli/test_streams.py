"""Where output goes: nowhere, to somebody who leaves, onto a full disk; no traceback, and an exit code that says what happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = "plan --mesh dp=2,tp=2 --src dp,tp --dst tp,dp --shape 4,4"
#: What prints lines, what prints tables, what another process prints, and what a parser prints.
COMMANDS = [
    PLAN,
    "collective list all_reduce",
    "collective check ring -n 2..3",
    "--version",
]


def run_in_shell(command: str, redirected: str, folder: Path, buffered: bool = True) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command with its streams redirected."""
    line = f'"{sys.executable}" -m spmdsim {command}'
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    ran = subprocess.run(
        ["bash", "-c", f"{line} {redirected}"], capture_output=True, text=True, cwd=folder, env=environment
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_left_is_told_apart_from_a_verdict(command: str, tmp_path: Path) -> None:
    code, _, said = run_in_shell(command, "| true; exit ${PIPESTATUS[0]}", tmp_path, buffered=False)
    assert (code, said) == (141, "")


@pytest.mark.parametrize(("command", "closed"), [*zip(COMMANDS, [">&-", "<&- >&- 2>&-"] * 2)])
def test_closed_streams_go_nowhere(command: str, closed: str, tmp_path: Path) -> None:
    code, _, said = run_in_shell(command, closed, tmp_path)
    assert (code, said) == (0, "")


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    assert run_in_shell(f"{PLAN} --svg x.svg", ">&- 2>&-", tmp_path)[0] == 0
    assert (tmp_path / "x.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize(("command", "buffered"), [*zip(COMMANDS, [True, False, False, True])])
def test_a_full_disk_is_one_line(command: str, buffered: bool, tmp_path: Path) -> None:
    code, _, said = run_in_shell(command, "> /dev/full", tmp_path, buffered)
    assert code == 2
    assert re.fullmatch(r"spmdsim[a-z ]*: error: cannot write any more: No space left on device\n", said), (
        said
    )


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("greenlet")
    program = tmp_path / "program.py"
    program.write_text("print('here')\n")
    for command in (f"simulate '{program}'", "labs copy x", f"launch -n 2 --world lockstep '{program}'"):
        line = f'mkdir gone; cd gone; rmdir ../gone; "{sys.executable}" -m spmdsim {command}'
        ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        said = f"the working folder of this process was removed; change to another folder{chr(10)}"
        assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.endswith(f": error: {said}"), command
        assert ran.stderr.count(chr(10)) == 1


@pytest.mark.parametrize("command", ["simulate", "search", "collective check"])
def test_names_that_the_locale_cannot_write_are_still_one_line(command: str, tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [
        sys.executable,
        "-m",
        "spmdsim",
        *command.split(),
        "n\u00f6.py:f" if " " in command else "n\u00f6.py",
    ]
    ran = subprocess.run(words, capture_output=True, cwd=tmp_path, env={**os.environ, **locale})
    said = rb"spmdsim %b: error: [^\n]*n\?+\.py[^\n]*\n" % command.encode()
    assert ran.returncode == 2 and re.fullmatch(said, ran.stderr), ran.stderr
