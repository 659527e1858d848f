"""What notebooks ask a value for: its picture. It is drawn by the room ``draw``, which is loaded when somebody asks.

Nothing is imported for it before, and nothing is missed where ``draw`` is not there: the value is then shown as text.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

MOST_CHARACTERS = 200
"""Of a ``repr``: one line of a notebook or of an error."""


class Pictured:
    """Base of values that have a picture: ``show(value)``, or in notebooks the value by itself."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _drawn(self, "html")

    def _repr_svg_(self) -> str | None:
        return _drawn(self, "svg")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any] | None:
        """The picture for notebooks that draw, the text for all others."""
        html = _drawn(self, "html")
        return None if html is None else {"text/html": html, "text/plain": _plain(self)}


class ShortRepr(Pictured):
    """A value with a picture whose ``repr`` names its first fields, in one line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return short_repr(self)


def short_repr(value: Any) -> str:
    """The fields of a dataclass, as many as a line holds."""
    parts, left = [], MOST_CHARACTERS - len(type(value).__name__) - 8
    names = [f.name for f in fields(value) if f.repr] if is_dataclass(value) else []
    for name in names:
        text = _short(getattr(value, name))
        if len(name) + len(text) + 3 > left:
            parts.append("...")
            break
        parts.append(f"{name}={text}")
        left -= len(name) + len(text) + 3
    return f"{type(value).__name__}({', '.join(parts)})"


def _short(value: Any, most: int = 48) -> str:
    """A field in few characters: of containers and long values how many there are."""
    if isinstance(value, (str, int, float, bool, type(None))):
        text = repr(value)
        return (
            text if len(text) <= most else f"{text[: most - 4]}...{text[0] if isinstance(value, str) else ''}"
        )
    if isinstance(value, (tuple, list, dict, set, frozenset)):
        text = repr(value) if len(value) <= 4 and all(isinstance(v, (int, float, str)) for v in value) else ""
        return text if 0 < len(text) <= most else f"<{len(value)} entries>"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__}>"
    if is_dataclass(value) and isinstance(value, ShortRepr):
        return f"{type(value).__name__}(...)"
    text = repr(value)
    return text if len(text) <= most else f"{type(value).__name__}(...)"


def _plain(value: Any) -> str:
    """What a notebook without pictures shows: the table that ``_repr_pretty_`` writes, if there is one, else the repr."""
    return str(value) if hasattr(value, "_repr_pretty_") else repr(value)


def _drawn(value: Any, how: str) -> str | None:
    try:
        draw = import_module("spmdsim.figures.figures")
    except ImportError:
        return None
    text: str = getattr(draw.figure(value), how)
    return text
