"""The mesh, ranks in a grid whose axes have names; and the layout, where on it a tensor lives.

MindSpore calls the mesh the device matrix with alias names, OneFlow the hierarchy of a placement, JAX and DTensor a
mesh. Coordinates are row-major: the last axis varies fastest.

A layout says per tensor dim the mesh axes that split it, major to minor (MindSpore's and JAX's order); plus the axes
along which values are still partial. Bounds follow from these two facts. So do placements per mesh axis, numbers of
shards, replicas and tensor maps, which are how other systems write where a tensor lives; core needs few of them.

Sizes that do not divide are split in balanced blocks, axis by axis, major first ("nested"): the first
``n % p`` of ``p`` parts get one element more (OneFlow's BalancedSplitter). Empty shards are legal.

Next: :mod:`spmdsim.core.rule`, what operators mean for layouts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from spmdsim.core.notation.layouts import (
    Immutable,
    Partial,
    PartialLike,
    Placement,
    Replicate,
    Shard,
    format_ranks,
    layout_arguments,
    mesh_arguments,
)
from spmdsim.errors import LayoutError, UsageTypeError, many, unknown
from spmdsim.wrong_calls import explained


@explained
class Mesh(Immutable):
    """Ranks in a grid with named axes.

    Immutable and hashable; LayoutError for arguments that form no mesh.

    Args:
        shape: the size of each axis, all positive.
        axes: one distinct name per axis.
        ranks: the rank at each position in row-major order, all distinct; ``0 .. size-1`` by default.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> mesh.coords(6), mesh.group(6, "dp")
    ((1, 2), (2, 6))
    >>> print(mesh("dp", None))
    [dp, -] over dp=2 tp=4
    """

    __slots__ = ("axes", "ranks", "shape", "size")

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    ranks: tuple[int, ...] | None
    size: int

    def __init__(self, shape: Sequence[int], axes: Sequence[str], ranks: Iterable[int] | None = None) -> None:
        sizes, names, order = mesh_arguments(shape, axes, ranks)
        object.__setattr__(self, "size", math.prod(sizes))
        self._freeze(("shape", "axes", "ranks"), sizes, names, order)

    def __repr__(self) -> str:
        ranks = "" if self.ranks is None else f", ranks={format_ranks(self.ranks, repr)}"
        return f"Mesh({self.shape}, {self.axes}{ranks})"

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape)) or "one rank"
        return sizes if self.ranks is None else f"{sizes} on ranks {format_ranks(self.ranks, list)}"

    @explained
    def __call__(self, *dims: DimLike, partial: PartialLike = ()) -> Layout:
        """Return a layout on this mesh.

        Args:
            dims: one entry per tensor dim: the axis that splits it, several axes (major first) or None.
            partial: the axes with pending reductions: ``{"tp": "sum"}``, or ``"tp"`` for a sum.
        """
        return Layout(self, dims, partial)

    def axis_index(self, axis: str) -> int:
        """Return the position of a named axis. Raise LayoutError if the mesh has no such axis."""
        if axis not in self.axes:
            raise unknown(f"axis {axis!r} is not found in the mesh", axis, self.axes, LayoutError)
        return self.axes.index(axis)

    def axis_size(self, *axes: str) -> int:
        """Return the product of the sizes of the given axes (1 for none)."""
        return math.prod(self.size_of[axis] if axis in self.axes else self.axis_index(axis) for axis in axes)

    @cached_property
    def size_of(self) -> Mapping[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.axes, self.shape))

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        """Distance in row-major positions between neighbours, per axis."""
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    @cached_property
    def _positions(self) -> dict[int, int] | None:
        """Row-major position by rank; None if ranks and positions are equal."""
        return None if self.ranks is None else {rank: i for i, rank in enumerate(self.ranks)}

    def __contains__(self, rank: int) -> bool:
        return hasattr(rank, "__index__") and rank.__index__() in (self._positions or range(self.size))

    def position(self, rank: int) -> int:
        """Return the row-major position of a rank. Raise LayoutError if the mesh does not contain the rank."""
        if rank not in self:
            where = f"0..{self.size - 1}" if self.ranks is None else str(list(self.ranks))
            raise LayoutError(f"rank {rank} is not in the mesh {self}, which holds ranks {where}")
        return rank if self._positions is None else self._positions[rank]

    def rank_at(self, position: int) -> int:
        """Return the rank at a row-major position."""
        return position if self.ranks is None else self.ranks[position]

    @property
    def rank_list(self) -> tuple[int, ...]:
        """Tuple of the ranks in row-major order."""
        return tuple(range(self.size)) if self.ranks is None else self.ranks

    def coords(self, rank: int) -> tuple[int, ...]:
        """Return the rank's coordinate on every axis.

        >>> Mesh((2, 1, 4), ("a", "b", "c")).coords(5)
        (1, 0, 1)
        """
        position = self.position(rank)
        return tuple(position // stride % size for stride, size in zip(self._strides, self.shape))

    def rank_of(self, coords: Sequence[int]) -> int:
        """Return the rank at a coordinate, one index per axis (inverse of :meth:`coords`).

        Raises:
            LayoutError: If the mesh has no such coordinate.
        """
        if len(coords) != len(self.shape) or not all(0 <= c < size for c, size in zip(coords, self.shape)):
            raise LayoutError(f"Mesh.rank_of: coords must lie in the mesh {self.shape}, got {tuple(coords)}")
        return self.rank_at(sum(c * stride for c, stride in zip(coords, self._strides)))

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """Return the ranks that differ from ``rank`` only on the given axes, including ``rank``.

        The last given axis varies fastest. Without axes the group is ``rank`` alone.

        Raises:
            LayoutError: If the mesh lacks the rank or an axis.

        >>> Mesh((2, 3), ("a", "b")).group(4, "b"), Mesh((2, 3), ("a", "b")).group(4, "b", "a")
        ((3, 4, 5), (0, 3, 1, 4, 2, 5))
        """
        indices = [self.axis_index(axis) for axis in axes]
        coords = self.coords(rank)
        base = self.position(rank) - sum(coords[i] * self._strides[i] for i in indices)
        offsets = [range(0, self.shape[i] * self._strides[i], self._strides[i]) for i in indices]
        return tuple(self.rank_at(base + sum(parts)) for parts in itertools.product(*offsets))

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Return all groups along the given axes, ordered by their first rank's position.

        Each group has the order of :meth:`group`. Raises LayoutError if the mesh lacks an axis.

        >>> Mesh((2, 2), ("a", "b")).groups("a")
        ((0, 2), (1, 3))
        """
        indices, sizes = {self.axis_index(axis) for axis in axes}, zip(self.shape, self._strides)
        others = [range(0, n * stride, stride) for i, (n, stride) in enumerate(sizes) if i not in indices]
        return tuple(self.group(self.rank_at(sum(parts)), *axes) for parts in itertools.product(*others))


