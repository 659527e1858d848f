"""The command ``spmdsim``: finds the command asked for, and imports only that one."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any, NoReturn

from spmdsim.cli.arguments import Command, CommandGroup
from spmdsim.cli.output import print_anywhere
from spmdsim.ending.notes import has_log
from spmdsim.ending.stop import stop
from spmdsim.errors import InputError, SpmdError, nearest, right_words
from spmdsim.launcher import Launched, detect, is_root
from spmdsim.reading import one_line
from spmdsim.registry import Registry

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


#: The beginning of layouts whose first dim is not split.
LAYOUT = re.compile(r"-(1\s*)?,")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Descriptions and examples in the lines they are written in, or, where these are too long, in lines that fit."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._fitting(block.split("\n"), width) for block in text.split("\n\n"))

    def _fitting(self, lines: list[str], width: int) -> str:
        """Some lines, or, where one is too long: commands in one line, to be copied, with what they do below; other text filled."""
        if max(map(len, lines)) <= width:
            return "\n".join(lines)
        from textwrap import fill

        blocks = []
        for indented, some in groupby(lines, key=lambda line: line[:1] == " "):
            if indented:
                blocks += [re.sub(r"^( +\S.*?) {2,}(\S.*)$", r"\1\n      \2", line) for line in some]
            else:
                blocks.append(fill(" ".join(some), width, break_long_words=False, break_on_hyphens=False))
        return "\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """A parser whose errors and help are printed by one rank: all ranks have the same arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)

    def _print_message(self, message: str, file: Any = None) -> None:
        if is_root():
            super()._print_message(message, file)

    def _parse_optional(self, arg_string: str) -> Any:
        """Take ``-1,0`` and ``-,a`` for what they are: layouts, not options."""
        return None if LAYOUT.match(arg_string) else super()._parse_optional(arg_string)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As it is, but a command refuses itself what it does not know: its own help says what is right."""
        self._words = sys.argv[1:] if args is None else list(args)
        namespace, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra))
        return namespace, extra

    def _unknown(self, words: Sequence[str]) -> str:
        """That words are no arguments here, and what the first option among them may have meant."""
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = [word for word in self._option_string_actions if word.startswith("--")]
        hint = f": {right_words(options[0], known)}" if options and nearest(options[0], known) else ""
        return f"there is no argument {' '.join(words)}{hint}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            words = right_words(str(value), [str(choice) for choice in action.choices])
            raise argparse.ArgumentError(action, f"there is no {value!r}; {words}")

    def error(self, message: str) -> NoReturn:
        """Leave with one line that says what is wrong and where to look; what is misspelled, before what is missing."""
        if message.startswith("the following arguments are required"):
            options = [word for word in self._words if word.startswith("--") and word != "--"]
            unknown = [word for word in options if not self._get_option_tuples(word)]
            message = self._unknown(unknown) if unknown else message
        self.exit(2, f"{self.prog}: error: {message} (try {self.prog} --help)\n")


class _Version(argparse.Action):
    """``--version``: looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str = "") -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from spmdsim.launch.mpi import version_lines

        if is_root():
            sys.stdout.write("\n".join(version_lines()) + "\n")
        parser.exit()


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """A parser that knows all commands by name and only the one that is going to be used in full."""
    parser = Parser(
        prog="spmdsim",
        description="See, run and choose tensor layouts over many ranks.",
        epilog=EXAMPLES,
    )
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
    return _as_rank(command, argv, name)


def _as_rank(command: str | None, argv: Sequence[str], name: str) -> int:
    """Run a command as one rank of many, or one that may start some: its failure ends all of them."""
    from spmdsim.launch.abort import check_launcher, guard
    from spmdsim.launch.environment import prepare
    from spmdsim.launch.logs import redirect_output
    from spmdsim.launch.nurse import nursed

    rank = prepare()
    nursed(rank)

    def run() -> int:
        redirect_output(rank.rank if rank else 0)
        check_launcher(rank)
        return _run(command, argv, rank)

    return guard(run, name)


def _run(command: str | None, argv: Sequence[str], rank: Launched | None) -> int:
    parser = build_parser(command)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except SpmdError as error:
        if error.wrong_word:
            error.message += f" (try {' '.join(('spmdsim', *spoken_to(argv)))} --help)"
        raise
    except SystemExit as leaving:  # of a program that the command has read: it is no success
        if leaving.code:
            raise
        raise InputError(
            f"the program left with sys.exit({leaving.code}) before the command was done"
        ) from None
    except MemoryError as error:
        if rank is not None:  # where it was lacking matters more than that the others hear of it in one line
            raise
        raise InputError(f"there is not enough memory{': ' * bool(str(error))}{one_line(error)}") from None
