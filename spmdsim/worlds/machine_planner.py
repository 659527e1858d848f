"""Exact plans and cheapest strategies, by a model of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spmdsim.core import BoundRule, Layout, Strategy
    from spmdsim.cost.machine import CostModel
    from spmdsim.redistribution.planner import Plan


class MachinePlanner:
    """A planner that asks a cost model; None is the default model."""

    def __init__(self, machine: CostModel | None) -> None:
        self.machine = machine

    def plan(self, src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Plan:
        """Return the exact plan; see :func:`spmdsim.plan`."""
        from spmdsim.redistribution.planner import plan

        return plan(src, dst, shape, dtype, self.machine)

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """Return the cheapest strategy, by modelled time of the computation and of the plans it needs."""
        from spmdsim.redistribution.choose import choose

        return choose(bound, layouts, dtypes, self.machine)
