"""The same layout seen per mesh axis: ``S(d)``, ``R`` and ``P(op)``.

OneFlow writes them split(d), broadcast and partial_sum; DTensor and Paddle Shard, Replicate, Partial.
"""

from __future__ import annotations

from dataclasses import dataclass

from spmdsim.errors import LayoutError, UsageTypeError, unknown
from spmdsim.pictured import Pictured

#: Reductions that a pending (partial) value may wait for.
REDUCE_OPS = ("sum", "prod", "max", "min", "avg", "all", "any")


@dataclass(frozen=True)
class Shard(Pictured):
    """The axis splits tensor dim ``dim``."""

    dim: int

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or isinstance(self.dim, bool):
            raise UsageTypeError(f"Shard takes a tensor dim (an integer), but got {self.dim!r}")

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True)
class Replicate(Pictured):
    """All ranks along the axis hold the same values."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True)
class Partial(Pictured):
    """The true value is the reduction, by ``op``, of what the ranks along the axis hold."""

    op: str = "sum"

    def __post_init__(self) -> None:
        if self.op not in REDUCE_OPS:
            raise unknown(f"no reduction is called {self.op!r}", str(self.op), REDUCE_OPS, LayoutError)

    def __str__(self) -> str:
        return f"P({self.op})"


Placement = Shard | Replicate | Partial
