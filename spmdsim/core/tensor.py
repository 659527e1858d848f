"""The global tensor: a value distributed over the ranks of a world; its meta, which is interned; and its node.

A program states computations on whole tensors; each process stores only the shards of the ranks that it owns. The
tensors of users, in :mod:`spmdsim.arrays`, add operators as symbols, gradients, files and other sources. A node on the
tape records how a tensor was computed, if gradients are tracked.

Next: :mod:`spmdsim.core.lockstep`, the world in one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from itertools import count
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike

from spmdsim.core.element_types import accumulator, has_gradient, storage_dtype
from spmdsim.core.elements import each, identity, in_type
from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation.layouts import short_dtype
from spmdsim.core.step import Index
from spmdsim.core.world import Shards, T
from spmdsim.errors import UsageTypeError, WorldError
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.core.step import Route
    from spmdsim.core.world import AbstractWorld


_ALIVE: WeakValueDictionary[Any, Meta] = WeakValueDictionary()
"""All metas in use, by value: without it, two equal metas could be two objects."""


class Meta:
    """Layout, global shape and element type of a tensor.

    ``storage_dtype`` is the type of its arrays, mostly ``dtype``.

    Metas with equal values are one object: operators look up their recipes by identity, which costs nothing.
    """

    __slots__ = ("__weakref__", "dtype", "layout", "shape", "storage_dtype")

    def __init__(self, layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.layout, self.shape, self.dtype = layout, shape, dtype
        self.storage_dtype = storage_dtype(layout, dtype)

    @staticmethod
    def of(layout: Layout, shape: Sequence[int], dtype: Any) -> Meta:
        """Return the only Meta with these values.

        Raises LayoutError if the layout has another number of dims than the shape.
        """
        return intern_meta(layout, tuple(shape), np.dtype(dtype))

    def with_layout(self, layout: Layout) -> Meta:
        """Return the Meta of this shape and element type in another layout."""
        return Meta.of(layout, self.shape, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Meta.of, (self.layout, self.shape, self.dtype)

    def __repr__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        return f"{short_dtype(self.dtype)}[{sizes}] {self.layout.placement_text()}"


@lru_cache(maxsize=4096)
def intern_meta(layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Meta:
    """Return the only Meta object with these values; create it if there is none.

    So equal metas are one object. The 4096 most recently used ones stay alive, others as long as a tensor uses
    them.

    Args:
        layout: the layout.
        shape: the global shape; NumPy's integers become Python's.
        dtype: the element type.

    Raises:
        LayoutError: If the layout has another number of dims than the shape.
    """
    sizes = tuple([int(n) for n in shape])  # NumPy's integers equal Python's, but must not be stored.
    meta = _ALIVE.get((layout, sizes, dtype))
    if meta is None:
        layout.check_shape(sizes)
        meta = _ALIVE[layout, sizes, dtype] = Meta(layout, sizes, dtype)
    return meta


class PlainTensor(Pictured):
    """Global tensor over a world. Its shards never change in place.

    Attributes:
        world: the world that owns its shards.
        meta: layout, global shape and element type.
        stored_shards: one array per rank that this process owns, in the order of ``world.ranks``. Pending sums of
            16-bit floats are float32 here: they are rounded once, after the reduction.
        name: a name for messages, or "".
        requires_grad: True if :func:`~spmdsim.core.tape.backward` computes a gradient for it.
        grad: that gradient after it, in the dual layout or in ``gradient_layout``; None before.
        gradient_layout: the layout of ``grad``, or None for the dual layout.
        sums: the unrounded shards of a gradient to which more is added, or None.
        node: the record of the calculation that produced it, if gradients are tracked; None for leaves.
        output: its number among the results of ``node``.
        provenance_number: identifies how it was computed. It is equal on all ranks of a correct program, and 0 if
            nothing compares provenances.
    """

    __slots__ = (
        *("__weakref__", "_changes", "_tracked", "_view", "grad", "gradient_layout", "meta"),
        *("name", "node", "output", "provenance_number", "stored_shards", "sums", "world"),
    )

    def __init__(
        self,
        world: AbstractWorld,
        meta: Meta,
        shards: Shards,
        requires_grad: bool = False,
        name: str = "",
        provenance_number: int = 0,
    ) -> None:
        self.world, self.meta = world, meta
        if meta.storage_dtype is not meta.dtype:
            shards = world.in_type(shards, meta.storage_dtype)
        if not meta.shape and type(shards) is list and any(isinstance(x, np.generic) for x in shards):
            shards = world.perform(partial(each, np.asarray), shards)  # NumPy's scalars have no views.
        self.stored_shards = shards
        self._tracked = False
        if requires_grad:
            self._set_requires_grad(True)
        self.name, self.provenance_number = name, provenance_number
        self.grad: Any = None
        self.gradient_layout: Layout | None = None
        self.sums: Shards | None = None
        self.node: Node | None = None
        self.output, self._changes, self._view = 0, None, None

    @classmethod
    def from_array(
        cls: type[T], source: ArrayLike, layout: Layout, world: AbstractWorld, *, requires_grad: bool = False
    ) -> T:
        """Return a tensor of which each rank copies its shard of an array.

        Along a partial axis the first rank takes the values and the others the reduction's identity. If the reduction
        is ``avg``, all ranks take the values.

        Args:
            source: the array.
            layout: the layout of the tensor.
            world: the world that owns the shards.
            requires_grad: True if :func:`~spmdsim.core.tape.backward` shall compute a gradient for it.
        """
        world.check_mesh(layout.mesh)
        array = np.asarray(source)
        meta = Meta.of(layout, array.shape, array.dtype)
        return cls(world, meta, create_shards(world, meta, lambda index: array[index].copy()), requires_grad)

    @classmethod
    def from_tensor(
        cls: type[T], tensor: PlainTensor, requires_grad: bool = False, name: str | None = None
    ) -> T:
        """Return a tensor of this class with the shards of another tensor, and without a gradient history.

        The arrays are shared, not copied. World, layout, element type and provenance number are those of ``tensor``.

        Args:
            tensor: the tensor.
            requires_grad: True if :func:`~spmdsim.core.tape.backward` shall compute a gradient for the new tensor.
            name: the name of the new tensor; None for that of ``tensor``.

        Raises:
            UsageTypeError: If ``tensor`` is no tensor.
        """
        if not isinstance(tensor, PlainTensor):
            raise UsageTypeError(
                f"from_tensor: tensor must be a Tensor, got {type(tensor).__name__}; from_global takes an array"
            )
        new_name = tensor.name if name is None else name
        return cls(
            tensor.world, tensor.meta, tensor.stored_shards, requires_grad, new_name, tensor.provenance_number
        )

    @property
    def shards(self) -> list[np.ndarray]:
        """Arrays of the owned ranks in the order of ``world.ranks``, of type ``dtype``.

        Raises WorldError if calls differ.
        """
        arrays = self.read_shards()
        return WritableShards(arrays) if len(arrays) > 1 and arrays is self.stored_shards else arrays

    def read_shards(self) -> list[np.ndarray]:
        """Return the arrays of :attr:`shards` only to read.

        Ranks with equal shards may share one array here, which :attr:`shards` would copy.
        """
        self.world.verify_calls()
        if self.meta.storage_dtype is not self.meta.dtype:
            return in_type(self.stored_shards, self.meta.dtype)
        return self.stored_shards

    def _set_requires_grad(self, wanted: bool) -> None:
        """Set the property ``requires_grad`` to ``wanted``; a gradient that is stored stays.

        Raises:
            UsageTypeError: If ``wanted`` is True and the elements are neither floats nor complex numbers.
        """
        if wanted and not has_gradient(self.meta.dtype):
            raise UsageTypeError(f"requires_grad=True needs a float or complex tensor, got {self.meta.dtype}")
        self._tracked = bool(wanted)

    requires_grad = property(attrgetter("_tracked"), _set_requires_grad)

    @property
    def layout(self) -> Layout:
        """The layout of the tensor."""
        return self.meta.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape of the tensor."""
        return self.meta.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type of the tensor."""
        return self.meta.dtype

    def __repr__(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        return f"Tensor({self.meta!r} on {self.layout.mesh}{grad})"

    @explained
    def to(self: T, layout: Layout) -> T:
        """Return the tensor in another layout, by the cheapest redistribution.

        Along an axis that is pending only in the new layout, one rank owns the value, and the others own what the
        reduction ignores, such as 0 for a sum. A tensor that has the layout is returned itself.

        Raises:
            PlanError: If the layout has another number of dims, or another pending reduction than the tensor.
        """
        return self.world.move(self, layout)

    def full(self) -> np.ndarray:
        """Return all elements of the tensor as a new array, on every process.

        The array may be written to; the tensor does not change. Pending reductions are carried out. All ranks must call
        the method, unless the tensor is replicated. If ranks read different values, because they computed the tensor
        differently, a later verification of calls reports it.

        Raises:
            WorldError: If the world has no data, or the ranks' calls so far differ.
        """
        if not self.world.has_data:
            raise WorldError("a ShapeOnly world has no data; read .shape or .layout, or use LockStep")
        mesh, size = self.layout.mesh, self.world.size
        full_mesh = mesh if mesh.size == size else Mesh((size,), ("world",))
        replicated = self.detach().to(full_mesh(*(None for _ in self.shape)))
        self.world.verify_calls()
        array = np.asarray(in_type(replicated.stored_shards[:1], self.dtype)[0])
        if not array.flags.writeable or any(
            np.may_share_memory(array, shard) for shard in self.stored_shards
        ):
            array = array.copy()
        if self.world.provenance is not None:
            self.world.provenance.note_read(self, array)
        return array

    def detach(self: T) -> T:
        """Return a tensor with these shards that has no gradient history; the tensor itself if it has none."""
        return type(self).from_tensor(self) if self.requires_grad or self.node is not None else self

    def _add(self: T, others: Sequence[T], more_to_come: bool = False) -> T:
        """Return the sum of this tensor and others of equal layout, shard by shard.

        It does not communicate. 16-bit floats are added as float32, and the sum is rounded once. That the layouts are
        equal is not checked.

        Args:
            others: the other tensors.
            more_to_come: True to store the float32 values of the sum in its ``sums``, too. Small addends are then not
                lost when many gradients are added one by one. It has no effect for wider types.
        """
        world, meta, sum_dtype = self.world, self.meta, accumulator("sum", self.meta.storage_dtype)
        is_rounded = sum_dtype is not meta.storage_dtype
        lists = [x.stored_shards for x in (self, *others)]
        if is_rounded:
            lists = [x.sums or world.in_type(x.stored_shards, sum_dtype) for x in (self, *others)]
        sums = world.perform(partial(each, lambda *arrays: reduce(add, arrays)), *lists)
        provenance_number = 0 if world.provenance is None else world.provenance.of_sum([self, *others])
        shards = world.in_type(sums, meta.storage_dtype) if is_rounded else sums
        total = type(self)(world, meta, shards, provenance_number=provenance_number)
        if more_to_come and is_rounded:
            total.sums = sums
        return total


#: The addends of the gradient of one tensor, in any layouts, partial or not.
Gradients = list[Any]
_numbers = count()


class Node(ABC):
    """Record of a calculation on the tape.

    Attributes:
        world: the world of the operands.
        meta: the meta of the first operand.
        wanted: for each operand, True if it requires a gradient.
        sources: for each operand the receiver of its gradient: ``(node, result number)``, a leaf tensor, or None.
        number: a serial number, higher than those of all nodes on which this one depends.
    """

    __slots__ = ("meta", "number", "sources", "wanted", "world")

    #: The number of tensors that it computed.
    results = 1
    #: True after a backward pass that dropped the stored arrays.
    spent = False

    def __init__(self, *operands: PlainTensor) -> None:
        self.world, self.meta = operands[0].world, operands[0].meta
        self.wanted = tuple([x._tracked for x in operands])
        self.sources = [((x.node, x.output) if x.node else x) if x._tracked else None for x in operands]
        self.number = next(_numbers)

    @abstractmethod
    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradients of each operand from the gradients of each result.

        Args:
            gradients: for each result the addends of its gradient, in any layouts; an empty list if it has none. The
                method may empty the lists.

        Returns:
            For each operand the addends of its gradient; an empty list if it has none.
        """

    def store_results(self, results: Sequence[PlainTensor]) -> None:  # noqa: B027 - most nodes store nothing
        """Store the results as the caller receives them, if the gradient reads results."""

    def spend(self) -> None:  # noqa: B027 - most nodes store nothing
        """Drop the arrays that only the first backward pass needs."""


