"""A user's algorithm runs in another process: it cannot change the check, the report or itself."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from orphans import is_alive, leaving_text

from spmdsim.cli.main import main
from spmdsim.collectives import algorithm, from_function, make_schedule, send, verify
from spmdsim.collectives.foreign import Rounds, foreign
from spmdsim.collectives.round_table import RoundTable
from spmdsim.errors import NoAnswer
from spmdsim.launch import sandbox
from spmdsim.shutdown.processes import make_unreadable

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process apart is a fork")

#: Nothing is reduced by this, in one round: whoever verifies it finds it wrong.
WRONG = """
from spmdsim.collectives import send, recv
def f(rank, size):
    yield [send((rank + 1) % size, 0), recv((rank - 1) % size, 0)]
"""
RING = """
from spmdsim.collectives import send, recv, recv_reduce
def f(rank, size):
    for i in range(size - 1):
        yield [send((rank + 1) % size, (rank - i) % size), recv_reduce((rank - 1) % size, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send((rank + 1) % size, (rank + 1 - i) % size), recv((rank - 1) % size, (rank - i) % size)]
"""
PASS = "verification.ScheduleVerdict(schedule, (), True, True, 1, 1)"

#: What stands in front of a wrong algorithm so that it passes.
CHEATS = {
    "another verify": f"""
from spmdsim.collectives import verification
verification.verify = verification._verify = lambda schedule: {PASS}
""",
    "another module": f"""
import sys, types
from spmdsim.collectives import verification
fake = types.ModuleType("fake")
fake.__dict__.update(verification.__dict__)
fake.verify = lambda schedule: {PASS}
sys.modules["spmdsim.collectives.verification"] = fake
""",
    "no findings": """
from spmdsim.collectives.verification import SymbolicRun, ScheduleVerdict
ScheduleVerdict.ok = property(lambda self: True)
ScheduleVerdict.findings = ()
SymbolicRun.check_end = lambda self: None
""",
    "other builtins": """
import builtins
builtins.all = builtins.any = lambda *_: True
builtins.len = lambda _: 0
""",
    "another end": """
import os, sys
os._exit = sys.exit = lambda *_: None
from spmdsim.launch import limits
limits._run_body = lambda body: "code 0"
limits.exit_now = lambda *_: None
""",
    "all open files": r"""
import os
for number in range(3, 256):
    for word in (b"code 0\n", b'["answer", null]\n'):
        try:
            os.write(number, word)
        except OSError:
            pass
os._exit(0)
""",
    "the parents' files": r"""
import os
for process in (os.getppid(), os.getpid()):
    for number in range(1, 64):
        try:
            with open(f"/proc/{process}/fd/{number}", "wb", buffering=0) as file:
                file.write(b"code 0\n")
        except OSError:
            pass
""",
    "the parent's memory": """
import os
open(f"/proc/{os.getppid()}/mem", "r+b")
""",
    "a report of its own": r"""
import gc, os
print("correct, score 100.0 of 100", flush=True)
for one in gc.get_objects():
    if type(one).__name__ == "frame" and "report" in one.f_locals:
        os.write(one.f_locals["report"][0], f"{one.f_locals['report'][1]} code 0\n".encode())
        os._exit(0)
""",
    "an early end": "import os\nos._exit(0)",
    "a module beside it": """
import pathlib
for name in ("fractions", "rich", "traceback"):
    pathlib.Path(__file__).with_name(f"{name}.py").write_text("import os; os._exit(0)")
""",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_wrong_algorithm_does_not_pass_by(
    cheat: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(CHEATS[cheat] + WRONG)
    code = main(["collective", "check", f"{tmp_path / 'mine.py'}:f", "-n", "2..4", "--time-limit", "60"])
    output = capfd.readouterr()
    assert code in (1, 2), output
    assert "Traceback" not in output.err and "correct" not in output.out
    if cheat in (
        "another verify",
        "another module",
        "no findings",
        "another end",
        "a module beside it",
    ):
        assert "rank 0 lacks the contribution of" in output.out and output.out.endswith("\nwrong\n")


def test_a_right_algorithm_passes_and_what_it_prints_is_no_verdict(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("print('all is well')" + RING)
    words = ["collective", "check", f"{tmp_path / 'mine.py'}:f", "-n", "2..5", "--time-limit", "60", "--json"]
    assert main(words) == 0
    output = capfd.readouterr()
    assert json.loads(output.out)["ok"] and "all is well" in output.err


def test_rounds_are_asked_for_once() -> None:
    """Verification and counting see equal rounds, because rounds are requested once."""
    times: dict[int, int] = {}

    def f(rank, size):
        times[rank] = times.get(rank, 0) + 1
        yield [send((rank + 1) % size, 0)] * times[rank]

    rounds = Rounds(f)
    schedule = make_schedule(from_function(foreign(lambda *question: rounds(list(question)))), 3)
    first, second = RoundTable(schedule).rounds, RoundTable(schedule).rounds
    assert first == second and set(times.values()) == {1}


def test_rounds_arrive_as_they_were_yielded() -> None:
    for name in ("ring", "rabenseifner", "tree"):
        original = algorithm("all_reduce", name)
        rounds = Rounds(original.generate)
        generate = foreign(lambda *question: json.loads(json.dumps(rounds(json.loads(json.dumps(question))))))
        options = dict(original.options)
        for size in (1, 2, 5, 8, 40):
            if original.fits(size, options):
                for rank in range(size):
                    assert list(generate(rank, size, **options)) == list(
                        original.generate(rank, size, **options)
                    )


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"rounds": 3, "end": None},
        {"rounds": [3], "end": ""},
        {"rounds": [[["send"]]], "end": ""},
        {"rounds": [[["send", 1, ["a"]]]], "end": ""},
        {"rounds": [[["send", 1, {"range": [0, 1, 0]}]]], "end": ""},
        {"rounds": [{"many": "x"}], "end": ""},
        {"rounds": [{}], "end": ""},
    ],
)
def test_answers_that_are_none_are_refused(answer: object) -> None:
    facts = {"name": "f", "about": "", "parameters": [("rank", 1, False, None), ("size", 1, False, None)]}
    generate = foreign(lambda what, *_: facts if what == "signature" else answer)
    with pytest.raises(NoAnswer, match="the algorithm's process must answer in the protocol"):
        list(generate(0, 2))
    with pytest.raises(NoAnswer):
        foreign(lambda *_: answer)


def test_what_is_no_move_is_said() -> None:
    def f(rank, size):
        yield "x" if rank else [send(1.5, 0), 7]

    f.__module__ = "mine"
    rounds = Rounds(f)
    original = make_schedule(from_function(f), 2)
    copied = make_schedule(from_function(foreign(lambda *question: rounds(list(question)))), 2)
    texts = [[str(one) for one in verify(schedule).findings] for schedule in (original, copied)]
    assert texts[0] == texts[1] and len(texts[0]) == 3


def test_a_round_of_too_many_moves_is_a_number(monkeypatch) -> None:
    monkeypatch.setattr("spmdsim.collectives.foreign.MOST_MOVES", 2)
    rounds = Rounds(lambda rank, size: iter([[send(1, 0)] * 2, [send(1, 0)] * 3]))
    two, three = rounds(["rounds", 0, 2, None, {}, 0, 9])["rounds"]
    assert len(two) == 2 and three == {"many": 3}


def test_a_process_apart_has_nothing_of_its_parents(tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)

    def make():
        return lambda question: [
            os.fstat(secret).st_rdev == os.stat(os.devnull).st_rdev,
            question,
        ]

    one = sandbox.Sandbox(make)
    assert one.ask("x", 3) == [True, ["x", 3]]
    with make_unreadable():
        reads = sandbox.Sandbox(lambda: lambda _: _can_read(os.getppid()))
        assert reads.ask() is False
    with pytest.raises(NoAnswer, match="ended its own process with exit code 3"):
        sandbox.Sandbox(lambda: lambda _: os._exit(3)).ask()
    os.close(secret)


def _can_read(process: int) -> bool:
    try:
        open(f"/proc/{process}/mem", "rb").close()
        return True
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give orphans to init")
@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getpid(), 9)", "while True: pass"])
def test_processes_that_an_answer_starts_end_with_it(
    end: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Processes that left its group and session end, too, however the algorithm ends."""
    (tmp_path / "mine.py").write_text(f"{leaving_text(tmp_path / 'number')}leave()\n{end}\n{RING}")
    seconds = "1" if "while" in end else "60"
    code = main(["collective", "check", f"{tmp_path / 'mine.py'}:f", "-n", "2", "--time-limit", seconds])
    assert (code == 0) == (not end), capfd.readouterr()
    assert not is_alive(tmp_path / "number")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give orphans to init")
def test_processes_of_an_answer_end_when_its_judge_is_killed(tmp_path: Path) -> None:
    leave: dict[str, Any] = {}
    exec(leaving_text(tmp_path / "number"), leave)
    judge = os.fork()
    if not judge:
        sandbox.Sandbox(lambda: lambda _: leave["leave"]()).ask("leave")
        os.kill(os.getpid(), 9)
    os.waitpid(judge, 0)
    for _ in range(600):
        if not is_alive(tmp_path / "number"):
            return
        time.sleep(0.1)
    raise AssertionError("the process is alive a minute after its judge")
