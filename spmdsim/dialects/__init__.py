"""The spellings of other systems: MindSpore, OneFlow, Paddle, PyTorch DTensor, JAX.

A dialect is notation: it translates what a user of that system writes to this package's own meshes, layouts
and operators, and refuses what that system refuses. It computes nothing of its own.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

DIALECTS = ("mindspore", "oneflow", "paddle", "torch", "jax")


def lazy(package: str, exports: dict[str, str], name: str) -> Any:
    """The object ``name`` of a package whose ``exports`` say which submodule has it.

    A name that maps to itself is the submodule. Nothing is imported before it is asked for.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in exports:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = import_module(f"{package}.{exports[name]}")
    return module if exports[name] == name and not hasattr(module, name) else getattr(module, name)


def __getattr__(name: str) -> ModuleType:
    if name in DIALECTS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *DIALECTS])
