"""Look up the decisions of other systems by name; the only module that imports ``imitations/``.

An entry is imported on first use, so that unused systems cost no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.errors import InputError, SpmdError, unknown
from spmdsim.registry import Registry

#: For each kind and system, the module of ``imitations/`` and the name in it; an empty name means the module.
_TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "plan": {
        "mindspore": ("mindspore.map_operators", "mindspore_plan"),
        "dtensor": ("dtensor_planners", "dtensor_plan"),
    },
    "cost model": {
        "alpa": ("cost_models", "AlpaModel"),
        "dtensor": ("cost_models", "DTensorModel"),
        "mindspore": ("cost_models", "MindSporeModel"),
        "oneflow": ("cost_models", "OneFlowModel"),
    },
    "search": {"double_recursion": ("mindspore.double_recursion", "double_recursion")},
    "sharding rules": {"mindspore": ("mindspore.sharding", "")},
}
IMITATIONS = {kind: Registry(f"imitated {kind}", table) for kind, table in _TABLES.items()}


def imitation(kind: str, system: str, error: type[SpmdError] = InputError) -> Any:
    """Import and return the imitation of a system: a function, class, or module of functions.

    Args:
        kind: the kind of decision, a key of :data:`IMITATIONS`.
        system: name of the system, as the user wrote it.
        error: class of the error for an unknown system.

    Raises:
        SpmdError: If the system is unknown; an instance of ``error`` with the nearest right name.
        KeyError: If the kind is unknown, which is a mistake of the calling code.

    >>> imitation("cost model", "alpa")().name
    'alpa'
    >>> imitation("plan", "mindspor")
    Traceback (most recent call last):
    spmdsim.errors.InputError: no plan is made in the style of 'mindspor'; did you mean 'mindspore'? ...
    """
    systems = IMITATIONS[kind]
    if system not in systems:
        raise unknown(f"no {kind} is made in the style of {system!r}", system, systems, error)
    module, name = systems[system]
    loaded = import_module(f"spmdsim.dialects.imitations.{module}")
    return getattr(loaded, name) if name else loaded
