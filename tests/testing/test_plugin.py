"""Ranks agree on failures, no rank waits for ever, and rank 0 alone reports."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from processes import run_python

pytest.importorskip("pytest_mpi")
pytestmark = pytest.mark.usefixtures("launcher")

RANKS = 3

CONFTEST = """\
def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.has_plugin("spmdsim"):
        pluginmanager.import_plugin("spmdsim.testing.plugin")
"""

FAILING = """\
import sys
import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi
RANK = MPI.COMM_WORLD.rank

@pytest.fixture
def bad_setup():
    assert RANK != 2, "setup of two"

@pytest.fixture
def bad_teardown():
    yield
    assert RANK != 1, "teardown of one"

def test_fine():
    assert MPI.COMM_WORLD.allreduce(1) == 3

def test_one_rank():
    assert RANK != 1, "one is bad"

def test_all_ranks():
    assert False, "all are bad"

def test_exit():
    if RANK == 0:
        sys.exit(3)

def test_setup(bad_setup):
    MPI.COMM_WORLD.Barrier()

def test_teardown(bad_teardown):
    pass

@pytest.mark.ranks(1, 2, 3)
def test_sizes(mpi_comm):
    assert mpi_comm.allreduce(1) == mpi_comm.size
    assert not (mpi_comm.size == 3 and mpi_comm.rank == 2), "two of three"

def test_still_in_step():
    assert MPI.COMM_WORLD.allreduce(RANK) == 3
"""


def run_ranks(folder, text, *options, conftest=CONFTEST):
    """Run a test file on several ranks; return the finished process."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(text)
    pytest_command = ["-m", "pytest", "-q", "--with-mpi", "-p", "no:cacheprovider", *options, "test_it.py"]
    return run_python("-m", "spmdsim", "launch", "-n", RANKS, *pytest_command, cwd=folder)


def test_failures_are_agreed_on_and_reported_once(tmp_path):
    result = run_ranks(tmp_path, FAILING, "--junitxml=junit.xml", "--color=no")
    output = result.stdout
    assert result.returncode == 1
    assert len(re.findall(r"4 failed, 5 passed,.* 2 errors in ", output)) == 1
    assert "test_one_rank (call) failed on ranks [1] of 3" in output
    assert "test_all_ranks (call) failed on ranks [0, 1, 2] of 3" in output
    assert "test_exit (call) failed on ranks [0] of 3" in output
    assert "test_setup (setup) failed on ranks [2] of 3" in output
    assert "test_teardown (teardown) failed on ranks [1] of 3" in output
    assert "test_sizes[3ranks] (call) failed on ranks [2] of 3" in output
    assert "AssertionError: one is bad" in result.stderr  # The error is printed at once, not only at the end.
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("4", "2")


SLOW_SUMMARY = """
def pytest_terminal_summary():
    import time
    time.sleep(3)  # longer than ranks wait for each other that leave without an agreement
"""


def test_rank_0_may_need_a_long_time_for_the_summary(tmp_path):
    """The other ranks exit with the agreed code and do not stop rank 0."""
    text = "import pytest\n@pytest.mark.mpi\ndef test_it(): assert False, 'bad'\n"
    result = run_ranks(tmp_path, text, "--color=no", conftest=CONFTEST + SLOW_SUMMARY)
    assert result.returncode == 1
    assert re.search(r"^1 failed\b.* in ", result.stdout, re.MULTILINE)
    assert "stopped" not in result.stderr and "sys.exit" not in result.stderr


@pytest.mark.parametrize(
    "body, expected",
    [
        (
            "    assert rank != 1, 'one is bad'\n    MPI.COMM_WORLD.Barrier()",
            ["AssertionError: one is bad", "ranks [0, 2] of 3 did not come"],
        ),
        (
            "    if rank != 1: MPI.COMM_WORLD.Barrier()",
            ["ranks [0, 2] of 3 did not come within 1 s to where ranks [1] wait"],
        ),
        (
            "    if rank == 1: raise KeyboardInterrupt\n    MPI.COMM_WORLD.Barrier()",
            ["rank 1 of 3: KeyboardInterrupt"],
        ),
        (
            "    MPI.COMM_WORLD.recv(source=(rank + 1) % 3)",
            ["rank 0 of 3", "test_it did not end within 2 s", "test_it.py:6 in test_it"],
        ),
    ],
    ids=["failing", "hanging", "interrupted", "all_hanging"],
)
def test_a_run_ends_although_some_ranks_fail_or_hang(tmp_path, body, expected):
    text = (
        "import pytest\nfrom mpi4py import MPI\n"
        "@pytest.mark.mpi\ndef test_it():\n    rank = MPI.COMM_WORLD.rank\n" + body
    )
    result = run_ranks(tmp_path, text, "--mpi-deadline=1")
    assert result.returncode not in (0, 1)
    for line in expected:
        assert line in result.stderr


@pytest.mark.parametrize("common", ["def test_all(): pass\n", ""], ids=["a_common_test", "no_common_test"])
def test_ranks_that_collect_different_tests_report_an_extra_test(tmp_path, common):
    text = (
        f"import pytest\nfrom mpi4py import MPI\npytestmark = pytest.mark.mpi\n{common}"
        "if MPI.COMM_WORLD.rank == 2:\n    def test_extra(): pass\n"
    )
    result = run_ranks(tmp_path, text, "--color=no")
    assert result.returncode == 2
    assert "rank 2 has tests that others lack, such as test_it.py::test_extra" in result.stdout


def test_without_mpirun_the_plugin_does_nothing(pytestconfig):
    if pytestconfig.getoption("--with-mpi"):
        pytest.skip("this is mpirun")
    assert not pytestconfig.pluginmanager.has_plugin("spmdsim-ranks")


COUNTING = """\
import pytest

@pytest.fixture
def world(request):
    return request.param

@pytest.mark.parametrize("world_name", ["a"])
def test_other_name(world, world_name): pass

@pytest.mark.parametrize(argnames=("name", "other"), argvalues=[("a", "b")])
def test_keywords(world, name, other): pass

@pytest.mark.parametrize("name, world", [("a", 5)], indirect=["world"])
def test_own_counts(world, name): pass
"""


def test_rank_counts_are_added_unless_a_mark_sets_the_fixture_itself(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from spmdsim.testing.plugin import parametrize_counts\n"
        "def pytest_generate_tests(metafunc):\n    parametrize_counts(metafunc, 'world', (1, 2))\n"
    )
    (tmp_path / "test_it.py").write_text(COUNTING)
    result = run_python("-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", cwd=tmp_path)
    assert re.findall(r"::(.+)", result.stdout) == [
        "test_other_name[1rank-a]",
        "test_other_name[2ranks-a]",
        "test_keywords[1rank-a-b]",
        "test_keywords[2ranks-a-b]",
        "test_own_counts[a-5]",
    ], result.stdout
