"""A rank that leaves the program early is named by those who wait for it; one that is done early disturbs nobody."""

from __future__ import annotations

import sys

import pytest
from processes import run_python

pytestmark = pytest.mark.usefixtures("launcher")

PROGRAM = """\
import sys, time
import numpy as np
from spmdsim import Mesh, Tensor, world
w, case = world(), sys.argv[1]
rank = w.ranks[0]
whole, pair = Mesh((3,), ("all",)), Mesh((2,), ("pair",))
x = Tensor.from_global(np.arange(36.0).reshape(6, 6), whole("all", None), w).to(whole(None, "all"))
if case == "leave" and rank == 1:
    sys.exit()
if case == "fail" and rank == 1:
    raise ValueError("broken on one")
if case == "outside" and rank == 2:
    sys.exit()
if case == "outside" and rank == 1:
    time.sleep(2)
if case == "slow" and rank == 0:
    time.sleep(2)
    print("slow and well")
if case in ("leave", "fail"):
    x.to(whole("all", None))
if case == "outside":
    y = Tensor.from_global(np.arange(36.0).reshape(6, 6), pair("pair", None), w)
    sys.stdout.write(f"sum {y.to(pair(None, 'pair')).local().sum()}\\n")
"""


def launch(tmp_path, case):
    (tmp_path / "program.py").write_text(PROGRAM)
    return run_python("-m", "spmdsim", "launch", "-n", 3, tmp_path / "program.py", case, cwd=tmp_path)


def test_who_left_is_named(tmp_path):
    result = launch(tmp_path, "leave")
    assert result.returncode == 2
    text = "program.py: error: rank 1 left the program and will not come to collective 1: all_to_all over all"
    assert result.stderr.count(text) == 1 and "Traceback" not in result.stderr
    assert "program.py:20" in result.stderr


@pytest.mark.parametrize(
    ("case", "words"), [("slow", ["slow and well"]), ("outside", ["sum 288.0", "sum 342.0"])]
)
def test_ranks_that_are_done_early_disturb_nobody(tmp_path, case, words):
    result = launch(tmp_path, case)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert sorted(result.stdout.split("\n"))[1:] == words


def test_without_any_guard_the_others_still_end(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    code = "import sys; from spmdsim.launch import start; sys.exit(start(3, sys.argv[1:]))"
    result = run_python("-c", code, sys.executable, script, "fail")
    assert result.returncode == 1
    assert "ValueError: broken on one" in result.stderr
    assert "rank 1 left the program" in result.stderr
