"""Operators that communicate inside their local function, which is a generator, and lookups of rows.

Most operators compute on shards; redistributions before or after do all communication. A scan or a sort needs data of
other ranks in between. Its local function yields the operand of the next step and receives the result. The operator
declares these steps in advance for given layouts. So every world runs the same steps, even without data, and traces
count them. A lookup in a table with split rows sends data that depend on ids: a step replaces its local function.
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
from spmdsim.redistribution.steps.row_steps import RowStep, build_row_step

#: A step in the middle of a local function, and the type of the elements it moves.
Phase = tuple[Step, np.dtype]
#: A running local function: it yields operands of steps, is sent their results, and returns its results.
LocalGenerator = Generator[Any, Any, Any]


@dataclass(frozen=True, repr=False)
class SteppedRule(BoundRule):
    """The rule of a stepped operator with sizes, parameters and operand types."""

    op: SteppedOp
    params: tuple[tuple[str, Any], ...]
    dtypes: tuple[np.dtype, ...]

    def steps(self, strategy: Strategy) -> tuple[Phase, ...]:
        """Return the steps that the operator declares for a strategy."""
        inputs = map(Meta.of, self.input_layouts(strategy), self.shapes, self.dtypes)
        return tuple(self.op.steps(self, strategy, tuple(inputs), **dict(self.params)))

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts of the results.

        Their only pending reductions are reductions of operands that the operator passes on.
        """
        passed = [(axis, reduction) for axis, _, reduction in strategy.passed]
        return tuple(layout.with_partial(passed) for layout in super().output_layouts(strategy))


