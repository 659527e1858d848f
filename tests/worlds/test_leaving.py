"""A rank that stops early is named by the ranks that wait for it and disturbs no other rank."""

from __future__ import annotations

import json
import re
import sys

import pytest
from processes import MPIRUN, run_python

pytestmark = pytest.mark.usefixtures("launcher")

PROGRAM = """\
import os, sys, time
import numpy as np
from spmdsim import Mesh, Tensor, world
w, case = world(), sys.argv[1]
rank = w.ranks[0]
whole, pair = Mesh((3,), ("all",)), Mesh((2,), ("pair",))
x = Tensor.from_global(np.arange(36.0).reshape(6, 6), whole("all", None), w).to(whole(None, "all"))
if case == "leave" and rank == 1:
    sys.exit()
if case == "raised" and rank == 1:
    raise SystemExit(3)
if case == "callback" and rank == 1:
    import atexit
    atexit.register(lambda: 1 / 0)
if case in ("vanish", "quick") and rank == 1:
    os._exit(5 if case == "quick" else 0)
if case == "caught":
    try:
        sys.exit(rank)
    except SystemExit as left:
        assert left.code == rank
    sys.stdout.write("went on\\n")
    sys.exit(4)
if case == "outside" and rank == 2:
    sys.exit()
if case == "outside" and rank == 1:
    time.sleep(2)
if case in ("leave", "raised", "vanish", "quick"):
    x.to(whole("all", None))
if case == "outside":
    y = Tensor.from_global(np.arange(36.0).reshape(6, 6), pair("pair", None), w)
    sys.stdout.write(f"sum {y.to(pair(None, 'pair')).local().sum()}\\n")
    if rank == 0:
        time.sleep(2)
        print("slow and well")
"""


def run_with_mpirun(tmp_path, case, **environment):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment["TMPDIR"] = str(tmp_path)  # a killed launcher leaves its files in this folder
    return run_python(
        "-c", MPIRUN, 3, sys.executable, tmp_path / "program.py", case, cwd=tmp_path, **environment
    )


def launch(tmp_path, case):
    (tmp_path / "program.py").write_text(PROGRAM)
    return run_python("-m", "spmdsim", "launch", "-n", 3, tmp_path / "program.py", case, cwd=tmp_path)


def test_a_rank_that_stopped_is_named(tmp_path):
    result = launch(tmp_path, "leave")
    assert result.returncode == 2
    text = "program.py: error: rank 1 will not come to call 2 of ranks 0, 1, 2: all_to_all over all"
    assert result.stderr.count(text) == 1 and "Traceback" not in result.stderr
    assert "rank 1 left the program; was last in call 1, all_to_all over all" in result.stderr
    assert "program.py:29" in result.stderr


def test_ranks_that_finish_early_disturb_no_rank(tmp_path):
    """Rank 2 stops before the others compute, and rank 1 stops before rank 0 prints."""
    result = launch(tmp_path, "outside")
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert sorted(result.stdout.split("\n"))[1:] == ["slow and well", "sum 288.0", "sum 342.0"]


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("raised", 3, "rank 1 of 3 stopped, the job ends:\nsys.exit(3)\n"),
        ("callback", 1, "rank 1 of 3, at exit:\n"),
        ("vanish", 2, "rank 1 will not come to call 2 of ranks 0, 1, 2"),
        ("quick", 5, "rank 1 of 3 leaves with os._exit(5) at program.py:16\n"),
    ],
)
def test_a_plain_script_reports_the_rank_that_stopped(case, code, words, tmp_path):
    """Importing the package is enough under `mpirun python script.py`, without guard and supervisor."""
    result = run_with_mpirun(tmp_path, case)
    # MPICH's launcher kills all ranks after os._exit and returns the number of the signal.
    assert result.returncode in ((code, 9) if case == "quick" else (code,))
    # Only Python versions that report a line for sys.exit add it to the message.
    message = re.sub(r"(sys\.exit\(3\)), at program\.py:11\n", r"\1\n", result.stderr)
    assert message.count(words) == 1, result.stderr
    # Ranks that waited for rank 1 report nothing.
    assert case == "vanish" or "will not come" not in result.stderr


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("sys.exit(3)", "(3, 'sys.exit(3)"),
        ("raise SystemExit(3)", "(3, 'sys.exit(3)"),
        ("exit(4)", "(4, 'sys.exit(4)"),
        ("quit(259)", "(3, 'sys.exit(259)"),
        ("raise type('Ended', (SystemExit,), {})(7)", "(7, 'Ended(7)"),
        ("raise SystemExit('a reason')", "(1, \"sys.exit('a reason')"),
        ("raise SystemExit", "(0, "),
        ("import argparse; argparse.ArgumentParser().error('no')", "(2, 'sys.exit(2)"),
        ("pass", "(0, '')"),
        ("try:\n    raise SystemExit(3)\nexcept SystemExit as e:\n    assert e.code == 3 and e.args == (3,)", "(0, '')"),
        ("e = SystemExit()\ne.code = 8\nraise e", "(8, 'sys.exit(8)"),
        ("import threading; t = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join()", "(0, '')"),
    ],
)  # fmt: skip
def test_the_exit_code_is_known_at_exit(ends, words):
    """The reason is known in one process without MPI for each kind of exit."""
    hooked = "import atexit, sys\nfrom spmdsim.shutdown import hooks\nhooks.hook_exit()\nhooks.hook_exit()\n"
    result = run_python("-c", f"{hooked}atexit.register(lambda: print(hooks.read_exit_reason()))\n{ends}")
    assert result.stdout.startswith(words), result
    assert result.returncode == int(words[1])


