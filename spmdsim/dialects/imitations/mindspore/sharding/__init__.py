"""What ``.shard`` means: the cuts that MindSpore takes and refuses, and everything that follows from them.

``strategies`` goes from the cuts of an operator, or of a call, to layouts, groups and collectives (a ``sharded`` value);
``infer`` from the operands' layouts to the result's.
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
    configured,
    data_parallel,
    fitted,
    shard,
    strategy_of,
)

__all__ = [
    "Sharded", "check_cuts", "check_result", "configure", "configured", "data_parallel", "fitted", "infer_layout",
    "optimizer_shard", "shard", "strategy_of", "without_ones", "without_tuples",
]  # fmt: skip
