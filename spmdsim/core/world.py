"""The world: it owns some ranks of all and runs steps on their shards.

A world is told *what* happens by a :class:`~spmdsim.core.step.Step`; which rank sends which box to whom follows from
the step's two layouts. Arrays are values: a world never changes its inputs, may return them or views of them, and in
one process equal replicas may be one array object.

What is optional is a value that a world is given: a planner (:class:`~spmdsim.core.bytes_planner.Planner`), observers
(:class:`Observers`) and the provenance of tensors (:class:`ProvenanceNumbers`).

Next: :mod:`spmdsim.core.lockstep`, the world in one process.
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
from spmdsim.core.notation.rules import check_ranks
from spmdsim.core.step import EXCHANGES, LOCAL_STEPS, PLACING, REDUCING, Step
from spmdsim.errors import UsageTypeError, WorldError
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
    """The observers of worlds. Worlds may share them; the lists change while programs run.

    Attributes:
        watchers: see each operator call, and may change its operator and strategy. The last one counts.
        guards: are called with an operator's name and a route before the operator moves an operand. The last one counts.
        traces: the open recordings; :attr:`span` is only used while there are any.
        programs: write down calculations, to repeat them. The last one counts.
        span: returns the context in which an operator's recipe runs, or so many of its gradients, and records it.
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
    """The interface of numbers that identify how tensors were computed: equal on all ranks; 0 if ranks compare nothing."""

    def of_result(self, recipe: Recipe, operands: Sequence[PlainTensor], k: int, params: Params) -> int:
        """Return the number of an operator's result ``k``."""

    def of_gradient(self, recipe: Recipe, gradients: Sequence[PlainTensor], k: int, result: int) -> int:
        """Return the number of the gradient of operand ``k``, from those of the results; ``result`` is the first one's number."""

    def of_sum(self, tensors: Sequence[PlainTensor]) -> int:
        """Return the number of a sum of gradients."""

    def note_read(self, tensor: PlainTensor, array: np.ndarray) -> None:
        """Note that this process reads the elements of a tensor as an array of its own."""


class ComparesCalls(Protocol):
    """The interface of objects that compare the calls of this process with those of the others."""

    def compare(self) -> None:
        """Compare all calls so far. Raise WorldError if ranks disagree."""


class AbstractWorld(Pictured, ABC):
    """The base of all worlds.

    Args:
        size: number of ranks.
        ranks: the ranks this process owns, in the order in which shards are passed; ``rank`` is the first of them.
        planner: plans redistributions and chooses strategies.
        observers: see what runs.
        provenance: numbers tensors by how they were computed; None if nothing compares them.
        advice: says how to get a world of so many ranks, at the end of an error.

    Attributes:
        has_data: whether shards are arrays; False where only shapes are followed.
        collectives: the collectives of steps that it runs.
        call_provenance: the provenance of the tensor that the next steps move; 0 if there is none.
        agreement: compares the calls of ranks; None if nothing compares them.
        cache: what was derived for this world: operators' recipes, steps' programs.
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
        """Return the world itself, because copies of its tensors live in it, too."""
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

    def run_steps(self, steps: Sequence[Step], tensor: PlainTensor, held: np.dtype) -> Shards:
        """Run steps on a tensor and return its final shards; convert them to the type ``held`` before a "fill"."""
        shards = tensor.held
        try:
            for step in steps:
                if step.collective == "fill":  # the result is pending, and its sum may grow
                    shards = self.in_type(shards, held)
                self.call_provenance = tensor.origin
                shards = self.run(step, shards)
        finally:
            self.call_provenance = 0
        return shards

    def perform(self, run: Callable[..., Any], *lists: Sequence[Any]) -> Any:
        """Return what a calculation makes of tensors' arrays, given as one list each. An open program writes it down."""
        programs = self.observers.programs
        return programs[-1].perform(run, lists) if programs else run(*lists)

    def in_type(self, arrays: Shards, dtype: np.dtype) -> Shards:
        """Return arrays in an element type; see :func:`~spmdsim.core.elements.convert`."""
        return self.perform(partial(each, partial(convert, dtype=dtype)), arrays)  # type: ignore[no-any-return]

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return an uninitialised C-ordered array."""
        return np.empty(tuple(shape), dtype)

    def empties(self, meta: Meta) -> list[Any]:
        """Return uninitialised arrays of the owned ranks for a tensor."""
        return [self.empty(meta.layout.local_shape(meta.shape, rank), meta.held) for rank in self.ranks]

    def check_mesh(self, mesh: Mesh) -> None:
        """Refuse a mesh with ranks that this world does not have, by a WorldError."""
        if mesh.ranks is not None or mesh.size > self.size:
            check_ranks(mesh, self.size, self.advice)

    def check_step(self, step: Step) -> None:
        """Refuse a step that is none, or that leaves its mesh, or cannot run in this world, by a WorldError."""
        if step.collective not in self.collectives:
            raise WorldError(
                f"no step is called {step.collective!r}; there are {', '.join(self.collectives)}"
            )
        for mesh in step.src.mesh, step.dst.mesh:
            self.check_mesh(mesh)
        if step.dst.mesh is not step.src.mesh:
            ranks = {*step.dst.mesh.rank_list}, {*step.src.mesh.rank_list}
            apart = step.collective != "reduce_scatter" or ranks[0] != ranks[1]
            if apart and step.collective not in (*EXCHANGES, "reshape") and step.dst.mesh != step.src.mesh:
                raise WorldError(
                    f"{step.collective} stays on one mesh, but goes from {step.src} to {step.dst}"
                )

    def move(self, tensor: T, layout: Layout) -> T:
        """Return a tensor of this world in another layout."""
        from spmdsim.core.tensor import follow

        if layout == tensor.meta.layout:
            return tensor
        self.check_mesh(layout.mesh)
        return follow(
            tensor, self.planner.plan(tensor.meta.layout, layout, tensor.meta.shape, tensor.meta.dtype)
        )

    def operands(self, name: str, values: Sequence[Any], like: PlainTensor) -> Sequence[PlainTensor]:
        """Return the operands of the operator ``name``, of which ``like`` is one, as tensors of one world.

        Raises:
            UsageTypeError: If an operand is not a tensor.
            WorldError: If a tensor lives in another world.
        """
        from spmdsim.core.tensor import PlainTensor

        kinds = [type(x).__name__ for x in values if not isinstance(x, PlainTensor)]
        if kinds:
            raise UsageTypeError(f"{name} takes tensors, but got {', '.join(kinds)}")
        if any(x.world is not self for x in values):
            raise WorldError(f"operands of {name} live in different worlds; make both with the same world")
        return values

    def verify_calls(self) -> None:
        """Verify that all ranks made equal calls so far, before numbers leave the program; WorldError if not."""
        if self.observers.programs:
            self.observers.programs[-1].looked_at()
        if self.agreement is not None:
            self.agreement.compare()
