"""Programs of steps that worlds cache, the bytes that a step moved, and steps that were started early.

:class:`StepProgram` is a step derived for one rank, :class:`FastPath` a redistribution that was planned before,
:class:`Moved` the bytes of a step, and :class:`Posted` a step that runs beside other calculations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spmdsim import settings
from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError, WorldError
from spmdsim.worlds.trace import recorder, source_lines
from spmdsim.worlds.trace.events import CallCounts

if TYPE_CHECKING:
    from spmdsim.core import Layout
    from spmdsim.core.tensor import Meta
    from spmdsim.redistribution.plans.planner import Plan


#: A function from a rank's shard before a step to the shard after it.
Run = Callable[[np.ndarray], np.ndarray]


class StepProgram:
    """Step as a process with one rank runs it.

    ``run`` is None before it is derived and after :meth:`free`. The shard before the step may move into ``room``.
    """

    run: Callable[[Any], Any] | None = None
    room: Any = None

    def free(self) -> None:
        """Free the resources of the program. Later callers find no ``run``."""
        self.run = None


@dataclass(frozen=True, slots=True)
class FastPath:
    """Redistribution that was done before.

    Attributes:
        layout: the layout that was requested.
        route: the plan.
        meta: the meta of the result.
        program: the plan's only step as this process runs it; None if there is more to do.
    """

    layout: Layout
    route: Plan
    meta: Meta
    program: StepProgram | None


class Moved(NamedTuple):
    """Bytes that a step moved.

    Attributes:
        received: the bytes that each owned rank received from other ranks.
        sent: the bytes that each owned rank sent to other ranks.
        mpi_calls: the MPI calls that the step became, in words.
        library: what the library's own algorithm moved, if it chose one.
    """

    received: Sequence[int]
    sent: Sequence[int]
    mpi_calls: str = ""
    library: CallCounts | None = None

    def and_then(self, more: Moved) -> Moved:
        """Return what this call and a later call of one step moved together.

        Bytes are added, and the words of MPI calls are joined. ``library`` is taken from this call.
        """
        both = (self.received, more.received), (self.sent, more.sent)
        received, sent = ([a + b for a, b in zip(before, after)] for before, after in both)
        return Moved(received, sent, ", ".join(filter(None, (self.mpi_calls, more.mpi_calls))), self.library)


def forget(entry: Any) -> None:
    """Free the resources of a program that leaves the cache."""
    if isinstance(entry, StepProgram):
        entry.free()


#: The collectives of steps. ``slice``, ``fill`` and ``reshape`` are local. ``exchange`` is the direct redistribution,
#: in which every rank sends the overlapping boxes; ``reduce_exchange`` is its counterpart for pending values: one rank
#: adds an element up and sends it on. ``halo_exchange`` turns blocks of a dim into windows, ``halo_reduce`` is its
#: reverse; ``window`` is either of them without a split dim. In an ``exclusive_scan`` each rank gets the reduction of
#: the arrays of the ranks before it in the group.
STEP_COLLECTIVES = (
    *("slice", "fill", "reshape", "all_gather", "all_to_all", "all_reduce", "reduce_scatter", "exchange"),
    *("reduce_exchange", "exclusive_scan", "window", "halo_exchange", "halo_reduce"),
)


def check_shard(step: Step, rank: int, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise WorldError if a shard does not fit the layout before a step.

    Args:
        step: the step, for the message.
        rank: the shard's rank, for the message.
        shape: the shape of the shard.
        expected: the shape that the layout gives it.
    """
    if shape != expected:
        raise WorldError(f"the shard of rank {rank} must have shape {expected} in {step.src}, got {shape}")


#: A generator of the stages of a step: each ``next`` waits for the requests under way and starts the next ones. It
#: returns the shards.
Stages = Generator[None, None, list[Any]]


class Posted:
    """Result of :meth:`World.post`: a step that was started on the shards of the owned ranks.

    Args:
        stages: starts the step, and continues it.
        count_moved: returns what this process moved in the step since the last call.
        emit: reports the step to the open traces: ``(start, moved, seconds, source, exposed)``, with the start as
            seconds of ``time.perf_counter``, the seconds since then, the user's line, and the seconds spent in starting
            and waiting.
    """

    def __init__(
        self,
        stages: Stages,
        count_moved: Callable[[], Moved],
        emit: Callable[[float, Moved, float, str | None, float], None],
    ) -> None:
        self._stages, self._count_moved, self._emit = stages, count_moved, emit
        self._operator, self._source = recorder.current_operator(), None
        self._results: list[Any] | None = None
        self._moved: Moved | None = None
        self._busy, self._start = 0.0, time.perf_counter()
        if recorder.recording():
            self._source = source_lines.source_line()
            recorder.under_way.append(self)
        self.advance()

    def advance(self) -> None:
        """Continue the step: wait for MPI's requests under way, and start the next ones, if any.

        The first call starts the step. The call after the last request stores the new shards for :meth:`wait`; later
        calls do nothing. All ranks must call it in the same order of steps. If a trace is open, the moved bytes are
        counted.

        Raises:
            WorldError: If ranks do not come, or disagree about the step.
        """
        if self._results is not None:
            return
        begin = time.perf_counter()
        try:
            next(self._stages)
        except StopIteration as end:
            self._results = end.value
        if recorder.recording():
            more = self._count_moved()
            self._moved = more if self._moved is None else self._moved.and_then(more)
        self._busy += time.perf_counter() - begin

    def wait(self) -> list[Any]:
        """Wait for the end of the step and return the new shards, one per owned rank.

        Later calls return this list again at once. The first call also reports the step to the open traces, if they
        were open when it started.

        Raises:
            WorldError: If ranks do not come, or disagree about the step.
        """
        while self._results is None:
            self.advance()
        if self in recorder.under_way:
            recorder.under_way.remove(self)
            if self._moved is not None:
                self._emit_event(self._moved)
        return self._results

    def _emit_event(self, moved: Moved) -> None:
        """Report the step, which moved these bytes, to the open traces.

        Its duration is the time since the start; ``exposed`` is the time spent in starting and waiting. It belongs to
        the operator and the line that started it.

        Args:
            moved: the bytes.
        """
        seconds = time.perf_counter() - self._start
        with recorder.operator(self._operator):
            self._emit(self._start, moved, seconds, self._source, self._busy)


MODES = ("auto", "values", True, False)


def check_mode(mode: bool | str | None) -> bool | str:
    """Return how ranks compare their calls: ``mode``, or if None the setting ``SPMDSIM_CHECK``.

    Returns:
        True, False, "auto" or "values", see :data:`MODES`.

    Raises:
        UsageTypeError: If ``mode`` is another value.
        InputError: If ``mode`` is None and the environment variable has another text.
    """
    if mode is None:
        return settings.CHECK.read()
    if mode not in MODES:
        raise UsageTypeError(f"check must be True, False, 'auto' or 'values', got {mode!r:.60}")
    return mode
