"""The spellings of other systems: MindSpore, OneFlow, Paddle, PyTorch DTensor, JAX.

A dialect is notation: it translates what a user of that system writes to this package's own meshes, layouts
and operators, and refuses what that system refuses. It computes nothing of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from spmdsim.dialects.missing import not_covered, tell

DIALECTS = ("mindspore", "oneflow", "paddle", "torch", "jax")


def lazy(
    package: str,
    exports: Mapping[str, str],
    name: str,
    nearest: Mapping[str, str] | None = None,
    submodules: Collection[str] = (),
    table: str = "",
) -> Any:
    """The object ``name`` of a package. Nothing is imported before it is asked for.

    Args:
        package: the package's name.
        exports: public name -> the submodule that has it; one that maps to itself is the submodule.
        name: what is asked for.
        nearest: what to use instead of names that resemble none.
        submodules: those that programs reach as attributes.
        table: a submodule whose ``FUNCTIONS`` are names of the package, too.

    Raises:
        AttributeError: the package has no such name; it says what is nearest.
    """
    if name == "__version__":
        return import_module("spmdsim").__version__
    if name in submodules:
        return import_module(f"{package}.{name}")
    if name in exports:
        module = import_module(f"{package}.{exports[name]}")
        tell(module.__name__, [name])
        return module if exports[name] == name and not hasattr(module, name) else getattr(module, name)
    functions = import_module(f"{package}.{table}").FUNCTIONS if table and not name.startswith("_") else {}
    if name in functions:
        return functions[name]
    raise not_covered(package, name, [*exports, *functions, *submodules], nearest)


def listed(
    package: str, exports: Collection[str], submodules: Collection[str] = (), table: str = ""
) -> list[str]:
    """What ``dir()`` of a package lists: the names that :func:`lazy` gives with the same arguments."""
    functions = import_module(f"{package}.{table}").FUNCTIONS if table else {}
    return sorted({*exports, *functions, *submodules})


def exported(**modules: str) -> dict[str, str]:
    """The submodule of every public name, from the names of every submodule."""
    return {name: module for module, names in modules.items() for name in names.split()}


def __getattr__(name: str) -> ModuleType:
    if name in DIALECTS:
        return import_module(f"{__name__}.{name}")
    raise not_covered(__name__, name, DIALECTS)


def __dir__() -> list[str]:
    return sorted([*globals(), *DIALECTS])
