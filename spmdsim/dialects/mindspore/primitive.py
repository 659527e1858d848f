"""Primitives: an operator with a strategy, called on tensors, parameters or arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.dialects.mindspore.cuts import check_cuts
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.strategies import default_cuts
from spmdsim.dialects.session import current_world
from spmdsim.errors import RuleError
from spmdsim.layout import Layout
from spmdsim.rules import BoundRule, Strategy, strategy_from_cuts
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.operator import ShardedOp


class Primitive:
    """A MindSpore primitive over one of our operators.

    Without ``.shard`` it is data parallel: dim 0 of the first operand is split over all ranks.
    """

    def __init__(self, op: Op, **params: Any) -> None:
        self.op = op
        self.params = params
        self.name = op.name
        self._sharding: ShardedOp | None = None
        self._repeat = "right"
        self._strategies: tuple[Any, Any] = (None, None)

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """``repeated_num_in_dev_matrix_right_=False`` puts repeated calculation on the left.

        Raises:
            RuleError: another attribute.
        """
        if name != "repeated_num_in_dev_matrix_right_":
            raise RuleError(
                f"the attribute {name!r} has no effect here; repeated_num_in_dev_matrix_right_ is the nearest"
            )
        self._repeat = "right" if value else "left"
        if self._sharding is not None:
            self.shard(*self._strategies)
        return self

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Set the strategy: cuts or layouts per operand; returns the primitive itself."""
        self._strategies = (in_strategy, out_strategy)
        if in_strategy is not None:
            self._sharding = self.op.shard(in_strategy, out_strategy, repeat=self._repeat)
        return self

    def __call__(self, *operands: Any) -> Any:
        """Apply it. Arrays are the same whole array on every rank; each keeps only its piece."""
        world = current_world()
        shapes = [tuple(np.shape(x) if not hasattr(x, "shape") else x.shape) for x in operands]
        bound = self.op.bind(shapes, self.params)
        sharding = self._checked(bound, world.size)
        strategy = sharding.strategy(bound, world.size)
        layouts = bound.input_layouts(strategy)
        tensors = [_place(x, layout) for x, layout in zip(operands, layouts)]
        return sharding(*tensors, **self.params)

    def _checked(self, bound: BoundRule, ranks: int) -> ShardedOp:
        if self._sharding is None:
            return self.op.shard(data_parallel(bound, ranks))
        given = self._sharding.in_strategy
        if isinstance(given, tuple) and given and not isinstance(given[0], Layout):
            check_cuts(given, bound.shapes, ranks)
        return self._sharding

    def __repr__(self) -> str:
        return f"{self.name}{self._strategies[0] or ''}"


def data_parallel(bound: BoundRule, ranks: int) -> Strategy:
    """Dim 0 of the first operand over all ranks, if it divides; else the same work everywhere."""
    try:
        cuts = default_cuts(bound, ranks)
    except RuleError:
        cuts = tuple((1,) * len(shape) for shape in bound.shapes)
    return strategy_from_cuts(bound, cuts, ranks)


def _place(operand: Any, layout: Layout) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.place(layout)
    array = np.asarray(operand)
    return Tensor.from_global(array, layout, current_world())
