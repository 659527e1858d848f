"""Where a tensor's pieces come from: arrays, functions of an index, or the ranks' own pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.tensor import Meta
from spmdsim.errors import InputError, LayoutError, UsageTypeError
from spmdsim.layout.element_type import as_array, is_nameless, named, number_type, why_no_number
from spmdsim.sides import in_words, sides
from spmdsim.worlds.pool import empty

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

Take = Callable[[tuple[slice, ...]], np.ndarray]


@dataclass(frozen=True)
class Described:
    """A function of an index that gives a block, and says in words what it gives: ranks compare them.

    The words are None where ranks may fail alone, and compare later.
    """

    function: Any
    words: str | None

    def __call__(self, index: tuple[slice, ...]) -> Any:
        """A block."""
        return self.function(index)


def blocks(
    source: Any, layout: Layout, shape: Sequence[int] | None, dtype: Any, several: bool = False
) -> tuple[Meta, Take]:
    """The meta of a global source, and a function that takes one block of it as a fresh array.

    A source is an array, or a function of an index: that needs ``shape`` and ``dtype``, and may give all blocks in the
    same memory, which matters where ``several`` are taken. An InputError says what it lacks, or gives wrongly.
    """
    check_layout(layout)
    if callable(source) and not hasattr(source, "shape"):
        if shape is None or dtype is None:
            raise InputError("a tensor made by a function needs shape=... and dtype=...")
        kind = number_type(dtype, "a tensor cannot have")
        return Meta.of(layout, shape, kind), _from_function(source, kind, several)
    array = source if hasattr(source, "shape") and hasattr(source, "dtype") else as_array(source)
    if shape is not None and tuple(shape) != tuple(array.shape):
        raise InputError(f"the array has shape {tuple(array.shape)}, not {tuple(shape)}")
    own = named(np.dtype(array.dtype), dtype, "the array has")
    kind = number_type(own if dtype is None or own != array.dtype else dtype, "the array has")

    def take(index: tuple[slice, ...]) -> np.ndarray:
        block = np.asarray(array[index])
        if is_nameless(block.dtype):
            block = block.view(own)
        fresh = empty(block.shape, kind)
        fresh[...] = block
        return fresh

    return Meta.of(layout, array.shape, kind), take


def check_layout(layout: Any) -> None:
    """Refuse what is no layout, such as a mesh, by a UsageTypeError."""
    if not isinstance(layout, Layout):
        raise UsageTypeError(f"a tensor has a layout, such as mesh('dp', None), but got {layout!r}")


#: The references to what only a view, and this question, refers to.
_SOLE = getrefcount(np.empty(2)[:1].base)


def _from_function(function: Callable[[tuple[slice, ...]], Any], dtype: np.dtype, several: bool) -> Take:
    convert = np.array if several else np.asarray

    def take(index: tuple[slice, ...]) -> np.ndarray:
        block = convert(function(index), dtype=dtype, order="C")
        if block.base is not None and getrefcount(block.base) > _SOLE:  # such as a slice of the user's array
            block = block.copy()
        wanted = tuple(part.stop - part.start for part in index)
        if block.shape != wanted:
            raise InputError(f"the function returned a block of shape {block.shape} for {wanted} at {index}")
        return block

    return take


def assemble(
    shards: Any, layout: Layout, world: World, shape: Sequence[int] | None
) -> tuple[Meta, list[np.ndarray]]:
    """The meta and arrays of a tensor given by its pieces; all processes agree, or all name the first that does not fit."""
    arrays = _as_list(shards, world)
    facts = world.gather_objects(
        [(array.shape, array.dtype.name, why_no_number(array.dtype)) for array in arrays], "from_local"
    )
    members = layout.mesh.rank_list
    names = {facts[rank][1] for rank in members}
    for rank in members:
        if facts[rank][2] is not None:
            raise LayoutError(f"rank {world.job[rank]} holds a piece with {facts[rank][2]}")
    if len(names) > 1:
        told = in_words(sides((rank, facts[rank][1]) for rank in members), "hold", world.job)
        raise LayoutError(f"all pieces need one dtype, but {told}")
    whole = tuple(shape) if shape is not None else global_shape(layout, {r: facts[r][0] for r in members})
    for rank in members:
        wanted = layout.local_shape(whole, rank)
        if facts[rank][0] != wanted:
            raise LayoutError(
                f"rank {world.job[rank]} holds a piece of shape {facts[rank][0]}, but layout {layout} of a tensor of shape "
                f"{whole} gives it {wanted}; {in_words(sides((r, facts[r][0]) for r in members), 'hold', world.job)}"
            )
    held = [array.dtype for rank, array in zip(world.ranks, arrays) if rank in layout.mesh]
    # A process outside the mesh learns the type from the others, by its name.
    dtype = number_type(held[0] if held else names.pop(), "the pieces have")
    outside = np.zeros((0,) * layout.ndim, dtype)
    pieces = [x if rank in layout.mesh else outside for rank, x in zip(world.ranks, arrays)]
    return Meta.of(layout, whole, dtype), [np.asarray(piece, dtype, order="C") for piece in pieces]


def _as_list(shards: Any, world: World) -> list[np.ndarray]:
    if callable(shards):
        if len(world.ranks) == 1:
            return [as_array(shards(world.ranks[0]))]
        # A function may fill the same buffer for one rank after the other.
        return [np.array(as_array(shards(rank))) for rank in world.ranks]
    if not isinstance(shards, (list, tuple)):
        shards = [shards]
    if len(shards) != len(world.ranks):
        raise InputError(
            f"this process owns {len(world.ranks)} ranks, but {len(shards)} local arrays were given"
        )
    return [as_array(shard) for shard in shards]


def global_shape(layout: Layout, local_shapes: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """The global shape that gives every rank the local shape it has.

    A dim's size is the sum over the pieces along its axes, seen from the first rank of the mesh.

    >>> from spmdsim.core import Mesh
    >>> layout = Mesh((2, 2), ("a", "b"))(("a", "b"), None)
    >>> global_shape(layout, {0: (2, 3), 1: (1, 3), 2: (1, 3), 3: (1, 3)})
    (5, 3)
    """
    mesh = layout.mesh
    first = mesh.rank_at(0)
    for rank, local in local_shapes.items():
        if len(local) != layout.ndim:
            raise LayoutError(
                f"rank {rank} holds a piece of {len(local)} dims {local}, but layout {layout} is for {layout.ndim}"
            )
    return tuple(
        sum(local_shapes[rank][dim] for rank in mesh.group(first, *entry))
        for dim, entry in enumerate(layout.dims)
    )
