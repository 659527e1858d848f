"""``mindspore.dataset.transforms``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from spmdsim.dialects.missing import refusal


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


__all__ = ["Compose", "TypeCast"]
__getattr__ = refusal(__name__, __all__, {"OneHot": "any function of one row"})
