"""Rules: state in one line what an operator means for layouts; strategies: the axes that split a rule's factors.

``"... m k, ... k n -> ... m n"`` declares a matrix product. A letter (factor) that an operand shares with the result
passes through; one that is missing from the result is reduced; ``...`` stands for leading dims that broadcast as in
numpy; ``1`` is a dim of size one; ``(a b)`` is a dim made of two factors, a major. Strategies, layouts, pending
reductions, gradients, flops and tests are derived from the line. A rule bound to shapes converts strategies to layouts
and back.

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
from spmdsim.core.notation.rules import ELEMENTS, ELLIPSIS, Axes, Shape, Term, fit_shapes, list_factors
from spmdsim.errors import RuleError, many
from spmdsim.pictured import Pictured, ShortRepr
from spmdsim.wrong_calls import explained

#: An axis along which some operands are partial, those operands and the reduction that they wait for.
Passed = tuple[str, frozenset[int], str]


@explained
@dataclass(frozen=True, repr=False)
class Rule(ShortRepr):
    """Declaration of an operator. Build it with :meth:`parse`.

    Attributes:
        text: the line it was parsed from.
        inputs: one term per operand.
        outputs: one term per result.
        reductions: ``(factor, reduction)`` of the factors that are not reduced by a sum.
        whole: factors that must not be split, such as the dim of a sort.
        indexed: factors looked up by value, such as an embedding's rows. If one is split, each rank contributes the
            rows that it owns and zeros for the others.
        linear: the sets of operands that may be partial together while the other operands are replicated.
            A product is linear in each operand, a sum in all of them jointly.
        passes: the pending reductions that pass through linear operands.
        order: factors in the order of the device matrix, if it is not the order of first appearance.
        work: the work of the local function on each element: :data:`ELEMENTS`, :data:`FUNCTIONS` or :data:`PASSES`.
            Products and look-ups follow from the rule itself.
        backward: the work of all gradients together, as a multiple of the function's; for a product, of each gradient.
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
    @explained
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
        """Return the rule that a text declares.

        Args:
            text: the terms of the operands, ``->``, the terms of the results. Terms are separated by commas, and the
                factors of their dims by spaces. See the module's text for ``...``, ``1`` and ``(a b)``.
            reduce: the reduction of all factors missing from the results, or reductions by factor; factors without one
                are summed. The names are not checked here.
            whole: names of factors that must not be split, separated by spaces.
            indexed: names of factors that are looked up by value, separated by spaces.
            linear: ``"none"``, ``"each"`` (linear in every operand by itself), ``"all"`` (in all jointly) or sets of
                operand numbers.
            passes: the pending reductions that pass through linear operands.
            order: names of factors in the order of the device matrix, separated by spaces; other factors follow in the
                order of their first appearance.
            work: the work of the local function on each element: :data:`ELEMENTS`, :data:`FUNCTIONS` or :data:`PASSES`.
            backward: the work of all gradients together, as a multiple of the function's work; for a product, the work
                of each gradient.

        Raises:
            RuleError: If the text is not a rule, or an argument names an unknown factor or kind of work.

        >>> rule = Rule.parse("m k, k n -> m n", linear="each")
        >>> rule.factors, rule.reduced
        (('m', 'k', 'n'), ('k',))
        """
        rule = cls(str(text).strip(), *rules.terms_of(text))
        named = {} if isinstance(reduce, str) else dict(reduce)
        factors = [*whole.split(), *indexed.split(), *order.split(), *sorted(named)]
        rules.check_words(text, rule.factors, factors, work)
        ops = dict.fromkeys(rule.reduced, reduce if isinstance(reduce, str) else "sum") | named
        return replace(
            rule,
            reductions=tuple(sorted((f, o) for f, o in ops.items() if o != "sum")),
            whole=frozenset(whole.split()),
            indexed=frozenset(indexed.split()),
            linear=rules.linear_groups(linear, len(rule.inputs)),
            passes=frozenset(passes),
            order=tuple(order.split()),
            work=work,
            backward=backward,
        )

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Tuple of all factors in order of first appearance, operands' first, including ``...``."""
        return tuple(dict.fromkeys(f for term in (*self.inputs, *self.outputs) for dim in term for f in dim))

    @property
    def reduced(self) -> tuple[str, ...]:
        """Factors that some result lacks; a result is partial along axes that split them."""
        return tuple(f for f in self.factors if any(f not in list_factors(out) for out in self.outputs))

    def reduction(self, factor: str) -> str:
        """Return the name of the reduction of a factor, "sum" by default.

        The dims of ``...`` are called ``.0``, ``.1`` and so on; they have the reduction of ``...``.
        """
        return dict(self.reductions).get(ELLIPSIS if factor[0] == "." else factor, "sum")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Strategy(Pictured):
    """Mesh axes assigned to factors, for one operator on one mesh.

    Attributes:
        mesh: the mesh.
        splits: each split factor with its axes, major to minor; sorted by factor.
        passed: axes along which some operands are partial, with those operands and the pending reduction.
    """

    mesh: Mesh
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    passed: tuple[Passed, ...] = ()

    @classmethod
    def of(
        cls, mesh: Mesh, splits: Mapping[str, str | Iterable[str]], passed: Iterable[Passed] = ()
    ) -> Strategy:
        """Return the strategy with these axes by factor, such as ``{"m": "dp", "k": ("tp", "sp")}``."""
        items = {f: (a,) if isinstance(a, str) else tuple(a) for f, a in splits.items()}
        return cls(mesh, tuple(sorted((f, a) for f, a in items.items() if a)), tuple(sorted(passed, key=str)))

    @cached_property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Axes by factor, for the split factors."""
        return dict(self.splits)

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """Return the axes that split a factor, major to minor; none if it is not split."""
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
    """Rule whose factors have sizes and whose ``...`` is written out.

    The dims of ``...`` become factors ``.0``, ``.1``, … counted from the right. A dim of size 1 that is
    broadcast has no factor: it is never split, and its gradient is summed over the factor that it lacks.

    Attributes:
        rule: the rule.
        shapes: the global shapes of the operands.
        inputs: one term per operand, written out.
        outputs: one term per result, written out.
        factor_sizes: each factor with its size, in device-matrix order.
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
        """True if products are summed.

        This holds if the rule is linear in each of several operands, and a factor is reduced.
        """
        is_linear_in_each = all(frozenset({i}) in self.rule.linear for i in range(len(self.inputs)))
        has_products = len(self.inputs) > 1 and is_linear_in_each and not self.rule.indexed
        return has_products and bool(self.reduced[0])

    @cached_property
    def reduced(self) -> tuple[tuple[str, ...], ...]:
        """Factors of the operands that each result lacks, without those that must not be split."""
        of_inputs = set().union(*map(list_factors, self.inputs)) - self.rule.whole
        lacking = [of_inputs - list_factors(term) for term in self.outputs]
        return tuple(tuple(f for f in self.sizes if f in factors) for factors in lacking)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """Factors that an axis may split."""
        return tuple(f for f in self.sizes if f not in self.rule.whole)

    @cached_property
    def compound(self) -> frozenset[str]:
        """Factors that share a dim with another factor; they can only be split evenly."""
        terms = (*self.inputs, *self.outputs)
        return frozenset(f for term in terms for dim in term if len(dim) > 1 for f in dim)

    # -- strategy -> layouts ------------------------------------------------------------------------

    def refusals(self, strategy: Strategy) -> Iterator[str]:
        """Yield the reasons, as texts, why the rule does not allow a strategy; nothing if it does.

        A strategy is refused if:

        - it splits a factor that the rule lacks, or one in ``Rule.whole``;
        - it splits a factor that shares a dim with others, such as a in ``(a b)``, unevenly;
        - it splits the minor factor b of ``(a b)``, unless a is split into as many blocks as it has elements;
        - it gives a result several kinds of pending reductions, such as a sum and a maximum.

        Axes of size 1 may be given to a factor in ``Rule.whole``. A factor that shares no dim may be split unevenly,
        even into more blocks than elements.
        """
        sizes, parts = self.sizes, strategy.parts
        for factor, axes in strategy.splits:
            if factor not in sizes:
                yield f"strategy splits {factor!r}, but the rule '{self.rule}' has factors {list(sizes)}"
            elif factor in self.rule.whole and parts(factor) > 1:
                yield f"factor {factor!r} of the rule '{self.rule}' must not be split, but axes {axes} split it"
            elif factor in self.compound and sizes[factor] % parts(factor):
                yield (
                    f"factor {factor!r} of size {sizes[factor]} shares a dim with others, so it can only "
                    f"be cut evenly, not into {many(parts(factor), 'block')}"
                )
        for dim in itertools.chain(*self.inputs, *self.outputs):
            for major, minor in itertools.pairwise(dim):
                if parts(minor) > 1 and parts(major) != sizes[major]:
                    yield (
                        f"in the dim ({' '.join(dim)}) factor {minor!r} can only be split where {major!r} is split "
                        f"completely ({many(sizes[major], 'block')}, not {parts(major)})"
                    )
        for output in range(len(self.outputs)):
            ops = {op for _, op in self.partial_of(strategy, output)}
            if len(ops) > 1:
                yield f"strategy {strategy} would leave different reductions pending: {sorted(ops)}"

    def allows(self, strategy: Strategy) -> bool:
        """Return True if the rule allows a strategy."""
        return next(self.refusals(strategy), None) is None

    def check(self, strategy: Strategy) -> None:
        """Raise RuleError if the rule does not allow a strategy."""
        for refusal in self.refusals(strategy):
            raise RuleError(refusal)

    def input_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts that the local function needs, one per operand."""
        return tuple(
            term_layout(term, strategy, tuple((a, op) for a, xs, op in strategy.passed if i in xs))
            for i, term in enumerate(self.inputs)
        )

    def steps(self, strategy: Strategy) -> Sequence[tuple[Any, Any]] | None:
        """Return the collectives that the local function runs, each with its element type, or None.

        Rules of operators that communicate while they compute override it.
        """
        return None

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts of the results, with their pending reductions."""
        partial = [self.partial_of(strategy, output) for output in range(len(self.outputs))]
        return tuple(term_layout(term, strategy, axes) for term, axes in zip(self.outputs, partial))

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """Return the layout in which the local gradient function leaves the gradient of an operand.

        The gradient is partial along the axes that split factors which the operand lacks, and along the axes over
        which the strategy has other operands partial.
        """
        present, size = list_factors(self.inputs[operand]), strategy.mesh.size_of
        lacking = [a for f, axes in strategy.splits if f not in present for a in axes if size[a] > 1]
        passed = [axis for axis, operands, _ in strategy.passed if operand not in operands]
        return term_layout(self.inputs[operand], strategy, (*lacking, *passed))

    def partial_of(self, strategy: Strategy, output: int) -> tuple[tuple[str, str], ...]:
        """Return ``(axis, reduction)`` of the axes along which a result is partial.

        First come the axes that split factors which the result lacks, such as ``k`` in a matrix product, in the
        order of ``factor_sizes``; axes of size 1 are left out. Then come the strategy's ``passed`` axes.

        Args:
            strategy: the strategy.
            output: the number of the result.
        """
        reduced = [
            (axis, self.rule.reduction(factor))
            for factor in self.reduced[output]
            for axis in strategy.axes_of(factor)
            if strategy.mesh.axis_size(axis) > 1
        ]
        return (*reduced, *((axis, op) for axis, _, op in strategy.passed))

    # -- layouts -> strategy ------------------------------------------------------------------------

    def infer(self, layouts: Sequence[Layout]) -> Strategy:
        """Return the strategy for which operands in these layouts need no redistribution.

        Axes of size 1 in the layouts are ignored. Partial operands stay partial if the rule passes their
        reductions.

        Args:
            layouts: the layout of each operand.

        Raises:
            RuleError: If there is no such strategy, because

                * the layouts are on different meshes;
                * they split a factor differently, or two factors by one axis;
                * they split a dim of size 1;
                * a pending reduction does not pass, or the rule refuses the strategy.
        """
        mesh = common_mesh(layouts)
        splits: dict[str, list[tuple[int, Axes]]] = {}  # by factor: the operands that have it, and its axes
        for i, (term, layout) in enumerate(zip(self.inputs, layouts)):
            for factor, axes in self._factor_axes(term, layout.canonical, i).items():
                splits.setdefault(factor, []).append((i, axes))
        rules.check_axes(self.rule.text, splits)
        axes_of = {factor: axes for factor, [(_, axes), *_] in splits.items()}
        strategy = Strategy.of(mesh, axes_of, self._find_passed(layouts, axes_of))
        self.check(strategy)
        return strategy

    def _factor_axes(self, term: Term, layout: Layout, operand: int) -> dict[str, Axes]:
        """Return the axes that split each factor of an operand; () for factors that are not split.

        Each factor of a dim with several factors takes axes, major first, until it has at least as many blocks as
        elements; the last factor takes the remaining axes. So a dim ``(a b)`` with 4 elements of ``a``, split by axes
        x=2, y=2, z=2, gives ``{"a": ("x", "y"), "b": ("z",)}``.

        Args:
            term: the factors of each dim of the operand.
            layout: the layout of the operand.
            operand: the number of the operand, for the message.

        Raises:
            RuleError: If an axis splits a dim without factors, which is a dim of size 1.
        """
        axes_of: dict[str, Axes] = {}
        for dim, (factors, axes) in enumerate(zip(term, layout.dims)):
            if not factors and axes:
                raise rules.size_one_split_error(self.rule.text, operand, dim, axes)
            for factor in factors:
                count = len(axes) if factor == factors[-1] else 0
                while count < len(axes) and layout.mesh.axis_size(*axes[:count]) < self.sizes[factor]:
                    count += 1
                axes_of[factor], axes = axes[:count], axes[count:]
        return axes_of

    def _find_passed(self, layouts: Sequence[Layout], splits: Mapping[str, Axes]) -> list[Passed]:
        """Return ``(axis, operands, reduction)`` of each axis along which operands are partial.

        The pending reduction of these operands passes to the result. This is possible if the rule is linear in
        the operands together, and passes the reduction. For example, a product ``m k, k n -> m n`` is linear in
        each operand. If only operand 0 has a pending sum along x, the list is ``[("x", {0}, "sum")]``; if both
        have one, the method raises. Axes of size 1 are left out.

        Args:
            layouts: the layouts of the operands.
            splits: the axes of each factor.

        Raises:
            RuleError: If the result would not have this pending reduction: the rule is not linear in the operands or
                does not pass the reduction, the operands wait for different reductions, or the axis splits a factor.
        """
        partial: dict[str, dict[int, str]] = {}
        for i, layout in enumerate(layouts):
            for axis, op in layout.canonical.partial:
                partial.setdefault(axis, {})[i] = op
        passed_axes, split_axes = [], {*itertools.chain(*splits.values())}
        for axis, operands in partial.items():
            group, ops = frozenset(operands), {*operands.values()}
            passes = group in self.rule.linear and len(ops) == 1 and ops <= self.rule.passes
            if not passes or axis in split_axes:
                raise rules.not_passed_error(self.rule.text, [*group], [*ops], axis)
            passed_axes.append((axis, group, ops.pop()))
        return passed_axes

    def strategies(self, mesh: Mesh, *, partial: bool = True, empty: bool = False) -> Iterator[Strategy]:
        """Yield every strategy on a mesh that the rule allows.

        Each axis does nothing, splits one factor, or passes a pending reduction on, tried in this order. The
        last axis changes fastest. With ``n`` choices per axis, ``n ** number of axes`` strategies are tried.
        For example, the rule ``m n -> m n``, which is not linear, has the choices nothing, m and n: 9
        strategies on two axes.

        Args:
            mesh: the mesh.
            partial: True to include strategies in which operands are partial. Their reduction is a sum if the rule
                passes sums, else the first one in the alphabet that it passes.
            empty: True to include strategies in which some ranks own empty blocks.
        """
        choices: list[object] = [None, *self.splittable, *(self.rule.linear if partial else ())]
        op = "sum" if "sum" in self.rule.passes else min(self.rule.passes, default="sum")
        for axis_uses in itertools.product(choices, repeat=len(mesh.axes)):
            splits: dict[str, Axes] = {}
            passed = []
            for axis, use in zip(mesh.axes, axis_uses):
                if isinstance(use, str):
                    splits[use] = (*splits.get(use, ()), axis)
                elif isinstance(use, frozenset):
                    passed.append((axis, use, op))
            strategy = Strategy.of(mesh, splits, passed)
            has_empty_blocks = any(strategy.parts(f) > self.sizes[f] for f in splits)
            if (empty or not has_empty_blocks) and self.allows(strategy):
                yield strategy


