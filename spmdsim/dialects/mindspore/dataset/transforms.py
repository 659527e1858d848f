"""``mindspore.dataset.transforms``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class TypeCast:
    """Another element type."""

    output_type: Any
    batched: ClassVar[bool] = True

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """Apply it."""
        return array.astype(self.output_type)


@dataclass(frozen=True)
class Compose:
    """Transforms one after the other."""

    transforms: Any
    batched: ClassVar[bool] = False

    def __call__(self, row: Any) -> Any:
        """Apply them to one row."""
        for transform in self.transforms:
            row = transform(row)
        return row


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, __all__, {"OneHot": "any function of one row"})


__all__ = ["Compose", "TypeCast"]
