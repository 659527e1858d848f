"""The global tensor: one value, laid out over the ranks of a world.

A program says what to compute on whole tensors; each process holds only the shards of the ranks it owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.reductions import in_type
from spmdsim.errors import InputError, LayoutError, UsageTypeError, WorldError
from spmdsim.tensor import watch
from spmdsim.tensor.element_types import has_gradient
from spmdsim.tensor.meta import Meta
from spmdsim.trace import recorder

if TYPE_CHECKING:
    from spmdsim.tensor.tape import Node
    from spmdsim.tensor.verdict import Verdict
    from spmdsim.worlds.base import World

#: The bits of an origin; the hash of integers is the same in all processes.
ORIGINS = (1 << 61) - 1


def origin_of(tensors: Sequence[Tensor]) -> int:
    """The number of what is moved in one call: a tensor, or several together."""
    origins = [tensor.origin for tensor in tensors]
    return origins[0] if len(origins) == 1 else hash(tuple(origins)) & ORIGINS


class Tensor:
    """A global tensor over a world. Its shards are never changed in place.

    Build one with :meth:`from_global` or :meth:`from_local`.

    Attributes:
        world: where it lives.
        held: one array per rank that this process owns, in the order of ``world.ranks``. Pending sums of 16-bit
            floats are float32 here: they are rounded once, when they are reduced.
        sums: of a gradient that was added up in several calls, the sums in float32 before they were rounded.
        requires_grad: whether :meth:`backward` computes a gradient for it.
        grad: that gradient, laid out by the dual layout, after :meth:`backward`.
        node: what computed it, when gradients are tracked.
        origin: a number that says where its values come from, the same on all ranks that made the same tensors: which
            one of its kind it was, or the operator and its operands' origins. 0 where nobody compares.
    """

    __slots__ = (
        "__weakref__",
        "_tracked",
        "grad",
        "held",
        "meta",
        "name",
        "node",
        "origin",
        "output",
        "sums",
        "world",
    )

    def __init__(
        self,
        world: World,
        meta: Meta,
        shards: list[Any],
        requires_grad: bool = False,
        name: str = "",
        origin: int = 0,
    ) -> None:
        self.world = world
        self.meta = meta
        self.held = shards if meta.held is meta.dtype else in_type(shards, meta.held)
        self._tracked = False
        if requires_grad:
            self._track(True)
        self.name, self.origin = name, origin
        self.grad: Tensor | None = None
        self.node: Node | None = None
        self.output = 0
        self.sums: list[Any] | None = None

    @property
    def shards(self) -> list[Any]:
        """One array of type ``dtype`` per rank that this process owns, in the order of ``world.ranks``.

        Raises:
            WorldError: the ranks did not all call the same, so these may be wrong numbers.
        """
        self.world.settle()
        if self.meta.held is not self.meta.dtype:
            return in_type(self.held, self.meta.dtype)
        return self.held if len(self.held) == 1 else Pieces(self.held)

    def _track(self, wanted: bool) -> None:
        if wanted and not has_gradient(self.meta.dtype):
            raise UsageTypeError(
                f"only floating and complex tensors have gradients, but this one holds {self.meta.dtype}"
            )
        self._tracked = bool(wanted)

    requires_grad = property(attrgetter("_tracked"), _track)

    # -- what is known without data -------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Where the pieces are."""
        return self.meta.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.meta.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.meta.dtype

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.meta.shape)

    @property
    def size(self) -> int:
        """Number of elements of the global tensor."""
        return math.prod(self.meta.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise InputError("a tensor without dims has no length")
        return self.shape[0]

    def __str__(self) -> str:
        """The number, where this process holds the only element; else what ``repr`` says."""
        held = self.world.has_data and self.size == 1 and not self.layout.partial
        if held and len(self.shards) and self.shards[0].size == 1:
            return str(self.shards[0].reshape(())[()])
        return repr(self)

    def __format__(self, spec: str) -> str:
        """With a format, the only element: ``f"{loss:.4f}"``; all ranks must ask for it."""
        return format(self.item(), spec) if spec else str(self)

    #: numpy leaves ``array + tensor`` to the tensor instead of taking it apart.
    __array_ufunc__ = None

    def __repr__(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        return f"Tensor({self.meta!r} on {self.layout.mesh}{grad})"

    # -- making tensors -------------------------------------------------------------------------------

    @classmethod
    def from_global(
        cls,
        source: Any,
        layout: Layout,
        world: World | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """A tensor of which each rank takes its own piece.

        Args:
            source: anything that can be sliced like an array (an ``np.memmap`` is read only where needed), or
                a function ``index -> block`` of a tuple of slices; then ``shape`` and ``dtype`` are needed.
            layout: where the pieces go. Along a partial axis the first rank takes the values and the others
                the reduction's identity.
            world: the world; :func:`spmdsim.world` if left out.
            shape: global shape.
            dtype: element type; the source's if left out.
            requires_grad: track gradients.
            name: shown in traces and errors.

        Raises:
            WorldError: the mesh does not fit the world; the ranks of the mesh have different arrays (their checksums
                are compared, of more than 64 KiB those of samples), or several took different pieces from functions.
            LayoutError: the layout is for another number of dims.
        """
        from spmdsim.tensor.sources import blocks, check_layout, shards_of

        check_layout(layout)
        world = _world(world, layout)
        meta, take = blocks(source, layout, shape, dtype, len(world.ranks) > 1)
        world.check_mesh(layout.mesh)
        made = cls(world, meta, shards_of(world, meta, take), requires_grad, name)
        if world.compares_sources or world.watches_values:
            from spmdsim.tensor.replicas import require_equal_source, watch_values

            watch_values(world)
            if world.compares_sources:
                require_equal_source(world, made, source)
        made.origin = world.origin(meta)  # only now: what was refused is counted on no rank
        return made

    @classmethod
    def from_local(
        cls,
        shards: Any,
        layout: Layout,
        world: World | None = None,
        *,
        shape: Sequence[int] | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """A tensor put together from the pieces the ranks already hold.

        Args:
            shards: one array (a world in which each process owns one rank), a list with one array per owned
                rank, or a function of the rank.
            layout: how the pieces form the tensor.
            world: the world.
            shape: global shape; worked out from all local shapes if left out.
            requires_grad: track gradients.

        Raises:
            LayoutError: a piece has another shape than the layout gives that rank, named.
        """
        from spmdsim.tensor.sources import assemble, check_layout

        check_layout(layout)
        world = _world(world, layout)
        world.check_mesh(layout.mesh)
        meta, arrays = assemble(shards, layout, world, shape)
        made = cls(world, meta, arrays, requires_grad, origin=world.origin(meta))
        if world.watches_values:
            from spmdsim.tensor.replicas import watch_values

            watch_values(world)
        return made

    # -- looking at it --------------------------------------------------------------------------------

    def local(self, rank: int | None = None) -> Any:
        """The shard of ``rank`` (this process's first rank if left out). Do not write into it.

        A part of a pending sum of 16-bit floats is rounded for this look at it only.

        Raises:
            WorldError: another process owns that rank, or there is none.
        """
        shards = self.shards
        if rank is None:
            return shards[0]
        if rank not in self.world.ranks:
            if rank not in range(self.world.size):
                raise WorldError(f"there is no rank {rank!r} in a world of {self.world.size} ranks")
            raise WorldError(
                f"rank {rank} is owned by another process; this one owns {list(self.world.ranks)}"
            )
        return shards[self.world.ranks.index(rank)]

    def full(self) -> np.ndarray:
        """The whole tensor as one array, on every process. It communicates; all ranks must call it.

        Raises:
            WorldError: the world holds no data; the ranks did not all call the same.
        """
        if not self.world.has_data:
            raise WorldError("a ShapeOnly world holds no data; ask for .shape or .layout, or use LockStep")
        mesh = self.layout.mesh
        if mesh.size != self.world.size:
            mesh = Mesh((self.world.size,), ("world",))
        everywhere = self.detach().to(Layout.replicated(mesh, self.ndim))
        self.world.settle()
        return np.asarray(in_type(everywhere.held[:1], self.dtype)[0])

    #: The words of torch, OneFlow and Paddle, and of MindSpore.
    numpy = asnumpy = full

    def item(self) -> Any:
        """The only element of a tensor of size one, as a Python number, on every process."""
        if self.size != 1:
            raise InputError(f"item() needs a tensor of one element, but the shape is {self.shape}")
        return self.full().reshape(()).item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        """Whether the only element is not zero; more have no truth of their own, as in numpy."""
        return bool(self.item())

    # -- layouts and gradients ------------------------------------------------------------------------

    def to(self, layout: Layout) -> Tensor:
        """The same tensor in another layout, by the cheapest redistribution.

        Raises:
            PlanError: the layout is partial or for another number of dims.
        """
        ready = self.world.ready.get((self.meta, id(layout)))
        if ready is None or self.requires_grad or recorder.open_traces or watch.watchers:
            return _move()(self, layout)
        world, origin = self.world, self.origin
        world.about = origin
        made = Tensor(world, ready.meta, [ready.run(self.held[0])], origin=origin)
        world.about = 0
        return made

    def check_replicas(self) -> Verdict:
        """Compare the copies that ranks hold; see :func:`spmdsim.check_replicas`."""
        from spmdsim.tensor.replicas import check_replicas

        return check_replicas(self)

    def detach(self) -> Tensor:
        """The same data without a gradient history."""
        if self.node is None and not self.requires_grad:
            return self
        return Tensor(self.world, self.meta, self.held, name=self.name, origin=self.origin)

    def backward(self, gradient: Tensor | None = None, *, retain_graph: bool = False) -> None:
        """Compute the gradients of everything this tensor depends on, and add them to ``.grad``.

        Those of complex tensors point uphill, as torch's do: ``dy * conj(dy/dx)`` of a function with a derivative.

        Args:
            gradient: the gradient of the final result with respect to this tensor; 1 for a tensor of one
                element.
            retain_graph: keep what a second pass through the same operators needs; it is dropped otherwise.

        Raises:
            LayoutError: a gradient of another shape, or none for more than one element.
            UsageTypeError: a second pass, where the first did not retain the graph.
        """
        from spmdsim.tensor.tape import backward

        if gradient is None and self.size != 1:
            raise LayoutError(
                f"backward() without a gradient needs one element, but the shape is {self.shape}"
            )
        backward(self, gradient, retain_graph)


class Pieces(list[Any]):
    """The arrays of a tensor whose ranks are all in this process, as a program that looks at one of them has it.

    Ranks with equal pieces share an array until somebody asks for that of one of them: real ranks share none, and what is
    written into one must not be in the others.
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


@cache
def _move() -> Callable[[Tensor, Layout], Tensor]:
    """``move``, looked up once: an import statement costs as much as a quarter of a redistribution."""
    from spmdsim.tensor.move import move

    return move


def _world(world: World | None, layout: Layout) -> World:
    if world is not None:
        return world
    from spmdsim.worlds import world as current

    return current(mesh=layout.mesh)
