"""Parameters that are kept in smaller pieces than their operators want (``hsdp``): how they come together, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdsim.core import Layout
from spmdsim.dialects.gradients import GradientMove
from spmdsim.dialects.mindspore.runtime import Counted, held
from spmdsim.tensor import Tensor


class Again(Sequence[Any]):
    """A rank's pieces of what was gathered for an operator: dropped when that has run, gathered again for the gradients.

    Args:
        source: the smaller pieces.
        gathered: what was gathered from them.
    """

    def __init__(self, source: Tensor, gathered: Tensor) -> None:
        self._source, self._layout = source, gathered.layout
        self._pieces: Sequence[Any] | None = gathered.held

    def __len__(self) -> int:
        return len(self._source.held)

    def __getitem__(self, index: Any) -> Any:
        if self._pieces is None:
            self._pieces = self._source.to(self._layout).held
        return self._pieces[index]

    def drop(self) -> None:
        """Until somebody looks at them again."""
        self._pieces = None


def gathered(value: Tensor, layout: Layout, level: int) -> Tensor:
    """A parameter's value where its operator wants it.

    Args:
        value: where it is kept.
        layout: where it is wanted.
        level: 1: its gradient is brought together as a whole, on its way back; 2: in pieces; 3: besides, what was
            gathered is not kept for the backward pass.
    """
    moved = held(value.to(layout))
    if level == 1 and moved.requires_grad:
        whole = Counted(moved.world, moved.meta, moved.held, True, moved.name, moved.origin)
        whole.node = GradientMove(moved, layout)
        return whole
    if level == 3:
        moved.held = Again(value.detach(), moved)  # type: ignore[assignment]
    return moved


def finished(operands: Sequence[Tensor], results: Any) -> Any:
    """The results of an operator, counted; what was gathered for it alone is dropped."""
    for operand in operands:
        if isinstance(operand.held, Again):
            operand.held.drop()
    return tuple(map(held, results)) if isinstance(results, tuple) else held(results)
