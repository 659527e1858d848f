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

from spmdsim.arguments import check_world_size
from spmdsim.core.mesh import Mesh
from spmdsim.core.route import Route, cheapest_strategy, shortest_route
from spmdsim.core.step import Step
from spmdsim.errors import WorldError
from spmdsim.pictured import Pictured

if TYPE_CHECKING:
    from spmdsim.core.bound import BoundRule
    from spmdsim.core.layout import Layout
    from spmdsim.core.meta import Meta
    from spmdsim.core.rule import Strategy

#: Who records: while there is somebody, worlds are told which operators run (:meth:`World.named`).
recordings: list[Any] = []
#: Who writes down what is calculated, to do it again; the last one counts.
programs: list[Any] = []


def performed(run: Callable[..., Any], *lists: Sequence[Any]) -> Any:
    """What a calculation makes of tensors' arrays, given as one list each; who writes programs is told."""
    return programs[-1].perform(run, lists) if programs else run(*lists)


class World(Pictured, ABC):
    """Base of all worlds.

    Attributes:
        size: number of ranks.
        ranks: the ranks this process owns, in the order in which shards are passed.
        has_data: whether shards are arrays; False where only shapes are followed.
        compares: whether ranks compare what they call, by the tensors' origins.
        cache: what was derived for this world: operators' recipes, steps' programs.
        about: the origin of the tensor that the next steps move.
    """

    has_data = True
    compares = False

    def __init__(self, size: int, ranks: Sequence[int]) -> None:
        check_world_size(size)
        self.size, self.ranks = size, ranks
        self.cache: dict[Any, Any] = {}
        self.about = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    # -- running ------------------------------------------------------------------------------------

    def run(self, step: Step, shards: list[Any], algorithm: str | None = None) -> list[Any]:
        """Run one step on the shards of the owned ranks, one array each, which are not changed.

        A rank outside the source mesh holds an array whose dims are all zero. The results are C-contiguous, and may be
        the inputs, or views of them. Worlds that have several algorithms for a collective can be told which one runs it.

        Raises:
            WorldError: a mesh that does not fit in the world, shards that do not fit the source layout, a
                reduction without meaning on the element type.
        """
        return self._run(step, shards, algorithm)

    @abstractmethod
    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        """Run a step."""

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """An uninitialised C-ordered array."""
        return np.empty(tuple(shape), dtype)

    def empties(self, meta: Meta) -> list[Any]:
        """Uninitialised arrays of the owned ranks for a tensor."""
        return [self.empty(meta.layout.local_shape(meta.shape, rank), meta.held) for rank in self.ranks]

    def named(self, operator: str, recipe: Any = None, gradients: int = 0) -> AbstractContextManager[Any]:
        """Steps run inside belong to this operator, while somebody records; its recipe says what it computes."""
        return nullcontext()

    def check_mesh(self, mesh: Mesh) -> None:
        """Refuse a mesh with ranks that this world does not have, by a WorldError."""
        highest = mesh.size - 1 if mesh.ranks is None else max(mesh.ranks)
        if highest >= self.size:
            raise WorldError(
                f"mesh {mesh} needs rank {highest}, but the world has {self.size} "
                f"rank{'s' if self.size > 1 else ''}; start it with at least {highest + 1}{self._how(highest + 1)}"
            )

    def _how(self, size: int) -> str:
        """How to get a world of that many ranks, for the end of an error's message."""
        return ""

    def check_step(self, step: Step) -> None:
        """Refuse a step that cannot run in this world."""
        self.check_mesh(step.src.mesh)
        if step.dst.mesh is not step.src.mesh:
            self.check_mesh(step.dst.mesh)

    # -- choices ------------------------------------------------------------------------------------

    def price(self, step: Step, itemsize: int) -> float:
        """What a step costs: the bytes that the busiest rank receives."""
        return max(step.nbytes(rank, itemsize) for rank in step.src.mesh.rank_list)

    def plan(self, src: Layout, dst: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Route:
        """The cheapest steps from one layout to another."""
        return shortest_route(src, dst, shape, dtype.itemsize, self.price)

    def choose(self, bound: BoundRule, layouts: Sequence[Layout], dtypes: Sequence[np.dtype]) -> Strategy:
        """The cheapest strategy for operands that no strategy takes as they are."""
        return cheapest_strategy(bound, layouts, dtypes, self.plan, self.price)

    # -- agreement: in one process there is nobody to disagree with ----------------------------------

    def derived_origin(self, recipe: Any, tensors: Sequence[Any], what: int = 0, params: Any = None) -> int:
        """The number of what an operator makes of tensors; of the sum of gradients where the recipe is None."""
        return 0

    def settle(self) -> None:
        """Make sure that all ranks called the same so far, before numbers leave the program; WorldError if not."""
