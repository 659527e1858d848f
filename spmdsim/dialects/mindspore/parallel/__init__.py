"""``mindspore.parallel``."""

from spmdsim.dialects.mindspore.layout import Layout
from spmdsim.dialects.mindspore.parallel import auto_parallel
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.mindspore.parallel.sharding import shard
from spmdsim.dialects.missing import refusal

__all__ = ["AutoParallel", "Layout", "auto_parallel", "shard"]
__getattr__ = refusal(__name__, __all__, {
    "nn distributed Pipeline": "AutoParallel",
    "reshard": "ops.reshard",
    "transform_checkpoints load_distributed_checkpoint convert_checkpoints rank_list_for_transform "
    "transform_checkpoint_by_rank "
    "merge_pipeline_strategys load_segmented_checkpoints": "load_checkpoint, of any layout",
    "set_algo_parameters reset_algo_parameters get_algo_parameters": "set_auto_parallel_context",
})  # fmt: skip
