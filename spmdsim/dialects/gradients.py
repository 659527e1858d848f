"""Gradients as dialects speak of them: where there are none (``no_grad``), and which layout they are brought into.

The latter is OneFlow's ``grad_sbp`` and the first level of MindSpore's ``hsdp``.
"""

from __future__ import annotations

from contextlib import ContextDecorator

from spmdsim.core import Layout
from spmdsim.core.tape import MoveNode, Pending, settle
from spmdsim.tensor import Tensor


class GradientMove(MoveNode):
    """The identity whose gradient passes through a given layout."""

    __slots__ = ("layout",)

    def __init__(self, operand: Tensor, layout: Layout) -> None:
        super().__init__(operand)
        self.layout = layout

    def pull(self, gradients: list[Pending]) -> list[Pending]:
        """Add the gradients up in the layout asked for."""
        return [[settle(gradients[0], self.layout.reduced)]]


_untracked = [0]


class no_grad(ContextDecorator):
    """In the ``with`` block, or in the function that it decorates, nothing is remembered for ``backward()``."""

    def __enter__(self) -> None:
        _untracked[0] += 1

    def __exit__(self, *error: object) -> None:
        _untracked[0] -= 1


def tracking() -> bool:
    """Whether results remember how they were computed."""
    return not _untracked[0]
