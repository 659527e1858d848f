"""What core asks about element types. Here: numpy's answers; :mod:`spmdsim.layout.element_type` knows more.

Next: :mod:`spmdsim.core.reductions`, the first who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout
    from spmdsim.core.rule import Rule


class ElementTypes:
    """How elements are held, met and added up. Floats of 16 bits, say, are better held otherwise while they add up."""

    def is_float(self, dtype: np.dtype) -> bool:
        """Whether the type is a real floating type."""
        return dtype.kind == "f"

    def accumulator(self, op: str | None, dtype: np.dtype) -> np.dtype:
        """The type in which a reduction is accumulated."""
        return dtype

    def held(self, layout: Layout, dtype: np.dtype) -> np.dtype:
        """The type of the arrays of a tensor with elements of a type."""
        return dtype

    def promoted(self, *dtypes: np.dtype) -> np.dtype:
        """The type in which numbers of several types meet."""
        return np.result_type(*dtypes)

    def rule(self, rule: Rule, operands: tuple[np.dtype, ...], result: np.dtype) -> Rule:
        """What of a rule holds for elements of these types: pending values pass only conversions that a sum does."""
        return rule

    def has_gradient(self, dtype: np.dtype) -> bool:
        """Whether numbers of this type have neighbours that a gradient could point to."""
        return dtype.kind in "fc"

    def local(self, function: Callable[..., Any], dtypes: tuple[np.dtype, ...]) -> Callable[..., Any]:
        """The local function of an operator, or of its gradient, for operands and results of these types."""
        return function


types = ElementTypes()
"""Who answers; the package puts another one here."""
