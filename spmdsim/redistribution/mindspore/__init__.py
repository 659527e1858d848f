"""The redistribution that MindSpore's inference would insert: its operators, their order, and its cost.

Semantics after ``frontend/parallel/tensor_layout`` and ``parallel/_tensor.py`` of MindSpore 2.7: two layouts are
written on one device matrix and one tensor shape, an operator inference that never looks at volumes picks Split,
AllToAll and Concat, and each becomes concrete operators per rank. Kept apart from this package's own planner so
that a user can set one beside the other.
"""

from spmdsim.redistribution.mindspore.cost import MapCost, list_cost, operator_cost
from spmdsim.redistribution.mindspore.infer import infer_operators
from spmdsim.redistribution.mindspore.operators import (
    MapOperator,
    is_expandable,
    names,
    operators,
    received_elements,
)
from spmdsim.redistribution.mindspore.optimizer_shards import optimizer_shard_layout
from spmdsim.redistribution.mindspore.plan import MindSporePlan, mindspore_plan
from spmdsim.redistribution.mindspore.reorder import merged_concat, optimise
from spmdsim.redistribution.mindspore.transform import (
    apply,
    needed_ranks,
    operator_map,
    pipeline_map,
    reshard_map,
    same_devices,
    stack,
)
from spmdsim.redistribution.mindspore.unify import (
    MapLayout,
    NotExpandable,
    as_numbers,
    drop_ones,
    expand_matrix,
    expand_shape,
    expand_tensor,
    expand_tuples,
    unify,
    unify_matrix,
)

__all__ = [
    "MapCost",
    "MapLayout",
    "MapOperator",
    "MindSporePlan",
    "NotExpandable",
    "apply",
    "as_numbers",
    "drop_ones",
    "expand_matrix",
    "expand_shape",
    "expand_tensor",
    "expand_tuples",
    "infer_operators",
    "is_expandable",
    "list_cost",
    "merged_concat",
    "mindspore_plan",
    "names",
    "needed_ranks",
    "operator_cost",
    "operator_map",
    "operators",
    "optimise",
    "optimizer_shard_layout",
    "pipeline_map",
    "received_elements",
    "reshard_map",
    "same_devices",
    "stack",
    "unify",
    "unify_matrix",
]
