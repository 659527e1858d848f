"""The versions that decide what a run does; nothing is started to find them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from spmdsim._version import __version__
from spmdsim.errors import WorldError


def package_version(name: str) -> str:
    """Version of an installed package, or "not installed"."""
    try:
        return installed(name)
    except PackageNotFoundError:
        return "not installed"


def version_lines() -> list[str]:
    """One line per thing: spmdsim, Python, numpy, mpi4py and the MPI library behind it."""
    from spmdsim.launch.mpi import library

    try:
        mpi_library = library()
        mpi = f"{mpi_library.vendor} {mpi_library.version} (MPI {mpi_library.standard})"
    except WorldError as error:
        mpi = str(error)
    return [
        f"spmdsim {__version__}",
        f"Python {platform.python_version()}",
        f"numpy {package_version('numpy')}",
        f"mpi4py {package_version('mpi4py')}",
        f"MPI {mpi}",
    ]
