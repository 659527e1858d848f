"""How a command is declared: arguments that several take, and types of arguments for :mod:`argparse`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from spmdsim.core import Layout, Mesh

Run: TypeAlias = Callable[[argparse.Namespace], int]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: What several commands take, by its last flag; a command may say some of it in its own words.
SHARED: dict[str, dict[str, Any]] = {
    "collective": {"help": "such as all_reduce"},
    "algorithm": {"help": "its name (see list), or FILE.py:FUNCTION"},
    "--algorithms": {"default": "", "metavar": "A,B", "help": "only these; native is the library's"},
    "--factor": {"type": float, "default": 4, "help": "from size to size (4)"},
    "--group": {"type": int, "metavar": "G", "help": "ranks per group, for two-level algorithms"},
    "--itemsize": {"type": int, "default": 1, "metavar": "B", "help": "bytes that are never cut (1)"},
    "--json": {"action": "store_true", "help": "for programs"},
    "--html": {"metavar": "FILE", "help": "write the picture as a page that needs no other file"},
    "--segments": {"type": int, "metavar": "S", "help": "segments, for algorithms that have them"},
    "--svg": {"metavar": "FILE", "help": "write the picture as one SVG image"},
    "--world": {"choices": ("mpi", "lockstep"), "help": "lockstep needs no MPI"},
}


class Command:
    """A command that is being declared: called with each of its arguments, as ``add_argument`` is.

    Args:
        subparsers: where it is declared.
        name: what users type.
        run: gets the arguments and returns the exit code.
        description: what its ``--help`` says first.
        **options: others of ``add_parser``.
    """

    def __init__(self, subparsers: Subparsers, name: str, run: Run, description: str, **options: Any) -> None:
        self.run = run
        self.parser = subparsers.add_parser(name, description=description, **options)
        self.parser.set_defaults(run=run)

    def __call__(self, *flags: str, **options: Any) -> None:
        """Add an argument; of one in :data:`SHARED` only what is said differently."""
        self.parser.add_argument(*flags, **{**SHARED.get(flags[-1], {}), **options})

    def pictures(self) -> None:
        """The command can write what it draws to files: :func:`spmdsim.cli.output.write_pictures` does so."""
        self("--svg")
        self("--html")

    def limits(self, load: Sequence[str] = ()) -> None:
        """The command runs a user's program: in a child, within limits that the user may set.

        Args:
            load: modules that judge the program: whatever it does to files, they are there already.
        """
        from spmdsim.launch.limits import add_limits, limited

        add_limits(self.parser.add_argument)

        def run(args: argparse.Namespace) -> int:
            for module in load:
                import_module(module)
            return limited(args, lambda: self.run(args))

        self.parser.set_defaults(run=run)


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: anything else.

    >>> positive("8")
    8
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but got {text!r}")
    return number


def amount(text: str) -> float:
    """A finite number from 0 on.

    Raises:
        argparse.ArgumentTypeError: anything else.

    >>> amount("1.5")
    1.5
    """
    number = finite(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, but got {text!r}")
    return number


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN.

    Raises:
        argparse.ArgumentTypeError: anything else.

    >>> finite("1e-2")
    0.01
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, but got {text!r}")
    return number


def written_layout(text: str, mesh: Mesh | None = None, ndim: int | None = None) -> Layout:
    """A layout in any notation; dialects are loaded for others than this package's own.

    Raises:
        SpmdError: none of the notations.

    >>> written_layout("dp=2,tp=4: dp,tp").short()
    'S(0)S(1)'
    """
    from spmdsim.layout.written import parse_layout

    return parse_layout(text, mesh, ndim, _other_notation)


def _other_notation(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    from spmdsim.dialects.spelling import other_notation

    return other_notation(body, mesh, ndim)
