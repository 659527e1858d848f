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


_tracks = [True]


class set_grad_enabled(ContextDecorator):
    """From here on, or in the ``with`` block, results remember how they were computed, or do not."""

    def __init__(self, mode: bool) -> None:
        self._before = _tracks[0]
        _tracks[0] = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _tracks[0] = self._before


class no_grad(ContextDecorator):
    """In the ``with`` block, or in the function that it decorates, nothing is remembered for ``backward()``."""

    mode = False

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_tracks[0])
        _tracks[0] = self.mode

    def __exit__(self, *error: object) -> None:
        _tracks[0] = self._before.pop()


class enable_grad(no_grad):
    """The opposite of :class:`no_grad`, inside of one."""

    mode = True


def tracking() -> bool:
    """Whether results remember how they were computed."""
    return _tracks[0]
