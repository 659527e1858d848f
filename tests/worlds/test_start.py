"""Ranks that start with different programs, versions or settings report the difference."""

from __future__ import annotations

import json

import numpy as np
import pytest
from processes import run_python

PROGRAM = """\
import json, os, sys
import numpy, spmdsim.worlds.agreement.start_agreement as start
from mpi4py import MPI
from spmdsim.errors import SpmdError
from spmdsim.redistribution.implementations.tuning import tuning
from spmdsim.worlds import MPIWorld

everyone = MPI.COMM_WORLD
rank, folder = everyone.rank, sys.argv[1]
odd, spare, messages = rank == 1, everyone.Dup(), {}

def case(name, check=None, comm=everyone, deadline=None):
    tuning.cache_clear()
    try:
        MPIWorld(comm, check=check, deadline=deadline).close()
        message = "alike"
    except SpmdError as error:
        message = f"{type(error).__name__}: {error}"
    messages[name] = message

def variable(name, value, on=(1,)):
    if rank in on:
        os.environ[name] = value

case("nothing")
if odd:
    import wave
    sys.path.insert(0, folder)
    import only_here
case("modules")
case("check", check=not odd)
case("deadline", deadline=20.0 + odd)
variable("SPMDSIM_CHECK", "often")
case("nonsense")
variable("SPMDSIM_CHECK", "often", (0, 1, 2))
case("all wrong")
os.environ.pop("SPMDSIM_CHECK")
variable("SPMDSIM_TUNE", f"{folder}/tuning.json")
variable("SPMDSIM_RANKS", "4096", (0, 1))
case("settings")
variable("SPMDSIM_TUNE", f"{folder}/copy.json", (0, 2))
variable("SPMDSIM_RANKS", "4096", (2,))
case("copies of a file")
[os.environ.pop(name) for name in ("SPMDSIM_TUNE", "SPMDSIM_RANKS")]
variable("SPMDSIM_DEADLINE", "21")
variable("SPMDSIM_TUNE", f"{folder}/two.json")
case("one host")
ranks_here = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
variable("OMPI_COMM_WORLD_LOCAL_SIZE", "1", (0, 1, 2))
case("several hosts")
variable("OMPI_COMM_WORLD_LOCAL_SIZE", ranks_here, (0, 1, 2))
[os.environ.pop(name, None) for name in ("SPMDSIM_TUNE", "SPMDSIM_DEADLINE")]
if odd:
    start.__version__, numpy.__version__ = "0.0.9", "1.20.1"
case("versions")
case("versions unchecked", check=False)
comm = everyone.Split(rank > 0)
case("a part", comm=comm)
start.__version__, numpy.__version__ = "1", "2"
module = sys.modules["__main__"]
module.__file__ = f"{folder}/other.py" if rank == 2 else module.__file__
case("text")
module.__file__ = "same"
if odd:
    case("late", deadline=1.0)
else:
    everyone.recv(source=1, tag=5)
if odd:
    [everyone.send(None, other, tag=5) for other in (0, 2)]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(messages, file)
MPIWorld(spare, check="never" if odd else None)
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory, launcher):
    """Return the messages of three ranks by case, and the result of the job."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "only_here.py").write_text("")
    (folder / "other.py").write_text("print('another program')")
    for name in ("tuning.json", "copy.json"):
        text = json.dumps({name: {"chunk": [[2, 1000]]} for name in ("Open MPI", "MPICH")})
        (folder / name).write_text(text)
    (folder / "two.json").write_text(json.dumps({"Open MPI": {"chunk": [[2, 1000]], "call": 5}}))
    result = run_python("-m", "spmdsim", "launch", "-n", 3, folder / "program.py", folder)
    texts: dict[str, dict[int, str]] = {}
    for rank in range(3):
        for name, text in json.loads((folder / f"{rank}.json").read_text()).items():
            texts.setdefault(name, {})[rank] = text
    return texts, result


def common_message(reports, name):
    """Return the message of a case; check that all ranks have it."""
    texts = reports[0][name]
    assert sorted(texts) == [0, 1, 2] and len(set(texts.values())) == 1, reports
    return texts[0]


@pytest.mark.parametrize("name", ["nothing", "modules", "copies of a file", "versions unchecked"])
def test_ranks_with_equal_starts_report_nothing(reports, name):
    assert common_message(reports, name) == "alike"


@pytest.mark.parametrize(
    "name, words",
    [
        ("check", ["check (SPMDSIM_CHECK) is True on ranks 0, 2, False on rank 1"]),
        ("deadline", ["deadline (SPMDSIM_DEADLINE) is 20.0 on ranks 0, 2, 21.0 on rank 1"]),
        (
            "settings",
            [
                "tuning (SPMDSIM_TUNE) of chunk is ((2, ",
                "((2, 1000),) on rank 1",
                "SPMDSIM_RANKS is '4096' on ranks 0, 1, not set on rank 2",
            ],
        ),
        (
            "versions",
            ["spmdsim is ", "0.0.9 on rank 1", f"numpy is {np.__version__} on ranks 0, 2, 1.20.1 on rank 1"],
        ),
        ("text", ["the text of the program program.py is ", "24 bytes with checksum ", " on rank 2"]),
    ],
)
def test_what_differs_is_named_on_all_ranks(reports, name, words):
    text = common_message(reports, name)
    assert text.startswith("DisagreementError: the ranks do not start alike: ")
    assert all(word in text for word in words), text


def test_all_ranks_report_a_wrong_setting_of_one_rank(reports):
    mistake = "SPMDSIM_CHECK must be 0, 1, auto or values, got 'often'"
    assert common_message(reports, "nonsense") == f"DisagreementError: on rank 1, {mistake}"
    assert common_message(reports, "all wrong") == f"InputError: {mistake}"


def test_worlds_of_some_ranks_compare_these_ranks(reports):
    texts = reports[0]["a part"]
    assert texts[0] == "alike"
    assert texts[1] == texts[2] and "0.0.9 on rank 1" in texts[1]


def test_ranks_that_make_no_world_are_named_and_the_job_ends(reports):
    texts, result = reports
    assert texts["late"][1].startswith(
        "DisagreementError: ranks 0, 2 did not come within 1 s to call 0 of ranks 0, 1, 2: a new world of 3 ranks, at program.py:"
    )
    assert result.returncode != 0 and "got 'never'" in result.stderr


def test_variables_that_open_mpi_does_not_export_get_advice(reports, launcher):
    if launcher.vendor != "Open MPI":
        pytest.skip("other launchers pass all variables")
    advice = "; Open MPI passes variables to other hosts with mpirun -x SPMDSIM_DEADLINE -x SPMDSIM_TUNE, and"
    assert advice in common_message(reports, "several hosts")
    one_host = common_message(reports, "one host")
    assert one_host.count("SPMDSIM_TUNE") == 2 and "SPMDSIM_DEADLINE" in one_host and "mpirun" not in one_host
