"""From a graph to a choice problem: which variables there are, and what each combination costs.

Variables and their states:

* every operator: its strategies;
* every tensor with several readers: the layout it is kept in, and the layout in which its readers' gradients are
  added up (on axes where each reader's gradient is partial, they are added first and reduced once);
* a parameter with one reader, if parameters may be stored more finely split than they are used.

Prices: an operator's computation forward and backward; for each tensor between two of them the redistribution
forward, and that of its gradient backward. A gradient comes out of the transposed rule, possibly partial, and goes
straight to the layout its tensor was computed in (S stays S, R stays R, P becomes R), exactly as the tape does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.auto_parallel.costs.evaluate import inner_steps, work_seconds
from spmdsim.auto_parallel.costs.move_prices import MovePrices, SharedMessages
from spmdsim.auto_parallel.costs.peak_memory import kept_when_recomputing, saves
from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE, ChoiceProblem
from spmdsim.auto_parallel.storage_layouts import StorageLayouts
from spmdsim.auto_parallel.strategy_choice import (
    States,
    StorageStates,
    StrategyChoice,
    batch_factors,
    configured_strategy,
    mesh_strategies,
    splitting_batch,
    states_of,
)
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.errors import RuleError
from spmdsim.redistribution.price import largest, steps_seconds


class ChoiceModel:
    """A graph on a mesh as a choice problem; ``allowed`` says which strategies an operator may have, instead of all."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        settings: Settings,
        allowed: Callable[[Operator], Sequence[Strategy]] | None = None,
        moves: MovePrices | None = None,
    ) -> None:
        self.graph, self.mesh, self.settings = graph, mesh, settings
        self.moves = moves or MovePrices(settings)
        self._allowed = allowed
        self._tables: dict[tuple[Any, ...], np.ndarray] = {}
        self._works: dict[tuple[object, ...], np.ndarray] = {}
        self._batch = batch_factors(graph) if settings.batch_axis is not None else []
        self.problem = ChoiceProblem()
        self.states: list[States] = [self._states(operator) for operator in graph.operators]
        self._keeper = StorageLayouts(graph, mesh, settings, self.states)
        self.operator_variable: list[int] = []
        self.value_variable: dict[int, int] = {}
        self.kept: dict[int, StorageStates] = {}
        self._representative = _tied(graph) if settings.tie else {}
        total = sum(value.nbytes for value in graph.parameters)
        self.messages = SharedMessages(self.problem, self.moves, settings, total)
        #: Which tensors have variables of their own.
        self._own = [self._has_variable(value) for value in graph.values]
        self._build()

    # -- states -------------------------------------------------------------------------------------

    def _states(self, operator: Operator) -> States:
        if operator.configured is not None:
            strategies: Sequence[Strategy] = (configured_strategy(operator, self.mesh),)
        elif self._allowed is not None:
            strategies = tuple(self._allowed(operator))
        else:
            strategies = candidates(operator, self.mesh, self.settings)
            axis = self.settings.batch_axis
            if axis is not None and sum(size > 1 for size in self.mesh.shape) > 1:
                strategies = splitting_batch(strategies, self._batch[operator.index], axis)
        if not strategies:
            raise RuleError(
                f"no strategy of the rule '{operator.bound.rule}' fits the mesh {self.mesh}",
                operator=operator.name,
            )
        return states_of(operator.bound, tuple(strategies))

    # -- building -----------------------------------------------------------------------------------

    def _build(self) -> None:
        self._add_operators()
        shared: dict[tuple[int, int, StorageStates], int] = {}
        # Tied tensors cost the same: the first is priced, the others are counted.
        alike: dict[tuple[object, ...], list[Value]] = {}
        for value in self.graph.values:
            alike.setdefault(self._signature(value), []).append(value)
        for values in alike.values():
            first, count = values[0], len(values)
            if not self._own[first.index]:
                self._add_direct(first, count)
                continue
            self._add_value(first, shared, count)
            for value in values[1:]:
                self.kept[value.index] = self.kept[first.index]
                self.value_variable[value.index] = self.value_variable[first.index]

    def _add_operators(self) -> None:
        problem, first = self.problem, dict[int, int]()
        works: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}
        for operator, states in zip(self.graph.operators, self.states):
            same = self._tied_to(operator.index)
            inputs = [self.graph.values[i] for i in operator.inputs]
            backward = operator.index in self.graph.reached
            facts = ((self._own[v.index], v.kind, self._saved(operator, v)) for v in inputs)
            key = (same, backward, *facts)
            if key not in works:
                works[key] = self._work(operator, states)
            first[same] = variable = problem.add_variable(*works[key], known=first.get(same))
            self.operator_variable.append(variable)

    def _tied_to(self, operator: int) -> int:
        return self._representative.get(operator, operator)

    def _signature(self, value: Value) -> tuple[object, ...]:
        """Equal for tensors at the same place of repeated layers."""
        if not self.settings.tie:
            return (value.index,)
        readers = self.graph.consumers[value.index]
        producer = None if value.producer is None else self._tied_to(value.producer)
        around = tuple((self._tied_to(reader), operand) for reader, operand in readers)
        boundary = bool(readers) and kept_when_recomputing(self.graph, value)
        what = (value.kind, value.shape, value.itemsize, value.needs_gradient, value.layout, value.output)
        return (*what, producer, around, boundary)

    def _has_variable(self, value: Value) -> bool:
        readers = len(self.graph.consumers[value.index])
        if value.producer is not None and self.graph.operators[value.producer].out is not None:
            return True
        kept = value.kind == "parameter" and (self.settings.sharded_parameters or value.layout is not None)
        return readers > 1 or (readers == 1 and kept)

    def _add_value(self, value: Value, shared: dict[tuple[int, int, StorageStates], int], count: int) -> None:
        kept = self.kept[value.index] = self._keeper.states(value)
        if value.producer is not None:
            owner, slot = value.producer, value.output
        else:
            owner, operand = self.graph.consumers[value.index][0]
            slot = -1 - operand
        tied = (self._tied_to(owner), slot, kept)
        known = shared.get(tied) if self.settings.tie else None
        none, memory = np.zeros(len(kept.layouts)), count * self._keep(value, kept)
        shared[tied] = variable = self.problem.add_variable(none, memory, known=known)
        self.value_variable[value.index] = variable
        if value.kind == "parameter" and self.graph.brings_gradient(value, *self.graph.readers(value)):
            self.messages.add(variable, kept.sums, kept.layouts, value, count)
        if value.producer is not None:
            self._add_result(value, variable, kept.layouts, kept.sums, count)
        for operator, operand in self.graph.consumers[value.index]:
            self._add_reader(value, kept, variable, operator, operand, count)

    def _add_direct(self, value: Value, count: int) -> None:
        """A tensor with at most one reader: the price of the pair is all there is."""
        if not self.graph.consumers[value.index]:
            return
        reader, operand = self.graph.consumers[value.index][0]
        states = self.states[reader]
        variable = self.operator_variable[reader]
        if value.producer is None:
            if value.layout is not None:
                row = self._table((value.layout.canonical,), states.inputs[operand], value)[0]
                self.problem.seconds[variable] = self.problem.seconds[variable] + count * row
            if value.kind == "parameter" and self.graph.brings_gradient(value, reader):
                sums, wanted = states.gradients[operand], states.inputs[operand]
                self.messages.add(variable, sums, wanted, value, count)
            return
        self._add_result(value, variable, states.inputs[operand], states.gradients[operand], count)

    def _add_result(
        self,
        value: Value,
        variable: int,
        wanted: tuple[Layout, ...],
        arriving: tuple[Layout, ...],
        count: int,
    ) -> None:
        """A result on its way to the layout of each state of a variable, and its gradient on the way back."""
        assert value.producer is not None
        produced = self.states[value.producer].outputs[value.output]
        forward, backward = self._times(value, *self.graph.readers(value))
        prices = forward * self._table(produced, wanted, value)
        if backward:
            prices = prices + self._table(arriving, tuple(one.dual() for one in produced), value).T
        self.problem.add_pair(self.operator_variable[value.producer], variable, count * prices)

    def _add_reader(
        self, value: Value, kept: StorageStates, variable: int, reader: int, operand: int, count: int
    ) -> None:
        states = self.states[reader]
        wanted = states.inputs[operand]
        forward, backward = self._times(value, reader)
        prices = forward * self._table(kept.layouts, wanted, value)
        if backward:
            own = self._table(states.gradients[operand], kept.layouts, value).T
            same = np.array([[g == total for g in states.gradients[operand]] for total in kept.sums])
            own = np.where(same, 0.0, own)
            prices = prices + (1.0 - self.settings.overlap if value.kind == "parameter" else 1.0) * own
        if self._keeper.stored_apart(value):
            # In which dims a parameter is cut for storage makes no difference: one way is enough.
            ways = {layout: {layout, *self._keeper.pieces(layout, value.shape)} for layout in {*wanted}}
            usual = np.array([[own in ways[use] for use in wanted] for own in kept.layouts])
            prices = np.where(usual, prices, IMPOSSIBLE)
        memory = self._copy_memory(value, kept, wanted, reader, operand)
        copies = None if memory is None else count * memory
        self.problem.add_pair(variable, self.operator_variable[reader], count * prices, copies)

    def _times(self, value: Value, *readers: int) -> tuple[int, bool]:
        """How often a tensor goes forward, and whether its gradient comes back from one of these readers."""
        again = self.settings.recompute and self.graph.training and value.kind != "input"
        return (2 if again else 1), self.graph.brings_gradient(value, *readers)

    # -- prices -------------------------------------------------------------------------------------

    def _table(self, sources: tuple[Layout, ...], targets: tuple[Layout, ...], value: Value) -> np.ndarray:
        key = (sources, targets, value.shape, value.itemsize, value.kind == "result")
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.moves.table(*key)
        return table

    def _work(self, operator: Operator, states: States) -> tuple[np.ndarray, np.ndarray]:
        graph, settings = self.graph, self.settings
        inputs = [graph.values[i] for i in operator.inputs]
        gradients = tuple(graph.brings_gradient(v, operator.index) for v in inputs)
        sizes = tuple(v.itemsize for v in inputs)
        key = (operator.bound, states.strategies, gradients, sizes)
        seconds = self._works.get(key)
        if seconds is None:
            machine = self.moves.machine
            rows = [
                work_seconds(operator, s, sizes, gradients, machine, settings.recompute)
                + steps_seconds(inner_steps(operator, s, gradients, settings.recompute), machine)
                for s in states.strategies
            ]
            # The least memory decides between strategies that take the same time.
            seconds = self._works[key] = np.array(rows)
        memory: np.ndarray = np.zeros(len(states.strategies))
        for layouts, value in zip(states.inputs, inputs):
            if self._own[value.index]:
                continue
            if value.kind == "parameter":
                memory = memory + self._trained_bytes(value) * _largest(layouts, value)
            elif self._saved(operator, value):
                memory = memory + value.itemsize * _largest(layouts, value)
        return seconds, memory

    def _trained_bytes(self, value: Value) -> float:
        """Bytes per element of a parameter, its gradient and the optimiser's state for it."""
        own = float(value.itemsize)
        return 2 * own + self.settings.state_bytes(value.itemsize) if self.graph.training else own

    def _saved(self, operator: Operator, value: Value) -> bool:
        return saves(self.graph, operator, value, self.settings.recompute)

    def _keep(self, value: Value, kept: StorageStates) -> np.ndarray:
        """Memory of keeping a tensor in each of its states."""
        pieces = value.itemsize * _largest(kept.layouts, value)
        readers = [self.graph.operators[reader] for reader, _ in self.graph.consumers[value.index]]
        if value.kind == "parameter":
            return self._trained_bytes(value) / value.itemsize * pieces
        needed = any(self._saved(reader, value) for reader in readers)
        kept_anyway = self.settings.recompute and kept_when_recomputing(self.graph, value)
        return pieces if needed or (kept_anyway and self.graph.training) else 0.0 * pieces

    def _copy_memory(
        self, value: Value, kept: StorageStates, wanted: tuple[Layout, ...], reader: int, operand: int
    ) -> np.ndarray | None:
        """Memory of the redistributed copy an operator keeps beside the tensor itself."""
        operator = self.graph.operators[reader]
        if not self._saved(operator, value):
            return None
        pieces = value.itemsize * _largest(wanted, value)
        differs = np.array([[own != other for other in wanted] for own in kept.layouts])
        array: np.ndarray | None = differs * pieces[None, :]
        return array

    # -- reading a solution -------------------------------------------------------------------------

    def choice(self, states: Sequence[int]) -> StrategyChoice:
        """The strategies and layouts of an assignment."""
        graph = self.graph
        strategies = tuple(
            self.states[o.index].strategies[states[self.operator_variable[o.index]]] for o in graph.operators
        )
        layouts = tuple(self._layout(value, states) for value in graph.values)
        return StrategyChoice(graph, self.mesh, strategies, layouts)

    def states_of(self, strategies: Sequence[Strategy]) -> list[int]:
        """An assignment with these strategies, or the first ones, and the layouts that suit them best."""
        states = [0] * len(self.problem)
        for operator, strategy in zip(self.graph.operators, strategies):
            known = self.states[operator.index].strategies
            if strategy in known:
                states[self.operator_variable[operator.index]] = known.index(strategy)
        price = self.problem.price_of_states
        for index, variable in self.value_variable.items():
            options = range(len(self.kept[index].layouts))
            states[variable] = min(options, key=lambda k: price(states, variable, k))
        return self.problem.with_best_hubs(states)

    def _layout(self, value: Value, states: Sequence[int]) -> Layout:
        if value.index in self.value_variable:
            return self.kept[value.index].layouts[states[self.value_variable[value.index]]]
        if value.producer is not None:
            state = states[self.operator_variable[value.producer]]
            return self.states[value.producer].outputs[value.output][state]
        if value.layout is not None:
            return value.layout
        if not self.graph.consumers[value.index]:
            return Layout.replicated(self.mesh, len(value.shape))
        reader, operand = self.graph.consumers[value.index][0]
        return self.states[reader].inputs[operand][states[self.operator_variable[reader]]]


def _largest(layouts: Sequence[Layout], value: Value) -> np.ndarray:
    """Elements of a tensor's largest piece in each of some layouts."""
    return np.array([largest(layout, value.shape) for layout in layouts], float)


def candidates(operator: Operator, mesh: Mesh, settings: Settings) -> tuple[Strategy, ...]:
    """The strategies a search considers for an operator."""
    passing = settings.partial and operator.linear
    full = settings.full and operator.bound.contraction
    even, nested = settings.even, settings.nested
    return mesh_strategies(operator.bound, mesh, partial=passing, full=full, even=even, nested=nested)


def _tied(graph: Graph) -> dict[int, int]:
    """For each operator of a repeated layer, the operator at the same place of its first repeat."""
    first: dict[tuple[object, ...], int] = {}
    representative: dict[int, int] = {}
    for operator, place in zip(graph.operators, graph.places):
        if place is not None:
            key = (place, operator.bound, repr((operator.configured, operator.out)))
            representative[operator.index] = first.setdefault(key, operator.index)
    return representative
