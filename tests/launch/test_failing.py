"""A failure on one rank ends the job with one traceback, the number of the rank and its exit code."""

from __future__ import annotations

import sys

import pytest
from processes import run_python

pytestmark = pytest.mark.usefixtures("launcher")

RANKS = 2

PROGRAM = """\
import os, signal, sys, threading, time
from mpi4py import MPI
comm, case = MPI.COMM_WORLD, sys.argv[1]
print(f"rank {comm.rank} says {case}")
if case == "everywhere":
    raise ValueError("broken everywhere")
if case == "everywhere_exit":
    if comm.rank == 0:
        time.sleep(2)
        print("why")
    sys.exit(7)
if case == "everywhere_mistake":
    from spmdsim.errors import InputError
    raise InputError("no such file")
if comm.rank == 1:
    if case == "raise":
        raise ValueError("broken on one")
    if case == "exit":
        sys.exit(5)
    if case == "interrupt":
        raise KeyboardInterrupt
    if case == "thread":
        threading.Thread(target=lambda: 1 / 0).start()
    if case == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "code":
        os._exit(5)
    if case == "vanish":
        os._exit(0)
comm.Barrier()
if case == "thread":
    time.sleep(30)
"""


def launch(tmp_path, *arguments, options=(), **variables):
    """Run a program on ranks, and return what it printed and its exit code."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = ["-m", "spmdsim", "launch", "-n", RANKS, *options, script, *arguments]
    return run_python(*command, cwd=tmp_path, **variables)


@pytest.mark.parametrize(
    "case, code, text",
    [
        ("exit", 5, "\nsys.exit(5), at program.py:"),
        ("interrupt", 130, "\nKeyboardInterrupt\n"),
        ("thread", 1, "ZeroDivisionError"),
    ],
)
def test_one_rank_ends_all(tmp_path, case, code, text):
    result = launch(tmp_path, case)
    assert result.returncode == code
    assert result.stderr.count(text) == 1
    assert "rank 1 of 2" in result.stderr
    assert "bootstrap.py" not in result.stderr


@pytest.mark.parametrize(
    "case, code, text",
    [
        ("kill", 137, "was killed by signal 9 (SIGKILL, as the system does when memory runs out)"),
        ("code", 5, "ended with exit code 5 without a word"),
        ("vanish", 1, "left in the middle of the program, by os._exit(0) or the like"),
    ],
)
def test_a_death_without_a_word_is_named(tmp_path, case, code, text):
    """The report names the rank and the signal or exit code, which launchers often leave out."""
    result = launch(tmp_path, case)
    assert result.returncode == code, result.stderr
    assert result.stderr.count(f"rank 1 of {RANKS} {text}, the job ends\n") == 1
    assert "rank 0" not in result.stderr


def test_a_killed_program_in_lock_step_is_named(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    result = run_python("-m", "spmdsim", "launch", "-n", 2, "--world", "lockstep", script)
    assert result.returncode == 137
    assert result.stderr.startswith("the program was killed by signal 9 (SIGKILL")


def test_a_log_that_one_rank_cannot_write_is_one_line(tmp_path):
    (tmp_path / "logs" / "worker_1.log").mkdir(parents=True)
    result = launch(tmp_path, "fine", options=["--log-dir", "logs"])
    assert result.returncode == 2
    message = [line for line in result.stderr.splitlines() if "--log-dir" in line]
    assert (
        len(message) == 1
        and "rank 1 cannot write its log" in message[0]
        and message[0].endswith(": Is a directory")
    )
    assert "Traceback" not in result.stderr


def test_a_folder_of_logs_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    result = launch(tmp_path, "fine", options=["--log-dir", "file/logs"])
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "file/logs cannot be made: Not a directory" in result.stderr


@pytest.mark.parametrize(
    "case, code, text",
    [
        ("everywhere", 1, "ValueError: broken everywhere"),
        ("everywhere_exit", 7, ""),
        ("everywhere_mistake", 2, "program.py: error: no such file\n"),
    ],
)
def test_what_all_ranks_have_is_said_once(tmp_path, case, code, text):
    result = launch(tmp_path, case)
    assert result.returncode == code
    assert text == "" or result.stderr.count(text) == 1
    assert "stopped" not in result.stderr
    assert result.stdout.count("says") == RANKS


def test_a_program_that_returns_a_code_is_given_the_time_to_say_why(tmp_path):
    """Rank 0 prints the report. The other ranks, which have ended, do not stop it."""
    script = tmp_path / "returning.py"
    script.write_text(
        "import sys, time\nfrom mpi4py import MPI\nfrom spmdsim.launch.bootstrap import guard\n"
        "def program():\n    if MPI.COMM_WORLD.rank == 0:\n        time.sleep(3)\n        print('why')\n"
        "    return 1\n"
        "sys.exit(guard(program, 'returning'))\n"
    )
    code = f"import sys; from spmdsim.launch import start; sys.exit(start({RANKS}, sys.argv[1:]))"
    result = run_python("-c", code, sys.executable, script)
    assert (result.returncode, result.stdout, result.stderr) == (1, "why\n", "")


def test_logs_per_rank_and_the_end_of_the_failed_one(tmp_path):
    """The log of the failed rank has all its lines, also if Python buffers the output."""
    result = launch(tmp_path, "raise", options=["--log-dir", "logs"], PYTHONUNBUFFERED="")
    assert result.returncode == 1
    assert "rank 1 failed with exit code 1; end of" in result.stderr
    assert "| ValueError: broken on one" in result.stderr
    assert result.stdout == "rank 0 says raise\n"
    for rank in range(RANKS):
        log = (tmp_path / "logs" / f"worker_{rank}.log").read_text(errors="replace")
        assert log.startswith(f"rank {rank} says raise\n")


def test_a_script_under_plain_mpirun_that_asks_for_it(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "from mpi4py import MPI\nfrom spmdsim.launch import end_job_on_error\nend_job_on_error()\n"
        "assert MPI.COMM_WORLD.rank != 1, 'one is bad'\nMPI.COMM_WORLD.Barrier()\n"
    )
    code = f"import sys; from spmdsim.launch import start; sys.exit(start({RANKS}, sys.argv[1:]))"
    result = run_python("-c", code, sys.executable, script)
    assert result.returncode == 1
    assert result.stderr.count("\nAssertionError: one is bad\n") == 1


def test_a_script_that_is_not_there(tmp_path):
    result = run_python("-m", "spmdsim", "launch", "-n", 2, tmp_path / "none.py")
    assert result.returncode == 2
    assert result.stderr.startswith("spmdsim launch: error: there is no script")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("ranks_in", ["mpi", "lockstep"], ids=["ranks", "one process"])
def test_a_module_that_is_not_there(ranks_in):
    result = run_python("-m", "spmdsim", "launch", "-n", 2, "--world", ranks_in, "-m", "nomodule")
    assert (result.returncode, result.stderr) == (2, "nomodule: error: there is no module nomodule\n")


def test_a_package_is_no_module_that_can_be_run(tmp_path):
    head = ("-m", "spmdsim", "launch", "-n", 1, "--world", "lockstep", "-m")
    result = run_python(*head, "spmdsim.cli")
    assert result.returncode == 2 and "there is no module spmdsim.cli.__main__\n" in result.stderr
    (tmp_path / "package.py").write_text("import nomodule\n")
    result = run_python(*head, "package.part", cwd=tmp_path)
    assert result.returncode == 1 and "No module named 'nomodule'" in result.stderr


def test_in_lock_step_one_process_plays_all_ranks(tmp_path):
    """The script runs without MPI; its log, its arguments and its exit code are as on ranks."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\nfrom spmdsim import world\nfrom spmdsim.dialects.session import current_world\n"
        "print(type(world()).__name__, world().size, current_world().size, sys.argv[1:])\nsys.exit(5)\n"
    )
    head = ["-m", "spmdsim", "launch", "-n", 6, "--world", "lockstep"]
    output = run_python(*head, script, "-n", 7)
    assert (output.returncode, output.stdout) == (5, "LockStep 6 6 ['-n', '7']\n")
    logged = run_python(*head, "--log-dir", tmp_path / "logs", script)
    assert "rank 0 failed with exit code 5" in logged.stderr
    assert (tmp_path / "logs" / "worker_0.log").read_text() == "LockStep 6 6 []\n"


def test_every_rank_that_fails_says_why_in_its_own_log(tmp_path):
    result = launch(tmp_path, "everywhere", options=["--log-dir", "logs"])
    assert result.returncode == 1
    for rank in range(RANKS):
        log = (tmp_path / "logs" / f"worker_{rank}.log").read_text()
        assert log.count("ValueError: broken everywhere") == 1
    assert "failed with exit code 1; end of" in result.stderr
    assert "  | ValueError: broken everywhere" in result.stderr
