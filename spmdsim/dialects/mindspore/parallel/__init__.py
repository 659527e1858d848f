"""``mindspore.parallel``."""

from spmdsim.dialects.mindspore.layout import Layout
from spmdsim.dialects.mindspore.parallel import auto_parallel
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.mindspore.parallel.sharding import shard
from spmdsim.dialects.missing import refusal

__all__ = ["AutoParallel", "Layout", "auto_parallel", "shard"]
__getattr__ = refusal(__name__, __all__, {
    "nn": "AutoParallel", "reshard": "ops.reshard", "distributed": "AutoParallel", "Pipeline": "AutoParallel",
    **dict.fromkeys(("transform_checkpoints", "load_distributed_checkpoint", "convert_checkpoints"), "load_checkpoint"),
})  # fmt: skip
