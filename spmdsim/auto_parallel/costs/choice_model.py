"""Convert a graph on a mesh to a choice problem: its variables, and the cost of each combination.

Variables and their states:

* every operator: its strategies;
* every tensor with several readers: the layout in which it is stored;
* beside it, the layouts in which its readers' gradients are added before they move, and their target
  (:mod:`spmdsim.auto_parallel.costs.gradient_sums`); for a parameter both are one variable;
* a parameter with one reader, if parameters may be stored with finer splits than they are used.

Prices: an operator's computation forward and backward; for each tensor between two of them the redistribution
forward, and that of its gradient backward. A gradient comes out of the transposed rule, possibly partial, and goes
straight to the layout its tensor was computed in (S stays S, R stays R, P becomes R), exactly as the tape does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np

from spmdsim.auto_parallel.costs.evaluate import inner_steps, work_seconds
from spmdsim.auto_parallel.costs.gradient_sums import (
    GradientSums,
    Price,
    fits_table,
    gradient_sums,
    joint_price,
)
from spmdsim.auto_parallel.costs.move_prices import MovePrices, SharedMessages
from spmdsim.auto_parallel.costs.peak_memory import saves, saves_result
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.costs.storage_layouts import StorageLayouts
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE, ChoiceProblem, SharedPrice, Solution
from spmdsim.auto_parallel.solvers.elimination import reduce_domains
from spmdsim.auto_parallel.solvers.integer import EQUAL
from spmdsim.auto_parallel.strategy_choice import (
    States,
    StorageStates,
    StrategyChoice,
    batch_splitting_strategies,
    configured_strategy,
    mesh_strategies,
    states_of,
)
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.errors import RuleError
from spmdsim.redistribution.price import steps_seconds
from spmdsim.redistribution.step_counts import largest_shard


class ChoiceModel:
    """A graph on a mesh as a choice problem.

    Args:
        graph: the program.
        mesh: the mesh that it runs on.
        settings: the assumptions of the cost model.
        allowed: returns the strategies that an operator may have, instead of all; equal ones for tied operators.
        moves: prices of redistributions that earlier calls computed.
        slack: leave out strategies whose work takes more than this many seconds above the least work of their
            operator; None leaves out nothing.

    Attributes:
        problem: the choice problem.
        states: for each operator, its strategies and their layouts.
        operator_variable: for each operator, the number of its variable.
        value_variable: by index of a tensor, the number of its variable, if it has one.
        sum_variables: the variables of gradients' sums.
        kept: by index of a tensor with a variable, its states.
        messages: the messages that gradients of parameters may share.
    """

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        settings: Settings,
        allowed: Callable[[Operator], Sequence[Strategy]] | None = None,
        moves: MovePrices | None = None,
        slack: float | None = None,
    ) -> None:
        self.graph, self.mesh, self.settings = graph, mesh, settings
        self.moves = moves or MovePrices(settings)
        self._allowed = allowed
        self._tables: dict[tuple[Any, ...], np.ndarray] = {}
        #: Seconds of the least work of all operators together, if strategies are left out; else 0.
        self.least_work = 0.0
        self._work_seconds: dict[tuple[object, ...], np.ndarray] = {}
        self.problem = ChoiceProblem()
        self._representative = graph.tied_operators if settings.tie else {}
        self.states: list[States] = []
        for operator in graph.operators:
            first = self._tied_to(operator.index)
            # Tied operators have equal rules and configurations.
            self.states.append(self.states[first] if first < operator.index else self._states(operator))
        #: For each tensor, True if it has a variable of its own.
        self._has_own_variable = [self._has_variable(value) for value in graph.values]
        if slack is not None:
            self._leave_out(slack)
        self._keeper = StorageLayouts(graph, mesh, settings, self.states)
        self.operator_variable: list[int] = []
        self.value_variable: dict[int, int] = {}
        self.sum_variables: list[int] = []
        self.kept: dict[int, StorageStates] = {}
        self.messages = SharedMessages(self.problem, self.moves, settings)
        #: True if the states include all ways to share gradients, so no choice is cheaper than its price here.
        self.complete = True
        self._build()

    # -- states -------------------------------------------------------------------------------------

    def _states(self, operator: Operator) -> States:
        """Return an operator's candidate strategies with their layouts.

        - A configured operator has its configured strategy only.
        - Otherwise, if the model has a function ``allowed``, the candidates are the strategies that it returns.
        - Otherwise they are those of :func:`candidates`. If the settings name a batch axis and the mesh has several
          axes longer than 1, only the strategies that split the batch by the batch axis remain, or all if none does.

        Raises:
            RuleError: If there is no candidate, or the configured strategy does not fit.
            InputError: If there are too many candidates.
        """
        if operator.configured is not None:
            strategies: Sequence[Strategy] = (configured_strategy(operator, self.mesh),)
        elif self._allowed is not None:
            strategies = tuple(self._allowed(operator))
        else:
            strategies = candidates(operator, self.mesh, self.settings)
            axis = self.settings.batch_axis
            if axis is not None and sum(size > 1 for size in self.mesh.shape) > 1:
                strategies = batch_splitting_strategies(
                    strategies, self.graph.batch_factors[operator.index], axis
                )
        if not strategies:
            raise RuleError(
                f"no strategy of the rule '{operator.bound.rule}' fits the mesh {self.mesh}",
                operator=operator.name,
            )
        return states_of(operator.bound, tuple(strategies))

    @cached_property
    def kept_states(self) -> list[np.ndarray]:
        """States of each variable that may be part of an optimum."""
        return reduce_domains(self.problem)

    # -- building -----------------------------------------------------------------------------------

    def _build(self) -> None:
        """Add all variables and prices to the problem; called once, at the end of construction.

        The variables of the operators come first. For each tensor follow its variables, if it has any, and the prices
        of its moves. The messages that gradients share come last. With ``settings.tie``, repeated layers are tied:
        their equal tensors share a variable, and the first one is priced, times their number.
        """
        self._add_operators()
        shared: dict[tuple[int, int, StorageStates], int] = {}
        # Tied tensors have equal costs: price the first one and multiply by their number.
        untied = tuple((value,) for value in self.graph.values)
        for values in self.graph.tied_values if self.settings.tie else untied:
            first, count = values[0], len(values)
            if not self._has_own_variable[first.index]:
                self._add_direct(first, count)
                continue
            self._add_value(first, shared, count)
            for value in values[1:]:
                self.kept[value.index] = self.kept[first.index]
                self.value_variable[value.index] = self.value_variable[first.index]
        self.messages.price()

    def _price_all_work(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield ``(operator, seconds, memory)``, the price of the work of each group of equal operators.

        - ``operator``: the index of the first of its tied operators, which are those of repeated layers with one
          strategy. Several groups may be tied to one operator.
        - ``seconds``, ``memory``: arrays with an entry per strategy, for the whole group. 12 equal operators have 12
          times the seconds and bytes of one.

        If operators are not tied, each one is a group.
        """
        untied = tuple((operator,) for operator in self.graph.operators)
        for operators in self.graph.equal_operators if self.settings.tie else untied:
            first, count = operators[0], len(operators)
            seconds, memory = self._price_work(first, self.states[first.index])
            yield self._tied_to(first.index), count * seconds, count * memory

    def _leave_out(self, slack: float) -> None:
        """Leave out strategies that are over ``slack`` seconds slower than the operator's quickest.

        Only the work of operators counts, no redistributions. Tied operators (equal operators of repeated layers)
        count together: their seconds are added, and they keep equal strategies. With slack 0.1, of strategies with
        1.0, 1.05 and 1.2 seconds the last one is left out. The method sets ``states``, and ``least_work``: the sum of
        the seconds of all operators' quickest strategies.

        Args:
            slack: seconds, at least 0; with infinity nothing is left out. A relative 1e-9 more is tolerated.
        """
        totals: dict[int, np.ndarray] = {}
        # `operator` is the first one of its tied operators, so their seconds are added.
        for operator, seconds, _ in self._price_all_work():
            totals[operator] = totals.get(operator, 0.0) + seconds
        self.least_work = sum(float(seconds.min()) for seconds in totals.values())
        quick_strategies: dict[int, tuple[Strategy, ...]] = {}
        for operator, seconds in totals.items():
            quick = seconds <= (seconds.min() + slack) * (1 + EQUAL)
            quick_strategies[operator] = tuple(compress(self.states[operator].strategies, quick))
        self.states = [
            states_of(o.bound, quick_strategies[self._tied_to(o.index)]) for o in self.graph.operators
        ]

    def _add_operators(self) -> None:
        """Add a variable for each operator, whose states are its strategies; tied operators share one.

        The prices of a variable are the seconds and bytes of the work of all its operators. ``operator_variable`` gets
        the number of each operator's variable.
        """
        variables: dict[int, int] = {}
        for operator, seconds, memory in self._price_all_work():
            existing = variables.get(operator)
            variables[operator] = self.problem.add_variable(seconds, memory, existing=existing)
        self.operator_variable = [variables[self._tied_to(o.index)] for o in self.graph.operators]

    def _tied_to(self, operator: int) -> int:
        """Return the first of the operators that an operator is tied to.

        An untied operator is returned itself.
        """
        return self._representative.get(operator, operator)

    def _has_variable(self, value: Value) -> bool:
        """Return True if a variable decides in which layout a tensor (``value``) is stored.

        These tensors have a variable; all others are stored as their producer or only reader needs them:

        - results of an operator whose result has a configured layout;
        - tensors with several readers;
        - parameters with one reader, if the layout is fixed or parameters may be stored in shards.
        """
        reader_count = len(self.graph.consumers[value.index])
        if value.producer is not None and self.graph.operators[value.producer].out is not None:
            return True
        can_store_apart = value.kind == "parameter" and (
            self.settings.sharded_parameters or value.layout is not None
        )
        return reader_count > 1 or (reader_count == 1 and can_store_apart)

    def _add_value(self, value: Value, shared: dict[tuple[int, int, StorageStates], int], count: int) -> None:
        """Add the variable of a tensor, and the prices of moving the tensor and its gradients.

        Each state of the variable is a layout in which the tensor may be stored; it costs the bytes of its shard. The
        prices belong to pairs of this variable and an operator's: the moves to each reader, the move from the
        producer, and the moves of gradients. The variable is stored in ``value_variable``, its states in ``kept``. If
        ways to add gradients are left out, because they are too many, ``complete`` becomes False.

        Args:
            value: the tensor, the first of ``count`` tied ones.
            shared: variables by (operator, operand or result, states), extended. With tied layers, equal keys share a
                variable.
            count: the number of tied tensors.
        """
        storage = self.kept[value.index] = self._keeper.states(value, self._price_function(value))
        self.complete &= storage.complete
        if value.producer is not None:
            owner, slot = value.producer, value.output
        else:
            # Results have the numbers from 0 on, so operands of the first reader get negative ones.
            owner, operand = self.graph.consumers[value.index][0]
            slot = -1 - operand
        tied = (self._tied_to(owner), slot, storage)
        existing = shared.get(tied) if self.settings.tie else None
        seconds, memory = np.zeros(len(storage.layouts)), count * self._stored_bytes(value, storage)
        shared[tied] = variable = self.problem.add_variable(seconds, memory, existing=existing)
        self.value_variable[value.index] = variable
        for reader, operand in self.graph.consumers[value.index]:
            self._add_reader(value, storage, variable, reader, operand, count)
        if value.producer is not None:
            self._add_result(value, variable, storage.layouts, count)
            self._add_gradients(value, count)
        elif value.kind == "parameter" and self._gradients(value):
            self._add_parameter(value, storage, variable, count)

    def _add_direct(self, value: Value, count: int) -> None:
        """Add the prices of a tensor without a variable, from its producer to its only reader.

        - A tensor without readers has no price.
        - A result pays for its moves, and for the moves of its gradients.
        - An input pays for its move only if its layout is fixed.
        - A parameter pays for its move only if its layout is fixed. It also pays for the reduction of its gradient if
          training computes one.

        Args:
            value: the tensor, the first of ``count`` tied ones.
            count: the number of tied tensors.
        """
        if not self.graph.consumers[value.index]:
            return
        reader, operand = self.graph.consumers[value.index][0]
        states = self.states[reader]
        variable = self.operator_variable[reader]
        if value.producer is None:
            if value.layout is not None:
                row = self._price_table((value.layout.canonical,), states.inputs[operand], value)[0]
                self.problem.seconds[variable] = self.problem.seconds[variable] + count * row
            if value.kind == "parameter" and self.graph.brings_gradient(value, reader):
                sums, wanted = states.gradients[operand], states.inputs[operand]
                self.messages.add(variable, sums, wanted, value, count)
            return
        self._add_result(value, variable, states.inputs[operand], count)
        self._add_gradients(value, count)

    def _add_result(self, value: Value, variable: int, wanted: tuple[Layout, ...], count: int) -> None:
        """Add a pair price: the forward moves of a result from its producer to a reader or its storage.

        The price is in seconds, for each strategy of the producer and each state of ``variable``, times ``count``.
        """
        assert value.producer is not None
        produced = self.states[value.producer].outputs[value.output]
        move_count = self._count_forward_moves(value)
        prices = move_count * self._price_table(produced, wanted, value)
        self.problem.add_pair(self.operator_variable[value.producer], variable, count * prices)

    def _gradients(self, value: Value) -> list[tuple[int, tuple[Layout, ...]]]:
        """Return the readers that a tensor's gradient comes from, with its possible layouts there."""
        readers = self.graph.gradient_readers[value.index]
        return [(reader, self.states[reader].gradients[operand]) for reader, operand in readers]

    def _add_gradients(self, value: Value, count: int) -> None:
        """Add the price of moving a result's gradients from its readers to its producer.

        The target of the gradients is the dual of the layout in which the producer computes the result. By the number
        of readers that bring a gradient:

        - None: nothing is added.
        - One: the price of its move is added to the pair of reader and producer.
        - Several, if a table of all combinations has at most
          :data:`~spmdsim.auto_parallel.costs.gradient_sums.MOST_TOGETHER` entries: one table has the price of each
          combination.
        - Several in other cases: a further variable chooses sums of gradients and their target, see
          :meth:`_add_gradient_sums`.

        Args:
            value: the result, the first of ``count`` tied ones.
            count: the number of tied tensors; prices are multiplied by it.
        """
        assert value.producer is not None
        readers, producer = self._gradients(value), self.operator_variable[value.producer]
        duals = tuple(layout.dual() for layout in self.states[value.producer].outputs[value.output])
        if not readers:
            return
        if len(readers) == 1:
            ((reader, arriving),) = readers
            prices = count * self._price_table(arriving, duals, value)
            self.problem.add_pair(self.operator_variable[reader], producer, prices)
            return
        price = self._price_function(value)
        variables = [producer, *(self.operator_variable[reader] for reader, _ in readers)]
        if fits_table(self.problem.sizes[variable] for variable in dict.fromkeys(variables)):
            layouts = [duals, *(arriving for _, arriving in readers)]
            self._add_joint(joint_price(variables, layouts, [False] * len(duals), price), count)
        else:
            self._add_gradient_sums(value, count, readers, duals)

    def _add_gradient_sums(
        self,
        value: Value,
        count: int,
        readers: list[tuple[int, tuple[Layout, ...]]],
        duals: tuple[Layout, ...],
    ) -> None:
        """Add a variable that chooses a set of sums of a result's gradients, and their target.

        A sum adds the gradients of the readers that arrive in one layout, before it moves to the target (see
        :mod:`spmdsim.auto_parallel.costs.gradient_sums`). The prices are:

        - of the variable: the moves of its sums;
        - of the variable and a reader: the move of the reader's gradient to the target, or 0 if the gradient arrives
          in the layout of a sum;
        - of the variable and the producer: :data:`IMPOSSIBLE` if the target is not the producer's target, else 0.

        If some sets of sums are left out, because they are too many, ``complete`` becomes False.

        Args:
            value: the result, the first of ``count`` tied ones.
            count: the number of tied tensors; prices are multiplied by it.
            readers: the readers that bring a gradient, and the layouts in which it can arrive.
            duals: for each state of the producer, the target of the gradients.
        """
        assert value.producer is not None
        producer, price = self.operator_variable[value.producer], self._price_function(value)
        sums = gradient_sums([arriving for _, arriving in readers], duals, price)
        self.complete &= sums.complete
        variable = self.problem.add_variable(count * sums.moves(price))
        self.sum_variables.append(variable)
        number = {dual: k for k, dual in enumerate(dict.fromkeys(duals))}
        sum_targets = np.array([number[target] for target in sums.targets])
        producer_targets = np.array([number[dual] for dual in duals])
        is_equal_target = sum_targets[:, None] == producer_targets
        self.problem.add_pair(variable, producer, np.where(is_equal_target, 0.0, IMPOSSIBLE))
        for reader, arriving in readers:
            unshared = np.where(sums.has(arriving), 0.0, self._price_table(arriving, sums.targets, value).T)
            self.problem.add_pair(variable, self.operator_variable[reader], count * unshared)

    def _add_joint(self, price: SharedPrice, times: float) -> None:
        """Add a price that several variables pay together, ``times`` times."""
        self.problem.shared.append(price._replace(prices=times * price.prices))

    def _add_parameter(self, value: Value, storage: StorageStates, variable: int, count: int) -> None:
        """Add the price of reducing a parameter's gradients, alone or in a shared message.

        A state of the parameter's variable is a layout in which it is stored, and a way to reduce its gradients:

        - The gradient shares a message: the message is priced in ``messages``. The pair with a reader whose gradient
          arrives in another layout is :data:`IMPOSSIBLE`.
        - The storage is joint (states do not choose where gradients are added): one table has the price of each
          combination of the parameter's state and the readers' strategies.
        - Otherwise the state names in ``sums`` the layouts in which gradients are added, and pays for their moves. A
          reader whose gradient arrives in another layout pays for its own move.

        All prices are seconds times ``count * (1 - overlap)``.

        Args:
            value: the parameter, the first of ``count`` tied ones.
            storage: its states.
            variable: its variable.
            count: the number of tied parameters.
        """
        exposed, price = count * (1.0 - self.settings.overlap), self._price_function(value)
        sums = GradientSums(storage.layouts, storage.sums)
        unshared = exposed * np.where(storage.shares_message, 0.0, sums.moves(price))
        self.problem.seconds[variable] = self.problem.seconds[variable] + unshared
        message_layouts = [
            addends[0] if shares else layout
            for layout, addends, shares in zip(storage.layouts, storage.sums, storage.shares_message)
        ]
        self.messages.add(variable, message_layouts, storage.layouts, value, count)
        readers = self._gradients(value)
        if storage.joint:
            variables = [variable, *(self.operator_variable[reader] for reader, _ in readers)]
            layouts = [storage.layouts, *(arriving for _, arriving in readers)]
            self._add_joint(joint_price(variables, layouts, storage.shares_message, price), exposed)
        for reader, arriving in readers:
            prices = np.where(sums.has(arriving), 0.0, self._price_table(arriving, storage.layouts, value).T)
            # If the storage is joint, the table above has the readers' prices.
            unshared = 0.0 * prices if storage.joint else exposed * prices
            # A gradient that arrives in two layouts shares no message.
            prices = np.where(np.array(storage.shares_message)[:, None] & (prices > 0), IMPOSSIBLE, unshared)
            self.problem.add_pair(variable, self.operator_variable[reader], prices)

    def _add_reader(
        self, value: Value, storage: StorageStates, variable: int, reader: int, operand: int, count: int
    ) -> None:
        """Add a pair price: the moves of a tensor from its stored layouts to one of its readers.

        The price is in seconds, for each stored layout and each layout that the reader wants, times ``count``. It has
        the moves of the forward pass, and also those of a recomputation (:meth:`_count_forward_moves`). The bytes of
        the copy that the reader stores for the backward pass, if any, are added as the pair's memory, also times
        ``count``. A parameter that is stored apart must be stored as it is used, or finer; other pairs are
        :data:`IMPOSSIBLE`.
        """
        wanted = self.states[reader].inputs[operand]
        prices = self._count_forward_moves(value) * self._price_table(storage.layouts, wanted, value)
        if self._keeper.stored_apart(value):
            prices = np.where(self._is_finer(storage.layouts, wanted, value.shape), prices, IMPOSSIBLE)
        memory = self._copy_memory(value, storage, wanted, reader)
        copies = None if memory is None else count * memory
        self.problem.add_pair(variable, self.operator_variable[reader], count * prices, copies)

    def _count_forward_moves(self, value: Value) -> int:
        """Return how often a tensor is moved forward in a step.

        It is moved twice if its producer is computed again.
        """
        return 2 if self.settings.recompute and self.graph.training and value.kind != "input" else 1

    # -- prices -------------------------------------------------------------------------------------

    def _is_finer(
        self, stored_layouts: Sequence[Layout], wanted: Sequence[Layout], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Return a mask ``[stored, wanted]``: True if stored equals wanted or splits it further.

        Further splits are those of ``StorageLayouts.finer_layouts``, which choose the dims; other dims give False.
        """
        # The price does not depend on the dims that are split for storage, so one choice of dims is enough.
        allowed = {layout: {layout, *self._keeper.finer_layouts(layout, shape)} for layout in {*wanted}}
        return np.array([[stored in allowed[layout] for layout in wanted] for stored in stored_layouts])

    def _price_function(self, value: Value) -> Price:
        """Return the function that prices a move of a tensor between two layouts, in seconds."""
        result = value.kind == "result"
        return lambda src, dst: self.moves.seconds(src, dst, value.shape, value.itemsize, result)

    def _price_table(
        self, sources: tuple[Layout, ...], targets: tuple[Layout, ...], value: Value
    ) -> np.ndarray:
        """Return the seconds of every move of a tensor, ``[source, target]``, from a cache.

        Do not write to the array.
        """
        key = (sources, targets, value.shape, value.itemsize, value.kind == "result")
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.moves.table(*key)
        return table

    def _price_work(self, operator: Operator, states: States) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(seconds, bytes)`` of an operator's work: arrays with an entry per strategy.

        The seconds are those of its work (:func:`work_seconds`) and of the collectives inside it, forward and
        backward; they are cached. The bytes are those of the largest shards of tensors whose layout follows from this
        strategy alone (tensors that are no variable of the choice problem, :meth:`_has_variable`):

        * parameters, with their optimiser state in training;
        * operands that the operator stores for the backward pass, in the layout in which it reads them;
        * results that the operator stores and no reader does.

        Args:
            operator: the operator.
            states: its strategies with their layouts.
        """
        graph, settings = self.graph, self.settings
        inputs = [graph.values[i] for i in operator.inputs]
        gradients, itemsizes = graph.operand_gradients[operator.index], tuple(x.itemsize for x in inputs)
        key = (operator.bound, states.strategies, gradients, itemsizes)
        seconds = self._work_seconds.get(key)
        if seconds is None:
            machine, recompute = self.moves.machine, settings.recompute
            prices = [
                work_seconds(operator, strategy, itemsizes, gradients, machine, recompute)
                + steps_seconds(inner_steps(operator, strategy, gradients, recompute), machine)
                for strategy in states.strategies
            ]
            seconds = self._work_seconds[key] = np.array(prices)
        nbytes: np.ndarray = np.zeros(len(states.strategies))
        for layouts, operand in zip(states.inputs, inputs):
            if self._has_own_variable[operand.index]:
                continue
            if operand.kind == "parameter":
                nbytes = nbytes + self._lasting_bytes(operand) * _largest(layouts, operand)
            elif self._stores_operand(operator, operand):
                nbytes = nbytes + operand.itemsize * _largest(layouts, operand)
        results = [graph.values[i] for i in operator.outputs]
        for layouts, result in zip(states.outputs, results):
            if self._stores_result(operator, result) and not self._has_own_variable[result.index]:
                nbytes = nbytes + result.itemsize * _largest(layouts, result)
        return seconds, nbytes

    def _stores_result(self, operator: Operator, value: Value) -> bool:
        """Return True if an operator stores its result for the backward pass, and no reader does."""
        if not saves_result(self.graph, operator, self.settings.recompute):
            return False
        readers = [self.graph.operators[reader] for reader in self.graph.readers(value)]
        return not any(self._stores_operand(reader, value) for reader in readers)

    def _lasting_bytes(self, value: Value) -> float:
        """Return the bytes per element of a parameter and, in training, of its optimiser state.

        Its gradient does not count, because it is complete only when stored operands are freed.
        """
        nbytes = float(value.itemsize)
        return nbytes + self.settings.state_bytes(value.itemsize) if self.graph.training else nbytes

    def _stores_operand(self, operator: Operator, value: Value) -> bool:
        """Return True if an operator stores an operand for the backward pass."""
        return saves(self.graph, operator, value, self.settings.recompute)

    def _stored_bytes(self, value: Value, storage: StorageStates) -> np.ndarray:
        """Return the bytes that a rank stores of a tensor, for each of its states.

        A state is a layout in which the tensor may be stored. The bytes are those of the largest shard in this layout:

        - A parameter: with the optimiser's state in training.
        - A tensor that a reader or the producer stores for the backward pass, or that enters a layer in training with
          recomputation: the shard alone.
        - Another tensor: 0.

        Args:
            value: the tensor.
            storage: its states.
        """
        shard_bytes = value.itemsize * _largest(storage.layouts, value)
        readers = [self.graph.operators[reader] for reader, _ in self.graph.consumers[value.index]]
        if value.kind == "parameter":
            return self._lasting_bytes(value) / value.itemsize * shard_bytes
        producer = None if value.producer is None else self.graph.operators[value.producer]
        is_stored = any(self._stores_operand(reader, value) for reader in readers)
        is_stored |= producer is not None and self._stores_result(producer, value)
        is_stored |= self.settings.recompute and self.graph.training and self.graph.enters_layer(value)
        return shard_bytes if is_stored else 0.0 * shard_bytes

    def _copy_memory(
        self, value: Value, storage: StorageStates, wanted: tuple[Layout, ...], reader: int
    ) -> np.ndarray | None:
        """Return the bytes of the redistributed copy that an operator stores for the backward pass.

        The bytes are those of the largest shard. If the operator reads the tensor in its stored layout, it stores no
        copy, and the bytes are 0.

        Args:
            value: the tensor.
            storage: its states.
            wanted: the layout in which each state of the reader reads it.
            reader: the index of the operator that reads it.

        Returns:
            The array ``[state of the tensor, state of the reader]``; None if the reader stores nothing.
        """
        operator = self.graph.operators[reader]
        if not self._stores_operand(operator, value):
            return None
        copy_bytes = value.itemsize * _largest(wanted, value)
        differs = np.array([[stored != read for read in wanted] for stored in storage.layouts])
        array: np.ndarray | None = differs * copy_bytes[None, :]
        return array

    # -- reading a solution -------------------------------------------------------------------------

    def surely_kept(self) -> ChoiceProblem:
        """Return the problem with memory that is a lower bound on the peak of every assignment.

        Results with a variable count no bytes, because a tensor with several readers need not be stored if each
        reader stores a copy in another layout.
        """
        result_variables = {
            variable
            for value, variable in self.value_variable.items()
            if self.graph.values[value].kind != "parameter"
        }
        memory = [
            0.0 * nbytes if variable in result_variables else nbytes
            for variable, nbytes in enumerate(self.problem.memory)
        ]
        return replace(self.problem, memory=memory)

    def least(self, solution: Solution) -> float | None:
        """Return a lower bound on the seconds of every choice, from the cheapest solution.

        Prices of messages that gradients share may be too high: by the share ``messages.share`` and by
        ``messages.seconds`` in addition. Both are taken off the price of the solution: with 10 s, a share of 0.25 and
        2 s in addition, the bound is (10 - 2) / 1.25 = 6.4 s.

        Returns:
            The bound. None if the solution is not optimal, if the model leaves out choices, or if nothing above 0
            remains of a price above 0.
        """
        if not (solution.optimal and self.complete):
            return None
        least = (solution.seconds - self.messages.seconds) / (1.0 + self.messages.share)
        return least if least > 0 or not solution.seconds else None

    def choice(self, states: Sequence[int]) -> StrategyChoice:
        """Convert an assignment to the strategies of all operators and the layouts of all tensors.

        Args:
            states: the assignment: the state of each variable of ``problem``.
        """
        graph = self.graph
        # The state of an operator's variable is the number of its strategy.
        strategies = tuple(
            operator_states.strategies[states[variable]]
            for operator_states, variable in zip(self.states, self.operator_variable)
        )
        layouts = tuple(self._stored_layout(value, states) for value in graph.values)
        return StrategyChoice(graph, self.mesh, strategies, layouts)

    def states_of(self, strategies: Sequence[Strategy]) -> list[int]:
        """Return an assignment with these strategies and cheap layouts for them.

        An operator whose strategy is no candidate gets its first candidate. Of tied operators
        the last one whose strategy is a candidate counts.
        The layouts of tensors are decided one after the other, each as the cheapest one beside the earlier decisions.
        Hubs (the variables of messages that gradients share) are decided at the end.

        Args:
            strategies: one per operator.

        Returns:
            The state of each variable of ``problem``.
        """
        states = [0] * len(self.problem)
        for operator, strategy in zip(self.graph.operators, strategies):
            available = self.states[operator.index].strategies
            if strategy in available:
                states[self.operator_variable[operator.index]] = available.index(strategy)
        price = self.problem.price_of_states
        for variable in dict.fromkeys([*self.value_variable.values(), *self.sum_variables]):
            options = range(self.problem.sizes[variable])
            states[variable] = min(options, key=lambda k: price(states, variable, k))
        return self.problem.with_best_hubs(states)

    def _stored_layout(self, value: Value, states: Sequence[int]) -> Layout:
        """Return the layout in which a tensor is stored in an assignment.

        A tensor with a variable is stored in the layout of the variable's state. For other tensors:

        - A result is stored as its producer computes it.
        - An input or parameter is stored as the user fixed it, or else as its first reader needs it.
        - An input or parameter that is neither fixed nor read is replicated.

        Args:
            value: the tensor.
            states: the state of each variable of ``problem``.
        """
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
    """Return the elements of a tensor's largest shard in each of some layouts."""
    return np.array([largest_shard(layout, value.shape) for layout in layouts], float)


def candidates(operator: Operator, mesh: Mesh, settings: Settings) -> tuple[Strategy, ...]:
    """Return the strategies that a search considers for an operator."""
    passing = settings.partial and operator.linear
    full = settings.full and operator.bound.contraction
    even, nested = settings.even is not False, settings.nested
    return mesh_strategies(operator.bound, mesh, partial=passing, full=full, even=even, nested=nested)