class MoveNode(Node):
    """Record of a redistribution, which is the identity on the global tensor."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradients unchanged, in any layouts."""
        return gradients


class WritableShards(list[Any]):
    """List of a tensor's shards in a process that owns several ranks; programs may write to a shard.

    Ranks with equal shards may share one array here, which ranks in processes of their own do not. So a shared array is
    copied when a program takes a rank's shard by its index or in a loop, and the tensor gets the copy, too.
    """

    def __init__(self, shards: list[Any]) -> None:
        super().__init__(shards)
        self._held = shards

    def __getitem__(self, k: Any) -> Any:
        array = super().__getitem__(k)
        if isinstance(array, np.ndarray) and sum(shard is array for shard in self._held) > 1:
            array = array.copy()
            self[k] = array
        return array

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __setitem__(self, k: Any, array: Any) -> None:
        super().__setitem__(k, array)
        self._held[k] = array


def create_shards(world: AbstractWorld, meta: Meta, take: Callable[[Index], np.ndarray]) -> list[Any]:
    """Return the shards of the owned ranks; ranks with equal shards share one array.

    - Along partial axes, the ranks of coordinate 0 own the elements, and the others own what the reduction
      ignores: 0 for a sum, 1 for a product.
    - For the reduction ``avg``, all ranks own the elements.
    - A rank outside the mesh gets an array without elements.

    Args:
        world: the world that owns the ranks.
        meta: layout, shape and element type of the tensor.
        take: returns the elements at an index (a slice per dim) of the global tensor. It is called once per distinct
            shard, but not for shards without elements. Type and shape of its arrays are not checked.
    """
    layout, mesh, op = meta.layout, meta.layout.mesh, str(meta.layout.reduce_op)
    shards, created = [], dict[Any, np.ndarray]()
    for rank in world.ranks:
        coords = dict(zip(mesh.axes, mesh.coords(rank))) if rank in mesh else {}
        takes_identity = op != "avg" and any(coords.get(axis) for axis in layout.partial_axes)
        key = rank in mesh, takes_identity, layout.bounds(meta.shape, rank)
        if key not in created:
            sizes = layout.local_shape(meta.shape, rank)
            if rank not in mesh or 0 in sizes:  # ``take`` is not called for empty shards.
                created[key] = np.zeros(sizes, meta.dtype)
            elif takes_identity:
                created[key] = np.full(sizes, identity(op, meta.dtype), meta.dtype)
            else:
                created[key] = take(layout.slices(meta.shape, rank))
        shards.append(created[key])
    return shards


def follow(tensor: T, route: Route, node: type[Node] | None = None) -> T:
    """Run the steps of a route on a tensor and return the tensor in its new layout.

    All ranks of the world must call it. The new tensor has the provenance number of ``tensor``, and no name.

    Args:
        tensor: the tensor, which does not change.
        route: a planned redistribution from the tensor's layout. A route without steps gives a tensor with the same
            arrays.
        node: the class of the tape's node that records it if the tensor requires a gradient; None for
            :class:`MoveNode`, which passes gradients through unchanged.
    """
    world, meta = tensor.world, Meta.of(route.dst, route.shape_after, tensor.dtype)
    shards = world.run_steps(route.steps, tensor, meta.storage_dtype)
    if tensor.meta.storage_dtype is not meta.storage_dtype:
        shards = world.in_type(shards, meta.storage_dtype)
    result = type(tensor)(world, meta, shards, provenance_number=tensor.provenance_number)
    if tensor.requires_grad:
        result.requires_grad, result.node = True, (node or MoveNode)(tensor)
    return result
