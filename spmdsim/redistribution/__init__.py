"""From layout to layout (pure): collective steps, the direct exchange, lower bounds, the plan's table.

Steps are here at once; the planner comes when it is first asked for: worlds, which only run steps, do not pay
for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.redistribution import group_steps as group_steps  # tells core what its own steps move

if TYPE_CHECKING:
    from spmdsim.redistribution.planner import Plan, plan

__all__ = ["Plan", "plan"]


def __getattr__(name: str) -> Any:
    if name not in ("Plan", "plan"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spmdsim.redistribution import planner

    return getattr(planner, name)
