"""Core: meshes and layouts, rules and strategies of operators, tensors, gradients, and a world in one process.

Core uses no MPI. Each module's text names the next module to read; begin with :mod:`spmdsim.core.layout`.
"""

from spmdsim.core.layout import Bounds, Layout, Mesh, split_block
from spmdsim.core.notation.layouts import REDUCE_OPS, Partial, Placement, Replicate, Shard
from spmdsim.core.notation.rules import ELEMENTS, FUNCTIONS, PASSES, Term
from spmdsim.core.rule import BoundRule, Rule, Strategy, bind

__all__ = [
    "ELEMENTS", "FUNCTIONS", "PASSES", "REDUCE_OPS", "BoundRule", "Bounds", "Layout", "Mesh", "Partial", "Placement",
    "Replicate", "Rule", "Shard", "Strategy", "Term", "bind", "split_block",
]  # fmt: skip
