"""From layout to layout (pure): collective steps, the direct exchange, lower bounds, the plan's table."""

from spmdsim.redistribution.plan import Plan, plan
from spmdsim.redistribution.step import STEP_COLLECTIVES, Step, Transfer, overlap

__all__ = ["STEP_COLLECTIVES", "Plan", "Step", "Transfer", "overlap", "plan"]
