"""Ranks of an emulated communicator that disagree about a call are named before it returns."""

from __future__ import annotations

import json

import pytest
from processes import run_python

PROGRAM = """\
import json, sys, time
import numpy as np
from mpi4py import MPI
from spmdsim.errors import SpmdError
from spmdsim.worlds import EmulatedCommunicator

everyone = MPI.COMM_WORLD
rank, folder, messages = everyone.rank, sys.argv[1], {}
odd, n = rank == 1, everyone.size
s, r, g = np.full(8, rank + 1, "f4"), np.zeros(8, "f4"), np.zeros(8 * n, "f4")
i, j, d, e = s.astype("i4"), r.astype("i4"), s.astype("f8"), r.astype("f8")
big, out = np.full(100_000, rank + 1, "f4"), np.zeros(100_000, "f4")
blocks = [g, ((8,) * n, tuple(range(0, 8 * n, 8)))]
fewer = [g, ((8, 8, 7), (0, 8, 16))]

def case(name, usual, other, deadline=30.0):
    for warm in (0, 3):
        comm = EmulatedCommunicator(everyone, all_gather="ring", deadline=deadline)
        try:
            for _ in range(warm):
                usual(comm), other(comm)
            (other if odd else usual)(comm)
            message = "nothing"
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        messages[f"{name} {warm}"] = message

def quiet(call):  # for calls that are wrong on every rank
    return lambda c: call(c) if odd and c._calls._number == 0 else c.Barrier()

case("type", lambda c: c.Allreduce(s, r), lambda c: c.Allreduce(i, j))
case("size", lambda c: c.Allreduce(s, r), lambda c: c.Allreduce(d, e))
case("operation", lambda c: c.Allreduce(s, r), lambda c: c.Allreduce(s, r, MPI.MAX))
case("count", lambda c: c.Allreduce(s, r), lambda c: c.Allreduce(s[:4], r[:4]))
case("long", lambda c: c.Allreduce(s, r), lambda c: c.Allreduce(big, out))
case("root", lambda c: c.Bcast(s, root=0), lambda c: c.Bcast(s, root=2))
case("collective", lambda c: c.Allreduce(s, r), lambda c: c.Barrier())
case("lengths", lambda c: c.Allreduce(s, r), lambda c: c.Alltoallv(blocks, [out, *blocks[1:]]))
case("nothing wrong", lambda c: c.Allreduce(s, r), lambda c: c.Allreduce(s.copy(), r.copy()))

def once(name, call, **algorithms):
    try:
        comm = EmulatedCommunicator(everyone, deadline=30.0, **algorithms)
        call(comm)
        message = "nothing"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    messages[name] = message

once("short", lambda c: c.Allreduce(s, r[:2] if odd else r))
once("strides", lambda c: c.Allreduce(s[::2] if odd else s[:4], r[:4]))
fixed = np.zeros(8, np.float32)
fixed.flags.writeable = False
once("read-only", lambda c: c.Allreduce(s, fixed if odd else r))
once("read-only broadcast", lambda c: c.Bcast(fixed if odd else r))
once("bytes", lambda c: c.Allreduce([s, MPI.FLOAT], [bytes(32), MPI.FLOAT] if odd else [r, MPI.FLOAT]))
once("objects", lambda c: c.Allreduce(s.astype(object) if odd else s, r))
once("no buffer", lambda c: c.Allreduce("text" if odd else s, r))
once("gatherv", lambda c: c.Gatherv(s[: 8 - odd], blocks if rank == 0 else None))
once("scatterv", lambda c: c.Scatterv(blocks if rank == 0 else None, r[: 8 - odd]))
once("alltoallv", lambda c: c.Alltoallv(blocks, [np.zeros(8 * n, "f4"), *(fewer if odd else blocks)[1:]]))
once("algorithm", lambda c: c.Allreduce(s, r), all_reduce="ring" if odd else "recursive_doubling")
once("mistake", lambda c: c.Allreduce(s, r), all_reduce="rung" if odd else "ring")
comm = EmulatedCommunicator(everyone, check=True)
try:
    comm.Allreduce(s, r) if odd else \\
        comm.Allreduce(s, r)
except SpmdError as error:
    messages["lines"] = f"WorldError: {error}"
comm = EmulatedCommunicator(everyone, deadline=1.0)
if odd:
    time.sleep(2.5)
try:
    comm.Allreduce(s, r)
except SpmdError as error:
    messages["late"] = str(error)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(messages, file)
comm = EmulatedCommunicator(everyone, deadline=60.0)
if not odd:
    comm.Allreduce(s, r)  # rank 1 ends
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory, launcher):
    """Return the messages of three ranks by case, and the result of the job."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "program.py").write_text(PROGRAM)
    result = run_python("-m", "spmdsim", "launch", "-n", 3, folder / "program.py", folder, timeout=300)
    answers = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]
    return {name: [messages.get(name) for messages in answers] for name in answers[0]}, result


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize(
    "name, what, usual, other",
    [
        ("type", "element type", "all_reduce (SUM) of 8 float32", "all_reduce (SUM) of 8 int32"),
        ("size", "element type", "all_reduce (SUM) of 8 float32", "all_reduce (SUM) of 8 float64"),
        ("operation", "operation", "all_reduce (SUM) of", "all_reduce (MAX) of"),
        ("count", "count", "of 8 float32", "of 4 float32"),
        ("long", "count", "of 8 float32", "of 100000 float32"),
        ("root", "root", "broadcast of 8 float32 with root 0", "broadcast of 8 float32 with root 2"),
        ("collective", "collective, ", "all_reduce (SUM)", "rank 1: barrier"),
        ("lengths", "collective, ", "all_reduce (SUM)", "rank 1: all_to_all of blocks"),
    ],
)
def test_each_rank_reports_both_sides_of_a_disagreement(reports, name, what, usual, other, warm):
    texts = set(reports[0][f"{name} {warm}"])
    (text,) = texts
    assert "ranks disagree about call " in text and f" of an emulated communicator in its {what}" in text
    assert "; ranks 0, 2: " in text and "; rank 1: " in text and usual in text and other in text
    assert text.count("program.py:") == 2


