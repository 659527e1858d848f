"""The tensor of this package's programs: core's, made from anything, printed as a number, with operators as symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core import Layout, tensor
from spmdsim.core.apply import watchers
from spmdsim.core.reductions import in_type
from spmdsim.core.world import recordings
from spmdsim.errors import InputError, WorldError
from spmdsim.tensor.move import move
from spmdsim.tensor.sources import assemble, blocks, check_layout, shards_of
from spmdsim.worlds.base import ORIGINS
from spmdsim.worlds.current import world as current

if TYPE_CHECKING:
    from spmdsim.tensor.verdict import Verdict
    from spmdsim.worlds.base import World


def origin_of(tensors: Sequence[Tensor]) -> int:
    """The number of what is moved in one call: a tensor, or several together."""
    origins = [tensor.origin for tensor in tensors]
    return origins[0] if len(origins) == 1 else hash(tuple(origins)) & ORIGINS


class Tensor(tensor.Tensor):
    """A global tensor over a world. Its shards are never changed in place.

    Build one with :meth:`from_global` or :meth:`from_local`. What it holds is said in
    :class:`spmdsim.core.tensor.Tensor`.
    """

    __slots__ = ()

    world: World
    grad: Tensor | None

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

    @classmethod
    def from_global(  # type: ignore[override]  # a world may be left out
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

    #: The words of torch, OneFlow and Paddle, and of MindSpore.
    numpy = asnumpy = tensor.Tensor.full

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

    def to(self, layout: Layout) -> Tensor:
        """The same tensor in another layout, by the cheapest redistribution.

        Raises:
            PlanError: the layout is partial or for another number of dims.
        """
        ready = self.world.ready.get((self.meta, id(layout)))
        if ready is None or self.requires_grad or recordings or watchers:
            return move(self, layout)
        world, origin = self.world, self.origin
        world.about = origin
        made = Tensor(world, ready.meta, [ready.run(self.held[0])], origin=origin)
        world.about = 0
        return made

    def check_replicas(self) -> Verdict:
        """Compare the copies that ranks hold; see :func:`spmdsim.check_replicas`."""
        from spmdsim.tensor.replicas import check_replicas

        return check_replicas(self)


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


def _world(world: World | None, layout: Layout) -> World:
    return current(mesh=layout.mesh) if world is None else world
