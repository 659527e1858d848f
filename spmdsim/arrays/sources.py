"""Sources of tensors: arrays, functions of an index, the ranks' own shards, tensors in other layouts.

`open_source` serves `Tensor.from_global`, `assemble_shards` serves `Tensor.from_local`, and `redistribute_reshaped`
serves `ops.reshape`. `require_equal_source` compares a source between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from spmdsim.arrays.differences import raise_source_difference
from spmdsim.core import Layout
from spmdsim.core.tape import reduce_gradients
from spmdsim.core.tensor import Gradients, Meta, MoveNode, PlainTensor
from spmdsim.errors import InputError, LayoutError, UsageTypeError, many
from spmdsim.layout.element_type import as_array, is_nameless, number_type, resolve_nameless, why_no_number
from spmdsim.reading import one_line
from spmdsim.redistribution import plan
from spmdsim.sides import describe_groups, hash_text, sides
from spmdsim.worlds.base import follow_watched
from spmdsim.worlds.checksums import checksum, sample_checksum
from spmdsim.worlds.pool import take_buffer
from spmdsim.worlds.several_worlds import move_to_larger_world
from spmdsim.worlds.trace import recorder

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from spmdsim.worlds.base import World


Take = Callable[[tuple[slice, ...]], np.ndarray]


class Sliceable(Protocol):
    """An object that can be sliced like an array, such as some files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""

    @property
    def dtype(self) -> np.dtype:
        """The element type."""

    def __getitem__(self, index: tuple[slice, ...], /) -> ArrayLike:
        """Return the block at an index of slices."""


#: Source of a tensor: an array, an object that can be sliced like one, or a function from an index to a block.
GlobalSource: TypeAlias = "ArrayLike | Sliceable | Callable[[tuple[slice, ...]], ArrayLike]"
#: Shards that ranks have already: one array, one per owned rank, or a function of the rank.
LocalPieces: TypeAlias = "ArrayLike | Sequence[ArrayLike] | Callable[[int], ArrayLike]"


def open_source(source: Any, layout: Layout, shape: Sequence[int] | None, dtype: Any) -> tuple[Meta, Take]:
    """Return the `Meta` (layout, shape, dtype) of a source, and a function to read blocks.

    Nothing is read yet. A source counts as a function if it can be called and has no ``shape``.

    Args:
        source: an array, an object that can be sliced, or a function of an index; a function needs ``shape`` and
            ``dtype`` and may return all blocks in the same memory.
        layout: the layout of the tensor.
        shape: the global shape; None: the shape of the array.
        dtype: the element type; None: the element type of the array.

    Returns:
        ``(meta, take)``: ``take(slices)`` returns the block at a tuple of slices as a new array in the tensor's
        element type. It raises InputError if a function returns a block of another shape.

    Raises:
        InputError: If shape or type are missing or do not fit the source, or elements are no numbers.
        LayoutError: If the layout has another number of dims.
        UsageTypeError: If ``layout`` is no layout.
    """
    check_layout(layout)
    if callable(source) and not hasattr(source, "shape"):
        if shape is None or dtype is None:
            raise InputError(
                f"from_global: shape and dtype must be given if the array is a function, got shape={shape!r} and dtype={dtype!r}"
            )
        kind = number_type(dtype, "a tensor cannot have")
        return Meta.of(layout, shape, kind), _wrap_function(source, kind)
    array = source if hasattr(source, "shape") and hasattr(source, "dtype") else as_array(source)
    if shape is not None and tuple(shape) != tuple(array.shape):
        raise InputError(
            f"from_global: shape must be the array's {tuple(array.shape)}, got {tuple(shape)}; leave shape out"
        )
    own_type = resolve_nameless(np.dtype(array.dtype), dtype, "the array has")
    kind = number_type(own_type if dtype is None or own_type != array.dtype else dtype, "the array has")

    def take(index: tuple[slice, ...]) -> np.ndarray:
        """Return the block at an index as a new array in the tensor's type."""
        block = np.asarray(array[index])
        if is_nameless(block.dtype):
            block = block.view(own_type)
        fresh = take_buffer(block.shape, kind)
        fresh[...] = block
        return fresh

    return Meta.of(layout, array.shape, kind), take


def check_layout(layout: Any) -> None:
    """Raise UsageTypeError if a value is no layout."""
    if not isinstance(layout, Layout):
        raise UsageTypeError(
            f"layout must be a layout, such as mesh('dp', None), got {one_line(repr(layout), 60)}"
        )


def _wrap_function(function: Callable[[tuple[slice, ...]], Any], dtype: np.dtype) -> Take:
    """Return a function that copies the blocks of ``function`` and checks their shapes.

    It raises InputError if a block has another shape than its index.

    Args:
        function: returns the block at a tuple of slices.
        dtype: the element type of the copies; they are in C order.
    """

    def take(index: tuple[slice, ...]) -> np.ndarray:
        """Return a copy of the function's block; raise InputError if it has another shape."""
        # Copy, because the function may return a view of its caller's array, or one buffer for all blocks.
        block = np.array(function(index), dtype=dtype, order="C")
        wanted = tuple(span.stop - span.start for span in index)
        if block.shape != wanted:
            raise InputError(
                f"from_global: the function must return a block of shape {wanted} at {index}, got shape {block.shape}"
            )
        return block

    return take


