"""OneFlow's element types: numpy's, which print as OneFlow's do."""

from __future__ import annotations

from typing import Any

import numpy as np


class dtype:
    """An element type. Wherever numpy takes a type it takes this one, and it equals numpy's.

    >>> float32, float32 == np.float32, np.zeros(2, dtype=int64).dtype
    (oneflow.float32, True, dtype('int64'))
    """

    def __init__(self, kind: Any) -> None:
        self.dtype: np.dtype = np.dtype(kind)

    @property
    def name(self) -> str:
        """Its name, without ``oneflow.``."""
        return self.dtype.name

    @property
    def kind(self) -> str:
        """Its letter in numpy."""
        return self.dtype.kind

    @property
    def itemsize(self) -> Any:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def is_floating_point(self) -> Any:
        """Whether it is a real floating type."""
        return self.dtype.kind == "f"

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
