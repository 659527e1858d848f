"""The command ``spmdsim``: declare commands as rows of arguments, and run one of them.

The file has types of arguments, functions that declare arguments (:func:`value`, :func:`declare_flag` …), the classes
:class:`Command` and :class:`CommandGroup`, the list of commands, and :func:`main`. Only the module of the command that
runs is imported.
"""

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
from spmdsim.cli.output import print_anywhere, remark, report_print_errors, run_and_report_unwritten, writable
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


def _number_type(
    convert: Callable[[str], N], rule: str, holds: Callable[[N], bool] = lambda _: True
) -> Callable[[str], N]:
    """Return a function that parses a number and checks a rule, as ``type`` for argparse.

    The function raises ArgumentTypeError for a text that is no such number.

    Args:
        convert: int or float; converts the text.
        rule: the rule for error messages, such as "a whole number".
        holds: returns True if a number follows the rule; by default every number does.

    >>> _number_type(int, "even", lambda number: number % 2 == 0)("4")
    4
    """

    def parse(text: str) -> N:
        with suppress(ValueError):
            if holds(number := convert(text)):
                return number
        raise argparse.ArgumentTypeError(f"must be {rule}, but got {text!r}")

    return parse


whole_number = _number_type(int, "a whole number")
natural = _number_type(int, "a whole number from 0 on", lambda number: number >= 0)
positive = _number_type(int, "a whole number from 1 on", lambda number: number >= 1)
finite = _number_type(float, "a finite number", math.isfinite)
amount = _number_type(float, "a finite number from 0 on", lambda number: 0 <= number < math.inf)


# ---------------------------------------------------------------- rows of arguments

Row: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]
"""Positional and keyword arguments of ``add_argument``: the flags or the name of an argument, and its options."""


class ArgumentGroup(NamedTuple):
    """Arguments under a title of their own in the help."""

    title: str
    rows: tuple[Argument, ...]


Argument: TypeAlias = "str | Row | ArgumentGroup"
"""An argument of a command; a string is the last flag of an argument in :data:`SHARED`."""


def value(
    flags: str, metavar: Any, help: str | None, type: Callable[[str], Any] | None = None, **options: Any
) -> Row:
    """Declare an argument with a value.

    Args:
        flags: its flags separated by blanks, or its name if it has none.
        metavar: placeholder of the value in the help; argparse's default if empty.
        help: its help.
        type: converts the text of the value; None for a string.
        options: further arguments of ``add_argument``.
    """
    return tuple(flags.split()), {"metavar": metavar or None, "help": help, "type": type, **options}


def several(
    flags: str, metavar: Any, help: str, type: Callable[[str], Any] | None = None, **options: Any
) -> Row:
    """Declare an argument that may be given several times; its value is a list.

    The list is empty by default.
    """
    return value(flags, metavar, help, type, action="append", default=[], **options)


def choice(flags: str, choices: tuple[str, ...], help: str | None, default: str | None = None) -> Row:
    """Declare an argument whose value is one of ``choices``."""
    return tuple(flags.split()), {"choices": choices, "help": help, "default": default}


def declare_flag(flags: str, help: str, **options: Any) -> Row:
    """Declare an argument without a value, True if given."""
    return tuple(flags.split()), {"action": "store_true", "help": help, **options}