def common_mesh(layouts: Sequence[Layout]) -> Mesh:
    """Return the mesh on which all layouts are.

    Args:
        layouts: at least one layout.

    Raises:
        RuleError: If a layout's mesh differs from that of the first layout.
    """
    mesh = layouts[0].mesh
    for layout in layouts:
        if layout.mesh != mesh:
            raise RuleError(f"operands must be on one mesh, got {mesh} and {layout.mesh}; redistribute one")
    return mesh


@lru_cache(maxsize=4096)
def term_layout(term: Term, strategy: Strategy, partial: tuple[Any, ...] = ()) -> Layout:
    """Return the layout of a tensor whose dims have the factors of ``term``.

    ``partial`` has axes with pending sums, or axes with their reductions.
    """
    dims = [tuple(axis for factor in dim for axis in strategy.axes_of(factor)) for dim in term]
    return Layout(strategy.mesh, dims, partial)


@lru_cache(maxsize=4096)
def bind(rule: Rule, shapes: tuple[Shape, ...], sizes: tuple[tuple[str, int], ...] = ()) -> BoundRule:
    """Return a rule bound to the shapes of its operands; RuleError if they do not fit.

    ``sizes`` has the sizes of factors that the shapes do not determine.

    >>> bind(Rule.parse("... m k, ... k n -> ... m n"), ((5, 2, 3), (3, 4))).output_shapes
    ((5, 2, 4),)
    """
    order = (*rule.order, *rule.factors)
    inputs, outputs, factor_sizes = fit_shapes(rule.text, (rule.inputs, rule.outputs), order, shapes, sizes)
    return BoundRule(rule, shapes, inputs, outputs, factor_sizes)
