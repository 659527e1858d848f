"""Registries: tables of named values that refuse duplicate names."""

from __future__ import annotations

import inspect
import os
import sys
from collections import UserDict
from collections.abc import Mapping
from typing import Any, TypeVar

from spmdsim.errors import InputError

Value = TypeVar("Value")

#: Modules whose frames lie between a declaration and this module.
_BETWEEN = (__name__, "typing", "collections", "_collections_abc", "collections.abc")


class Registry(UserDict[str, Value]):
    """A dict that refuses a name that it already has, and reports the places of both declarations.

    Args:
        kind: noun for one entry in errors, such as ``"topology"``.
        *tables: first entries; a name in two tables is refused as well.

    Raises:
        InputError: If a name exists; the message has the places of both declarations.

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
        """Add an entry; ``registry[name] = value`` calls this method, too.

        Args:
            name: the name.
            value: the value.
            origin: the function from which the value was made; errors state its place. None: the place of the value
                itself.

        Raises:
            InputError: If the name exists; the message has the places of both declarations.
        """
        file_line = find_declaration_place(value if origin is None else origin)
        if name in self:
            raise InputError(
                f"{self.kind} {name!r} is declared already (at {self.places[name]}, now again at {file_line}):"
                " give it another name"
            )
        self.places[name] = file_line
        super().__setitem__(name, value)

    __setitem__ = add  # ``update`` and ``setdefault`` call it

    def __ior__(self, entries: Any) -> Any:  # type: ignore[misc]
        self.update(entries)
        return self


def find_declaration_place(value: object) -> str:
    """Return the place where a value is declared as ``file:line``, such as "ops/basic.py:12".

    - A function with Python code: its first line.
    - Another value: the statement that runs now, outside of this module and of Python's collections. So call this while
      the value is declared.

    The file is relative to the working folder if that is shorter.

    Args:
        value: the function, or any value while its declaration runs.
    """
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    if code is not None:
        return f"{_relative_path(code.co_filename)}:{code.co_firstlineno}"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return f"{_relative_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _relative_path(file: str) -> str:
    """Return a file's path relative to the working folder if that is shorter, else the path itself."""
    try:
        return min(file, os.path.relpath(file), key=len)
    except (ValueError, OSError):  # the file is on another drive, or the working folder was removed
        return file
