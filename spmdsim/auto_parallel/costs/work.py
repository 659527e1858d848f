"""What an operator costs where it is: its local computation, and what it keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.core import Strategy
from spmdsim.cost.machine import CostModel
from spmdsim.cost.roofline import forward_work, gradient_work


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
    producer_layer = graph.operators[value.producer].layer if value.producer is not None else None
    return any(graph.operators[reader].layer != producer_layer for reader, _ in graph.consumers[value.index])
