"""Modules of other systems as tables of names, and errors for names that they lack.

A table says which file of the dialect defines a name, and what to use instead of a name that is not supported. A file
is loaded when a program uses its first name. Modules of a table can be imported without a file of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from spmdsim.errors import InputError, SpmdError
from spmdsim.errors import nearest as resembling
from spmdsim.wrong_calls import explained

PREFIX = "spmdsim.dialects."


class NotCovered(SpmdError, AttributeError):
    """Error for a name of the original system that has no counterpart here."""


def not_covered(
    module: str, name: str, available: Collection[str], nearest: Mapping[str, str] | None = None
) -> AttributeError:
    """Return the error for a name that a dialect's module lacks; its text suggests the nearest name.

    Args:
        module: full name of the module.
        name: the missing name. For a name that starts with an underscore, the error is a plain AttributeError.
        available: names that the module has.
        nearest: unsupported name -> suggestion, which comes before a similar name.

    >>> print(not_covered("spmdsim.dialects.mindspore.nn", "Dence", ["Dense", "ReLU"]))
    mindspore.nn.Dence is not covered by this dialect; nearest: Dense
    """
    where = module.removeprefix(PREFIX)
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return NotCovered(describe_missing(where, name, available, nearest))


def describe_missing(
    where: str, name: str, available: Collection[str], nearest: Mapping[str, str] | None = None
) -> str:
    """Return the text of the error for a name that ``where`` lacks; see `not_covered` for the arguments."""
    hint = (nearest or {}).get(name) or resembling(name, available)
    hint = f"nearest: {hint}" if hint else f"nothing is near it, dir({where}) lists what there is"
    return f"{where}.{name} is not covered by this dialect; {hint}"


def expand_words(words: Mapping[str, str]) -> dict[str, str]:
    """Return a table with one word per entry, from a table with several words per entry.

    >>> expand_words({"Conv1d Conv2d": "Dense", "Lamb": "Adam"})
    {'Conv1d': 'Dense', 'Conv2d': 'Dense', 'Lamb': 'Adam'}
    """
    return {word: value for words_of_entry, value in words.items() for word in words_of_entry.split()}


def refuse(refusals: Mapping[str, bool], kind: type[SpmdError] = InputError) -> None:
    """Raise an error of class ``kind`` with the first text whose condition is true; else do nothing.

    >>> refuse({"a rate is a number": False, "parts are at least 1, not 0": True})
    Traceback (most recent call last):
    ...
    spmdsim.errors.InputError: parts are at least 1, not 0
    """
    for text, holds in refusals.items():
        if holds:
            raise kind(text)


class DialectObject:
    """Base of a dialect's classes, with errors that suggest the nearest right name.

    The errors are those of missing attributes and wrong arguments.

    ``ORIGINAL`` is the name of the class in the other system.
    """

    __slots__ = ()

    ORIGINAL: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith(PREFIX) and "__init__" in vars(cls):
            explained(cls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # A user's subclass has attributes of its own: a missing name that resembles no public name may be one of them.
        public, own_attribute = public_names(type(self)), resembling(name, getattr(self, "__dict__", ()))
        is_users_name = not type(self).__module__.startswith(PREFIX) and not resembling(name, public)
        if own_attribute or is_users_name:
            near = f"; nearest: {own_attribute}" if own_attribute else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near}")
        raise NotCovered(describe_missing(self.ORIGINAL, name, public))


def public_names(kind: type) -> list[str]:
    """Return the public names of a class."""
    return [word for word in dir(kind) if not word.startswith("_") and not word.isupper()]


class ModuleWords:
    """Table of the names of a module.

    Args:
        homes: several names -> the file of the dialect that defines them; ``theirs=ours`` is called ``ours`` there.
        nearest: several names that are not supported -> what to use instead.
        tables: paths of dictionaries with further names, such as ``functions.FOURIER``, or of functions that return a
            maker per name; see `makers`.
        submodules: names of the modules inside that have files.
        hidden: True to leave the module out of ``dir()``.
    """

    def __init__(
        self, homes: Mapping[str, str] | None = None, nearest: Mapping[str, str] | None = None, tables: str = "",
        submodules: str = "", hidden: bool = False,
    ) -> None:  # fmt: skip
        named = [(word.partition("="), home) for word, home in expand_words(homes or {}).items()]
        self.homes = {theirs: (home, ours or theirs) for (theirs, _, ours), home in named}
        self.nearest = expand_words(nearest or {})
        self.tables, self.submodules, self.hidden = tables.split(), submodules.split(), hidden

    def makers(self, dialect: str) -> dict[str, Callable[[], Any]]:
        """Return functions without arguments that return the values of the tables, by name.

        The files of the tables are imported. A table is a dictionary of values by name, or a function that returns
        functions without arguments by name. If two tables have a name, the later table counts. Without tables the
        result is empty.

        Args:
            dialect: full name of the package to which the paths of the tables are relative.
        """
        makers: dict[str, Callable[[], Any]] = {}
        for path in self.tables:
            home, _, name = path.rpartition(".")
            table = getattr(import_module(f".{home}", dialect), name)
            if callable(table):
                makers.update(table())
            else:
                makers.update({word: partial(table.get, word) for word in table})
        return makers


#: Every module of a table, by its full name.
_MODULES: dict[str, ModuleWords] = {}


def declare_modules(dialect: str, modules: Mapping[str, ModuleWords]) -> Callable[[str], Any]:
    """Declare the modules of a dialect, and create those without a file for ``import``.

    For each module without a file or folder, an empty module is stored in ``sys.modules``, so that ``import`` finds it.
    Its names are looked up on their first use. A module that has a file must call `add_words` itself.

    Args:
        dialect: full name of the dialect's package, which is being imported.
        modules: the names of each module, by its path below the package, such as ``"nn.functional"``; path ``""`` is
            the package itself, which must be present.

    Returns:
        The function ``__getattr__`` for the package, which finds the names when a program uses them.
    """
    _MODULES.update({f"{dialect}.{path}".rstrip("."): words for path, words in modules.items()})
    folder = Path(str(sys.modules[dialect].__file__)).parent
    for path in filter(None, modules):
        home = folder.joinpath(*path.split("."))
        if not home.is_dir() and not home.with_suffix(".py").exists():
            name = f"{dialect}.{path}"
            sys.modules[name] = ModuleType(name)
            add_words(name)
    return add_words(dialect)


def _explain_arguments(value: Any, name: str) -> Any:
    """Return a dialect's function or class with errors that explain wrong arguments.

    All other values are returned unchanged: values of other packages, values that are neither function nor class, and
    functions and classes that have such errors already (their function or ``__init__`` has ``__wrapped__``).

    Args:
        value: any value of a module. A class is changed in place; of a function, a wrapper is returned.
        name: its name in errors.
    """
    if not getattr(value, "__module__", "").startswith(PREFIX):
        return value
    function = vars(value).get("__init__") if isinstance(value, type) else value
    is_plain = isinstance(function, FunctionType) and not hasattr(function, "__wrapped__")
    return explained(value, name) if is_plain else value


def add_words(module: str) -> Callable[[str], Any]:
    """Set ``__getattr__`` and ``__dir__`` of a declared module; return ``__getattr__``.

    A name is looked up on its first use, see `_find_value`, and its value is then stored in the module. ``dir()`` lists
    the names of files, of submodules that are not hidden, and of tables, in alphabetical order.

    A module with a file of its own calls this function at the file's end.

    Args:
        module: full name of an imported module that `declare_modules` has declared; otherwise the first use raises
            KeyError.
    """
    namespace = vars(sys.modules[module])

    def __getattr__(name: str) -> Any:
        value = _explain_arguments(_find_value(module, name), name)
        namespace[name] = value
        return value

    namespace.update(__getattr__=__getattr__, __dir__=partial(_list_names, module))
    return __getattr__


def _list_names(module: str) -> list[str]:
    """Return the names of a declared module in alphabetical order; imports the files of its tables.

    They are the names of files, of submodules that are not hidden, and of tables.
    """
    words = _MODULES[module]
    declared = {path.rpartition(".")[2]: path for path in _MODULES if path.rpartition(".")[0] == module}
    shown = [name for name, path in declared.items() if not _MODULES[path].hidden]
    return sorted({*words.homes, *words.submodules, *shown, *words.makers(_dialect_of(module))})


def _dialect_of(module: str) -> str:
    """Return the package of a module's dialect, such as ``spmdsim.dialects.paddle``."""
    return ".".join(module.split(".")[:3])


