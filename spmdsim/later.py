"""Packages whose names are imported when they are first asked for: who needs one of them does not pay for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def later(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package.

    Args:
        package: its name.
        homes: its modules, each with names that stand between blanks.
        former: names of the release before, which still work, with those that they have now.

    >>> later("spmdsim.cost", {"machine_file": "load_machine save_machine"})("load_machine")("laptop").name
    'laptop'
    """
    modules = {name: module for module in homes for name in homes[module].split()}

    def look_up(name: str) -> Any:
        current = (former or {}).get(name, name)
        if current in modules:
            return getattr(import_module(f"{package}.{modules[current]}"), current)
        if current != name:
            return getattr(import_module(package), current)
        from spmdsim.wrong_calls import missing_name

        raise missing_name(package, name, modules)

    return look_up


def names_in(homes: Mapping[str, str]) -> list[str]:
    """The names of such a table."""
    return " ".join(homes.values()).split()
