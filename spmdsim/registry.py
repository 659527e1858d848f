"""Tables of things that are found by name: a name is given once."""

from __future__ import annotations

import inspect
import os
import sys
from collections import UserDict
from collections.abc import Mapping
from typing import Any, TypeVar

from spmdsim.errors import InputError

Value = TypeVar("Value")

#: Modules that stand between a declaration and here.
_BETWEEN = (__name__, "typing", "collections", "_collections_abc", "collections.abc")


class Registry(UserDict[str, Value]):
    """A dict that refuses a name it has, and says where both declarations stand.

    Args:
        kind: what one entry is, for errors: ``"topology"``.
        *tables: first entries; a name in two of them is refused as well.

    Raises:
        InputError: a name that exists, with the places of both declarations.

    >>> networks = Registry("network", {"ring": len})
    >>> networks["star"] = max
    >>> try:
    ...     networks["ring"] = min
    ... except InputError as error:
    ...     print(str(error).partition(" (")[0])
    network 'ring' is declared already
    """

    def __init__(self, kind: str, *tables: Mapping[str, Value]) -> None:
        super().__init__()
        self.kind = kind
        self.places: dict[str, str] = {}
        for table in tables:
            self.update(table)

    def add(self, name: str, value: Value, origin: object = None) -> None:
        """Declare ``value`` under a name; ``origin`` is the function that it was made from, if not itself."""
        place = place_of(value if origin is None else origin)
        if name in self:
            raise InputError(
                f"{self.kind} {name!r} is declared already (at {self.places[name]}, now again at {place}):"
                " give it another name"
            )
        self.places[name] = place
        super().__setitem__(name, value)

    __setitem__ = add  # what ``update`` and ``setdefault`` call

    def __ior__(self, entries: Any) -> Any:  # type: ignore[misc]
        self.update(entries)
        return self


def place_of(value: object) -> str:
    """``file:line`` where a function stands, else of the statement that declares it."""
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    if code is not None:
        return f"{_short(code.co_filename)}:{code.co_firstlineno}"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(file: str) -> str:
    """A file as seen from the working folder, where that is shorter; it may lie on another drive."""
    try:
        return min(file, os.path.relpath(file), key=len)
    except (ValueError, OSError):
        return file