class _Renamed(argparse.Action):
    """Action of a renamed option: set the new option, and print its name to stderr."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        remark(f"{parser.prog}: {option_string} is called --{self.dest.replace('_', '-')} now")
        setattr(namespace, self.dest, values)


def renamed(flag_: str, current: str) -> Row:
    """Declare a hidden argument: the former name of the option ``current``, which still works.

    It prints the current name to stderr.
    """
    dest = current.lstrip("-").replace("-", "_")
    return value(flag_, "", argparse.SUPPRESS, action=_Renamed, dest=dest, default=argparse.SUPPRESS)


def varied(flags: str, **options: Any) -> Row:
    """Declare an argument of :data:`SHARED` with some options changed.

    ``flags`` are separated by blanks. The last of them is the argument's name in :data:`SHARED`.
    """
    words = tuple(flags.split())
    return words, {**SHARED[words[-1]], **options}


def group(title: str, *rows: Argument) -> ArgumentGroup:
    """Declare arguments under a title in the help."""
    return ArgumentGroup(title, rows)


#: Arguments that several commands have, by their last flag.
SHARED: dict[str, dict[str, Any]] = {
    flags[-1]: options
    for flags, options in (
        value("collective", "", "such as all_reduce"),
        value("algorithm", "", "name of the algorithm (see list), or FILE.py:FUNCTION"),
        value(
            "--algorithms",
            "A,B",
            "only these algorithms, each a name or FILE.py:FUNCTION; native is the library's own call",
            default="",
        ),
        value("--aggregation", "A", "most blocks of a message, for aggregated trees", whole_number),
        value("--dimensions", "D", "dimensions of the torus, for rings on tori", whole_number),
        value("--dtype", "", "element type (float32)", default="float32"),
        value("--factor", "", "factor between sizes (4)", finite, default=4),
        value("--group", "G", "ranks per group, for two-level algorithms", whole_number),
        value("--hostfile", "FILE", "file with the hosts, in lines such as node1 slots=2"),
        value(
            "--hosts",
            "HOSTS",
            "start the ranks on these hosts, such as node1:2,node2:2 (ranks of each), by ssh",
        ),
        value("--html", "FILE", "write the picture as a self-contained HTML page", writable),
        value("--itemsize", "B", "bytes per element (1); chunks have whole elements", positive, default=1),
        declare_flag("--json", "print JSON"),
        value("-n", "RANKS", "ranks to start (or to simulate in lock step)", positive),
        value("--radix", "K", "radix of a tree or of Bruck's algorithm", whole_number),
        value("--ranks", "N", "start N ranks, outside mpirun", positive),
        value("--segments", "S", "number of segments, for pipelined algorithms", whole_number),
        value("--svg", "FILE", "write the picture as one SVG image", writable),
        choice("--world", ("mpi", "lockstep"), "lockstep needs no MPI"),
    )
}
#: Arguments of commands that write pictures by :func:`spmdsim.cli.output.write_pictures`.
PICTURES = ("--svg", "--html")
#: Arguments of commands that start ranks; read by :func:`spmdsim.cli.launch.read_hosts`.
HOSTS = ("--hosts", "--hostfile")


def declare_arguments(parser: argparse._ActionsContainer, arguments: Iterable[Argument]) -> None:
    """Add arguments to an argparse parser or group.

    A group of arguments becomes a group of the parser; groups of equal titles are joined.

    Args:
        parser: the parser or group; changed in place.
        arguments: each is a group, a :data:`Row` with the flags and options of one argument, or the last flag of
            an argument in the table :data:`SHARED`, such as "--json".

    Raises:
        KeyError: If a string is not in :data:`SHARED`.
    """
    for argument in arguments:
        if isinstance(argument, ArgumentGroup):
            # argparse has no public list of the groups of a parser.
            existing = [g for g in parser._action_groups if g.title == argument.title]
            declare_arguments(
                existing[0] if existing else parser.add_argument_group(argument.title), argument.rows
            )
        else:
            flags, options = varied(argument) if isinstance(argument, str) else argument
            parser.add_argument(*flags, **options)


# ---------------------------------------------------------------- commands


def add_limits(add: Callable[..., object], seconds: float) -> None:
    """Add the options ``--time-limit``, ``--memory-limit`` and ``--output-limit``.

    Their values are numbers of at least 0: seconds of processor time, MiB and MiB.

    Args:
        add: the method ``add_argument`` of a parser.
        seconds: default time limit. Memory and output have defaults of their own, which the help states.
    """
    from spmdsim.launch.limits import LOADING, MEMORY_MIB, OUTPUT_MIB, WALL

    often = f"seconds of processor time ({seconds:g}); wall-clock limit {WALL} S + {LOADING}; 0: no limit"
    texts = (
        ("--time-limit", seconds, "S", often),
        ("--memory-limit", MEMORY_MIB, "MIB", f"memory of the program ({MEMORY_MIB})"),
        ("--output-limit", OUTPUT_MIB, "MIB", f"output of the program ({OUTPUT_MIB})"),
    )
    for name, default, unit, text in texts:
        add(name, type=amount, default=float(default), metavar=unit, help=text)


def run_command_limited(args: argparse.Namespace, body: Callable[[], int], reads: bool = False) -> int:
    """Run a command's body within the limits of its arguments, and return its exit code.

    The body runs in a child process with limits; see ``run_limited`` of ``spmdsim.launch.limits``.

    Args:
        args: the command's arguments: ``time_limit`` (s), ``memory_limit`` (MiB) and ``output_limit`` (MiB); 0 is no
            limit.
        body: the function to run; returns the exit code.
        reads: True if the body reads stdin.

    Raises:
        InputError: If the body reaches a limit, or its process ends before the body does.
    """
    from spmdsim.launch.limits import MIB, Limits, run_limited

    sizes = int(args.memory_limit * MIB), int(args.output_limit * MIB)
    return run_limited(body, Limits(args.time_limit, *sizes), reads)


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: gets the arguments and returns the exit code.
        about: first text of its ``--help``.
        examples: last text of its ``--help``.
        arguments: its arguments, in the order of its ``--help``.
        help: its line in the list of subcommands.
        limits: default limit on the processor time of a user's program in seconds; None if the command runs none.
        program: returns a true value if the arguments name a user's program, which runs in a child process with limits.
        judges: modules that judge the program. They are imported first, so that the program cannot replace their files.
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
        """Add a parser with the arguments of this command to ``subparsers``, under ``name``.

        Commands with ``limits`` also get the options for limits. The parsed arguments have ``run``, a function
        that takes them and returns the exit code, and ``parser``. A command without ``help`` is not listed in the
        help of subcommands.
        """
        listed: dict[str, Any] = {"help": self.help} if self.help else {}
        parser = subparsers.add_parser(name, description=self.about, epilog=self.examples, **listed)
        declare_arguments(parser, self.arguments)
        if self.limits is not None:
            add_limits(parser.add_argument, self.limits)
        parser.set_defaults(run=self._run, parser=parser)

    def _run(self, args: argparse.Namespace) -> int:
        """Run the command, within limits if it runs a user's program; return its exit code.

        Before a user's program, the modules of ``judges`` are imported, so that the program cannot replace them.
        Errors of files that could not be written are printed at the end; the code is then 2.
        """
        if not self.program(args):
            return run_and_report_unwritten(self.run, args)
        for module in self.judges:
            import_module(module)
        return run_command_limited(args, lambda: run_and_report_unwritten(self.run, args))


def command(
    about: str, examples: str | None, *arguments: Argument, **options: Any
) -> Callable[[Callable[[argparse.Namespace], int]], Command]:
    """Return a decorator that makes a :class:`Command` of a function.

    Args:
        about: first text of its ``--help``.
        examples: last text of its ``--help``, or None.
        arguments: its arguments.
        options: further attributes of the command.
    """
    return lambda run: Command(run, about, examples, arguments, **options)


@dataclass(frozen=True)
class CommandGroup:
    """A command with subcommands.

    Attributes:
        about: first text of its ``--help``.
        examples: last text of its ``--help``.
        metavar: placeholder of the subcommand in the usage line.
        subcommands: returns the subcommands by name; called when the parser is built.
    """

    about: str
    examples: str
    metavar: str
    subcommands: Callable[[], Mapping[str, Command]]

    def add_to(self, subparsers: Subparsers, name: str) -> None:
        """Add a parser with the subcommands of this command to ``subparsers``, under ``name``."""
        parser = subparsers.add_parser(name, description=self.about, epilog=self.examples)
        inner = parser.add_subparsers(dest="subcommand", metavar=self.metavar, required=True)
        for word, subcommand in self.subcommands().items():
            subcommand.add_to(inner, word)


# ---------------------------------------------------------------- what several commands read or do


def written_layout(text: str, mesh: Mesh | None = None, ndim: int | None = None) -> Layout:
    """Parse a layout in any notation.

    Dialects are imported only for other notations than this package's.

    Args:
        text: the layout, which may begin with its mesh.
        mesh: the mesh of a layout that does not name one.
        ndim: number of dimensions, for notations that do not state it.

    >>> written_layout("dp=2,tp=4: dp,tp").placement_text()
    'S(0)S(1)'
    """
    from spmdsim.layout.written import parse_layout

    return parse_layout(text, mesh, ndim, _other_notation)


def _other_notation(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    """Parse a layout in a dialect's notation."""
    from spmdsim.dialects.spelling import other_notation

    return other_notation(body, mesh, ndim)


