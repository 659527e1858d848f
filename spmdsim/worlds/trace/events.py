"""Events of a trace: one value per collective and one per operator, and counts of control traffic.

A step is equal in all worlds, and so are its planned bytes (``planned``). The bytes that were moved may be more or
less: a world of processes counts them from its calls of MPI; the other worlds move nothing, and report the planned
bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from spmdsim.core.rule import BoundRule, Strategy
from spmdsim.core.step import EXCHANGES, Step
from spmdsim.layout.element_type import element_type
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.step_counts import reduced_block, sent_nbytes
from spmdsim.redistribution.steps.group_steps import EXCLUSIVE_SCAN

#: The start of ``way`` for results that ranks share in memory.
SHARED_MEMORY = "shared memory"


class CallCounts(NamedTuple):
    """Calls of MPI, with the bytes that this process received and sent in them.

    >>> CallCounts(1, 8, 0) + CallCounts(1, 0, 8)
    CallCounts(calls=2, received=8, sent=8)
    """

    calls: int = 0
    received: int = 0
    sent: int = 0

    def __add__(self, other: CallCounts) -> CallCounts:  # type: ignore[override]
        return CallCounts(*map(int.__add__, self, other))


@dataclass(frozen=True, repr=False)
class CollectiveEvent(ShortRepr):
    """Event of a collective, or of a local step of a redistribution (slice, fill).

    Args:
        operator: the operator during which it ran, ``"to"`` for a redistribution of its own.
        collective: ``all_reduce``, ``all_gather``, ... or ``slice``, ``fill``, ``exchange``.
        axes: the mesh axes of its groups; empty for an exchange.
        group_size: the ranks in each group; for an exchange, the ranks in the union of both meshes.
        dtype: the name of the element type.
        ranks: the ranks that this process owns, to which the bytes belong.
        nbytes: the bytes that each of these ranks received from others. A reduction of the library's own counts by the
            convention of plans, whatever algorithm it takes.
        sent: the bytes that each of them sent to others.
        planned: the bytes that each of them would receive by the convention of plans.
        algorithm: the emulated schedule that ran, or None for the world's own collective.
        seconds: the measured wall time of this call, on this process.
        start: the time of its start, in seconds on the process's monotonic clock.
        source: ``file:line`` of the user's call.
        step: the step itself (layouts, shape, reduction).
        expected: True if the bytes depend on data that the world does not have; ``nbytes`` are then those for evenly
            spread values.
        peers: if the transfers depend on data, for each owned rank the elements that it received from each other one.
        way: the calls that it became, such as ``"Allgather"`` or ``"Alltoallv, Allgather"``; empty in a world without
            processes, ``"shared memory"`` if no call was needed.
        library: what the library's own algorithm of a reduction moved, if the library ran the reduction and its
            choice of algorithm is known.
        exposed: for a collective that was started early, the seconds that this process spent in starting it and in
            waiting for it; it computed in the rest of ``seconds``. None if it waited all the time.

    >>> from spmdsim import LockStep, Mesh, Tensor, record
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"), LockStep(2))
    >>> with record() as trace:
    ...     y = x.to(x.layout.mesh(None))
    >>> trace.collectives[0].nbytes
    (8, 8)
    """

    operator: str
    collective: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    ranks: Sequence[int]
    nbytes: tuple[int, ...]
    sent: tuple[int, ...]
    planned: tuple[int, ...]
    algorithm: str | None
    seconds: float
    start: float
    source: str | None
    step: Step
    expected: bool = False
    peers: tuple[tuple[tuple[int, int], ...], ...] | None = None
    way: str = ""
    library: CallCounts | None = None
    exposed: float | None = None

    @property
    def spent(self) -> float:
        """Seconds in which this process only started the collective or waited for it."""
        return self.seconds if self.exposed is None else self.exposed

    @property
    def due(self) -> tuple[int, ...]:
        """Bytes that each owned rank must receive if the step runs by the MPI calls in ``way``.

        They are the planned bytes, with two exceptions:

        - An all_reduce or scan that runs as one Allgather receives the shard of each other rank. That is so if it is
          small, or if MPI does not support its reduction.
        - A result in memory that ranks share is not sent: an all_reduce receives this rank's block from each other
          rank, an all_gather nothing.
        """
        is_all_reduce, peer_count = self.collective == "all_reduce", self.group_size - 1
        itemsize = element_type(self.dtype).itemsize
        if (is_all_reduce or self.collective == EXCLUSIVE_SCAN) and self.way == "Allgather":
            sizes = (math.prod(self.step.dst.local_shape(self.step.shape, rank)) for rank in self.ranks)
            return tuple(peer_count * size * itemsize for size in sizes)
        if not self.way.startswith(SHARED_MEMORY):
            return self.planned
        if not is_all_reduce:
            return (0,) * len(self.ranks)
        return tuple(peer_count * reduced_block(self.step, rank) * itemsize for rank in self.ranks)

    @property
    def key(self) -> tuple[object, ...]:
        """Fields that are equal in all worlds: no times, and no bytes of the owned ranks."""
        return (
            "collective",
            self.operator,
            self.collective,
            self.axes,
            self.group_size,
            self.dtype,
            self.algorithm,
            self.step,
        )


@dataclass(frozen=True, repr=False)
class OperatorEvent(ShortRepr):
    """Event of an operator call, with its strategy and layouts.

    Args:
        name: the operator.
        strategy: the strategy it ran with, as text.
        inputs: the layouts of the operands as the local function saw them, in short form.
        outputs: the layouts of the results.
        local_shapes: the shapes of this process's first owned shard of each operand, then of each result.
        seconds: the measured wall time, including redistributions.
        start: the time of its start, in seconds on the process's monotonic clock.
        source: ``file:line`` of the user's call.

    >>> from spmdsim import Mesh, Tensor, record
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"))
    >>> with record() as trace:
    ...     y = x + 1
    >>> trace.operators[0].name
    'add'
    """

    name: str
    strategy: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    local_shapes: tuple[tuple[int, ...], ...]
    seconds: float
    start: float
    source: str | None

    @property
    def key(self) -> tuple[object, ...]:
        """Fields that are equal in all worlds: no times, and no local shapes, which may differ."""
        return ("operator", self.name, self.strategy, self.inputs, self.outputs)


Event = CollectiveEvent | OperatorEvent


class ComputedSpan(NamedTuple):
    """Time span of an operator or its gradient, including redistributions, and what it computes.

    Attributes:
        name: the operator, with ``.backward`` for its gradient.
        start: the time of its start, in seconds on the process's monotonic clock.
        seconds: the duration.
        bound: the operator's rule with sizes.
        strategy: the axes that split each factor.
        itemsizes: the bytes of an element of each operand.
        gradients: in the backward pass, the number of operands that get a gradient; 0 in the forward pass.
    """

    name: str
    start: float
    seconds: float
    bound: BoundRule
    strategy: Strategy
    itemsizes: tuple[int, ...]
    gradients: int = 0


@lru_cache(maxsize=4096)
def received_counts(step: Step, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the elements that each rank receives from others in a step, 0 outside its meshes."""
    return tuple(step.nbytes(rank, 1) for rank in ranks)


