"""What a trace holds: one value per collective and one per operator.

Events are the same in all worlds but for their times: bytes are derived from the step, not measured, and a
step's groups follow from its mesh and axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from spmdsim.redistribution.step import Step


@dataclass(frozen=True)
class CollectiveEvent:
    """One collective, or one local step of a redistribution (slice, fill), as the world ran it.

    Args:
        operator: the operator during which it ran, ``"to"`` for a redistribution of its own.
        collective: ``all_reduce``, ``all_gather``, ... or ``slice``, ``fill``, ``exchange``.
        axes: the mesh axes of its groups; empty for an exchange.
        group_size: ranks in each group; for an exchange, ranks in the union of both meshes.
        dtype: name of the element type.
        ranks: the ranks this process owns, to which ``nbytes`` belongs.
        nbytes: bytes each of these ranks received from others.
        algorithm: the emulated schedule that ran, or None for the world's own collective.
        seconds: measured wall time of this call, on this process.
        start: when it began, seconds on the process's monotonic clock.
        source: ``file:line`` of the user's call.
        step: the step itself (layouts, shape, reduction).
        expected: where the bytes depend on data that the world does not have, ``nbytes`` is what evenly spread
            values would bring.
        peers: where they depend on data, for each owned rank the elements it received from each other one.
    """

    operator: str
    collective: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    ranks: Sequence[int]
    nbytes: tuple[int, ...]
    algorithm: str | None
    seconds: float
    start: float
    source: str | None
    step: Step
    expected: bool = False
    peers: tuple[tuple[tuple[int, int], ...], ...] | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What must be equal in all worlds, the bytes of the owned ranks aside."""
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


@dataclass(frozen=True)
class OperatorEvent:
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


@lru_cache(maxsize=4096)
def received_counts(step: Step, ranks: Sequence[int]) -> tuple[int, ...]:
    """Elements each of the ranks receives from others in a step, 0 for ranks outside its meshes."""
    return tuple(step.nbytes(rank, 1) if rank in step.dst.mesh else 0 for rank in ranks)


def group_size(step: Step) -> int:
    """Ranks per group of a step; for an exchange the ranks of both meshes together."""
    if step.collective != "exchange":
        return step.src.mesh.axis_size(*step.axes)
    if step.src.mesh.ranks is None and step.dst.mesh.ranks is None:
        return max(step.src.mesh.size, step.dst.mesh.size)
    return len({*step.src.mesh.rank_list, *step.dst.mesh.rank_list})