COMMANDS: Registry[str] = Registry(
    "command",
    {
        "run": "run distributed operators on real ranks and check every shard",
        "layout": "derive and explain the layout of a tensor",
        "plan": "plan a redistribution: its collectives and their bytes",
        "train": "train a network that is distributed over the ranks",
        "launch": "start any script on N ranks",
        "calls": "show the last calls of all ranks side by side",
        "collective": "see, verify, price and run collective algorithms",
        "simulate": "run an mpi4py script on virtual ranks and name its mistakes",
        "search": "find the best layouts for a network",
        "explore": "write an interactive page: layouts, redistributions, collectives, a search",
        "labs": "labs that grade themselves: list them, copy them, check an answer",
        "tune": "measure implementations of steps on this machine, and store the best",
        "doctor": "examine MPI, BLAS and this machine, and report problems",
    },
)
"""Help line of each command. The variable ``main`` of the module ``spmdsim.cli.<command>`` declares the command."""

#: Commands that only compute and print. Outside a job, modules that start and stop ranks are not imported for them.
ON_PAPER = ("layout", "plan", "calls")

EXAMPLES = """\
examples:
  spmdsim run -n 8                   check distributed operators on 8 ranks
  spmdsim run --world lockstep -n 8  the same without MPI
  spmdsim launch -n 8 script.py      start your own script
  spmdsim doctor                     examine this machine
  spmdsim plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 8,8

`spmdsim COMMAND --help` explains a command.
"""


