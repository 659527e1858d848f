"""The world: own some of the ranks and run steps on their shards.

The two layouts of a :class:`~spmdsim.core.step.Step` state which rank sends which box to which rank. Arrays are
values: a world never changes its inputs, may return them or views of them, and in one process equal replicas may be
one array object.

A world takes its optional parts as arguments: a planner (:class:`~spmdsim.core.bytes_planner.Planner`), observers
(:class:`Observers`) and the provenance of tensors (:class:`ProvenanceNumbers`).

Next: :mod:`spmdsim.core.tensor`, a value over the ranks of a world.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from spmdsim.core.bytes_planner import BytesPlanner, Planner
from spmdsim.core.elements import convert, each
from spmdsim.core.layout import Mesh
from spmdsim.core.notation.layouts import check_world_size
from spmdsim.core.step import EXCHANGES, LOCAL_STEPS, PLACING, REDUCING, Step
from spmdsim.errors import UsageTypeError, WorldError, many
from spmdsim.pictured import Pictured

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout
    from spmdsim.core.recipe import Recipe
    from spmdsim.core.tensor import Meta, PlainTensor

#: One array per owned rank.
Shards = list[np.ndarray]
Params = dict[str, object]
T = TypeVar("T", bound="PlainTensor")


class Observers:
    """Observers of worlds. Worlds may share them; the lists change while programs run.

    Attributes:
        watchers: see each operator call, and may change its operator and strategy. Only the last one is called.
        guards: are called with an operator's name and a route before the operator moves an operand. Only the last one
            is called.
        traces: the open recordings; :attr:`span` is only used if there are any.
        programs: record calculations, so that they can be replayed. Only the last one records.
        span: takes a recipe, a world and a number of gradients (0 for the forward pass); returns the context in which
            they are computed, and records it.
        gathered: is called once per recipe that moves operands and splits nothing.
    """

    def __init__(
        self,
        span: Callable[[Recipe, AbstractWorld, int], AbstractContextManager[object]] = lambda *_: (
            nullcontext()
        ),
        gathered: Callable[[Recipe, Sequence[Meta]], None] = lambda *_: None,
        guards: list[Callable[[str, Any], None]] | None = None,
    ) -> None:
        self.span, self.gathered = span, gathered
        self.guards = [] if guards is None else guards
        self.watchers: list[Any] = []
        self.traces: list[Any] = []
        self.programs: list[Any] = []


class ProvenanceNumbers(Protocol):
    """Interface of provenances: numbers that identify how tensors were computed.

    They are equal on all ranks of a correct program, and 0 if ranks compare nothing.
    """

    def of_result(self, recipe: Recipe, operands: Sequence[PlainTensor], k: int, params: Params) -> int:
        """Return the number of result ``k`` of an operator call."""

    def of_gradient(self, recipe: Recipe, gradients: Sequence[PlainTensor], k: int, result: int) -> int:
        """Return the number of the gradient of operand ``k``.

        ``gradients`` are the gradients of the results; ``result`` is the number of the first result.
        """

    def of_sum(self, tensors: Sequence[PlainTensor]) -> int:
        """Return the number of a sum of gradients."""

    def note_read(self, tensor: PlainTensor, array: np.ndarray) -> None:
        """Record that this process reads the elements of a tensor as an array of its own."""


class ComparesCalls(Protocol):
    """Interface of objects that compare the calls of this process with those of the others."""

    def compare(self) -> None:
        """Compare all calls so far. Raise WorldError if ranks disagree."""


class AbstractWorld(Pictured, ABC):
    """Base of all worlds.

    Args:
        size: the number of ranks.
        ranks: the ranks that this process owns, in the order in which shards are passed; ``rank`` is the first of
            them.
        planner: plans redistributions and chooses strategies; by default it counts bytes.
        observers: are called when operators and steps run; none by default.
        provenance: numbers tensors by how they were computed; None if nothing compares them.
        advice: returns the end of an error: how to get a world of a number of ranks.

    Attributes:
        has_data: True if shards are arrays; False if the world computes shapes only.
        collectives: the collectives of the steps that it runs.
        call_provenance: the provenance of the tensor that the next steps move; 0 if there is none.
        agreement: compares the calls of ranks; None if nothing compares them.
        cache: everything derived for this world: recipes of operators, programs of steps.
    """

    has_data = True
    collectives: tuple[str, ...] = (LOCAL_STEPS[0], *PLACING[:2], *REDUCING)

    def __init__(
        self,
        size: int,
        ranks: Sequence[int],
        *,
        planner: Planner | None = None,
        observers: Observers | None = None,
        provenance: ProvenanceNumbers | None = None,
        advice: Callable[[int], str] = lambda size: "",
    ) -> None:
        check_world_size(size)
        self.size, self.ranks, self.rank = size, ranks, ranks[0] if ranks else 0
        self.planner: Planner = BytesPlanner() if planner is None else planner
        self.observers = Observers() if observers is None else observers
        self.provenance, self.advice, self.call_provenance = provenance, advice, 0
        self.agreement: ComparesCalls | None = None
        self.cache: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    def __deepcopy__(self, _memo: object) -> AbstractWorld:
        """Return the world itself, because copies of its tensors belong to the same world."""
        return self

    def __reduce__(self) -> str:
        raise UsageTypeError(
            f"{self} and its tensors cannot be pickled or copied to another process; pickle tensor.full(), "
            "or save a checkpoint of tensors"
        )

    @abstractmethod
    def run(self, step: Step, shards: Shards) -> Shards:
        """Run one step on the shards of the owned ranks, one array each, and return the new shards.

        ``shards`` do not change. A rank outside the source mesh has an array whose dims are all zero. The results are
        C-contiguous, and may be the inputs, or views of them.

        Raises:
            WorldError: If the world is smaller than the mesh, the shards do not fit the source layout, or the
                reduction is undefined for the element type.
        """

    def run_steps(self, steps: Sequence[Step], tensor: PlainTensor, fill_dtype: np.dtype) -> Shards:
        """Run steps on a tensor, one after the other; return its shards after the last step.

        All ranks of the world must call it. Without steps the tensor's own shards are returned.

        Args:
            steps: the steps, each from the layout in which the one before ends.
            tensor: the tensor, which does not change.
            fill_dtype: the type to which shards are converted before a step "fill". Such a step makes a tensor
                partial, and the sum of its addends may overflow 16 bits.

        Raises:
            WorldError: If the world cannot run a step; see :meth:`run`.
        """
        shards = tensor.stored_shards
        try:
            for step in steps:
                if step.collective == "fill":
                    shards = self.in_type(shards, fill_dtype)
                self.call_provenance = tensor.provenance_number
                shards = self.run(step, shards)
        finally:
            self.call_provenance = 0
        return shards

    def perform(self, run: Callable[..., Any], *lists: Sequence[Any]) -> Any:
        """Return ``run(*lists)``, a calculation on the arrays of tensors, with one list per tensor.

        An open program records it.
        """
        programs = self.observers.programs
        return programs[-1].perform(run, lists) if programs else run(*lists)

    def in_type(self, arrays: Shards, dtype: np.dtype) -> Shards:
        """Return arrays converted to an element type; see :func:`~spmdsim.core.elements.convert`."""
        return self.perform(partial(each, partial(convert, dtype=dtype)), arrays)  # type: ignore[no-any-return]

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return an uninitialised C-ordered array."""
        return np.empty(tuple(shape), dtype)

    def empties(self, meta: Meta) -> list[Any]:
        """Return the uninitialised shards of the owned ranks for a tensor with this meta."""
        return [
            self.empty(meta.layout.local_shape(meta.shape, rank), meta.storage_dtype) for rank in self.ranks
        ]

    def check_mesh(self, mesh: Mesh) -> None:
        """Raise WorldError if a mesh has ranks that this world lacks."""
        highest = mesh.size - 1 if mesh.ranks is None else max(mesh.ranks)
        if highest >= self.size:
            raise WorldError(
                f"mesh {mesh} needs rank {highest}, but the world has {many(self.size, 'rank')}; "
                f"start it with at least {highest + 1}{self.advice(highest + 1)}"
            )

    def check_step(self, step: Step) -> None:
        """Raise WorldError if this world cannot run a step.

        A world cannot run a step if:

        - its ``collectives`` lack the step's collective;
        - a mesh of the step has ranks that the world lacks;
        - the step goes from one mesh to an unequal one, and is neither an exchange, nor a reshape, nor a
          reduce_scatter between meshes of equal ranks in different orders.
        """
        if step.collective not in self.collectives:
            raise WorldError(
                f"no step is called {step.collective!r}; there are {', '.join(self.collectives)}"
            )
        for mesh in step.src.mesh, step.dst.mesh:
            self.check_mesh(mesh)
        if step.dst.mesh is not step.src.mesh:
            ranks = {*step.dst.mesh.rank_list}, {*step.src.mesh.rank_list}
            reorders = step.collective == "reduce_scatter" and ranks[0] == ranks[1]
            crosses = reorders or step.collective in (*EXCHANGES, "reshape")
            if not crosses and step.dst.mesh != step.src.mesh:
                raise WorldError(
                    f"{step.collective} stays on one mesh, but goes from {step.src} to {step.dst}"
                )

    @abstractmethod
    def move(self, tensor: T, layout: Layout) -> T:
        """Return a tensor of this world in another layout, by the planner's cheapest steps.

        If it has the layout already, the tensor itself is returned. Otherwise all ranks of the world must call
        it.

        Raises:
            WorldError: If the layout's mesh has ranks that this world lacks.
            PlanError: If no steps lead to the layout.
        """

    @abstractmethod
    def operands(self, name: str, values: Sequence[Any], like: PlainTensor) -> Sequence[PlainTensor]:
        """Return the operands of an operator as tensors of one world.

        A world may convert numbers and arrays, and tensors of other worlds.

        Args:
            name: the operator's name, for messages.
            values: the operands as the caller passed them.
            like: a tensor of this world, whose mesh converted values get.

        Raises:
            UsageTypeError: If an operand is not a tensor and not converted.
            WorldError: If a tensor belongs to another world, and the world does not take it.
        """

    def verify_calls(self) -> None:
        """Verify that all ranks made equal calls so far, before numbers leave the program.

        Raises WorldError if they differ.
        """
        if self.observers.programs:
            self.observers.programs[-1].looked_at()
        if self.agreement is not None:
            self.agreement.compare()
