"""What decides how runs on many ranks go on this machine, looked at one by one.

Each finding is a value: what it is about, what was found, and what to do if that is bad.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from spmdsim.errors import SpmdError
from spmdsim.launch.environment import blas_threads, cores
from spmdsim.launch.versions import package_version
from spmdsim.launcher import Launched, detect


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        about: what.
        state: "ok", "note", "warning" (slow or surprising) or "broken" (runs are not possible).
        found: what it is here.
        advice: what to do, empty if nothing.
    """

    about: str
    state: str
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return asdict(self)


def examine(trial: bool = True) -> list[Diagnosis]:
    """Look at everything.

    Args:
        trial: start two ranks that try MPI out (or use the ranks of this job, if it is one).
    """
    job = detect()
    findings = [*_software(), *_machine(job), *_blas(job), *_launcher(job)]
    if trial and not any(f.state == "broken" for f in findings):
        findings += _trial(job)
    return findings


def _software() -> Iterator[Diagnosis]:
    from spmdsim._version import __version__

    yield Diagnosis("spmdsim", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    yield Diagnosis("numpy", "ok", package_version("numpy"))


def _machine(job: Launched | None) -> Iterator[Diagnosis]:
    """Cores and oversubscription."""
    available = cores(together=job is not None)
    yield Diagnosis("cores", "ok", str(available))
    if job is None:
        return
    ranks = f"{job.size} ranks, {job.local_size} on this machine, started by {job.launcher}"
    if job.local_size > available:
        yield Diagnosis(
            "ranks", "note", ranks, "more ranks than cores: counts are exact, measured times are noise"
        )
    else:
        yield Diagnosis("ranks", "ok", ranks)


def _blas(job: Launched | None) -> Iterator[Diagnosis]:
    """Which BLAS kernels run, with how many threads."""
    import numpy  # noqa: F401 - loads the BLAS that is looked at
    from threadpoolctl import threadpool_info

    for info in threadpool_info():
        if info.get("user_api") != "blas":
            continue
        threads = int(info["num_threads"])
        text = f"{info['internal_api']} {info.get('version')}, kernels {info.get('architecture')}, {threads} threads"
        fitting = blas_threads(job.local_size, cores()) if job else cores()
        if job and threads > fitting:
            yield Diagnosis(
                "BLAS", "warning", text, f"OMP_NUM_THREADS={fitting} keeps ranks from fighting for cores"
            )
        else:
            yield Diagnosis("BLAS", "ok", text)
    preset = os.environ.get("OPENBLAS_CORETYPE")
    if preset:
        yield Diagnosis(
            "OPENBLAS_CORETYPE",
            "warning",
            preset,
            "fixes the kernels: on a newer processor matrix products run at half speed; unset it",
        )


def _launcher(job: Launched | None) -> Iterator[Diagnosis]:
    """mpi4py, its MPI library, the launcher that belongs to it."""
    from spmdsim.launch.mpi import find_launcher, library

    try:
        lib = library()
    except SpmdError as error:
        yield Diagnosis("mpi4py", "broken", package_version("mpi4py"), str(error))
        return
    yield Diagnosis("mpi4py", "ok", package_version("mpi4py"))
    yield Diagnosis("MPI", "ok", f"{lib.vendor} {lib.version} (MPI {lib.standard})")
    if job is not None:
        return
    try:
        launcher = find_launcher()
    except SpmdError as error:
        yield Diagnosis("launcher", "broken", "none that fits", str(error))
    else:
        yield Diagnosis("launcher", "ok", f"{launcher.path} ({launcher.vendor})")


def _trial(job: Launched | None) -> list[Diagnosis]:
    """Try MPI out: in this job, or in one of two ranks started for it."""
    if job is not None:
        from spmdsim.launch.trial import try_mpi

        return [Diagnosis(**finding) for finding in try_mpi()]
    command = [sys.executable, "-m", "spmdsim.launch.trial"]
    code = "import sys; from spmdsim.launch import start; sys.exit(start(2, sys.argv[1:]))"
    try:
        result = subprocess.run(
            [sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=60, check=False
        )
        lines: list[Any] = json.loads(result.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        why = result.stderr.strip() if isinstance(error, ValueError) else "no answer within 60 s"
        return [
            Diagnosis("trial on 2 ranks", "broken", why or "no output", "the launcher does not work here")
        ]
    return [Diagnosis("trial on 2 ranks", "ok", "started and ended"), *(Diagnosis(**line) for line in lines)]
