"""A collective under way: begun, and waited for when its result is needed."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

from spmdsim.core.step import Step
from spmdsim.core.world import programs
from spmdsim.trace import recorder
from spmdsim.trace.events import received_counts
from spmdsim.worlds.programs import Moved

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.core.mesh import Mesh
    from spmdsim.worlds.base import World

#: What is done between waits: each ``next`` waits for what is under way and begins what follows; returns the shards.
Stages = Generator[None, None, list[Any]]


class Posted:
    """What :meth:`World.post` returns: a step that was begun on the shards of the owned ranks.

    Args:
        world: which runs it.
        step: the step.
        dtype: the shards' type.
        stages: begins it, and goes on with it.
    """

    def __init__(self, world: World, step: Step, dtype: np.dtype, stages: Stages) -> None:
        self._world, self._step, self._dtype, self._stages = world, step, dtype, stages
        self._operator, self._source = recorder.current_operator(), None
        self._results: list[Any] | None = None
        self._moved: Moved | None = None
        self._busy, self._start = 0.0, time.perf_counter()
        if recorder.recording():
            self._source = recorder.source_line()
            recorder.under_way.append(self)
        self.advance()

    def advance(self) -> None:
        """Wait for what is under way, and begin what follows, if anything does; all ranks in the same order."""
        if self._results is not None:
            return
        begin = time.perf_counter()
        try:
            next(self._stages)
        except StopIteration as end:
            self._results = end.value
        if recorder.recording():
            more = self._world._moved(self._step, self._dtype, None)
            self._moved = more if self._moved is None else self._moved.and_then(more)
        self._busy += time.perf_counter() - begin

    def wait(self) -> list[Any]:
        """The shards after the step, one per owned rank, as soon as they are there.

        Raises:
            WorldError: ranks that do not come, or that disagree about the step.
        """
        while self._results is None:
            self.advance()
        if self in recorder.under_way:
            recorder.under_way.remove(self)
            if self._moved is not None:
                self._tell(self._moved)
        return self._results

    def _tell(self, moved: Moved) -> None:
        planned = received_counts(self._step, self._world.ranks)
        seconds = time.perf_counter() - self._start
        with recorder.operator(self._operator):
            self._world._event(
                self._step, self._dtype, None, self._start, planned, moved, seconds,
                source=self._source, exposed=self._busy,
            )  # fmt: skip


class Posting:
    """What worlds begin early.

    Attributes:
        overlap: whether collectives that nobody needs yet are begun early, while ranks compute: gradients in buckets,
            parameters that a split optimiser gathers. None: where it cannot lose, on meshes of several nodes. Alike on
            all ranks. No number depends on it.
    """

    overlap: bool | None = None

    def post(self, step: Step, shards: list[Any]) -> Posted:
        """Begin a step; its :meth:`Posted.wait` gives what :meth:`run` would.

        All ranks begin it, at the same place among their other steps; when each waits is its own matter, unless the
        step goes on after a wait (an all_reduce). A world without processes runs it at once. Traces have it when it was
        waited for.

        Args:
            step: the collective and its two layouts.
            shards: one array per owned rank, see :meth:`spmdsim.core.world.World.run`; nobody may write to them.

        Raises:
            WorldError: as :meth:`run`.
        """
        return Posted(cast("World", self), step, shards[0].dtype, self._stages(step, shards))

    def _stages(self, step: Step, shards: list[Any]) -> Stages:
        """Begin a step, and go on with it."""
        return cast("World", self)._run(step, shards, None)
        yield  # what makes it a generator: there is nothing to wait for

    def overlaps(self, mesh: Mesh) -> bool:
        """Whether collectives on this mesh are begun early, if nobody needs them yet; alike on all its ranks."""
        world = cast("World", self)
        if world.algorithms or world.replicated != "own" or programs:
            return False
        return self._distant(mesh) if self.overlap is None else self.overlap

    def _distant(self, mesh: Mesh) -> bool:
        """Whether the ranks of a mesh are on several nodes, whose network works by itself."""
        return False

    def proceed(self) -> None:
        """Let MPI work on what was begun."""
