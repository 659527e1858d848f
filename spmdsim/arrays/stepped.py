"""Operators that communicate on their way: generators that all owned ranks go through together, and lookups of rows.

Most operators compute on shards and leave what is missing to a redistribution before or after. A scan or a sort has to
hear from the other ranks on the way. Its local function yields what its rank gives to the next step and is sent what it
gets; which steps these are is said beforehand, by the operator's declaration, for the layouts at hand. So every world
runs the same steps, the one without data too, and a trace counts them like all others. Of a lookup in a table whose
rows are split, data decide what is sent: its step stands in the place of the local function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.cuts import ShardedOp
from spmdsim.core.notation.rules import Shape
from spmdsim.core.operator import Op
from spmdsim.core.recipe import Local, Recipe
from spmdsim.core.step import Step
from spmdsim.core.tape import OpNode
from spmdsim.core.tensor import Meta, PlainTensor
from spmdsim.core.world import AbstractWorld, Params
from spmdsim.layout.element_type import accumulator
from spmdsim.redistribution.steps.row_steps import RowStep, row_step

#: A step in the middle of a local function, and the type of the elements it moves.
Phase = tuple[Step, np.dtype]
#: A local function on its way: it yields what it gives, is sent what it gets, and returns its results.
Way = Generator[Any, Any, Any]


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


class AdjointNode(OpNode):
    """A call of an operator whose gradients are operators on global tensors."""

    __slots__ = ()

    def gradients(self, dys: list[PlainTensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """The operands' gradients, from those of the results."""
        kind, op = next(type(dy) for dy in dys if dy is not None), self.recipe.op
        pairs = enumerate(zip(self.recipe.inputs, self.values))
        operands = [kind(self.world, meta, held, origin=self.origin ^ k) for k, (meta, held) in pairs]
        results = [
            kind(self.world, meta, shards) for meta, shards in zip(self.recipe.outputs, self.saved or ())
        ]
        gradients: Sequence[Any] = op.adjoint(dys, operands, results, **self.params)  # type: ignore[attr-defined]
        return gradients


@dataclass(frozen=True, eq=False)
class SteppedOp(Op):
    """An operator with collectives in the middle of its local function, a generator; its results are complete.

    Attributes:
        steps: which they are, with their element types: ``(bound, strategy, inputs, **params) -> ((step, dtype), ...)``.
        adjoint: the gradient as operators on global tensors, ``(dys, operands, results, **params) -> gradients``.
    """

    steps: Callable[..., Sequence[Phase]] = lambda *_, **__: ()
    adjoint: Callable[..., Sequence[Any]] | None = None

    node: ClassVar[type[OpNode]] = AdjointNode
    communicates: ClassVar[bool] = True

    def functions(self, dtypes: Sequence[np.dtype]) -> tuple[Local, Local | None]:
        """The local function for these types; gradients are operators."""
        return super().functions(dtypes)[0], self.adjoint

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule for these shapes, and for these types if they are given: only then the steps are known."""
        bound = super().bind(shapes, params, dtypes)
        if dtypes is None:
            return bound
        facts = (bound.rule, bound.shapes, bound.inputs, bound.outputs, bound.factor_sizes)
        return SteppedRule(*facts, self, tuple(params.items()), tuple(dtypes))

    def prepared(self, bound: BoundRule, strategy: Strategy, params: Params) -> object:
        """The steps on the way."""
        return bound.steps(strategy)

    def compute(
        self, recipe: Recipe, world: AbstractWorld, params: Params, *lists: list[Any]
    ) -> list[list[Any]]:
        """Take the local functions of all owned ranks through the steps, and return the results' arrays."""
        if not world.has_data:
            for step, dtype in recipe.prepared:
                _run_step(step, dtype, world, [None] * len(world.ranks))
            return [world.empties(meta) for meta in recipe.outputs]
        begun = [
            recipe.forward(*recipe.context_arguments(rank), *arrays, **params) if active else None
            for rank, active, *arrays in zip(world.ranks, recipe.active, *lists)
        ]
        yielded = [None if way is None else _advance(way, None) for way in begun]
        for step, dtype in recipe.prepared:
            taken = _run_step(step, dtype, world, yielded)
            yielded = [None if way is None else _advance(way, part) for way, part in zip(begun, taken)]
        results = [
            recipe.empty_results() if end is None else recipe.cast_results(end.value) for end in yielded
        ]
        return [[*arrays] for arrays in zip(*results)]


