"""What other systems decide, by name: the one door to ``imitations/``, which nothing else imports.

An entry is loaded when it is first asked for, so that nobody pays for systems that are not looked at.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.errors import InputError, SpmdError, unknown
from spmdsim.registry import Registry

#: What can be asked for, whose there is, and where it stands: a module of the wing, and a name in it.
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
    """What is imitated of a system: a function, a class, or a module of functions.

    Args:
        kind: what of it, a key of :data:`IMITATIONS`.
        system: its name.
        error: the class of the error for a name that there is not.

    Raises:
        SpmdError: one of ``error``, with the nearest right name.

    >>> imitation("cost model", "alpa")().name
    'alpa'
    >>> imitation("plan", "mindspor")
    Traceback (most recent call last):
    spmdsim.errors.InputError: no plan is made in the style of 'mindspor'; did you mean 'mindspore'? there are mindspore, dtensor
    """
    systems = IMITATIONS[kind]
    if system not in systems:
        raise unknown(f"no {kind} is made in the style of {system!r}", system, systems, error)
    module, name = systems[system]
    loaded = import_module(f"spmdsim.dialects.imitations.{module}")
    return getattr(loaded, name) if name else loaded
