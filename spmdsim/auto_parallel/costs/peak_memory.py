"""Peak memory of one rank in one step: what is there when, forward, backward and while parameters are updated.

What is counted are arrays: those of tensors, what the tape keeps, and the buffers of plans and of shared messages. The
program's inputs stay its owner's. A value is free after its last reader, unless the tape keeps it, a gradient once it is handed on. Not
counted are what numpy needs inside of an operator, values that variables of the program refer to for longer, and what the pool of
buffers keeps; views and what is calculated in place count as new arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spmdsim.auto_parallel.costs.evaluate import GradientMessage, Move
from spmdsim.auto_parallel.costs.move_prices import MovePrices, element_type, moved_itemsize, shared
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.pictured import Pictured
from spmdsim.redistribution.implementations.implementation import plan_peak
from spmdsim.redistribution.plans.merge import BUCKET_BYTES, Merge
from spmdsim.redistribution.step_counts import largest_shard


@dataclass(frozen=True)
class Memory(Pictured):
    """Bytes of the busiest rank at the peak of one step that begins without gradients.

    Attributes:
        parameters: of all parameters, as they are stored.
        gradients: of parameters, those that are complete by then.
        optimizer: the optimiser's state.
        activations: what the tape keeps by then for gradients that are still to come.
        transient: what is there besides.
        where: the operator during which the peak is reached, "update" for the optimiser; "" for a program without operators.
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
    seen = graph.seen_operands[operator.index]
    if (value.index, True) not in zip(operator.inputs, seen):
        return False
    return not recompute or (value.kind != "parameter" and graph.enters_layer(value))


def saves_result(graph: Graph, operator: Operator, recompute: bool = False) -> bool:
    """Whether an operator keeps its results until its backward pass."""
    return operator.saves_result and operator.index in graph.reached and not recompute


def held_bytes(choice: StrategyChoice, value: int) -> int:
    """Bytes of the largest piece of a tensor as it is kept."""
    return _nbytes(choice.graph.values[value], choice.layouts[value])


def _nbytes(value: Value, layout: Layout) -> int:
    return _piece_nbytes(layout, value.shape, value.itemsize)


@lru_cache(maxsize=4096)
def _piece_nbytes(layout: Layout, shape: tuple[int, ...], itemsize: int) -> int:
    return moved_itemsize(layout, itemsize) * largest_shard(layout, shape)


@lru_cache(maxsize=1024)
def _message_peak(steps: tuple[Step, ...], itemsize: int) -> int:
    """Return the peak bytes of a shared message; messages of equal layers are looked at once."""
    dtype = element_type(itemsize)
    return plan_peak(steps, dtype, dtype)


def peak_memory(choice: StrategyChoice, settings: Settings, prices: MovePrices | None = None) -> Memory:
    """The peak over one step, by what the runtime does at each operator; ``prices`` remember what plans take."""
    step = StepMemory(choice, settings, prices or MovePrices(settings))
    for operator in choice.graph.operators:
        step.forward(operator)
    if choice.graph.training:
        step.turn()
        for operator in reversed(choice.graph.operators):
            step.backward(operator)
        step.update()
    assert step.peak is not None
    return step.peak


#: An array: a tensor as it is handed on (None), or as an operator computed or read it.
Key = tuple[int, int | None]


class _Arrays(dict[Any, int]):
    """Bytes of arrays, and of all together."""

    total = 0

    def put(self, key: object, nbytes: int) -> None:
        self.total += nbytes - self.get(key, 0)
        self[key] = nbytes

    def drop(self, key: object) -> None:
        self.total -= self.pop(key, 0)


