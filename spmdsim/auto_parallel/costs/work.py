"""What an operator costs where it is: its local computation, and what it keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.core import BoundRule, Strategy
from spmdsim.core.meta import Meta
from spmdsim.core.step import Step
from spmdsim.cost.machine import CostModel
from spmdsim.cost.roofline import forward_work, gradient_work
from spmdsim.layout.element_type import element_type
from spmdsim.tensor import Tensor
from spmdsim.tensor.calls import looks_at
from spmdsim.tensor.stepped import SteppedRule
from spmdsim.trace import record
from spmdsim.worlds import ShapeOnly

if TYPE_CHECKING:
    import numpy as np


def work_seconds(
    operator: Operator,
    strategy: Strategy,
    itemsizes: Sequence[int],
    gradients: Sequence[bool],
    machine: CostModel,
    recompute: bool = False,
) -> float:
    """Modelled time of an operator on the busiest rank, forward and backward.

    The gradient of one operand of a contraction costs as much as the contraction; the gradients of anything
    else together cost as often as much as its forward computation as its rule says.
    """
    bound = operator.bound
    forward = forward_work(bound, strategy, itemsizes).seconds(machine)
    if not any(gradients):
        return forward
    passes = sum(gradients) if bound.contraction else 1
    backward = gradient_work(bound, strategy, itemsizes).seconds(machine)
    return forward * (1 + recompute) + backward * passes


class InnerStep(NamedTuple):
    """A collective in the middle of an operator, and which operator runs it: for gradients another one may."""

    step: Step
    dtype: np.dtype
    operator: str | None = None

    def nbytes(self, rank: int) -> int:
        """Bytes that a rank receives, expected ones where data decide."""
        return self.step.nbytes(rank, self.dtype.itemsize)


@lru_cache(maxsize=1024)
def _inner_steps(bound: BoundRule, strategy: Strategy, backward: bool = False) -> tuple[InnerStep, ...]:
    """The collectives in the middle of an operator's local function, or of its gradients: those are run on shapes."""
    if not isinstance(bound, SteppedRule) or not backward:
        return tuple(InnerStep(*one) for one in bound.steps(strategy) or ())
    op, params = bound.op, dict(bound.params)
    world = ShapeOnly(1 + max(strategy.mesh.rank_list))
    kinds = op.result_dtype(bound.dtypes, params)
    layouts, shapes = bound.output_layouts(strategy), bound.output_shapes

    def tensors(*facts: Sequence[Any]) -> list[Tensor]:
        return [Tensor(world, meta, world.empties(meta)) for meta in map(Meta.of, *facts)]

    operands = tensors(bound.input_layouts(strategy), bound.shapes, bound.dtypes)
    results = tensors(layouts, shapes, kinds if isinstance(kinds, tuple) else (kinds,) * len(shapes))
    dys = tensors([layout.dual() for layout in layouts], shapes, [one.dtype for one in results])
    given = [dy if dy.dtype.kind in "fcV" else None for dy in dys]
    if op.adjoint is None or not any(dy is not None for dy in given):
        return ()
    with record() as trace:
        op.adjoint(given, operands, results, **params)
    return tuple(InnerStep(one.step, element_type(one.dtype), one.operator) for one in trace.collectives)


def inner_steps(
    operator: Operator, strategy: Strategy, gradients: Sequence[bool], recompute: bool = False
) -> list[InnerStep]:
    """The collectives in the middle of an operator in one step of training, with who runs them."""
    forward = _inner_steps(operator.bound, strategy)
    backward = _inner_steps(operator.bound, strategy, True) if any(gradients) else ()
    named = [one._replace(operator=operator.name) for one in forward]
    return [*named * (1 + (recompute and any(gradients))), *backward]


def saves(graph: Graph, operator: Operator, value: Value, recompute: bool = False) -> bool:
    """Whether an operator keeps an operand, as it reads it, until its backward pass: one that gradients look at.

    With recomputation only what enters a layer is kept, and no parameter's copy.
    """
    gradients = [graph.brings_gradient(graph.values[i], operator.index) for i in operator.inputs]
    looks = looks_at(operator.bound.rule, gradients)
    if not any(look for i, look in zip(operator.inputs, looks) if i == value.index):
        return False
    return not recompute or (value.kind != "parameter" and kept_when_recomputing(graph, value))


def kept_when_recomputing(graph: Graph, value: Value) -> bool:
    """Whether a tensor enters a layer from outside: what recomputation starts from."""
    producer_layer = graph.operators[value.producer].layer if value.producer is not None else None
    return any(graph.operators[reader].layer != producer_layer for reader, _ in graph.consumers[value.index])
