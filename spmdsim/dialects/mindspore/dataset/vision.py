"""``mindspore.dataset.vision``: transforms of batches of images ``[batch, height, width, channels]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spmdsim.dialects.missing import refusal


@dataclass(frozen=True)
class Rescale:
    """``x * rescale + shift``."""

    rescale: float
    shift: float = 0.0
    batched: ClassVar[bool] = True

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Apply it."""
        return image.astype(np.float32) * np.float32(self.rescale) + np.float32(self.shift)


@dataclass(frozen=True)
class Normalize:
    """``(x - mean) / std`` per channel."""

    mean: Sequence[float]
    std: Sequence[float]
    is_hwc: bool = True
    batched: ClassVar[bool] = True

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Apply it."""
        shape = (-1,) if self.is_hwc else (-1, 1, 1)
        mean, std = (np.asarray(x, np.float32).reshape(shape) for x in (self.mean, self.std))
        normalised: np.ndarray = (image - mean) / std
        return normalised


class HWC2CHW:
    """Channels first."""

    batched = True

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Apply it."""
        return np.ascontiguousarray(np.moveaxis(image, -1, -3))


__all__ = ["HWC2CHW", "Normalize", "Rescale"]
__getattr__ = refusal(
    __name__,
    __all__,
    dict.fromkeys(
        ("Resize", "RandomCrop", "RandomHorizontalFlip", "c_transforms", "py_transforms"),
        "any function of one row",
    ),
)
