"""Arguments of meshes, layouts and worlds: parse and check them; and the derived facts of a layout.

Placements per mesh axis, numbers of shards, replicas and tensor maps are how other systems write where a tensor lives.
Core does not use them: :class:`LayoutFacts` adds them to a layout. Meshes and layouts are immutable values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any
from zlib import crc32

from spmdsim.errors import LayoutError, UsageTypeError, WorldError, many, unknown
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.core.layout import Layout, Mesh


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
    mesh: Mesh, dims: Sequence[str | Sequence[str] | None], partial: PartialLike
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, str], ...]]:
    """Return the checked arguments of a layout: the axes that split each dim, and its partial axes.

    A partial axis is a pair ``(axis, reduction)``. Raises LayoutError if an axis is unknown or used twice, or if
    several reductions are pending.
    """
    items = as_items(dims, "dims must be a tuple with an axis name, names or None per dim")
    entries, reductions = tuple(map(_axes_of_dim, items)), _partial_axes_of(mesh, partial)
    _check_axes(mesh, entries, reductions)
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


def _partial_axes_of(mesh: Mesh, partial: PartialLike) -> tuple[tuple[str, str], ...]:
    """Return ``(axis, reduction)`` of the partial axes, in the order of the mesh.

    For example, "tp" and ``{"tp": "sum"}`` both give ``(("tp", "sum"),)``.

    Args:
        mesh: the mesh.
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
    return tuple(sorted(items, key=lambda item: mesh.axis_index(item[0])))


def _check_axes(mesh: Mesh, dims: tuple[tuple[str, ...], ...], partial: tuple[tuple[str, str], ...]) -> None:
    """Raise LayoutError if an axis is unknown or used twice, or several reductions are pending.

    An axis may split one dim or have one pending reduction, but not both. All pending reductions must be of one
    kind: a sum along x and a maximum along y are refused.

    Args:
        mesh: the mesh.
        dims: the axes that split each dim.
        partial: ``(axis, reduction)`` of the partial axes.
    """
    axes = [*(axis for entry in dims for axis in entry), *(axis for axis, _ in partial)]
    dims_text = ", ".join(f"({','.join(entry)})" for entry in dims)
    reductions = ", ".join(map(":".join, partial))
    for k, axis in enumerate(axes):
        mesh.axis_index(axis)
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