def assemble_shards(
    shards: Any, layout: Layout, world: World, shape: Sequence[int] | None
) -> tuple[Meta, list[np.ndarray]]:
    """Return the `Meta` (layout, shape, dtype) of a tensor and one array per owned rank.

    All ranks must call it. They exchange shapes and types and compare them with the layout, so all of them raise one
    error. Arrays are copied only if they are not in C order or in the native byte order.

    Args:
        shards: the shards of this process's ranks: one array, a sequence of one per rank, or a function of the rank.
        layout: the layout of the tensor.
        world: the world of the ranks.
        shape: the global shape; None: computed from the shards.

    Returns:
        The meta and the arrays. A rank outside of the mesh gets an array without elements.

    Raises:
        LayoutError: If types differ or are no numbers, or shapes do not fit the layout.
        InputError: If the number of shards is not the number of owned ranks; on this process only, before the exchange.
    """
    arrays = _convert_to_arrays(shards, world)
    facts = world.gather_objects(
        [(array.shape, array.dtype.name, why_no_number(array.dtype)) for array in arrays], "from_local"
    )
    members = layout.mesh.rank_list
    type_name = _require_one_type(facts, members, world)
    full_shape = (
        tuple(shape)
        if shape is not None
        else infer_global_shape(layout, {rank: facts[rank][0] for rank in members})
    )
    for rank in members:
        wanted = layout.local_shape(full_shape, rank)
        if facts[rank][0] != wanted:
            raise LayoutError(
                f"rank {world.job[rank]} owns a shard of shape {facts[rank][0]}, but layout {layout} of a tensor of shape "
                f"{full_shape} gives it {wanted}; "
                f"{describe_groups(sides((r, facts[r][0]) for r in members), 'hold', world.job)}"
            )
    own_types = [array.dtype for rank, array in zip(world.ranks, arrays) if rank in layout.mesh]
    # A process outside the mesh learns the type from the others, by its name.
    dtype = number_type(own_types[0] if own_types else type_name, "the pieces have")
    outside = np.zeros((0,) * layout.ndim, dtype)
    shards_of_ranks = [
        np.asarray(array if rank in layout.mesh else outside, dtype, order="C")
        for rank, array in zip(world.ranks, arrays)
    ]
    return Meta.of(layout, full_shape, dtype), shards_of_ranks


def _require_one_type(
    facts: Sequence[tuple[tuple[int, ...], str, str | None]], members: Sequence[int], world: World
) -> str:
    """Return the name of the element type of all shards.

    Args:
        facts: per rank the shape of its shard, the name of its element type, and a text if elements of this type are
            no numbers, else None.
        members: the ranks of the mesh; other ranks are not checked.
        world: the world, for the ranks' numbers in messages.

    Raises:
        LayoutError: If elements are no numbers, or the types differ.
    """
    for rank in members:
        _, _, problem = facts[rank]
        if problem is not None:
            raise LayoutError(f"rank {world.job[rank]} owns a shard with {problem}")
    ranks_by_type = sides((rank, facts[rank][1]) for rank in members)
    if len(ranks_by_type) > 1:
        raise LayoutError(
            f"from_local: all shards must have one dtype, but {describe_groups(ranks_by_type, 'hold', world.job)}"
        )
    return facts[members[0]][1]


def _convert_to_arrays(shards: Any, world: World) -> list[np.ndarray]:
    """Return one array per owned rank.

    Arrays are not copied, with one exception: if the process owns several ranks, the arrays of a function are copied,
    because it may return one buffer for all ranks.

    Args:
        shards: one array if the world owns one rank, a list or tuple with one array per owned rank, or a function of
            the rank.
        world: the world that owns the ranks.

    Raises:
        InputError: If there are more or fewer arrays than owned ranks.
    """
    if callable(shards):
        if len(world.ranks) == 1:
            return [as_array(shards(world.ranks[0]))]
        # A function may fill the same buffer for one rank after the other.
        return [np.array(as_array(shards(rank))) for rank in world.ranks]
    if not isinstance(shards, (list, tuple)):
        shards = [shards]
    if len(shards) != len(world.ranks):
        raise InputError(
            f"from_local: shards must have one array for each of the {many(len(world.ranks), 'rank')} that this process owns, got "
            f"{many(len(shards), 'array')}"
        )
    return [as_array(shard) for shard in shards]


