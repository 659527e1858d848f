"""Fixtures of all tests: a world of n ranks in lock step or under mpirun, and a launcher for separate jobs."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

# One thread per process, because threads of small products wait for each other. NumPy reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Collect garbage rarely: thousands of tests and full caches would spend a fifth of the time on searches for cycles.
gc.set_threshold(100_000, 50, 50)

# Random cases per property, without time limits. The option --hypothesis-profile=whole tries more cases.
settings.register_profile("quick", max_examples=20, deadline=None)
settings.register_profile("whole", max_examples=150, deadline=None)
settings.load_profile("quick")

TESTS = Path(__file__).resolve().parent

#: Modules of dialects that count the random numbers of a process -> the function of the module that resets the count.
SEEDS = {
    "spmdsim.dialects.oneflow.creation": "manual_seed",
    "spmdsim.dialects.mindspore.parameter": "set_seed",
    "spmdsim.dialects.paddle.static": "seed",
}


#: Files and folders that test messages, agreement and timing. More variants of their tests run on real ranks.
MESSAGES = ("worlds", "collectives", "nn/test_overlap.py", "redistribution/test_world.py")

#: Rank counts of tests without a mark: one rank sends no messages, 3 is odd, and the tests start mpirun with 8 ranks.
COUNTS = (1, 3, 8)
#: Files and folders of ``pytest -m quick``: the core, layouts, rules, and one or two files of each package.
QUICK = (
    "core", "layout", "test_architecture.py", "test_metadata.py", "test_reading.py", "test_wrong_calls.py",
    "auto_parallel/test_dialect.py", "cases/test_digits.py", "cli/test_words.py", "collectives/test_vectors.py",
    "cost/test_machine.py", "dialects/test_layout_oneflow.py", "figures/test_step.py", "local/test_map_overlap.py",
    "nn/test_collectives_published.py", "ops/test_einsum.py", "ops/test_reductions.py", "redistribution/test_reshape.py",
    "simulation/test_buggy.py", "arrays/test_creation.py", "arrays/test_element_types.py", "trace/test_events.py",
    "worlds/test_steps.py",
)  # fmt: skip
#: Pattern of all files with tests of a world. Ranks import no other test files.
WORLD = re.compile(r"mark\.mpi|def \w+\([^)]*\bworld\b")


def pytest_addoption(pluginmanager):
    """Load the package's plugin when the package itself is not installed."""
    if not pluginmanager.has_plugin("spmdsim"):
        pluginmanager.import_plugin("spmdsim.testing.plugin")


def pytest_configure(config):
    os.environ.pop("COLUMNS", None)  # The width of the user's terminal must not change the output.
    config.addinivalue_line("markers", "faults: starts a job of which one rank fails or disagrees")
    config.addinivalue_line("markers", "cluster: runs on the hosts of scripts/cluster.sh")
    config.addinivalue_line("markers", "quick: in a file of QUICK in tests/conftest.py")
    missing = [name for name in QUICK if not (TESTS / name).exists()]
    if missing:
        raise pytest.UsageError(
            f"tests/conftest.py: QUICK must name files and folders of tests, got {missing}"
        )


@cache
def is_among(path: Path, names: tuple[str, ...]) -> bool:
    """Return True if a test file is one of the files ``names``, or in one of these folders.

    Results are cached, because thousands of tests call this function.
    """
    relative_path = os.path.relpath(path, TESTS)
    return any(relative_path == name or relative_path.startswith(f"{name}/") for name in names)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True if the file ``collection_path`` has no tests of the marker in ``config``, else None.

    pytest does not import these files. Imports of all files take longer than the quick tests.
    """
    if not collection_path.name.startswith("test_"):
        return None
    if config.option.markexpr == "quick":
        return not is_among(collection_path, QUICK) or None
    if config.option.markexpr == "mpi":
        return not WORLD.search(collection_path.read_text(encoding="utf-8")) or None
    return None


def pytest_generate_tests(metafunc):
    from spmdsim.testing.plugin import parametrize_counts

    parametrize_counts(metafunc, "world", COUNTS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the quick tests among ``items``. Under mpirun (``config``), mark and sample tests of worlds."""
    from spmdsim.testing.plugin import under_mpi

    for item in items:
        if is_among(item.path, QUICK):
            item.add_marker(pytest.mark.quick)
    if under_mpi(config):
        for item in items:
            if "world" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.mpi)
        if not config.option.keyword:
            items[:] = sample_variants(items)


def sample_variants(items):
    """Return the tests of ``items`` that run on real ranks.

    They are a fixed sample of each test function's variants. The sample has the cube root of the number of variants,
    and the square root in MESSAGES. A hash of the names chooses. Variants with one rank send nothing and are dropped
    first. Tests without ``world`` and ``mpi_comm`` stay.
    """
    variants = defaultdict(list)
    for item in items:
        if not {"world", "mpi_comm"}.isdisjoint(getattr(item, "fixturenames", ())):
            variants[item.path, item.originalname].append(item)
    omitted = set()
    for (path, _), all_variants in variants.items():
        exponent = 1 / 2 if is_among(path, MESSAGES) else 1 / 3
        all_variants.sort(key=lambda item: (has_one_rank(item), crc32(item.name.encode())))
        omitted.update(all_variants[round(len(all_variants) ** exponent) :])
    return [item for item in items if item not in omitted]


def has_one_rank(item) -> bool:
    """Return True if a test takes a world or a communicator of one rank."""
    params = item.callspec.params if "callspec" in vars(item) else {}
    return 1 in (params.get("world"), params.get("mpi_comm"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Reset the world, the random numbers and Paddle's mode before a test ``item``.

    Otherwise some ranks could have drawn more random numbers than others.
    """
    from spmdsim.worlds import current

    current._size[0] = 1
    for module, name in SEEDS.items():
        if module in sys.modules:
            getattr(sys.modules[module], name)(0)
    if paddle := sys.modules.get("spmdsim.dialects.paddle.static"):  # The program has chosen no mode yet.
        paddle._mode[0] = ""
    if fleet := sys.modules.get("spmdsim.dialects.paddle.fleet"):  # The program has not called init yet.
        fleet._joined[0] = False
        fleet._degrees.update(dp_degree=0, mp_degree=0)


@pytest.fixture(scope="session")
def launcher() -> object:
    """Return the MPI launcher, for tests that start their own jobs. Skip tests that cannot start ranks."""
    from spmdsim.errors import SpmdError
    from spmdsim.launch import launched
    from spmdsim.launch.mpi import find_launcher

    if launched():
        pytest.skip("starts ranks of its own, which a rank of a job must not")
    try:
        return find_launcher()
    except SpmdError as error:
        pytest.skip(f"no ranks can be started: {error}")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[object]:
    """Yield a world of n ranks: LockStep in this process, or the first n ranks of the job under mpirun.

    One test body runs in both. ``@pytest.mark.ranks(2, 4)`` chooses the rank counts, which are the parameters of the
    ``request``; the default is 1, 3 and 8. Test the shards of this process: ``for rank in world.ranks``.
    """
    from spmdsim.testing.plugin import failed_somewhere, first_ranks, under_mpi

    if not under_mpi(request.config):
        from spmdsim.worlds import LockStep

        yield LockStep(request.param)
        return
    from spmdsim.worlds import MPIWorld

    for comm in first_ranks(request):
        mpi_world = MPIWorld(comm)
        yield mpi_world
        if not failed_somewhere(request):
            mpi_world.close()
