"""The rule: what an operator means for layouts, in one line.

``"... m k, ... k n -> ... m n"`` declares a matrix product. A letter (factor) that an operand shares with
the result passes through; one that is missing from the result is reduced; ``...`` stands for leading dims
that broadcast as in numpy; ``1`` is a dim of size one; ``(a b)`` is a dim made of two factors, a major.
Strategies, layouts, pending reductions, gradients, flops and tests are derived from the line.

The notation is that of einops and Shardy's sharding rules; the kinds of factors are Shardy's.

Next: :mod:`spmdsim.core.strategy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from spmdsim.errors import RuleError
from spmdsim.pictured import ShortRepr

#: A tensor's dims as an operator sees them: per dim its factors, major to minor.
Term = tuple[tuple[str, ...], ...]

ELLIPSIS = "..."
#: What operators do with each element: most read and write it, some evaluate an exponential or the like, and some go
#: several times through all of them, as softmax and norms do.
ELEMENTS, FUNCTIONS, PASSES = "elements", "functions", "passes"
_ITEM = re.compile(r"\.\.\.|\(([^()]*)\)|[A-Za-z_][A-Za-z_0-9]*|1|\S")


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
    passes: frozenset[str] = field(default=frozenset({"sum", "avg"}))
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
        named = {} if isinstance(reduce, str) else dict(reduce)
        return _parse(
            text,
            reduce if isinstance(reduce, str) else "sum",
            tuple(sorted(named.items())),
            tuple(whole.split()),
            tuple(indexed.split()),
            linear if isinstance(linear, str) else tuple(tuple(group) for group in linear),
            tuple(passes),
            tuple(order.split()),
            work,
            backward,
        )

    @property
    def factors(self) -> tuple[str, ...]:
        """All factors, operands' first, in order of first appearance (``...`` included)."""
        seen: dict[str, None] = {}
        for term in (*self.inputs, *self.outputs):
            for dim in term:
                seen.update(dict.fromkeys(dim))
        return tuple(seen)

    @property
    def reduced(self) -> tuple[str, ...]:
        """The factors missing from some result, which splitting therefore leaves partial."""
        return tuple(f for f in self.factors if any(f not in members(out) for out in self.outputs))

    def reduction(self, factor: str) -> str:
        """The reduction op of a factor; those of the dims of ``...`` are called ``.0``, ``.1``, …"""
        return dict(self.reductions).get(ELLIPSIS if factor[0] == "." else factor, "sum")

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def _parse(
    text: str,
    op: str,
    named: tuple[tuple[str, str], ...],
    whole: tuple[str, ...],
    indexed: tuple[str, ...],
    linear: str | tuple[tuple[int, ...], ...],
    passes: tuple[str, ...],
    order: tuple[str, ...],
    work: str,
    backward: float,
) -> Rule:
    if text.count("->") != 1:
        raise RuleError(f"a rule has one '->' between operands and results, but this has not: {text!r}")
    left, right = text.split("->")
    inputs = tuple(_term(part, text) for part in left.split(","))
    outputs = tuple(_term(part, text) for part in right.split(","))
    rule = Rule(text.strip(), inputs, outputs)
    known = set(rule.factors)
    for name in (*whole, *indexed, *order, *(factor for factor, _ in named)):
        if name not in known:
            raise RuleError(f"factor {name!r} does not occur in the rule {text!r}")
    if work not in (ELEMENTS, FUNCTIONS, PASSES):
        raise RuleError(
            f"the work of a rule is {ELEMENTS!r}, {FUNCTIONS!r} or {PASSES!r}, but got {work!r} for {text!r}"
        )
    ops = dict.fromkeys(rule.reduced, op) | dict(named)
    return Rule(
        rule.text,
        inputs,
        outputs,
        reductions=tuple(sorted((f, o) for f, o in ops.items() if o != "sum")),
        whole=frozenset(whole),
        indexed=frozenset(indexed),
        linear=_linear(linear, len(inputs), text),
        passes=frozenset(passes),
        order=order,
        work=work,
        backward=backward,
    )


def _linear(linear: str | tuple[tuple[int, ...], ...], count: int, text: str) -> tuple[frozenset[int], ...]:
    if linear == "none":
        return ()
    if linear == "each":
        return tuple(frozenset({i}) for i in range(count))
    if linear == "all":
        return (frozenset(range(count)),)
    if isinstance(linear, str):
        raise RuleError(
            f"linear is 'none', 'each', 'all' or sets of operands, but got {linear!r} for {text!r}"
        )
    return tuple(frozenset(group) for group in linear)


def _term(part: str, text: str) -> Term:
    dims: list[tuple[str, ...]] = []
    for match in _ITEM.finditer(part):
        item = match.group(0)
        if match.group(1) is not None:
            factors = tuple(match.group(1).split())
            if not all(factor.isidentifier() for factor in factors):
                raise RuleError(f"{item!r} in the rule {text!r} must hold factor names only")
            dims.append(factors)
        elif item == "1":
            dims.append(())
        elif item == ELLIPSIS or item.isidentifier():
            dims.append((item,))
        else:
            raise RuleError(f"{item!r} is neither a factor, '...', '1' nor '(a b)' in the rule {text!r}")
    names = [name for dim in dims for name in dim]
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    if repeated:
        raise RuleError(f"factor {repeated[0]!r} occurs twice in one term of the rule {text!r}")
    return tuple(dims)


def members(term: Term) -> set[str]:
    """All factors of a term."""
    return {factor for dim in term for factor in dim}
