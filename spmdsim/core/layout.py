"""The layout: where a tensor lives.

Per tensor dim, the mesh axes that split it, major to minor (MindSpore's and JAX's order); plus the axes along which
values are still partial. Everything else (bounds, shard numbers, replicas, placements, tensor maps) is derived from
these two facts.

Sizes that do not divide are split in balanced blocks, axis by axis, major first ("nested"): the first
``n % p`` of ``p`` parts get one element more (OneFlow's BalancedSplitter). Empty shards are legal.

Next: :mod:`spmdsim.core.rule`, what operators mean for layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spmdsim.core.mesh import Immutable, Mesh, is_integer
from spmdsim.errors import LayoutError, UsageTypeError, unknown
from spmdsim.pictured import Pictured

Bounds = tuple[tuple[int, int], ...]

#: Reductions that a pending (partial) value may wait for.
REDUCE_OPS = ("sum", "prod", "max", "min", "avg", "all", "any")


@dataclass(frozen=True)
class Shard(Pictured):
    """The axis splits tensor dim ``dim``; UsageTypeError if that is no integer."""

    dim: int

    def __post_init__(self) -> None:
        if not is_integer(self.dim):
            raise UsageTypeError(f"Shard takes a tensor dim (an integer), but got {self.dim!r}")

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True)
class Replicate(Pictured):
    """All ranks along the axis hold the same values."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True)
class Partial(Pictured):
    """The true value is the reduction by ``op`` of what the ranks along the axis hold; LayoutError if ``op`` is none."""

    op: str = "sum"

    def __post_init__(self) -> None:
        _require_reduction(self.op)

    def __str__(self) -> str:
        return f"P({self.op})"


Placement = Shard | Replicate | Partial


def _require_reduction(op: object) -> None:
    if op not in REDUCE_OPS:
        raise unknown(f"no reduction is called {op!r}", str(op), REDUCE_OPS, LayoutError)


def split_block(start: Any, size: Any, parts: int, index: Any) -> tuple[Any, Any]:
    """Start and size of block ``index`` when ``[start, start+size)`` is cut into balanced ``parts``.

    Numbers, or arrays of them that broadcast.

    >>> [split_block(0, 7, 3, i) for i in range(3)]
    [(0, 3), (3, 2), (5, 2)]
    """
    base, extra = size // parts, size % parts
    longer = index < extra
    return start + index * base + extra + (index - extra) * longer, base + longer


