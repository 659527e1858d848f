"""Arguments of meshes, layouts and worlds: parse and check them; and placements, one per mesh axis.

Placements are how other systems write where a tensor lives. Meshes and layouts are immutable values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any
from zlib import crc32

from spmdsim.errors import LayoutError, UsageTypeError, WorldError, many, unknown
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    import numpy as np


class Immutable(Pictured):
    """Base of immutable values.

    Two values are equal if their classes and the arguments of their constructors are. The hash is stored.
    """

    __slots__ = ("__dict__", "_hash", "made_of")

    made_of: tuple[object, ...]
    _hash: int

    def _freeze(self, names: Sequence[str], *values: object) -> None:
        """Set the attributes ``names`` to ``values``; store the values for equality, pickling and hash."""
        for name, value in zip((*names, "made_of", "_hash"), (*values, values, hash(values))):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return (type(self), self.made_of)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):  # uses no global name, because Python deletes them at its end
            return NotImplemented
        return self._hash == other._hash and self.made_of == other.made_of

    def __hash__(self) -> int:
        return self._hash


#: Reductions that a partial value may wait for.
REDUCE_OPS = ("sum", "prod", "max", "min", "avg", "all", "any")
#: Partial axes as users write them: axes with their reductions, or names of axes with pending sums.
PartialLike = Mapping[str, str] | str | Sequence[str] | Sequence[tuple[str, str]]
#: A mesh's method that returns the position of a named axis, and raises LayoutError for other names.
AxisIndex = Callable[[str], int]
MOST_RANKS = 1 << 24
"""The largest number of ranks of a mesh: some functions list them."""


def is_integer(value: object) -> bool:
    """Return True if a value is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_integers(shape: Iterable[Any], description: str = "the sizes of a shape") -> tuple[int, ...]:
    """Return the sizes of a shape, or other numbers, as Python's integers.

    ``description`` is the subject of the message. Raises UsageTypeError if an item is not an integer.

    >>> as_integers([3, True])
    (3, 1)
    """
    return as_items(shape, f"{description} are integers", index)


def as_items(values: Any, rule: str, convert: Callable[[Any], Any] = lambda x: x) -> tuple[Any, ...]:
    """Return the items of an argument, each converted.

    Args:
        values: the argument.
        rule: the start of the message: the argument and what it must be.
        convert: returns the value for an item; raises TypeError for a wrong item. By default every item is right.

    Raises:
        UsageTypeError: If the argument cannot be iterated, or an item is wrong.
    """
    try:
        return tuple(map(convert, values))
    except TypeError:
        raise UsageTypeError(f"{rule}, but got {values!r:.200}") from None


def check_world_size(size: object) -> None:
    """Raise an error if a value is not a number of ranks that a world can have.

    Raises:
        UsageTypeError: If ``size`` is not Python's integer; True, 2.0 and NumPy's integers are none.
        WorldError: If ``size`` is below 1 or above ``MOST_RANKS``.
    """
    # isinstance is for the type checker.
    if not isinstance(size, int) or not is_integer(size):
        raise UsageTypeError(f"the size of a world must be an integer, got {size!r:.60}")
    if size < 1:
        raise WorldError(f"the size of a world must be 1 or more ranks, got {size}")
    if size > MOST_RANKS:
        raise WorldError(f"the size of a world must be at most {MOST_RANKS:,} ranks, got {size:,}")


# -- meshes -----------------------------------------------------------------------------------------


def mesh_arguments(
    shape: Sequence[int] | int, axes: Sequence[str], ranks: Iterable[int] | None
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...] | None]:
    """Check the arguments of a mesh; return ``(axis sizes, axis names, ranks)`` as tuples.

    The ranks are in row-major order of the positions; None for the order ``0 .. size-1``, even if ``ranks``
    states it.

    Args:
        shape: the size of each axis, or the size of the only axis.
        axes: the name of each axis, or the name of the only axis.
        ranks: the rank at each position; None for ``0 .. size-1``.

    Raises:
        LayoutError: If the arguments contradict each other, or the mesh has more than ``MOST_RANKS`` ranks.
        UsageTypeError: If a size or rank is not an integer, or a name is not a string.
    """
    sizes, names = _sizes(shape), _names(axes)
    if len(sizes) != len(names):
        raise LayoutError(f"axes must have one name per size of the shape {sizes}, got {names}")
    size = math.prod(sizes)
    if size > MOST_RANKS:
        raise LayoutError(f"a mesh must have at most {MOST_RANKS:,} ranks, got {size:,}")
    return sizes, names, None if ranks is None else _rank_order(ranks, size, sizes)