@lru_cache(maxsize=4096)
def count_sent_by_rank(step: Step, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the elements that each rank sends to others in a step, 0 outside its meshes."""
    return tuple(sent_nbytes(step, rank, 1) for rank in ranks)


def group_size(step: Step) -> int:
    """Return the number of ranks in a group of a step.

    For example, 4 for an all_gather over an axis of 4 ranks. For exchanges, which may go from one mesh to another, it
    is the number of ranks in the union of both.

    Args:
        step: the step.
    """
    if step.collective not in EXCHANGES:
        return step.src.mesh.axis_size(*step.axes)
    if step.src.mesh.ranks is None and step.dst.mesh.ranks is None:
        return max(step.src.mesh.size, step.dst.mesh.size)
    return len({*step.src.mesh.rank_list, *step.dst.mesh.rank_list})


def sum_bytes(collectives: Sequence[CollectiveEvent], attribute: str, rank: int | None = None) -> int:
    """Return an attribute's sum over collectives, for one rank or for the rank with the largest sum.

    Args:
        collectives: the events.
        attribute: the attribute, with a number per owned rank: "nbytes", "sent" or "planned".
        rank: the rank; the sum is 0 if this process does not own it. None: the rank with the largest sum among the
            owned ranks; the sum is 0 without collectives.
    """
    totals: Counter[int] = Counter()
    for event in collectives:
        for owner, count in zip(event.ranks, getattr(event, attribute)):
            totals[owner] += count
    return max(totals.values(), default=0) if rank is None else totals[rank]
