"""Terms of a rule: parse them, fit them to shapes, check the axes that split their factors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from spmdsim.errors import RuleError, many

Shape = tuple[int, ...]
#: The dims of an operand or result as factors: per dim its factors, major to minor.
Term = tuple[tuple[str, ...], ...]

ELLIPSIS = "..."
#: The work of operators on each element: most read and write it, some evaluate a function such as an exponential, and
#: some read all elements several times, as softmax and norms do.
ELEMENTS, FUNCTIONS, PASSES = "elements", "functions", "passes"
_ITEM = re.compile(r"\.\.\.|\(([^()]*)\)|[A-Za-z_][A-Za-z_0-9]*|1|\S")


def list_factors(term: Term) -> set[str]:
    """Return all factors of a term."""
    return {factor for dim in term for factor in dim}


@lru_cache(maxsize=4096)
def terms_of(text: str) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return the terms of operands and results in the text of a rule.

    Raises RuleError if the text does not have one "->" or a term is malformed.

    >>> terms_of("m k, k n -> m n")[1]
    ((('m',), ('n',)),)
    """
    if not isinstance(text, str) or text.count("->") != 1:
        raise RuleError(f"a rule must be a text with one '->', such as 'm k, k n -> m n', got {text!r:.200}")
    operands, results = (tuple(_term(term, text) for term in side.split(",")) for side in text.split("->"))
    return operands, results


def _term(term_text: str, text: str) -> Term:
    """Return the factors of each dim in the text of one term.

    A "1" becomes a dim without factors, ``(a b)`` a dim with two, ``...`` a dim with the factor ``"..."``. So "... m 1
    (a b)" gives ``(("...",), ("m",), (), ("a", "b"))``.

    Args:
        term_text: the term.
        text: the whole rule, for messages.

    Raises:
        RuleError: If an item is not a factor, or a factor or ``...`` occurs twice.
    """
    dims: list[tuple[str, ...]] = []
    for match in _ITEM.finditer(term_text):
        item = match.group(0)
        factors = (item,) if match.group(1) is None else tuple(match.group(1).split())
        if match.group(1) is not None and not all(factor.isidentifier() for factor in factors):
            raise RuleError(f"brackets must have names of factors only, got {item!r} in the rule {text!r}")
        if match.group(1) is None and item not in ("1", ELLIPSIS) and not item.isidentifier():
            raise RuleError(f"{item!r} is neither a factor, '...', '1' nor '(a b)' in the rule {text!r}")
        dims.append(() if item == "1" else factors)
    names = [name for dim in dims for name in dim]
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise RuleError(f"factor {repeated[0]!r} occurs twice in one term of the rule {text!r}")
    return tuple(dims)


def check_words(text: str, factors: Iterable[str], named: Iterable[str], work: str) -> None:
    """Raise RuleError if a named factor does not occur in a rule, or ``work`` is unknown.

    Args:
        text: the rule, for messages.
        factors: the factors of the rule.
        named: the factors that arguments of :meth:`~spmdsim.core.rule.Rule.parse` name.
        work: must be one of :data:`ELEMENTS`, :data:`FUNCTIONS` and :data:`PASSES`.
    """
    for name in named:
        if name not in factors:
            raise RuleError(f"factor {name!r} does not occur in the rule {text!r}")
    if work not in (ELEMENTS, FUNCTIONS, PASSES):
        raise RuleError(
            f"work must be {ELEMENTS!r}, {FUNCTIONS!r} or {PASSES!r}, got {work!r} for the rule {text!r}"
        )


def linear_groups(linear: str | Iterable[Iterable[int]], count: int) -> tuple[frozenset[int], ...]:
    """Return the sets of operands in which a rule is jointly linear.

    Args:
        linear: the sets, or "none" (no sets), "each" (every operand by itself) or "all" (all operands together). That
            the numbers in sets are numbers of operands is not checked.
        count: the number of operands.

    Raises:
        RuleError: If ``linear`` is another word or value.

    >>> linear_groups("each", 2)
    (frozenset({0}), frozenset({1}))
    """
    groups: dict[str, Iterable[Iterable[int]]] = {
        "none": (),
        "each": [{i} for i in range(count)],
        "all": [range(count)],
    }
    try:
        return tuple(map(frozenset, groups[linear] if isinstance(linear, str) else linear))
    except (KeyError, TypeError):
        raise RuleError(f"linear must be none, each, all or sets of operands, got {linear!r:.60}") from None


