"""Primitives: an operator with a strategy, called on tensors, parameters or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.dialects.host import host, whole
from spmdsim.dialects.mindspore.layout import MindSporeLayout
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.sharding.cuts import check_cuts
from spmdsim.dialects.mindspore.sharding.errors import ShardError
from spmdsim.dialects.mindspore.sharding.interleaved import device_layout
from spmdsim.dialects.mindspore.sharding.operators import table
from spmdsim.dialects.mindspore.sharding.results import result_layout
from spmdsim.dialects.mindspore.sharding.strategies import configured, default_cuts
from spmdsim.dialects.mindspore.sharding.strategies import shard as derived
from spmdsim.dialects.session import alone, current_world
from spmdsim.errors import RuleError, UsageTypeError
from spmdsim.layout.cuts import strategy_from_cuts
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.operator import ShardedOp
from spmdsim.tensor.watch import watchers


@cache
def _results() -> dict[str, str]:
    """What an out_strategy may be, by our operators' names; a Gather's is chosen as a product's."""
    return {row.op.name: row.out_strategy for row in table().values()} | {"gather": "product"}


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
        """``repeated_num_in_dev_matrix_right_=False`` puts repeated calculation on the left; ``layout`` with
        ``{"dev_matrix": ..., "input_tensor_map": ...}`` is a strategy written in numbers.

        Raises:
            RuleError: another attribute.
        """
        if name == "layout":
            return self.shard(configured(value))
        if name != "repeated_num_in_dev_matrix_right_":
            raise RuleError(
                f"the attribute {name!r} has no effect here; repeated_num_in_dev_matrix_right_ is the nearest"
            )
        self._repeat = "right" if value else "left"
        if self._sharding is not None:
            self.shard(*self._strategies)
        return self

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Set the strategy: cuts or layouts per operand; returns the primitive itself.

        The micro-shards of a virtual axis (``interleaved_parallel``) are computed together, as one shard of the rank.

        Raises:
            TypeError: something else, or cuts and layouts mixed.
        """
        if in_strategy is not None:
            _check_written(in_strategy)
            given, wanted = _of_devices(in_strategy), _of_devices(out_strategy)
            self._sharding = self.op.shard(given, wanted, repeat=self._repeat)
        elif out_strategy is not None:
            raise ShardError("an out_strategy needs an in_strategy beside it")
        self._strategies = (in_strategy, out_strategy)
        return self

    def __call__(self, *operands: Any) -> Any:
        """Apply it. Arrays are the same whole array on every rank; each keeps only its piece.

        Raises:
            RuntimeError: (also a ValueError) a strategy that the operator, the shapes or the ranks do not fit.
        """
        given = typed(operands)
        bound = self.op.bind([shape_of(x) for x in given], self.params)
        self._fit([len(shape) for shape in bound.shapes])
        strategy = self._strategy(bound, current_world().size)
        self._check_result(bound, strategy)
        tensors = [place(x, layout) for x, layout in zip(given, bound.input_layouts(strategy))]
        applied = self._applied(strategy)
        if applied is None:
            return self.op(*tensors, **self.params)
        try:
            return applied(*tensors, **self.params)
        except RuleError as error:  # an out_strategy that the result cannot have
            raise ShardError(error.message, **error.facts) from None

    def as_derived(self, name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Apply it with the layouts of the strategy's derivation, which also says where the result lies.

        Args:
            name: MindSpore's name of the operator.
            operands: what it is applied to.
            attrs: MindSpore's attributes.

        Raises:
            RuntimeError: (also a ValueError) the strategy does not fit.
        """
        given = typed(operands)
        found = derived(
            name,
            [shape_of(x) for x in given],
            *self._strategies,
            devices=current_world().size,
            repeat="left" if self._repeat == "left" else None,
            attrs=attrs,
        )
        tensors = [place(x, layout) for x, layout in zip(given, found.inputs)]
        return self.op.shard(found.strategy, found.outputs[0])(*tensors, **self.params)

    def laid_out(self, *operands: Any) -> list[Tensor]:
        """The operands where the strategy wants them."""
        given = typed(operands)
        bound = self.op.bind([shape_of(x) for x in given], self.params)
        self._fit([len(shape) for shape in bound.shapes])
        layouts = bound.input_layouts(self._strategy(bound, current_world().size))
        return [place(x, layout).to(layout) for x, layout in zip(given, layouts)]

    def _fit(self, ndims: Sequence[int]) -> None:
        """Take layouts that were written as one tuple for the operands' numbers of dims."""
        given = None if self._sharding is None else self._sharding.in_strategy
        if given is None or not any(isinstance(entry, MindSporeLayout) for entry in given):
            return
        fitted = tuple(e.of(n) if isinstance(e, MindSporeLayout) else e for e, n in zip(given, ndims))
        if len(given) == len(ndims) and any(a is not b for a, b in zip(given, fitted)):
            self.shard(fitted, self._strategies[1])

    def _applied(self, strategy: Strategy) -> ShardedOp | None:
        """The operator as configured. A search for strategies must not take data parallel for configured."""
        if self._sharding is not None:
            return self._sharding
        return None if watchers else self.op.shard(strategy)

    def _check_result(self, bound: BoundRule, strategy: Strategy) -> None:
        """Refuse an out_strategy that the operator does not take, or cannot give."""
        wanted = None if self._sharding is None else self._sharding.out_strategy
        if wanted is not None:
            computed = bound.output_layouts(strategy)[0]
            kind = _results().get(self.name, "no")
            try:
                result_layout(kind, computed, bound.output_shapes[0], wanted)
            except RuleError as error:
                raise ShardError(f"{self.name}.shard: {error.message}") from None

    def _strategy(self, bound: BoundRule, ranks: int) -> Strategy:
        """The strategy meant, for these shapes on so many ranks."""
        if self._sharding is None:
            return data_parallel(bound, ranks)
        given = self._sharding.in_strategy
        if isinstance(given[0], Layout):
            _check_devices(given, ranks)
        else:
            try:
                check_cuts(given, bound.shapes, ranks)
            except RuleError as error:
                raise ShardError(f"{self.name}.shard({given}): {error.message}") from None
        try:
            return self._sharding.strategy(bound, ranks)
        except RuleError as error:
            raise ShardError(f"{self.name}.shard({given}): {error.message}{alone()}", **error.facts) from None

    def __repr__(self) -> str:
        return f"{self.name}{self._strategies[0] or ''}"


