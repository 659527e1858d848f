"""``spmdsim launch``: start any script on N ranks."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.cli.launcher_words import add_words, understood
from spmdsim.errors import InputError

EXAMPLES = """\
examples:
  spmdsim launch -n 8 script.py --epochs 3
  spmdsim launch -n 8 -m package.module
  spmdsim launch -n 8 --log-dir log_output script.py     one worker_N.log per rank
  spmdsim launch -n 8 --world lockstep script.py         all ranks in one process, without MPI
  spmdsim launch -n 8 --record calls.json script.py      if it stops: what all ranks called last
  spmdsim launch --nproc_per_node 8 script.py            as other systems' launchers are told it

The launcher that belongs to the installed MPI is found, with the flags it needs here (more ranks than cores,
root); BLAS threads are set so that ranks do not fight for cores. When one rank fails, the job ends within seconds,
the rank is named, its traceback is shown once, and its exit code is returned.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    add = Command(subparsers, "launch", run, "Start any script on N ranks.", epilog=EXAMPLES)
    add("-n", type=int, metavar="N", help="number of ranks")
    add("--log-dir", metavar="DIR", help="write worker_N.log per rank there; rank 0 is shown here too")
    add("--blocks", action="store_true", help="what a rank prints at once comes out in one piece")
    add(
        "--record",
        metavar="FILE",
        help="on a stop, the deadline, SIGTERM or SIGUSR1 write there what all ranks called last; see spmdsim calls",
    )
    add(
        "--world",
        default="mpi",
        help="lockstep needs no MPI: the script's own world() plays all ranks in one process",
    )
    add("-m", "--module", action="store_true", help="the script is a module")
    add_words(add.parser)
    add("script", help="script or module")
    add("args", nargs=argparse.REMAINDER, help="its arguments")


def run(args: argparse.Namespace) -> int:
    """Start the ranks and wait for them."""
    from spmdsim.launch import start

    variables = understood(args)
    if not args.module and not Path(args.script).is_file():
        raise InputError(f"there is no script {args.script}")
    what = ["-m", args.script] if args.module else [args.script]
    command = [sys.executable, "-m", "spmdsim.launch.bootstrap", *what, *args.args]
    lockstep = args.world == "lockstep"
    return start(
        args.n, command, args.log_dir, variables | _recorded(args), lockstep=lockstep, blocks=args.blocks
    )


def _recorded(args: argparse.Namespace) -> dict[str, str]:
    if args.record is None:
        return {}
    if args.world == "lockstep":
        raise InputError(
            "--record shows ranks of MPI side by side; in --world lockstep none of them is apart"
        )
    if os.environ.get("SPMDSIM_CHECK") == "0":
        raise InputError("--record needs the calls that ranks note, but SPMDSIM_CHECK=0 has them note none")
    path = Path(args.record).resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--record {args.record} is no file that can be written: its folder must exist")
    return {"SPMDSIM_RECORD": str(path)}
