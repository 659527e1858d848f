"""Modules of other systems as tables: which words each has, the file here that has them, and what is near other words.

Nothing is loaded before it is asked for. A module that has no file of its own is there for imports all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name, spec_from_loader
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from spmdsim.dialects.missing import PREFIX, NotCoveredModule, each, hinted, not_covered, tell
from spmdsim.imitated import imitation


class Words:
    """The words of a module.

    Args:
        homes: several words -> the file of the dialect that has them; ``theirs=ours`` is called ``ours`` there.
        nearest: several words -> what to use instead; those that resemble none that is there.
        tables: dictionaries with further words, such as ``functions.FOURIER``, or functions that say what makes each.
        submodules: modules inside that have files.
        imitated: what of :mod:`spmdsim.imitated` has all other words.
        hidden: whether ``dir()`` does not list the module.
    """

    def __init__(
        self, homes: Mapping[str, str] | None = None, nearest: Mapping[str, str] | None = None, tables: str = "",
        submodules: str = "", imitated: tuple[str, str] | None = None, hidden: bool = False,
    ) -> None:  # fmt: skip
        named = [(word.partition("="), home) for word, home in each(homes or {}).items()]
        self.homes = {theirs: (home, ours or theirs) for (theirs, _, ours), home in named}
        self.nearest = each(nearest or {})
        self.tables, self.submodules, self.imitated = tables.split(), submodules.split(), imitated
        self.hidden = hidden or imitated is not None

    def makers(self, dialect: str) -> dict[str, Callable[[], Any]]:
        """What gives each word of the tables."""
        makers: dict[str, Callable[[], Any]] = {}
        for path in self.tables:
            home, _, name = path.rpartition(".")
            table = getattr(import_module(f".{home}", dialect), name)
            makers.update(table() if callable(table) else {word: partial(table.get, word) for word in table})
        return makers


#: Every module of a table, by its full name.
_SPOKEN: dict[str, Words] = {}


def speak(dialect: str, modules: Mapping[str, Words]) -> Callable[[str], Any]:
    """Have a dialect's modules, by their paths inside of it, find their words; ``""`` is the dialect, whose ``__getattr__`` comes."""
    _SPOKEN.update({f"{dialect}.{path}".rstrip("."): words for path, words in modules.items()})
    return find_words(dialect)


def find_words(module: str) -> Callable[[str], Any]:
    """Have a module find the words of its table; one that has some itself calls this at its end."""
    words, here = _SPOKEN[module], vars(sys.modules[module])
    dialect = ".".join(module.split(".")[:3])
    declared = [path for path in _SPOKEN if path.rpartition(".")[0] == module]
    inside = {*words.submodules, *(path.rpartition(".")[2] for path in declared)}
    shown = {path.rpartition(".")[2] for path in declared if not _SPOKEN[path].hidden}
    here.setdefault("__path__", [])  # an import of what would be inside comes to the finders
    here["NEAREST"] = words.nearest
    tell(module, [ours for home, ours in words.homes.values() if resolve_name(f".{home}", dialect) == module])

    def names() -> list[str]:
        return sorted({*words.homes, *words.submodules, *shown, *words.makers(dialect)})

    def find(name: str) -> Any:
        if name in words.homes:
            path, ours = words.homes[name]
            home = import_module(f".{path}", dialect)
            tell(home.__name__, [ours])
            itself = path.rpartition(".")[2] == ours and not hasattr(home, ours)
            return home if itself else getattr(home, ours)
        if name in inside:
            return import_module(f"{module}.{name}")
        if name == "__version__":
            return import_module("spmdsim").__version__
        if name == "__all__":  # all functions of a system would hide Python's own
            return [*words.homes, *words.submodules] if module == dialect else names()
        makers = {} if name.startswith("_") else words.makers(dialect)
        if name in makers:
            return makers[name]()
        imitated = imitation(*words.imitated) if words.imitated else None
        if imitated is not None and hasattr(imitated, name):
            return getattr(imitated, name)
        others = [other for other in dir(imitated) if other[0] != "_"]
        raise not_covered(module, name, [] if name.startswith("_") else names() + others, words.nearest)

    def __getattr__(name: str) -> Any:
        value = find(name)
        here[name] = value
        return value

    here.update(__getattr__=__getattr__, __dir__=names)
    return __getattr__


class _WordFinder(Loader):
    """The last of the finders: gives modules of a table; a dialect's module that nobody has is refused as a name is."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Refuse it, if it is about to be imported; who only asks whether it is there is told that it is not."""
        if fullname in _SPOKEN:
            return spec_from_loader(fullname, _WordFinder(), is_package=True)
        parent, _, name = fullname.rpartition(".")
        importing = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"
        if not importing or name.startswith("_") or not parent.startswith(PREFIX):
            return None
        around = sys.modules[parent]
        there = [module.name for module in iter_modules(path or ()) if not module.name.startswith("_")]
        there += dir(around) if parent in _SPOKEN else getattr(around, "__all__", dir(around))
        nearest = getattr(around, "NEAREST", None)
        error = NotCoveredModule(hinted(parent.removeprefix(PREFIX), name, there, nearest))
        error.name = fullname
        raise error

    def exec_module(self, module: ModuleType) -> None:
        """Have it find its words."""
        find_words(module.__name__)


sys.meta_path.append(_WordFinder)
