"""What is written for a mesh, a layout or a world, as values, or refused in words: nothing else is asked by core for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from spmdsim.errors import LayoutError, UsageTypeError, WorldError, unknown

if TYPE_CHECKING:
    from spmdsim.core.mesh import Mesh

#: Reductions that a partial value may wait for.
REDUCE_OPS = ("sum", "prod", "max", "min", "avg", "all", "any")
#: Partial axes as they are written: with their reductions, or, of sums, alone.
PartialLike = Mapping[str, str] | str | Sequence[str] | Sequence[tuple[str, str]]
MOST_RANKS = 1 << 24
"""Ranks of a mesh: some questions are answered by listing them."""


def is_integer(value: object) -> bool:
    """Whether a value is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_world_size(size: object) -> None:
    """Refuse what is no number of ranks."""
    if not isinstance(size, int) or not is_integer(size):
        raise UsageTypeError(f"a world's size is an integer, but got {size!r}")
    if size < 1:
        raise WorldError(f"a world needs at least one rank, but got {size}")
    if size > MOST_RANKS:
        raise WorldError(f"a world of {size:,} ranks is too large: at most {MOST_RANKS:,}")


# -- meshes -----------------------------------------------------------------------------------------


def mesh_arguments(
    shape: Sequence[int] | int, axes: Sequence[str], ranks: Iterable[int] | None
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...] | None]:
    """Sizes and names of a mesh's axes, and its ranks, None for ``0 .. size-1``; a LayoutError says why there is none."""
    sizes, names = _sizes(shape), _names(axes)
    if len(sizes) != len(names):
        raise LayoutError(
            f"mesh shape {sizes} has {len(sizes)} axes but {len(names)} names were given: {names}"
        )
    size = math.prod(sizes)
    if size > MOST_RANKS:
        raise LayoutError(f"a mesh of {size:,} ranks is too large: at most {MOST_RANKS:,}")
    return sizes, names, None if ranks is None else _rank_order(ranks, size, sizes)


def _sizes(shape: Sequence[int] | int) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(map(is_integer, sizes)):
        raise UsageTypeError(f"mesh shape must be integers, but got {sizes}")
    if any(size <= 0 for size in sizes):
        raise LayoutError(f"every axis of a mesh needs a positive size, but got {sizes}")
    return sizes


def _names(axes: Sequence[str]) -> tuple[str, ...]:
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    if not all(isinstance(axis, str) for axis in names):
        raise UsageTypeError(f"axis names must be strings, but got {names}")
    for i, axis in enumerate(names):
        if axis in ("", "None"):
            raise LayoutError(f"{axis!r} cannot name an axis: a name is not empty and not 'None'")
        if axis in names[:i]:
            raise LayoutError(f"axis names must differ, but {axis!r} is repeated in {names}")
    return names


def _rank_order(ranks: Iterable[int], size: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    order = tuple(int(r) if not isinstance(r, int) and hasattr(r, "__index__") else r for r in ranks)
    if not all(map(is_integer, order)):
        raise UsageTypeError(f"ranks must be integers, but got {order}")
    if len(order) != size:
        raise LayoutError(f"a mesh of shape {shape} needs {size} ranks, but {len(order)} were given: {order}")
    if any(rank < 0 for rank in order):
        raise LayoutError(f"ranks must not be negative, but got {order}")
    if len(set(order)) != size:
        repeated = next(rank for i, rank in enumerate(order) if rank in order[:i])
        raise LayoutError(f"ranks of a mesh must differ, but {repeated} is repeated in {order}")
    return None if order == tuple(range(size)) else order


def listed(ranks: Sequence[int], words: Callable[[Sequence[int]], object]) -> str:
    """Ranks in a line; of many the ends, and a number that only the same ranks in the same order have."""
    if len(ranks) <= 24:
        return str(words(ranks))
    ends = ", ".join(map(str, ranks[:3]))
    return f"({ends}, ..., {ranks[-1]}: {len(ranks):,} ranks, {crc32(repr(ranks).encode()):08x})"


# -- layouts ----------------------------------------------------------------------------------------


def check_reduction(op: object) -> None:
    """Refuse what is no reduction that a layout can wait for, by a LayoutError."""
    if op not in REDUCE_OPS:
        raise unknown(f"no reduction is called {op!r}", str(op), REDUCE_OPS, LayoutError)


def axes_of_dim(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    """The axes that split a dim, from a name, names or None."""
    if entry in (None, (), "None"):
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, Sequence) and all(isinstance(axis, str) for axis in entry):
        return tuple(axis for axis in entry if axis != "None")
    raise UsageTypeError(f"a dim takes an axis name, a tuple of names or None, but got {entry!r}")


def partial_axes_of(mesh: Mesh, partial: PartialLike) -> tuple[tuple[str, str], ...]:
    """Axes with the reductions that they wait for, in mesh order; a name alone waits for a sum."""
    if partial == ():
        return ()
    if isinstance(partial, str):
        partial = (partial,)
    items: list[tuple[str, str]] = []
    for item in partial.items() if isinstance(partial, Mapping) else partial:
        axis, op = (item, "sum") if isinstance(item, str) else item
        check_reduction(op)
        items.append((axis, op))
    return tuple(sorted(items, key=lambda item: mesh.axis_index(item[0])))


def check_axes(mesh: Mesh, dims: tuple[tuple[str, ...], ...], partial: tuple[tuple[str, str], ...]) -> None:
    """Refuse a layout with an axis that the mesh has not or that is used twice, or with several reductions."""
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
