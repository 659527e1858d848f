"""Where a tensor comes from: arrays, functions of an index, the ranks' own pieces, or the tensor in another layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.tape import Gradients, MoveNode, reduce_gradients
from spmdsim.core.tensor import Meta, PlainTensor
from spmdsim.errors import InputError, LayoutError, UsageTypeError, many
from spmdsim.layout.element_type import as_array, is_nameless, number_type, resolve_nameless, why_no_number
from spmdsim.redistribution import plan
from spmdsim.sides import in_words, number_of, sides
from spmdsim.worlds.base import follow_watched
from spmdsim.worlds.checksums import checksum, sampled
from spmdsim.worlds.pool import empty
from spmdsim.worlds.several_worlds import with_room
from spmdsim.worlds.trace import recorder

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from spmdsim.worlds.base import World


Take = Callable[[tuple[slice, ...]], np.ndarray]


class Sliceable(Protocol):
    """What can be sliced like an array, as some files can."""

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole."""

    @property
    def dtype(self) -> np.dtype:
        """The type of its elements."""

    def __getitem__(self, index: tuple[slice, ...], /) -> ArrayLike:
        """A block."""


#: What a tensor is made from: an array, what is sliced like one, or a function that gives the block at an index.
GlobalSource: TypeAlias = "ArrayLike | Sliceable | Callable[[tuple[slice, ...]], ArrayLike]"
#: The pieces that ranks have already: one, one per owned rank, or a function of the rank.
LocalPieces: TypeAlias = "ArrayLike | Sequence[ArrayLike] | Callable[[int], ArrayLike]"


def blocks(source: Any, layout: Layout, shape: Sequence[int] | None, dtype: Any) -> tuple[Meta, Take]:
    """The meta of a global source, and a function that takes one block of it as a fresh array.

    A source is an array, or a function of an index: that needs ``shape`` and ``dtype``, and may give all blocks in the
    same memory. An InputError says what it lacks, or gives wrongly.
    """
    check_layout(layout)
    if callable(source) and not hasattr(source, "shape"):
        if shape is None or dtype is None:
            raise InputError("a tensor made by a function needs shape=... and dtype=...")
        kind = number_type(dtype, "a tensor cannot have")
        return Meta.of(layout, shape, kind), _from_function(source, kind)
    array = source if hasattr(source, "shape") and hasattr(source, "dtype") else as_array(source)
    if shape is not None and tuple(shape) != tuple(array.shape):
        raise InputError(f"the array has shape {tuple(array.shape)}, not {tuple(shape)}")
    own = resolve_nameless(np.dtype(array.dtype), dtype, "the array has")
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


def _from_function(function: Callable[[tuple[slice, ...]], Any], dtype: np.dtype) -> Take:
    def take(index: tuple[slice, ...]) -> np.ndarray:
        # Copy, because the function may return a view of its caller's array, or one buffer for all blocks.
        block = np.array(function(index), dtype=dtype, order="C")
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
            f"this process owns {many(len(world.ranks), 'rank')}, but "
            f"{many(len(shards), 'local array was', 'local arrays were')} given"
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
                f"rank {rank} holds a piece of {many(len(local), 'dim')} {local}, but layout {layout} is for {layout.ndim}"
            )
    return tuple(
        sum(local_shapes[rank][dim] for rank in mesh.group(first, *entry))
        for dim, entry in enumerate(layout.dims)
    )


T = TypeVar("T", bound=PlainTensor)


class ReshapeNode(MoveNode):
    """A redistribution into another shape: the identity on the elements in row-major order."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Hand the gradients on in the shape that the operand has."""
        operand = self.meta
        if not gradients[0]:
            return gradients
        with recorder.operator("reshape.backward"):
            first, *others = gradients[0]
            total = reduce_gradients(gradients[0], first.layout.dual()) if others else first
            return [[reshaped(total.detach(), operand.layout.dual(), operand.shape)]]


def reshaped(tensor: T, layout: Layout, shape: Sequence[int]) -> T:
    """Return a tensor with its elements in row-major order in another shape, in a layout of that shape."""
    if not isinstance(layout, Layout):
        raise UsageTypeError(f"a tensor goes to a layout, such as mesh('dp', None), but got {layout!r}")
    tensor = with_room(tensor, layout.mesh)
    world, meta = tensor.world, tensor.meta
    machine = world.machine  # type: ignore[attr-defined]
    route = plan(meta.layout, layout, meta.shape, meta.dtype, machine, to_shape=tuple(shape))
    return follow_watched(tensor, route, None if route.to_shape is None else ReshapeNode)


#: Bytes of a file or a memory map up to which all are compared, and not samples.
SMALL_FILE = 1 << 26


def require_equal_source(world: World, tensor: PlainTensor, source: Any, what: str = "from_global") -> None:
    """Refuse a source that is not the same on all ranks of the tensor's mesh, by a WorldError.

    Of an array all bytes are compared, of memory maps and files of more than 64 MiB samples, of a function the pieces that
    several ranks took, or what it says that it gives (``words``).
    """
    meta, rank = tensor.meta, world.ranks[0]
    layout = meta.layout
    if rank not in layout.mesh or getattr(source, "words", "") is None:
        return
    words, array = getattr(source, "words", ""), tensor.held[0]
    if hasattr(source, "sample"):
        words = source.sample()
    if not hasattr(source, "shape") and not callable(source):
        source = np.asarray(source)
    if whole := isinstance(source, np.ndarray):
        array = source
    copies = layout.replica_ranks(rank)
    group = tuple(sorted(layout.mesh.rank_list if whole or words else copies))
    facts = (str(meta.shape), meta.dtype.name, str(layout), words)
    is_large_file = isinstance(source, np.memmap) and source.nbytes > SMALL_FILE
    compared = sampled if is_large_file else checksum
    is_told = words and len(copies) < len(group)  # the words are all that these ranks have in common
    number = number_of(repr((*facts, 0 if is_told else compared(array))))
    if len(group) > 1 and not world.equal_on(group, number, what):
        from spmdsim.arrays.replicas import refuse_unlike

        refuse_unlike(world, tensor, group, facts, array, whole)
