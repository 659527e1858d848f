"""The rule: what an operator means for layouts, in one line; and the strategy, which axes split its factors.

``"... m k, ... k n -> ... m n"`` declares a matrix product. A letter (factor) that an operand shares with the result
passes through; one that is missing from the result is reduced; ``...`` stands for leading dims that broadcast as in
numpy; ``1`` is a dim of size one; ``(a b)`` is a dim made of two factors, a major. Strategies, layouts, pending
reductions, gradients, flops and tests are derived from the line.

The notation is that of einops and Shardy's sharding rules; the kinds of factors are Shardy's.

Next: :mod:`spmdsim.core.bound`, what follows from both for given shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from spmdsim.core.mesh import Mesh
from spmdsim.notation import rule_terms
from spmdsim.notation.rule_terms import ELEMENTS, ELLIPSIS, Term, members
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
        rule = cls(text.strip(), *rule_terms.terms_of(text))
        named = {} if isinstance(reduce, str) else dict(reduce)
        factors = [*whole.split(), *indexed.split(), *order.split(), *sorted(named)]
        rule_terms.check_words(text, rule.factors, factors, work)
        ops = dict.fromkeys(rule.reduced, reduce if isinstance(reduce, str) else "sum") | named
        return replace(
            rule,
            reductions=tuple(sorted((f, o) for f, o in ops.items() if o != "sum")),
            whole=frozenset(whole.split()),
            indexed=frozenset(indexed.split()),
            linear=rule_terms.linear_groups(linear, len(rule.inputs), text),
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
        """The reduction op of a factor; those of the dims of ``...`` are called ``.0``, ``.1``, …"""
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
        """A strategy from a mapping such as ``{"m": "dp", "k": ("tp", "sp")}``."""
        items = {f: (a,) if isinstance(a, str) else tuple(a) for f, a in splits.items()}
        return cls(mesh, tuple(sorted((f, a) for f, a in items.items() if a)), tuple(sorted(passed, key=str)))

    @cached_property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Axes by factor."""
        return dict(self.splits)

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """The axes that split a factor (none for an unsplit one)."""
        return self.axes.get(factor, ())

    def parts(self, factor: str) -> int:
        """Into how many pieces a factor is cut."""
        return self.mesh.axis_size(*self.axes_of(factor))

    def __str__(self) -> str:
        words = [f"{factor}:{'.'.join(axes)}" for factor, axes in self.splits]
        words += [f"{axis}:P({op})" for axis, _, op in self.passed]
        return " ".join(words) or "replicated"