def _run_step(step: Any, dtype: np.dtype, world: Any, yielded: Sequence[_Yielded | None]) -> list[Any]:
    """One step on what the functions gave: arrays, or, for parts of any length, lists of them (``step.ragged``)."""
    if getattr(step, "ragged", False):
        parts: list[Any] = world.run_parts(step, dtype, [value and value.value for value in yielded])
        return parts
    shapes = [step.src.local_shape(step.shape, rank) for rank in world.ranks]
    make = world.empty if not world.has_data else np.zeros
    arrays = [
        make(shape, dtype) if end is None else np.asarray(end.value, dtype, order="C")
        for shape, end in zip(shapes, yielded)
    ]
    results: list[Any] = world.run(step, arrays)
    return results


class _Yielded:
    """What a function gave to a step, or returned."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _advance(way: Way, taken: Any) -> _Yielded:
    try:
        return _Yielded(way.send(taken))
    except StopIteration as end:
        return _Yielded(end.value)


# -- lookups that exchange only the rows that others hold ------------------------------------------


@dataclass(frozen=True, repr=False)
class OwnedRows(ShardedOp):
    """A lookup that exchanges only the rows that others hold, straight into the layout that ``out_strategy`` is."""

    def substitute_op(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Op:
        """The lookup; the operator itself where every rank has the whole table."""
        table = bound.input_layouts(strategy)[1]
        if not table.dims[0]:
            return self.op
        shape, rows = bound.output_shapes[0], bound.shapes[1][0]
        computed = bound.output_layouts(strategy)[0]
        step = row_step(computed, table, self.out_strategy, shape, rows, params.get("padding"))
        return RowLookup(step=step, **{field.name: getattr(self.op, field.name) for field in fields(Op)})


class RowsNode(OpNode):
    """Gradients of looked-up rows, which go back to the ranks that hold the rows."""

    __slots__ = ()

    def gradients(self, dys: list[PlainTensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """The table's gradient; the ordinary one where the lookup's result is whole."""
        recipe: Any = self.recipe
        step, dy = recipe.prepared.returning, dys[0]
        if step is None:
            return super().gradients(dys, wanted)
        if dy is None:
            return [None, None]
        parts = self.world.in_type(dy.held, accumulator("sum", dy.dtype))
        world: Any = dy.world
        gradient = world.run_rows(step, self.values[0], parts)
        return [None, world.in_type(gradient, self.recipe.gradients[1].held)]


@dataclass(frozen=True, eq=False)
class RowLookup(Op):
    """The operator whose rows are looked up by a step that ids decide about."""

    step: RowStep | None = None

    node: ClassVar[type[OpNode]] = RowsNode
    communicates: ClassVar[bool] = True

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """That of the step."""
        return (self.prepared().dst,)

    def prepared(self, *facts: object) -> RowStep:
        """The step."""
        assert self.step is not None
        return self.step

    def duals(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Where the step back begins, or those of the ordinary gradient."""
        back = self.prepared().returning
        return (bound.output_layouts(strategy)[0].dual() if back is None else back.dst,)

    def compute(self, recipe: Recipe, world: Any, params: Params, *lists: list[Any]) -> list[list[Any]]:
        """Return the looked-up rows of every owned rank."""
        if programs := world.observers.programs:
            programs[-1].refuse(f"{self.name} exchanges rows that the ids decide about in every call")
        return [world.run_rows(self.prepared(), *lists)]
