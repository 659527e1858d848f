"""What decides how runs on many ranks go on this machine, looked at one by one.

What MPI's library can do is found by doing it, on every rank: ``python -m spmdsim.launch.diagnosis``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError, SpmdError, many
from spmdsim.launch.mpi import YIELD_VARIABLE, count_blas_threads, count_cores, package_version, prepare
from spmdsim.launcher import Launched, detect, is_root
from spmdsim.settings import SETTINGS, explain_unknown_names
from spmdsim.shutdown.leftovers import find_leftovers, remove_path

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at: what it is here, and what to do if that is bad.

    Its state is "ok", "note", "warning" (slow or surprising) or "broken" (runs are not possible).
    """

    about: str
    state: str
    observed: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return {"about": self.about, "state": self.state, "found": self.observed, "advice": self.advice}


def examine(trial: bool = True) -> list[Diagnosis]:
    """Look at everything; a trial starts two ranks, or uses the ranks of this job, if it is one."""
    job = detect()
    findings = [*_software(), *_machine(job), *_left_behind(), *_settings(), *_blas(job), *_launcher(job)]
    if trial and not any(f.state == "broken" for f in findings):
        findings += _trial(job)
    return findings


def _software() -> Iterator[Diagnosis]:
    from spmdsim._version import __version__

    yield Diagnosis("spmdsim", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    yield Diagnosis("numpy", "ok", package_version("numpy"))


def _machine(job: Launched | None) -> Iterator[Diagnosis]:
    available = count_cores(together=job is not None)
    yield Diagnosis("cores", "ok", str(available))
    if job is None:
        return
    ranks = f"{many(job.size, 'rank')}, {job.local_size} on this machine, started by {job.launcher}"
    if job.local_size > available:
        advice = "more ranks than cores: counts are exact, measured times are noise"
        yield Diagnosis("ranks", "note", ranks, advice)
    else:
        yield Diagnosis("ranks", "ok", ranks)


def _left_behind() -> Iterator[Diagnosis]:
    """What killed jobs left; nothing is said where there is nothing."""
    paths = find_leftovers()
    sizes = [path.stat().st_blocks * 512 for path in paths if path.exists()]
    if sizes:
        text = f"{many(len(sizes), 'file')} of jobs that were killed, {sum(sizes) / 1e6:.1f} MB, such as {paths[0]}"
        advice = "they take memory and can keep Open MPI from starting: spmdsim doctor --clean removes them"
        yield Diagnosis("left behind", "note", text, advice)


def clean() -> Diagnosis:
    """Remove the files that killed jobs of this user left. Return how many were removed, and the names of the others."""
    paths = find_leftovers()
    stuck = [str(path) for path in paths if not remove_path(path)]
    text = f"{many(len(paths) - len(stuck), 'file')} of jobs that were killed removed"
    if not stuck:
        return Diagnosis("cleaned", "ok", text)
    return Diagnosis(
        "cleaned", "warning", f"{text}, not removed: {', '.join(stuck)}", "remove the others by hand"
    )


def _settings() -> Iterator[Diagnosis]:
    """Yield the value in force of each of this package's environment variables, and the names that are none of them."""
    for setting in SETTINGS:
        try:
            value = setting.read()
        except InputError as error:
            yield Diagnosis(setting.name, "broken", os.environ[setting.name], str(error))
        else:
            is_set = bool(os.environ.get(setting.name))
            yield Diagnosis(setting.name, "ok", f"{value}" if is_set else f"not set: {setting.shown}")
    for name, advice in explain_unknown_names(os.environ):
        yield Diagnosis(name, "warning", os.environ[name], advice)


def _blas(job: Launched | None) -> Iterator[Diagnosis]:
    """Which BLAS kernels run, with how many threads."""
    import numpy  # noqa: F401 - loads the BLAS that is looked at
    from threadpoolctl import threadpool_info

    for info in threadpool_info():
        if info.get("user_api") != "blas":
            continue
        threads = int(info["num_threads"])
        text = f"{info['internal_api']} {info.get('version')}, kernels {info.get('architecture')}, {many(threads, 'thread')}"
        fitting = count_blas_threads(job.local_size, count_cores()) if job else count_cores()
        if job and threads > fitting:
            advice = f"OMP_NUM_THREADS={fitting} keeps ranks from fighting for cores"
            yield Diagnosis("BLAS", "warning", text, advice)
        else:
            yield Diagnosis("BLAS", "ok", text)
    if preset := os.environ.get("OPENBLAS_CORETYPE"):
        advice = "fixes the kernels: on a newer processor matrix products run at half speed; unset it"
        yield Diagnosis("OPENBLAS_CORETYPE", "warning", preset, advice)


def _launcher(job: Launched | None) -> Iterator[Diagnosis]:
    """mpi4py, its MPI library, the launcher that belongs to it."""
    from spmdsim.launch.mpi import find_launcher, find_library

    try:
        lib = find_library()
    except SpmdError as error:
        yield Diagnosis("mpi4py", "broken", package_version("mpi4py"), str(error))
        return
    yield Diagnosis("mpi4py", "ok", package_version("mpi4py"))
    yield Diagnosis("MPI", "ok", str(lib))
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
        return _try_mpi()
    code = "import sys; from spmdsim.launch import start; sys.exit(start(2, sys.argv[1:]))"
    command = [sys.executable, "-c", code, sys.executable, "-m", "spmdsim.launch.diagnosis"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        lines: list[Any] = json.loads(result.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        why = result.stderr.strip() if isinstance(error, ValueError) else "no answer within 60 s"
        bad = Diagnosis("trial on 2 ranks", "broken", why or "no output", "the launcher does not work here")
        return [bad]
    return [
        Diagnosis("trial on 2 ranks", "ok", "started and ended"),
        *(Diagnosis(*line.values()) for line in lines),
    ]


def _try_mpi() -> list[Diagnosis]:
    """Try every ability on all ranks; the same answers on each of them."""
    from spmdsim.launch.mpi import require_mpi

    comm = require_mpi()
    return [_threads(), _float16(comm), _large_counts(), _waiting(comm), _transport()]


def _threads() -> Diagnosis:
    """A watchdog thread can end a hanging job only if threads may call MPI."""
    from mpi4py import MPI

    level = MPI.Query_thread()
    if level == MPI.THREAD_MULTIPLE:
        return Diagnosis("MPI threads", "ok", "multiple")
    levels = ("single", "funneled", "serialized")
    name = next(name for name in levels if getattr(MPI, f"THREAD_{name.upper()}") == level)
    return Diagnosis("MPI threads", "warning", name, "hanging jobs cannot be ended from a thread")


def _float16(comm: MPI.Comm) -> Diagnosis:
    """Half precision in reductions: recent libraries only."""
    import numpy as np

    mine, total = np.ones(4, np.float16), np.empty(4, np.float16)
    try:
        comm.Allreduce(mine, total)
    except Exception as error:  # whatever a library says instead
        said, advice = f"no MPI reduction ({error})", "reduced by our own operation instead"
        return Diagnosis("float16", "note", said, advice)
    if (total == comm.size).all():
        return Diagnosis("float16", "ok", "MPI reductions work")
    return Diagnosis("float16", "warning", "MPI reductions are wrong")


def _large_counts() -> Diagnosis:
    """More than 2^31 elements in one call need MPI 4."""
    from mpi4py import MPI

    version = MPI.Get_version()
    text = f"MPI {version[0]}.{version[1]}"
    if version >= (4, 0):
        return Diagnosis("large counts", "ok", text)
    return Diagnosis("large counts", "note", text, "messages of 2^31 elements and more are sent in pieces")


def _waiting(comm: MPI.Comm) -> Diagnosis:
    """Do waiting ranks give way? Seen by how long a barrier takes."""
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(10):
        comm.Barrier()
    microseconds: float = comm.allreduce((time.perf_counter() - begin) / 10 * 1e6) / comm.size
    text = f"a barrier takes {microseconds:.0f} us on {many(comm.size, 'rank')}"
    yielding = os.environ.get(YIELD_VARIABLE)
    if yielding:
        text += f", mpi_yield_when_idle={yielding}"
    job = detect()
    if job and job.local_size > count_cores(together=True) and microseconds > 5000:
        advice = f"waiting ranks do not give way: {YIELD_VARIABLE}=1, or fewer ranks"
        return Diagnosis("waiting", "warning", text, advice)
    return Diagnosis("waiting", "ok", text)


def _transport() -> Diagnosis:
    names = ("OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_pml", "UCX_TLS", "FI_PROVIDER")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return Diagnosis("transports", "ok", ", ".join(chosen) or "the library's own choice")


def main() -> int:
    """Print the answers of rank 0 as JSON."""
    prepare()
    answers = [answer.to_dict() for answer in _try_mpi()]
    if is_root():
        sys.stdout.write(json.dumps(answers) + "\n")
    return 0


if __name__ == "__main__":
    from spmdsim.launch.bootstrap import guard

    sys.exit(guard(main, "spmdsim doctor"))
