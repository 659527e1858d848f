"""``mindspore.common.dtype``: element types, which are numpy's."""

import numpy as np

float16, float32, float64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
int8, int16, int32, int64 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64)
bool_ = np.dtype(np.bool_)

__all__ = ["bool_", "float16", "float32", "float64", "int8", "int16", "int32", "int64"]
