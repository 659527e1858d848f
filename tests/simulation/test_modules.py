"""Each rank has its own copy of every module that can reach MPI, in every kind of folder; other modules are shared."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from simulate_judging import judge

from spmdsim.simulation import Report, simulate

pytest.importorskip("greenlet")

# A library that uses MPI in several forms, and a program that checks the results on each rank.
LIBRARY = """
from functools import lru_cache
from mpi4py import MPI

comm = MPI.COMM_WORLD
RANK = comm.Get_rank()

def block(n):
    r, p = comm.Get_rank(), comm.Get_size()
    return range(n * r // p, n * (r + 1) // p)

def total(x, comm=MPI.COMM_WORLD):
    return comm.allreduce(x)

@lru_cache
def seen(what):
    return what, RANK

class Counter:
    objects = []
    rank = MPI.COMM_WORLD.Get_rank()
"""
PROGRAM = """
from mpi4py import MPI
from {library} import Counter, block, comm, seen, total
import {library} as library

me = MPI.COMM_WORLD
assert me.allreduce(sum(block(100))) == 4950
assert total(me.rank) == sum(range(me.size))
assert comm.gather(comm.rank) == (list(range(me.size)) if me.rank == 0 else None)
assert library.RANK == Counter.rank == me.rank and seen("x") == ("x", me.rank)
Counter.objects.append(me.rank)
me.Barrier()
assert Counter.objects == [me.rank]
assert me.sendrecv(Counter, (me.rank + 1) % me.size) is Counter
library.RANK += 10
me.Barrier()
print(library.RANK)
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder; return the folder."""

    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Report]]:
    """Return a function that runs a program with library folders on `sys.path`; unload modules afterwards."""
    before = set(sys.modules)

    def run(program: str, *folders: Path, ranks: int = 4) -> Report:
        for folder in folders:
            monkeypatch.syspath_prepend(str(folder))
        path = write(tmp_path / "programs", {"program.py": program}) / "program.py"
        return simulate(path, ranks, check=False, emit=lambda rank, line: None)

    yield run
    for name in set(sys.modules) - before:
        if not name.startswith(("spmdsim", "numpy", "mpi4py")):
            del sys.modules[name]


def lines_by_rank(report: Report) -> list[str]:
    """Return the printed lines in rank order; check that the report has no problems."""

    assert not report.problems, report
    return [line for _, line in sorted(report.output)]


MODULE = {"lib.py": LIBRARY}
PACKAGE = {
    "lib/__init__.py": "from lib.inside import *\nfrom lib.inside import comm\n",
    "lib/inside.py": LIBRARY,
}
IMPORT_BY_PARTS = "import_module('.'.join(['mpi4py', 'MPI']))"
INSTALLATIONS = {
    "a folder on the path": ("other", MODULE, "lib"),
    "a folder on the path, a package": ("other", PACKAGE, "lib"),
    "a folder on the path, a namespace package": ("other", {"acme/lib.py": LIBRARY}, "acme.lib"),
    "installed": ("site-packages", MODULE, "lib"),
    "an installed package": ("lib/site-packages", PACKAGE, "lib"),
    "an installed namespace package": ("site-packages", {"acme/deep/lib.py": LIBRARY}, "acme.deep.lib"),
    "installed into a target": ("vendored", {**PACKAGE, "lib-1.0.dist-info/METADATA": ""}, "lib"),
    "the system's": ("dist-packages", MODULE, "lib"),
}


@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_each_rank_has_its_own_copy_of_a_library_that_uses_mpi(
    installation: str, run: Callable[..., Report], tmp_path: Path
) -> None:
    folder, files, library = INSTALLATIONS[installation]
    report = run(PROGRAM.format(library=library), write(tmp_path / folder, files))
    assert lines_by_rank(report) == ["10", "11", "12", "13"]
    assert library not in sys.modules


@pytest.mark.parametrize("installed", [False, True])
def test_each_rank_has_its_own_copy_of_a_library_in_an_archive(
    installed: bool, run: Callable[..., Report], tmp_path: Path
) -> None:
    folder = tmp_path / ("site-packages" if installed else "other")
    folder.mkdir()
    archive = folder / "libraries.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("lib/__init__.py", PACKAGE["lib/__init__.py"])
        opened.writestr("lib/inside.py", LIBRARY)
        opened.writestr("plain.py", "print('loaded')")
    report = run(PROGRAM.format(library="lib") + "import plain", archive)
    lines = lines_by_rank(report)
    assert [line for line in lines if line != "loaded"] == ["10", "11", "12", "13"]
    assert lines.count("loaded") == 4


IMPORTS = {
    "at once": "from mpi4py import MPI\ndef rank(): return MPI.COMM_WORLD.rank",
    "in a function": "def rank():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD.rank",
    "in a line": "try: import os, mpi4py.MPI as MPI\nexcept ImportError: MPI = None\ndef rank(): return MPI.COMM_WORLD.rank",
    "by name": "import importlib\ndef rank(): return importlib.import_module('mpi4py.MPI').COMM_WORLD.rank",
    "by parts": f"from importlib import import_module\ndef rank(): return {IMPORT_BY_PARTS}.COMM_WORLD.rank",
    "by __import__": "def rank(): return __import__('mpi4py').MPI.COMM_WORLD.rank",
    "in a text": "names = {}\nexec('from mpi4py import MPI', names)\ndef rank(): return names['MPI'].COMM_WORLD.rank",
    "through a helper": "import helper\nrank = helper.rank",
    "through two": "import between\nrank = between.rank",
    "through two, by name": "def rank():\n    return __import__('between').rank()",
    "in a package": "from parts.mine import rank",
    "in a package, relatively": "from parts import rank",
}
HELPERS = {
    "helper.py": "def rank():\n    import mpi4py.MPI\n    return mpi4py.MPI.COMM_WORLD.Get_rank()",
    "between.py": "import importlib\nrank = importlib.import_module('helper').rank",
    "parts/__init__.py": "from .mine import rank",
    "parts/mine.py": "from .deeper import rank",
    "parts/deeper/__init__.py": "from mpi4py.MPI import COMM_WORLD\ndef rank(): return COMM_WORLD.rank",
}


@pytest.mark.parametrize("form", IMPORTS)
def test_every_form_of_import_of_mpi_is_detected(
    form: str, run: Callable[..., Report], tmp_path: Path
) -> None:
    folder = write(
        tmp_path / "site-packages",
        {
            **HELPERS,
            "lib.py": IMPORTS[form]
            + "\ncache = []\ndef first():\n    cache.append(rank())\n    return cache[0]",
        },
    )
    program = "import lib\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nprint(lib.first())"
    assert lines_by_rank(run(program, folder)) == ["0", "1", "2", "3"]


def test_each_rank_has_its_own_state_of_a_package_that_uses_mpi(
    run: Callable[..., Report], tmp_path: Path
) -> None:
    files = {
        "lib/__init__.py": "",
        "lib/state.py": "values = {}",
        "lib/core.py": "from mpi4py import MPI\nfrom lib.state import values\nvalues['rank'] = MPI.COMM_WORLD.rank",
    }
    program = """
from mpi4py import MPI
import lib.core
MPI.COMM_WORLD.Barrier()
from lib.state import values
print(values["rank"])
"""
    assert lines_by_rank(run(program, write(tmp_path / "site-packages", files))) == ["0", "1", "2", "3"]


def test_each_rank_has_its_own_copy_of_user_modules_without_mpi(
    run: Callable[..., Report], tmp_path: Path
) -> None:
    program = """
from mpi4py import MPI
import settings
settings.rank = MPI.COMM_WORLD.rank
MPI.COMM_WORLD.Barrier()
print(settings.rank)
"""
    assert lines_by_rank(run(program, write(tmp_path / "other", {"settings.py": ""}))) == ["0", "1", "2", "3"]


def link_extension(folder: Path) -> str:
    """Link one of Python's extension modules into a folder; return its name. Skip if there is none."""
    names = ("_bisect", "_heapq", "_random", "_csv", "_struct")
    specs = [spec for name in names if (spec := find_spec(name)) and str(spec.origin).endswith(".so")]
    if not specs:
        pytest.skip("Python's own extension modules are built in")
    source = Path(str(specs[0].origin))
    os.symlink(source, folder / source.name)
    return specs[0].name


def test_installed_packages_with_extension_modules_that_cannot_reach_mpi_are_loaded_once(
    run: Callable[..., Report], tmp_path: Path
) -> None:
    text = '"""A library for use with mpi4py:\n\nfrom mpi4py import MPI\n"""\n# import mpi4py\n'
    files = {
        "plain/__init__.py": f"{text}import json, logging\nprint('loaded')",
        "colours/__init__.py": "print('loaded')",
    }
    program = """
from mpi4py import MPI
import json, logging, numpy, plain, colours, numpy.linalg
ids = MPI.COMM_WORLD.allgather([id(json), id(numpy), id(numpy.linalg), id(plain), id(plain.logging)])
print(ids == ids[:1] * 4, plain.logging is logging)
"""
    folder = write(tmp_path / "site-packages", files)
    link_extension(folder / "plain")
    lines = lines_by_rank(run(program, folder))
    assert sorted(lines) == ["True False"] * 4 + ["loaded"] * 5


def test_a_setup_script_beside_the_program_does_not_unshare_libraries(
    run: Callable[..., Report], tmp_path: Path
) -> None:
    write(tmp_path / "programs", {"setup.py": "raise SystemExit('this builds a package')"})
    files = {"plain/__init__.py": "print('loaded')\ndef build():\n    import setup"}
    library = write(tmp_path / "site-packages", files)
    link_extension(library / "plain")
    lines = lines_by_rank(
        run("import plain\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()", library, tmp_path / "programs")
    )
    assert lines == ["loaded"]


def test_extension_modules_of_a_package_are_shared(run: Callable[..., Report], tmp_path: Path) -> None:
    folder = write(
        tmp_path / "site-packages",
        {"lib/__init__.py": "from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\n"},
    )
    name = link_extension(folder / "lib")
    program = f"""
import lib
import lib.{name}
from mpi4py import MPI
print(lib.rank, len(set(MPI.COMM_WORLD.allgather(id(lib.{name})))))
"""
    assert lines_by_rank(run(program, folder)) == [f"{rank} 1" for rank in range(4)]


def test_a_module_beside_the_script_hides_a_standard_module_of_its_name(
    run: Callable[..., Report], tmp_path: Path
) -> None:
    import queue

    write(tmp_path / "programs", {"queue.py": "from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank"})
    assert lines_by_rank(run("import queue\nprint(queue.rank)", tmp_path)) == ["0", "1", "2", "3"]
    assert sys.modules["queue"] is queue


def test_a_library_may_communicate_during_its_import(run: Callable[..., Report], tmp_path: Path) -> None:
    files = {
        "lib.py": "from mpi4py import MPI\nfirst = MPI.COMM_WORLD.bcast(MPI.COMM_WORLD.rank + 7)\nall = MPI.COMM_WORLD.allgather(first)"
    }
    program = "import lib\nprint(lib.first, len(lib.all))"
    assert lines_by_rank(run(program, write(tmp_path / "site-packages", files))) == ["7 4"] * 4


def test_each_rank_has_its_own_copy_of_spmdsim(run: Callable[..., Report]) -> None:
    program = """
import numpy as np
from spmdsim import Mesh, Tensor, record
from spmdsim.worlds.mpi.mpi_world import MPIWorld

world, mesh = MPIWorld(), Mesh((4,), ("dp",))
with record() as trace:
    x = Tensor.from_global(np.arange(8.0), mesh("dp"), world).to(mesh(None))
print(trace.counts())
"""
    import spmdsim.arrays

    before = sys.modules["spmdsim.arrays"]
    assert lines_by_rank(run(program)) == ["{'all_gather': 1}"] * 4
    assert sys.modules["spmdsim.arrays"] is before is spmdsim.arrays


@pytest.mark.parametrize("last_statement", ["", "raise SystemExit(0)"])
def test_each_rank_has_its_own_environment_folder_and_exit_functions(
    last_statement: str, run: Callable[..., Report], tmp_path: Path
) -> None:
    program = f"""
import atexit, os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
os.environ["WHO"] = str(comm.rank)
os.makedirs(f"{{sys.argv[0]}}.{{comm.rank}}", exist_ok=True)
if comm.rank:
    os.chdir(f"{{sys.argv[0]}}.{{comm.rank}}")
atexit.register(lambda: print("last", comm.allreduce(1), os.environ["WHO"]))
atexit.register(lambda: print("first", os.path.basename(os.getcwd()).rpartition(".")[2]))
atexit.register(print, "never")
if comm.rank == 3:
    atexit.unregister(print)
comm.Barrier()
print(os.getenv("WHO"))
{last_statement}
"""
    before, environment = Path.cwd(), dict(os.environ)
    output = run(program, tmp_path).output
    lines = [[line for rank, line in output if rank == printing_rank] for printing_rank in range(4)]
    assert lines[0] == ["0", "never", f"first {before.name.rpartition('.')[2]}", "last 4 0"]
    assert lines[1] == ["1", "never", "first 1", "last 4 1"]
    assert lines[3] == ["3", "first 3", "last 4 3"]
    assert Path.cwd() == before and dict(os.environ) == environment


# ---------------------------------------------------------------------- functions


def test_each_rank_has_its_own_copy_of_a_functions_libraries(tmp_path: Path) -> None:
    """The child process imports the real mpi4py first, if it is installed, like a notebook."""
    write(tmp_path / "other", {**MODULE, "notes.py": "seen = []"})
    program = """
import sys
sys.path.insert(0, sys.argv[1])
try:
    from mpi4py import MPI
except (ImportError, RuntimeError):
    sys.exit("no MPI")
import lib, notes
from lib import Counter, block, comm, total
from spmdsim.simulation import simulate

world, alone, before = MPI.COMM_WORLD, MPI.COMM_SELF, dict(globals())

def work(me, other=MPI.COMM_WORLD):
    assert MPI.COMM_WORLD == world == comm == me == other and lib.RANK == me.rank == Counter.rank
    assert me.sendrecv(Counter, (me.rank + 1) % me.size) is Counter
    notes.seen.append(me.rank)
    return me.allreduce(sum(block(100))), total(1), world.allreduce(1), alone.size, lib.comm.size, other.size

assert simulate(work, 4).results == ((4950, 4, 4, 1, 4, 4),) * 4
assert sorted(notes.seen) == [0, 1, 2, 3]
assert all(globals()[name] is value for name, value in before.items()), "variables are as they were"
assert lib.comm.size == 1 and sys.modules["lib"] is lib

part = MPI.COMM_WORLD.Dup()
try:
    simulate(lambda me: part.rank, 2)
except Exception as error:
    print(error)
"""
    path = write(tmp_path, {"program.py": program}) / "program.py"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI", "PMI", "PRTE"))
    }
    done = subprocess.run(
        [sys.executable, str(path), str(tmp_path / "other")],
        capture_output=True, text=True, timeout=100, check=False, cwd=Path(__file__).parents[2],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    if "no MPI" in done.stderr:
        pytest.skip("no MPI to load before")
    assert done.returncode == 0, done.stderr
    assert "'part', which the function uses, must not be a communicator of the real MPI" in done.stdout


def test_the_owner_of_a_shared_communicator_is_named() -> None:
    communicators: list[object] = []

    def work(comm):  # type: ignore[no-untyped-def]
        communicators.append(comm)
        comm.Barrier()
        return communicators[0].allreduce(1)  # type: ignore[attr-defined]

    (problem,) = judge(work, 3).problems
    assert problem.kind == "shared_communicator"
    assert "uses rank 0's handle of COMM_WORLD" in str(problem) and "in allreduce at" in str(problem)
