"""A world whose collectives can be looked at and changed from outside: what a rank gives to each, and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.core.step import Step
from spmdsim.redistribution.group_steps import Parts, PartsStep
from spmdsim.redistribution.sparse_lookup import RowStep
from spmdsim.worlds.base import V, World
from spmdsim.worlds.local_steps import Arrived

#: Given ``"before"`` or ``"after"``, the step and one array per owned rank, the arrays to go on with.
Hook = Callable[[str, Step, list[Any]], list[Any]]


class Intercepted(World):
    """Another world, each of whose steps passes its arrays through a function before it runs and after.

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
        self._machine, self.cache, self.variant = inner.machine, inner.cache, (hook,)

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
        """Wait until all ranks are here."""
        self.inner.barrier()

    def gather_objects(self, values: Sequence[V], what: str = "gather_objects") -> list[V]:
        """All ranks' values on every process."""
        return self.inner.gather_objects(values, what)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """An uninitialised array of the other world."""
        return self.inner.empty(shape, dtype)
