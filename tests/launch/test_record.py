"""The last calls of all ranks are written when a job fails, is killed or gets a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import MPIRUN, hear_ctrl_c, run_python, waited_for
from trace_events import slices_of

from spmdsim.cli.main import main
from spmdsim.errors import InputError
from spmdsim.worlds.trace.last_calls import LastCall, document, read, table

PROGRAM = """\
import os, signal, sys, time
import numpy as np
from spmdsim import Mesh, MPIWorld
from spmdsim.core.step import Step

case = sys.argv[1]
world = MPIWorld(deadline=2.0 if case == "late" else 60.0)
mesh = Mesh((3,), ("x",))
odd = world.rank == 1

def reduce(dtype="f4"):
    step = Step("all_reduce", ("x",), mesh(None, partial={"x": "sum"}), mesh(None), (4,), "sum")
    return world.run(step, [np.ones(4, dtype)])[0]

for _ in range(300):
    reduce()
if case == "differs":
    reduce("f8" if odd else "f4")
    reduce()
    world.barrier()
if odd and case == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if odd and case in ("late", "waits"):
    print("ready", os.getpid(), flush=True)
    for _ in range(3000):
        if os.path.exists("go"):
            break
        time.sleep(0.02)
reduce()
"""


@pytest.fixture
def job(tmp_path, launcher):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def command(case: str, name: str = "calls.json") -> list[object]:
    return ["-m", "spmdsim", "launch", "-n", 3, "--record", name, "program.py", case]


def last(timeline: dict) -> dict[int, int]:
    """Return the number of each rank's last call, as a reader of the timeline sees it."""
    calls = [event["args"] for event in slices_of(timeline)]
    assert all(len(call["group"]) == 3 for call in calls)
    return {rank: max(call["number"] for call in calls if call["rank"] == rank) for rank in range(3)}


@pytest.mark.parametrize("case", ["killed", "late", "differs"])
def test_a_stop_writes_what_all_ranks_called(job, case, capsys):
    result = run_python(*command(case), cwd=job)
    assert result.returncode != 0
    assert result.stderr.count(f"what the ranks called last is in {job / 'calls.json'}\n") == 1, result.stderr
    timeline = json.loads((job / "calls.json").read_text())
    calls = [event["args"] for event in timeline["traceEvents"] if event["ph"] == "X"]
    ends, why = last(timeline), timeline["otherData"]["reason"]
    assert {
        "killed": "rank 1 is not running any more",
        "late": "rank 1 did not come within 2 s",
        "differs": "ranks disagree about call",
    }[case] in why, why
    if case == "differs":
        wrong = next(c["number"] for c in calls if c["rank"] == 1 and "float64" in c["words"])
        assert f">  {wrong} " in table([timeline]) and f"first difference: call {wrong}\n" in table(
            [timeline]
        )
    else:
        assert ends[1] == ends[0] - 1 == ends[2] - 1
        assert sum(not call["end"] for call in calls) == 2
        assert f"call {ends[0]}: rank 1 did not come\n" in table([timeline])
    assert all(sum(c["rank"] == rank for c in calls) == 256 for rank in range(3))
    assert all("program.py:" in call["line"] for call in calls if "all_reduce" in call["words"])
    assert main(["calls", str(job / "calls.json")]) == 0
    assert capsys.readouterr().out == table([timeline]) + "\n"


