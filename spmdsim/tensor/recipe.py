"""The recipe: everything about an operator call that follows from its operands' metas. Pure, cached.

``bind the rule -> choose the strategy -> wanted layouts -> a plan per operand -> result layouts``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

from spmdsim.core import BoundRule, Layout, Strategy, elements
from spmdsim.errors import RuleError
from spmdsim.redistribution import plan
from spmdsim.redistribution.choose import choose
from spmdsim.redistribution.planner import Plan
from spmdsim.redistribution.sparse_lookup import RowStep, row_step
from spmdsim.tensor.meta import Meta
from spmdsim.tensor.operator import Context, Op, OwnedRows, ShardedOp
from spmdsim.tensor.tensor import ORIGINS

if TYPE_CHECKING:
    from spmdsim.tensor.tensor import Tensor
    from spmdsim.worlds.base import World


@dataclass
class Recipe:
    """What to do when an operator meets operands with these metas in this world.

    Attributes:
        op: the operator.
        bound: its rule with sizes.
        strategy: the chosen strategy.
        plans: per operand the redistribution it needs, or None.
        inputs: metas of the operands as the local function sees them.
        outputs: metas of the results as the local function leaves them, pending reductions included.
        finals: the redistribution of each result that the operator itself does, or None.
        rows: the step that looks the rows up in place of the local function, if only owned rows are exchanged.
        active: per owned rank whether it takes part (is in the mesh).
        plain: no redistribution, no context, every owned rank active: the fast path.
        forward: the local function.
        vjp: the local gradient function, if the operator has a gradient.
    """

    op: Op
    bound: BoundRule
    strategy: Strategy
    plans: tuple[Plan | None, ...]
    inputs: tuple[Meta, ...]
    outputs: tuple[Meta, ...]
    finals: tuple[Plan | None, ...]
    active: tuple[bool, ...]
    plain: bool
    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None
    rows: RowStep | None = None
    _contexts: dict[int, Context] = field(default_factory=dict)

    def context(self, rank: int) -> Context:
        """What a contextual local function may ask about a rank's shards."""
        found = self._contexts.get(rank)
        if found is None:
            found = self._contexts[rank] = Context(self.bound, self.strategy, rank)
        return found

    @cached_property
    def number(self) -> int:
        """A number that stands for the operator, the same on all ranks."""
        return crc32(self.op.name.encode())

    def origin(self, tensors: Sequence[Tensor], what: int = 0) -> int:
        """Where the values of a result come from: the operator applied to these tensors."""
        return hash((self.number, what, *[tensor.origin for tensor in tensors])) & ORIGINS

    @cached_property
    def computed(self) -> tuple[Meta, ...]:
        """Metas of the results before what the operator itself does with them in the end."""
        return self.outputs if self.rows is None else (self.outputs[0].with_layout(self.rows.dst),)

    @cached_property
    def returned(self) -> RowStep | None:
        """The step that takes gradients back to the owners of rows, in place of the local gradient function."""
        return None if self.rows is None else self.rows.returning

    @cached_property
    def gradients(self) -> tuple[Meta, ...]:
        """Metas of the operands' gradients as the local gradient function leaves them."""
        return tuple(
            meta.with_layout(self.bound.gradient_layout(self.strategy, operand))
            for operand, meta in enumerate(self.inputs)
        )

    @cached_property
    def duals(self) -> tuple[Layout, ...]:
        """Layouts in which the local gradient function takes the results' gradients."""
        if self.returned is not None:
            return (self.returned.dst,)
        return tuple(meta.layout.dual() for meta in self.outputs)


