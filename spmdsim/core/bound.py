"""A rule bound to shapes, its ``...`` written out: from strategies to layouts and back.

Next: :mod:`spmdsim.core.step`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from spmdsim.core.layout import Layout
from spmdsim.core.mesh import Mesh
from spmdsim.core.rule import Passed, Rule, Strategy
from spmdsim.errors import RuleError
from spmdsim.notation import refusals
from spmdsim.notation.refusals import Axes
from spmdsim.notation.rule_terms import Shape, Term, fitted, members
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False)
class BoundRule(ShortRepr):
    """A rule whose factors have sizes and whose ``...`` is written out.

    The dims of ``...`` become factors ``.0``, ``.1``, … counted from the right; a dim of size one that is
    broadcast has no factor, so that it is never split and its gradient sums over the factor it lacks.
    """

    rule: Rule
    shapes: tuple[Shape, ...]
    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    factor_sizes: tuple[tuple[str, int], ...]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Global size by factor, in device-matrix order."""
        return dict(self.factor_sizes)

    @cached_property
    def output_shapes(self) -> tuple[Shape, ...]:
        """Global shapes of the results."""
        return tuple(tuple(math.prod(self.sizes[f] for f in dim) for dim in term) for term in self.outputs)

    @cached_property
    def contraction(self) -> bool:
        """Whether products are summed: linear in each of several operands, and a factor is reduced."""
        each = all(frozenset({i}) in self.rule.linear for i in range(len(self.inputs)))
        return len(self.inputs) > 1 and not self.rule.indexed and each and bool(self.reduced(0))

    def reduced(self, output: int) -> tuple[str, ...]:
        """Factors of the operands that a result lacks, unless they must stay whole."""
        of_inputs = set().union(*map(members, self.inputs))
        lacking = of_inputs - members(self.outputs[output]) - self.rule.whole
        return tuple(f for f in self.sizes if f in lacking)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """Factors that an axis may split."""
        return tuple(f for f in self.sizes if f not in self.rule.whole)

    @cached_property
    def compound(self) -> frozenset[str]:
        """Factors that share a dim with another one; they split evenly only."""
        terms = (*self.inputs, *self.outputs)
        return frozenset(f for term in terms for dim in term if len(dim) > 1 for f in dim)

    # -- strategy -> layouts ------------------------------------------------------------------------

    def refusals(self, strategy: Strategy) -> Iterator[str]:
        """Why the rule does not allow a strategy, in words."""
        return refusals.of_strategy(self, strategy)

    def allows(self, strategy: Strategy) -> bool:
        """Whether the rule allows a strategy."""
        return next(self.refusals(strategy), None) is None

    def check(self, strategy: Strategy) -> None:
        """Refuse a strategy that the rule does not allow, by a RuleError."""
        for refusal in self.refusals(strategy):
            raise RuleError(refusal)

    def input_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """The layout every operand must have."""
        return tuple(
            laid_out(term, strategy, [(axis, op) for axis, operands, op in strategy.passed if i in operands])
            for i, term in enumerate(self.inputs)
        )

    def steps(self, strategy: Strategy) -> Sequence[tuple[Any, Any]] | None:
        """The collectives in the middle of the local function, each with its element type, if it is made for such."""
        return None

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """The layout the results come out with, pending reductions included."""
        return tuple(laid_out(t, strategy, self.partial_of(strategy, i)) for i, t in enumerate(self.outputs))

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """The layout in which the gradient of an operand comes out of the transposed rule.

        The axes of every factor the operand lacks are partial; so are axes along which another operand,
        which the gradient is a product of, was partial.
        """
        present, size = members(self.inputs[operand]), strategy.mesh.size_of
        lacking = [a for f, axes in strategy.splits if f not in present for a in axes if size[a] > 1]
        passed = [axis for axis, operands, _ in strategy.passed if operand not in operands]
        return laid_out(self.inputs[operand], strategy, [*lacking, *passed])

    def partial_of(self, strategy: Strategy, output: int) -> list[tuple[str, str]]:
        """The axes along which a result comes out partial, with what it waits for."""
        reduced = [
            (axis, self.rule.reduction(factor))
            for factor in self.reduced(output)
            for axis in strategy.axes_of(factor)
            if strategy.mesh.axis_size(axis) > 1
        ]
        return [*reduced, *((axis, op) for axis, _, op in strategy.passed)]

    # -- layouts -> strategy ------------------------------------------------------------------------

    def infer(self, layouts: Sequence[Layout]) -> Strategy:
        """The strategy under which operands with these layouts are computed as they are; RuleError if none fits."""
        mesh = refusals.common_mesh(layouts)
        splits: dict[str, tuple[int, Axes]] = {}  # by factor: the first operand that has it, and its axes
        for i, (term, layout) in enumerate(zip(self.inputs, layouts)):
            for factor, axes in self._factor_axes(term, layout.canonical, i).items():
                refusals.check_alike(self.rule, factor, splits.setdefault(factor, (i, axes)), (i, axes))
        axes_of = {factor: axes for factor, (_, axes) in splits.items()}
        strategy = Strategy.of(mesh, axes_of, self._passed(layouts, axes_of))
        refusals.check_axes_once(self.rule, splits)
        self.check(strategy)
        return strategy

    def _factor_axes(self, term: Term, layout: Layout, operand: int) -> dict[str, Axes]:
        axes_of: dict[str, Axes] = {}
        for dim, (factors, axes) in enumerate(zip(term, layout.dims)):
            if not factors and axes:
                raise refusals.split_of_size_one(self.rule, operand, dim, axes)
            for factor in factors:
                taken = len(axes) if factor == factors[-1] else 0
                while taken < len(axes) and layout.mesh.axis_size(*axes[:taken]) < self.sizes[factor]:
                    taken += 1
                axes_of[factor], axes = axes[:taken], axes[taken:]
        return axes_of

    def _passed(self, layouts: Sequence[Layout], splits: Mapping[str, Axes]) -> list[Passed]:
        partial: dict[str, dict[int, str]] = {}
        for i, layout in enumerate(layouts):
            for axis, op in layout.canonical.partial:
                partial.setdefault(axis, {})[i] = op
        passed, split = [], {*itertools.chain(*splits.values())}
        for axis, operands in partial.items():
            group, ops = frozenset(operands), {*operands.values()}
            if group not in self.rule.linear or len(ops) > 1 or not ops <= self.rule.passes or axis in split:
                raise refusals.not_passed_on(self.rule, [*group], [*ops], axis)
            passed.append((axis, group, ops.pop()))
        return passed

    def strategies(self, mesh: Mesh, *, partial: bool = True, empty: bool = False) -> Iterator[Strategy]:
        """Every strategy on a mesh: each axis splits one factor, passes a partial value on, or does nothing.

        ``partial``: also those in which operands arrive partial (sums); ``empty``: also those in which some rank gets
        an empty block.
        """
        choices: list[object] = [None, *self.splittable, *(self.rule.linear if partial else ())]
        op = "sum" if "sum" in self.rule.passes else min(self.rule.passes, default="sum")
        for picks in itertools.product(choices, repeat=len(mesh.axes)):
            splits: dict[str, Axes] = {}
            passed = []
            for axis, pick in zip(mesh.axes, picks):
                if isinstance(pick, str):
                    splits[pick] = (*splits.get(pick, ()), axis)
                elif isinstance(pick, frozenset):
                    passed.append((axis, pick, op))
            strategy = Strategy.of(mesh, splits, passed)
            if (empty or all(strategy.parts(f) <= self.sizes[f] for f in splits)) and self.allows(strategy):
                yield strategy


def laid_out(term: Term, strategy: Strategy, partial: Any = ()) -> Layout:
    """The layout of a tensor whose dims have these factors."""
    dims = [tuple(axis for factor in dim for axis in strategy.axes_of(factor)) for dim in term]
    return Layout(strategy.mesh, dims, partial)


@lru_cache(maxsize=4096)
def bind(rule: Rule, shapes: tuple[Shape, ...], sizes: tuple[tuple[str, int], ...] = ()) -> BoundRule:
    """Give a rule the shapes of its operands, and the sizes of factors that these do not determine; RuleError if they do not fit.

    >>> bind(Rule.parse("... m k, ... k n -> ... m n"), ((5, 2, 3), (3, 4))).output_shapes
    ((5, 2, 4),)
    """
    inputs, outputs, factor_sizes = fitted(rule, shapes, sizes)
    return BoundRule(rule, shapes, inputs, outputs, factor_sizes)
