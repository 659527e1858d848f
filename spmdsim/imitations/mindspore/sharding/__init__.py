"""What ``.shard`` means: the cuts that MindSpore takes and refuses, and everything that follows from them.

``strategies`` goes from the cuts of an operator to layouts, groups and collectives (a ``sharded`` value); ``infer`` from
the operands' layouts to the result's.
"""

from spmdsim.imitations.mindspore.sharding.cuts import check_cuts
from spmdsim.imitations.mindspore.sharding.forms import optimizer_shard, without_ones, without_tuples
from spmdsim.imitations.mindspore.sharding.infer import infer_layout
from spmdsim.imitations.mindspore.sharding.results import result_layout
from spmdsim.imitations.mindspore.sharding.sharded import Sharded
from spmdsim.imitations.mindspore.sharding.strategies import configured, cuts_of_result, default_cuts, shard

__all__ = [
    "Sharded", "check_cuts", "configured", "cuts_of_result", "default_cuts", "infer_layout", "optimizer_shard", "result_layout", "shard",
    "without_ones", "without_tuples",
]  # fmt: skip
