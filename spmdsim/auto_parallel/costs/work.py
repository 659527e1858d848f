"""What an operator costs where it is: its local computation, and what it keeps for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.cost.machine import CostModel
from spmdsim.layout.blocks import largest_block
from spmdsim.rules import BoundRule, Strategy


def share(bound: BoundRule, strategy: Strategy) -> float:
    """The part of an operator's work that the busiest rank does.

    >>> from spmdsim.layout import Mesh
    >>> from spmdsim.rules import Rule, bind
    >>> matmul = bind(Rule.parse("m k, k n -> m n"), ((9, 8), (8, 8)))
    >>> share(matmul, Strategy.of(Mesh((2,), ("x",)), {"k": "x"}))
    0.5
    """
    part = 1.0
    for factor, _ in strategy.splits:
        size = bound.sizes[factor]
        part *= largest_block(size, strategy.parts(factor)) / size if size else 1.0
    return part


def local_bytes(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int]) -> list[float]:
    """Bytes of the busiest rank's pieces, operands first."""
    sizes = [*itemsizes, *[max(itemsizes, default=4)] * len(bound.outputs)]
    found = []
    for term, shape, itemsize in zip(
        (*bound.inputs, *bound.outputs), (*bound.shapes, *bound.output_shapes), sizes
    ):
        cut = math.prod(strategy.parts(f) for dim in term for f in dim)
        found.append(itemsize * math.prod(shape) / cut)
    return found


def forward_work(operator: Operator, strategy: Strategy, itemsizes: Sequence[int]) -> tuple[float, float]:
    """Flops and bytes touched by the busiest rank, forward."""
    bound = operator.bound
    nbytes = local_bytes(bound, strategy, itemsizes)
    if bound.rule.indexed:
        # A look-up touches the rows it finds, not the table.
        tables = [any(f in bound.rule.indexed for dim in term for f in dim) for term in bound.inputs]
        nbytes = [n for n, table in zip(nbytes, [*tables, False]) if not table] + nbytes[-1:]
        cut = math.prod(strategy.parts(f) for f in bound.sizes if f not in bound.rule.indexed)
        return operator.flops / cut, sum(nbytes)
    return operator.flops * share(bound, strategy), sum(nbytes)


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
    else together cost as much as its forward computation.
    """
    flops, nbytes = forward_work(operator, strategy, itemsizes)
    once = machine.compute_seconds(flops, nbytes)
    passes = sum(gradients) if operator.contraction else int(any(gradients))
    again = int(recompute and any(gradients))
    return once * (1 + passes + again)


def saves(graph: Graph, operator: Operator, value: Value, recompute: bool = False) -> bool:
    """Whether an operator keeps an operand until its backward pass.

    Operators that are linear in all operands jointly keep nothing; anything else keeps what it read. With
    recomputation only what enters a layer is kept.
    """
    if not graph.training or operator.linear or value.kind == "parameter":
        return False
    if not any(graph.brings_gradient(graph.values[i], operator.index) for i in operator.inputs):
        return False
    return not recompute or kept_when_recomputing(graph, value)


def kept_when_recomputing(graph: Graph, value: Value) -> bool:
    """Whether a tensor enters a layer from outside: what recomputation starts from."""
    made = graph.operators[value.producer].layer if value.producer is not None else None
    return any(graph.operators[reader].layer != made for reader, _ in graph.consumers[value.index])
