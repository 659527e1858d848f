"""Output on terminals and pipes that know only ASCII or an old code page: arrows and lines become their likeness."""

from __future__ import annotations

import codecs
import sys
from typing import IO

LIKENESS = {
    **dict(zip("│┃┼●▶◀→←·×≤≥–━═─", "||+*><><.x<>--=-")),
    "∑": "S",
    "…": "...",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "µ": "u",
    "█": "#",
    "✓": "ok",
    "✗": "x",
}


REFUSING = ("strict", "backslashreplace", "surrogateescape")
"""How streams treat what their encoding does not have, where nobody said otherwise."""


def _likeness(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(LIKENESS.get(c, "?") for c in wrong), error.end


def print_anywhere() -> None:
    """Let stdout and stderr write what their encoding does not have as something alike instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        # In the C locale Python lets bytes through that it read, and those alone.
        if reconfigure is not None and getattr(stream, "errors", "") in REFUSING:
            reconfigure(errors="likeness")


def in_encoding_of(stream: IO[str], text: str) -> str:
    """The text as this stream can write it, whoever made the stream.

    >>> import io
    >>> in_encoding_of(io.TextIOWrapper(io.BytesIO(), "ascii"), "0 → 1 ≤ 2")
    '0 > 1 < 2'
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "likeness").decode(encoding)


codecs.register_error("likeness", _likeness)