def _sizes(shape: Sequence[int] | int) -> tuple[int, ...]:
    """Check the sizes of a mesh's axes and return them as a tuple.

    Args:
        shape: the size of each axis, or one size for a mesh of one axis.

    Raises:
        LayoutError: If a size is not positive.
        UsageTypeError: If a size is not Python's integer; a bool is none.
    """
    sizes = (shape,) if isinstance(shape, int) else as_items(shape, "mesh shape must be integers")
    if not all(map(is_integer, sizes)):
        raise UsageTypeError(f"mesh shape must be integers, but got {sizes}")
    if any(size <= 0 for size in sizes):
        raise LayoutError(f"every size of a mesh's shape must be 1 or more, got {sizes}")
    return sizes


def _names(axes: Sequence[str]) -> tuple[str, ...]:
    """Check the names of a mesh's axes and return them as a tuple.

    Args:
        axes: the name of each axis, or one name for a mesh of one axis.

    Raises:
        LayoutError: If a name is empty, "None" or repeated.
        UsageTypeError: If a name is not a string.
    """
    names = (axes,) if isinstance(axes, str) else as_items(axes, "axis names must be strings")
    if not all(isinstance(axis, str) for axis in names):
        raise UsageTypeError(f"axis names must be strings, but got {names}")
    for i, axis in enumerate(names):
        if axis in ("", "None"):
            raise LayoutError(f"axis names must not be empty or 'None', got {axis!r} in {names}")
        if axis in names[:i]:
            raise LayoutError(f"axis names must differ, but {axis!r} is repeated in {names}")
    return names


