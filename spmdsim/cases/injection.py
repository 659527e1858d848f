"""Inject faults into a case: find a place where the fault changes the result, and check that it is noticed.

A fault is one edit of the arrays of one rank (or of two) at one place of a run: the array that it passes to a
collective or gets from it, its shard of an operand, or its shard of the result. Any case and any world can be broken
like this, since collectives pass through :class:`~spmdsim.cases.injection.Intercepted` and tensors through the
runner.

Trials on integers (:mod:`spmdsim.cases.inputs`) find the place: the first possible place for the kind of fault where
the result changes. Order does not matter for integers. So if no place changes the result (ranks with equal shards
swap them, or a sum gets another order), the fault has **no effect** in this case, and no check can notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.rounding import is_rounded
from spmdsim.cases.case import Case, PreparedCase
from spmdsim.cases.inputs import ExactInputs, Inputs
from spmdsim.core.step import LOCAL_STEPS, Step
from spmdsim.errors import unknown
from spmdsim.redistribution.steps.group_steps import Parts, PartsStep
from spmdsim.redistribution.steps.row_steps import RowStep
from spmdsim.worlds.base import V, World
from spmdsim.worlds.local_steps import Arrived
from spmdsim.worlds.trace.events import group_size

#: Function of ``"before"`` or ``"after"``, a step and one array per rank; returns the arrays to continue with.
Hook = Callable[[str, Step, list[Any]], list[Any]]


class Intercepted(World):
    """World that passes the arrays of each step of another world through a function before and after it.

    Args:
        inner: the world that runs the steps.
        hook: function of ``"before"`` or ``"after"``, the step, and one array per rank that this process plays. It
            returns the arrays to continue with, and must not write into its arguments. Steps of rows pass the rows.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> mesh, seen = Mesh((2,), ("x",)), []
    >>> world = Intercepted(LockStep(2), lambda when, step, shards: seen.append((when, step.collective)) or shards)
    >>> _ = Tensor.from_global(np.arange(4.0), mesh("x"), world).to(mesh(None))
    >>> seen
    [('before', 'all_gather'), ('after', 'all_gather')]
    """

    def __init__(self, inner: World, hook: Hook) -> None:
        super().__init__(inner.size, inner.ranks, nodes=inner.nodes)
        self.inner, self.hook = inner, hook
        self.has_data, self.replicated, self.algorithms = inner.has_data, inner.replicated, inner.algorithms
        self.planner, self.cache, self.variant = inner.planner, inner.cache, (hook,)

    def run(self, step: Step, shards: list[Any], algorithm: str | None = None) -> list[Any]:
        """Run one step in the other world; see :meth:`World.run`."""
        return self._pass_shards(step, shards, lambda arrays: self.inner.run(step, arrays, algorithm))

    def run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> list[Any]:
        """Run a step of rows in the other world; see :meth:`World.run_rows`."""
        return self._pass_shards(step, values, lambda arrays: self.inner.run_rows(step, ids, arrays))

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        return self.inner._run_parts(step, dtype, outgoing)

    def _pass_shards(self, step: Step, shards: list[Any], run: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Run a step between two calls of the hook."""
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


#: Error of an element in fault ``ulp``, in units in the last place.
ULPS = 64

#: Function of a rank's array, another rank's array and the element type; returns the wrong array.
Edit = Callable[[np.ndarray, np.ndarray, np.dtype], np.ndarray]


@dataclass(frozen=True)
class Fault:
    """Kind of fault.

    Attributes:
        name: its name.
        about: its description.
        sites: sites (see :class:`InjectionPlace`) where it can be injected, in the order in which they are tried.
        edit: function of a rank's own array, another rank's array and the element type, which returns the wrong
            array.
        phrase: format of the message, with fields rank, other and place.
        both: also edit the other rank's array, with the roles swapped.
    """

    name: str
    about: str
    sites: tuple[str, ...]
    edit: Edit
    phrase: str
    both: bool = False


@dataclass(frozen=True)
class InjectionPlace:
    """Place of a run at which a fault can be injected.

    Attributes:
        site: ``"before"`` or ``"after"`` a collective, ``"operand"``, or ``"result"``.
        number: number of the place among the places of this site, from 0 in the order of the run.
        text: description.
    """

    site: str
    number: int
    text: str


