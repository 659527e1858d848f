"""What ``.shard`` means: the cuts that MindSpore takes and refuses, and everything that follows from them.

``strategies`` goes from the cuts of an operator to layouts, groups and collectives (a ``sharded`` value); ``infer`` from
the operands' layouts to the result's; ``sharded_calls`` says which strategy a call of a primitive has.
"""

from spmdsim.imitations.mindspore.sharding.cuts_refused import check_cuts
from spmdsim.imitations.mindspore.sharding.infer import infer_layout
from spmdsim.imitations.mindspore.sharding.layout_forms import optimizer_shard, without_ones, without_tuples
from spmdsim.imitations.mindspore.sharding.sharded import Sharded
from spmdsim.imitations.mindspore.sharding.sharded_calls import (
    check_result,
    configure,
    data_parallel,
    fitted,
    strategy_of,
)
from spmdsim.imitations.mindspore.sharding.strategies import configured, shard

__all__ = [
    "Sharded", "check_cuts", "check_result", "configure", "configured", "data_parallel", "fitted", "infer_layout",
    "optimizer_shard", "shard", "strategy_of", "without_ones", "without_tuples",
]  # fmt: skip