def shape_of(operand: Any) -> tuple[int, ...]:
    """Global shape of a tensor, a parameter, an array or a number."""
    return tuple(operand.shape if hasattr(operand, "shape") else np.shape(operand))


def _of_devices(strategy: Any) -> Any:
    """The strategy with layouts of devices instead of virtual ranks."""
    if isinstance(strategy, Layout):
        return device_layout(strategy)
    if isinstance(strategy, (tuple, list)) and any(isinstance(entry, Layout) for entry in strategy):
        return tuple(map(_of_devices, strategy))
    return strategy


def data_parallel(bound: BoundRule, ranks: int) -> Strategy:
    """Dim 0 of the first operand over all ranks, if it divides; else the same work everywhere."""
    try:
        cuts = default_cuts(bound, ranks)
    except RuleError:
        cuts = tuple((1,) * len(shape) for shape in bound.shapes)
    return strategy_from_cuts(bound, cuts, ranks)


def place(operand: Any, layout: Layout) -> Tensor:
    """An operand as a tensor: a parameter is filled in this layout, of an array each rank takes its piece."""
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.place(layout)
    world = current_world()
    return Tensor.from_global(whole(operand, world), layout, world)


def typed(operands: Sequence[Any]) -> list[Any]:
    """Python numbers take the element type of the operands beside them."""
    types = [x.dtype for x in operands if isinstance(x, (Tensor, Parameter, np.ndarray))]
    if not types:
        return [host(x) if isinstance(x, (list, tuple, float, int)) else x for x in operands]
    found = []
    for x in operands:
        if isinstance(x, (bool, int, float)):
            kind = np.float32 if isinstance(x, float) and types[0].kind in "biu" else types[0]
            x = np.asarray(x, kind)
        found.append(x)
    return found


def _check_written(given: Any) -> None:
    if not isinstance(given, (tuple, list)) or not given:
        raise UsageTypeError(f"a strategy is a tuple with cuts or a layout per operand, but got {given!r}")
    layouts = [isinstance(entry, Layout) for entry in given]
    if any(layouts) and not all(layouts):
        raise UsageTypeError(f"a strategy is written in cuts or in layouts, but this one mixes them: {given}")
    for entry in given:
        if not isinstance(entry, (Layout, tuple, list)):
            raise UsageTypeError(f"a strategy has cuts or a layout per operand, but {given} has {entry!r}")


def _check_devices(given: Sequence[Layout], ranks: int) -> None:
    for layout in given:
        mesh = layout.mesh
        if mesh.size != ranks:
            raise ShardError(
                f"the device matrix {mesh.shape} has {mesh.size} devices, but {ranks} ranks are running{alone()}"
            )
