"""Tuples, lists and dicts of tensors or arrays: their leaves in order, and their nesting.

A leaf is a tensor, an array or a parameter. `flatten_values` separates leaves from their nesting (a `Structure`), and
`rebuild_tree` joins both again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout
from spmdsim.errors import RuleError

F = TypeVar("F", bound=Callable[..., Any])

#: A nesting ``(container type, keys or length, structures of the items)``; ``("static", value, ())`` for other values.
Structure = tuple[Any, Any, tuple[Any, ...]]
LEAF: Structure = ("leaf", None, ())
#: One layout for all arrays, or one per array in the same nesting of lists and dicts.
Layouts: TypeAlias = "Layout | Sequence[Layouts] | Mapping[str, Layouts] | None"


def _is_leaf(value: Any) -> bool:
    """Return True if a value is a tensor, an array or a parameter."""
    return isinstance(value, (Tensor, np.ndarray)) or hasattr(value, "as_operand")


def _contains_leaf(value: Any) -> bool:
    """Return True if a value contains a leaf; other lists and tuples are arrays of numbers."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return _is_leaf(value) or any(map(_contains_leaf, items))


def split_structure(value: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a value and its structure.

    None, text and functions are no leaves: they are part of the structure. A list of numbers is one leaf.
    """
    if isinstance(value, dict) or (isinstance(value, (tuple, list)) and _contains_leaf(value)):
        return flatten_values(value)
    static = value is None or isinstance(value, str) or (callable(value) and not _is_leaf(value))
    return ([], ("static", value, ())) if static else ([value], LEAF)


def flatten_values(values: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a list, tuple or dict of values, and the structure of the whole.

    The container itself is always part of the structure, even if it holds only numbers. Leaves are in the order of
    the container; dicts in their own order.

    Args:
        values: the container; see :func:`split_structure` for its items.

    >>> flatten_values([1.5, "text"])
    ([1.5], (<class 'list'>, 2, (('leaf', None, ()), ('static', 'text', ()))))
    """
    is_dict = isinstance(values, dict)
    parts = [split_structure(value) for value in (values.values() if is_dict else values)]
    leaves = [leaf for leaves, _ in parts for leaf in leaves]
    return leaves, (
        type(values),
        tuple(values) if is_dict else len(parts),
        tuple(nesting for _, nesting in parts),
    )


def rebuild_tree(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Return the nested value of a structure, filled with leaves from an iterator in order.

    It is the inverse of :func:`split_structure`. Named tuples become named tuples again. Leaves that remain in the
    iterator are ignored.

    Args:
        structure: the nesting, from :func:`split_structure`.
        leaves: at least as many leaves as the structure has.

    >>> rebuild_tree((tuple, 2, (LEAF, ("static", "text", ()))), iter([7]))
    (7, 'text')
    """
    kind, names, parts = structure
    if structure == LEAF:
        return next(leaves)
    if kind == "static":
        return names
    values = [rebuild_tree(nesting, leaves) for nesting in parts]
    if issubclass(kind, dict):
        return dict(zip(names, values))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def spread_layouts(what: str, layouts: Any, structure: Structure) -> list[Layout | None]:
    """Return the layout of each leaf (array) in nested arguments, in order.

    If the arguments are ``(a, [b, c])``, for example, the layouts ``(p, q)`` give [p, q, q], and ``p`` gives [p, p, p].

    Args:
        what: the parameter, for error messages.
        layouts: one layout or None, which holds for all leaves; or a list, tuple or dict with one entry for each part
            of the arguments, to which this rule applies again. Lengths, keys and the order of keys must be equal.
        structure: the nesting of the leaves; other values, such as text, have no layout.

    Raises:
        RuleError: If the nestings differ.
    """
    kind, names, parts = structure
    if kind == "static":
        return []
    if structure == LEAF and (layouts is None or isinstance(layouts, Layout)):
        return [layouts]
    if layouts is None or isinstance(layouts, Layout):
        return [layout for nesting in parts for layout in spread_layouts(what, layouts, nesting)]
    keys = tuple(layouts) if isinstance(layouts, dict) else len(layouts)
    if structure == LEAF or isinstance(layouts, dict) != issubclass(kind, dict) or keys != names:
        words = "one array" if structure == LEAF else f"a {kind.__name__} of {names}"
        raise RuleError(
            f"{what} have {layouts!r}, where {words} stands: give one layout, or one for each in it"
        )
    values = layouts.values() if isinstance(layouts, dict) else layouts
    return [
        layout for entry, nesting in zip(values, parts) for layout in spread_layouts(what, entry, nesting)
    ]


def find_leaves_like(values: Any, layouts: Any) -> list[Any] | None:
    """Return the leaves (arrays) of nested results if they have the nesting of the layouts, else None.

    For example, with the layouts ``{"u": p, "v": (q, r)}`` the results ``{"v": [b, c], "u": a}`` give [a, b, c], in the
    order of the layouts. A list and a tuple count as equal nestings. For a single layout, a sequence with one leaf
    counts as this leaf, and a longer list of numbers as an array; a longer tuple of numbers gives None.

    Args:
        values: the results of the user's function.
        layouts: one layout, or layouts in dicts, lists and tuples; None counts as a layout.
    """
    if layouts is None or isinstance(layouts, Layout):
        leaf = values[0] if isinstance(values, (tuple, list)) and len(values) == 1 else values
        is_nested = isinstance(leaf, (tuple, dict)) or (isinstance(leaf, list) and _contains_leaf(leaf))
        return None if is_nested else [leaf]
    if isinstance(layouts, dict):
        if not isinstance(values, dict) or set(values) != set(layouts):
            return None
        pairs: Sequence[tuple[Any, Any]] = [(values[key], layout) for key, layout in layouts.items()]
    elif not isinstance(values, (tuple, list)) or len(values) != len(layouts):
        return None
    else:
        pairs = list(zip(values, layouts))
    leaf_lists = [find_leaves_like(*pair) for pair in pairs]
    if None in leaf_lists:
        return None
    return [leaf for leaves in leaf_lists for leaf in leaves or ()]


def accept_trees(function: F) -> F:
    """Decorate a collective so that it also accepts tuples, lists and dicts of arrays.

    The collective then runs for each array, one after the other. The results have the nesting of the arrays. A list of
    numbers is one array.

    Args:
        function: the collective; its first argument is an array.
    """

    @wraps(function)
    def call_for_each(x: Any, *args: Any, **options: Any) -> Any:
        """Call the collective for each array in ``x``."""
        if isinstance(x, dict) or (isinstance(x, (tuple, list)) and _contains_leaf(x)):
            leaves, structure = split_structure(x)
            return rebuild_tree(structure, iter([function(leaf, *args, **options) for leaf in leaves]))
        return function(x, *args, **options)

    return call_for_each  # type: ignore[return-value]


def find_layout_structure(layouts: Layouts) -> Structure:
    """Return the nesting of layouts as a structure with one leaf per layout.

    For example, ``{"y": layout, "n": None}`` gives ``(dict, ("y", "n"), (LEAF, LEAF))``.

    Args:
        layouts: one layout, or layouts in dicts, lists and tuples; None counts as a layout.
    """
    if layouts is None or isinstance(layouts, Layout):
        return LEAF
    if isinstance(layouts, Mapping):
        return type(layouts), tuple(layouts), tuple(map(find_layout_structure, layouts.values()))
    return type(layouts), len(layouts), tuple(map(find_layout_structure, layouts))


def flatten_layouts(layouts: Layouts) -> list[Layout | None]:
    """Return the layouts of a nesting in order, also those that are None.

    Args:
        layouts: one layout, or layouts in dicts, lists and tuples.
    """
    if layouts is None or isinstance(layouts, Layout):
        return [layouts]
    return [
        layout
        for nesting in (layouts.values() if isinstance(layouts, Mapping) else layouts)
        for layout in flatten_layouts(nesting)
    ]
