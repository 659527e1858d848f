"""What the tests share: a world of n ranks, without MPI and under mpirun alike; ranks of their own."""

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

# Threads of small products wait for each other, the longer the busier the machine; read when numpy is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Thousands of tests and full caches make each search for cycles slow; a fifth of the time would go there.
gc.set_threshold(100_000, 50, 50)

# How many random cases a property is tried on, and without a clock; --hypothesis-profile=whole tries more.
settings.register_profile("quick", max_examples=20, deadline=None)
settings.register_profile("whole", max_examples=150, deadline=None)
settings.load_profile("quick")

TESTS = Path(__file__).resolve().parent

#: Where dialects count the random numbers that a process has asked for, and what sets their seed.
SEEDS = {
    "spmdsim.dialects.oneflow.creation": "manual_seed",
    "spmdsim.dialects.mindspore.parameter": "set_seed",
    "spmdsim.dialects.paddle.static": "seed",
}


#: Files and folders that test messages, agreement and timing themselves: more variants of their tests run on real ranks.
MESSAGES = ("worlds", "collectives", "nn/test_overlap.py", "redistribution/test_world.py")

#: Rank counts of tests without a mark: no messages, an odd count, and as many as ranks that mpirun starts.
COUNTS = (1, 3, 8)
#: Files and folders of ``pytest -m quick``: the core, layouts, rules, and a file or two of each package.
QUICK = (
    "core", "layout", "test_architecture.py", "test_metadata.py", "test_reading.py", "test_wrong_calls.py",
    "auto_parallel/test_dialect.py", "cases/test_digits.py", "cli/test_words.py", "collectives/test_vectors.py",
    "cost/test_machine.py", "dialects/test_layout_oneflow.py", "figures/test_step.py", "local/test_map_overlap.py",
    "nn/test_collectives_published.py", "ops/test_einsum.py", "ops/test_reductions.py", "redistribution/test_reshape.py",
    "simulation/test_buggy.py", "arrays/test_creation.py", "arrays/test_element_types.py", "trace/test_events.py",
    "worlds/test_steps.py",
)  # fmt: skip
#: Text of every file with tests of a world. Ranks import no other file.
WORLD = re.compile(r"mark\.mpi|def \w+\([^)]*\bworld\b")


def pytest_addoption(pluginmanager):
    """Load the package's plugin when the package itself is not installed."""
    if not pluginmanager.has_plugin("spmdsim"):
        pluginmanager.import_plugin("spmdsim.testing.plugin")


def pytest_configure(config):
    os.environ.pop("COLUMNS", None)  # what is printed does not depend on the terminal that the tests run in
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
    """Return True if a file of tests is one of ``names`` or in such a folder. Cached: thousands of tests ask for it."""
    place = os.path.relpath(path, TESTS)
    return any(place == name or place.startswith(f"{name}/") for name in names)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files that can have tests of the marker: importing all of them takes longer than quick tests."""
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
    """Under mpirun, a test that takes a world is an MPI test."""
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
    """Return a fixed sample of each test function's variants, to run on real ranks.

    Of n variants the cube root of n stays, in MESSAGES the square root. A hash of the names chooses. Variants with one rank send
    nothing and are dropped first. Tests without ``world`` and ``mpi_comm`` all stay. Runs in lock step keep all variants.
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
    """Every test begins like a process: nobody has asked for a world yet, nor, on some ranks only, for random numbers."""
    from spmdsim.worlds import current

    current._size[0] = 1
    for module, name in SEEDS.items():
        if module in sys.modules:
            getattr(sys.modules[module], name)(0)
    if paddle := sys.modules.get("spmdsim.dialects.paddle.static"):  # neither mode was asked for yet
        paddle._mode[0] = ""
    if fleet := sys.modules.get("spmdsim.dialects.paddle.fleet"):  # fleet.init was not called yet
        fleet._joined[0] = False
        fleet._degrees.update(dp_degree=0, mp_degree=0)


@pytest.fixture(scope="session")
def launcher() -> object:
    """What starts ranks, for tests that start jobs of their own: skipped where that cannot be."""
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
    """A world of n ranks: all in this process (LockStep), or under mpirun the first n ranks of the job.

    The same test body runs in both. ``@pytest.mark.ranks(2, 4)`` chooses the rank counts; the default is
    1, 3 and 8. Test what this process owns: ``for rank in world.ranks``.
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