Bounds = tuple[tuple[int, int], ...]
DimLike = str | Sequence[str] | None


def split_block(start: Any, size: Any, parts: int, index: Any) -> tuple[Any, Any]:
    """Return start and size of block ``index`` of a range that is split into balanced ``parts``.

    The range is ``[start, start + size)``. All arguments may be arrays that broadcast; the results are then arrays.

    >>> [split_block(0, 7, 3, i) for i in range(3)]
    [(0, 3), (3, 2), (5, 2)]
    """
    base, extra = size // parts, size % parts
    longer = index < extra
    return start + index * base + extra + (index - extra) * longer, base + longer


def block_sizes(size: int, parts: int) -> tuple[int, ...]:
    """Return the sizes of all blocks if ``size`` elements are split into balanced ``parts``.

    >>> block_sizes(7, 3)
    (3, 2, 2)
    """
    base, extra = divmod(size, parts)
    return (base + 1,) * extra + (base,) * (parts - extra)


def largest_block(size: int, parts: int) -> int:
    """Return the size of the first block, which is the largest one.

    It holds for nested cuts, too: the largest block of a block is the first one.

    >>> largest_block(7, 3), largest_block(largest_block(7, 2), 2), largest_block(7, 4)
    (3, 2, 2)
    """
    return -(-size // parts)


def nested_blocks(size: int, parts: Sequence[int]) -> list[tuple[int, int]]:
    """Return ``(start, size)`` of every block if ``size`` elements are split repeatedly.

    They are split into ``parts[0]`` balanced blocks, each of these into ``parts[1]``, and so on. The function is
    faster than :func:`nested_block_arrays` for few blocks.

    >>> nested_blocks(7, (2, 2))
    [(0, 2), (2, 2), (4, 2), (6, 1)]
    """
    blocks = [(0, size)]
    for count in parts:
        blocks = [split_block(start, length, count, i) for start, length in blocks for i in range(count)]
    return blocks


@explained
class Layout(Immutable):
    """Distribution of a tensor over a mesh.

    Immutable and hashable; LayoutError for wrong axes or mixed reductions.

    Args:
        mesh: the mesh.
        dims: per tensor dim an axis name, a sequence of names (major first), or None.
        partial: axes with pending reductions, ``{"tp": "sum"}``; names alone mean ``sum``.

    >>> mesh = Mesh((2, 2, 2), ("dp", "sp", "mp"))
    >>> x = mesh("mp", ("sp", "dp"))
    >>> x.bounds((32, 784), rank=2)
    ((0, 16), (392, 588))
    """

    __slots__ = ("dims", "mesh", "partial")

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...]

    def __init__(self, mesh: Mesh, dims: Sequence[DimLike], partial: PartialLike = ()) -> None:
        if not isinstance(mesh, Mesh):
            raise UsageTypeError(f"Layout: mesh must be a Mesh, got {mesh!r:.60}")
        self._freeze(("mesh", "dims", "partial"), mesh, *layout_arguments(mesh.axis_index, dims, partial))

    def __repr__(self) -> str:
        dims = [repr(None if not d else d[0] if len(d) == 1 else d) for d in self.dims]
        partial = [f"partial={dict(self.partial)}"] if self.partial else []
        return f"{self.mesh!r}({', '.join(dims + partial)})"

    def __str__(self) -> str:
        dims = [f"({','.join(axes)})" if len(axes) > 1 else "".join(axes) or "-" for axes in self.dims]
        partial = [f"{op} pending over {axis}" for axis, op in self.partial]
        return f"[{', '.join(dims + partial)}] over {self.mesh}"

    @cached_property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes with pending reductions, in mesh order."""
        return tuple(axis for axis, _ in self.partial)

    @cached_property
    def replicated_axes(self) -> tuple[str, ...]:
        """The axes along which all ranks own equal values, in mesh order."""
        used = {axis for entry in self.dims for axis in entry} | {*self.partial_axes}
        return tuple(axis for axis in self.mesh.axes if axis not in used)

    @property
    def reduce_op(self) -> str | None:
        """The pending reduction of all partial axes, or None."""
        return self.partial[0][1] if self.partial else None

    def bounds(self, shape: Sequence[int], rank: int) -> Bounds:
        """Return ``(start, stop)`` per dim of the shard that ``rank`` owns.

        For example, if 5 rows and 2 columns are split into rows over 2 ranks, rank 1 owns ((3, 5), (0, 2)). A rank
        outside the mesh owns nothing: all its bounds are (0, 0). If a dim has more blocks than elements, ``start ==
        stop`` for some ranks. Pending reductions make no difference.

        Args:
            shape: the global shape of the tensor.
            rank: the rank.

        Raises:
            LayoutError: If the shape has another number of dims than the layout.
        """
        if len(shape) != len(self.dims):
            self.check_shape(shape)
        if rank not in self.mesh:
            return ((0, 0),) * len(shape)
        coords = dict(zip(self.mesh.axes, self.mesh.coords(rank)))
        bounds = []
        for size, entry in zip(shape, self.dims):
            start = 0
            for axis in entry:
                start, size = split_block(start, size, self.mesh.size_of[axis], coords[axis])
            bounds.append((start, start + size))
        return tuple(bounds)

    def slices(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        """Return the bounds as slices that index a global array."""
        return tuple(slice(start, stop) for start, stop in self.bounds(shape, rank))

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return the shape of the shard that ``rank`` owns; all zeros for a rank outside the mesh."""
        return tuple(stop - start for start, stop in self.bounds(shape, rank))

    @cached_property
    def reduced(self) -> Layout:
        """The layout with equal splits and no pending reduction."""
        return Layout(self.mesh, self.dims) if self.partial else self

    def dual(self) -> Layout:
        """Return the layout of the gradient: S stays S, R stays R, P becomes R (JAX's cotangent spec)."""
        return self.reduced

    @cached_property
    def canonical(self) -> Layout:
        """The same distribution without axes of size 1 in dims and partial."""
        size = self.mesh.size_of
        dims = tuple(tuple(a for a in entry if size[a] > 1) for entry in self.dims)
        partial = tuple((a, op) for a, op in self.partial if size[a] > 1)
        return self if (dims, partial) == (self.dims, self.partial) else Layout(self.mesh, dims, partial)

    # -- placements ------------------------------------------------------------------------------------

    @cached_property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that split some dim, dim by dim, major first."""
        return tuple(axis for entry in self.dims for axis in entry)

    @classmethod
    def replicated(cls, mesh: Mesh, ndim: int) -> Layout:
        """Return the layout in which every rank of the mesh owns all elements of a tensor with ``ndim`` dims."""
        return mesh(*(None,) * ndim)

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

        >>> Mesh((2, 2, 2), ("dp", "sp", "mp"))("mp", ("sp", "dp")).placement_text()
        'S(1)[1]S(1)[0]S(0)'
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

        >>> Mesh((2, 2), ("x", "y"))(("x", "y"), None).largest_shape((7, 3))
        (2, 3)
        """
        return tuple(map(largest_block, shape, self.cuts))

    # -- shards and replicas of a rank -----------------------------------------------------------------

    def shard_index(self, rank: int) -> int:
        """Return the number of a rank's shard among the distinct shards.

        Dim 0 is the major one, and so is the first axis of a dim.

        >>> x = Mesh((2, 2, 2), ("dp", "sp", "mp"))("mp", ("sp", "dp"))
        >>> [x.shard_index(rank) for rank in range(8)]
        [0, 4, 2, 6, 1, 5, 3, 7]
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