class StepMemory:
    """What a rank holds as a step goes on, in bytes."""

    def __init__(self, choice: StrategyChoice, settings: Settings, prices: MovePrices) -> None:
        self.choice, self.settings, self.prices, self.graph = choice, settings, prices, choice.graph
        graph = choice.graph
        self.parameters = sum(held_bytes(choice, value.index) for value in graph.parameters)
        states = (
            held_bytes(choice, v.index) * settings.state_bytes(v.itemsize) / v.itemsize
            for v in graph.parameters
        )
        self.optimizer = int(sum(states)) if graph.training else 0
        self.gradients = 0
        self.peak = Memory(self.parameters, 0, self.optimizer, 0, 0, "")
        inputs = [value.index for value in graph.values if value.kind == "input"]
        #: Arrays that nobody but the program refers to, those that the tape keeps, and who keeps them.
        self.living, self.kept = _Arrays(), _Arrays()
        for i in inputs:
            self.living.put((i, None), held_bytes(choice, i))
        self.keepers: dict[Key, set[int]] = {}
        self.keeps: dict[int, list[Key]] = {}
        #: Gradients that are not yet what they will be, by tensor, with their layouts; and parameters that share a message.
        self.arrived: dict[int, list[Layout]] = {}
        self.underway = 0
        #: Gradients that wait for a message, and their bytes, by the kind of the message.
        self.buckets: dict[tuple[Merge, int], list[tuple[Value, Layout]]] = {}
        self.bucket_bytes: dict[tuple[Merge, int], int] = {}
        self._again: set[int] = set()

    # -- moments --------------------------------------------------------------------------------------

    def moment(self, where: str, more: int) -> None:
        """Whether this is the peak: with so many bytes besides."""
        transient = self.living.total + self.underway + more
        facts = self.parameters, self.gradients, self.optimizer, self.kept.total, transient
        if sum(facts) > self.peak.peak or not self.peak.where:
            self.peak = Memory(*facts, where)

    def moving(self, value: Value, src: Layout, dst: Layout) -> int:
        """Bytes that a redistribution takes besides what it starts from, its result among them."""
        if src.canonical == dst.canonical:
            return 0
        plan = self.prices.plan(src, dst, value.shape, value.itemsize, value.kind == "result")
        return plan.peak_nbytes - _nbytes(value, src)

    # -- forward --------------------------------------------------------------------------------------

    def forward(self, operator: Operator) -> None:
        """Operands are brought, results computed and handed on; the tape keeps its part, and what has no reader left is free."""
        choice, graph, name, values = self.choice, self.graph, operator.name, self.graph.values
        own, copies = choice.operator_layouts[operator.index], 0
        for operand, wanted in zip(operator.inputs, own.inputs):
            src = choice.layouts[operand]
            if wanted.canonical != src.canonical:
                self.moment(name, copies + self.moving(values[operand], src, wanted))
                copies += _nbytes(values[operand], wanted)
        produced = dict(zip(operator.outputs, own.outputs))
        sizes = {result: _nbytes(values[result], layout) for result, layout in produced.items()}
        self.moment(name, copies + sum(sizes.values()))
        self._keep(operator, self.settings.recompute and graph.training)
        for result, layout in produced.items():
            self.moment(
                name, sum(sizes.values()) + self.moving(values[result], layout, choice.layouts[result])
            )
            if (result, None) not in self.kept:
                self.living.put((result, None), held_bytes(choice, result))
            sizes[result] = 0
        self._free(operator)

    def _free(self, operator: Operator) -> None:
        """Forget the operands and results that nobody reads any more, but for inputs and what the program gives back."""
        for value in {*operator.inputs, *operator.outputs}:
            readers = self.graph.consumers[value]  # in program order
            owned = self.graph.values[value].kind != "result" or value in self.graph.results
            if not owned and (not readers or readers[-1][0] <= operator.index):
                self.living.drop((value, None))

    def _keep(self, operator: Operator, recompute: bool) -> None:
        """What the tape keeps of an operator, in the layouts in which it is computed."""
        for key, nbytes in self._kept_arrays(operator, recompute):
            self.living.drop(key)
            self.kept.put(key, nbytes)
            self.keepers.setdefault(key, set()).add(operator.index)
            self.keeps.setdefault(operator.index, []).append(key)

    def _kept_arrays(self, operator: Operator, recompute: bool) -> Iterable[tuple[Key, int]]:
        choice, graph = self.choice, self.graph
        own = choice.operator_layouts[operator.index]
        read = zip(operator.inputs, own.inputs)
        arrays = [(i, layout) for i, layout in read if saves(graph, operator, graph.values[i], recompute)]
        if saves_result(graph, operator, recompute):
            arrays += zip(operator.outputs, own.outputs)
        for i, layout in dict.fromkeys(arrays):
            same = layout.canonical == choice.layouts[i].canonical
            if not (same and graph.values[i].kind == "parameter"):
                yield (i, None if same else operator.index), _nbytes(graph.values[i], layout)

    # -- backward -------------------------------------------------------------------------------------

    def turn(self) -> None:
        """What the program gives back has a gradient of ones."""
        for result in {*self.graph.results}:
            value, layout = self.graph.values[result], self.choice.layouts[result].dual()
            if value.producer in self.graph.reached:
                self.arrived[result] = [layout]
                self.underway += _nbytes(value, layout)

    def backward(self, operator: Operator) -> None:
        """Gradients of results are brought together, those of operands computed, and what was kept for that is free."""
        if operator.index not in self.graph.reached:
            return
        if self.settings.recompute:
            self._recompute(operator)
        layouts, name = self.choice.operator_layouts[operator.index], operator.name
        dys = 0
        for result, layout in zip(operator.outputs, layouts.outputs):
            dys += self._settle(self.graph.values[result], layout.dual(), name, dys)
        own = []
        gradients = self.graph.operand_gradients[operator.index]
        for operand, layout, needed in zip(operator.inputs, layouts.gradients, gradients):
            if needed:
                own.append((operand, layout, _nbytes(self.graph.values[operand], layout)))
        self.moment(name, dys + sum(nbytes for _, _, nbytes in own))
        for operand, layout, nbytes in own:
            self.arrived.setdefault(operand, []).append(layout)
            self.underway += nbytes
        self._spend(operator)
        for operand in dict.fromkeys(operator.inputs):
            value = self.graph.values[operand]
            # Readers are in program order, so a gradient is complete after the first of them.
            if (
                value.kind == "parameter"
                and operand in self.arrived
                and self.graph.gradient_readers[operand][0][0] == operator.index
            ):
                self._complete(value, name)

    def _recompute(self, operator: Operator) -> None:
        """Before the last operator of a layer goes back, the layer is computed once more."""
        operators = self.graph.operators
        for again in reversed(operators[: operator.index + 1]):
            if again.layer != operator.layer or again.index in self._again:
                break
            self._again.add(again.index)
            self._keep(again, False)

    def _settle(self, value: Value, layout: Layout, where: str, more: int) -> int:
        """Add a tensor's gradients up in a layout: the bytes of the sum."""
        arrived = self.arrived.pop(value.index, [])
        if not arrived:
            return 0
        total = _nbytes(value, layout)
        moved = max(
            self.moving(value, src, layout) for src in {src.canonical: src for src in arrived}.values()
        )
        self.moment(where, more + moved + (total if len(arrived) > 1 else 0))
        self.underway -= sum(_nbytes(value, src) for src in arrived)
        return total

    def _spend(self, operator: Operator) -> None:
        for key in self.keeps.pop(operator.index, ()):
            self.keepers[key].discard(operator.index)
            if not self.keepers[key] and key in self.kept:
                if self.graph.values[key[0]].kind == "input" and key[1] is None:
                    self.living.put(key, self.kept[key])
                self.kept.drop(key)

    def _complete(self, value: Value, where: str) -> None:
        """A parameter's gradient, to which nothing more comes: it waits for others, or is reduced."""
        target = self.choice.layouts[value.index].dual()
        layouts = {src.canonical: src for src in self.arrived[value.index]}
        src = next(iter(layouts.values()))
        merge = shared(self.settings, src, target, value.shape) if len(layouts) == 1 else None
        if merge is None:
            self.gradients += self._settle(value, target, where, 0)
            return
        total = self._settle(value, src, where, 0)
        self.underway += total
        key = merge, moved_itemsize(src, value.itemsize)
        self.buckets.setdefault(key, []).append((value, src))
        self.bucket_bytes[key] = self.bucket_bytes.get(key, 0) + total
        if self.bucket_bytes[key] >= BUCKET_BYTES:
            self._send(key, where)

    def _send(self, key: tuple[Merge, int], where: str) -> None:
        """Gradients that share a message: laid end to end, reduced, and kept."""
        bucket, total, (merge, itemsize) = self.buckets.pop(key), self.bucket_bytes.pop(key), key
        moves = [
            Move("gradient", value, None, src, self.choice.layouts[value.index].dual())
            for value, src in bucket
        ]
        if len(bucket) == 1:
            self.moment(where, self.moving(moves[0].value, moves[0].src, moves[0].dst))
        else:
            steps = GradientMessage(merge, tuple(moves), self.settings.machine).steps
            self.moment(where, max(total, _message_peak(steps, itemsize) - total))
        self.underway -= total
        self.gradients += sum(held_bytes(self.choice, value.index) for value, _ in bucket)

    def update(self) -> None:
        """What is left of shared messages is sent; then each parameter's next value takes the place of the one before."""
        first = next((o.name for o in self.graph.operators if o.index in self.graph.reached), "")
        for key in [*self.buckets]:
            self._send(key, first)
        self.moment(
            "update", max((held_bytes(self.choice, v.index) for v in self.graph.parameters), default=0)
        )