@dataclass(frozen=True)
class Injection:
    """Fault at a place of a run.

    Attributes:
        fault: the kind of fault.
        injection_place: the place; None if the fault has no effect in this case.
        ranks: the rank that is hit, and the rank whose array it may get instead; None if there is no place.
    """

    fault: Fault
    injection_place: InjectionPlace | None = None
    ranks: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """Description of the fault."""
        if self.injection_place is None or self.ranks is None:
            return "nothing: the result is the same wherever it happens"
        rank, other_rank = self.ranks
        return self.fault.phrase.format(rank=rank, other=other_rank, place=self.injection_place.text)


def _fit_shape(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array in a shape; its elements are repeated or cut off if necessary."""
    return array if array.shape == shape else np.resize(array, shape)


def _change_ulps(own_array: np.ndarray, _: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a copy whose middle element is off by :data:`ULPS` (64) units in the last place.

    For example, a float32 1.0 becomes 1 + 64 * 2**-23. An integer is increased by 64, a complex number is changed in
    its real part. An array without elements is returned unchanged.

    Args:
        own_array: the array, which does not change.
        _: the array of another rank; not used: the interface :data:`Edit` has it.
        dtype: the element type in which the units count; the array may be wider.
    """
    if not own_array.size:
        return own_array
    array = np.array(own_array.astype(dtype), order="C")
    flat = array.reshape(-1)
    # Slices and views share their memory with `array`, so changes of `parts` change it.
    middle = flat[len(flat) // 2 :][:1]
    parts = middle.view(middle.real.dtype) if dtype.kind == "c" else middle
    if not is_rounded(dtype):
        parts += parts.dtype.type(ULPS)
    elif parts.itemsize <= 8:  # a float's bits, read as an integer, count units in the last place
        parts[:1].view(f"i{parts.itemsize}")[...] += ULPS
    else:
        parts[:1] += ULPS * np.spacing(parts[:1])
    return array.astype(own_array.dtype)


# Before a collective, an array is one rank's contribution to it. After a collective, its position matters most.
_CONTRIBUTION = ("before", "operand", "result", "after")
_POSITION = ("after", "before", "operand", "result")

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "drop", "a rank's contribution is lost", _CONTRIBUTION,
            lambda array, _, __: np.zeros_like(array), "rank {rank} loses its {place}",
        ),
        Fault(
            "double", "a rank's contribution is added twice", _CONTRIBUTION,
            lambda array, _, __: array + array, "rank {rank}'s {place} counts twice",
        ),
        Fault(
            "root", "a rank's data is taken from the wrong rank", _CONTRIBUTION,
            lambda array, other_array, _: _fit_shape(other_array, array.shape), "rank {rank} has rank {other}'s {place}",
        ),
        Fault(
            "swap", "two ranks have each other's shard", _POSITION,
            lambda array, other_array, _: _fit_shape(other_array, array.shape),
            "ranks {rank} and {other} have each other's {place}", both=True,
        ),
        Fault(
            "shift", "a shard is shifted by one element", _POSITION,
            lambda array, _, __: np.roll(array, 1), "rank {rank}'s {place} is shifted by one element",
        ),
        Fault(
            "ulp", f"one element is off by {ULPS} units in the last place", ("result",),
            _change_ulps, f"one element of rank {{rank}}'s {{place}} is off by {ULPS} units in the last place",
        ),
    )
}  # fmt: skip


def fault(name: str) -> Fault:
    """Return a kind of fault by its name.

    Raises:
        InputError: If the name is unknown.
    """
    if name not in FAULTS:
        raise unknown(f"no fault is called {name!r}", name, FAULTS)
    return FAULTS[name]


