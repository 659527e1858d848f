"""The argument parser of all commands.

It accepts layouts and MPI's ``-np`` as arguments, wraps help to the terminal, and prints errors in one line on one
rank. :class:`Parser` overrides methods of :class:`argparse.ArgumentParser`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NoReturn

from spmdsim.errors import nearest, right_words
from spmdsim.launcher import is_root

#: Beginning of layouts whose first dim is not split, which look like options.
LAYOUT = re.compile(r"-(1\s*)?,")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formatter that wraps descriptions and examples only if a line does not fit."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return a text whose paragraphs are wrapped one by one; an empty line separates paragraphs."""
        return "\n\n".join(self._wrap_paragraph(block.split("\n"), width) for block in text.split("\n\n"))

    def _wrap_paragraph(self, lines: list[str], width: int) -> str:
        """Return a paragraph in lines of at most ``width`` characters; unchanged if all lines fit.

        * Indented lines are commands, which users copy, so they are never wrapped. The explanation of a command (the
          text after two blanks) moves to a line below it.
        * Other lines that follow each other are joined and wrapped between words; a longer word keeps its line.
        """
        if max(map(len, lines)) <= width:
            return "\n".join(lines)
        from textwrap import fill

        blocks = []
        for indented, block_lines in groupby(lines, key=lambda line: line[:1] == " "):
            if indented:
                blocks += [re.sub(r"^( +\S.*?) {2,}(\S.*)$", r"\1\n      \2", line) for line in block_lines]
            else:
                blocks.append(
                    fill(" ".join(block_lines), width, break_long_words=False, break_on_hyphens=False)
                )
        return "\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors and help are printed by one rank.

    All ranks have equal arguments.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message on one rank only."""
        if is_root():
            super()._print_message(message, file)

    def _parse_optional(self, arg_string: str) -> Any:
        """Parse a word that may be an option; ``-1,0`` is a layout, and ``-np 8`` is ``-n 8``."""
        word, equals, number = arg_string.partition("=")
        if word in ("-np", "--np") and "-n" in self._option_string_actions:
            return super()._parse_optional(f"-n{equals}{number}")
        return None if LAYOUT.match(arg_string) else super()._parse_optional(arg_string)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return the options that an abbreviation may mean, each option once.

        Two spellings of one option are not ambiguous. An ambiguous word counts as unknown if the command has words of
        a program, because the word may be one of them.
        """
        matches = {id(match[0]): match for match in super()._get_option_tuples(option_string)}
        has_remainder = any(action.nargs == argparse.REMAINDER for action in self._actions)
        return [] if has_remainder and len(matches) > 1 else list(matches.values())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; exit with code 2 if an argument is wrong or unknown.

        Rank 0 prints the error in one line to stderr. The parser of the command reports its unknown arguments
        itself. argparse would leave them to the main parser, whose help lacks the options of the command.

        Args:
            args: the words; None: those of the command line.
            namespace: the object that gets the values as attributes; None: a new one.

        Returns:
            The namespace, and an empty list of unknown arguments.
        """
        self._words = sys.argv[1:] if args is None else list(args)
        namespace, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown_text(extra))
        return namespace, extra

    def _unknown_text(self, words: Sequence[str]) -> str:
        """Return the error text for unknown words, with the option nearest to the first of them.

        Without a similar option, the text lists the words only.
        """
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        ours = [word for word in self._option_string_actions if word.startswith("--")]
        hint = f": {right_words(options[0], ours)}" if options and nearest(options[0], ours) else ""
        return f"there is no argument {' '.join(words)}{hint}"

    def _missing_text(self, message: str) -> str:
        """Return the error text for missing arguments: their names, and the usage of the command.

        An example is "FILE must be given: spmdsim calls FILE". An argument that takes all remaining words is
        never named as missing, because it may be empty. ``message`` is argparse's message. It is returned
        unchanged if a missing argument is an option or a subcommand.
        """
        remainders = [str(a.metavar or a.dest) for a in self._actions if a.nargs == argparse.REMAINDER]
        missing = [name for name in message.partition(": ")[2].split(", ") if name not in remainders]
        positionals = [a for a in self._actions if not a.option_strings and a.nargs != argparse.REMAINDER]
        positional_names = {str(action.metavar or action.dest) for action in positionals}
        if not set(missing) <= positional_names:
            return message
        words = " ".join(str(action.metavar or action.dest.upper()) for action in positionals)
        return f"{' and '.join(missing)} must be given: {self.prog} {words}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError with the nearest choice if a value is not among the choices."""
        if action.choices is not None and value not in action.choices:
            words = right_words(str(value), [str(choice) for choice in action.choices])
            raise argparse.ArgumentError(action, f"there is no {value!r}; {words}")

    def error(self, message: str) -> NoReturn:
        """Print one line with the mistake and the call for help to stderr, and exit with code 2.

        Only rank 0 prints; every rank exits. If an argument is missing and an option is misspelled, the line
        reports the misspelled option.

        Args:
            message: the mistake, without a full stop.
        """
        if message.startswith("the following arguments are required"):
            options = [word for word in self._words if word.startswith("--") and word != "--"]
            unknown = [word for word in options if not self._get_option_tuples(word)]
            message = self._unknown_text(unknown) if unknown else self._missing_text(message)
        self.exit(2, f"{self.prog}: error: {message} (try {self.prog} --help)\n")
