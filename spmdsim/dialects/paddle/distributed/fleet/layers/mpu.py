"""Paddle's model-parallel layers, where current programs import them from."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.paddle.layers import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
)


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    nearest = {"PipelineLayer": "one stage", "get_rng_state_tracker": "dropout, the same in every layout"}
    raise not_covered(__name__, name, __all__, nearest)


__all__ = ["ColumnParallelLinear", "ParallelCrossEntropy", "RowParallelLinear", "VocabParallelEmbedding"]
