"""Watchers of operator calls. A watcher sees every call and may change its strategy.

The strategy search records programs with a watcher, and runs them with the strategies it selects. Without watchers no
function is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spmdsim.worlds.trace.recorder import OBSERVERS

if TYPE_CHECKING:
    from spmdsim.arrays import Op, ShardedOp
    from spmdsim.arrays.values import ReadableTensor


#: The active watchers; only the last one is called.
watchers: list[Any] = OBSERVERS.watchers


class Watcher:
    """Base class of watchers; all methods do nothing and may be overridden."""

    def before(
        self, op: Op, tensors: Sequence[ReadableTensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """Return the operator and the strategy to run instead; called before an operator runs.

        Args:
            op: the operator of the call.
            tensors: its operands.
            params: its parameters.
            sharding: the strategy of the call, or None for the cheapest one.
        """
        return op, sharding

    def after(
        self,
        op: Op,
        tensors: Sequence[ReadableTensor],
        params: dict[str, Any],
        sharding: ShardedOp | None,
        results: Sequence[ReadableTensor],
    ) -> None:
        """Handle the results of a call; ``op`` and ``sharding`` are the arguments of the call."""

    def moved(self, tensor: ReadableTensor, result: ReadableTensor) -> None:
        """Handle a redistribution that the program requested by ``to``; ``result`` has the new layout."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[Watcher]:
    """Let a watcher see all operator calls inside the ``with`` block; it hides outer watchers.

    The block's value is the watcher itself. It stops to watch at the end of the block, also after an error.

    Args:
        watcher: the watcher.
    """
    watchers.append(watcher)
    try:
        yield watcher
    finally:
        watchers.remove(watcher)
