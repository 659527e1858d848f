"""The pytest plugin: one session out of many ranks.

Under ``mpirun -n N python -m pytest --with-mpi`` (with pytest-mpi), all ranks run the same tests and agree after
each phase of each test: a test that failed anywhere failed everywhere, the failing ranks are named with their
assertion, rank 0 alone reports, and nobody hangs. In every other run of pytest this plugin does nothing.
"""

from __future__ import annotations

import pytest

from spmdsim.launch.environment import prepare
from spmdsim.launcher import detect
from spmdsim.testing.ranks import mpi_comm, parametrize_counts, under_mpi

__all__ = ["mpi_comm"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two deadlines."""
    group = parser.getgroup("spmdsim", "tests on many ranks")
    group.addoption(
        "--mpi-deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long ranks that finished a test wait for the others (default 60)",
    )
    group.addoption(
        "--mpi-deadline-failed",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="how long a rank that failed waits for the others before it ends the job (default 3)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Rank 0 alone writes the junit file: its reports carry what all ranks agreed on."""
    launcher = detect()
    if under_mpi(config) and launcher is not None and launcher.rank:
        config.option.xmlpath = None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Join the other ranks, if there are any and the user asked for it."""
    config.addinivalue_line(
        "markers", "ranks(counts): rank counts that mpi_comm (or world) takes in this test"
    )
    if not under_mpi(config):
        return
    prepare()
    from spmdsim.testing.session import RankSession

    config.pluginmanager.register(RankSession(config), "spmdsim-ranks")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per rank count."""
    parametrize_counts(metafunc, "mpi_comm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that takes ``mpi_comm`` is an MPI test."""
    for item in items:
        if "mpi_comm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.mpi)