class AdjointNode(OpNode):
    """The tape node of an operator whose gradients are operators on global tensors."""

    __slots__ = ()

    def gradients(self, dys: list[PlainTensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """Return the gradients of all operands, computed by the operator's ``adjoint``.

        The list has one entry per operand. The entry is None if the adjoint gives no gradient for the operand.

        Args:
            dys: the gradient of each result; None for a result without gradient. At least one is a tensor.
            wanted: for each operand, True if it requires a gradient. Not used: the caller drops gradients that are not
                required.
        """
        kind, op = next(type(dy) for dy in dys if dy is not None), self.recipe.op
        # Give operands different provenance numbers, so that ranks can tell apart the tensors that follow from them.
        operands = [
            kind(self.world, meta, shards, provenance_number=self.provenance_number ^ k)
            for k, (meta, shards) in enumerate(zip(self.recipe.inputs, self.values))
        ]
        results = [
            kind(self.world, meta, shards) for meta, shards in zip(self.recipe.outputs, self.saved or ())
        ]
        gradients: Sequence[Any] = op.adjoint(dys, operands, results, **self.params)  # type: ignore[attr-defined]
        return gradients


@dataclass(frozen=True, eq=False)
class SteppedOp(Op):
    """An operator with collectives inside its local function, a generator; its results are complete.

    Attributes:
        steps: ``(bound, strategy, inputs, **params) -> ((step, dtype), ...)`` returns its steps with their element
            types.
        adjoint: ``(dys, operands, results, **params) -> gradients`` computes gradients by operators on global
            tensors.
    """

    steps: Callable[..., Sequence[Phase]] = lambda *_, **__: ()
    adjoint: Callable[..., Sequence[Any]] | None = None

    node: ClassVar[type[OpNode]] = AdjointNode
    communicates: ClassVar[bool] = True

    def functions(self, dtypes: Sequence[np.dtype]) -> tuple[Local, Local | None]:
        """Return the local function for these types, and the adjoint, or None."""
        return super().functions(dtypes)[0], self.adjoint

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """Return the rule with its sizes, and with the steps that the operator declares.

        It is a :class:`SteppedRule`, or without ``dtypes`` the plain `BoundRule`.

        Args:
            shapes: the shapes of the operands.
            params: the parameters of the call by name.
            dtypes: the types of the operands; None: the steps are not known.

        Raises:
            RuleError: If shapes do not fit the rule.
        """
        bound = super().bind(shapes, params, dtypes)
        if dtypes is None:
            return bound
        fields_of_rule = (bound.rule, bound.shapes, bound.inputs, bound.outputs, bound.factor_sizes)
        return SteppedRule(*fields_of_rule, self, tuple(params.items()), tuple(dtypes))

    def prepared(self, bound: BoundRule, strategy: Strategy, params: Params) -> object:
        """Return the steps of a call, with the parameters that ``bound`` has; ``params`` is not used."""
        return bound.steps(strategy)

    def compute(
        self, recipe: Recipe, world: AbstractWorld, params: Params, *lists: list[Any]
    ) -> list[list[Any]]:
        """Run the local functions of all owned ranks, and the collectives between their steps.

        The local function of a rank is a generator: it yields an operand for each collective, is sent the collective's
        result, and finally returns the rank's results. All ranks of the mesh must call it. In a world without data the
        functions do not run: only the collectives do, and the results are empty arrays.

        Args:
            recipe: the facts of the call; ``recipe.prepared`` has the collectives and their element types.
            world: the world.
            params: the parameters of the call.
            lists: one list per operand, with the shard of each owned rank.

        Returns:
            One list per result, with the shard of each owned rank. Ranks outside of the mesh get empty arrays.
        """
        if not world.has_data:
            for step, dtype in recipe.prepared:
                _run_step(step, dtype, world, [None] * len(world.ranks))
            return [world.empties(meta) for meta in recipe.outputs]
        generators = [
            recipe.forward(*recipe.context_arguments(rank), *arrays, **params) if active else None
            for rank, active, *arrays in zip(world.ranks, recipe.active, *lists)
        ]
        yielded = [None if generator is None else _resume(generator, None) for generator in generators]
        for step, dtype in recipe.prepared:
            received = _run_step(step, dtype, world, yielded)
            yielded = [
                None if generator is None else _resume(generator, value)
                for generator, value in zip(generators, received)
            ]
        results = [
            recipe.empty_results() if end is None else recipe.cast_results(end.value) for end in yielded
        ]
        return [[*arrays] for arrays in zip(*results)]


def _run_step(step: Any, dtype: np.dtype, world: Any, yielded: Sequence[_Yielded | None]) -> list[Any]:
    """Run one collective on values that ranks yielded; return the result of each owned rank.

    All ranks of the mesh must call it. A rank without a value takes part with zeros. In a ragged step, whose parts may
    have any length, it takes part with nothing.

    Args:
        step: the step; ``step.ragged`` is True for lists of parts of any length.
        dtype: the element type; values are converted to it, except those of a ragged step.
        world: the world.
        yielded: the value of each owned rank, or None for ranks outside of the mesh.
    """
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
    """The value that a local function yielded or returned."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _resume(generator: LocalGenerator, received: Any) -> _Yielded:
    """Resume a local function with the result of a step; return the value it yields or returns."""
    try:
        return _Yielded(generator.send(received))
    except StopIteration as end:
        return _Yielded(end.value)


# -- lookups that exchange only the rows that other ranks own ---------------------------------------


@dataclass(frozen=True, repr=False)
class OwnedRows(ShardedOp):
    """A lookup that sends each rank the rows it needs, directly in the layout ``out_strategy``."""

    def substitute_op(self, bound: BoundRule, strategy: Strategy, params: dict[str, Any]) -> Op:
        """Return the operator that exchanges rows; the plain lookup if the table's rows are not split.

        Args:
            bound: the rule of the lookup with its sizes; its operands are the ids and the table.
            strategy: the axes that split the dimensions.
            params: the parameters of the call. Only ``padding`` is used: an id that has no row and gives zeros, or None.
        """
        table = bound.input_layouts(strategy)[1]
        if not table.dims[0]:
            return self.op
        shape, rows = bound.output_shapes[0], bound.shapes[1][0]
        computed = bound.output_layouts(strategy)[0]
        step = build_row_step(computed, table, self.out_strategy, shape, rows, params.get("padding"))
        return RowLookup(step=step, **{field.name: getattr(self.op, field.name) for field in fields(Op)})


class RowsNode(OpNode):
    """The tape node of looked-up rows: gradients return to the owners of the rows."""

    __slots__ = ()

    def gradients(self, dys: list[PlainTensor | None], wanted: Sequence[bool]) -> Sequence[Any]:
        """Return ``[None, gradient of the table]``; the ids have no gradient.

        Both are None if the result has no gradient. If every rank has the whole result, the gradient needs no step
        and is that of the plain operator. Otherwise all ranks of the mesh must call it; each row's gradients are
        added up on the row's owner.

        Args:
            dys: a list with the gradient of the result, or None.
            wanted: for each operand, True if it requires a gradient; used by the plain operator only.
        """
        recipe: Any = self.recipe
        step, dy = recipe.prepared.returning, dys[0]
        if step is None:
            return super().gradients(dys, wanted)
        if dy is None:
            return [None, None]
        parts = self.world.in_type(dy.stored_shards, accumulator("sum", dy.dtype))
        world: Any = dy.world
        gradient = world.run_rows(step, self.values[0], parts)
        return [None, world.in_type(gradient, self.recipe.gradients[1].storage_dtype)]


@dataclass(frozen=True, eq=False)
class RowLookup(Op):
    """An operator whose rows are looked up by a step that depends on ids."""

    step: RowStep | None = None

    node: ClassVar[type[OpNode]] = RowsNode
    communicates: ClassVar[bool] = True

    def output_layouts(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layout of the step's result; rule and strategy are not used."""
        return (self.prepared().dst,)

    def prepared(self, *facts: object) -> RowStep:
        """Return the step."""
        assert self.step is not None
        return self.step

    def duals(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layout in which the backward step starts, or that of the plain operator's gradient."""
        back = self.prepared().returning
        return (bound.output_layouts(strategy)[0].dual() if back is None else back.dst,)

    def compute(self, recipe: Recipe, world: Any, params: Params, *lists: list[Any]) -> list[list[Any]]:
        """Return the looked-up rows of every owned rank."""
        if programs := world.observers.programs:
            programs[-1].refuse(f"{self.name} exchanges rows that the ids decide about in every call")
        return [world.run_rows(self.prepared(), *lists)]