def make_recipe(
    op: Op, sharding: ShardedOp | None, metas: Sequence[Meta], params: dict[str, Any], world: World
) -> Recipe:
    """Derive the recipe of an operator call.

    Raises:
        RuleError: operands, parameters or strategy that do not fit the operator.
    """
    dtypes = [meta.dtype for meta in metas]
    bound = op.bind([meta.shape for meta in metas], params, dtypes)
    strategy = _strategy(op, sharding, bound, metas, world)
    wanted = bound.input_layouts(strategy)
    plans = tuple(_conversion(meta, layout, world) for meta, layout in zip(metas, wanted))
    dtype = op.result_dtype(dtypes, params)
    outputs = tuple(
        Meta.of(layout, shape, dtype)
        for layout, shape in zip(bound.output_layouts(strategy), bound.output_shapes)
    )
    rows = _rows(sharding, bound, wanted, outputs, params)
    landed = outputs if rows is None else (outputs[0].with_layout(rows.dst),)
    finals = tuple(_final(op, sharding, strategy, meta, world) for meta in landed)
    active = tuple(rank in strategy.mesh for rank in world.ranks)
    inputs = tuple(meta.with_layout(layout) for meta, layout in zip(metas, wanted))
    moves = any(p is not None for p in (*plans, *finals))
    plain = not moves and not op.contextual and all(active) and len(outputs) == 1
    kinds = tuple(meta.dtype for meta in (*inputs, *outputs))
    forward = op.forward if op.moves else elements.types.local(op.forward, kinds)
    vjp = None if op.vjp is None else elements.types.local(op.vjp, kinds)
    return Recipe(op, bound, strategy, plans, inputs, outputs, finals, active, plain, forward, vjp, rows)


def _strategy(
    op: Op, sharding: ShardedOp | None, bound: BoundRule, metas: Sequence[Meta], world: World
) -> Strategy:
    layouts = [meta.layout for meta in metas]
    if sharding is not None:
        strategy = sharding.strategy(bound, world.size, layouts[0].mesh if layouts else None)
        world.check_mesh(strategy.mesh)
        return strategy
    try:
        return bound.infer(layouts)
    except RuleError:
        return choose(bound, layouts, [meta.held for meta in metas], world.machine)


def _rows(
    sharding: ShardedOp | None,
    bound: BoundRule,
    wanted: Sequence[Layout],
    outputs: Sequence[Meta],
    params: dict[str, Any],
) -> RowStep | None:
    out = None if sharding is None else sharding.out_strategy
    if not isinstance(out, OwnedRows) or not wanted[1].dims[0]:
        return None
    result, padding = outputs[0], params.get("padding")
    return row_step(result.layout, wanted[1], out.layout, result.shape, bound.shapes[1][0], padding)


def _conversion(meta: Meta, layout: Layout, world: World) -> Plan | None:
    if layout is meta.layout or layout == meta.layout or layout.canonical == meta.layout.canonical:
        return None
    world.check_mesh(meta.layout.mesh)
    return plan(meta.layout, layout, meta.shape, meta.dtype, world.machine)


def _final(op: Op, sharding: ShardedOp | None, strategy: Strategy, meta: Meta, world: World) -> Plan | None:
    target = meta.layout
    if sharding is not None:
        target = result_layout(sharding.out_strategy, meta.layout, meta.shape)
    elif op.finish:
        target = meta.layout.reduced
    return _conversion(meta, target, world)


def result_layout(out: Any, computed: Layout, shape: Sequence[int]) -> Layout:
    """The layout of a result with a given out_strategy; without one, pending reductions are done."""
    if out is None:
        return computed.reduced
    if isinstance(out, OwnedRows):
        return out.layout
    if isinstance(out, tuple) and len(out) == 1 and isinstance(out[0], (tuple, Layout)):
        out = out[0]
    if isinstance(out, Layout):
        return out
    return layout_from_cuts(out, computed, shape)


def layout_from_cuts(cuts: Sequence[int], computed: Layout, shape: Sequence[int]) -> Layout:
    """The layout in which each dim is cut into so many pieces, by the axes the result has or still reduces.

    A dim that is cut more finely than it was computed takes the pending axes as minor ones: the all_reduce
    becomes a reduce_scatter (MindSpore's out_strategy of MatMul and Gather).

    Raises:
        RuleError: the cuts cannot be made of these axes.
    """
    if len(cuts) != len(shape):
        raise RuleError(f"the result has {len(shape)} dims, but its out_strategy is {tuple(cuts)}")
    pending = list(computed.partial_axes)
    dims: list[tuple[str, ...]] = []
    for cut, entry, parts in zip(cuts, computed.dims, computed.parts):
        axes = entry
        while parts < cut and pending:
            axes = (*axes, pending.pop(0))
            parts = computed.mesh.axis_size(*axes)
        if parts != cut:
            raise RuleError(
                f"out_strategy {tuple(cuts)} does not follow from the computed layout {computed}: a dim is cut "
                f"into {computed.parts}, and only pending axes {list(computed.partial_axes)} may cut it further"
            )
        dims.append(axes)
    return Layout(computed.mesh, dims)
