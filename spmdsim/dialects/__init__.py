"""The spellings of other systems: MindSpore, OneFlow, Paddle, PyTorch DTensor, JAX.

A dialect is notation: it translates what a user of that system writes to this package's own meshes, layouts
and operators, and refuses what that system refuses. It computes nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from spmdsim.dialects.missing import not_covered

DIALECTS = ("mindspore", "oneflow", "paddle", "torch", "jax")


def lazy(package: str, exports: dict[str, str], name: str, nearest: Mapping[str, str] | None = None) -> Any:
    """The object ``name`` of a package whose ``exports`` say which submodule has it.

    A name that maps to itself is the submodule. Nothing is imported before it is asked for.

    Raises:
        AttributeError: the package has no such name; it says what is nearest (``nearest``, or the spelling).
    """
    if name not in exports:
        raise not_covered(package, name, exports, nearest)
    module = import_module(f"{package}.{exports[name]}")
    return module if exports[name] == name and not hasattr(module, name) else getattr(module, name)


def __getattr__(name: str) -> ModuleType:
    if name in DIALECTS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *DIALECTS])
