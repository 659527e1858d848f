"""A rule bound to shapes, its ``...`` written out: from strategies to layouts and back.

Next: :mod:`spmdsim.core.step`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from spmdsim.core.layout import Layout
from spmdsim.core.mesh import Mesh
from spmdsim.core.rule import ELLIPSIS, Rule, Strategy, Term, members
from spmdsim.errors import RuleError
from spmdsim.pictured import ShortRepr

Shape = tuple[int, ...]


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

    def check(self, strategy: Strategy) -> None:
        """Refuse a strategy that the rule does not allow, by a RuleError."""
        for factor, axes in strategy.splits:
            if factor not in self.sizes:
                raise RuleError(
                    f"strategy splits {factor!r}, but the rule '{self.rule}' has factors {list(self.sizes)}"
                )
            if factor in self.rule.whole and strategy.parts(factor) > 1:
                raise RuleError(
                    f"factor {factor!r} of the rule '{self.rule}' must not be split, but axes {axes} split it"
                )
            if factor in self.compound and self.sizes[factor] % strategy.parts(factor):
                raise RuleError(
                    f"factor {factor!r} of size {self.sizes[factor]} shares a dim with others, so it can only "
                    f"be cut evenly, not into {strategy.parts(factor)} pieces"
                )
        for dim in itertools.chain(*self.inputs, *self.outputs):
            for major, minor in itertools.pairwise(dim):
                if strategy.parts(minor) > 1 and strategy.parts(major) != self.sizes[major]:
                    raise RuleError(
                        f"in the dim ({' '.join(dim)}) factor {minor!r} can only be split where {major!r} is split "
                        f"completely ({self.sizes[major]} pieces, not {strategy.parts(major)})"
                    )
        for output in range(len(self.outputs)):
            ops = {op for _, op in self._partial(strategy, output)}
            if len(ops) > 1:
                raise RuleError(
                    f"strategy {strategy} would leave different reductions pending: {sorted(ops)}"
                )

    def allows(self, strategy: Strategy) -> bool:
        """Whether :meth:`check` accepts the strategy."""
        try:
            self.check(strategy)
        except RuleError:
            return False
        return True

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
        return tuple(laid_out(t, strategy, self._partial(strategy, i)) for i, t in enumerate(self.outputs))

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """The layout in which the gradient of an operand comes out of the transposed rule.

        The axes of every factor the operand lacks are partial; so are axes along which another operand,
        which the gradient is a product of, was partial.
        """
        present, size = members(self.inputs[operand]), strategy.mesh.size_of
        lacking = [
            a for factor, axes in strategy.splits if factor not in present for a in axes if size[a] > 1
        ]
        passed = [axis for axis, operands, _ in strategy.passed if operand not in operands]
        return laid_out(self.inputs[operand], strategy, [*lacking, *passed])

    def _partial(self, strategy: Strategy, output: int) -> list[tuple[str, str]]:
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
        mesh = common_mesh(layouts)
        splits: dict[str, tuple[str, ...]] = {}
        owner: dict[str, int] = {}
        for i, (term, layout) in enumerate(zip(self.inputs, layouts)):
            for factor, axes in self._factor_axes(term, layout.canonical, i).items():
                if factor in splits and splits[factor] != axes:
                    raise RuleError(
                        f"factor {factor!r} of the rule '{self.rule}' is split by {_names(splits[factor])} in "
                        f"operand {owner[factor]} but by {_names(axes)} in operand {i}; both must be the same"
                    )
                splits[factor], owner[factor] = axes, owner.get(factor, i)
        strategy = Strategy.of(mesh, splits, self._passed(layouts, splits))
        used: dict[str, str] = {}
        for factor, axis in ((factor, axis) for factor, axes in strategy.splits for axis in axes):
            if axis in used:
                raise RuleError(
                    f"axis {axis!r} splits factor {used[axis]!r} (operand {owner[used[axis]]}) and factor "
                    f"{factor!r} (operand {owner[factor]}) of the rule '{self.rule}'; it can split only one"
                )
            used[axis] = factor
        self.check(strategy)
        return strategy

    def _factor_axes(self, term: Term, layout: Layout, operand: int) -> dict[str, tuple[str, ...]]:
        axes_of: dict[str, tuple[str, ...]] = {}
        for dim, (factors, axes) in enumerate(zip(term, layout.dims)):
            if not factors and axes:
                raise RuleError(
                    f"dim {dim} of operand {operand} has size 1 in the rule '{self.rule}', but {_names(axes)} "
                    "splits it"
                )
            for factor in factors:
                taken = len(axes) if factor == factors[-1] else 0
                while taken < len(axes) and layout.mesh.axis_size(*axes[:taken]) < self.sizes[factor]:
                    taken += 1
                axes_of[factor], axes = axes[:taken], axes[taken:]
        return axes_of

    def _passed(
        self, layouts: Sequence[Layout], splits: dict[str, tuple[str, ...]]
    ) -> list[tuple[str, frozenset[int], str]]:
        pending: dict[str, dict[int, str]] = {}
        for i, layout in enumerate(layouts):
            for axis, op in layout.canonical.partial:
                pending.setdefault(axis, {})[i] = op
        passed, split = [], {*itertools.chain(*splits.values())}
        for axis, operands in pending.items():
            group, ops = frozenset(operands), set(operands.values())
            if group not in self.rule.linear or len(ops) > 1 or not ops <= self.rule.passes or axis in split:
                raise RuleError(
                    f"operands {sorted(group)} are partial ({', '.join(sorted(ops))}) over axis {axis!r}, which "
                    f"the rule '{self.rule}' does not pass on; reduce them first"
                )
            passed.append((axis, group, ops.pop()))
        return passed

    # -- all strategies -----------------------------------------------------------------------------

    def strategies(self, mesh: Mesh, *, partial: bool = True, empty: bool = False) -> Iterator[Strategy]:
        """Every strategy on a mesh: each axis splits one factor, passes a partial value on, or does nothing.

        ``partial``: also those in which operands arrive partial (sums); ``empty``: also those in which some rank gets
        an empty block.
        """
        choices: list[object] = [None, *self.splittable, *(self.rule.linear if partial else ())]
        op = "sum" if "sum" in self.rule.passes else min(self.rule.passes, default="sum")
        for picks in itertools.product(choices, repeat=len(mesh.axes)):
            splits: dict[str, tuple[str, ...]] = {}
            passed = []
            for axis, pick in zip(mesh.axes, picks):
                if isinstance(pick, str):
                    splits[pick] = (*splits.get(pick, ()), axis)
                elif isinstance(pick, frozenset):
                    passed.append((axis, pick, op))
            strategy = Strategy.of(mesh, splits, passed)
            if (empty or all(strategy.parts(f) <= self.sizes[f] for f in splits)) and self.allows(strategy):
                yield strategy


def common_mesh(layouts: Sequence[Layout]) -> Mesh:
    """The mesh all layouts share; RuleError if they are on different ones."""
    mesh = layouts[0].mesh
    for layout in layouts:
        if layout.mesh != mesh:
            raise RuleError(f"operands live on different meshes, {mesh} and {layout.mesh}")
    return mesh


def laid_out(term: Term, strategy: Strategy, partial: Any = ()) -> Layout:
    """The layout of a tensor whose dims have these factors."""
    dims = [tuple(axis for factor in dim for axis in strategy.axes_of(factor)) for dim in term]
    return Layout(strategy.mesh, dims, partial)


def _names(axes: tuple[str, ...]) -> str:
    return "no axis" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes)


@lru_cache(maxsize=4096)
def bind(rule: Rule, shapes: tuple[Shape, ...], sizes: tuple[tuple[str, int], ...] = ()) -> BoundRule:
    """Give a rule the shapes of its operands, and the sizes of factors that these do not determine.

    Raises:
        RuleError: a wrong number of operands or dims, sizes that contradict each other.

    >>> bind(Rule.parse("... m k, ... k n -> ... m n"), ((5, 2, 3), (3, 4))).output_shapes
    ((5, 2, 4),)
    """
    if len(shapes) != len(rule.inputs):
        raise RuleError(f"the rule '{rule}' takes {len(rule.inputs)} operands, but {len(shapes)} were given")
    size_of: dict[str, int] = dict(sizes)
    terms = [_of_ndim(term, len(shape), rule) for term, shape in zip(rule.inputs, shapes)]
    for i, (term, shape) in enumerate(zip(terms, shapes)):
        _learn(term, shape, size_of, rule, i)
    inputs = tuple(_without_broadcast(term, shape, size_of) for term, shape in zip(terms, shapes))
    for i, (term, shape) in enumerate(zip(inputs, shapes)):
        _solve_compound(term, shape, size_of, rule, i)
    dots = sorted((f for f in size_of if f.startswith(".")), key=lambda f: -int(f[1:]))
    outputs = tuple(_written_out(term, len(dots)) for term in rule.outputs)
    if missing := [f for term in outputs for f in members(term) if f not in size_of]:
        raise RuleError(f"the size of factor {missing[0]!r} in the result of the rule '{rule}' must be given")
    # Device-matrix order: the dims of '...' where it first occurs, the rest by first appearance.
    ordered = [g for f in (*rule.order, *rule.factors) for g in (dots if f == ELLIPSIS else [f])]
    factor_sizes = tuple((f, size_of[f]) for f in dict.fromkeys(ordered) if f in size_of)
    return BoundRule(rule, shapes, inputs, outputs, factor_sizes)


def _written_out(term: Term, width: int) -> Term:
    dots = [(f".{k}",) for k in reversed(range(width))]
    return tuple(each for dim in term for each in (dots if dim == (ELLIPSIS,) else [dim]))


def _of_ndim(term: Term, ndim: int, rule: Rule) -> Term:
    least = len(term) - 1
    if (ELLIPSIS,) in term:
        if ndim < least:
            raise RuleError(f"the rule '{rule}' needs at least {least} dims, but an operand has {ndim}")
        return _written_out(term, ndim - least)
    if len(term) != ndim:
        raise RuleError(f"the rule '{rule}' needs an operand of {len(term)} dims, but it has {ndim}")
    return term


def _learn(term: Term, shape: Shape, size_of: dict[str, int], rule: Rule, operand: int) -> None:
    for dim, size in zip(term, shape):
        if not dim and size != 1:
            raise RuleError(
                f"the rule '{rule}' needs size 1 where operand {operand} of shape {shape} has {size}"
            )
        if len(dim) != 1:
            continue
        factor, before = dim[0], size_of.get(dim[0], size)
        broadcast = factor.startswith(".")
        if before != size and not (broadcast and 1 in (before, size)):
            name = f"dim {factor[1:]} from the right of '...'" if broadcast else f"factor {factor!r}"
            raise RuleError(
                f"{name} of the rule '{rule}' has size {before}, but {size} in operand {operand} of shape {shape}"
            )
        size_of[factor] = size if before == 1 else before


def _without_broadcast(term: Term, shape: Shape, size_of: dict[str, int]) -> Term:
    return tuple(
        () if len(dim) == 1 and dim[0].startswith(".") and size != size_of[dim[0]] else dim
        for dim, size in zip(term, shape)
    )


def _solve_compound(term: Term, shape: Shape, size_of: dict[str, int], rule: Rule, operand: int) -> None:
    for dim, size in zip(term, shape):
        unknown = [factor for factor in dim if factor not in size_of]
        together = math.prod(size_of[factor] for factor in dim if factor in size_of)
        if len(unknown) > 1:
            raise RuleError(f"sizes of {unknown} in ({' '.join(dim)}) of the rule '{rule}' must be given")
        if unknown and together and size % together == 0:
            size_of[unknown[0]] = size // together
        elif unknown or together != size:
            raise RuleError(
                f"({' '.join(dim)}) of the rule '{rule}' cannot have size {size} (operand {operand}, shape "
                f"{shape}): its known factors make {together}"
            )