def _rank_order(ranks: Iterable[int], size: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the ranks of a mesh as a tuple, or None if they are ``0, 1, …, size - 1`` in this order.

    The tuple has them in row-major order of the mesh. NumPy's integers become Python's.

    Args:
        ranks: the rank at each position.
        size: the number of positions of the mesh.
        shape: the sizes of the axes, for the message.

    Raises:
        LayoutError: If ``ranks`` does not have ``size`` distinct numbers that are not negative.
        UsageTypeError: If a rank is not an integer.
    """
    numbers = as_items(ranks, "ranks must be a list of integers")
    order = tuple(int(r) if not isinstance(r, int) and hasattr(r, "__index__") else r for r in numbers)
    if not all(map(is_integer, order)):
        raise UsageTypeError(f"ranks must be integers, but got {order}")
    if len(order) != size:
        raise LayoutError(f"ranks must be {size:,} for a mesh of shape {shape}, got {len(order)}: {order}")
    if any(rank < 0 for rank in order):
        raise LayoutError(f"ranks must not be negative, but got {order}")
    if len(set(order)) != size:
        repeated = next(rank for i, rank in enumerate(order) if rank in order[:i])
        raise LayoutError(f"ranks of a mesh must differ, but {repeated} is repeated in {order}")
    return None if order == tuple(range(size)) else order


def format_ranks(ranks: Sequence[int], words: Callable[[Sequence[int]], object]) -> str:
    """Return ranks as one line of text.

    Up to 24 ranks are all named; ``words`` converts them to text. Of more ranks the text has the first three, the last
    one, the number of ranks and a checksum of their order.
    """
    if len(ranks) <= 24:
        return str(words(ranks))
    ends = ", ".join(map(str, ranks[:3]))
    return f"({ends}, ..., {ranks[-1]}: {many(len(ranks), 'rank')}, {crc32(repr(ranks).encode()):08x})"


# -- layouts ----------------------------------------------------------------------------------------


def check_reduction(op: object) -> None:
    """Raise LayoutError if ``op`` is not a reduction that a layout can have pending."""
    if op not in REDUCE_OPS:
        raise unknown(f"no reduction is called {op!r}", str(op), REDUCE_OPS, LayoutError)


def layout_arguments(
    axis_index: AxisIndex, dims: Sequence[str | Sequence[str] | None], partial: PartialLike
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, str], ...]]:
    """Return the checked arguments of a layout: the axes that split each dim, and its partial axes.

    A partial axis is a pair ``(axis, reduction)``. Raises LayoutError if an axis is unknown or used twice, or if
    several reductions are pending.
    """
    items = as_items(dims, "dims must be a tuple with an axis name, names or None per dim")
    entries, reductions = tuple(map(_axes_of_dim, items)), _partial_axes_of(axis_index, partial)
    _check_axes(axis_index, entries, reductions)
    return entries, reductions


def _axes_of_dim(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the axes that split a dim as a tuple, major first; () if no axis splits it.

    Args:
        entry: the name of an axis, several names, or None. The name "None" means no axis and is left out.

    Raises:
        UsageTypeError: If ``entry`` is anything else.
    """
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if isinstance(names, Sequence) and all(isinstance(axis, str) for axis in names):
        return tuple(axis for axis in names if axis != "None")
    raise UsageTypeError(f"a dim must be an axis name, a tuple of names or None, got {entry!r:.60}")


def _partial_axes_of(axis_index: AxisIndex, partial: PartialLike) -> tuple[tuple[str, str], ...]:
    """Return ``(axis, reduction)`` of the partial axes, in the order of the mesh.

    For example, "tp" and ``{"tp": "sum"}`` both give ``(("tp", "sum"),)``.

    Args:
        axis_index: the method of the mesh.
        partial: one axis, several axes, reductions by axis, or pairs (axis, reduction). An axis without a
            reduction has a pending sum.

    Raises:
        LayoutError: If the mesh lacks an axis, or a reduction is unknown. Repeated axes are not refused here.
    """
    if isinstance(partial, str):
        partial = (partial,)
    items: list[tuple[str, str]] = []
    rule = "partial must be axis names, or a mapping such as {'tp': 'sum'}"
    for item in as_items(partial.items() if isinstance(partial, Mapping) else partial, rule):
        axis, op = (item, "sum") if isinstance(item, str) else as_items(item, rule)
        check_reduction(op)
        items.append((axis, op))
    return tuple(sorted(items, key=lambda item: axis_index(item[0])))


def _check_axes(
    axis_index: AxisIndex, dims: tuple[tuple[str, ...], ...], partial: tuple[tuple[str, str], ...]
) -> None:
    """Raise LayoutError if an axis is unknown or used twice, or several reductions are pending.

    An axis may split one dim or have one pending reduction, but not both. All pending reductions must be of one
    kind: a sum along x and a maximum along y are refused.

    Args:
        axis_index: the method of the mesh.
        dims: the axes that split each dim.
        partial: ``(axis, reduction)`` of the partial axes.
    """
    axes = [*(axis for entry in dims for axis in entry), *(axis for axis, _ in partial)]
    dims_text = ", ".join(f"({','.join(entry)})" for entry in dims)
    reductions = ", ".join(map(":".join, partial))
    for k, axis in enumerate(axes):
        axis_index(axis)
        if axis in axes[:k]:
            raise LayoutError(
                f"axis {axis!r} is used twice in one layout, but an axis can split one dim or hold one "
                f"pending reduction: dims {dims_text}; pending: {reductions or 'nothing'}"
            )
    if len({op for _, op in partial}) > 1:
        raise LayoutError(f"partial must have one reduction for all axes, got {reductions}; reduce one first")


@explained
@dataclass(frozen=True)
class Shard(Pictured):
    """Placement of blocks: the axis splits tensor dim ``dim``.

    Raises UsageTypeError if ``dim`` is not an integer.

    >>> from spmdsim import Mesh
    >>> Mesh((2,), ("x",))(None, "x").placements
    (Shard(dim=1),)
    """

    dim: int

    def __post_init__(self) -> None:
        if not is_integer(self.dim):
            raise UsageTypeError(f"Shard: dim must be an integer, the dim of a tensor, got {self.dim!r:.60}")

    def __str__(self) -> str:
        return f"S({self.dim})"


@explained
@dataclass(frozen=True)
class Replicate(Pictured):
    """Placement of equal values: all ranks along the axis own the same elements."""

    def __str__(self) -> str:
        return "R"


@explained
@dataclass(frozen=True)
class Partial(Pictured):
    """Placement of addends: the value is the reduction by ``op`` over the ranks along the axis.

    Raises LayoutError for an unknown ``op``.

    >>> from spmdsim import Mesh
    >>> Mesh((2,), ("x",))(None, partial={"x": "max"}).placements
    (Partial(op='max'),)
    """

    op: str = "sum"

    def __post_init__(self) -> None:
        check_reduction(self.op)

    def __str__(self) -> str:
        return f"P({self.op})"


Placement = Shard | Replicate | Partial


def short_dtype(dtype: np.dtype) -> str:
    """Return an element type in few letters, such as ``f32``, ``i64`` or ``bf16``.

    Types that are not numbers have their NumPy names.
    """
    if dtype.name == "bfloat16":
        return "bf16"
    return f"{dtype.kind}{dtype.itemsize * 8}" if dtype.kind in "fiuc" else dtype.name
