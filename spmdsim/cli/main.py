"""The command ``spmdsim``: how commands are declared, as rows of arguments; it finds the one asked for, and imports only that."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from spmdsim.cli.command_parser import Parser
from spmdsim.cli.output import print_anywhere, printing, remark, saying_unwritten, writable
from spmdsim.errors import InputError, SpmdError
from spmdsim.launcher import Launched, detect, has_log, is_root
from spmdsim.reading import one_line
from spmdsim.registry import Registry
from spmdsim.shutdown.stop import stop

if TYPE_CHECKING:
    from spmdsim.core import Layout, Mesh


Subparsers: TypeAlias = "argparse._SubParsersAction[Any]"

# ---------------------------------------------------------------- types of arguments

N = TypeVar("N", int, float)


def _number(
    convert: Callable[[str], N], rule: str, holds: Callable[[N], bool] = lambda _: True
) -> Callable[[str], N]:
    """Return the type of an argument that is a number, and whose errors state the rule."""

    def read(text: str) -> N:
        with suppress(ValueError):
            if holds(number := convert(text)):
                return number
        raise argparse.ArgumentTypeError(f"must be {rule}, but got {text!r}")

    return read


whole = _number(int, "a whole number")
natural = _number(int, "a whole number from 0 on", lambda number: number >= 0)
positive = _number(int, "a whole number from 1 on", lambda number: number >= 1)
finite = _number(float, "a finite number", math.isfinite)
amount = _number(float, "a finite number from 0 on", lambda number: 0 <= number < math.inf)


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


class _Renamed(argparse.Action):
    """An option of the last release: it sets the option that replaces it and names that option on stderr."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        remark(f"{parser.prog}: {option_string} is called --{self.dest.replace('_', '-')} now")
        setattr(namespace, self.dest, values)


def renamed(flag_: str, current: str) -> Row:
    """Return a hidden argument: the former name of the option ``current``, which still works."""
    dest = current.lstrip("-").replace("-", "_")
    return value(flag_, "", argparse.SUPPRESS, action=_Renamed, dest=dest, default=argparse.SUPPRESS)


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
        value("--factor", "", "from size to size (4)", finite, default=4),
        value("--group", "G", "ranks per group, for two-level algorithms", whole),
        value("--html", "FILE", "write the picture as a page that needs no other file", writable),
        value("--itemsize", "B", "bytes that are never cut (1)", positive, default=1),
        flag("--json", "for programs"),
        value("-n", "RANKS", "ranks to start (or to simulate in lock step)", positive),
        value("--ranks", "N", "start N ranks, outside mpirun", positive),
        value("--segments", "S", "segments, for algorithms that have them", whole),
        value("--svg", "FILE", "write the picture as one SVG image", writable),
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


def add_limits(add: Callable[..., object], seconds: float) -> None:
    """Declare the options of the limits with a parser's ``add_argument``. ``seconds`` is the default time limit."""
    from spmdsim.launch.limits import LOADING, MEMORY_MIB, OUTPUT_MIB, WALL

    often = f"seconds of processor time ({seconds:g}), by the clock {WALL} S + {LOADING}; 0: no limit"
    texts = (
        ("--time-limit", seconds, "S", often),
        ("--memory-limit", MEMORY_MIB, "MIB", f"memory of the program ({MEMORY_MIB})"),
        ("--output-limit", OUTPUT_MIB, "MIB", f"what it prints ({OUTPUT_MIB})"),
    )
    for name, default, unit, text in texts:
        add(name, type=amount, default=float(default), metavar=unit, help=text)


def run_command_limited(args: argparse.Namespace, body: Callable[[], int], reads: bool = False) -> int:
    """Run a command's body within the limits of its arguments; see ``run_limited`` of ``spmdsim.launch.limits``."""
    from spmdsim.launch.limits import MIB, Limits, run_limited

    sizes = int(args.memory_limit * MIB), int(args.output_limit * MIB)
    return run_limited(body, Limits(args.time_limit, *sizes), reads)


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
            add_limits(parser.add_argument, self.limits)
        parser.set_defaults(run=self._run, parser=parser)

    def _run(self, args: argparse.Namespace) -> int:
        if not self.program(args):
            return saying_unwritten(self.run, args)
        for module in self.judges:
            import_module(module)
        return run_command_limited(args, lambda: saying_unwritten(self.run, args))


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


