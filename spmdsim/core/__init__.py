"""Where tensors live and what operators mean for it (pure): meshes, layouts, rules, strategies."""

from spmdsim.core.layout import Bounds, Layout, Mesh, split_block
from spmdsim.core.rule import BoundRule, Rule, Strategy, bind
from spmdsim.notation.layouts import REDUCE_OPS, Partial, Placement, Replicate, Shard
from spmdsim.notation.rules import ELEMENTS, FUNCTIONS, PASSES, Term

__all__ = [
    "ELEMENTS", "FUNCTIONS", "PASSES", "REDUCE_OPS", "BoundRule", "Bounds", "Layout", "Mesh", "Partial", "Placement",
    "Replicate", "Rule", "Shard", "Strategy", "Term", "bind", "split_block",
]  # fmt: skip
