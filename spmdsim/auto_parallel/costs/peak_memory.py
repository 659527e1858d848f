"""Peak memory of one rank: what is alive when, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.pictured import Pictured
from spmdsim.redistribution.price import largest
from spmdsim.tensor.operator_calls import looks_at


@dataclass(frozen=True)
class Memory(Pictured):
    """Bytes of the busiest rank.

    Attributes:
        activations: what the forward pass keeps for the backward pass, when all of it is kept.
        transient: what is alive besides at the peak.
        where: the operator during which the peak is reached; "" for a program without operators.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    where: str

    @property
    def peak(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.transient


def saves(graph: Graph, operator: Operator, value: Value, recompute: bool = False) -> bool:
    """Whether an operator keeps an operand, as it reads it, until its backward pass: one that gradients look at.

    With recomputation only what enters a layer is kept, and no parameter's copy.
    """
    gradients = [graph.brings_gradient(graph.values[i], operator.index) for i in operator.inputs]
    looks = looks_at(operator.bound.rule, gradients, ())
    if not any(look for i, look in zip(operator.inputs, looks) if i == value.index):
        return False
    return not recompute or (value.kind != "parameter" and kept_when_recomputing(graph, value))


def kept_when_recomputing(graph: Graph, value: Value) -> bool:
    """Whether a tensor enters a layer from outside: what recomputation starts from."""
    producer_layer = graph.operators[value.producer].layer if value.producer is not None else None
    return any(graph.operators[reader].layer != producer_layer for reader, _ in graph.consumers[value.index])


def peak_memory(choice: StrategyChoice, settings: Settings) -> Memory:
    """The peak over one step.

    Parameters, gradients and optimiser state live throughout. Forward, a result lives until its last reader is
    done, and as long as the backward pass if somebody keeps it; a redistributed copy belongs to its reader.
    Backward, operators release what they kept, and hold the gradients of their operands and results.
    """
    graph = choice.graph
    weights = sum(held_bytes(choice, value.index) for value in graph.parameters)
    states = (
        held_bytes(choice, v.index) * settings.state_bytes(v.itemsize) / v.itemsize for v in graph.parameters
    )
    optimizer = int(sum(states)) if graph.training else 0
    kept = _kept(choice, settings)
    peak, where = _forward_peak(choice, kept)
    total = sum(kept.values())
    if graph.training:
        backward, there = _backward_peak(choice, kept)
        if backward > peak:
            peak, where = backward, there
    gradients = weights if graph.training else 0
    return Memory(weights, gradients, optimizer, total, max(0, peak - total), where)


#: What is kept: a tensor as it is handed on (reader None), or a reader's redistributed copy of it.
Kept = dict[tuple[int, int | None], int]


def held_bytes(choice: StrategyChoice, value: int) -> int:
    """Bytes of the largest piece of a tensor as it is kept."""
    tensor = choice.graph.values[value]
    return tensor.itemsize * largest(choice.layouts[value], tensor.shape)


def _kept(choice: StrategyChoice, settings: Settings) -> Kept:
    graph, kept = choice.graph, {}
    for operator in graph.operators:
        wanted = operator.bound.input_layouts(choice.strategies[operator.index])
        for operand, layout in zip(operator.inputs, wanted):
            value = graph.values[operand]
            same = layout.canonical == choice.layouts[operand].canonical
            lives_anyway = same and value.kind == "parameter"
            if not lives_anyway and saves(graph, operator, value, settings.recompute):
                key = (operand, None if same else operator.index)
                kept[key] = value.itemsize * largest(layout, value.shape)
    return kept


def _working_set(choice: StrategyChoice, operator: Operator) -> int:
    """Redistributed operands and results as computed: alive while the operator runs."""
    strategy, total = choice.strategies[operator.index], 0
    layouts = (*operator.bound.input_layouts(strategy), *operator.bound.output_layouts(strategy))
    for index, layout in zip((*operator.inputs, *operator.outputs), layouts):
        if layout.canonical != choice.layouts[index].canonical:
            value = choice.graph.values[index]
            total += value.itemsize * largest(layout, value.shape)
    return total


def _forward_peak(choice: StrategyChoice, kept: Kept) -> tuple[int, str]:
    graph = choice.graph
    last = [max((reader for reader, _ in readers), default=-1) for readers in graph.consumers]
    held = 0
    living = sum(held_bytes(choice, value.index) for value in graph.values if value.kind == "input")
    best, where = 0, ""
    for operator in graph.operators:
        living += sum(held_bytes(choice, result) for result in operator.outputs)
        copies = sum(n for (_, reader), n in kept.items() if reader == operator.index) if kept else 0
        now = living + held + max(_working_set(choice, operator), copies)
        if now > best:
            best, where = now, operator.name
        held += copies
        for operand in dict.fromkeys(operator.inputs):
            value = graph.values[operand]
            if last[operand] == operator.index and value.kind != "parameter":
                living -= held_bytes(choice, operand)
                held += kept.get((operand, None), 0)
    return best, where


def _backward_peak(choice: StrategyChoice, kept: Kept) -> tuple[int, str]:
    graph = choice.graph
    held = sum(kept.values())
    gradients: dict[int, int] = {}
    best, where = 0, ""
    released: set[tuple[int, int | None]] = set()
    first = [min((reader for reader, _ in readers), default=-1) for readers in graph.consumers]
    for operator in reversed(graph.operators):
        arriving = sum(gradients.pop(result, 0) for result in operator.outputs)
        for operand in operator.inputs:
            value = graph.values[operand]
            if value.needs_gradient and value.kind != "parameter":
                gradients[operand] = held_bytes(choice, operand)
        now = held + arriving + sum(gradients.values()) + _working_set(choice, operator)
        if now > best:
            best, where = now, operator.name
        for operand in operator.inputs:
            for key in ((operand, operator.index), (operand, None)):
                done = key[1] is not None or first[operand] == operator.index
                if key in kept and done and key not in released:
                    released.add(key)
                    held -= kept[key]
    return best, where