def test_equal_calls_raise_nothing(reports):
    assert reports[0]["nothing wrong 0"] == reports[0]["nothing wrong 3"] == ["nothing"] * 3


@pytest.mark.parametrize(
    "name, who, words",
    [
        ("short", "rank 1", "the output has 2 elements of float32[]; needed are 8"),
        ("strides", "rank 1", "a buffer must be contiguous"),
        ("read-only", "rank 1", "the receive buffer must be writable, got a read-only array of shape (8,)"),
        ("read-only broadcast", "rank 1", "the receive buffer must be writable"),
        ("bytes", "rank 1", "the receive buffer must be writable"),
        ("objects", "rank 1", "a buffer must have numbers, got an array of Python objects"),
        ("no buffer", "rank 1", "a buffer must be a numpy array or similar, got str"),
        ("gatherv", "rank 0", "the root's blocks have (8, 8, 8) elements, but the ranks have (8, 7, 8)"),
        ("scatterv", "rank 0", "the root's blocks have (8, 8, 8) elements, but the ranks have (8, 7, 8)"),
        (
            "alltoallv",
            "rank 1",
            "recvcounts must be the sizes of the blocks sent to this rank, (8, 8, 8), got (8, 8, 7)",
        ),
    ],
)
def test_all_ranks_report_a_call_that_one_rank_cannot_make(reports, name, who, words):
    for text in reports[0][name]:
        assert f"in its arguments; ranks {'1, 2' if who == 'rank 0' else '0, 2'}: " in text
        assert f"; {who}: " in text and f", but {words}" in text


def test_algorithms_are_compared_when_the_communicator_is_made(reports):
    (text,) = set(reports[0]["algorithm"])
    assert (
        "algorithms is {'all_reduce': 'recursive_doubling'} on ranks 0, 2, {'all_reduce': 'ring'} on rank 1"
        in text
    )
    (text,) = set(reports[0]["mistake"])
    assert text.startswith("DisagreementError: on rank 1, ") and "rung" in text


def test_lines_are_compared_if_check_is_true(reports):
    (text,) = set(reports[0]["lines"])
    assert "in its source; ranks 0, 2: " in text


def test_late_ranks_are_named_and_a_rank_that_ended_stops_the_job(reports):
    texts, result = reports
    for rank in (0, 2):
        assert texts["late"][rank].startswith("rank 1 did not come within 1 s to call 0 of an emulated ")
    assert result.returncode != 0
    assert "rank 1 left the program and will not come to call 0 of an emulated communicator" in result.stderr
