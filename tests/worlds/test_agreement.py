"""Real ranks report each rank that makes another call than the others or no call at all."""

from __future__ import annotations

import numpy as np
import pytest
from processes import run_python

from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.programs import check_mode

PROGRAM = """\
import sys, time
import numpy as np
from dataclasses import replace
from spmdsim import Machine, Mesh, MPIWorld, Tensor
from spmdsim.core.step import Step

case = sys.argv[1]
world = MPIWorld(check=case == "line" or "auto", deadline=1.0 if case in ("late", "slow") else 30.0)
mesh, odd = Mesh((2,), ("x",)), world.rank == 1

def reduce(dtype="f4", shape=(4, 4)):
    step = Step("all_reduce", ("x",), mesh(None, None, partial={"x": "sum"}), mesh(None, None), shape, "sum")
    return world.run(step, [np.ones(shape, dtype)])[0]

for _ in range(50):
    reduce()
    reduce("f8", (64, 64))
if case == "late" and odd:
    time.sleep(20)
elif case == "sizes":  # both calls are known; in MPI the shorter buffer would overflow or its rank would wait
    if odd:
        time.sleep(0.2)  # so that the shorter message is sent first
        reduce("f8", (64, 64))
    else:
        reduce()
elif case == "soon":  # calls with pauses between them are compared one by one
    for shape in ((2, 8), (2, 8) if odd else (4, 4), *[(4, 4)] * 30):
        time.sleep(0.02)
        print("done", reduce(shape=shape)[0, 0], flush=True)
elif case == "world":
    if odd:
        MPIWorld()
elif case == "facts" and not odd:  # rank 1 ends while rank 0 gathers objects
    world.gather_objects([world.rank])
elif case == "source" and not odd:  # creating a tensor is a call that ranks compare, too
    Tensor.from_global(np.ones(6), mesh("x"), world)
elif case == "replicas":
    a, b = (Tensor.from_local(np.ones(6), mesh(None), world) for _ in range(2))
    for one in (b, a) if odd else (a, b):
        one.check_replicas()
elif case == "line":  # equal calls from two lines differ only if check=True compares lines
    if odd:
        reduce()
    else:
        reduce()
elif case == "end" and odd:  # calls that wait for no rank are compared at the end
    world.use(all_reduce="ring")
elif case == "machine":  # two ranks have different measurements of one machine
    machine = Machine.laptop()
    world.machine = replace(machine, beta=machine.beta * 2) if odd else machine
if case not in ("facts", "end"):
    reduce()
world.verify_calls()
print("all the same")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, launcher):
    """Return a function that runs a case on two ranks and returns its output and exit code."""
    script = tmp_path_factory.mktemp("agreement") / "program.py"
    script.write_text(PROGRAM)

    def run(case):
        result = run_python("-m", "spmdsim", "launch", "-n", 2, script, case)
        return result.stdout + result.stderr, result.returncode

    return run


REDUCE = "all_reduce (sum) over x of float32 (4, 4)"


@pytest.mark.parametrize(
    "case, words",
    [
        (
            "late",
            [
                "rank 1 did not come within 1 s to call 100 of ranks 0, 1: " + REDUCE,
                "was last in call 99",
            ],
        ),
        ("sizes", ["about call 100 of ranks 0, 1 in its shape, dtype", "rank 0: " + REDUCE]),
        ("world", ["a new world of 2 ranks, at program.py:", "call 100 of ranks 0, 1: " + REDUCE]),
        (
            "facts",
            ["rank 1 will not come to call 100 of ranks 0, 1: gather_objects", "rank 1 left the program"],
        ),
        (
            "machine",
            [
                "about call 100 of ranks 0, 1",
                "rank 1: world.machine = laptop ",
                "rank 0: world.machine = laptop ",
            ],
        ),
        ("line", ["about call 100 of ranks 0, 1 in its source;"]),
        (
            "source",
            [
                "about call 100 of ranks 0, 1 in its call",
                "rank 0: from_global, at",
                "rank 1: " + REDUCE,
            ],
        ),
        (
            "replicas",
            [
                "about call 102 of ranks 0, 1 in its tensor; rank 0: check_replicas, tensor",
                "rank 1: check_replicas, tensor",
                "number 2 of its kind, made at program.py:",
            ],
        ),
        (
            "end",
            [
                "rank 0 will not come to call 100 of ranks 0, 1: world.use (all_reduce=ring; replicated=own), at"
            ],
        ),
    ],
)
def test_a_rank_that_waits_or_disagrees_is_named_and_the_job_ends(run, case, words):
    text, code = run(case)
    assert code != 0 and "all the same" not in text.split("rank", 1)[1], text
    assert all(word in text for word in words), text
    assert "program.py:" in text


def test_calls_with_pauses_between_them_are_compared_one_by_one(run):
    text, code = run("soon")
    assert code != 0 and "about call 101 of ranks 0, 1" in text, text
    assert text.count("done") < 2 * 12, text


CHOICES = """\
import time
from spmdsim import MPIWorld
from spmdsim.errors import DisagreementError

