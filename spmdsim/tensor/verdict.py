"""What a comparison says: a word, the element that it is about, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.errors import many
from spmdsim.pictured import ShortRepr
from spmdsim.tensor.rounding import unit_roundoff

#: Rounding errors add up like a random walk; eight standard deviations leave no honest result outside.
SAFETY = 8.0


@dataclass(frozen=True, repr=False)
class Verdict(ShortRepr):
    """What all ranks agreed on about one tensor.

    Attributes:
        word: ``"ok"``, ``"ill-conditioned here"``, ``"overflow"``, ``"unproven"`` or ``"WRONG"``.
        max_error: the difference at ``index``: the largest one, or the one furthest beyond its tolerance (inf where
            only one side is nan).
        tolerance: what was allowed there.
        why: how the tolerance came about.
        rank: the rank that holds that element.
        index: its global index, None for an empty tensor.
        expected: the reference's value there.
        got: the tensor's value there.
        compared: what was compared with what, and what that proves.

    >>> from spmdsim import Mesh, Tensor, check
    >>> check(Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x")), [1.0, 2.0]).ok
    True
    """

    word: str
    max_error: float
    tolerance: float
    why: str
    rank: int = 0
    index: tuple[int, ...] | None = None
    expected: complex | None = None
    got: complex | None = None
    compared: str = ""

    @property
    def ok(self) -> bool:
        """Whether the tensor is as right as the reference in one process."""
        return self.word in ("ok", "ill-conditioned here", "overflow")

    def __bool__(self) -> bool:
        return self.ok

    @property
    def details(self) -> str:
        """What was found, where, and why it is judged like this: everything but the word."""
        compared = f"; {self.compared}" if self.compared else ""
        if self.ok:
            return f"max error {self.max_error:.2g} <= {self.tolerance:.2g} ({self.why}){compared}"
        if self.index is None:
            return self.why
        return f"{self.element}; error {self.max_error:.2g} > {self.tolerance:.2g} ({self.why}){compared}"

    @property
    def element(self) -> str:
        """The element that the verdict is about."""
        return f"on rank {self.rank} at {self.index}: got {self.got}, expected {self.expected}"

    def __str__(self) -> str:
        return f"{self.word}{'' if self.details.startswith('on rank') else ':'} {self.details}"


def tolerance(dtype: Any, magnitude: float, depth: int) -> tuple[float, str]:
    """The largest error that rounding a sum explains, and the explanation.

    ``depth`` terms are added in this type, over all ranks (0: nothing is added or multiplied), of the size ``magnitude``:
    the largest ``sum |a_i b_i|``, or the largest result.
    """
    u = unit_roundoff(dtype)
    if not u or depth == 0:
        return 0.0, "exact type" if not u else "no arithmetic"
    # Types of sixteen bits are added up in float32 and rounded once.
    lost = max(min(u, unit_roundoff("float32")) * math.sqrt(depth), u)
    value = SAFETY * lost * magnitude
    return value, f"{SAFETY:g} u({np.dtype(dtype).name}) sqrt({many(depth, 'term')}) * {magnitude:.3g}"
