"""``mindspore.dataset.vision``: transforms of batches of images ``[batch, height, width, channels]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rescale:
    """``x * rescale + shift``."""

    rescale: float
    shift: float

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Apply it."""
        return image.astype(np.float32) * np.float32(self.rescale) + np.float32(self.shift)


@dataclass(frozen=True)
class Normalize:
    """``(x - mean) / std`` per channel."""

    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Apply it."""
        return (image - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)


class HWC2CHW:
    """Channels first."""

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Apply it."""
        return np.ascontiguousarray(np.moveaxis(image, -1, -3))
