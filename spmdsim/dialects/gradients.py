"""The layout a gradient is brought into on its way back: OneFlow's ``grad_sbp``, the first level of MindSpore's ``hsdp``."""

from __future__ import annotations

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
