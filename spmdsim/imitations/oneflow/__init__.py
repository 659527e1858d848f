"""OneFlow's view of a redistribution ("boxing"): its routes, its costs, and rules about sbp tuples.

Semantics after ``core/framework/sbp_infer_util.cpp``, ``placement_sbp_util.cpp`` and
``user/ops/reshape_user_op_util.cpp``. An sbp tuple is a sequence of placements, one per mesh axis, major axis first;
P is a pending sum.
"""

from spmdsim.dialects.oneflow.tensors import can_merge as can_merge_split
from spmdsim.imitations.oneflow.boxing_routes import (
    axis_sequence,
    boxing_collectives,
    boxing_cost,
    boxing_route,
    cross_placement_cost,
    decompose,
    expand_shape,
    generic_steps,
    subgroup,
)
from spmdsim.imitations.oneflow.sbp_reshape import (
    broadcast_only,
    reshape_pairs,
    reshape_sbp,
    reshape_signatures,
)
from spmdsim.imitations.oneflow.sbp_rules import reduce_dims, total_traffic, zero_comm

__all__ = [
    "axis_sequence",
    "boxing_collectives",
    "boxing_cost",
    "boxing_route",
    "broadcast_only",
    "can_merge_split",
    "cross_placement_cost",
    "decompose",
    "expand_shape",
    "generic_steps",
    "reduce_dims",
    "reshape_pairs",
    "reshape_sbp",
    "reshape_signatures",
    "subgroup",
    "total_traffic",
    "zero_comm",
]
