"""The context of a local function: the shards of its rank as global bounds and slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spmdsim.core.rule import BoundRule, Strategy, laid_out
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False, eq=False)
class Context(ShortRepr):
    """The facts about its rank's shard that a contextual local function may ask for; one per recipe and rank.

    Attributes:
        bound: the operator's rule for the shapes of the call.
        strategy: which axes split which factors.
        rank: the rank.
    """

    bound: BoundRule
    strategy: Strategy
    rank: int

    @cached_property
    def _bounds(self) -> dict[str, tuple[int, int]]:
        layout = laid_out(tuple((factor,) for factor in self.bound.sizes), self.strategy)
        return dict(zip(self.bound.sizes, layout.bounds(tuple(self.bound.sizes.values()), self.rank)))

    def bounds(self, factor: str) -> tuple[int, int]:
        """Return ``(start, stop)`` of this rank's part of a factor."""
        return self._bounds[factor]

    def size(self, factor: str) -> int:
        """Return the global size of a factor."""
        return self.bound.sizes[factor]

    @cached_property
    def _slices(self) -> list[tuple[slice, ...]]:
        bound, strategy = self.bound, self.strategy
        pairs = zip((*bound.inputs, bound.outputs[0]), (*bound.shapes, bound.output_shapes[0]))
        return [laid_out(term, strategy).slices(shape, self.rank) for term, shape in pairs]

    def index(self, operand: int) -> tuple[slice, ...]:
        """Return the global slices of an operand's shard; operand -1 is the first result."""
        return self._slices[operand]