@pytest.mark.parametrize("whom, kind", [("starter", signal.SIGUSR1), ("rank", signal.SIGTERM)])
def test_a_signal_writes_what_all_ranks_called(job, kind, whom):
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, *map(str, command("waits", "calls.txt"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=job,
        env={**os.environ, "PYTHONPATH": paths},
        preexec_fn=hear_ctrl_c,
    ) as starter:
        try:
            assert starter.stdout is not None and starter.stderr is not None
            line = starter.stdout.readline()
            assert line.startswith("ready "), (
                line,
                starter.poll(),
                starter.stderr.read() if not line else "",
            )
            rank = line.split()[1]
            time.sleep(1)  # the others are in the call
            os.kill(starter.pid if whom == "starter" else int(rank), kind)
            assert waited_for(lambda: (job / "calls.txt").exists())
            (job / "go").touch() if kind == signal.SIGUSR1 else None
            output = starter.stderr.read()
            code = starter.wait()
        finally:
            starter.kill()
    text = (job / "calls.txt").read_text()
    assert text.startswith(f"last calls of ranks 0, 1, 2: {kind.name}")
    assert "rank 1 did not come\n" in text and text.count("...") == 2
    if kind == signal.SIGUSR1:
        assert code == 0, output
    else:
        assert code == 128 + kind, output
        assert whom == "starter" or "rank 1 of 3 was killed by signal 15 (SIGTERM)" in output
    times = output.count(f"what the ranks called last is in {job / 'calls.txt'}\n")
    assert times >= 1 if kind == signal.SIGUSR1 else times == 1, output
    assert [path.name for path in job.glob("calls*")] == ["calls.txt"], output


@pytest.mark.parametrize("kind", [signal.SIGUSR1, signal.SIGTERM])
def test_a_program_without_a_world_hears_no_signal(tmp_path, launcher, kind):
    """A program that logs no calls ignores SIGUSR1, and SIGTERM ends the job."""
    (tmp_path / "program.py").write_text(
        "import os, time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "if MPI.COMM_WORLD.rank == 0:\n    print('ready', flush=True)\n"
        "while not os.path.exists('go'):\n    time.sleep(0.02)\nMPI.COMM_WORLD.Barrier()\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, *map(str, command("", "calls.json"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
    ) as starter:
        try:
            assert starter.stdout is not None and starter.stderr is not None
            assert starter.stdout.readline() == "ready\n"
            starter.send_signal(kind)
            why = starter.stderr.readline() if kind == signal.SIGUSR1 else ""
            (tmp_path / "go").touch() if kind == signal.SIGUSR1 else None
            why += starter.stderr.read()
            code = starter.wait()
        finally:
            starter.kill()
    assert code == (0 if kind == signal.SIGUSR1 else 128 + kind), why
    assert "killed by signal" not in why and ("ended by SIGTERM" in why) == (kind == signal.SIGTERM)
    assert why.count("calls.json is not written: the ranks log calls of an MPIWorld") == 1, why
    assert not (tmp_path / "calls.json").exists()


#: Leave files as ranks do that are killed while they write, and the file of a rank on another host.
HALF_WRITTEN = """\
from pathlib import Path
for name in ("calls[1].txt.5.part", "calls[1].rank0.txt.6.part", "calls1.txt.7.part", "calls[1].rank2.txt"):
    Path(name).touch()
raise SystemExit(3)
"""


def test_what_a_killed_rank_has_written_half_is_removed(tmp_path, launcher):
    (tmp_path / "program.py").write_text(HALF_WRITTEN)
    (tmp_path / "calls[1].rank5.txt").write_text("of an earlier job")
    words = ["-m", "spmdsim", "launch", "-n", 1, "--record", "calls[1].txt", "program.py"]
    result = run_python(*words, cwd=tmp_path)
    remaining = sorted(path.name for path in tmp_path.iterdir() if path.name != "program.py")
    assert remaining == ["calls1.txt.7.part", "calls[1].rank2.txt", "calls[1].rank5.txt"]
    written = tmp_path / "calls[1].rank2.txt"
    assert result.returncode == 3 and f"what the ranks called last is in {written}\n" in result.stderr


def test_a_plain_mpirun_writes_it_too(job):
    """The file is written although no starter can say where it is."""
    words = [sys.executable, "program.py", "differs"]
    result = run_python("-c", MPIRUN, 3, *words, cwd=job, SPMDSIM_RECORD="calls.json")
    assert result.returncode != 0 and "ranks disagree about call" in result.stderr
    assert f"what the ranks called last is in {job / 'calls.json'}\n" in result.stderr
    assert "first difference: call" in table([read(job / "calls.json")])


def test_what_cannot_be_recorded_is_refused(job):
    for options, why in {
        ("--record", "none/calls.json"): "argument --record: cannot write 'none/calls.json'",
        ("--world", "lockstep", "--record", "x"): "--record shows ranks of MPI side by side",
    }.items():
        result = run_python("-m", "spmdsim", "launch", "-n", 3, *options, "program.py", "", cwd=job)
        assert result.returncode == 2 and why in result.stderr and result.stderr.count("\n") == 1
    command = ["-m", "spmdsim", "launch", "-n", 3, "program.py", "fine"]
    result = run_python(*command, cwd=job, SPMDSIM_RECORD="none/calls.json")
    assert (
        result.returncode == 2
        and result.stderr.count("SPMDSIM_RECORD must be a file in a folder that exists") == 1
    )


def some_calls(calls_per_rank: int = 3) -> list[LastCall]:
    return [
        LastCall(r, (0, 1, 2), "w", n, f"{n}", f"call {n} of x", "p.py:1", 10 * n, 10 * n + 5)
        for r in range(3)
        for n in range(calls_per_rank)
    ]


def test_the_table_marks_the_first_call_that_differs_or_to_which_a_rank_did_not_come():
    calls = some_calls()
    same = table([document(calls, (0, 1, 2), "SIGUSR1", 99)])
    assert ">" not in same and "difference" not in same and "did not come" not in same
    assert "\n  1     b       b       b       0.000\n" in same
    late = table([document([c for c in calls if (c.rank, c.number) != (2, 2)], (0, 1, 2), "", 99)])
    assert "\n>  2     c       c       -       0.000\n" in late and "call 2: rank 2 did not come" in late


def test_files_of_several_nodes_are_one_table(tmp_path: Path):
    calls, files = some_calls(), []
    for rank in range(3):
        files.append(tmp_path / f"calls.rank{rank}.json")
        own_calls = document([c for c in calls if c.rank == rank], (rank,), "SIGTERM", 99)
        files[-1].write_text(json.dumps(own_calls))
    assert table([read(f) for f in files]) == table([document(calls, (0, 1, 2), "SIGTERM", 99)])


@pytest.mark.parametrize(
    "wrong",
    [
        [], {}, {"otherData": 1}, {"traceEvents": []},
        {"otherData": {"kind": "the last calls of each rank", "ranks": [0], "reason": ""}, "traceEvents": [{"ph": "X"}]},
        {"otherData": {"kind": "the last calls of each rank", "ranks": ["0"], "reason": ""}, "traceEvents": []},
    ],
)  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path: Path, wrong):
    (tmp_path / "x.json").write_text(json.dumps(wrong))
    with pytest.raises(InputError, match=r"x.json does not hold the last calls of ranks"):
        read(tmp_path / "x.json")
