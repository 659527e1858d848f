"""The world: it owns some ranks of all and runs steps on their shards.

A world is told *what* happens by a :class:`~spmdsim.core.step.Step`; which rank sends which box to whom follows from
the step's two layouts. Arrays are values: a world never changes its inputs, may return them or views of them, and in
one process equal replicas may be one array object.

What plugs in here, by overriding: how redistributions are planned (:meth:`World.plan`) and priced
(:meth:`World.price`), how an operator whose operands fit no strategy is run (:meth:`World.choose`), and who watches
(:meth:`World.named`). ``spmdsim.worlds`` brings exact plans, machine prices and traces, and ranks that are processes.

Next: :mod:`spmdsim.core.lockstep`, the world in one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.core.layout import Mesh
from spmdsim.core.step import Route, Step, shortest_route
from spmdsim.errors import UsageTypeError
from spmdsim.notation.layouts import check_world_size
from spmdsim.notation.rules import check_ranks
from spmdsim.pictured import Pictured

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout
    from spmdsim.core.rule import BoundRule, Strategy
    from spmdsim.core.tensor import Meta, Tensor

#: One array per owned rank.
Shards = list[np.ndarray]
#: Who writes down what is calculated, to do it again; the last one counts.
programs: list[Any] = []


def performed(run: Callable[..., Any], *lists: Sequence[Any]) -> Any:
    """What a calculation makes of tensors' arrays, given as one list each; who writes programs is told."""
    return programs[-1].perform(run, lists) if programs else run(*lists)


class World(Pictured, ABC):
    """Base of all worlds.

    Attributes:
        size: number of ranks.
        ranks: the ranks this process owns, in the order in which shards are passed; ``rank`` is the first of them.
        has_data: whether shards are arrays; False where only shapes are followed.
        cache: what was derived for this world: operators' recipes, steps' programs.
    """

    has_data = True

    def __init__(self, size: int, ranks: Sequence[int]) -> None:
        check_world_size(size)
        self.size, self.ranks, self.rank = size, ranks, ranks[0] if ranks else 0
        self.cache: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    def __deepcopy__(self, _memo: object) -> World:
        """A world is a place: copies of what lives in it live there, too."""
        return self

    def __reduce__(self) -> str:
        raise UsageTypeError(
            f"{self} is a place, which cannot be pickled, and neither can what lives in it; nearest: the array that "
            "tensor.full() gives, or a checkpoint of tensors"
        )

    @abstractmethod
    def run(self, step: Step, shards: Shards) -> Shards:
        """Run one step on the shards of the owned ranks, one array each, which are not changed.

        A rank outside the source mesh holds an array whose dims are all zero. The results are C-contiguous, and may be
        the inputs, or views of them. A WorldError says that the mesh does not fit in the world, the shards do not fit
        the source layout, or that the reduction has no meaning on the element type.
        """

    def walk(self, steps: Sequence[Step], tensor: Tensor, held: np.dtype) -> Shards:
        """The shards of a tensor after some steps; ``held``: the type in which they are held then."""
        shards = tensor.held
        for step in steps:
            shards = self.run(step, shards)
        return shards

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """An uninitialised C-ordered array."""
        return np.empty(tuple(shape), dtype)

    def empties(self, meta: Meta) -> list[Any]:
        """Uninitialised arrays of the owned ranks for a tensor."""
        return [self.empty(meta.layout.local_shape(meta.shape, rank), meta.held) for rank in self.ranks]

    def named(self, name: str, recipe: Any = None, gradients: int = 0) -> AbstractContextManager[Any]:
        """Steps run inside belong to this operator, while somebody records; its recipe says what it computes."""
        return nullcontext()

    def check_mesh(self, mesh: Mesh) -> None:
        """Refuse a mesh with ranks that this world does not have, by a WorldError."""
        if mesh.ranks is not None or mesh.size > self.size:
            check_ranks(mesh, self.size)

    def check_step(self, step: Step) -> None:
        """Refuse a step that cannot run in this world."""
        for mesh in step.src.mesh, step.dst.mesh:
            self.check_mesh(mesh)

    def price(self, step: Step, itemsize: int) -> float:
        """What a step costs: the bytes that the busiest rank receives."""
        return max(step.nbytes(rank, itemsize) for rank in step.src.mesh.rank_list)

    def plan(self, src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Route:
        """The cheapest steps from one layout to another."""
        return shortest_route(src, dst, shape, dtype.itemsize, self.price)

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """The strategy whose operands are brought, and whose partial results are reduced, for the lowest price."""

        def cost(strategy: Strategy) -> float:
            moves = [*zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes)]
            results = zip(bound.output_layouts(strategy), bound.output_shapes)
            moves += [(layout, layout.reduced, shape, dtypes[0]) for layout, shape in results]
            routes = ((self.plan(src, dst, shape, dtype), dtype) for src, dst, shape, dtype in moves)
            return sum(self.price(step, dtype.itemsize) for route, dtype in routes for step in route.steps)

        return min(bound.strategies(layouts[0].mesh, partial=False, empty=True), key=cost)

    # -- agreement: in one process there is nobody to disagree with ----------------------------------

    def derived_origin(
        self, recipe: Any, of: Sequence[Tensor], k: int = 0, params: Any = None, forward: int = 0
    ) -> int:
        """Return the number of what an operator makes of tensors, see ``OpNode.pull``; of their sum if the recipe is None."""
        return 0

    def settle(self) -> None:
        """Make sure that all ranks called the same so far, before numbers leave the program; WorldError if not."""
