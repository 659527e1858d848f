"""Commands that run a user's code report the limit that it reached, and code that exits early fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from orphans import is_alive, leaving_text
from processes import hear_ctrl_c

from spmdsim.cli.main import main
from spmdsim.errors import InputError
from spmdsim.launch.limits import MIB, Limits, describe_mistake, measure_busy_seconds, run_limited
from spmdsim.simulation import simulate

HEAD = "from spmdsim.collectives import send, recv, recv_reduce, copy\nimport os, sys, time\n"

#: Students' files: what ``check`` must say of them, and the exit code.
STUDENTS = {
    "exits": ("def f(rank, size):\n    sys.exit(0); yield []", 1, "rank 0 fails: SystemExit: 0 (line 4, in f)"),
    "exits on import": ("sys.exit(0)\ndef f(rank, size): yield []", 2, "cannot be loaded: SystemExit: 0"),
    "_exits": ("def f(rank, size):\n    os._exit(0); yield []", 2, "ended its own process with exit code 0"),
    "_exits on import": ("os._exit(0)\ndef f(rank, size): yield []", 2, "ended its own process with exit code 0"),
    "killed": ("def f(rank, size):\n    os.kill(os.getpid(), 9); yield []", 2, "with signal SIGKILL"),
    "spins": ("def f(rank, size):\n    while True: pass\n    yield []", 2, ".py:4: it has not ended after 1 s"),
    "computes in one piece": ("def f(rank, size):\n    9**9**9; yield []", 2, "it has not ended after 1 s"),
    "sleeps": ("def f(rank, size):\n    time.sleep(999); yield []", 2, ".py:4: it has not ended after 1 s"),
    # The generated __init__ is in no file.
    "sleeps in a generated method": (
        "from dataclasses import dataclass, field\nfrom functools import partial\n@dataclass\nclass Waiting:\n"
        "    x: object = field(default_factory=partial(time.sleep, 999))\ndef f(rank, size):\n    Waiting(); yield []",
        2, ".py:9: it has not ended after 1 s",
    ),
    "endless rounds": ("def f(rank, size):\n    while True: yield []", 1, "rank 0 does not end: more than"),
    # Slow ones: quick machines would run out of memory before the second is over.
    "endless chunks": ("def f(rank, size):\n    yield [send(1 - rank, iter(lambda: 0 * sum(range(10**4)), 1))]", 2, "it has not ended after 1 s"),
    "chunk 10^9": ("def f(rank, size):\n    yield [send(1 - rank, 10**9), recv(1 - rank, 10**9)]", 1, "chunk 1,000,000,000"),
    "chunks up to 10^9": ("def f(rank, size):\n    yield [send(1 - rank, range(10**9))]", 1, "chunk 999,999,999"),
    "10^6 moves": ("def f(rank, size):\n    yield [send(1 - rank, 0)] * 10**6", 1, "has 1,000,000 moves in its round"),
    "much memory": ("def f(rank, size):\n    x = bytearray(10**10); yield []", 2, ".py:4: there is no more memory (the limit is 512 MiB"),
    "prints": ("def f(rank, size):\n    while True: print('x' * 10**5)\n    yield []", 2, "it has printed more than 1 MiB"),
    "reads": ("def f(rank, size):\n    input(); yield []", 1, "EOFError"),
    "raises": ("def f(rank, size):\n    raise ValueError('mine'); yield []", 1, "ValueError: mine (line 4, in f)"),
    "forks": ("os.fork()\ndef f(rank, size):\n    yield []", 1, "wrong"),
}  # fmt: skip


def limits(words: str) -> list[str]:
    """Return the options with limits. The time limit is short only for programs that never end."""
    allowed = re.search(r"has not ended after (\d+) s", words)
    seconds = allowed[1] if allowed else "60"
    return ["--time-limit", seconds, "--memory-limit", "512", "--output-limit", "1"]


@dataclass
class Failing:
    """A record whose generated ``__init__`` raises KeyError."""

    value: object = field(default_factory={}.popitem)


def test_the_line_of_an_exception_is_in_a_file_although_a_generated_method_raised_it() -> None:
    with pytest.raises(KeyError) as caught:
        Failing()
    assert describe_mistake(caught.value).startswith(f"{Path(__file__).name}:")


@pytest.mark.parametrize("what", STUDENTS)
def test_students_code_within_limits(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, code, words = STUDENTS[what]
    (tmp_path / "mine.py").write_text(HEAD + source)
    assert main(["collective", "check", f"{tmp_path / 'mine.py'}:f", "-n", "2", *limits(words)]) == code
    output = capfd.readouterr()
    lines = [line for line in f"{output.out}\n{output.err}".splitlines() if line.strip("x")]
    assert any(words in line for line in lines), lines
    assert "Traceback" not in output.err and len(lines) <= (5 if what != "forks" else 8)
    assert code == 1 or len([line for line in output.err.splitlines() if line.strip("x")]) == 1


#: Programs on virtual ranks: what ``simulate`` must say of them, and the exit code.
PROGRAMS = {
    "os._exit": ("if rank == 1: os._exit(0)\nCOMM.Barrier()", 1, "rank 1 ends its process with os._exit(0) at p.py:4"),
    "thread of its own": ("t = threading.Thread(target=time.sleep, args=(.01,)); t.start(); t.join()", 0, "all finished"),
    "spins": ("while True: pass", 2, "p.py:4: it has not ended after 1 s"),
    "talks for ever": ("while True: COMM.allreduce(1)", 2, "p.py:4: it has not ended after 1 s"),
    "memory": ("x = bytearray(10**10)", 1, "rank 0 raises MemoryError (the limit is 512 MiB: --memory-limit) at p.py:4"),
    "prints": ("while True: print('x' * 10**5)", 2, "it has printed more than 1 MiB"),
    "exits": ("sys.exit(0)", 0, "all finished"),
    "exits with a code": ("sys.exit(7)", 7, "rank 0 leaves with sys.exit(7) at p.py:4"),
    "aborts": ("os.abort()", 2, "signal SIGABRT"),
}  # fmt: skip


@pytest.fixture(scope="module")
def looked_through() -> None:
    """Find the modules that can reach MPI once here, so that the child of each test need not."""
    simulate(len, 1, (), check=False)


@pytest.mark.usefixtures("looked_through")
@pytest.mark.parametrize("what", PROGRAMS)
def test_programs_within_limits(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, code, words = PROGRAMS[what]
    head = "import os, sys, threading, time\nfrom mpi4py import MPI\nCOMM = MPI.COMM_WORLD; rank = COMM.Get_rank()\n"
    (tmp_path / "p.py").write_text(head + source)
    assert main(["simulate", *limits(words), "-n", "2", str(tmp_path / "p.py")]) == code
    output = capfd.readouterr().err
    assert words in output and (code != 2 or len(output.splitlines()) == 1), output


@pytest.mark.parametrize("command", ["check", "simulate"])
def test_ctrl_c_is_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import os\ndef f(rank, size):\n    path = {str(tmp_path / 'on')!r}\n    while True: open(path, 'w').close()\n    yield\n"
        + ("next(f(0, 2))\n" if command == "simulate" else "")
    )
    words = ["simulate", "mine.py"] if command == "simulate" else ["collective", "check", "mine.py:f"]
    ours = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; from spmdsim.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", ours, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=hear_ctrl_c,
    )
    for _ in range(600):
        if (tmp_path / "on").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted at mine.py:4\n")


@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)  # what is forked runs in circles alone
def test_who_waits_for_a_processor_is_at_work() -> None:
    """A process that gets almost no processor time on a busy machine is not ended."""
    if not hasattr(os, "SCHED_IDLE") or not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not say how long a process waits for a processor")
    core, children = min(os.sched_getaffinity(0)), []
    try:
        for idle in (False, False, True):
            children.append(os.fork())
            if not children[-1]:
                os.sched_setaffinity(0, {core})
                if idle:
                    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
                while True:
                    pass
        for _ in range(600):
            starved = sum(measure_busy_seconds(children[-1]))
            if starved > 0.5:
                break
            time.sleep(0.1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert starved > 0.5


def test_where_a_program_was_is_not_who_started_it() -> None:
    """The error names a line only if a line of the user ran before the time was over."""
    with pytest.raises(InputError, match=r"^it has not ended after 0\.2 s"):
        run_limited(partial(time.sleep, 99), Limits(seconds=0.2))


def test_who_works_now_and_then_is_ended_by_the_clock(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with a fifth of a processor ends after two seconds by the clock, plus its waiting time."""
    monkeypatch.setattr("spmdsim.launch.limits.LOADING", 0)

    def body() -> int:
        while True:
            sum(range(10**6))  # about 20 ms
            print("worked", flush=True)
            time.sleep(0.08)

    with pytest.raises(InputError, match="it has not ended after 1 s"):
        run_limited(body, Limits(seconds=1))
    assert 0 < capfd.readouterr().out.count("worked") <= 30


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give orphans to init")
@pytest.mark.parametrize("end", ["", "while True: pass", "os._exit(5)"])
def test_processes_that_a_program_starts_end_with_it(
    end: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Processes that left its group and session end, too, however the program ends."""
    (tmp_path / "p.py").write_text(f"{leaving_text(tmp_path / 'number')}leave()\n{end}\n")
    seconds = "1" if "while" in end else "60"
    code = main(["simulate", "-n", "1", "--time-limit", seconds, str(tmp_path / "p.py")])
    assert (code == 0) == (not end), capfd.readouterr()
    assert not is_alive(tmp_path / "number")


def test_limits_are_chosen(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        print("here")
        return 3

    assert run_limited(body, Limits()) == 3
    with pytest.raises(InputError, match="ended its own process with exit code 5"):
        run_limited(lambda: sys.modules["os"]._exit(5), Limits())
    with pytest.raises(InputError, match="there is no more memory"):
        run_limited(lambda: len(bytearray(1 << 30)), Limits(memory=256 * MIB))
    assert run_limited(lambda: len(bytearray(1 << 20)) >> 20, Limits(memory=256 * MIB)) == 1


@pytest.mark.parametrize("argv", [
    ["collective", "show", "all_reduce", "ring", "-n", "100000", "--time-limit", "0.2"],
    ["collective", "check", "ring", "-n", "1000000", "--time-limit", "0.2"],
    ["collective", "export", "all_reduce", "ring", "-n", "100000", "--time-limit", "0.2"],
    ["collective", "diff", "all_reduce", "ring", "linear", "-n", "100000", "--time-limit", "0.2"],
])  # fmt: skip
def test_too_much_to_look_at(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spmdsim.launch.limits.LOADING", 0)
    assert main(argv) in (1, 2)
    output = capsys.readouterr()
    assert len((output.err or output.out).splitlines()) <= 3 and "Traceback" not in output.err


def test_a_program_to_search_that_leaves_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["search", str(tmp_path / "model.py"), "-n", "4"]) == 2
    assert "model.py:2: sys.exit(0) ends the program" in capsys.readouterr().err


#: Program files: what ``search`` must say of them, and the exit code.
MODELS = {
    "right": ("pass", 0, "relu"),
    "spins": ("while True: pass", 2, "model.py:5: it has not ended after 1 s"),
    "memory": ("bytearray(10**10)", 2, "model.py:5: there is no more memory (the limit is 512 MiB"),
    "prints": ("while True: print('x' * 10**5)", 2, "it has printed more than 1 MiB"),
    "_exits": ("os._exit(0)", 2, "ended its own process with exit code 0"),
}


@pytest.mark.parametrize(
    "what, where",
    [*((what, "in the program") for what in MODELS), ("spins", "on import"), ("_exits", "on import")],
)
def test_models_within_limits(
    what: str, where: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spmdsim.launch.limits.LOADING", 0)
    source, code, words = MODELS[what]
    function = "def program(x):\n"
    lines = f"\n{source}\n{function}" if where == "on import" else f"{function}    {source}\n"
    head = "import os\nimport spmdsim.ops as ops\ninputs = {'x': (8, 8)}\n"
    (tmp_path / "model.py").write_text(f"{head}{lines}    return ops.relu(x)\n")
    model = [str(tmp_path / "model.py"), "-n", "2", "--run"]
    assert main(["search", *model, *limits(words)]) == code
    output = capfd.readouterr()
    assert words in output.out + output.err and (code == 0 or len(output.err.splitlines()) == 1), output
