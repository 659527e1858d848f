"""The rule: what an operator means for layouts, in one line; the strategy, which axes split its factors; both for given shapes.

``"... m k, ... k n -> ... m n"`` declares a matrix product. A letter (factor) that an operand shares with the result
passes through; one that is missing from the result is reduced; ``...`` stands for leading dims that broadcast as in
numpy; ``1`` is a dim of size one; ``(a b)`` is a dim made of two factors, a major. Strategies, layouts, pending
reductions, gradients, flops and tests are derived from the line. Bound to shapes, a rule leads from strategies to layouts and back.

The notation is that of einops and Shardy's sharding rules; the kinds of factors are Shardy's.

Next: :mod:`spmdsim.core.step`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation import rules
from spmdsim.core.notation.rules import ELEMENTS, ELLIPSIS, Axes, Shape, Term, fitted, members
from spmdsim.errors import RuleError
from spmdsim.pictured import Pictured, ShortRepr

#: An axis along which some operands are partial, those operands and the reduction that they wait for.
Passed = tuple[str, frozenset[int], str]


@dataclass(frozen=True, repr=False)
class Rule(ShortRepr):
    """An operator's declaration. Build it with :meth:`parse`.

    Attributes:
        text: the line it was parsed from.
        inputs: one term per operand.
        outputs: one term per result.
        reductions: factors that reduce with something else than a sum.
        whole: factors that must not be split (a sort's dim, say).
        indexed: factors looked up by value (an embedding's rows): split, each rank contributes the rows it
            holds and zeros for the others.
        linear: the sets of operands that may hold partial values together, the others being replicated.
            A product is linear in each operand, a sum in all of them jointly.
        passes: the pending reductions that pass through linear operands.
        order: factors in the order of the device matrix, where it is not that of first appearance.
        work: what the local function does with each element: :data:`ELEMENTS`, :data:`FUNCTIONS` or :data:`PASSES`;
            products and look-ups show in the rule itself.
        backward: how many times the function's work its gradients take together; for a product, each of them.
    """

    text: str
    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    reductions: tuple[tuple[str, str], ...] = ()
    whole: frozenset[str] = frozenset()
    indexed: frozenset[str] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    passes: frozenset[str] = frozenset({"sum", "avg"})
    order: tuple[str, ...] = ()
    work: str = ELEMENTS
    backward: float = 1.0

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        reduce: str | Mapping[str, str] = "sum",
        whole: str = "",
        indexed: str = "",
        linear: str | Iterable[Iterable[int]] = "none",
        passes: Iterable[str] = ("sum", "avg"),
        order: str = "",
        work: str = ELEMENTS,
        backward: float = 1.0,
    ) -> Rule:
        """Read a rule: operands, ``->``, results; terms separated by commas, dims by spaces.

        ``reduce`` is the reduction of all factors missing from the results, or per factor; ``linear`` is ``"none"``,
        ``"each"`` (in every operand by itself), ``"all"`` (in all jointly) or sets of operand numbers. The rest are the
        attributes, names of factors separated by spaces. A RuleError says where a text is not a rule.

        >>> rule = Rule.parse("m k, k n -> m n", linear="each")
        >>> rule.factors, rule.reduced
        (('m', 'k', 'n'), ('k',))
        """
        rule = cls(text.strip(), *rules.terms_of(text))
        named = {} if isinstance(reduce, str) else dict(reduce)
        factors = [*whole.split(), *indexed.split(), *order.split(), *sorted(named)]
        rules.check_words(text, rule.factors, factors, work)
        ops = dict.fromkeys(rule.reduced, reduce if isinstance(reduce, str) else "sum") | named
        return replace(
            rule,
            reductions=tuple(sorted((f, o) for f, o in ops.items() if o != "sum")),
            whole=frozenset(whole.split()),
            indexed=frozenset(indexed.split()),
            linear=rules.linear_groups(linear, len(rule.inputs), text),
            passes=frozenset(passes),
            order=tuple(order.split()),
            work=work,
            backward=backward,
        )

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """All factors, operands' first, in order of first appearance (``...`` included)."""
        return tuple(dict.fromkeys(f for term in (*self.inputs, *self.outputs) for dim in term for f in dim))

    @property
    def reduced(self) -> tuple[str, ...]:
        """The factors missing from some result, which splitting therefore leaves partial."""
        return tuple(f for f in self.factors if any(f not in members(out) for out in self.outputs))

    def reduction(self, factor: str) -> str:
        """Return the reduction of a factor; the dims of ``...`` are called ``.0``, ``.1``, …"""
        return dict(self.reductions).get(ELLIPSIS if factor[0] == "." else factor, "sum")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Strategy(Pictured):
    """Axes assigned to factors, for one operator on one mesh.

    Attributes:
        mesh: the mesh.
        splits: per split factor its axes, major to minor.
        passed: axes along which some operands are partial, with those operands and the pending reduction.
    """

    mesh: Mesh
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    passed: tuple[Passed, ...] = ()

    @classmethod
    def of(
        cls, mesh: Mesh, splits: Mapping[str, str | Iterable[str]], passed: Iterable[Passed] = ()
    ) -> Strategy:
        """Build a strategy from a mapping such as ``{"m": "dp", "k": ("tp", "sp")}``."""
        items = {f: (a,) if isinstance(a, str) else tuple(a) for f, a in splits.items()}
        return cls(mesh, tuple(sorted((f, a) for f, a in items.items() if a)), tuple(sorted(passed, key=str)))

    @cached_property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Axes by factor."""
        return dict(self.splits)

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """Return the axes that split a factor (none for an unsplit one)."""
        return self.axes.get(factor, ())

    def parts(self, factor: str) -> int:
        """Return the number of blocks into which a factor is split."""
        return self.mesh.axis_size(*self.axes_of(factor))

    def __str__(self) -> str:
        words = [f"{factor}:{'.'.join(axes)}" for factor, axes in self.splits]
        words += [f"{axis}:P({op})" for axis, _, op in self.passed]
        return " ".join(words) or "replicated"


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
        """True if products are summed: linear in each of several operands, and a factor is reduced."""
        each = all(frozenset({i}) in self.rule.linear for i in range(len(self.inputs)))
        return len(self.inputs) > 1 and not self.rule.indexed and each and bool(self.reduced[0])

    @cached_property
    def reduced(self) -> tuple[tuple[str, ...], ...]:
        """The factors of the operands that each result lacks, unless they must stay whole."""
        of_inputs = set().union(*map(members, self.inputs)) - self.rule.whole
        lacking = [of_inputs - members(term) for term in self.outputs]
        return tuple(tuple(f for f in self.sizes if f in some) for some in lacking)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """The factors that an axis may split."""
        return tuple(f for f in self.sizes if f not in self.rule.whole)

    @cached_property
    def compound(self) -> frozenset[str]:
        """The factors that share a dim with another one; they split evenly only."""
        terms = (*self.inputs, *self.outputs)
        return frozenset(f for term in terms for dim in term if len(dim) > 1 for f in dim)

    # -- strategy -> layouts ------------------------------------------------------------------------

    def refusals(self, strategy: Strategy) -> Iterator[str]:
        """Yield the reasons why the rule does not allow a strategy."""
        return rules.of_strategy(self, strategy)

    def allows(self, strategy: Strategy) -> bool:
        """Return True if the rule allows a strategy."""
        return next(self.refusals(strategy), None) is None

    def check(self, strategy: Strategy) -> None:
        """Refuse a strategy that the rule does not allow, by a RuleError."""
        for refusal in self.refusals(strategy):
            raise RuleError(refusal)

    def input_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return one layout per operand: the layout that the operand must have."""
        return tuple(
            laid_out(term, strategy, tuple((a, op) for a, operands, op in strategy.passed if i in operands))
            for i, term in enumerate(self.inputs)
        )

    def steps(self, strategy: Strategy) -> Sequence[tuple[Any, Any]] | None:
        """Return each collective in the middle of the local function with its element type; None if there are none."""
        return None

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts of the results, pending reductions included."""
        return tuple(laid_out(t, strategy, self.partial_of(strategy, i)) for i, t in enumerate(self.outputs))

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """Return the layout in which the transposed rule leaves the gradient of an operand.

        Axes of factors that the operand lacks are partial, as are those along which its co-factor was.
        """
        present, size = members(self.inputs[operand]), strategy.mesh.size_of
        lacking = [a for f, axes in strategy.splits if f not in present for a in axes if size[a] > 1]
        passed = [axis for axis, operands, _ in strategy.passed if operand not in operands]
        return laid_out(self.inputs[operand], strategy, (*lacking, *passed))

    def partial_of(self, strategy: Strategy, output: int) -> tuple[tuple[str, str], ...]:
        """Return the axes along which a result is partial, with their pending reductions."""
        reduced = [
            (axis, self.rule.reduction(factor))
            for factor in self.reduced[output]
            for axis in strategy.axes_of(factor)
            if strategy.mesh.axis_size(axis) > 1
        ]
        return (*reduced, *((axis, op) for axis, _, op in strategy.passed))

    # -- layouts -> strategy ------------------------------------------------------------------------

    def infer(self, layouts: Sequence[Layout]) -> Strategy:
        """Return the strategy that fits operands in these layouts without redistribution. Raise RuleError if there is none."""
        mesh = rules.common_mesh(layouts)
        splits: dict[str, list[tuple[int, Axes]]] = {}  # by factor: the operands that have it, and its axes
        for i, (term, layout) in enumerate(zip(self.inputs, layouts)):
            for factor, axes in self._factor_axes(term, layout.canonical, i).items():
                splits.setdefault(factor, []).append((i, axes))
        rules.check_axes(self.rule, splits)
        axes_of = {factor: axes for factor, [(_, axes), *_] in splits.items()}
        strategy = Strategy.of(mesh, axes_of, self._passed(layouts, axes_of))
        self.check(strategy)
        return strategy

    def _factor_axes(self, term: Term, layout: Layout, operand: int) -> dict[str, Axes]:
        axes_of: dict[str, Axes] = {}
        for dim, (factors, axes) in enumerate(zip(term, layout.dims)):
            if not factors and axes:
                raise rules.split_of_size_one(self.rule, operand, dim, axes)
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
                raise rules.not_passed_on(self.rule, [*group], [*ops], axis)
            passed.append((axis, group, ops.pop()))
        return passed

    def strategies(self, mesh: Mesh, *, partial: bool = True, empty: bool = False) -> Iterator[Strategy]:
        """Yield every strategy on a mesh: each axis splits one factor, passes a partial value on, or does nothing.

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


@lru_cache(maxsize=4096)
def laid_out(term: Term, strategy: Strategy, partial: tuple[Any, ...] = ()) -> Layout:
    """Return the layout of a tensor whose dims have these factors; ``partial`` are axes, or axes with their reductions."""
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
