"""``mindspore.dataset.transforms``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TypeCast:
    """Another element type."""

    output_type: Any

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """Apply it."""
        return array.astype(self.output_type)
