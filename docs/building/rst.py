"""A little reStructuredText: what the generated pages are written in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import indent

HEADS = "=-~"


def escaped(text: str) -> str:
    r"""Text that means itself, on one line.

    >>> print(escaped("a `b` *\n c_"))
    a \`b\` \* c\_
    """
    return re.sub(r"([*`|_\\])", r"\\\1", " ".join(text.split()))


def title(text: str, level: int = 0) -> str:
    """A heading."""
    return f"{text}\n{HEADS[level] * len(text)}"


def directive(name: str, argument: str, *body: str, **options: str) -> str:
    """A directive with its options and what is in it."""
    lines = [f".. {name}:: {argument}".rstrip()]
    lines += [f"   :{key.replace('_', '-')}: {value}".rstrip() for key, value in options.items()]
    inner = "\n\n".join(part for part in body if part)
    return "\n".join(lines) + (f"\n\n{indent(inner, '   ')}" if inner else "")


def page(*parts: str) -> str:
    """Parts with empty lines between them."""
    return "\n\n".join(part for part in parts if part) + "\n"


def toctree(pages: Iterable[str], depth: int = 1) -> str:
    """The pages below this one."""
    return directive("toctree", "", "\n".join(pages), maxdepth=str(depth))
