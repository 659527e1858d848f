"""Paddle's model-parallel layers, where older programs import them from."""

from spmdsim.dialects.paddle.distributed.fleet.layers import mpu
from spmdsim.dialects.paddle.distributed.fleet.layers.mpu import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
)

__all__ = ["ColumnParallelLinear", "ParallelCrossEntropy", "RowParallelLinear", "VocabParallelEmbedding"]

__getattr__ = mpu.__getattr__
