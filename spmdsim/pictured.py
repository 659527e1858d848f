"""Give a class its picture in notebooks; the package ``figures`` draws it and is imported on first use.

Without ``figures`` the value is shown as text.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

MOST_CHARACTERS = 200
"""Largest length of a ``repr``, one line of a notebook or of an error."""


class Pictured:
    """Base of values that have a picture: ``show(value)``, or the value as the last line of a notebook cell."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _render(self, "html")

    def _repr_svg_(self) -> str | None:
        return _render(self, "svg")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any] | None:
        """Return the picture for notebooks, and the text for other front ends; None without ``figures``."""
        html = _render(self, "html")
        return None if html is None else {"text/html": html, "text/plain": _text_of(self)}


class ShortRepr(Pictured):
    """Base of values with a picture and a ``repr`` of one line, which has as many fields as fit."""

    __slots__ = ()

    def __repr__(self) -> str:
        return short_repr(self)


def short_repr(value: Any) -> str:
    """Return the ``repr`` of a dataclass in one line; fields that do not fit are left out.

    It has about :data:`MOST_CHARACTERS` (200) characters. The first field that does not fit and all later ones are
    replaced by "...". Fields with ``repr=False`` are left out.

    Args:
        value: an instance of a dataclass; another value has no fields, as in ``Name()``.
    """
    # 8 characters are left for the brackets and "...".
    parts, characters_left = [], MOST_CHARACTERS - len(type(value).__name__) - 8
    names = [f.name for f in fields(value) if f.repr] if is_dataclass(value) else []
    for name in names:
        field_text = f"{name}={_field_text(getattr(value, name))}"
        characters = len(field_text) + len(", ")
        if characters > characters_left:
            parts.append("...")
            break
        parts.append(field_text)
        characters_left -= characters
    return f"{type(value).__name__}({', '.join(parts)})"


#: Characters of a field in the text of a dataclass.
LONGEST_FIELD = 48


def _field_text(value: Any) -> str:
    """Return a field of a dataclass as text of about 48 characters at most (:data:`LONGEST_FIELD`).

    - Strings and numbers: their repr, cut at the end, such as ``'abc...'``.
    - Containers of up to four numbers and strings: their repr; other or longer ones: ``<7 entries>``.
    - Arrays and tensors: their type, ``<ndarray>``.
    - Other values: their repr or, if that is too long or the value abbreviates itself (`ShortRepr`), ``Name(...)``.

    Args:
        value: the value of the field, of any type.
    """
    if isinstance(value, (str, int, float, bool, type(None))):
        text = repr(value)
        if len(text) <= LONGEST_FIELD:
            return text
        closing_quote = text[0] if isinstance(value, str) else ""
        return f"{text[: LONGEST_FIELD - 4]}...{closing_quote}"
    if isinstance(value, (tuple, list, dict, set, frozenset)):
        text = repr(value) if len(value) <= 4 and all(isinstance(v, (int, float, str)) for v in value) else ""
        return text if 0 < len(text) <= LONGEST_FIELD else f"<{len(value)} entries>"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__}>"
    if is_dataclass(value) and isinstance(value, ShortRepr):
        return f"{type(value).__name__}(...)"
    text = repr(value)
    return text if len(text) <= LONGEST_FIELD else f"{type(value).__name__}(...)"


def _text_of(value: Any) -> str:
    """Return the text for notebooks without pictures.

    For a class with ``_repr_pretty_``, which prints a table, the text is ``str(value)``, else the repr.
    """
    return str(value) if hasattr(value, "_repr_pretty_") else repr(value)


def _render(value: Any, how: str) -> str | None:
    """Return the figure of a value as HTML or SVG text; None if the package has no ``figures``."""
    try:
        draw = import_module("spmdsim.figures.figures")
    except ImportError:
        return None
    text: str = getattr(draw.figure(value), how)
    return text
