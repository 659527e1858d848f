"""From layout to layout (pure): collective steps, the direct exchange, lower bounds, the plan's table.

Steps are here at once; the planner comes when it is first asked for: worlds, which only run steps, do not pay
for it.
"""

from typing import TYPE_CHECKING

from spmdsim.lazy_imports import lazy_names
from spmdsim.redistribution import group_steps as group_steps  # tells core what its own steps move

if TYPE_CHECKING:
    from spmdsim.redistribution.planner import Plan, plan

__all__ = ["Plan", "plan"]

__getattr__ = lazy_names(__name__, {"planner": "Plan plan"})