def fit_shapes(
    rule: str,
    terms: tuple[tuple[Term, ...], tuple[Term, ...]],
    order: Iterable[str],
    shapes: tuple[Shape, ...],
    sizes: tuple[tuple[str, int], ...],
) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[tuple[str, int], ...]]:
    """Return the terms of a rule for operands of certain shapes, and the size of each factor.

    A term lists the factors (named indices) of each dim of an operand or result. ``...`` is written out as
    factors ``.0``, ``.1``, … from the right; in results it has as many dims as in the operand with the most. A
    dim of ``...`` that is broadcast (size 1 while another operand has more) has no factor.

    For example, ``... k, k n -> n ...`` for the shapes (5, 3) and (3, 4) has

    - the operand terms ``((".0",), ("k",))`` and ``(("k",), ("n",))``;
    - the result term ``(("n",), (".0",))``;
    - the sizes .0 = 5, k = 3, n = 4.

    Args:
        rule: the text of the rule, for messages.
        terms: the terms of its operands and of its results.
        order: its factors in the order of the device matrix; repeated ones count once.
        shapes: the global shape of each operand.
        sizes: ``(factor, size)`` of the factors that the shapes do not determine.

    Returns:
        The terms of the operands, the terms of the results, and ``(factor, size)`` of each factor in the order of the
        device matrix.

    Raises:
        RuleError: If the number of operands or of dims does not fit, sizes contradict each other, or one is unknown.
    """
    if len(shapes) != len(terms[0]):
        takes = many(len(terms[0]), "operand")
        raise RuleError(f"the rule '{rule}' takes {takes}, but {many(len(shapes), 'was', 'were')} given")
    size_of: dict[str, int] = dict(sizes)
    expanded = [_expand_ellipsis(term, len(shape), rule) for term, shape in zip(terms[0], shapes)]
    for i, (term, shape) in enumerate(zip(expanded, shapes)):
        _record_sizes(term, shape, size_of, rule, i)
    inputs = tuple(_drop_broadcast(term, shape, size_of) for term, shape in zip(expanded, shapes))
    for i, (term, shape) in enumerate(zip(inputs, shapes)):
        _solve_compound(term, shape, size_of, rule, i)
    dots = sorted((f for f in size_of if f.startswith(".")), key=lambda f: -int(f[1:]))
    outputs = tuple(_write_out(term, len(dots)) for term in terms[1])
    if missing := [f for term in outputs for f in list_factors(term) if f not in size_of]:
        raise RuleError(f"rule '{rule}': factor {missing[0]!r} of a result must be in an operand")
    ordered = [g for f in order for g in (dots if f == ELLIPSIS else [f])]  # '...' stands for its dims.
    return inputs, outputs, tuple((f, size_of[f]) for f in dict.fromkeys(ordered) if f in size_of)


def _write_out(term: Term, width: int) -> Term:
    """Return a term with ``...`` replaced by ``width`` dims."""
    dots = [(f".{k}",) for k in reversed(range(width))]
    return tuple(each for dim in term for each in (dots if dim == (ELLIPSIS,) else [dim]))


def _expand_ellipsis(term: Term, ndim: int, rule: str) -> Term:
    """Return a rule's term with ``...`` replaced by factors for an operand of ``ndim`` dims.

    A term without ``...`` is returned unchanged.
    """
    least = len(term) - 1
    if (ELLIPSIS,) in term:
        if ndim < least:
            raise RuleError(f"the rule '{rule}' needs operands of {many(least, 'dim')} or more, not {ndim}")
        return _write_out(term, ndim - least)
    if len(term) != ndim:
        raise RuleError(f"the rule '{rule}' needs an operand of {many(len(term), 'dim')}, but it has {ndim}")
    return term


def _record_sizes(term: Term, shape: Shape, size_of: dict[str, int], rule: str, operand: int) -> None:
    """Add the sizes of the factors of an operand to ``size_of``, except those of compound dims.

    A compound dim has several factors; :func:`_solve_compound` finds their sizes later. A dim of ``...`` may
    have size 1 in one operand and size n in another: its size is then n. For example, ``m (a b)`` for the shape
    (4, 6) adds m = 4 only.

    Args:
        term: the factors of each dim, with ``...`` written out.
        shape: the operand's global shape, of as many dims.
        size_of: the sizes by factor so far, which this function extends.
        rule: the text of the rule, for messages.
        operand: the number of the operand, for messages.

    Raises:
        RuleError: If a factor has two sizes, or a dim without factors has another size than 1.
    """
    for dim, size in zip(term, shape):
        if not dim and size != 1:
            raise RuleError(
                f"the rule '{rule}' needs size 1 where operand {operand} of shape {shape} has {size}"
            )
        if len(dim) != 1:
            continue
        factor, known_size = dim[0], size_of.get(dim[0], size)
        broadcast = factor.startswith(".")
        if known_size != size and not (broadcast and 1 in (known_size, size)):
            name = f"dim {factor[1:]} from the right of '...'" if broadcast else f"the dim called {factor!r}"
            raise RuleError(
                f"dims of one name in '{rule}' must be equal: {name} has size {known_size}, but {size} in operand {operand} of shape {shape}"
            )
        size_of[factor] = size if known_size == 1 else known_size


