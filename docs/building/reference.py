"""A page per public module: every public name, from its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from types import ModuleType

import spmdsim
from building.rst import directive, escaped, page, table_of_names, title
from building.topics import list_topics

#: Rooms whose public names are for those who build on the inside of this package or of another's words.
INSIDE = ("arrays", "cli", "dialects", "launch", "tensor")

#: Furo's word for contents that are wanted inside of a page.
CONTENTS = "this-will-duplicate-information-and-it-is-still-useful-here"

#: Public modules inside of rooms.
MODULES = (
    "spmdsim.arrays.checkpoint",
    "spmdsim.arrays.files",
    "spmdsim.arrays.random",
    "spmdsim.errors",
    "spmdsim.fft",
    "spmdsim.linalg",
    "spmdsim.local",
    "spmdsim.ops",
    "spmdsim.worlds.trace",
    "spmdsim.auto_parallel.search",
    "spmdsim.collectives.algorithms",
)


def modules() -> list[str]:
    """The public modules: the package, its rooms that say what is public, and some single ones."""
    root = Path(spmdsim.__file__).parent
    rooms = [
        path.parent.name for path in sorted(root.glob("*/__init__.py")) if path.parent.name not in INSIDE
    ]
    public = [f"spmdsim.{room}" for room in rooms if hasattr(import_module(f"spmdsim.{room}"), "__all__")]
    return ["spmdsim", *public, *(name for name in MODULES if names(name))]


def names(module: str) -> list[str]:
    """The public names of a module."""
    there = import_module(module)
    told = getattr(there, "__all__", None)
    return sorted(_own(there) if told is None else told)


def _own(module: ModuleType) -> list[str]:
    """Classes and functions that are declared in a module."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def pages() -> dict[str, str]:
    """Path below the folder of the reference -> text."""
    homes: dict[int, str] = {}  # what is public in two modules is described in the first
    # The array API's names of operators are second names.
    order = sorted(modules(), key=lambda module: module == "spmdsim.array_api")
    texts = {module: _page(module, homes) for module in order}
    texts["index"] = page(
        title("Reference"),
        "Every public name with its shapes, units, errors and an example, from its docstring.",
        table_of_names(
            (f":doc:`{module} <{module}>`", _first(import_module(module))) for module in modules()
        ),
        directive("toctree", "", "\n".join(modules()), hidden=""),
    )
    return texts


def _page(module: str, homes: dict[int, str]) -> str:
    there = import_module(module)
    values = {name: getattr(there, name) for name in names(module)}
    topics = list_topics(module, values)
    sections = [
        part
        for topic, members in topics.items()
        for part in (
            title(topic, 1) if topic else "",
            *_section(module, {name: values[name] for name in members}, homes),
        )
    ]
    return page(
        title(module),
        directive("automodule", module, no_members=""),
        directive("contents", "", local="", depth="1", class_=CONTENTS) if len(topics) > 1 else "",
        *sections,
    )


def _section(module: str, values: dict[str, object], homes: dict[int, str]) -> Iterator[str]:
    """Yield the table of some names of a module, and their entries.

    ``homes`` is extended by identity of the value -> the full name under which it is described.
    """
    rows, entries = [], []
    for name, value in values.items():
        full = f"{module}.{name}"
        at = homes.setdefault(id(value), full) if _has_entry(value) else full
        text = _first(value) if _has_entry(value) else f"``{_short(value, 60)}``"
        rows.append((f":py:obj:`{name} <{at}>`", text))
        if at == full:
            entries.append(_entry(full, value))
    yield table_of_names(rows)
    yield from entries


def _has_entry(value: object) -> bool:
    """Whether a value has a docstring of this package: it is no number, text, table, alias or type of numpy's."""
    described = (inspect.isclass(value) or callable(value)) and not hasattr(value, "__origin__")
    return described and str(getattr(value, "__module__", "")).startswith("spmdsim")


@cache
def _public() -> set[int]:
    """The identities of all public values."""
    return {id(getattr(import_module(module), name)) for module in modules() for name in names(module)}


def is_linked(base: type) -> bool:
    """Return True for a base class that readers know: it has an entry, or is Python's."""
    return id(base) in _public() or (base.__module__ in ("builtins", "typing") and base is not object)


def _entry(full: str, value: object) -> str:
    if _has_entry(value) and inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        options = {"members": ""}
        if any(is_linked(base) for base in value.__bases__):
            options["show_inheritance"] = ""
        if inherited := list(_foreign(value)):
            options["inherited_members"] = ", ".join(inherited)
        return directive(kind, full, **options)
    if _has_entry(value):
        return directive("autofunction", full)
    return directive("py:data", full, directive("code-block", "text", _short(value, 400)), module="")


def shorten_signature(text: str) -> str:
    """Return the text of a signature with names of types and functions, and other objects as ``...``.

    >>> print(shorten_signature("(x: TypeAliasForwardRef('Array') = <object object>, kind=<class 'numpy.int64'>)"))
    (x: Array = ..., kind=int64)
    """
    text = re.sub(r"TypeAliasForwardRef\('(.*?)'\)", r"\1", text)
    text = re.sub(r"<(?:class|function|operator|ufunc) '?(?:\w+\.)*(\w+)'?>", r"\1", text)
    return re.sub(r"<[\w.]+ (?:object|\S*<lambda>)>", "...", text)


def _foreign(kind: type) -> Iterator[str]:
    """The classes from elsewhere whose members are not described."""
    if any(base.__module__.startswith("spmdsim") for base in kind.__mro__[1:]):
        yield from (base.__name__ for base in kind.__mro__ if not base.__module__.startswith("spmdsim"))


def _short(value: object, width: int) -> str:
    """The text of a constant or a type, without names of modules and in one line of at most ``width`` characters."""
    return shorten(re.sub(r"\bspmdsim\.(?:\w+\.)*", "", repr(value)), width)


def _first(value: object) -> str:
    """The first sentence of a docstring."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(text.split()) or escaped(repr(value))
