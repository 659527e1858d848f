"""The parser of a command: layouts and MPI's words as arguments, help that fits, errors in one line by one rank."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NoReturn

from spmdsim.errors import nearest, right_words
from spmdsim.launcher import is_root

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
        """Take ``-1,0`` and ``-,a`` for what they are: layouts, not options. ``-np 8`` and ``--np 8`` are ``-n 8``, as MPI has them."""
        word, equals, number = arg_string.partition("=")
        if word in ("-np", "--np") and "-n" in self._option_string_actions:
            return super()._parse_optional(f"-n{equals}{number}")
        return None if LAYOUT.match(arg_string) else super()._parse_optional(arg_string)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return what an abbreviation may mean, each option once: two spellings of one option are not ambiguous."""
        return list({id(one[0]): one for one in super()._get_option_tuples(option_string)}.values())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As it is, but a command refuses itself what it does not know: its own help says what is right."""
        self._words = sys.argv[1:] if args is None else list(args)
        namespace, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra))
        return namespace, extra

    def _unknown(self, words: Sequence[str]) -> str:
        """Return the error text for unknown words, with the nearest option to the first one that looks like an option."""
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        ours = [word for word in self._option_string_actions if word.startswith("--")]
        hint = f": {right_words(options[0], ours)}" if options and nearest(options[0], ours) else ""
        return f"there is no argument {' '.join(words)}{hint}"

    def _missing(self, message: str) -> str:
        """Return the line for arguments that were not given: their names, and how the command is called."""
        rest = [str(one.metavar or one.dest) for one in self._actions if one.nargs == argparse.REMAINDER]
        names = [name for name in message.partition(": ")[2].split(", ") if name not in rest]
        places = [one for one in self._actions if not one.option_strings and one.nargs != argparse.REMAINDER]
        if not {*names} <= {str(one.metavar or one.dest) for one in places}:
            return message
        words = " ".join(str(one.metavar or one.dest.upper()) for one in places)
        return f"{' and '.join(names)} must be given: {self.prog} {words}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            words = right_words(str(value), [str(choice) for choice in action.choices])
            raise argparse.ArgumentError(action, f"there is no {value!r}; {words}")

    def error(self, message: str) -> NoReturn:
        """Leave with one line that says what is wrong and where to look; what is misspelled, before what is missing."""
        if message.startswith("the following arguments are required"):
            options = [word for word in self._words if word.startswith("--") and word != "--"]
            unknown = [word for word in options if not self._get_option_tuples(word)]
            message = self._unknown(unknown) if unknown else self._missing(message)
        self.exit(2, f"{self.prog}: error: {message} (try {self.prog} --help)\n")
