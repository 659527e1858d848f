"""What a trace holds: one value per collective and one per operator, and what was said to keep ranks together.

A step is the same in all worlds, and so are the bytes that it amounts to (``planned``). What was moved may be more or
less: a world of processes counts it from the calls that it makes; the others move nothing, and say what is planned.
"""

from __future__ import annotations

import math
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

#: How the way begins of results that ranks share in memory.
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
    """One collective, or one local step of a redistribution (slice, fill), as the world ran it.

    Args:
        operator: the operator during which it ran, ``"to"`` for a redistribution of its own.
        collective: ``all_reduce``, ``all_gather``, ... or ``slice``, ``fill``, ``exchange``.
        axes: the mesh axes of its groups; empty for an exchange.
        group_size: ranks in each group; for an exchange, ranks in the union of both meshes.
        dtype: name of the element type.
        ranks: the ranks this process owns, to which the bytes belong.
        nbytes: bytes each of these ranks received from others. A reduction of the library's own counts by the
            convention of plans, whatever algorithm it takes.
        sent: bytes each of them sent to others.
        planned: bytes each of them would receive by the convention of plans, whichever way the step took.
        algorithm: the emulated schedule that ran, or None for the world's own collective.
        seconds: measured wall time of this call, on this process.
        start: when it began, seconds on the process's monotonic clock.
        source: ``file:line`` of the user's call.
        step: the step itself (layouts, shape, reduction).
        expected: where the bytes depend on data that the world does not have, ``nbytes`` is what evenly spread
            values would bring.
        peers: where they depend on data, for each owned rank the elements it received from each other one.
        way: the calls that it became, such as ``"Allgather"`` or ``"Alltoallv, Allgather"``; empty in a world without
            processes, ``"shared memory"`` where nothing had to be called.
        library: what the library's own algorithm of a reduction moved, where the reduction was left to it and its
            choice of algorithm is known.
        exposed: of one that was begun early, the seconds that this process spent in beginning it and in waiting for
            it; the rest of ``seconds`` it computed. None where it waited all the time.

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
        """Seconds in which this process did nothing else."""
        return self.seconds if self.exposed is None else self.exposed

    @property
    def due(self) -> tuple[int, ...]:
        """Bytes that each owned rank receives in a step that goes this way: those planned, but for two ways.

        A small reduction that MPI does not know is gathered whole, in one call; and what ranks share in memory is
        not sent to each of them.
        """
        reduces, others = self.collective == "all_reduce", self.group_size - 1
        itemsize = element_type(self.dtype).itemsize
        if (reduces or self.collective == EXCLUSIVE_SCAN) and self.way == "Allgather":
            held = (math.prod(self.step.dst.local_shape(self.step.shape, rank)) for rank in self.ranks)
            return tuple(others * count * itemsize for count in held)
        if not self.way.startswith(SHARED_MEMORY):
            return self.planned
        return tuple(
            others * reduced_block(self.step, rank) * itemsize if reduces else 0 for rank in self.ranks
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Return the fields that are equal in all worlds: all but the bytes of the owned ranks."""
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
    """One operator call: what it was asked and how it was laid out.

    Args:
        name: the operator.
        strategy: the strategy it ran with, as text.
        inputs: layouts of the operands as the local function saw them, in short form.
        outputs: layouts of the results.
        local_shapes: shapes of this process's first owned shard of each operand, then of each result.
        seconds: measured wall time, redistributions included.
        start: when it began.
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
        """What must be equal in all worlds; local shapes of uneven shards differ from rank to rank."""
        return ("operator", self.name, self.strategy, self.inputs, self.outputs)


Event = CollectiveEvent | OperatorEvent


class ComputedSpan(NamedTuple):
    """An operator or its gradient as it ran, its redistributions included, and what it computes.

    Attributes:
        name: the operator, with ``.backward`` for its gradient.
        start: when it began, seconds on the process's monotonic clock.
        seconds: how long it took.
        bound: its rule with sizes.
        strategy: how it was split.
        itemsizes: bytes of an element of each operand.
        gradients: on the way back, how many operands get one; 0 forward.
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
def sent_counts(step: Step, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the elements that each rank sends to others in a step, 0 outside its meshes."""
    return tuple(sent_nbytes(step, rank, 1) for rank in ranks)


def group_size(step: Step) -> int:
    """Return the number of ranks in a group of a step; for exchanges, in the union of both meshes."""
    if step.collective not in EXCHANGES:
        return step.src.mesh.axis_size(*step.axes)
    if step.src.mesh.ranks is None and step.dst.mesh.ranks is None:
        return max(step.src.mesh.size, step.dst.mesh.size)
    return len({*step.src.mesh.rank_list, *step.dst.mesh.rank_list})
