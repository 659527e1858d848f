"""A page per command, from its own parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from textwrap import dedent
from types import SimpleNamespace

from building.rst import directive, page, sentences, table_of_names, title
from spmdsim.cli.main import COMMANDS, build_parser

EXAMPLES = "examples:"
#: Most characters of a line of an example; a page of a desktop shows them without a line break.
WIDTH = 84
#: A run of lines of an epilog: text, or indented lines, which are code.
_RUN = re.compile(r"(?:^\S.*\n)+|(?:^(?: .*)?\n)+", re.MULTILINE)


def parsers() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command and subcommand by its words, with its parser."""
    for name in COMMANDS:
        yield from _walk((name,), _inner(build_parser(name))[name])


def _walk(
    words: tuple[str, ...], parser: argparse.ArgumentParser
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, parser
    for name, inner in _inner(parser).items():
        yield from _walk((*words, name), inner)


def _inner(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(choices[0]) if choices else {}


def pages() -> dict[str, str]:
    """Path below the folder of commands -> text."""
    texts = {"-".join(words): _page(words, parser) for words, parser in parsers()}
    texts["index"] = page(
        title("Commands"),
        "The pages have the text that ``spmdsim COMMAND --help`` prints. :doc:`/howto/layouts` shows how to write layouts, "
        "meshes and shapes.",
        *_table((f"spmdsim {name}", name, what) for name, what in COMMANDS.items()),
    )
    return texts


def _table(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a table of commands, from rows of words, page and description, and the hidden contents."""
    rows = list(rows)
    yield table_of_names((f":doc:`{words} <{name}>`", sentences(about)) for words, name, about in rows)
    yield directive("toctree", "", "\n".join(name for _, name, _ in rows), hidden="")


def _page(words: tuple[str, ...], parser: argparse.ArgumentParser) -> str:
    name = " ".join(("spmdsim", *words))
    parser.color = False  # type: ignore[attr-defined]  # Python 3.14 colours help
    inner = _inner(parser).items()
    return page(
        title(name),
        sentences(parser.description or COMMANDS.get(words[0], "")),
        directive("container", "usage", _usage(parser)),
        *(
            _table((f"{name} {word}", "-".join((*words, word)), _first(one)) for word, one in inner)
            if inner
            else ()
        ),
        *_details(parser.epilog or ""),
        directive("program", name),
        *(part for group in parser._action_groups for part in _group(group)),
    )


def _first(parser: argparse.ArgumentParser) -> str:
    """Return the first sentence of a description."""
    return re.split(r"(?<=\.)\s", parser.description or "")[0]


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage as a paragraph of code, which breaks between its parts only."""
    line = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return " ".join(f"``{part}``" for part in re.findall(r"\[.*?\]+(?= |$)|[^ ]+", line))


def _details(epilog: str) -> Iterator[str]:
    """Yield the text and the code of an epilog. The line ``examples:`` opens a section."""
    is_examples = False
    for run in _RUN.findall(epilog.strip() + "\n"):
        text = dedent(run).strip("\n")
        if text == EXAMPLES:
            yield title("Examples", 1)
        elif text and run[0].isspace():
            yield (
                directive("code-block", "sh", _examples(text))
                if is_examples
                else directive("code-block", "text", text)
            )
        else:
            yield sentences(text)
        is_examples = text == EXAMPLES


def _examples(text: str) -> str:
    """Return commands below their explanations, which are comments.

    >>> print(_examples("spmdsim doctor   examine MPI"))
    # examine MPI
    spmdsim doctor
    """
    shown = []
    for line in text.replace("\\\n", " ").splitlines():
        parts = re.split(r" {2,}(?! *--)", line, maxsplit=1)
        command = next(part for part in parts if "spmdsim" in part)
        notes = [f"# {part}\n" for part in parts if part is not command]
        shown.append("".join(notes) + _broken(command))
    return ("\n\n" if "# " in "".join(shown) else "\n").join(shown)


def _broken(command: str) -> str:
    r"""Return a command with line breaks before options, so that a line has at most :data:`WIDTH` characters.

    >>> print(_broken("spmdsim search --program gpt --layers 96 --hidden 12288 --batch 8192 --seq 2048 --heads 96"))
    spmdsim search --program gpt --layers 96 --hidden 12288 --batch 8192 --seq 2048 \
        --heads 96
    """
    lines = [""]
    for part in re.split(r" +(?=--?[a-z])", command.strip()):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > WIDTH:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def _group(group: argparse._ArgumentGroup) -> Iterator[str]:
    actions = [
        action
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]
    if not actions:
        return
    name = str(group.title)
    yield title(name[0].upper() + name[1:], 1)
    yield sentences(group.description or "")
    for action in actions:
        yield directive("option", _spelling(action), sentences(_help(action)))


def _spelling(action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter("")
    if not action.option_strings:
        return str(formatter._metavar_formatter(action, action.dest)(1)[0])
    taken = "" if action.nargs == 0 else f" {formatter._format_args(action, action.dest.upper())}"
    return ", ".join(f"{option}{taken}" for option in action.option_strings)


def _help(action: argparse.Action) -> str:
    if not action.help:
        return ""
    values = {**vars(action), "prog": "spmdsim"}
    if action.choices is not None:
        values["choices"] = ", ".join(map(str, action.choices))
    return action.help % vars(SimpleNamespace(**values))
