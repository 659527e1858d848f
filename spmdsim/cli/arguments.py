"""How commands are declared: rows of arguments, of which those that several take stand here, and the types of arguments."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from spmdsim.core import Layout, Mesh
    from spmdsim.worlds.base import World

Subparsers: TypeAlias = "argparse._SubParsersAction[Any]"


def positive(text: str) -> int:
    """A whole number from 1 on."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but got {text!r}")


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be a finite number, but got {text!r}")


def amount(text: str) -> float:
    """A finite number from 0 on."""
    number = finite(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, but got {text!r}")
    return number


# ---------------------------------------------------------------- rows of arguments

Row: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]
"""The flags of an argument, or its name, and what ``add_argument`` is told of it."""


class ArgumentGroup(NamedTuple):
    """Arguments that stand under a title of their own in the help."""

    title: str
    rows: tuple[Argument, ...]


Argument: TypeAlias = "str | Row | ArgumentGroup"
"""A string is the last flag of a shared one."""


def value(
    flags: str, metavar: Any, help: str | None, type: Callable[[str], Any] | None = None, **options: Any
) -> Row:
    """An argument with a value; flags stand between blanks."""
    return tuple(flags.split()), {"metavar": metavar or None, "help": help, "type": type, **options}


def several(
    flags: str, metavar: Any, help: str, type: Callable[[str], Any] | None = None, **options: Any
) -> Row:
    """An argument that may be given several times."""
    return value(flags, metavar, help, type, action="append", default=[], **options)


def choice(flags: str, choices: tuple[str, ...], help: str | None, default: str | None = None) -> Row:
    """An argument that is one of some words."""
    return tuple(flags.split()), {"choices": choices, "help": help, "default": default}


def flag(flags: str, help: str, **options: Any) -> Row:
    """An argument without a value."""
    return tuple(flags.split()), {"action": "store_true", "help": help, **options}


def varied(flags: str, **options: Any) -> Row:
    """A shared argument of which something is said differently."""
    words = tuple(flags.split())
    return words, {**SHARED[words[-1]], **options}


def group(title: str, *rows: Argument) -> ArgumentGroup:
    """Arguments under a title."""
    return ArgumentGroup(title, rows)


#: What several commands take, by its last flag.
SHARED: dict[str, dict[str, Any]] = {
    flags[-1]: options
    for flags, options in (
        value("collective", "", "such as all_reduce"),
        value("algorithm", "", "its name (see list), or FILE.py:FUNCTION"),
        value("--algorithms", "A,B", "only these; native is the library's", default=""),
        value("--dtype", "", "element type (float32)", default="float32"),
        value("--factor", "", "from size to size (4)", float, default=4),
        value("--group", "G", "ranks per group, for two-level algorithms", int),
        value("--html", "FILE", "write the picture as a page that needs no other file"),
        value("--itemsize", "B", "bytes that are never cut (1)", int, default=1),
        flag("--json", "for programs"),
        value("-n", "RANKS", "ranks to start (or to simulate in lock step)", positive),
        value("--ranks", "N", "start N ranks, outside mpirun", int),
        value("--segments", "S", "segments, for algorithms that have them", int),
        value("--svg", "FILE", "write the picture as one SVG image"),
        choice("--world", ("mpi", "lockstep"), "lockstep needs no MPI"),
    )
}
#: Of commands that write what they draw to files, by :func:`spmdsim.cli.output.write_pictures`.
PICTURES = ("--svg", "--html")


def declare(parser: argparse._ActionsContainer, arguments: Iterable[Argument]) -> None:
    """Add arguments to a parser."""
    for argument in arguments:
        if isinstance(argument, ArgumentGroup):
            same = [one for one in parser._action_groups if one.title == argument.title]
            declare(same[0] if same else parser.add_argument_group(argument.title), argument.rows)
        else:
            flags, options = varied(argument) if isinstance(argument, str) else argument
            parser.add_argument(*flags, **options)


# ---------------------------------------------------------------- commands


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: gets the arguments and returns the exit code.
        about: what its ``--help`` says first.
        examples: and last.
        arguments: rows.
        help: its line in the list of subcommands.
        limits: seconds that somebody's program may take, if the command takes one.
        program: whether there is one, to be run in a child process with limits.
        judges: modules that judge it: whatever it does to files, they are there already.
    """

    run: Callable[[argparse.Namespace], int]
    about: str
    examples: str | None
    arguments: tuple[Argument, ...]
    help: str | None = None
    limits: float | None = None
    program: Callable[[argparse.Namespace], object] = lambda _: False
    judges: tuple[str, ...] = ()

    def add_to(self, subparsers: Subparsers, name: str) -> None:
        """Declare it."""
        listed: dict[str, Any] = {"help": self.help} if self.help else {}
        parser = subparsers.add_parser(name, description=self.about, epilog=self.examples, **listed)
        declare(parser, self.arguments)
        if self.limits is not None:
            from spmdsim.launch.limits import add_limits

            add_limits(parser.add_argument, self.limits)
        parser.set_defaults(run=self._run)

    def _run(self, args: argparse.Namespace) -> int:
        if not self.program(args):
            return self.run(args)
        from spmdsim.launch.limits import limited

        for module in self.judges:
            import_module(module)
        return limited(args, lambda: self.run(args))


def command(
    about: str, examples: str | None, *arguments: Argument, **options: Any
) -> Callable[[Callable[[argparse.Namespace], int]], Command]:
    """Make a command of the function that follows."""
    return lambda run: Command(run, about, examples, arguments, **options)


@dataclass(frozen=True)
class CommandGroup:
    """A command that has subcommands, which are loaded with its parser."""

    about: str
    examples: str
    metavar: str
    subcommands: Callable[[], Mapping[str, Command]]

    def add_to(self, subparsers: Subparsers, name: str) -> None:
        """Declare it and them."""
        parser = subparsers.add_parser(name, description=self.about, epilog=self.examples)
        inner = parser.add_subparsers(dest="subcommand", metavar=self.metavar, required=True)
        for word, one in self.subcommands().items():
            one.add_to(inner, word)


# ---------------------------------------------------------------- what several commands read or do


def written_layout(text: str, mesh: Mesh | None = None, ndim: int | None = None) -> Layout:
    """A layout in any notation; dialects are loaded for others than this package's own.

    >>> written_layout("dp=2,tp=4: dp,tp").short()
    'S(0)S(1)'
    """
    from spmdsim.layout.written import parse_layout

    return parse_layout(text, mesh, ndim, _other_notation)


def _other_notation(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    from spmdsim.dialects.spelling import other_notation

    return other_notation(body, mesh, ndim)


def start_ranks(args: argparse.Namespace, log_dir: str | None = None) -> int | None:
    """Start the ranks of a command that runs on MPI, and give its exit code; None where it runs in this process."""
    from spmdsim.launch import launched, start_self

    if args.world == "lockstep" or launched() or not (args.n or args.world == "mpi"):
        return None
    return start_self(args.n or os.cpu_count() or 1, sys.argv[1:], log_dir)


def world_of(args: argparse.Namespace) -> World:
    """The world that ``--world`` and ``-n`` ask for."""
    from spmdsim.worlds import LockStep, world

    return LockStep(args.n or 8) if args.world == "lockstep" else world(args.n)
