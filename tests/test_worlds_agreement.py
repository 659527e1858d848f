"""Ranks that disagree about a collective, or do not come to it, are named; on real ranks."""

from __future__ import annotations

import numpy as np
import pytest
from processes import run_python

from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout import Mesh
from spmdsim.redistribution.step import Step
from spmdsim.worlds.mpi import fingerprint

PROGRAM = """\
import sys, time
import numpy as np
from spmdsim.layout import Mesh
from spmdsim.redistribution.step import Step
from spmdsim.worlds import MPIWorld

case = sys.argv[1]
patience = 1.0 if case in ("missing", "groups", "facts", "gone") else 30.0
world = MPIWorld(check=case == "skipped" or "auto", deadline=patience)
mesh, odd = Mesh((3,), ("x",)), world.rank == 1

def reduce(op="sum", dtype="f4", shape=(4, 4), target=mesh(None, None), source=None):
    source = source or mesh(None, None, partial={"x": op})
    collective = "all_reduce" if target == mesh(None, None) else "reduce_scatter"
    step = Step(collective, ("x",), source, target, shape, op)
    return world.run(step, [np.ones(shape, dtype)])[0]

reduce()
if case == "op":
    reduce("max" if odd else "sum")
elif case == "dtype":
    reduce(dtype="i4" if odd else "f4")
elif case == "shape":
    reduce(shape=(2, 8) if odd else (4, 4))
elif case == "layout":
    reduce(target=mesh(None, "x") if odd else mesh("x", None))
elif case == "collective":
    reduce(target=mesh("x", None) if odd else mesh(None, None))
elif case == "skipped":
    if not odd:
        reduce()
    reduce()
elif case == "missing":
    if odd:
        time.sleep(20)
    reduce()
elif case == "groups":  # one rank works on other ranks than the rest
    some = Mesh((2,), ("y",), (1, 2)) if odd else Mesh((2,), ("y",), (0, 2))
    if world.rank != 0:
        step = Step("all_gather", ("y",), some("y"), some(None), (2,))
        world.run(step, [np.ones(1)])
elif case == "facts" and not odd:  # one rank leaves while the others tell each other something
    world.gather_objects([world.rank])
elif case in ("new", "gone"):  # after so many calls that only a sample of them is compared
    for _ in range(100):
        reduce()
    if case == "new":  # a call that the group has not made before
        reduce(target=mesh(None, "x") if odd else mesh("x", None))
    elif not odd:
        reduce()
elif case == "lines":  # the same call from two places is no mistake
    if odd:
        reduce()
    else:
        reduce()
print("all the same")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, launcher):
    """Run a case on three ranks: all it printed, and its exit code."""
    script = tmp_path_factory.mktemp("agreement") / "program.py"
    script.write_text(PROGRAM)

    def run(case):
        result = run_python("-m", "spmdsim", "launch", "-n", 3, script, case)
        return result.stdout + result.stderr, result.returncode

    return run


@pytest.mark.parametrize(
    "case, words",
    [
        ("op", "in its source layout, op"),
        ("dtype", "in its dtype"),
        ("shape", "in its shape"),
        ("layout", "in its target layout"),
        ("collective", "in its collective, target layout"),
        ("skipped", "in its source;"),
    ],
)
def test_ranks_that_disagree_are_named(run, case, words):
    text, code = run(case)
    assert code != 0 and "all the same" not in text
    assert f"ranks disagree about collective 1 {words}" in text
    assert "ranks 0, 2: " in text and "rank 1: " in text
    assert "program.py:" in text


def test_a_rank_that_does_not_come_is_named(run):
    text, code = run("missing")
    assert code != 0
    assert "rank 1 did not come to collective 1 within 1 s: all_reduce (sum) over x" in text


def test_ranks_that_disagree_about_a_new_call_are_named_however_late_it_comes(run):
    text, code = run("new")
    assert code != 0 and "all the same" not in text
    assert "ranks disagree about collective 101 in its target layout" in text


def test_ranks_that_wait_in_a_call_that_was_not_compared_say_so(run):
    text, code = run("gone")
    assert code != 0
    for rank in (0, 2):
        assert (
            f"rank {rank} waits for more than 1 s for others in collective 101 of ranks 0, 1, 2: all_reduce"
            in text
        )
    assert "program.py:" in text and "Traceback" not in text


def test_ranks_that_do_not_come_to_a_new_group_are_named(run):
    text, code = run("groups")
    assert code != 0 and "all the same" not in text.split("did not come")[1]
    assert "did not come within 1 s to a collective of ranks [" in text


def test_a_rank_that_leaves_while_others_exchange_facts(run):
    text, code = run("facts")
    assert code != 0
    assert "some ranks did not come within 1 s to where rank" in text and "program.py:" in text


def test_the_same_call_from_two_lines_is_no_mistake(run):
    text, code = run("lines")
    assert code == 0 and text.count("all the same") == 3


def test_the_first_calls_and_a_sample_of_the_rest_are_compared():
    pytest.importorskip("mpi4py")
    from spmdsim.worlds.mpi.check import Call, Checker

    mesh = Mesh((2,), ("x",))
    step = Step("all_gather", ("x",), mesh("x"), mesh(None), (4,))
    for mode, most in (("auto", fingerprint.FIRST + 10_000 / fingerprint.EVERY), (True, 10_000)):
        checker = Checker(None, mode, 1.0)
        one, other = (checker.of(Call.of(step, np.dtype(d), None)) for d in ("f4", "f8"))
        due = [(one if k % 2 else other).due() for k in range(10_000)]  # counted together
        assert all(due[: fingerprint.FIRST])
        assert 100 < sum(due[fingerprint.FIRST :]) <= most


def test_modes_come_from_the_argument_or_the_environment(monkeypatch):
    monkeypatch.setenv("SPMDSIM_CHECK", "1")
    assert fingerprint.check_mode(None) is True
    assert fingerprint.check_mode("auto") == "auto"
    monkeypatch.setenv("SPMDSIM_CHECK", "0")
    assert fingerprint.check_mode(None) is False
    monkeypatch.delenv("SPMDSIM_CHECK")
    assert fingerprint.check_mode(None) == "auto"
    with pytest.raises(UsageTypeError, match="True, False, 'auto' or 'values'"):
        fingerprint.check_mode("often")


def test_the_deadline_comes_from_the_environment(monkeypatch):
    pytest.importorskip("mpi4py")
    from spmdsim.worlds.mpi.check import DEADLINE, deadline_seconds

    monkeypatch.delenv("SPMDSIM_DEADLINE", raising=False)
    assert deadline_seconds() == DEADLINE
    monkeypatch.setenv("SPMDSIM_DEADLINE", "2.5")
    assert deadline_seconds() == 2.5
    for wrong in ("soon", "0", "-3", "nan"):
        monkeypatch.setenv("SPMDSIM_DEADLINE", wrong)
        with pytest.raises(InputError, match=f"a number of seconds, but it is '{wrong}'"):
            deadline_seconds()


def test_different_calls_have_different_numbers():
    mesh, other = Mesh((4,), ("x",)), Mesh((4,), ("x",), (3, 2, 1, 0))
    steps = [
        Step("all_gather", ("x",), m(*dims), m(None, None), shape)
        for m in (mesh, other)
        for dims in (("x", None), (None, "x"))
        for shape in ((4, 8), (8, 4))
    ]
    numbers = {
        fingerprint.digest(s, d, a) for s in steps for d in ("float32", "int32") for a in (None, "ring")
    }
    assert len(numbers) == len(steps) * 4
    assert all(0 <= n < 2**61 for n in numbers)
    again = Step("all_gather", ("x",), mesh("x", None), mesh(None, None), (4, 8))
    assert fingerprint.digest(again, "float32", None) in numbers
    mixed = {fingerprint.mixed(n, k, s) for n in numbers for k in range(5) for s in (0, 99)}
    assert len(mixed) == len(numbers) * 10
    assert np.array(max(mixed), np.int64) > 0