class Runner:
    """Runner of a case's program, intact or with an injected fault.

    Attributes:
        places: places of the last run at which a fault can be injected.
    """

    def __init__(self, world: World, injection: Injection | None = None) -> None:
        self.outer, self.injection = world, injection
        self.ranks = None if injection is None else injection.ranks
        self.world = world if injection is None else Intercepted(world, self._record_place)
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
        """Record a tensor as a place for a fault; return it, with the fault if the place is chosen.

        Tensors of fewer than 2 dims (ids and biases) are no places. They are returned themselves, and so is every
        tensor in a run without an injection. Otherwise all ranks must call it, and the result is a new tensor
        without gradient, even if this is not the chosen place.
        """
        if self.injection is None or tensor.ndim < 2:  # ids and biases stay unchanged
            return tensor
        text = "shard of the result" if site == "result" else f"shard of operand {number}"
        shards = self._pass_shards(
            InjectionPlace(site, number, text), list(tensor.read_shards()), tensor.dtype
        )
        return Tensor.from_local(shards, tensor.layout, tensor.world, shape=tensor.shape)

    def _record_place(self, site: str, step: Step, shards: list[Any]) -> list[Any]:
        """Record a step as a place for a fault; return its arrays, with the fault if chosen.

        Steps without communication are no places: their arrays are returned. All ranks must call it, because they
        exchange their arrays at the chosen place.
        """
        if step.collective in LOCAL_STEPS:
            return shards
        number = sum(recorded_place.site == site for recorded_place in self.places)
        name = (
            f"{step.collective}({','.join(step.axes)}: {group_size(step)})" if step.axes else step.collective
        )
        text = f"{'part' if site == 'before' else 'result'} of {name}"
        return self._pass_shards(InjectionPlace(site, number, text), shards, shards[0].dtype)

    def _pass_shards(self, current: InjectionPlace, shards: list[Any], dtype: np.dtype) -> list[Any]:
        """Record a place; return this process's arrays, with the fault if the place is chosen.

        All ranks must call it, because they exchange their arrays at the chosen place. There, the first call also
        chooses the ranks that are hit, if the injection does not name them.
        """
        self.places.append(current)
        assert self.injection is not None
        if current != self.injection.injection_place:
            return shards
        everybody = self.outer.gather_objects(shards)
        ranks = self.ranks = self.ranks or _choose_ranks(self.injection.fault, everybody, dtype)
        return [self._edit_shard(rank, ranks, everybody, dtype) for rank in self.outer.ranks]

    def _edit_shard(
        self, rank: int, ranks: tuple[int, int], everybody: Sequence[Any], dtype: np.dtype
    ) -> Any:
        """Return the array of a rank, with the fault if the fault hits the rank.

        * The rank that is hit gets ``fault.edit(its array, the other rank's array, dtype)``.
        * The other rank gets the edit with the roles swapped, if ``fault.both`` is True.
        * Otherwise the rank's own array is returned, without a copy.

        The injection must be set.

        Args:
            rank: the rank.
            ranks: the rank that is hit, and the other rank.
            everybody: the arrays of all ranks, by rank.
            dtype: the element type.
        """
        assert self.injection is not None
        hit_rank, other_rank = ranks
        if rank == hit_rank:
            return self.injection.fault.edit(everybody[hit_rank], everybody[other_rank], dtype)
        if rank == other_rank and self.injection.fault.both:
            return self.injection.fault.edit(everybody[other_rank], everybody[hit_rank], dtype)
        return everybody[rank]


def find_fault(case: Case, world: World, name: str) -> Injection:
    """Return a fault at the first place where it changes the result of a case.

    A place is a point of the run, such as a collective, where the fault breaks a value. The case runs on integers,
    with the fault at one place after the other: in the order of the fault's ``sites``, and within a site in the order
    of the run. If no place changes the result, the injection has neither place nor ranks. All ranks must call it, and
    all return equal values.

    Args:
        case: the case.
        world: the world that runs the trials.
        name: the kind of fault.

    Raises:
        InputError: If the kind of fault is unknown.
    """
    kind, inputs = fault(name), ExactInputs(case.inputs)
    intact = Runner(world, Injection(kind))
    _, right = intact.run(case, inputs)
    candidates = [point for site in kind.sites for point in intact.places if point.site == site]
    for candidate in candidates:
        broken = Runner(world, Injection(kind, candidate))
        _, result = broken.run(case, inputs)
        changed = [not np.array_equal(a, b) for a, b in zip(result.read_shards(), right.read_shards())]
        if any(world.gather_objects(changed)):
            return Injection(kind, candidate, broken.ranks)
    return Injection(kind)


def _choose_ranks(kind: Fault, everybody: Sequence[Any], dtype: np.dtype) -> tuple[int, int]:
    """Return the rank that a fault hits, and the rank after it, modulo the number of ranks.

    It is the first rank whose array the fault changes; some faults do not change every array. Ranks are tried
    from the middle one on, on 4 ranks 2, 3, 0, 1. If the fault changes no array, it is the middle rank.

    Args:
        kind: the kind of fault.
        everybody: the arrays of all ranks, by rank.
        dtype: the element type.
    """
    size = len(everybody)
    pairs = [(rank % size, (rank + 1) % size) for rank in range(size // 2, size // 2 + size)]
    for hit_rank, next_rank in pairs:
        own_array, theirs = everybody[hit_rank], everybody[next_rank]
        if not np.array_equal(kind.edit(own_array, theirs, dtype), own_array):
            return hit_rank, next_rank
    return pairs[0]
