"""Where tensors live and what operators mean for it (pure): meshes, layouts, rules, strategies."""

from spmdsim.core.bind import bind
from spmdsim.core.bound import BoundRule
from spmdsim.core.layout import Bounds, Layout, split_block
from spmdsim.core.mesh import Mesh
from spmdsim.core.placements import REDUCE_OPS, Partial, Placement, Replicate, Shard
from spmdsim.core.rule import ELEMENTS, FUNCTIONS, PASSES, Rule, Term
from spmdsim.core.strategy import Strategy

__all__ = [
    "ELEMENTS",
    "FUNCTIONS",
    "PASSES",
    "REDUCE_OPS",
    "BoundRule",
    "Bounds",
    "Layout",
    "Mesh",
    "Partial",
    "Placement",
    "Replicate",
    "Rule",
    "Shard",
    "Strategy",
    "Term",
    "bind",
    "split_block",
]
