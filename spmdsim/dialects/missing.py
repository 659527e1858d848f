"""What a dialect does not cover, said in one line with the nearest thing that is there."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pkgutil import iter_modules
from typing import Any

from spmdsim.errors import SpmdError

PREFIX = "spmdsim.dialects."


class NotCovered(SpmdError, AttributeError):
    """A name of the original that has no counterpart here."""


class NotCoveredModule(SpmdError, ModuleNotFoundError):
    """A module of the original that is not here, met where it is imported."""


class NotCoveredImport(SpmdError, ImportError):
    """The same, met in ``from ... import name``: Python itself would drop what an AttributeError says."""


def not_covered(
    module: str, name: str, there: Collection[str], nearest: Mapping[str, str] | None = None
) -> Exception:
    """The error for a name that a dialect's module does not have; to be raised in its ``__getattr__``.

    Args:
        module: the module's ``__name__``.
        name: what was asked for.
        there: the names there are.
        nearest: what to use instead, for names that resemble none.

    >>> print(not_covered("spmdsim.dialects.mindspore.nn", "Dence", ["Dense", "ReLU"]))
    mindspore.nn.Dence is not covered by this dialect; nearest: Dense
    """
    where = module.removeprefix(PREFIX)
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    text = _told(where, name, there, nearest)
    return NotCoveredImport(text) if _asked_by_import() else NotCovered(text)


def _told(where: str, name: str, there: Collection[str], nearest: Mapping[str, str] | None) -> str:
    lower = {known.lower(): known for known in there}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    hint = (nearest or {}).get(name) or (lower[close[0]] if close else "")
    hint = f"nearest: {hint}" if hint else f"nothing is near it, dir({where}) lists what there is"
    return f"{where}.{name} is not covered by this dialect; {hint}"


def refusal(
    module: str, there: Collection[str], nearest: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that has these names and no others."""

    def __getattr__(name: str) -> Any:
        raise not_covered(module, name, there, nearest)

    return __getattr__


def _asked_by_import() -> bool:
    """Whether the module's ``__getattr__`` runs for ``from module import name``."""
    frame = sys._getframe(2)  # not_covered, __getattr__
    while frame is not None and frame.f_globals.get("__name__", "").startswith(PREFIX[:-1]):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


class _Missing:
    """The last of the finders: a dialect's module that nobody found is refused as a name is."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> None:
        """Refuse it, if it is about to be imported; who only asks whether it is there is told that it is not."""
        parent, _, name = fullname.rpartition(".")
        importing = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"
        if not importing or name.startswith("_") or not parent.startswith(PREFIX):
            return
        around = sys.modules[parent]
        there = [module.name for module in iter_modules(path or ()) if not module.name.startswith("_")]
        told = _told(
            parent.removeprefix(PREFIX), name, [*there, *dir(around)], getattr(around, "NEAREST", None)
        )
        error = NotCoveredModule(told)
        error.name = fullname
        raise error


sys.meta_path.append(_Missing)
