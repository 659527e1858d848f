"""``paddle.regularizer``: what a loss gains for large parameters, as its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import spmdsim.ops as ops
from spmdsim.dialects.missing import refusal
from spmdsim.ops.reduce import wide


@dataclass(frozen=True)
class L2Decay:
    """``coeff / 2`` times the sum of squares."""

    coeff: float = 0.0

    def slope(self, value: Any) -> Any:
        """What the gradient gains."""
        return ops.multiply(wide(value), float(self.coeff))


@dataclass(frozen=True)
class L1Decay:
    """``coeff`` times the sum of absolute values."""

    coeff: float = 0.0

    def slope(self, value: Any) -> Any:
        """What the gradient gains."""
        return ops.multiply(ops.sign(wide(value)), float(self.coeff))


__all__ = ["L1Decay", "L2Decay"]
__getattr__ = refusal(__name__, __all__, {"WeightDecayRegularizer": "L2Decay"})
