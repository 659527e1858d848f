"""What the tests share: a world of n ranks, without MPI and under mpirun alike; ranks of their own."""

from __future__ import annotations

import gc
import os
import re
import sys
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


#: Files whose tests differ in nothing but the operator, the type, the layout or the program: on real ranks about each
#: so manyth of them runs, and of every function one; in lock step all.
SAMPLED = {
    "array_api/test_array_api.py": 5,
    "arrays/test_half.py": 5,
    "arrays/test_views.py": 4,
    "auto_parallel/test_run.py": 9,
    "compiled/test_compiled.py": 2,
    "dialects/test_dialect_losses.py": 3,
    "dialects/test_kinks.py": 3,
    "dialects/test_no_nan.py": 6,
    "dialects/test_numpy_references.py": 30,
    "dialects/test_oneflow_printing.py": 3,
    "dialects/test_paddle_training.py": 3,
    "dialects/test_word_tables.py": 16,
    "linalg/test_linalg.py": 10,
    "local/test_map_overlap.py": 4,
    "nn/test_apart.py": 3,
    "nn/test_complex_and_0d.py": 8,
    "nn/test_optimiser_state.py": 3,
    "nn/test_saved_state.py": 10,
    "nn/test_training.py": 2,
    "numpy_names/test_protocols.py": 20,
    "ops/test_choices.py": 4,
    "ops/test_complete.py": 6,
    "ops/test_einsum.py": 3,
    "ops/test_gradients.py": 4,
    "ops/test_half.py": 40,
    "ops/test_indexing.py": 4,
    "ops/test_owned_rows.py": 6,
    "ops/test_pending.py": 4,
    "ops/test_products_placed.py": 2,
    "ops/test_scatter.py": 2,
    "ops/test_selecting.py": 3,
    "ops/test_sorting.py": 3,
    "ops/test_spread.py": 4,
    "ops/test_strategies.py": 20,
    "ops/test_symbols.py": 2,
    "ops/test_without_dims.py": 20,
    "redistribution/test_halo.py": 3,
    "redistribution/test_memory.py": 3,
    "redistribution/test_oneflow.py": 4,
    "test_fft.py": 4,
    "worlds/test_communicator.py": 6,
    "worlds/test_reductions.py": 12,
    "worlds/test_rows.py": 8,
    "worlds/test_steps.py": 6,
}


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
    config.addinivalue_line("markers", "quick: in a file of QUICK in tests/conftest.py")
    missing = [name for name in QUICK if not (TESTS / name).exists()]
    if missing:
        raise pytest.UsageError(
            f"tests/conftest.py: QUICK must name files and folders of tests, got {missing}"
        )


@cache
def is_quick(path: Path) -> bool:
    """Return True if a file of tests is in QUICK. Cached, since thousands of tests ask about a few hundred files."""
    return any(path == TESTS / name or TESTS / name in path.parents for name in QUICK)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files that can have tests of the marker: importing all of them takes longer than quick tests."""
    if not collection_path.name.startswith("test_"):
        return None
    if config.option.markexpr == "quick":
        return not is_quick(collection_path) or None
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
        if is_quick(item.path):
            item.add_marker(pytest.mark.quick)
    if under_mpi(config):
        for item in items:
            if "world" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.mpi)
        if not config.option.keyword:
            items[:] = sampled(items)


def sampled(items):
    """Those that SAMPLED leaves: chosen by their names, so that no parameter goes with the choice."""
    last = {(item.path, item.originalname): item for item in items}
    return [
        item
        for item in items
        if last[item.path, item.originalname] is item or crc32(item.name.encode()) % sample_share(item) == 0
    ]


def sample_share(item) -> int:
    """Return n if about each n-th of a test's variants runs on real ranks; one rank alone sends no messages."""
    alone = "callspec" in vars(item) and item.callspec.params.get("world") == 1
    return SAMPLED.get(item.path.relative_to(TESTS).as_posix(), 1) * (8 if alone else 1)


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
    if tensors := sys.modules.get("spmdsim.dialects.mindspore.tensors"):  # memory has no limit
        tensors._limit[0] = None


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