def _find_value(module: str, name: str) -> Any:
    """Return the value of a name of a declared module; import its file if necessary.

    A declared module is one whose names the dialect's tables list. The name is searched in this order, and the first
    match counts:

    1. the file that the tables give for the name: the object of this name in the file, or the file's module if the file
       is called like the name and has no object of this name;
    2. the modules inside this module;
    3. ``__version__``, which is this package's, and ``__all__``. In the ``__all__`` of a dialect's package, the names
       of the tables of functions are left out;
    4. the module's tables of functions, unless the name starts with an underscore.

    Raises:
        AttributeError: If the module lacks the name; see `not_covered`.
    """
    words, dialect = _MODULES[module], _dialect_of(module)
    if name in words.homes:
        path, ours = words.homes[name]
        home = import_module(f".{path}", dialect)
        is_file = path.rpartition(".")[2] == ours and not hasattr(home, ours)
        return home if is_file else getattr(home, ours)
    if name in words.submodules or f"{module}.{name}" in _MODULES:
        return import_module(f"{module}.{name}")
    if name == "__version__":
        return import_module("spmdsim").__version__
    if (
        name == "__all__"
    ):  # `from spmdsim.dialects.X import *` with the tables would hide Python's own functions.
        return [*words.homes, *words.submodules] if module == dialect else _list_names(module)
    if name.startswith("_"):
        raise not_covered(module, name, [])
    makers = words.makers(dialect)
    if name in makers:
        return makers[name]()
    raise not_covered(module, name, _list_names(module), words.nearest)