class Layout(Immutable):
    """Where a tensor of ``len(dims)`` dims lives on a mesh. Immutable and hashable.

    Args:
        mesh: the mesh.
        dims: per tensor dim an axis name, a sequence of names (major first), or None.
        partial: axes with pending results and their reduction, ``{"tp": "sum"}``; a name or a sequence of
            names means ``sum``.

    Raises:
        LayoutError: an unknown axis, an axis used twice, mixed reductions.

    >>> mesh = Mesh((2, 2, 2), ("dp", "sp", "mp"))
    >>> x = mesh("mp", ("sp", "dp"))
    >>> x.bounds((32, 784), rank=2)
    ((0, 16), (392, 588))
    >>> [x.shard_index(rank) for rank in range(8)]
    [0, 4, 2, 6, 1, 5, 3, 7]
    >>> x.short()
    'S(1)[1]S(1)[0]S(0)'
    """

    __slots__ = ("dims", "mesh", "partial")

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...]

    def __init__(
        self,
        mesh: Mesh,
        dims: Sequence[str | Sequence[str] | None],
        partial: Mapping[str, str] | str | Sequence[str] | Sequence[tuple[str, str]] = (),
    ) -> None:
        entries, pending = tuple(map(_entry, dims)), _pending(mesh, partial)
        _check_axes(mesh, entries, pending)
        self._settle(("mesh", "dims", "partial"), mesh, entries, pending)

    @classmethod
    def from_placements(cls, mesh: Mesh, placements: Sequence[Placement], ndim: int) -> Layout:
        """The layout with a placement per mesh axis, those on one dim nested in mesh order; LayoutError if they do not fit."""
        count = len(mesh.axes)
        if len(placements) != count:
            raise LayoutError(f"{len(placements)} placements were given for the {count} axes of mesh {mesh}")
        dims: list[list[str]] = [[] for _ in range(ndim)]
        partial: dict[str, str] = {}
        for axis, placement in zip(mesh.axes, placements):
            if isinstance(placement, Shard):
                if not -ndim <= placement.dim < ndim:
                    raise LayoutError(
                        f"{placement} on axis {axis!r} is out of range for a tensor of {ndim} dims"
                    )
                dims[placement.dim].append(axis)
            elif isinstance(placement, Partial):
                partial[axis] = placement.op
            elif not isinstance(placement, Replicate):
                raise UsageTypeError(f"{placement!r} is not Shard(dim), Replicate() or Partial(op)")
        return cls(mesh, dims, partial)

    @classmethod
    def replicated(cls, mesh: Mesh, ndim: int) -> Layout:
        """Every rank of the mesh holds the whole tensor."""
        return cls(mesh, (None,) * ndim)

    def __repr__(self) -> str:
        dims = [repr(None if not d else d[0] if len(d) == 1 else d) for d in self.dims]
        partial = [f"partial={dict(self.partial)}"] if self.partial else []
        return f"{self.mesh!r}({', '.join(dims + partial)})"

    def __str__(self) -> str:
        dims = [_entry_text(entry) for entry in self.dims]
        partial = [f"{op} pending over {axis}" for axis, op in self.partial]
        return f"[{', '.join(dims + partial)}] over {self.mesh}"

    # -- what the two facts say per axis ------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of tensor dims."""
        return len(self.dims)

    @cached_property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that split some dim, dim by dim, major first."""
        return tuple(axis for entry in self.dims for axis in entry)

    @cached_property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes with pending results, in mesh order."""
        return tuple(axis for axis, _ in self.partial)

    @cached_property
    def replicated_axes(self) -> tuple[str, ...]:
        """The axes along which all ranks hold equal values, in mesh order."""
        used = {*self.split_axes, *self.partial_axes}
        return tuple(axis for axis in self.mesh.axes if axis not in used)

    @property
    def reduce_op(self) -> str | None:
        """The reduction all partial axes wait for, or None."""
        return self.partial[0][1] if self.partial else None

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis. The order of axes on one dim is not in it: see :meth:`short`."""
        shard = {axis: Shard(dim) for dim, entry in enumerate(self.dims) for axis in entry}
        partial = {axis: Partial(op) for axis, op in self.partial}
        return tuple(shard.get(a) or partial.get(a) or Replicate() for a in self.mesh.axes)

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Into how many pieces each dim is cut (MindSpore's strategy)."""
        return tuple(self.mesh.axis_size(*entry) for entry in self.dims)

    def short(self) -> str:
        """Per-axis form such as ``S(0)R``; ``[k]`` is an axis's place in its dim, if not in mesh order."""
        order = {axis: k for entry in self.dims for k, axis in enumerate(entry)}
        index = self.mesh.axes.index
        unusual = {a for e in self.dims if list(e) != sorted(e, key=index) for a in e}
        return "".join(
            f"{placement}[{order[axis]}]" if axis in unusual else str(placement)
            for axis, placement in zip(self.mesh.axes, self.placements)
        )

    # -- which piece a rank holds -------------------------------------------------------------------

    def bounds(self, shape: Sequence[int], rank: int) -> Bounds:
        """``(start, stop)`` per dim of the piece of a tensor of this ``shape`` that ``rank`` holds; outside the mesh empty."""
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
        """The bounds as slices, to index a global array with."""
        return tuple(slice(start, stop) for start, stop in self.bounds(shape, rank))

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Shape of the piece that ``rank`` holds; all zero for a rank outside the mesh."""
        return tuple(stop - start for start, stop in self.bounds(shape, rank))

    def largest_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the largest piece: the first rank's.

        >>> Mesh((2, 2), ("x", "y"))(("x", "y"), None).largest_shape((7, 3))
        (2, 3)
        """
        return tuple(-(-size // parts) for size, parts in zip(shape, self.cuts))

    def shard_index(self, rank: int) -> int:
        """Which distinct piece the rank holds, counted with dim 0 and the first axis of a tuple as major."""
        coords, number = dict(zip(self.mesh.axes, self.mesh.coords(rank))), 0
        for axis in self.split_axes:
            number = number * self.mesh.size_of[axis] + coords[axis]
        return number

    @property
    def shard_count(self) -> int:
        """How many distinct pieces there are."""
        return self.mesh.axis_size(*self.split_axes)

    def replica_ranks(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same values as ``rank``, itself included, in mesh order."""
        return self.mesh.group(rank, *self.replicated_axes)

    #: Their names up to version 0.1.
    parts = property(lambda self: self.cuts)
    shard_number, replicas = shard_index, replica_ranks

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse a shape with another number of dims, by a LayoutError."""
        if len(shape) != len(self.dims):
            raise LayoutError(
                f"layout {self} is for tensors of {len(self.dims)} dims, but the shape is {tuple(shape)}"
            )

    def is_even(self, shape: Sequence[int]) -> bool:
        """Whether every rank's piece of a tensor of this shape has the same size."""
        self.check_shape(shape)
        return all(size % parts == 0 for size, parts in zip(shape, self.cuts))

    # -- related layouts ----------------------------------------------------------------------------

    def with_partial(self, partial: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> Layout:
        """The same splits with other pending axes (none by default)."""
        return Layout(self.mesh, self.dims, partial)

    @cached_property
    def reduced(self) -> Layout:
        """The same splits with nothing pending."""
        return Layout(self.mesh, self.dims) if self.partial else self

    def dual(self) -> Layout:
        """The layout of the gradient: S stays S, R stays R, P becomes R (JAX's cotangent spec)."""
        return self.reduced

    @cached_property
    def canonical(self) -> Layout:
        """The same distribution without axes of size 1 in dims and partial."""
        size = self.mesh.size_of
        dims = tuple(tuple(a for a in entry if size[a] > 1) for entry in self.dims)
        partial = tuple((a, op) for a, op in self.partial if size[a] > 1)
        return self if (dims, partial) == (self.dims, self.partial) else Layout(self.mesh, dims, partial)

    def to_dict(self) -> dict[str, object]:
        """MindSpore's five keys; the tensor map counts axes from the right, -1 is "None".

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


def _entry(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    if entry in (None, (), "None"):
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, Sequence) and all(isinstance(axis, str) for axis in entry):
        return tuple(axis for axis in entry if axis != "None")
    raise UsageTypeError(f"a dim takes an axis name, a tuple of names or None, but got {entry!r}")


def _pending(mesh: Mesh, partial: object) -> tuple[tuple[str, str], ...]:
    if partial == ():
        return ()
    if isinstance(partial, str):
        partial = (partial,)
    items: list[tuple[str, str]] = []
    for item in partial.items() if isinstance(partial, Mapping) else partial:  # type: ignore[attr-defined]
        axis, op = (item, "sum") if isinstance(item, str) else item
        _require_reduction(op)
        items.append((axis, op))
    return tuple(sorted(items, key=lambda item: mesh.axis_index(item[0])))


def _check_axes(mesh: Mesh, dims: tuple[tuple[str, ...], ...], partial: tuple[tuple[str, str], ...]) -> None:
    axes = [*(axis for entry in dims for axis in entry), *(axis for axis, _ in partial)]
    for k, axis in enumerate(axes):
        mesh.axis_index(axis)
        if axis in axes[:k]:
            raise LayoutError(
                f"axis {axis!r} is used twice in one layout, but an axis can split one dim or hold one "
                f"pending reduction: dims {dims}, partial {dict(partial)}"
            )
    if len({op for _, op in partial}) > 1:
        raise LayoutError(
            f"one layout cannot wait for different reductions, but got {dict(partial)}; reduce one first"
        )


def _entry_text(entry: tuple[str, ...]) -> str:
    return f"({','.join(entry)})" if len(entry) > 1 else "".join(entry) or "-"
