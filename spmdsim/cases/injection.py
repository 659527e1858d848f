"""Faults put into a case on purpose: what broke, whether that changes the result, and whether it is noticed.

A fault is one edit of the arrays of one rank (or of two) at one place of a run: what it gives to a collective, what it
gets from it, its piece of an operand, or its piece of the result. Any case and any world can be broken like this, since
collectives pass through :class:`~spmdsim.cases.injection.Intercepted` and tensors through the runner's hands.

The place is found by trial, on whole numbers (:mod:`spmdsim.cases.inputs`): the first one, of those that the kind of fault
can happen at, where the result becomes another. On whole numbers order changes nothing, so if all of them leave the
result as it was (ranks that hold the same swap it, a sum of parts in another order) the fault has **no effect** in this
case, and nobody could notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.rounding import is_rounded
from spmdsim.cases.inputs import ExactInputs
from spmdsim.core.step import LOCAL_STEPS, Step
from spmdsim.errors import unknown
from spmdsim.redistribution.steps.group_steps import Parts, PartsStep
from spmdsim.redistribution.steps.row_steps import RowStep
from spmdsim.worlds.base import V, World
from spmdsim.worlds.local_steps import Arrived
from spmdsim.worlds.trace.events import group_size

if TYPE_CHECKING:
    from spmdsim.cases.case import Case, PreparedCase
    from spmdsim.cases.inputs import Inputs

#: Given ``"before"`` or ``"after"``, the step and one array per owned rank, the arrays to go on with.
Hook = Callable[[str, Step, list[Any]], list[Any]]


class Intercepted(World):
    """A world that passes the arrays of each step of another world through a function before and after it.

    Args:
        inner: the world that runs the steps.
        hook: told ``"before"`` or ``"after"``, the step, and an array per owned rank; returns those to go on with. It
            must not write into them. Steps of rows pass the rows.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> mesh, seen = Mesh((2,), ("x",)), []
    >>> world = Intercepted(LockStep(2), lambda when, step, shards: seen.append((when, step.collective)) or shards)
    >>> _ = Tensor.from_global(np.arange(4.0), mesh("x"), world).to(mesh(None))
    >>> seen
    [('before', 'all_gather'), ('after', 'all_gather')]
    """

    def __init__(self, inner: World, hook: Hook) -> None:
        super().__init__(inner.size, inner.ranks)
        self.inner, self.hook = inner, hook
        self.has_data, self.replicated, self.algorithms = inner.has_data, inner.replicated, inner.algorithms
        self.planner, self.cache, self.variant = inner.planner, inner.cache, (hook,)

    def run(self, step: Step, shards: list[Any], algorithm: str | None = None) -> list[Any]:
        """Run one step in the other world; see :meth:`World.run`."""
        return self._passed(step, shards, lambda arrays: self.inner.run(step, arrays, algorithm))

    def run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> list[Any]:
        """Run a step of rows in the other world; see :meth:`World.run_rows`."""
        return self._passed(step, values, lambda arrays: self.inner.run_rows(step, ids, arrays))

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        return self.inner._run_parts(step, dtype, outgoing)

    def _passed(self, step: Step, shards: list[Any], run: Callable[[list[Any]], list[Any]]) -> list[Any]:
        return self.hook("after", step, run(self.hook("before", step, shards)))

    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        return self.inner._run(step, shards, algorithm)

    def _run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> Arrived:
        return self.inner._run_rows(step, ids, values)

    def barrier(self) -> None:
        """Wait until all ranks have arrived."""
        self.inner.barrier()

    def gather_objects(self, values: Sequence[V], what: str = "gather_objects") -> list[V]:
        """Return all ranks' values on every process."""
        return self.inner.gather_objects(values, what)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an uninitialised array of the other world."""
        return self.inner.empty(shape, dtype)


#: By how many units in the last place an element is off.
ULPS = 64

#: Another array for a rank, from its own and another rank's.
Edit = Callable[[np.ndarray, np.ndarray, np.dtype], np.ndarray]


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    about: str
    sites: tuple[str, ...]  # where it can happen, most telling first
    edit: Edit  # the array that a rank goes on with
    phrase: str  # of {rank}, {other} and the {place}
    both: bool = False  # whether the other rank is hit in the same way


@dataclass(frozen=True)
class InjectionPlace:
    """A point of a run at which a fault can be injected."""

    site: str  # "before" or "after" a collective, an "operand", or the "result"
    number: int
    text: str


@dataclass(frozen=True)
class Injection:
    """A fault at a point of a run on some ranks, or a fault without effect in this case."""

    fault: Fault
    place: InjectionPlace | None = None  # None if it changes the result nowhere
    ranks: tuple[int, int] | None = None  # who is hit, and whose data that rank may have instead

    @property
    def text(self) -> str:
        """The description of the fault."""
        if self.place is None or self.ranks is None:
            return "nothing: the result is the same wherever it happens"
        rank, other = self.ranks
        return self.fault.phrase.format(rank=rank, other=other, place=self.place.text)


def _like(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape else np.resize(array, shape)


def _off(mine: np.ndarray, _: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the array with its middle element changed by :data:`ULPS` units in the last place."""
    if not mine.size:
        return mine
    array = np.array(mine.astype(dtype), order="C")
    flat = array.reshape(-1)
    middle = flat[len(flat) // 2 :][:1]
    parts = middle.view(middle.real.dtype) if dtype.kind == "c" else middle
    if not is_rounded(dtype):
        parts += parts.dtype.type(ULPS)
    elif parts.itemsize <= 8:
        parts[:1].view(f"i{parts.itemsize}")[...] += ULPS
    else:
        parts[:1] += ULPS * np.spacing(parts[:1])
    return array.astype(mine.dtype)


_CONTRIBUTION = ("before", "operand", "result", "after")
_POSITION = ("after", "before", "operand", "result")

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "drop", "a rank's contribution is lost", _CONTRIBUTION,
            lambda mine, _, __: np.zeros_like(mine), "rank {rank} loses its {place}",
        ),
        Fault(
            "double", "a rank's contribution is added twice", _CONTRIBUTION,
            lambda mine, _, __: mine + mine, "rank {rank}'s {place} counts twice",
        ),
        Fault(
            "root", "a rank's data is taken from the wrong rank", _CONTRIBUTION,
            lambda mine, theirs, _: _like(theirs, mine.shape), "rank {rank} has rank {other}'s {place}",
        ),
        Fault(
            "swap", "two ranks have each other's shard", _POSITION,
            lambda mine, theirs, _: _like(theirs, mine.shape),
            "ranks {rank} and {other} have each other's {place}", both=True,
        ),
        Fault(
            "shift", "a shard is shifted by one element", _POSITION,
            lambda mine, _, __: np.roll(mine, 1), "rank {rank}'s {place} is shifted by one element",
        ),
        Fault(
            "ulp", f"one element is off by {ULPS} units in the last place", ("result",),
            _off, f"one element of rank {{rank}}'s {{place}} is off by {ULPS} units in the last place",
        ),
    )
}  # fmt: skip


