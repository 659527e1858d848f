"""The communication-optimal grid of any product of sums: one axis of ranks per factor.

The generalisation of :mod:`spmdsim.auto_parallel.matmul_grid`: an operand (or result) is gathered (or reduced and
scattered) over the ranks that cut the factors it lacks, everything starts and ends evenly spread. Factors that all
terms share, such as batch dims, cost nothing to cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from spmdsim.auto_parallel.strategy_choice import prime_factors
from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.core.notation.rules import members
from spmdsim.errors import InputError


@dataclass(frozen=True)
class FactorGrid:
    """The best grid of an operator.

    Attributes:
        bound: the operator.
        parts: ranks per factor, in the rule's order.
        words: words each rank receives.
    """

    bound: BoundRule
    parts: tuple[int, ...]
    words: float

    @property
    def mesh(self) -> Mesh:
        """The grid as a mesh, one axis per factor."""
        return Mesh(self.parts, [_axis(factor) for factor in self.bound.sizes])

    @property
    def strategy(self) -> Strategy:
        """Every axis splits its factor."""
        pairs = zip(self.bound.sizes, self.parts)
        return Strategy.of(self.mesh, {factor: _axis(factor) for factor, size in pairs if size > 1})

    def layouts(self) -> tuple[Layout, ...]:
        """Where the operands start and the result ends: spread evenly over all ranks of the grid.

        A tensor's pieces are cut once more, in its first dim that allows it, along the axes of factors it lacks.
        """
        strategy = self.strategy
        inside = [layout.reduced for layout in self.bound.input_layouts(strategy)]
        shapes = [*self.bound.shapes, *self.bound.output_shapes]
        results = [layout.reduced for layout in self.bound.output_layouts(strategy)]
        return tuple(_spread(layout, shape) for layout, shape in zip((*inside, *results), shapes))

    def __str__(self) -> str:
        grid = " x ".join(f"{factor}={size}" for factor, size in zip(self.bound.sizes, self.parts))
        return f"'{self.bound.rule}' on the grid {grid}: {self.words:,.0f} words received per rank"


def _axis(factor: str) -> str:
    return f"dim{factor[1:]}" if factor.startswith(".") else factor


def _spread(layout: Layout, shape: tuple[int, ...]) -> Layout:
    free = [axis for axis in layout.replicated_axes if layout.mesh.axis_size(axis) > 1]
    dims = [list(entry) for entry in layout.dims]
    for axis in free:
        for dim, size in zip(dims, shape):
            if size % (layout.mesh.axis_size(*dim) * layout.mesh.axis_size(axis)) == 0:
                dim.append(axis)
                break
    return Layout(layout.mesh, [tuple(dim) for dim in dims])


def factor_words(bound: BoundRule, parts: dict[str, int]) -> float:
    """Words each rank receives on a grid, in even pieces.

    >>> from spmdsim.core import Rule, bind
    >>> product = bind(Rule.parse("m k, k n -> m n"), ((512, 512), (512, 512)))
    >>> factor_words(product, {"m": 2, "k": 2, "n": 2})
    98304.0
    """
    total, ranks = 0.0, math.prod(parts.values())
    for term, shape in zip((*bound.inputs, *bound.outputs), (*bound.shapes, *bound.output_shapes)):
        own = math.prod(parts.get(f, 1) for f in members(term))
        total += math.prod(shape) / own * (1 - own / ranks)
    return total


def best_factor_grid(bound: BoundRule, ranks: int, *, idle: float = 0.25) -> FactorGrid:
    """The grid that moves the fewest words, of those that use most ranks; every piece is even.

    Args:
        bound: an operator that sums products.
        ranks: number of ranks.
        idle: the share of ranks that may be left idle, if the others receive fewer words by more than they compute
            more; where no grid divides the sizes otherwise, more ranks may be.

    Raises:
        InputError: no rank at all.

    >>> from spmdsim.core import Rule, bind
    >>> batched = bind(Rule.parse("b m k, b k n -> b m n"), ((8, 64, 64), (8, 64, 64)))
    >>> best_factor_grid(batched, 8).parts, best_factor_grid(batched, 9).parts
    ((8, 1, 1, 1), (8, 1, 1, 1))
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks cannot form a grid; there has to be at least 1")
    factors = [factor for factor in bound.sizes if factor in bound.splittable]
    least = max(1, math.ceil(ranks * (1 - idle)))
    best: tuple[float, float, dict[str, int]] | None = None
    for used in range(ranks, 0, -1):
        if best is not None and used < least:
            break
        for parts in _grids(prime_factors(used), factors, bound):
            words = factor_words(bound, parts)
            score = words * ranks / used
            if best is None or score < best[0] * (1 - 1e-12):
                best = (score, words, parts)
    assert best is not None, "one rank always works"
    return FactorGrid(bound, tuple(best[2].get(factor, 1) for factor in bound.sizes), best[1])


def _grids(primes: tuple[int, ...], factors: list[str], bound: BoundRule) -> Iterator[dict[str, int]]:
    seen: set[tuple[int, ...]] = set()
    grids: list[dict[str, int]] = [dict.fromkeys(factors, 1)]
    for prime in primes:
        grown: list[dict[str, int]] = []
        for grid in grids:
            for factor in factors:
                if bound.sizes[factor] % (grid[factor] * prime) == 0:
                    more = {**grid, factor: grid[factor] * prime}
                    key = tuple(more.values())
                    if key not in seen:
                        seen.add(key)
                        grown.append(more)
        grids = grown
    for grid in grids:
        if bound.allows(_as_strategy(bound, grid)):
            yield grid


def _as_strategy(bound: BoundRule, parts: dict[str, int]) -> Strategy:
    mesh = Mesh([parts.get(f, 1) for f in bound.sizes], [_axis(f) for f in bound.sizes])
    return Strategy.of(mesh, {f: _axis(f) for f, size in parts.items() if size > 1})
