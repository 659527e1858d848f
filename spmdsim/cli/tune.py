"""``spmdsim tune``: try the ways of steps on this machine, and keep what was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spmdsim.cli.arguments import Command, Subparsers, positive
from spmdsim.errors import InputError

EXAMPLES = """\
examples:
  spmdsim tune -n 2 -n 4 -o here.json                     redistributions of square matrices, on 2 ranks and on 4
  spmdsim tune -n 4 -o here.json --sizes 512 2048         of these sizes
  spmdsim tune -n 4 -o here.json script.py --epochs 1     the steps that your own program makes
  spmdsim tune -o here.json one.json another.json         files together; the last one counts
  SPMDSIM_TUNING=here.json spmdsim launch -n 4 script.py  start with what was found

What is in the file stays where nothing new was found: it can hold several machines and MPI libraries.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    add = Command(
        subparsers,
        "tune",
        run,
        "Try the ways in which steps run on this machine, and keep what was found in a file.",
        epilog=EXAMPLES,
    )
    add("-n", type=positive, action="append", metavar="N", help="number of ranks; may be given several times")
    add("-o", "--output", required=True, metavar="FILE", help="the file to write, or to add to")
    add(
        "--sizes", type=positive, nargs="+", default=[64, 256, 1024], metavar="N", help="rows of the matrices"
    )
    add("--show", action="store_true", help="print what stands in the file in the end")
    add("script", nargs="?", help="a program whose steps are tried; or files to put together")
    add("args", nargs=argparse.REMAINDER, help="its arguments, or more files")


def run(args: argparse.Namespace) -> int:
    """Start the ranks, or merge files."""
    path = Path(args.output).resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--output {args.output} is no file that can be written: its folder must exist")
    code = 0
    if args.n:
        code = _tried(args, path)
    elif args.script:
        code = _merged([args.script, *args.args], path)
    elif not args.show:
        raise InputError("tune needs -n RANKS to try steps on, or files to put together")
    if args.show:
        _show(path)
    return code


def _tried(args: argparse.Namespace, path: Path) -> int:
    from spmdsim.launch import start

    if args.script and not Path(args.script).is_file():
        raise InputError(f"there is no script {args.script}")
    what = [args.script, *args.args] if args.script else ["--sizes", *map(str, args.sizes)]
    for n in args.n:
        command = [
            sys.executable,
            "-m",
            "spmdsim.launch.bootstrap",
            "-m",
            "spmdsim.launch.tuning_job",
            str(path),
            *what,
        ]
        if code := start(n, command, env={"SPMDSIM_TUNE": "full"}):
            return code
    return 0


def _merged(files: list[str], path: Path) -> int:
    from spmdsim.reading import readable
    from spmdsim.redistribution.ways.tuning import Wisdom, keep, stored

    for name in files:
        if not Path(name).is_file():
            raise InputError(f"there is no file {name} to take findings from")
        for vendor, library in stored(name).items():
            with readable(name, "a tuning file"):
                Wisdom.read(library.get("ways", {}))  # refused by the name of the file that is wrong
            keep(path, vendor, library)
    return 0


def _show(path: Path) -> None:
    from spmdsim.cli.output import say
    from spmdsim.reading import readable
    from spmdsim.redistribution.ways.tuning import Wisdom, stored

    for library in stored(path).values():
        with readable(path, "a tuning file"):
            wisdom = Wisdom.read(library.get("ways", {}))
        for machine, steps in wisdom.machines.items():
            say(f"{machine}:")
            for step, choice in steps.items():
                took = ", ".join(
                    f"{way} {us:.1f}"
                    for way, us in sorted(choice.microseconds.items(), key=lambda one: one[1])
                )
                say(f"  {step}: {choice.way} (us: {took})")
