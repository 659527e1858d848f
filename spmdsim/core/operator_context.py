"""The context of a local function: the shards of its rank as global bounds and slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spmdsim.core.rule import BoundRule, Strategy, term_layout
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False, eq=False)
class Context(ShortRepr):
    """Facts about the shard of a rank, for the local function of a contextual operator.

    Each recipe has one context per rank.

    Attributes:
        bound: the operator's rule for the shapes of the call.
        strategy: the axes that split each factor.
        rank: the rank.
    """

    bound: BoundRule
    strategy: Strategy
    rank: int

    @cached_property
    def _bounds(self) -> dict[str, tuple[int, int]]:
        """Block ``(start, stop)`` of each factor that the rank computes."""
        layout = term_layout(tuple((factor,) for factor in self.bound.sizes), self.strategy)
        return dict(zip(self.bound.sizes, layout.bounds(tuple(self.bound.sizes.values()), self.rank)))

    def bounds(self, factor: str) -> tuple[int, int]:
        """Return ``(start, stop)`` of this rank's block of a factor."""
        return self._bounds[factor]

    def size(self, factor: str) -> int:
        """Return the global size of a factor."""
        return self.bound.sizes[factor]

    @cached_property
    def _slices(self) -> list[tuple[slice, ...]]:
        """Slices of the rank's shard of each operand and of the first result, in global indices."""
        bound, strategy = self.bound, self.strategy
        pairs = zip((*bound.inputs, bound.outputs[0]), (*bound.shapes, bound.output_shapes[0]))
        return [term_layout(term, strategy).slices(shape, self.rank) for term, shape in pairs]

    def index(self, operand: int) -> tuple[slice, ...]:
        """Return the global slices of an operand's shard; operand -1 is the first result."""
        return self._slices[operand]
