"""An installed clone is found from all folders, and a wheel runs with its requirements and without other packages."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETUPTOOLS = "setuptools"


def version_of(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", metadata.version(name))[:2]))


needs_setuptools = pytest.mark.skipif(
    version_of(SETUPTOOLS) < (77, 0), reason="pyproject.toml asks for a newer setuptools than the one here"
)


def read_requirements() -> list[str]:
    """Return the names of the distributions that setup.cfg requires."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    return re.findall(r"^[\w-]+", settings["options"]["install_requires"], re.MULTILINE)


def add_requirements(names: Iterable[str]) -> set[str]:
    """Return the distributions ``names`` and all distributions that they require."""
    names_seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in names_seen:
            names_seen.add(name)
            needed = [need for need in metadata.requires(name) or [] if ";" not in need]
            waiting += [re.match(r"[\w.-]+", need)[0] for need in needed]
    return names_seen


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return environment variables for new virtual environments without a package index.

    The environments find setuptools and the requirements of spmdsim by links in a folder of ``tmp_path_factory``.
    """
    links = tmp_path_factory.mktemp("required")
    for name in add_requirements([*read_requirements(), SETUPTOOLS]):
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            target = links / top
            if not target.exists():
                target.symlink_to(Path(metadata.distribution(name).locate_file(top)))
    removed = ("PYTHON", "PIP_", "SPMDSIM_", "VIRTUAL_ENV", "MPI")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    without_index = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    return {**variables, **without_index, "PYTHONPATH": str(links), "BASE_PYTHON": sys.executable}


def run_command(words: list[object], folder: Path, environment: dict[str, str]) -> str:
    """Run the command ``words`` in ``folder`` with the variables ``environment``, and return its output.

    Raises:
        AssertionError: If the command fails.
    """
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository called ``spmdsim``, below a folder with a space in its name.

    ``tmp_path_factory`` makes the folder.
    """
    folder = tmp_path_factory.mktemp("a folder") / "spmdsim"
    left_out = shutil.ignore_patterns(
        ".*", "__pycache__", "*.egg-info", "build", "dist", "results", "tests", "docs", "log_output"
    )
    shutil.copytree(ROOT, folder, ignore=left_out)
    return folder


#: Program text that prints the path of the imported package.
WHERE = "from spmdsim import Mesh, __file__; print(__file__)"


@needs_setuptools
def test_a_clone_is_found_from_every_folder(clone: Path, environment: dict[str, str]) -> None:
    # The folders are the clone, its parent, a sibling and another one. The starts are -c, a script, a module and launch.
    prepare = 'set -e; . "$1"; prepare_environment all; echo "$PYTHON"'
    python = run_command(
        ["bash", "-c", prepare, "-", clone / "scripts" / "environment.sh"], clone, environment
    ).strip()
    beside, elsewhere = clone.parent / "mine", clone.parent.parent
    beside.mkdir()
    launch = ["-m", "spmdsim", "launch", "-n", "2", "--world", "lockstep", "first.py"]
    starts = {clone: [["first.py"]], beside: [["-m", "first"]], elsewhere: [["first.py"]]}
    # In the folder above, the package's name is also the name of a folder.
    starts[clone.parent] = [["-c", WHERE], ["first.py"], launch]
    for folder, commands in starts.items():
        (folder / "first.py").write_text(WHERE, encoding="utf-8")
        for words in commands:
            output = run_command([python, *words], folder, environment)
            assert output.strip() == str(clone / "spmdsim" / "__init__.py"), (folder, words)


@needs_setuptools
def test_run_sh_prints_the_submission_on_a_login_node_and_runs_inside_of_a_job(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    login = {**environment, "PATH": f"{tmp_path}{os.pathsep}{environment['PATH']}"}
    job = ["--world", "lockstep", "--only", "linear", "--mesh", "tp=8", "--shape", "8,8,8"]
    command = ["bash", clone / "scripts" / "run.sh", *job]

    def run_script(variables: dict[str, str]) -> tuple[bool, list[str]]:
        """Return True if the script ran its cases, and the lines that it printed to stderr."""
        done = subprocess.run(
            command, cwd=clone, env=variables, capture_output=True, text=True, timeout=600, check=True
        )
        return "6 of 6 cases hold" in done.stdout, done.stderr.splitlines()

    ran, lines = run_script(login)
    assert not ran and any(line.strip().startswith("sbatch --ntasks=8 --wrap ") for line in lines)
    enter_command = lines[-1].removeprefix("spmdsim: the environment is entered by: ")
    where = run_command(["bash", "-c", f"{enter_command}; command -v spmdsim"], clone, environment)
    assert where.strip() == str(clone / ".venv-openmpi" / "bin" / "spmdsim")
    for variables in (environment, {**login, "RUN": "1"}, {**login, "SLURM_JOB_ID": "7"}):
        ran, lines = run_script(variables)
        assert ran and not any("sbatch" in line for line in lines)


@needs_setuptools
def test_a_wheel_runs_the_main_job_with_what_it_requires(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    # The environment has no MPI library, SciPy, greenlet or Matplotlib.
    run_command([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], tmp_path, environment)
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv" / "bin" / "python", "-q"]
    run_command([*pip, "wheel", "-w", tmp_path, clone], tmp_path, environment)
    (wheel,) = tmp_path.glob("*.whl")
    run_command([*pip, "install", "--no-compile", wheel], tmp_path, environment)
    names = zipfile.ZipFile(wheel).namelist()
    assert any("labs/course/lab1.md" in name for name in names) and not any(
        "labs/teacher" in name for name in names
    )
    command = tmp_path / "venv" / "bin" / "spmdsim"
    output = run_command([command, "run", "--world", "lockstep", "-n", "2"], tmp_path, environment)
    assert re.search(r"^(\d+) of \1 cases hold on 2 ranks \(LockStep\)", output, re.MULTILINE)
    trained = run_command(
        [command, "train", "--world", "lockstep", "-n", "2", "--steps", "1"], tmp_path, environment
    )
    assert "loss is 2.3" in trained
