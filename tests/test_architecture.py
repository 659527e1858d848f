"""The package keeps its layers and imports little, its tests read no clocks, and its license is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parent.parent / "spmdsim"


def test_imports_follow_the_layers_that_importlinter_declares(monkeypatch):
    monkeypatch.chdir(ROOT.parent)
    assert lint_imports(config_filename=".importlinter", no_cache=True, no_logo=True) == 0


def test_only_one_file_loads_imitations():
    # import-linter does not see imports by name.
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}
    loaders = {
        name
        for name, text in texts.items()
        if "import_module" in text and "spmdsim.dialects.imitations" in text
    }
    assert loaders == {"imitated.py"}


def test_every_imitation_is_loaded_by_its_name():
    from spmdsim.errors import PlanError
    from spmdsim.imitated import IMITATIONS, imitation

    for kind, systems in IMITATIONS.items():
        for system in systems:
            assert imitation(kind, system) is not None
    message = "no plan is made in the style of 'mindspor'; did you mean 'mindspore'? there are"
    with pytest.raises(PlanError, match=re.escape(message)):
        imitation("plan", "mindspor", PlanError)


def test_importing_the_package_is_light_and_needs_no_mpi():
    # Students write `from spmdsim import *` in notebooks on machines without MPI.
    code = (
        "import sys, spmdsim; print([m for m in ('numpy', 'mpi4py', 'rich', 'scipy') if m in sys.modules]);"
        "sys.modules['mpi4py'] = None; from spmdsim import *; print(len([matmul, Mesh, world, show]))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent)
    assert (process.stdout.split("\n")[:2], process.stderr) == (["[]", "4"], "")


def test_no_test_measures_time():
    # Times differ between machines. So benchmarks measure time, and tests count calls (counted.py).
    clocks = ("perf" + "_counter", "process" + "_time", "thread" + "_time", "mono" + "tonic", "time" + "it")
    faults = Path(__file__).parent / "faults" / "running.py"  # It stops jobs at their deadline.
    for path in {*Path(__file__).parent.rglob("*.py")} - {faults}:
        text = path.read_text()
        assert not [clock for clock in (*clocks, "time" + ".time(") if clock in text], path.name


def test_the_license_is_the_whole_text_of_apache_2():
    # Compare with the license files of other packages, if they are installed.
    words = (ROOT.parent / "LICENSE").read_text(encoding="utf-8").split()
    assert len(words) == 1581 and "CONDITIONS" in words
    assert [int(word[0]) for word in words if re.fullmatch(r"[1-9]\.", word)] == [*range(1, 10)]
    shipped = [
        Path(file.locate()).read_text()
        for package in ("safetensors", "ml_dtypes")
        for file in _licenses(package)
    ]
    assert not shipped or words in [text.split() for text in shipped]


def _licenses(package):
    with suppress(PackageNotFoundError):
        yield from (file for file in files(package) or () if file.name == "LICENSE")
