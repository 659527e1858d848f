"""OneFlow's element types: numpy's types with OneFlow's text."""

from __future__ import annotations

from typing import Any

import numpy as np


class dtype:
    """Element type; numpy accepts it as a type, and it equals numpy's type.

    >>> float32, float32 == np.float32, np.zeros(2, dtype=int64).dtype
    (oneflow.float32, True, dtype('int64'))
    """

    def __init__(self, kind: Any) -> None:
        self.dtype: np.dtype = np.dtype(kind)

    name = property(lambda self: self.dtype.name, doc="Name without ``oneflow.``.")
    kind = property(lambda self: self.dtype.kind, doc="Letter of the kind in numpy.")
    itemsize = property(lambda self: self.dtype.itemsize, doc="Bytes of an element.")
    is_floating_point = property(lambda self: self.kind == "f", doc="True for real floating-point types.")

    def __eq__(self, other: object) -> Any:
        try:
            return self.dtype == np.dtype(other)  # type: ignore[call-overload]
        except TypeError:
            return False

    def __hash__(self) -> Any:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"oneflow.{self.name}"


float16, float32, float64 = dtype(np.float16), dtype(np.float32), dtype(np.float64)
uint8, int8, int32, int64 = dtype(np.uint8), dtype(np.int8), dtype(np.int32), dtype(np.int64)
half, float, double, int, long = float16, float32, float64, int32, int64
bool = dtype(np.bool_)
