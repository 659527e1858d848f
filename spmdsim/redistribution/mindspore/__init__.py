"""The redistribution that MindSpore's inference would insert: its operators, their order, and its cost.

Semantics after ``frontend/parallel/tensor_layout`` and ``parallel/_tensor.py`` of MindSpore 2.7: two layouts are
written on one device matrix and one tensor shape, an operator inference that never looks at volumes picks Split,
AllToAll and Concat, and each becomes concrete operators per rank. Kept apart from this package's own planner so
that a user can set one beside the other.
"""

from spmdsim.redistribution.mindspore.infer import infer_operators
from spmdsim.redistribution.mindspore.operators import MapOperator, operators, received_elements
from spmdsim.redistribution.mindspore.plan import MindSporePlan, mindspore_plan
from spmdsim.redistribution.mindspore.unify import MapLayout, NotExpandable, unify

__all__ = [
    "MapLayout",
    "MapOperator",
    "MindSporePlan",
    "NotExpandable",
    "infer_operators",
    "mindspore_plan",
    "operators",
    "received_elements",
    "unify",
]
