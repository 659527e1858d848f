"""Operators whose result's dims read windows of an operand's: declared by a rule, and by which window each dim reads.

In the rule the dim of the operand has the name of the result's: it is split alike, and brought in windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.operator import Context, Op
from spmdsim.errors import context
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.worlds.pool import empty, with_margins

Shape = tuple[int, ...]
#: Per operand that is read in windows, the window of each of its dims, or None.
Windows = Mapping[int, Sequence[Window | None]]
#: Per dim how many elements stand before a block, and after it.
Margins = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WindowBound(BoundRule):
    """A rule with sizes, of which operands are brought in windows."""

    windows: tuple[tuple[int, tuple[Window | None, ...]], ...] = ()

    def input_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """The layout every operand must have, windows included."""
        return tuple(self._with(one, i) for i, one in enumerate(super().input_layouts(strategy)))

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """The layout in which a gradient comes: contributions to what the windows read."""
        return self._with(super().gradient_layout(strategy, operand), operand)

    def _with(self, layout: Layout, operand: int) -> Layout:
        windows = dict(self.windows).get(operand)
        return Windowed(layout, windows) if windows else layout


@dataclass(frozen=True, eq=False)
class WindowOp(Op):
    """An operator that reads windows.

    Attributes:
        windows: ``(*shapes, **params)`` gives the windows.
    """

    windows: Callable[..., Windows] | None = None

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule for these shapes: a dim that is read in windows is as long as there are windows.

        Raises:
            RuleError: the operands do not fit the rule.
        """
        assert self.windows is not None
        with context(operator=self.name):
            by_operand = self.windows(*shapes, **params)
        read = [
            tuple(
                n if w is None else w.size for n, w in zip(shape, by_operand.get(i) or (None,) * len(shape))
            )
            for i, shape in enumerate(shapes)
        ]
        bound = super().bind(read, params, dtypes)
        windows = tuple((i, tuple(each)) for i, each in sorted(by_operand.items()) if any(each))
        given = tuple(tuple(shape) for shape in shapes)
        return WindowBound(bound.rule, given, bound.inputs, bound.outputs, bound.factor_sizes, windows)


def in_blocks(bound: BoundRule) -> BoundRule:
    """The same rule for who reads no windows: dims that would be read in windows must not be split."""
    if not isinstance(bound, WindowBound):
        return bound
    read = {
        f
        for i, each in bound.windows
        for term, w in zip(bound.inputs[i], each)
        if w is not None
        for f in term
    }
    rule = replace(bound.rule, whole=bound.rule.whole | read)
    return BoundRule(rule, bound.shapes, bound.inputs, bound.outputs, bound.factor_sizes)


def surrounded(block: np.ndarray, beyond: Margins, values: Sequence[float | complex]) -> np.ndarray:
    """A block with numbers around it, a number per dim, those of later dims in the corners: one copy for all dims.

    No copy where the block lies in memory that was left around it for that.
    """
    if not any(map(any, beyond)):
        return block
    wide = with_margins(block, beyond)
    if wide is None:
        wide = empty(tuple([a + n + b for n, (a, b) in zip(block.shape, beyond)]), block.dtype)
        wide[tuple([slice(a, a + n) for n, (a, _) in zip(block.shape, beyond)])] = block
    before: tuple[slice, ...] = ()
    for n, (a, b), value in zip(block.shape, beyond, values):
        if a:
            wide[(*before, slice(a))] = value
        if b:
            wide[(*before, slice(a + n, None))] = value
        before = (*before, slice(None))
    return wide


@lru_cache(maxsize=4096)
def margins(context: Context, operand: int = 0) -> Margins:
    """Per dim how many elements a rank's windows reach before the first element, and beyond the last."""
    bound = context.bound
    assert isinstance(bound, WindowBound)
    windows = dict(bound.windows).get(operand) or (None,) * len(bound.inputs[operand])
    return tuple(
        (0, 0) if window is None else window.beyond(*context.bounds(factor), n)
        for (factor,), n, window in zip(bound.inputs[operand], bound.shapes[operand], windows)
    )
