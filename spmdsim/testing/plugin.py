"""The pytest plugin: run one session on many ranks.

Under ``mpirun -n N python -m pytest --with-mpi`` (with pytest-mpi), all ranks run the same tests and exchange
outcomes after each phase of each test. A test that fails on one rank fails on all. Rank 0 reports it, with the
failing ranks and their assertions. A rank that does not arrive ends the job. In every other run of pytest this plugin
does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from spmdsim.errors import many
from spmdsim.launch.mpi import prepare
from spmdsim.launcher import detect

if TYPE_CHECKING:
    from mpi4py import MPI

#: Default rank counts: one rank, powers of two, and 3.
DEFAULT_COUNTS = (1, 2, 3, 4, 8)
#: True for a test that failed on any rank. Its ranks can be at different lines, so collective calls are not safe.
FAILED = pytest.StashKey[bool]()
_groups: dict[int, MPI.Comm] = {}


def under_mpi(config: pytest.Config) -> bool:
    """Return True if this process is one of several ranks and the user asked for MPI tests."""
    asked = config.getoption("with_mpi", False) or config.getoption("only_mpi", False)
    launcher = detect()
    return bool(asked) and launcher is not None and launcher.size > 1


def parametrize_counts(
    metafunc: pytest.Metafunc, fixture: str, counts: Sequence[int] = DEFAULT_COUNTS
) -> None:
    """Run a test that uses the fixture ``fixture`` once per rank count.

    The parametrization is indirect: the fixture reads the count from ``request.param``. The counts are those of the
    test's closest mark ``ranks``, such as ``ranks(2, 4)`` or ``ranks([2, 4])``, else ``counts``. Their ids are such as
    "1rank" and "2ranks". Tests that do not use the fixture, or have it in a ``parametrize`` mark, stay as they are.

    Args:
        metafunc: the test, from pytest's hook ``pytest_generate_tests``.
        fixture: the name of the fixture.
        counts: the default rank counts.
    """
    if fixture not in metafunc.fixturenames:
        return
    if any(fixture in _list_argnames(m) for m in metafunc.definition.iter_markers("parametrize")):
        return
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is not None:
        counts = mark.args[0] if isinstance(mark.args[0], list | tuple | range) else mark.args
    ids = [f"{n}rank{'s' * (n > 1)}" for n in counts]
    metafunc.parametrize(fixture, list(counts), ids=ids, indirect=True)


def _list_argnames(mark: pytest.Mark) -> list[str]:
    """Return the names that a ``parametrize`` mark sets, from a text ("a, b") or a sequence."""
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def first_ranks(request: pytest.FixtureRequest) -> Iterator[MPI.Comm]:
    """Yield a communicator of the first n ranks of the job; skip the test on other ranks.

    n is the fixture's parameter: with n = 2 in a job of 4 ranks, ranks 0 and 1 run the test, and ranks 2 and 3 skip
    it. If the job has fewer than n ranks, all ranks skip. All ranks of the job must call the fixture. The
    communicator is freed after the test, unless the test failed on any rank: then other ranks may still use it.

    Args:
        request: pytest's request of the fixture; its parameter is n.
    """
    from mpi4py import MPI

    n: int = request.param
    world = MPI.COMM_WORLD
    if n > world.size:
        pytest.skip(f"needs {many(n, 'rank')}, the job has {world.size}")
    if n not in _groups:  # cached, because libraries create only about 2,000 communicators
        _groups[n] = world.Split(0 if world.rank < n else MPI.UNDEFINED, world.rank)
    if world.rank >= n:
        pytest.skip(f"rank {world.rank} is outside of the first {n}")
    comm = _groups[n].Dup()
    yield comm
    if not failed_somewhere(request):
        comm.Free()


def failed_somewhere(request: pytest.FixtureRequest) -> bool:
    """Return True if the test failed on any rank."""
    node: pytest.Item = request.node
    return node.stash.get(FAILED, False)


@pytest.fixture
def mpi_comm(request: pytest.FixtureRequest) -> Iterator[MPI.Comm]:
    """Return a communicator of the first n ranks; the mark ``ranks`` sets n."""
    if not under_mpi(request.config):
        pytest.skip("needs mpirun and --with-mpi")
    yield from first_ranks(request)


__all__ = ["mpi_comm"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--mpi-deadline`` and ``--mpi-deadline-failed``, in seconds.

    They are the times for which a rank waits for the others after a test: 60 seconds by default, and 3 if the rank
    failed.

    Args:
        parser: pytest's parser of options.
    """
    group = parser.getgroup("spmdsim", "tests on many ranks")
    finished = "how long ranks that finished a test wait for the others (default 60)"
    failed = "how long a rank that failed waits for the others before it ends the job (default 3)"
    for name, seconds, text in (("--mpi-deadline", 60.0, finished), ("--mpi-deadline-failed", 3.0, failed)):
        group.addoption(name, type=float, default=seconds, metavar="SECONDS", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let only rank 0 write the junit file, because its reports have the outcomes of all ranks."""
    launcher = detect()
    if under_mpi(config) and launcher is not None and launcher.rank:
        config.option.xmlpath = None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Join the session of all ranks, if :func:`under_mpi`; declare the mark ``ranks``.

    To join, MPI is started and a :class:`RankSession` is registered as a plugin.

    Args:
        config: pytest's configuration.
    """
    counts = "ranks(counts): rank counts that mpi_comm (or world) takes in this test"
    config.addinivalue_line("markers", counts)
    if not under_mpi(config):
        return
    prepare()
    from spmdsim.testing.pytest_session import RankSession

    config.pluginmanager.register(RankSession(config, FAILED), "spmdsim-ranks")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one test per rank count."""
    parametrize_counts(metafunc, "mpi_comm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use ``mpi_comm`` as MPI tests."""
    for item in items:
        if "mpi_comm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.mpi)
