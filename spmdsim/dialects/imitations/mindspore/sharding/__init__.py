"""Derive what ``.shard`` implies in MindSpore: accepted cuts, layouts, groups and collectives.

``strategies`` starts from the cuts of an operator, or of a call, and returns a ``sharded`` value. ``infer`` derives
the layout of a result from those of the operands.
"""

from spmdsim.dialects.imitations.mindspore.sharding.infer import infer_layout
from spmdsim.dialects.imitations.mindspore.sharding.sharded import (
    Sharded,
    check_cuts,
    optimizer_shard,
    without_ones,
    without_tuples,
)
from spmdsim.dialects.imitations.mindspore.sharding.strategies import (
    check_result,
    configure,
    configured_layouts,
    data_parallel,
    fit_sharding,
    shard,
    strategy_of,
)

__all__ = [
    "Sharded", "check_cuts", "check_result", "configure", "configured_layouts", "data_parallel", "fit_sharding", "infer_layout",
    "optimizer_shard", "shard", "strategy_of", "without_ones", "without_tuples",
]  # fmt: skip