world = MPIWorld()
for k in range(1000):  # the ranks choose differently; one of the next calls compares the choices and raises
    before = dict(world.algorithms)
    try:
        world.use(all_reduce=("ring", None)[(k + world.rank) % 2])
    except DisagreementError:
        print("unchanged" if world.algorithms == before else f"{before} became {world.algorithms}", flush=True)
        raise
    time.sleep(0.02)
"""


def test_a_choice_that_is_refused_because_ranks_disagree_changes_nothing(tmp_path, launcher):
    (tmp_path / "program.py").write_text(CHOICES)
    result = run_python("-m", "spmdsim", "launch", "-n", 2, tmp_path / "program.py", timeout=120)
    assert "ranks disagree about call 0" in result.stderr
    assert "unchanged" in result.stdout and "became" not in result.stdout, result.stdout


def test_modes_come_from_the_argument_or_the_environment(monkeypatch):
    monkeypatch.setenv("SPMDSIM_CHECK", "1")
    assert check_mode(None) is True
    assert check_mode("auto") == "auto"
    monkeypatch.setenv("SPMDSIM_CHECK", "0")
    assert check_mode(None) is False
    monkeypatch.delenv("SPMDSIM_CHECK")
    assert check_mode(None) == "auto"
    with pytest.raises(UsageTypeError, match="True, False, 'auto' or 'values'"):
        check_mode("often")


def test_different_calls_have_different_numbers():
    mesh, other = Mesh((4,), ("x",)), Mesh((4,), ("x",), (3, 2, 1, 0))
    steps = [
        Step("all_gather", ("x",), m(*dims), m(None, None), shape)
        for m in (mesh, other)
        for dims in (("x", None), (None, "x"))
        for shape in ((4, 8), (8, 4))
    ]
    types = np.dtype("f4"), np.dtype("i4")

    def number_of(step, dtype, algorithm):
        return Call.of_step(step, dtype, algorithm, range(4)).number

    numbers = {number_of(s, d, a) for s in steps for d in types for a in (None, "ring")}
    assert len(numbers) == len(steps) * 4
    assert all(0 <= n < 2**62 for n in numbers)
    again = Step("all_gather", ("x",), mesh("x", None), mesh(None, None), (4, 8))
    assert number_of(again, types[0], None) in numbers


LATE = """\
import time
from mpi4py import MPI
from spmdsim.errors import DisagreementError
from spmdsim.worlds.agreement.comparison import Comparison

comm = MPI.COMM_WORLD.Dup()
late = comm.rank == comm.size - 1
time.sleep(2.5 * late)
try:
    print(f"rank {comm.rank}: {Comparison(comm, 5, 0.3).equal()}", flush=True)
except DisagreementError as error:
    print(f"rank {comm.rank}: {error}", flush=True)
time.sleep(3.0 * (not late))  # MPI calls here could complete the late rank's comparison
"""


def test_a_late_rank_does_not_report_the_ranks_that_gave_up(tmp_path, launcher):
    (tmp_path / "program.py").write_text(LATE)
    result = run_python("-m", "spmdsim", "launch", "-n", 4, tmp_path / "program.py", timeout=120)
    texts = dict(line.split(": ") for line in result.stdout.splitlines() if line.startswith("rank "))
    assert [texts[f"rank {rank}"] for rank in range(3)] == ["rank 3 did not come within 0.3 s"] * 3
    # MPI may complete the comparison of the last rank without the others.
    assert texts["rank 3"] in ("True", "others gave up before this rank came")
