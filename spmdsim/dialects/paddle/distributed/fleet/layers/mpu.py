"""Paddle's model-parallel layers, where current programs import them from."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.layers import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
)

__all__ = ["ColumnParallelLinear", "ParallelCrossEntropy", "RowParallelLinear", "VocabParallelEmbedding"]
#: What to use instead of a name that resembles none here.
NEAREST = {"PipelineLayer": "one stage", "get_rng_state_tracker": "dropout, the same in every layout"}
__getattr__ = refusal(__name__, __all__, NEAREST)
