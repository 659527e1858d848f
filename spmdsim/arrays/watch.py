"""Watching operator calls: who watches sees every call, and may say with which strategy it runs.

The strategy search records programs this way, and runs them with what it found. Nothing is asked while nobody watches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spmdsim.worlds.trace.recorder import OBSERVERS

if TYPE_CHECKING:
    from spmdsim.arrays import Op, ShardedOp
    from spmdsim.arrays.program_tensor import Tensor


#: See operator calls, and may change with which strategy they run; the last one counts.
watchers: list[Any] = OBSERVERS.watchers


class Watcher:
    """Base of watchers; both methods may be overridden."""

    def before(
        self, op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """Called before an operator runs; gives the operator and strategy to run instead."""
        return op, sharding

    def after(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        params: dict[str, Any],
        sharding: ShardedOp | None,
        results: Sequence[Tensor],
    ) -> None:
        """Called when its results are there; ``op`` and ``sharding`` are those of the call."""

    def moved(self, tensor: Tensor, result: Tensor) -> None:
        """Called when a program's own ``to`` has given a tensor another layout."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[Watcher]:
    """Let ``watcher`` see all operator calls inside the ``with`` block; an inner watcher hides an outer one."""
    watchers.append(watcher)
    try:
        yield watcher
    finally:
        watchers.remove(watcher)
