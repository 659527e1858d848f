"""A little reStructuredText: what the generated pages are written in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import indent

HEADS = "=-~"

#: Code in a text: in backquotes, or an option with its value. Other characters that mean something in reStructuredText.
_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--?[A-Za-z][\w-]*(?:=[^\s;]*[\w])?)|[*`|_\\]")


def escaped(text: str) -> str:
    r"""Text that means itself, on one line.

    >>> print(escaped("a `b` *\n c_"))
    a \`b\` \* c\_
    """
    return re.sub(r"([*`|_\\])", r"\\\1", " ".join(text.split()))


def sentences(text: str) -> str:
    """Text of a help: what is in backquotes and options are code.

    >>> print(sentences("as `x`, with --split"))
    as ``x``, with ``--split``
    """
    return _CODE.sub(_write_code, " ".join(text.split()))


def _write_code(match: re.Match[str]) -> str:
    """Return code in double backquotes, and other characters with a backslash."""
    code = match[1] or match[2]
    return f"``{code}``" if code else f"\\{match[0]}"


def title(text: str, level: int = 0) -> str:
    """A heading."""
    return f"{text}\n{HEADS[level] * len(text)}"


def directive(name: str, argument: str, *body: str, **options: str) -> str:
    """A directive with its options and what is in it."""
    lines = [f".. {name}:: {argument}".rstrip()]
    lines += [f"   :{key.strip('_').replace('_', '-')}: {value}".rstrip() for key, value in options.items()]
    inner = "\n\n".join(part for part in body if part)
    return "\n".join(lines) + (f"\n\n{indent(inner, '   ')}" if inner else "")


def page(*parts: str) -> str:
    """Parts with empty lines between them."""
    return "\n\n".join(part for part in parts if part) + "\n"


def table_of_names(rows: Iterable[tuple[str, str]]) -> str:
    """A table of links and texts; on a telephone a text stands below its link."""
    lines = [f"* - {link}\n  - {text}" for link, text in rows]
    return directive("list-table", "", "\n".join(lines), class_="names", widths="auto")
