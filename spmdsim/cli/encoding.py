"""Output on terminals and pipes that know only ASCII or an old code page: arrows and lines become their likeness."""

from __future__ import annotations

import codecs
import sys

LIKENESS = {
    **dict(zip("│┃┼●▶◀→←·×≤≥–━═─", "||+*><><.x<>--=-")),
    "∑": "sum",
    "…": "...",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "µ": "u",
    "█": "#",
    "✓": "ok",
    "✗": "x",
}


def _likeness(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(LIKENESS.get(c, "?") for c in wrong), error.end


def print_anywhere() -> None:
    """Let stdout and stderr write what their encoding does not have as something alike instead of failing."""
    codecs.register_error("likeness", _likeness)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and getattr(stream, "errors", "") in ("strict", "backslashreplace"):
            reconfigure(errors="likeness")
