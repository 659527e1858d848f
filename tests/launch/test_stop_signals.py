"""SIGUSR1 to ``spmdsim launch`` reaches the ranks: they stop after one step, or ignore it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import MPIRUN, run_python

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster" / "train.py"

STOPPING = """\
import os, sys
import spmdsim

world = spmdsim.world()
with spmdsim.StopRequest() as stop:
    for step in range(100_000):
        if step == 3 and world.rank == 0:
            print("ready", os.getpid(), flush=True)
        if stop.is_set():
            break
sys.stdout.write(f"rank {world.rank} stops after step {step}\\n")  # one write: lines of ranks do not mix
"""
IGNORING = """\
import os, sys, time
import spmdsim

world = spmdsim.world()
if world.rank == 0:
    print("ready", os.getpid(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
sys.stdout.write(f"rank {world.rank} goes on\\n")
"""
HANDLING = """\
import signal, time

heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
print("ready", flush=True)
for _ in range(3000):
    time.sleep(0 if heard else 0.02)
print("heard", len(heard) > 0, flush=True)
"""
MPI, LOCKSTEP = ("-n", "2"), ("-n", "2", "--world", "lockstep")


@pytest.fixture
def run_until_ready(tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs Python and calls another function after a line of output."""

    def run(
        *words: object, line: str, then: Callable[[subprocess.Popen[str], str], None]
    ) -> tuple[int, str, str]:
        """Run Python, and return its exit code, its output and its errors.

        ``then`` is called with the process and the first line of its output that has ``line``.
        """
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
        with subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
        ) as process:
            try:
                assert process.stdout is not None
                lines = []
                while not lines or line not in lines[-1]:
                    lines.append(process.stdout.readline())
                    assert lines[-1], (lines, process.communicate())
                then(process, lines[-1])
                output, error = process.communicate(timeout=120)
            finally:
                process.kill()
        return process.returncode, "".join(lines) + output, error

    return run


def send_stop(process: subprocess.Popen[str], _line: str) -> None:
    """Send SIGUSR1 to the starter."""
    process.send_signal(signal.SIGUSR1)


@pytest.mark.parametrize("words, ranks", [(MPI, 2), (LOCKSTEP, 1)], ids=["processes", "lockstep"])
def test_all_ranks_stop_after_one_step(tmp_path, run_until_ready, launcher, words, ranks):
    (tmp_path / "program.py").write_text(STOPPING)
    command = ["-m", "spmdsim", "launch", *words, "program.py"]
    code, output, error = run_until_ready(*command, line="ready", then=send_stop)
    assert code == 0, error
    steps = re.findall(r"rank (\d) stops after step (\d+)", output)
    assert sorted(rank for rank, _ in steps) == [str(rank) for rank in range(ranks)], output
    assert len({step for _, step in steps}) == 1 and int(steps[0][1]) < 99_999


def test_a_signal_to_one_rank_stops_all_ranks_under_mpirun(tmp_path, run_until_ready, launcher):
    (tmp_path / "program.py").write_text(STOPPING)

    def send_to_rank(_process: subprocess.Popen[str], line: str) -> None:
        os.kill(int(line.split()[1]), signal.SIGTERM)

    words = ["-c", MPIRUN, 2, sys.executable, "program.py"]
    code, output, error = run_until_ready(*words, line="ready", then=send_to_rank)
    assert code == 0, error
    assert len(set(re.findall(r"stops after step (\d+)", output))) == 1
    assert output.count("stops after step") == 2


@pytest.mark.parametrize("words, ranks", [(MPI, 2), (LOCKSTEP, 1)], ids=["processes", "lockstep"])
def test_ranks_without_a_handler_ignore_the_signal(tmp_path, run_until_ready, launcher, words, ranks):
    (tmp_path / "program.py").write_text(IGNORING)

    def send_and_go(process: subprocess.Popen[str], line: str) -> None:
        process.send_signal(signal.SIGUSR1)
        os.kill(int(line.split()[1]), signal.SIGUSR1)
        (tmp_path / "go").touch()

    command = ["-m", "spmdsim", "launch", *words, "program.py"]
    code, output, error = run_until_ready(*command, line="ready", then=send_and_go)
    assert code == 0, error
    assert output.count("goes on") == ranks


def test_a_handler_of_the_program_hears_the_signal_although_no_calls_are_recorded(
    tmp_path, run_until_ready, launcher
):
    (tmp_path / "program.py").write_text(HANDLING)
    command = ["-m", "spmdsim", "launch", "-n", "1", "--record", "calls.json", "program.py"]
    code, output, error = run_until_ready(*command, line="ready", then=send_stop)
    assert code == 0, error
    assert "heard True" in output and "calls.json is not written" in error


@pytest.mark.parametrize("words", [MPI, LOCKSTEP], ids=["processes", "lockstep"])
def test_a_resumed_training_has_the_bits_of_one_that_was_not_stopped(
    tmp_path, run_until_ready, launcher, words
):
    def command(folder: str, steps: int) -> list[object]:
        options = ["--steps", steps, "--folder", tmp_path / folder]
        return ["-m", "spmdsim", "launch", *words, EXAMPLE, *options]

    code, output, error = run_until_ready(*command("stopped", 100_000), line="steps are done", then=send_stop)
    assert code == 0, error
    done = int(re.findall(r"(\d+) steps, loss", output)[-1])
    assert done < 100_000 and not (tmp_path / "stopped" / "finished").exists()
    outputs = []
    for folder in ("stopped", "whole"):
        result = run_python(*command(folder, done + 2))
        assert result.returncode == 0, result.stderr
        assert (tmp_path / folder / "finished").exists()
        outputs.append(result.stdout)
    assert f"{done} steps are done" in outputs[0] and " 0 steps are done" in outputs[1]
    compare = (
        "import sys, spmdsim\nfrom spmdsim.arrays import checkpoint\n"
        "first, second = (checkpoint.load(f, spmdsim.LockStep(2)) for f in sys.argv[1:])\n"
        "assert len(first) > 8 and first.keys() == second.keys()\n"
        "assert all(first[k].full().tobytes() == second[k].full().tobytes() for k in first)\n"
    )
    folders = [tmp_path / folder / "checkpoint" for folder in ("stopped", "whole")]
    result = run_python("-c", compare, *folders)
    assert result.returncode == 0, result.stderr


def test_a_starter_ends_quietly_after_its_temporary_folder_is_removed(
    tmp_path, run_until_ready, launcher, monkeypatch
):
    """PBS removes the folder of a deleted job while the job ends."""
    (tmp_path / "program.py").write_text(IGNORING)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    def remove_and_end(process: subprocess.Popen[str], _line: str) -> None:
        shutil.rmtree(tmp_path / "temporary")
        process.terminate()

    command = ["-m", "spmdsim", "launch", *MPI, "program.py"]
    code, _, error = run_until_ready(*command, line="ready", then=remove_and_end)
    assert code == 143 and "Traceback" not in error, error
