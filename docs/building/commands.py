"""A page per command, from its own parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

from building.rst import directive, escaped, page, title, toctree
from spmdsim.cli.main import COMMANDS, build_parser

WIDTH = 88
USAGE = "usage: "


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
        "What ``spmdsim COMMAND --help`` prints, with links. Layouts, meshes and shapes are written as in "
        ":doc:`/index`.",
        directive(
            "list-table",
            "",
            "\n".join(f"* - :doc:`spmdsim {name} <{name}>`\n  - {escaped(what)}" for name, what in COMMANDS.items()),
            widths="30 70",
        ),
        directive("toctree", "", "\n".join(COMMANDS), hidden=""),
    )  # fmt: skip
    return texts


def _page(words: tuple[str, ...], parser: argparse.ArgumentParser) -> str:
    name = " ".join(("spmdsim", *words))
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)  # type: ignore[assignment]
    parser.color = False  # type: ignore[attr-defined]  # Python 3.14 colours help
    about, examples = parser.description or COMMANDS.get(words[0], ""), parser.epilog
    return page(
        title(name),
        escaped(about),
        directive(
            "code-block",
            "text",
            parser.format_usage().strip().removeprefix(USAGE).replace(f"\n{' ' * len(USAGE)}", "\n"),
        ),
        directive("program", name),
        *(part for group in parser._action_groups for part in _group(group)),
        title("Examples", 1) if examples else "",
        directive("code-block", "text", examples.strip()) if examples else "",
        toctree("-".join((*words, inner)) for inner in _inner(parser)) if _inner(parser) else "",
    )


def _group(group: argparse._ArgumentGroup) -> Iterator[str]:
    actions = [
        action
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]
    if not actions:
        return
    yield title(str(group.title).capitalize(), 1)
    yield escaped(group.description or "")
    for action in actions:
        yield directive("option", _spelling(action), escaped(_help(action)))


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