#: Stop the ranks of the first argument for their reasons; the other ranks still run.
STOPPING = """\
import json, sys, time
from spmdsim import world
from spmdsim.errors import DisagreementError, WorldError
rank = str(world().rank)
reasons = json.loads(sys.argv[1])
world().barrier()
if rank in reasons:
    text, is_of_others = reasons[rank]
    raise (DisagreementError if is_of_others else WorldError)(text)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ({0: ("broken", False)}, "rank 0 of 3 stopped, the job ends:\nbroken\n"),
        ({0: ("ranks disagree", True), 2: ("ranks disagree", True)}, "ranks disagree\n"),
        ({0: ("rank 1 will not come", True), 1: ("broken", False)}, "rank 1 of 3 stopped, the job ends:\nbroken\n"),
        ({0: ("seen late", True), 1: ("ranks disagree", True), 2: ("ranks disagree", True)}, "ranks disagree\n"),
        (dict.fromkeys(range(3), ("broken", False)), "broken\n"),
        ({0: ("a", False), 1: ("b", False)}, "rank 0 of 3 stopped, the job ends:\na\nrank 1 of 3 stopped, the job ends:\nb\n"),
    ],
)  # fmt: skip
def test_only_the_rank_that_caused_the_stop_is_reported(reasons, message, tmp_path):
    (tmp_path / "program.py").write_text(STOPPING)
    result = run_python("-m", "spmdsim", "launch", "-n", 3, "program.py", json.dumps(reasons), cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.replace("program.py: error: ", "") == message


def test_a_rank_that_fails_before_mpi_starts_is_named_once(tmp_path):
    """The package and the program both set hooks for errors."""
    (tmp_path / "program.py").write_text(
        "import sys\nimport spmdsim.launch\nspmdsim.launch.end_job_on_error('one')\n"
        "spmdsim.launch.end_job_on_error('two')\nfrom spmdsim.launcher import detect\n"
        "if detect().rank == 1:\n    sys.exit(3)\nspmdsim.world()\n"
    )
    variables = {"TMPDIR": str(tmp_path)}
    done = run_python("-c", MPIRUN, 2, sys.executable, tmp_path / "program.py", cwd=tmp_path, **variables)
    assert done.returncode == 3
    assert done.stderr.count("rank 1 of 2 left before it started MPI, with code 3, the job ends") == 1, (
        done.stderr
    )


def test_a_caught_exit_is_no_exit(tmp_path):
    result = run_with_mpirun(tmp_path, "caught")
    assert result.returncode == 4 and "stopped" not in result.stderr
    assert result.stdout.count("went on") == 3


PROGRAM_OF_A_SMALLER_WORLD = """\
from mpi4py import MPI
from spmdsim import MPIWorld
rank = MPI.COMM_WORLD.rank
world = MPIWorld(MPI.COMM_WORLD.Split(min(rank, 1), rank), check=False)
if rank == 1:
    world.gather_on((0, 1), None)
"""


def test_a_rank_that_left_a_smaller_world_is_named_by_its_number_in_the_job(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM_OF_A_SMALLER_WORLD)
    result = run_python("-m", "spmdsim", "launch", "-n", 4, tmp_path / "program.py", cwd=tmp_path)
    assert result.returncode == 2
    assert "rank 2 left the program and will not come to a collective of ranks 1, 2" in result.stderr


COUNTING = """\
import atexit, os, sys, time
from spmdsim import world
def write():
    kinds = ("exit", "barriers")
    open(f"{sys.argv[1]}/exit{w.rank}", "w").write(" ".join(str(w.control[kind].calls if kind in w.control else 0) for kind in kinds))
atexit.register(write)
w = world()
time.sleep(2.5 * (w.rank == 1))
"""


def test_ranks_that_wait_at_the_end_send_one_message_each(tmp_path):
    """Ranks meet in a barrier of MPI; those that wait for a second send one message to rank 0."""
    (tmp_path / "program.py").write_text(COUNTING)
    result = run_python("-m", "spmdsim", "launch", "-n", 4, tmp_path / "program.py", tmp_path, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    calls = [(tmp_path / f"exit{rank}").read_text() for rank in range(4)]
    assert calls == ["2 1", "0 1", "1 1", "1 1"]  # Rank 0 receives those of ranks 2 and 3.
