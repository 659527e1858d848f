"""Tuples, lists and dicts of tensors or arrays: what is in them, in order, and how it stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout
from spmdsim.errors import RuleError

F = TypeVar("F", bound=Callable[..., Any])

#: How values stand: ``(kind, names, parts)``, of what is passed on as it is ``("static", value, ())``; by value.
Structure = tuple[Any, Any, tuple[Any, ...]]
LEAF: Structure = ("leaf", None, ())
#: A layout for all, or one for each; of lists and dicts of arrays lists and dicts of them.
Layouts: TypeAlias = "Layout | Sequence[Layouts] | Mapping[str, Layouts] | None"


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) or hasattr(value, "as_operand")


def _holds(value: Any) -> bool:
    """Return True if a value has tensors or arrays in it; other lists and tuples are arrays of numbers."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return _is_leaf(value) or any(map(_holds, parts))


def structure_of(value: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a value and its structure."""
    if isinstance(value, dict) or (isinstance(value, (tuple, list)) and _holds(value)):
        return joined(value)
    static = value is None or isinstance(value, str) or (callable(value) and not _is_leaf(value))
    return ([], ("static", value, ())) if static else ([value], LEAF)


def joined(values: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of several values and the structure of all of them."""
    named = isinstance(values, dict)
    parts = [structure_of(one) for one in (values.values() if named else values)]
    leaves = [leaf for leaves, _ in parts for leaf in leaves]
    return leaves, (type(values), tuple(values) if named else len(parts), tuple(part for _, part in parts))


def rebuilt(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Build a value of a structure from its leaves."""
    kind, names, parts = structure
    if structure == LEAF:
        return next(leaves)
    if kind == "static":
        return names
    values = [rebuilt(part, leaves) for part in parts]
    if issubclass(kind, dict):
        return dict(zip(names, values))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def spread(what: str, layouts: Any, structure: Structure) -> list[Layout | None]:
    """Return the layout of each leaf, from one layout for all leaves of a part or layouts structured as the part."""
    kind, names, parts = structure
    if kind == "static":
        return []
    if structure == LEAF and (layouts is None or isinstance(layouts, Layout)):
        return [layouts]
    if layouts is None or isinstance(layouts, Layout):
        return [one for part in parts for one in spread(what, layouts, part)]
    own = tuple(layouts) if isinstance(layouts, dict) else len(layouts)
    if structure == LEAF or isinstance(layouts, dict) != issubclass(kind, dict) or own != names:
        said = "one array" if structure == LEAF else f"a {kind.__name__} of {names}"
        raise RuleError(
            f"{what} have {layouts!r}, where {said} stands: give one layout, or one for each in it"
        )
    values = layouts.values() if isinstance(layouts, dict) else layouts
    return [one for entry, part in zip(values, parts) for one in spread(what, entry, part)]


def leaves_like(values: Any, layouts: Any) -> list[Any] | None:
    """Return the results in a value that is structured as the layouts; None if it is structured otherwise."""
    if layouts is None or isinstance(layouts, Layout):
        one = values[0] if isinstance(values, (tuple, list)) and len(values) == 1 else values
        return None if isinstance(one, (tuple, dict)) or (isinstance(one, list) and _holds(one)) else [one]
    if isinstance(layouts, dict):
        if not isinstance(values, dict) or set(values) != set(layouts):
            return None
        pairs: Sequence[tuple[Any, Any]] = [(values[key], one) for key, one in layouts.items()]
    elif not isinstance(values, (tuple, list)) or len(values) != len(layouts):
        return None
    else:
        pairs = list(zip(values, layouts))
    parts = [leaves_like(*pair) for pair in pairs]
    return None if None in parts else [leaf for part in parts for leaf in part or ()]


def of_trees(function: F) -> F:
    """Make a collective of an array run for each array in a tuple, list or dict, too, one after the other."""

    @wraps(function)
    def called(x: Any, *args: Any, **options: Any) -> Any:
        if isinstance(x, dict) or (isinstance(x, (tuple, list)) and _holds(x)):
            leaves, structure = structure_of(x)
            return rebuilt(structure, iter([function(leaf, *args, **options) for leaf in leaves]))
        return function(x, *args, **options)

    return called  # type: ignore[return-value]


def outcome_of(layouts: Layouts) -> Structure:
    """Return the nesting (containers, lengths, keys) that the results of a function with these layouts must have."""
    if layouts is None or isinstance(layouts, Layout):
        return LEAF
    if isinstance(layouts, Mapping):
        return type(layouts), tuple(layouts), tuple(map(outcome_of, layouts.values()))
    return type(layouts), len(layouts), tuple(map(outcome_of, layouts))


def flat_layouts(layouts: Layouts) -> list[Layout | None]:
    """Return the layouts of a structure in order."""
    if layouts is None or isinstance(layouts, Layout):
        return [layouts]
    return [
        one
        for part in (layouts.values() if isinstance(layouts, Mapping) else layouts)
        for one in flat_layouts(part)
    ]
