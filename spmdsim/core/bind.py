"""Binding a rule to shapes: sizes for its factors, its ``...`` written out.

Next: :mod:`spmdsim.core.step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from spmdsim.core.bound import BoundRule, Shape, members
from spmdsim.core.rule import ELLIPSIS, Rule, Term
from spmdsim.errors import RuleError


@lru_cache(maxsize=4096)
def bind(rule: Rule, shapes: tuple[Shape, ...], sizes: tuple[tuple[str, int], ...] = ()) -> BoundRule:
    """Give a rule the shapes of its operands.

    Args:
        rule: the rule.
        shapes: one shape per operand.
        sizes: sizes of factors that the shapes do not determine.

    Raises:
        RuleError: a wrong number of operands or dims, sizes that contradict each other.

    >>> bind(Rule.parse("... m k, ... k n -> ... m n"), ((5, 2, 3), (3, 4))).output_shapes
    ((5, 2, 4),)
    """
    if len(shapes) != len(rule.inputs):
        raise RuleError(f"the rule '{rule}' takes {len(rule.inputs)} operands, but {len(shapes)} were given")
    found: dict[str, int] = dict(sizes)
    width = _ellipsis_width(rule, shapes)
    terms = [_expand(term, len(shape), rule) for term, shape in zip(rule.inputs, shapes)]
    for i, (term, shape) in enumerate(zip(terms, shapes)):
        _learn(term, shape, found, rule, i)
    known = [_without_broadcast(term, shape, found) for term, shape in zip(terms, shapes)]
    for i, (term, shape) in enumerate(zip(known, shapes)):
        _solve_compound(term, shape, found, rule, i)
    outputs = tuple(_expand_ellipsis(term, width) for term in rule.outputs)
    ordered = _in_order(rule, known, outputs, found)
    return BoundRule(rule, shapes, tuple(known), outputs, tuple((f, found[f]) for f in ordered))


def _ellipsis_width(rule: Rule, shapes: Sequence[Shape]) -> int:
    widths = [len(shape) - len(term) + 1 for term, shape in zip(rule.inputs, shapes) if (ELLIPSIS,) in term]
    return max(widths, default=0)


def _expand(term: Term, ndim: int, rule: Rule) -> Term:
    if (ELLIPSIS,) in term:
        if ndim < len(term) - 1:
            raise RuleError(
                f"the rule '{rule}' needs at least {len(term) - 1} dims, but an operand has {ndim}"
            )
        return _expand_ellipsis(term, ndim - len(term) + 1)
    if len(term) != ndim:
        raise RuleError(f"the rule '{rule}' needs an operand of {len(term)} dims, but it has {ndim}")
    return term


def _expand_ellipsis(term: Term, width: int) -> Term:
    dims: list[tuple[str, ...]] = []
    for dim in term:
        dims += [(f".{k}",) for k in reversed(range(width))] if dim == (ELLIPSIS,) else [dim]
    return tuple(dims)


def _learn(term: Term, shape: Shape, found: dict[str, int], rule: Rule, operand: int) -> None:
    for dim, size in zip(term, shape):
        if not dim and size != 1:
            raise RuleError(
                f"the rule '{rule}' needs size 1 where operand {operand} of shape {shape} has {size}"
            )
        if len(dim) != 1:
            continue
        factor, known = dim[0], found.get(dim[0])
        if factor.startswith(".") and (known == 1 or size == 1):
            found[factor] = size if known is None or known == 1 else known
        elif known is not None and known != size:
            name = (
                f"dim {factor[1:]} from the right of '...'"
                if factor.startswith(".")
                else f"factor {factor!r}"
            )
            raise RuleError(
                f"{name} of the rule '{rule}' has size {known}, but {size} in operand {operand} of shape {shape}"
            )
        else:
            found[factor] = size


def _without_broadcast(term: Term, shape: Shape, found: dict[str, int]) -> Term:
    return tuple(
        () if len(dim) == 1 and dim[0].startswith(".") and size != found[dim[0]] else dim
        for dim, size in zip(term, shape)
    )


def _solve_compound(term: Term, shape: Shape, found: dict[str, int], rule: Rule, operand: int) -> None:
    for dim, size in zip(term, shape):
        if len(dim) < 2:
            continue
        unknown = [factor for factor in dim if factor not in found]
        known = math.prod(found[factor] for factor in dim if factor in found)
        if len(unknown) > 1:
            raise RuleError(f"sizes of {unknown} in ({' '.join(dim)}) of the rule '{rule}' must be given")
        if unknown and known and size % known == 0:
            found[unknown[0]] = size // known
        elif unknown or known != size:
            raise RuleError(
                f"({' '.join(dim)}) of the rule '{rule}' cannot have size {size} (operand {operand}, shape "
                f"{shape}): its known factors make {known}"
            )


def _in_order(
    rule: Rule, inputs: Sequence[Term], outputs: Sequence[Term], found: dict[str, int]
) -> list[str]:
    """Device-matrix order: ``...`` dims where '...' first occurs, the rest by first appearance."""
    seen: dict[str, None] = {}
    dots = sorted((f for f in found if f.startswith(".")), key=lambda f: -int(f[1:]))
    for factor in (*rule.order, *rule.factors):
        if factor == ELLIPSIS:
            seen.update(dict.fromkeys(dots))
        else:
            seen.setdefault(factor)
    missing = [f for term in outputs for f in members(term) if f not in found]
    if missing:
        raise RuleError(f"the size of factor {missing[0]!r} in the result of the rule '{rule}' must be given")
    return [f for f in seen if f in found]
