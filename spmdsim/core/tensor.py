"""The global tensor: one value, laid out over the ranks of a world; and what is known of it without its data, interned.

A program says what to compute on whole tensors; each process holds only the shards of the ranks it owns. What else a
user's tensors can do (operators as symbols, files, pieces of any origin) is in :mod:`spmdsim.arrays`.

Next: :mod:`spmdsim.core.tape`, the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike

from spmdsim.core.element_types import accumulator, has_gradient, held_type
from spmdsim.core.elements import each, identity, in_type
from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.notation.layouts import short_dtype
from spmdsim.core.world import Shards, T
from spmdsim.errors import LayoutError, UsageTypeError, WorldError
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.core.step import Route
    from spmdsim.core.tape import Node
    from spmdsim.core.world import AbstractWorld


_ALIVE: WeakValueDictionary[Any, Meta] = WeakValueDictionary()
"""All that some tensor or recipe has: two of equal values would not be one object otherwise."""


class Meta:
    """The layout, global shape and element type of a tensor; ``held`` is the type of its arrays, mostly ``dtype``.

    Equal values are one object: operators look their recipe up by identity, which costs nothing.
    """

    __slots__ = ("__weakref__", "dtype", "held", "layout", "shape")

    def __init__(self, layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.layout, self.shape, self.dtype = layout, shape, dtype
        self.held = held_type(layout, dtype)

    @staticmethod
    def of(layout: Layout, shape: Sequence[int], dtype: Any) -> Meta:
        """Return the only Meta with these values. Raise LayoutError if the layout has another number of dims."""
        return interned(layout, tuple(shape), np.dtype(dtype))

    def with_layout(self, layout: Layout) -> Meta:
        """Return the Meta of this tensor in another layout."""
        return Meta.of(layout, self.shape, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Meta.of, (self.layout, self.shape, self.dtype)

    def __repr__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        return f"{short_dtype(self.dtype)}[{sizes}] {self.layout.short()}"


@lru_cache(maxsize=4096)
def interned(layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Meta:
    """Return the only Meta with these values; recent ones are found first."""
    shape = tuple([int(n) for n in shape])  # numpy's integers are equal to Python's, and would stay
    meta = _ALIVE.get((layout, shape, dtype))
    if meta is None:
        layout.check_shape(shape)
        meta = _ALIVE[layout, shape, dtype] = Meta(layout, shape, dtype)
    return meta


class PlainTensor(Pictured):
    """A global tensor over a world. Its shards are never changed in place.

    Attributes:
        world: where it lives.
        meta: layout, global shape and element type.
        held: one array per rank that this process owns, in the order of ``world.ranks``. Pending sums of 16-bit
            floats are float32 here: they are rounded once, when they are reduced.
        requires_grad: whether :meth:`backward` computes a gradient for it.
        grad: that gradient, laid out by the dual layout, or as ``gradient_layout`` says, after :meth:`backward`.
        sums: of a gradient that more is added to, its sums before they were rounded.
        node: what computed it, when gradients are tracked; it is that one's result number ``output``.
        origin: a number of where its values come from, the same on all ranks that made the same; 0 where nobody compares.
    """

    __slots__ = (
        *("__weakref__", "_changes", "_tracked", "_view", "grad", "gradient_layout", "held", "meta"),
        *("name", "node", "origin", "output", "sums", "world"),
    )

    def __init__(
        self,
        world: AbstractWorld,
        meta: Meta,
        shards: Shards,
        requires_grad: bool = False,
        name: str = "",
        origin: int = 0,
    ) -> None:
        self.world, self.meta = world, meta
        self.held = shards if meta.held is meta.dtype else world.in_type(shards, meta.held)
        if not meta.shape and type(self.held) is list and any(isinstance(x, np.generic) for x in self.held):
            self.held = world.perform(partial(each, np.asarray), self.held)  # numpy's scalars have no views
        self._tracked = False
        if requires_grad:
            self._track(True)
        self.name, self.origin = name, origin
        self.grad: Any = None
        self.gradient_layout: Layout | None = None
        self.sums: Shards | None = None
        self.node: Node | None = None
        self.output, self._changes, self._view = 0, None, None

    @classmethod
    def from_array(
        cls: type[T], source: ArrayLike, layout: Layout, world: AbstractWorld, *, requires_grad: bool = False
    ) -> T:
        """Create a tensor of which each rank copies its shard of an array.

        Along a partial axis the first rank takes the values and the others the reduction's identity. If the reduction is
        ``avg``, all ranks take the values.
        """
        world.check_mesh(layout.mesh)
        array = np.asarray(source)
        meta = Meta.of(layout, array.shape, array.dtype)
        return cls(world, meta, pieces(world, meta, lambda index: array[index].copy()), requires_grad)

    @property
    def shards(self) -> list[np.ndarray]:
        """The arrays of the owned ranks in the order of ``world.ranks``, of type ``dtype``. Raises WorldError if calls differ."""
        self.world.verify_calls()
        if self.meta.held is not self.meta.dtype:
            return in_type(self.held, self.meta.dtype)
        return OwnPieces(self.held) if len(self.held) > 1 else self.held

    def _track(self, wanted: bool) -> None:
        if wanted and not has_gradient(self.meta.dtype):
            raise UsageTypeError(
                f"only floating and complex tensors have gradients, but this one holds {self.meta.dtype}"
            )
        self._tracked = bool(wanted)

    requires_grad = property(attrgetter("_tracked"), _track)

    @property
    def layout(self) -> Layout:
        """The layout of the tensor."""
        return self.meta.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.meta.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.meta.dtype

    def __repr__(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        return f"Tensor({self.meta!r} on {self.layout.mesh}{grad})"

    @explained
    def to(self: T, layout: Layout) -> T:
        """Return the same tensor in another layout, by the cheapest redistribution.

        Along an axis that is pending in the new layout alone, each value is on one rank, and the others own what the
        reduction ignores, such as 0 for a sum. A tensor that has the layout is returned itself.

        Raises:
            PlanError: If the layout is for another number of dims, or pends by another reduction than the tensor does.
        """
        return self.world.move(self, layout)

    def full(self) -> np.ndarray:
        """Return the whole tensor as one array of the caller's own, on every process.

        All ranks must call it, unless every rank has the tensor whole. Ranks that read different values there are told so
        later, if they computed the tensor otherwise.

        Raises:
            WorldError: If the world holds no data, or ranks did not all call the same so far.
        """
        if not self.world.has_data:
            raise WorldError("a ShapeOnly world holds no data; ask for .shape or .layout, or use LockStep")
        mesh, size = self.layout.mesh, self.world.size
        everyone = mesh if mesh.size == size else Mesh((size,), ("world",))
        everywhere = self.detach().to(everyone(*(None for _ in self.shape)))
        self.world.verify_calls()
        whole = np.asarray(in_type(everywhere.held[:1], self.dtype)[0])
        own = whole.flags.writeable and not any(np.may_share_memory(whole, held) for held in self.held)
        whole = whole if own else whole.copy()
        if self.world.provenance is not None:
            self.world.provenance.note_read(self, whole)
        return whole

    def detach(self: T) -> T:
        """Return the data of the tensor without a gradient history."""
        if self.node is None and not self.requires_grad:
            return self
        return type(self)(self.world, self.meta, self.held, name=self.name, origin=self.origin)

    @explained
    def backward(self: T, gradient: T | None = None, *, retain_graph: bool = False) -> None:
        """Compute the gradients of everything this tensor depends on, and add them to ``.grad``.

        Those of complex tensors point uphill, as torch's do: ``dy * conj(dy/dx)`` of a function with a derivative.

        Args:
            gradient: that of the final result with respect to this tensor; 1 for a tensor of one element.
            retain_graph: keep what a second pass through the same operators needs; it is dropped otherwise.

        Raises:
            LayoutError: a gradient of another shape, or none for more than one element.
            UsageTypeError: it needs no gradient; a second pass, where the first did not retain the graph.
        """
        from spmdsim.core.tape import backward, converted

        if gradient is None and math.prod(self.shape) != 1:
            raise LayoutError(
                f"backward() without a gradient needs one element, but the shape is {self.shape}"
            )
        if gradient is not None and gradient.dtype != self.dtype:
            gradient = converted(gradient, self.dtype)
        backward(self, gradient, retain_graph)

    def _plus(self: T, others: Sequence[T], more_to_come: bool = False) -> T:
        """Return the sum with tensors of the same layout, shard by shard: so gradients are added up.

        If ``more_to_come``, the sum keeps what was rounded, so that sums over many calls do not stand still either.
        """
        world, meta, kind = self.world, self.meta, accumulator("sum", self.meta.held)
        lists = [
            x.sums or (x.held if kind is meta.held else world.in_type(x.held, kind)) for x in (self, *others)
        ]
        sums = world.perform(partial(each, lambda *arrays: reduce(add, arrays)), *lists)
        origin = 0 if world.provenance is None else world.provenance.of_sum([self, *others])
        held = sums if kind is meta.held else world.in_type(sums, meta.held)
        total = type(self)(world, meta, held, origin=origin)
        if more_to_come and kind is not meta.held:
            total.sums = sums
        return total


class OwnPieces(list[Any]):
    """The shards of a tensor whose ranks are all in this process, for programs that read or write one of them.

    Real ranks share no array: nor does a rank with equal pieces as soon as somebody asks for its own.
    """

    def __init__(self, held: list[Any]) -> None:
        super().__init__(held)
        self._held = held

    def __getitem__(self, k: Any) -> Any:
        array = super().__getitem__(k)
        if isinstance(array, np.ndarray) and sum(one is array for one in self._held) > 1:
            array = array.copy()
            self[k] = array
        return array

    def __setitem__(self, k: Any, array: Any) -> None:
        super().__setitem__(k, array)
        self._held[k] = array


def pieces(world: AbstractWorld, meta: Meta, take: Callable[[tuple[slice, ...]], np.ndarray]) -> list[Any]:
    """Return the shards of the owned ranks, read by a function of an index; ranks with equal shards share one array."""
    layout, mesh, op = meta.layout, meta.layout.mesh, str(meta.layout.reduce_op)
    shards, shared = [], dict[Any, np.ndarray]()
    for rank in world.ranks:
        coords = dict(zip(mesh.axes, mesh.coords(rank))) if rank in mesh else {}
        waits = op != "avg" and any(coords.get(axis) for axis in layout.partial_axes)
        key = rank in mesh, waits, layout.bounds(meta.shape, rank)
        if key not in shared:
            sizes = layout.local_shape(meta.shape, rank)
            if rank not in mesh or 0 in sizes:  # nothing is asked for no elements
                shared[key] = np.zeros(sizes, meta.dtype)
            elif waits:
                shared[key] = np.full(sizes, identity(op, meta.dtype), meta.dtype)
            else:
                shared[key] = take(layout.slices(meta.shape, rank))
        shards.append(shared[key])
    return shards


def follow(tensor: T, route: Route, node: type[Node] | None = None) -> T:
    """Run the steps of a route on a tensor, and remember the way back: the identity, or what ``node`` does."""
    world, meta = tensor.world, Meta.of(route.dst, route.shape_after, tensor.dtype)
    shards = world.run_steps(route.steps, tensor, meta.held)
    if tensor.meta.held is not meta.held:
        shards = world.in_type(shards, meta.held)
    result = type(tensor)(world, meta, shards, origin=tensor.origin)
    if tensor.requires_grad:
        from spmdsim.core.tape import MoveNode

        result.requires_grad, result.node = True, (node or MoveNode)(tensor)
    return result