def _drop_broadcast(term: Term, shape: Shape, size_of: dict[str, int]) -> Term:
    """Return a term in which the dims of ``...`` that are broadcast have no factor."""
    return tuple(
        () if len(dim) == 1 and dim[0].startswith(".") and size != size_of[dim[0]] else dim
        for dim, size in zip(term, shape)
    )


def _solve_compound(term: Term, shape: Shape, size_of: dict[str, int], rule: str, operand: int) -> None:
    """Add the sizes of unknown factors of compound dims, such as ``(a b)``, to ``size_of``.

    If one factor of the dim is unknown, the others divide the size of the dim: ``(a b)`` of size 12 with a = 4
    gives b = 3. If all are known, the product of their sizes must be the size of the dim.

    Args:
        term: the factors of each dim.
        shape: the operand's global shape.
        size_of: the sizes by factor so far, which this function extends.
        rule: the text of the rule, for messages.
        operand: the number of the operand, for messages.

    Raises:
        RuleError: If several factors of a dim have no size, or the sizes do not multiply to the size of the dim.
    """
    for dim, size in zip(term, shape):
        unknown = [factor for factor in dim if factor not in size_of]
        product = math.prod(size_of[factor] for factor in dim if factor in size_of)
        if len(unknown) > 1:
            raise RuleError(f"sizes of {unknown} in ({' '.join(dim)}) of the rule '{rule}' must be given")
        if unknown and product and size % product == 0:
            size_of[unknown[0]] = size // product
        elif unknown or product != size:
            raise RuleError(
                f"({' '.join(dim)}) of the rule '{rule}' cannot have size {size} (operand {operand}, shape "
                f"{shape}): its known factors make {product}"
            )


Axes = tuple[str, ...]


def _in_words(axes: Axes) -> str:
    """Return the names of axes for a message."""
    return "no axis" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes)


# -- operands' layouts -------------------------------------------------------------------------------


def check_axes(rule: str, splits: Mapping[str, Sequence[tuple[int, Axes]]]) -> None:
    """Raise RuleError if operands split a factor differently, or an axis splits two factors.

    Axes are compared as tuples: ("x", "y") and ("y", "x") differ. For example, this is refused, because operand 0
    splits the factor k along x, and operand 1 does not split it: ``{"k": [(0, ("x",)), (1, ())]}``.

    Args:
        rule: the text of the rule, for messages.
        splits: for each factor a list with one pair per operand that has it: the operand's number, and the axes
            that split the factor there.
    """
    for factor, [(first, axes), *more_operands] in splits.items():
        for operand, operand_axes in more_operands:
            if operand_axes != axes:
                raise RuleError(
                    f"factor {factor!r} of the rule '{rule}' is split by {_in_words(axes)} in operand {first} but by "
                    f"{_in_words(operand_axes)} in operand {operand}; both must be the same"
                )
    used: dict[str, str] = {}
    for factor, [(operand, axes), *_] in sorted(splits.items()):
        for axis in axes:
            if axis in used:
                raise RuleError(
                    f"axis {axis!r} splits factor {used[axis]!r} (operand {splits[used[axis]][0][0]}) and factor "
                    f"{factor!r} (operand {operand}) of the rule '{rule}'; it can split only one"
                )
            used[axis] = factor


def size_one_split_error(rule: str, operand: int, dim: int, axes: Axes) -> RuleError:
    """Return the error for axes that split a dim of size 1."""
    return RuleError(
        f"dim {dim} of operand {operand} has size 1 in the rule '{rule}', but {_in_words(axes)} splits it"
    )


def not_passed_error(rule: str, operands: Sequence[int], ops: Sequence[str], axis: str) -> RuleError:
    """Return the error for operands that are partial over ``axis`` together, if the rule forbids it."""
    return RuleError(
        f"operands {sorted(operands)} are partial ({', '.join(sorted(ops))}) over axis {axis!r}, which "
        f"the rule '{rule}' does not pass on; reduce them first"
    )
