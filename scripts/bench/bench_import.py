"""Time the import of spmdsim beyond numpy and mpi4py: CPU time of new processes, interleaved, the best of each.

Modules come as bytecode, as an installed package has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from paired import estimate, row

PROGRAM = """
import time
import numpy
{mpi}
begin = time.process_time()
{what}
print(time.process_time() - begin)
"""

CASES = {
    "import spmdsim": "import spmdsim",
    "its worlds and layouts": "from spmdsim.core import Mesh; from spmdsim.worlds import LockStep",
    "its tensors and MPIWorld": "from spmdsim.arrays import Tensor; from spmdsim.worlds import MPIWorld",
    "nothing": "pass",
}


def once(what: str, bytecode: str) -> float:
    """Return the CPU seconds of an import in a new process that has imported numpy and mpi4py."""
    program = PROGRAM.format(mpi="from mpi4py import MPI", what=what)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = bytecode
    result = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    return float(result.stdout.split()[-1])


def main() -> None:
    """Print a row per import, of the rounds that the command line names (7)."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    times: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as bytecode:
        for what in CASES.values():
            once(what, bytecode)
        for _ in range(rounds):
            for name, what in CASES.items():
                times[name].append(once(what, bytecode))
    for name, samples in times.items():
        row("processor time beyond numpy and mpi4py", name, estimate(samples).times(1e3), "ms")


if __name__ == "__main__":
    main()