class _Version(argparse.Action):
    """Action of ``--version``: look up versions and print them."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str = "") -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from spmdsim.launch.mpi import list_versions

        if is_root():
            sys.stdout.write("\n".join(list_versions()) + "\n")
        parser.exit()


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows all command names, and the arguments of ``command``.

    To start fast, only the module of this command is imported. Other commands have a name and a line of help, but no
    arguments.

    Args:
        command: a name of :data:`COMMANDS`; None: no command has arguments.
    """
    parser = Parser(
        prog="spmdsim",
        description="See, run and choose tensor layouts over many ranks.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=lambda _: parser.print_help())
    parser.add_argument(
        "--version", action=_Version, help="print the versions of this package, MPI and the libraries"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, help_line in COMMANDS.items():
        if name == command:
            _load_declaration(name).add_to(subparsers, name)
        else:
            subparsers.add_parser(name, help=help_line, add_help=False)
    return parser


def chosen_command(argv: Sequence[str]) -> str | None:
    """Return the command if it is the first word; None if the word is missing or no command.

    >>> chosen_command(["layout", "--help"]), chosen_command(["--help", "layout"])
    ('layout', None)
    """
    return argv[0] if argv and argv[0] in COMMANDS else None


def command_words(argv: Sequence[str]) -> list[str]:
    """Return the first words that name the command and its subcommand; [] if they name none.

    ``argv`` are the words after the program's name. The module of the command is imported.

    >>> command_words(["collective", "show", "all_reduce"]), command_words(["plan", "--help"]), command_words(["paln"])
    (['collective', 'show'], ['plan'], [])
    """
    command = chosen_command(argv)
    if command is None:
        return []
    declaration = _load_declaration(command)
    inner = declaration.subcommands() if isinstance(declaration, CommandGroup) else ()
    return [command, *(word for word in argv[1:2] if word in inner)]


def _load_declaration(command: str) -> Command | CommandGroup:
    """Import the module of a command and return its declaration."""
    declaration: Command | CommandGroup = import_module(f"spmdsim.cli.{command}").main
    return declaration


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The code is 0 for success, 1 if a verdict does not hold, and 2 for a wrong argument or input; commands can have
    other codes, which their help states. Errors are printed in one line, not raised. In a job, all ranks call it.

    Args:
        argv: the words after the program's name, such as ["run", "-n", "4"]; None: those of the command line.
    """
    print_anywhere()
    argv = sys.argv[1:] if argv is None else list(argv)
    command = chosen_command(argv)
    name = " ".join(("spmdsim", *command_words(argv)))
    if command in ON_PAPER and detect() is None and not has_log():
        try:
            return _run(command, argv, None)
        except BaseException as error:
            return stop(error, name)
    from spmdsim.launch.bootstrap import run_rank

    return run_rank(lambda rank: _run(command, argv, rank), name)


def _run(command: str | None, argv: Sequence[str], rank: Launched | None) -> int:
    """Parse the arguments and run the command; return its exit code.

    Args:
        command: the command, or None if the first word is no command.
        argv: the words of the command line after the program's name.
        rank: the rank of this process in a job, or None outside of jobs.

    Raises:
        InputError: If a user's program calls ``sys.exit()`` or ``sys.exit(0)`` before the command is done, printing
            fails, or memory runs out outside of a job.
        SystemExit: If the parser exits, with code 0 after ``--help`` or 2 for a wrong argument, or if a user's program
            exits with a code other than 0.
        SpmdError: If the command raises another error. If a word is misspelled, the message also names the command's
            ``--help``.
        MemoryError: If memory runs out in a job.
    """
    args: Any = None
    try:
        with report_print_errors():
            args = build_parser(command).parse_args(argv)
            code: int = args.run(args) or 0
            return code
    except SpmdError as error:
        if error.wrong_word:
            error.message += f" (try {' '.join(('spmdsim', *command_words(argv)))} --help)"
        raise
    except SystemExit as leaving:  # A user's program called sys.exit before the command finished.
        if leaving.code or args is None:
            raise
        raise InputError(
            f"the program left with sys.exit({leaving.code}) before the command was done"
        ) from None
    except MemoryError as error:
        if rank is not None:  # The traceback is more useful than one line, because it names the place.
            raise
        reason = one_line(error)
        raise InputError(
            f"there is not enough memory: {reason}" if reason else "there is not enough memory"
        ) from None
