"""Where tensors live and what operators mean for it (pure): meshes, layouts, rules, strategies."""

from spmdsim.core.bound import BoundRule, bind
from spmdsim.core.layout import REDUCE_OPS, Bounds, Layout, Partial, Placement, Replicate, Shard, split_block
from spmdsim.core.mesh import Mesh
from spmdsim.core.rule import ELEMENTS, FUNCTIONS, PASSES, Rule, Strategy, Term

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
