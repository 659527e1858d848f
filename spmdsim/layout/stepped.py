"""Operators with collectives in the middle of their local functions: which those are, for whoever runs or prices them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.bound import Shape
from spmdsim.core.meta import Meta
from spmdsim.core.operator import Op
from spmdsim.core.phases import Phase


@dataclass(frozen=True, repr=False)
class SteppedRule(BoundRule):
    """The rule of such an operator with sizes, for operands of these types."""

    op: SteppedOp
    params: tuple[tuple[str, Any], ...]
    dtypes: tuple[np.dtype, ...]

    def steps(self, strategy: Strategy) -> tuple[Phase, ...]:
        """As the operator declares them."""
        inputs = map(Meta.of, self.input_layouts(strategy), self.shapes, self.dtypes)
        return tuple(self.op.steps(self, strategy, tuple(inputs), **dict(self.params)))

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Its own reductions are done on the way."""
        passed = [(axis, reduction) for axis, _, reduction in strategy.passed]
        return tuple(layout.with_partial(passed) for layout in super().output_layouts(strategy))


@dataclass(frozen=True, eq=False)
class SteppedOp(Op):
    """An operator with collectives in the middle of its local function; its results are complete.

    The local function is a generator: it yields what its rank gives to each step and is sent what it gets; see
    :mod:`spmdsim.core.phases`.

    Attributes:
        steps: which they are, in order, each with its element type:
            ``(bound, strategy, inputs, **params) -> ((step, dtype), ...)``.
    """

    steps: Callable[..., Sequence[Phase]] = lambda *_, **__: ()

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule for these shapes, and for these types if they are given: only then the steps are known."""
        bound = super().bind(shapes, params, dtypes)
        if dtypes is None:
            return bound
        facts = (bound.rule, bound.shapes, bound.inputs, bound.outputs, bound.factor_sizes)
        return SteppedRule(*facts, self, tuple(params.items()), tuple(dtypes))
