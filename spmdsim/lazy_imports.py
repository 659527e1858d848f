"""Names of a package that are imported on first use, so that importing the package stays fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names are imported on first use.

    Python calls it for a name that the package does not have yet. It imports the module of the name, and stores the
    value as an attribute of the package. For an unknown name it raises AttributeError with the nearest right name.

    Args:
        package: the package, ``__name__`` in its file.
        homes: the names of each module, ``{module: "name1 name2"}``; modules are relative to the package. A name
            ``public=own`` is called ``own`` in the module. The names under ``""`` are modules of the package itself, and
            the names under ``"."`` are modules of the package around it.
        former: ``{former name: current name}`` of names that were replaced since the last release. The former names
            still work; only the value of the current name is stored. A current name that no module of ``homes`` has is
            looked up in the package's own file. None for no former names.

    >>> lazy_names("spmdsim.cost", {"machine_file": "load_machine save_machine"})("load_machine")("laptop").name
    'laptop'
    """
    places = {}
    for module, names in homes.items():
        for public, _, original in (name.partition("=") for name in names.split()):
            places[public] = module, original or public

    def look_up(name: str) -> Any:
        """Return an attribute of the package; raise AttributeError with the nearest name if it is unknown."""
        current = (former or {}).get(name, name)
        if current not in places:
            if current != name:  # the package's own file defines the current name
                return getattr(import_module(package), current)
            from spmdsim.wrong_calls import missing_name

            raise missing_name(package, name, places)
        module, original = places[current]
        if module in ("", "."):
            return import_module(f".{module}{original}", package)
        value = getattr(import_module(f".{module}", package), original)
        vars(sys.modules[package])[current] = value
        return value

    return look_up


def list_public_names(homes: Mapping[str, str]) -> list[str]:
    """Return the public names of a table `homes` of :func:`lazy_names`."""
    return [name.partition("=")[0] for name in " ".join(homes.values()).split()]