class LayoutFacts(Pictured):
    """Facts that follow from a layout's mesh, the axes of its dims and its partial axes.

    >>> from spmdsim.core import Mesh
    >>> x = Mesh((2, 2, 2), ("dp", "sp", "mp"))("mp", ("sp", "dp"))
    >>> [x.shard_index(rank) for rank in range(8)]
    [0, 4, 2, 6, 1, 5, 3, 7]
    >>> x.placement_text(), x.cuts
    ('S(1)[1]S(1)[0]S(0)', (2, 4))
    """

    __slots__ = ()

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...]

    if TYPE_CHECKING:

        @property
        def replicated_axes(self) -> tuple[str, ...]:
            """See :class:`spmdsim.core.layout.Layout`."""

    @classmethod
    def replicated(cls, mesh: Mesh, ndim: int) -> Layout:
        """Return the layout in which every rank of the mesh owns all elements of a tensor with ``ndim`` dims."""
        return mesh(*(None,) * ndim)

    def __repr__(self) -> str:
        dims = [repr(None if not d else d[0] if len(d) == 1 else d) for d in self.dims]
        partial = [f"partial={dict(self.partial)}"] if self.partial else []
        return f"{self.mesh!r}({', '.join(dims + partial)})"

    def __str__(self) -> str:
        dims = [f"({','.join(axes)})" if len(axes) > 1 else "".join(axes) or "-" for axes in self.dims]
        partial = [f"{op} pending over {axis}" for axis, op in self.partial]
        return f"[{', '.join(dims + partial)}] over {self.mesh}"

    @cached_property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that split some dim, dim by dim, major first."""
        return tuple(axis for entry in self.dims for axis in entry)

    @classmethod
    def from_placements(cls, mesh: Mesh, placements: Sequence[Placement], ndim: int) -> Layout:
        """Return the layout with one placement per mesh axis.

        Of two axes that split a dim, the earlier one is major. For example, the placements Shard(0)
        and Shard(0) on the axes "a" and "b" split dim 0 into blocks along "a", and each of these along "b":
        ``mesh(("a", "b"))``.

        Args:
            mesh: the mesh.
            placements: Shard, Replicate or Partial for each axis of the mesh. A negative dim of Shard counts from the
                end.
            ndim: the number of dims of the tensor.

        Raises:
            LayoutError: If the number of placements or a dim does not fit, or two axes have different reductions.
            UsageTypeError: If a placement is another object.
        """
        count = len(mesh.axes)
        if len(placements) != count:
            raise LayoutError(f"mesh {mesh} takes {many(count, 'placement')}, not {len(placements)}")
        dims: list[list[str]] = [[] for _ in range(ndim)]
        partial: dict[str, str] = {}
        for axis, placement in zip(mesh.axes, placements):
            if isinstance(placement, Shard):
                if not -ndim <= placement.dim < ndim:
                    raise LayoutError(
                        f"{placement} on axis {axis!r} is out of range for a tensor of {many(ndim, 'dim')}"
                    )
                dims[placement.dim].append(axis)
            elif isinstance(placement, Partial):
                partial[axis] = placement.op
            elif not isinstance(placement, Replicate):
                raise UsageTypeError(f"{placement!r} is not Shard(dim), Replicate() or Partial(op)")
        return mesh(*dims, partial=partial)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Placement of each mesh axis.

        It lacks the order of axes that split one dim: see :meth:`placement_text`.
        """
        shard = {axis: Shard(dim) for dim, entry in enumerate(self.dims) for axis in entry}
        partial = {axis: Partial(op) for axis, op in self.partial}
        return tuple(shard.get(a) or partial.get(a) or Replicate() for a in self.mesh.axes)

    def with_partial(self, partial: PartialLike = ()) -> Layout:
        """Return the layout with other pending reductions (none by default)."""
        return self.mesh(*self.dims, partial=partial)

    def placement_text(self) -> str:
        """Return the placements of all mesh axes as one text, such as ``S(0)R`` or ``P(sum)S(1)``.

        ``S(0)`` splits dim 0, ``R`` replicates, ``P(sum)`` has a pending sum. If several axes split a dim in
        another order than the mesh's, they get suffixes: ``S(0)[1]S(0)[0]`` means that the second axis is the
        major one.
        """
        order = {axis: k for entry in self.dims for k, axis in enumerate(entry)}
        index = self.mesh.axes.index
        unusual = {a for e in self.dims if list(e) != sorted(e, key=index) for a in e}
        return "".join(
            f"{placement}[{order[axis]}]" if axis in unusual else str(placement)
            for axis, placement in zip(self.mesh.axes, self.placements)
        )

    @property
    def ndim(self) -> int:
        """Number of tensor dims."""
        return len(self.dims)

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Number of blocks of each dim (MindSpore's strategy)."""
        return tuple(self.mesh.axis_size(*entry) for entry in self.dims)

    def is_even(self, shape: Sequence[int]) -> bool:
        """Return True if every rank's shard of a tensor of this shape has the same size."""
        self.check_shape(shape)
        return all(size % parts == 0 for size, parts in zip(shape, self.cuts))

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise LayoutError if a shape has another number of dims than the layout."""
        if len(shape) != len(self.dims):
            raise LayoutError(
                f"layout {self} is for tensors of {many(len(self.dims), 'dim')}, but the shape is {tuple(shape)}"
            )

    def largest_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the largest shard, which is the first rank's.

        >>> from spmdsim.core import Mesh
        >>> Mesh((2, 2), ("x", "y"))(("x", "y"), None).largest_shape((7, 3))
        (2, 3)
        """
        return tuple(-(-size // parts) for size, parts in zip(shape, self.cuts))

    # -- shards and replicas of a rank -----------------------------------------------------------------

    def shard_index(self, rank: int) -> int:
        """Return the number of a rank's shard among the distinct shards.

        Dim 0 is the major one, and so is the first axis of a dim.
        """
        coords, number = dict(zip(self.mesh.axes, self.mesh.coords(rank))), 0
        for axis in self.split_axes:
            number = number * self.mesh.size_of[axis] + coords[axis]
        return number

    @property
    def shard_count(self) -> int:
        """Number of distinct shards."""
        return self.mesh.axis_size(*self.split_axes)

    def replica_ranks(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that own the same values as ``rank``, itself included, in mesh order."""
        return self.mesh.group(rank, *self.replicated_axes)

    # Their names up to version 0.1.
    parts = property(lambda self: self.cuts)
    short = property(lambda self: self.placement_text)
    shard_number, replicas = shard_index, replica_ranks

    def to_dict(self) -> dict[str, object]:
        """Return the layout as a dict with MindSpore's five keys.

        * ``device_matrix``: the sizes of the axes. ``alias_name``: their names.
        * ``tensor_map``: for each dim the number of the axis that splits it, a tuple of several numbers, or -1
          for none. Axes are numbered from the right, starting at 0.
        * ``interleaved_parallel``: True if an axis has this name.
        * ``rank_list``: the ranks.

        Pending reductions are left out.

        >>> from spmdsim.core import Mesh
        >>> Mesh((2, 2, 2), ("dp", "sp", "mp"))("dp", "mp").to_dict()["tensor_map"]
        (2, 0)
        """
        from_right = {axis: len(self.mesh.axes) - 1 - i for i, axis in enumerate(self.mesh.axes)}
        numbers = [tuple(from_right[a] for a in entry) for entry in self.dims]
        return {
            "device_matrix": self.mesh.shape,
            "tensor_map": tuple(n[0] if len(n) == 1 else n or -1 for n in numbers),
            "interleaved_parallel": "interleaved_parallel" in self.mesh.axes,
            "alias_name": self.mesh.axes,
            "rank_list": list(self.mesh.rank_list),
        }


def short_dtype(dtype: np.dtype) -> str:
    """Return an element type in few letters, such as ``f32``, ``i64`` or ``bf16``.

    Types that are not numbers have their NumPy names.
    """
    if dtype.name == "bfloat16":
        return "bf16"
    return f"{dtype.kind}{dtype.itemsize * 8}" if dtype.kind in "fiuc" else dtype.name
