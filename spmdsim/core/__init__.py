"""Where tensors live and what operators mean for it (pure): meshes, layouts, rules, strategies."""

from spmdsim.arguments import REDUCE_OPS
from spmdsim.core.bound import BoundRule, bind
from spmdsim.core.layout import Bounds, Layout, split_block
from spmdsim.core.mesh import Mesh
from spmdsim.core.rule import ELEMENTS, FUNCTIONS, PASSES, Rule, Strategy, Term
from spmdsim.layout_facts import Partial, Placement, Replicate, Shard

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