def fault(name: str) -> Fault:
    """Find a kind of fault by its name."""
    if name not in FAULTS:
        raise unknown(f"no fault is called {name!r}", name, FAULTS)
    return FAULTS[name]


class Runner:
    """A runner of a case's program, as it is or broken by an injection."""

    def __init__(self, world: World, injection: Injection | None = None) -> None:
        self.outer, self.injection = world, injection
        self.ranks = None if injection is None else injection.ranks
        self.world = world if injection is None else Intercepted(world, self._at)
        self.places: list[InjectionPlace] = []

    def run(self, case: Case, inputs: Inputs) -> tuple[PreparedCase, Tensor]:
        """Run the case's program on these inputs; return the program and its result."""
        program = case.build(self.world, inputs)
        return program, self.result(program.run(*self.operands(program)))

    def operands(self, program: PreparedCase) -> tuple[Tensor, ...]:
        """Return the operands; one of them may have the fault."""
        return tuple(self._tensor("operand", k, operand) for k, operand in enumerate(program.operands))

    def result(self, result: Tensor) -> Tensor:
        """Return the result without pending reductions; it may have the fault."""
        return self._tensor("result", 0, result.detach().to(result.layout.reduced))

    def _tensor(self, site: str, number: int, tensor: Tensor) -> Tensor:
        if self.injection is None or tensor.ndim < 2:  # ids and biases are left alone
            return tensor
        text = "piece of the result" if site == "result" else f"piece of operand {number}"
        shards = self._passed(InjectionPlace(site, number, text), list(tensor.shards), tensor.dtype)
        return Tensor.from_local(shards, tensor.layout, tensor.world, shape=tensor.shape)

    def _at(self, site: str, step: Step, shards: list[Any]) -> list[Any]:
        """Record a place of a step where a fault can be injected; inject the fault if it is the chosen place."""
        if step.collective in LOCAL_STEPS:
            return shards
        number = sum(place.site == site for place in self.places)
        name = (
            f"{step.collective}({','.join(step.axes)}: {group_size(step)})" if step.axes else step.collective
        )
        text = f"{'part' if site == 'before' else 'result'} of {name}"
        return self._passed(InjectionPlace(site, number, text), shards, shards[0].dtype)

    def _passed(self, place: InjectionPlace, shards: list[Any], dtype: np.dtype) -> list[Any]:
        self.places.append(place)
        assert self.injection is not None
        if place != self.injection.place:
            return shards
        everybody = self.outer.gather_objects(shards)
        ranks = self.ranks = self.ranks or _hit(self.injection.fault, everybody, dtype)
        return [self._edited(rank, ranks, everybody, dtype) for rank in self.outer.ranks]

    def _edited(self, rank: int, ranks: tuple[int, int], everybody: Sequence[Any], dtype: np.dtype) -> Any:
        assert self.injection is not None
        one, other = ranks
        if rank == one:
            return self.injection.fault.edit(everybody[one], everybody[other], dtype)
        if rank == other and self.injection.fault.both:
            return self.injection.fault.edit(everybody[other], everybody[one], dtype)
        return everybody[rank]


def find(case: Case, world: World, name: str) -> Injection:
    """Find where a kind of fault changes the result of a case. All ranks must call it; all return equal values."""
    kind, inputs = fault(name), ExactInputs(case.inputs)
    whole = Runner(world, Injection(kind))
    _, right = whole.run(case, inputs)
    for place in (place for site in kind.sites for place in whole.places if place.site == site):
        broken = Runner(world, Injection(kind, place))
        _, result = broken.run(case, inputs)
        changed = [not np.array_equal(a, b) for a, b in zip(result.shards, right.shards)]
        if any(world.gather_objects(changed)):
            return Injection(kind, place, broken.ranks)
    return Injection(kind)


def _hit(kind: Fault, everybody: Sequence[Any], dtype: np.dtype) -> tuple[int, int]:
    """Return the first rank, from the middle on, whose array the fault changes, and the rank after it.

    Returns the middle rank and the rank after it if the fault changes no array.
    """
    size = len(everybody)
    pairs = [(rank % size, (rank + 1) % size) for rank in range(size // 2, size // 2 + size)]
    for one, other in pairs:
        mine, theirs = everybody[one], everybody[other]
        if not np.array_equal(kind.edit(mine, theirs, dtype), mine):
            return one, other
    return pairs[0]
