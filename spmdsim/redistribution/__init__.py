"""Plan redistributions from layout to layout, with their lower bounds and prices. Load the planner on first use."""

from typing import TYPE_CHECKING

from spmdsim.lazy_imports import lazy_names

if TYPE_CHECKING:
    from spmdsim.redistribution.plans.planner import Plan, plan

__all__ = ["Plan", "plan"]

__getattr__ = lazy_names(__name__, {"plans.planner": "Plan plan"})