COMMANDS: Registry[str] = Registry(
    "command",
    {
        "run": "run distributed operators on real ranks and check every shard",
        "layout": "derive and explain where a tensor lives",
        "plan": "from one layout to another: the collectives and their bytes",
        "train": "train a network laid out over the ranks",
        "launch": "start any script on N ranks",
        "calls": "show what every rank called last, side by side",
        "collective": "see, verify, price and run collective algorithms",
        "simulate": "run an mpi4py script on virtual ranks and name its mistakes",
        "search": "find the best layouts for a network",
        "explore": "write a page to play with: layouts, redistributions, collectives, a search",
        "labs": "labs that grade themselves: list them, copy them, check an answer",
        "tune": "try the ways in which steps run on this machine, and keep what was found",
        "doctor": "look at MPI, BLAS and this machine, and say what is wrong",
    },
)
"""Command -> help. The module ``spmdsim.cli.<command>`` has it as ``main``, with its arguments and its function."""

#: Commands that only compute and print: outside a job, nothing of how ranks start and end is loaded for them.
ON_PAPER = ("layout", "plan", "calls")

EXAMPLES = """\
examples:
  spmdsim run -n 8                   check distributed operators on 8 ranks
  spmdsim run --world lockstep -n 8  the same without MPI
  spmdsim launch -n 8 script.py      start your own script
  spmdsim doctor                     is this machine set up well?
  spmdsim plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 8,8

`spmdsim COMMAND --help` explains a command.
"""


class _Version(argparse.Action):
    """``--version``: looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str = "") -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from spmdsim.launch.mpi import list_versions

        if is_root():
            sys.stdout.write("\n".join(list_versions()) + "\n")
        parser.exit()


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """A parser that knows all commands by name and only the one that is going to be used in full."""
    parser = Parser(
        prog="spmdsim",
        description="See, run and choose tensor layouts over many ranks.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=lambda _: parser.print_help())
    parser.add_argument("--version", action=_Version, help="versions of everything that matters")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, help_line in COMMANDS.items():
        if name == command:
            _declaration(name).add_to(subparsers, name)
        else:
            subparsers.add_parser(name, help=help_line, add_help=False)
    return parser


def chosen_command(argv: Sequence[str]) -> str | None:
    """The command that stands before anything but options.

    >>> chosen_command(["layout", "--help"]), chosen_command(["--help", "layout"])
    ('layout', None)
    """
    return argv[0] if argv and argv[0] in COMMANDS else None


def spoken_to(argv: Sequence[str]) -> list[str]:
    """The command and its subcommand, as far as they are there.

    >>> spoken_to(["collective", "show", "all_reduce"]), spoken_to(["plan", "--help"]), spoken_to(["paln"])
    (['collective', 'show'], ['plan'], [])
    """
    command = chosen_command(argv)
    if command is None:
        return []
    declaration = _declaration(command)
    inner = declaration.subcommands() if isinstance(declaration, CommandGroup) else ()
    return [command, *(word for word in argv[1:2] if word in inner)]


def _declaration(command: str) -> Command | CommandGroup:
    declaration: Command | CommandGroup = import_module(f"spmdsim.cli.{command}").main
    return declaration


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 1 if a verdict does not hold, 2 for a wrong argument or input."""
    print_anywhere()
    argv = sys.argv[1:] if argv is None else list(argv)
    command = chosen_command(argv)
    name = " ".join(("spmdsim", *spoken_to(argv)))
    if command in ON_PAPER and detect() is None and not has_log():
        try:
            return _run(command, argv, None)
        except BaseException as error:
            return stop(error, name)
    from spmdsim.launch.bootstrap import run_rank

    return run_rank(lambda rank: _run(command, argv, rank), name)


def _run(command: str | None, argv: Sequence[str], rank: Launched | None) -> int:
    args: Any = None
    try:
        with printing():
            args = build_parser(command).parse_args(argv)
            code: int = args.run(args) or 0
            return code
    except SpmdError as error:
        if error.wrong_word:
            error.message += f" (try {' '.join(('spmdsim', *spoken_to(argv)))} --help)"
        raise
    except SystemExit as leaving:  # of a program that the command has read: it is no success
        if leaving.code or args is None:
            raise
        raise InputError(
            f"the program left with sys.exit({leaving.code}) before the command was done"
        ) from None
    except MemoryError as error:
        if rank is not None:  # where it was lacking matters more than that the others hear of it in one line
            raise
        raise InputError(f"there is not enough memory{': ' * bool(str(error))}{one_line(error)}") from None
