"""What each rank of ``spmdsim launch`` runs: ``python -m spmdsim.launch.bootstrap script.py args…``.

It sets threads and MPI settings before the script can import numpy or mpi4py, sends the output to the rank's own
log if there is one, and makes a failure of this rank end the job.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

from spmdsim.errors import InputError
from spmdsim.launch.abort import check_launcher, guard
from spmdsim.launch.environment import prepare
from spmdsim.launch.logs import print_in_blocks, redirect_output
from spmdsim.launch.supervisor import start_supervisor
from spmdsim.launcher import this_rank


def run_script(argv: list[str]) -> None:
    """Run ``script.py args…`` or ``-m module args…`` as the main program."""
    if argv[:1] == ["-m"]:
        sys.argv = argv[1:]
        sys.path.insert(0, os.getcwd())
        require_module(argv[1])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


def require_module(name: str) -> None:
    """Raise InputError if there is no module of this name, or if it is a package that cannot be run.

    Packages around the module are imported, as ``python -m`` does.
    """
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # The packages exist, but one of them imports a module that does not.
        spec = None
    if spec is None:
        raise InputError(f"there is no module {name}")


def main() -> int:
    """One rank, from its beginning to its end."""
    job = prepare()
    start_supervisor(job)
    argv = sys.argv[1:]
    if not argv or argv == ["-m"]:
        sys.stderr.write("usage: python -m spmdsim.launch.bootstrap (script.py | -m module) args\n")
        return 2

    def program() -> None:
        redirect_output(this_rank())
        print_in_blocks()
        if job and os.environ.get("WORLD_SIZE") == str(job.size):
            os.environ |= {"RANK": str(job.rank), "LOCAL_RANK": str(job.rank)}
        check_launcher(job)
        run_script(argv)

    return guard(program, argv[1] if argv[0] == "-m" else Path(argv[0]).name)


if __name__ == "__main__":
    sys.exit(main())
