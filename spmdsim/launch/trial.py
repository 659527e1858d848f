"""A trial of MPI: what its library can do, found by doing it. Run on every rank: ``python -m spmdsim.launch.trial``."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from spmdsim.launch.environment import YIELD_VARIABLE, cores, prepare
from spmdsim.launcher import detect

if TYPE_CHECKING:
    from mpi4py import MPI


def try_mpi() -> list[dict[str, str]]:
    """Try every ability on all ranks; the same answers on each of them.

    Returns:
        Arguments for :class:`spmdsim.launch.diagnosis.Finding`.
    """
    from spmdsim.launch.checks import require_mpi

    comm = require_mpi()
    return [_threads(), _float16(comm), _large_counts(), _waiting(comm), _transport()]


def _finding(about: str, state: str, found: str, advice: str = "") -> dict[str, str]:
    return {"about": about, "state": state, "found": found, "advice": advice}


def _threads() -> dict[str, str]:
    """A watchdog thread can end a hanging job only if threads may call MPI."""
    from mpi4py import MPI

    names = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    level = MPI.Query_thread()
    if level == MPI.THREAD_MULTIPLE:
        return _finding("MPI threads", "ok", "multiple")
    return _finding("MPI threads", "warning", names[level], "hanging jobs cannot be ended from a thread")


def _float16(comm: MPI.Comm) -> dict[str, str]:
    """Half precision in reductions: recent libraries only."""
    import numpy as np

    mine, total = np.ones(4, np.float16), np.empty(4, np.float16)
    try:
        comm.Allreduce(mine, total)
    except Exception as error:  # whatever a library says instead
        return _finding(
            "float16", "note", f"no MPI reduction ({error})", "reduced by our own operation instead"
        )
    right = bool((total == comm.size).all())
    return _finding(
        "float16", "ok" if right else "warning", f"MPI reductions {'work' if right else 'are wrong'}"
    )


def _large_counts() -> dict[str, str]:
    """More than 2^31 elements in one call need MPI 4."""
    from mpi4py import MPI

    version = MPI.Get_version()
    text = f"MPI {version[0]}.{version[1]}"
    if version >= (4, 0):
        return _finding("large counts", "ok", text)
    return _finding("large counts", "note", text, "messages of 2^31 elements and more are sent in pieces")


def _waiting(comm: MPI.Comm) -> dict[str, str]:
    """Do waiting ranks give way? Seen by how long a barrier takes."""
    import time

    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(10):
        comm.Barrier()
    microseconds: float = comm.allreduce((time.perf_counter() - begin) / 10 * 1e6) / comm.size
    text = f"a barrier takes {microseconds:.0f} us on {comm.size} ranks"
    yielding = os.environ.get(YIELD_VARIABLE)
    if yielding:
        text += f", mpi_yield_when_idle={yielding}"
    job = detect()
    if job and job.local_size > cores(together=True) and microseconds > 5000:
        advice = f"waiting ranks do not give way: {YIELD_VARIABLE}=1, or fewer ranks"
        return _finding("waiting", "warning", text, advice)
    return _finding("waiting", "ok", text)


def _transport() -> dict[str, str]:
    """Which ways of moving messages are switched on or off by settings."""
    names = ("OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_pml", "UCX_TLS", "FI_PROVIDER")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return _finding("transports", "ok", ", ".join(chosen) or "the library's own choice")


def main() -> int:
    """Print the answers of rank 0 as JSON."""
    prepare()
    answers: list[dict[str, Any]] = try_mpi()
    job = detect()
    if job is None or job.rank == 0:
        sys.stdout.write(json.dumps(answers) + "\n")
    return 0


if __name__ == "__main__":
    from spmdsim.launch.abort import guard

    sys.exit(guard(main, "spmdsim doctor"))
