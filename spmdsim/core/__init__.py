"""Meshes, layouts, rules and strategies: where tensors live, and what operators mean for layouts. No world, no MPI."""

from spmdsim.core.layout import Bounds, Layout, Mesh, split_block
from spmdsim.core.notation.layouts import REDUCE_OPS, Partial, Placement, Replicate, Shard
from spmdsim.core.notation.rules import ELEMENTS, FUNCTIONS, PASSES, Term
from spmdsim.core.rule import BoundRule, Rule, Strategy, bind

__all__ = [
    "ELEMENTS", "FUNCTIONS", "PASSES", "REDUCE_OPS", "BoundRule", "Bounds", "Layout", "Mesh", "Partial", "Placement",
    "Replicate", "Rule", "Shard", "Strategy", "Term", "bind", "split_block",
]  # fmt: skip