def infer_global_shape(layout: Layout, local_shapes: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the global shape that follows from the shapes of all shards.

    The size of a dim is the sum of the sizes of the shards along the axes that split it. The first rank of the mesh
    and the ranks in its line along these axes are read; the caller checks that the other shards fit.

    Args:
        layout: the layout of the tensor.
        local_shapes: the shape of the shard of each rank of the mesh.

    Raises:
        LayoutError: If a shard has another number of dims.

    Four ranks split dim 0, in blocks of 2, 1, 1 and 1; dim 1 is not split:

    >>> from spmdsim.core import Mesh
    >>> layout = Mesh((2, 2), ("a", "b"))(("a", "b"), None)
    >>> infer_global_shape(layout, {0: (2, 3), 1: (1, 3), 2: (1, 3), 3: (1, 3)})
    (5, 3)
    """
    mesh = layout.mesh
    first = mesh.rank_at(0)
    for rank, local in local_shapes.items():
        if len(local) != layout.ndim:
            raise LayoutError(
                f"rank {rank} owns a shard of shape {local}, but layout {layout} is for {many(layout.ndim, 'dim')}"
            )
    return tuple(
        sum(local_shapes[rank][dim] for rank in mesh.group(first, *entry))
        for dim, entry in enumerate(layout.dims)
    )


T = TypeVar("T", bound=PlainTensor)


class ReshapeNode(MoveNode):
    """The tape node of a redistribution into another shape."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradient of the operand, in its shape and in the dual of its layout.

        Gradients have the dual layout: replicated where the tensor is partial, and partial where it is replicated. All
        ranks of both meshes must call it.

        Args:
            gradients: a list with one list: the gradients of the result, which are added up. If the inner list is
                empty, ``gradients`` itself is returned.

        Returns:
            A list with one list of one tensor.
        """
        operand = self.meta
        if not gradients[0]:
            return gradients
        with recorder.operator("reshape.backward"):
            first, *others = gradients[0]
            total = reduce_gradients(gradients[0], first.layout.dual()) if others else first
            return [[redistribute_reshaped(total.detach(), operand.layout.dual(), operand.shape)]]


def redistribute_reshaped(tensor: T, layout: Layout, shape: Sequence[int]) -> T:
    """Return a tensor in another shape and a layout for this shape.

    The elements keep their row-major order. All ranks of both meshes must call it.

    Args:
        tensor: the tensor.
        layout: the layout of the result; its mesh may be another one.
        shape: the shape of the result, without -1.

    Raises:
        UsageTypeError: If ``layout`` is no layout.
        LayoutError: If the shape has another number of elements.
        WorldError: If the mesh needs more ranks than the world has.
    """
    if not isinstance(layout, Layout):
        raise UsageTypeError(
            f"layout must be a layout, such as mesh('dp', None), got {one_line(repr(layout), 60)}"
        )
    tensor = move_to_larger_world(tensor, layout.mesh)
    world, meta = tensor.world, tensor.meta
    machine = world.machine  # type: ignore[attr-defined]
    route = plan(meta.layout, layout, meta.shape, meta.dtype, machine, to_shape=tuple(shape))
    return follow_watched(tensor, route, None if route.to_shape is None else ReshapeNode)


#: Size of a file or a memory map in bytes up to which all elements are compared, not samples.
SMALL_FILE = 1 << 26


def require_equal_source(world: World, tensor: PlainTensor, source: Any, what: str = "from_global") -> None:
    """Raise WorldError if a source differs between ranks that should have an equal one.

    All ranks of the mesh must call it. A group of ranks compares the shape, the element type, the layout, and facts
    about the source:

    - array or list: all ranks of the mesh compare all bytes, or samples of a memory map above 64 MiB.
    - source with a description (a text in its attribute ``words``, or the text that its method ``sample`` returns): all
      ranks of the mesh compare the description. If the tensor is replicated, they compare the blocks, too.
    - source without a description: the ranks that own one block compare this block.

    Nothing is compared if ``words`` is None, if a group has one rank, or if the process's first rank is outside of the
    mesh.

    Args:
        world: the world of the ranks; the process compares for its first rank.
        tensor: the tensor that was made from the source.
        source: the source: an array, a list, an object that can be sliced, or a function of an index.
        what: the call, for error messages.
    """
    meta, rank = tensor.meta, world.ranks[0]
    layout = meta.layout
    words, array = getattr(source, "words", ""), tensor.stored_shards[0]
    if rank not in layout.mesh or words is None:
        return
    if hasattr(source, "sample"):
        words = source.sample()
    if not hasattr(source, "shape") and not callable(source):
        source = np.asarray(source)
    if is_array := isinstance(source, np.ndarray):
        array = source
    replicas = layout.replica_ranks(rank)
    # Without a description, only ranks that own one block have something in common.
    group = tuple(sorted(layout.mesh.rank_list if is_array or words else replicas))
    facts = (str(meta.shape), meta.dtype.name, str(layout), words)
    is_large_file = isinstance(source, np.memmap) and source.nbytes > SMALL_FILE
    fingerprint = 0
    # Ranks with different shards of a described source have only the description in common.
    if not words or len(replicas) == len(group):
        fingerprint = sample_checksum(array) if is_large_file else checksum(array)
    number = hash_text(repr((*facts, fingerprint)))
    if len(group) > 1 and not world.equal_on(group, number, what):
        raise_source_difference(world, tensor, group, facts, array, is_array)
