"""``mindspore.common.dtype``."""

from spmdsim.dialects.mindspore.dtypes import (
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
)

__all__ = ["bool_", "float16", "float32", "float64", "int8", "int16", "int32", "int64"]
