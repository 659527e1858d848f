"""Where tensors live and what operators mean for it (pure): meshes, layouts, rules, strategies."""

from spmdsim.core.bound import BoundRule, bind
from spmdsim.core.layout import Bounds, Layout, split_block
from spmdsim.core.mesh import Mesh
from spmdsim.core.rule import Rule, Strategy
from spmdsim.notation.arguments import REDUCE_OPS
from spmdsim.notation.layout_facts import Partial, Placement, Replicate, Shard
from spmdsim.notation.rule_terms import ELEMENTS, FUNCTIONS, PASSES, Term

__all__ = [
    "ELEMENTS", "FUNCTIONS", "PASSES", "REDUCE_OPS", "BoundRule", "Bounds", "Layout", "Mesh", "Partial", "Placement",
    "Replicate", "Rule", "Shard", "Strategy", "Term", "bind", "split_block",
]  # fmt: skip
