"""Peak memory of one rank in one step: the arrays at each moment, forward, backward and in the update.

The counted arrays are those of tensors, of the tape, and the buffers of plans and of shared messages. The program's
inputs stay alive throughout. A value is freed after its last reader unless the tape stores it, and a gradient once it
is passed on. Not counted are arrays inside NumPy functions, values that variables of the program refer to for longer,
and unused buffers of the pool. Views and in-place results count as new arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spmdsim.auto_parallel.costs.evaluate import GradientMessage, Move
from spmdsim.auto_parallel.costs.move_prices import MovePrices, dtype_of_size, message_kind, moved_itemsize
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
        gradients: of parameters, those that are complete at the peak.
        optimizer: the optimiser's state.
        activations: arrays that the tape stores at the peak for later gradients.
        transient: all other arrays.
        where: name of the operator during which the peak is reached, "update" for the optimiser, or "" for a program
            without operators.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    where: str

    @property
    def peak(self) -> int:
        """Sum of all attributes in bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.transient


def saves(graph: Graph, operator: Operator, value: Value, recompute: bool = False) -> bool:
    """Return True if an operator stores an operand for its backward pass.

    It does so if its gradients read the operand. With recomputation, only tensors that enter a layer are stored, and
    no copies of parameters.
    """
    read_flags = graph.seen_operands[operator.index]
    if (value.index, True) not in zip(operator.inputs, read_flags):
        return False
    return not recompute or (value.kind != "parameter" and graph.enters_layer(value))


def saves_result(graph: Graph, operator: Operator, recompute: bool = False) -> bool:
    """Return True if an operator stores its results for its backward pass.

    With recomputation no operator does.
    """
    return operator.saves_result and operator.index in graph.reached and not recompute


def stored_bytes(choice: StrategyChoice, value: int) -> int:
    """Return the bytes of a tensor's largest shard as it is stored; ``value`` is its index."""
    return _nbytes(choice.graph.values[value], choice.layouts[value])


def _nbytes(value: Value, layout: Layout) -> int:
    """Return the bytes of a tensor's largest shard in a layout."""
    return _shard_nbytes(layout, value.shape, value.itemsize)


@lru_cache(maxsize=4096)
def _shard_nbytes(layout: Layout, shape: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes of the largest shard of a tensor in a layout, from a cache."""
    return moved_itemsize(layout, itemsize) * largest_shard(layout, shape)


@lru_cache(maxsize=1024)
def _message_peak(steps: tuple[Step, ...], itemsize: int) -> int:
    """Return the peak bytes of a shared message; messages of equal layers are priced once."""
    dtype = dtype_of_size(itemsize)
    return plan_peak(steps, dtype, dtype)


def peak_memory(choice: StrategyChoice, settings: Settings, prices: MovePrices | None = None) -> Memory:
    """Return the peak memory of one step by replaying what the runtime stores and frees.

    The step is the forward pass and, if the graph is for training, the backward pass and the update. Bytes are those
    of the largest shards.

    Args:
        choice: the strategies and layouts.
        settings: the assumptions of the cost model.
        prices: the plans of redistributions that are known already; new ones are added. None: start with none.
    """
    step = StepMemory(choice, settings, prices or MovePrices(settings))
    for operator in choice.graph.operators:
        step.forward(operator)
    if choice.graph.training:
        step.start_backward()
        for operator in reversed(choice.graph.operators):
            step.backward(operator)
        step.update()
    assert step.peak is not None
    return step.peak


#: Key of an array: index of the tensor, and index of the operator that stores it in its own layout, or None for the
#: tensor in its stored layout.
Key = tuple[int, int | None]


class _Arrays(dict[Any, int]):
    """Bytes of each array; ``total`` is their sum."""

    total = 0

    def put(self, key: object, nbytes: int) -> None:
        """Set the bytes of an array; a second call replaces them."""
        self.total += nbytes - self.get(key, 0)
        self[key] = nbytes

    def drop(self, key: object) -> None:
        """Remove an array if it is there."""
        self.total -= self.pop(key, 0)


class StepMemory:
    """Bytes of a rank's arrays in the course of one step.

    ``peak`` has the largest total so far. Call :meth:`forward` for all operators in order; in training then
    :meth:`start_backward`, :meth:`backward` for all operators in reverse order, and :meth:`update`.
    """

    def __init__(self, choice: StrategyChoice, settings: Settings, prices: MovePrices) -> None:
        self.choice, self.settings, self.prices, self.graph = choice, settings, prices, choice.graph
        graph = choice.graph
        self.parameters = sum(stored_bytes(choice, value.index) for value in graph.parameters)
        state_bytes = (
            stored_bytes(choice, value.index) * settings.state_bytes(value.itemsize) / value.itemsize
            for value in graph.parameters
        )
        self.optimizer = int(sum(state_bytes)) if graph.training else 0
        self.gradients = 0
        self.peak = Memory(self.parameters, 0, self.optimizer, 0, 0, "")
        #: Arrays that only the program refers to, arrays that the tape stores, and the operators that store them.
        self.living, self.stored = _Arrays(), _Arrays()
        for value in graph.values:
            if value.kind == "input":
                self.living.put((value.index, None), stored_bytes(choice, value.index))
        self.storing_operators: dict[Key, set[int]] = {}
        self.stored_keys: dict[int, list[Key]] = {}
        #: Layouts of incomplete gradients by tensor, and the bytes of incomplete and of waiting gradients.
        self.arrived: dict[int, list[Layout]] = {}
        self.underway = 0
        #: Gradients that wait for a message, and their bytes, by kind of the message and itemsize.
        self.buckets: dict[tuple[Merge, int], list[tuple[Value, Layout]]] = {}
        self.bucket_bytes: dict[tuple[Merge, int], int] = {}
        self._recomputed: set[int] = set()

    # -- moments --------------------------------------------------------------------------------------

    def update_peak(self, where: str, more: int) -> None:
        """Update the peak with all current arrays and ``more`` further bytes.

        ``where`` names the operator.
        """
        transient = self.living.total + self.underway + more
        facts = self.parameters, self.gradients, self.optimizer, self.stored.total, transient
        if sum(facts) > self.peak.peak or not self.peak.where:
            self.peak = Memory(*facts, where)

    def moving(self, value: Value, src: Layout, dst: Layout) -> int:
        """Return the bytes that a redistribution needs beside its source, including its result."""
        if src.canonical == dst.canonical:
            return 0
        plan = self.prices.plan(src, dst, value.shape, value.itemsize, value.kind == "result")
        return plan.peak_nbytes - _nbytes(value, src)

    # -- forward --------------------------------------------------------------------------------------

    def forward(self, operator: Operator) -> None:
        """Account for an operator's forward pass in ``living``, ``stored`` and ``peak``.

        Call it once for each operator of the graph, in order. In this order:

        1. Operands are redistributed one by one. The peak is updated for each, with its buffers and the operands
           redistributed before it.
        2. The results are computed. The peak is updated with all redistributed operands and the results.
        3. The tape stores the arrays that the gradients need; with recomputation in training only those that enter a
           layer.
        4. Results are redistributed one by one. The peak is updated for each, with its buffers and the results that
           are not redistributed yet.
        5. Tensors that no later operator reads are freed.

        Args:
            operator: the next operator of the graph.
        """
        choice, graph, name, values = self.choice, self.graph, operator.name, self.graph.values
        layouts, copied_bytes = choice.operator_layouts[operator.index], 0
        for operand, operand_layout in zip(operator.inputs, layouts.inputs):
            stored_layout = choice.layouts[operand]
            if operand_layout.canonical != stored_layout.canonical:
                moving_bytes = self.moving(values[operand], stored_layout, operand_layout)
                self.update_peak(name, copied_bytes + moving_bytes)
                copied_bytes += _nbytes(values[operand], operand_layout)
        result_layouts = dict(zip(operator.outputs, layouts.outputs))
        result_bytes = {result: _nbytes(values[result], layout) for result, layout in result_layouts.items()}
        self.update_peak(name, copied_bytes + sum(result_bytes.values()))
        self._keep(operator, self.settings.recompute and graph.training)
        for result, layout in result_layouts.items():
            moving_bytes = self.moving(values[result], layout, choice.layouts[result])
            self.update_peak(name, sum(result_bytes.values()) + moving_bytes)
            if (result, None) not in self.stored:
                self.living.put((result, None), stored_bytes(choice, result))
            result_bytes[result] = 0  # `living` counts the result from here on
        self._free(operator)

    def _free(self, operator: Operator) -> None:
        """Free an operator's operands and results that no later operator reads.

        Inputs, parameters and results of the program stay, and so do arrays that the tape stores.
        """
        for value in {*operator.inputs, *operator.outputs}:
            readers = self.graph.consumers[value]  # in program order
            stays = self.graph.values[value].kind != "result" or value in self.graph.results
            has_later_reader = bool(readers) and readers[-1][0] > operator.index
            if not stays and not has_later_reader:
                self.living.drop((value, None))

    def _keep(self, operator: Operator, recompute: bool) -> None:
        """Move the arrays that an operator's gradients need from ``living`` to ``stored``.

        The arrays are in the operator's own layouts. An array that several operators store counts once, until the
        last of these operators frees it. The peak is not updated.
        """
        for key, nbytes in self._stored_arrays(operator, recompute):
            self.living.drop(key)
            self.stored.put(key, nbytes)
            self.storing_operators.setdefault(key, set()).add(operator.index)
            self.stored_keys.setdefault(operator.index, []).append(key)

    def _stored_arrays(self, operator: Operator, recompute: bool) -> Iterable[tuple[Key, int]]:
        """Yield key and bytes of each array that the tape stores for an operator.

        A key is ``(index of the tensor, index of the operator)``; the second is None for the tensor in its stored
        layout. Parameters in their stored layout are not yielded, because they live throughout.

        Args:
            operator: the operator.
            recompute: True to store only tensors that enter a layer.
        """
        choice, graph = self.choice, self.graph
        layouts = choice.operator_layouts[operator.index]
        read = zip(operator.inputs, layouts.inputs)
        arrays = [(i, layout) for i, layout in read if saves(graph, operator, graph.values[i], recompute)]
        if saves_result(graph, operator, recompute):
            arrays += zip(operator.outputs, layouts.outputs)
        for i, layout in dict.fromkeys(arrays):
            is_stored_layout = layout.canonical == choice.layouts[i].canonical
            if not (is_stored_layout and graph.values[i].kind == "parameter"):
                yield (i, None if is_stored_layout else operator.index), _nbytes(graph.values[i], layout)

    # -- backward -------------------------------------------------------------------------------------

    def start_backward(self) -> None:
        """Start the backward pass: count the gradient of ones that each result of the program gets.

        A result that the program returns twice gets one. Results that no gradient passes through and inputs that are
        returned get none.
        """
        for result in {*self.graph.results}:
            value, layout = self.graph.values[result], self.choice.layouts[result].dual()
            if value.producer in self.graph.reached:
                self.arrived[result] = [layout]
                self.underway += _nbytes(value, layout)

    def backward(self, operator: Operator) -> None:
        """Account for an operator's backward pass, and update the peak.

        Nothing happens if no gradient reaches the operator. Otherwise, in this order:

        1. With recomputation, the arrays of the operator's layer are computed again and stored, once per layer.
        2. The gradients of the operator's results that have arrived are moved and added.
        3. The gradients of the operator's operands are computed.
        4. The arrays that the tape stored for the operator are freed.
        5. The gradients of parameters that are complete now are reduced, or wait for a shared message. A parameter's
           gradient is complete at the first operator that reads the parameter, which is the last one in the backward
           pass.

        Args:
            operator: an operator; call the method for all operators, the last one of the graph first.
        """
        if operator.index not in self.graph.reached:
            return
        if self.settings.recompute:
            self._recompute(operator)
        layouts, name = self.choice.operator_layouts[operator.index], operator.name
        result_gradient_bytes = 0
        for result, layout in zip(operator.outputs, layouts.outputs):
            result_gradient_bytes += self._add_gradients(
                self.graph.values[result], layout.dual(), name, result_gradient_bytes
            )
        operand_gradients = []
        has_gradient = self.graph.operand_gradients[operator.index]
        for operand, layout, is_computed in zip(operator.inputs, layouts.gradients, has_gradient):
            if is_computed:
                operand_gradients.append((operand, layout, _nbytes(self.graph.values[operand], layout)))
        self.update_peak(name, result_gradient_bytes + sum(nbytes for _, _, nbytes in operand_gradients))
        for operand, layout, nbytes in operand_gradients:
            self.arrived.setdefault(operand, []).append(layout)
            self.underway += nbytes
        self._free_stored(operator)
        for operand in dict.fromkeys(operator.inputs):
            value = self.graph.values[operand]
            # Readers are in program order, so a gradient is complete after the first of them.
            if (
                value.kind == "parameter"
                and operand in self.arrived
                and self.graph.gradient_readers[operand][0][0] == operator.index
            ):
                self._complete_gradient(value, name)

    def _recompute(self, operator: Operator) -> None:
        """Store the arrays of an operator's layer when the backward pass reaches the layer.

        The pass reaches the layer at its last operator. The arrays were not stored in the forward pass and are
        computed again, for all operators of the layer together. At the other operators of the layer nothing happens.
        Operators outside of layers are one layer as long as they follow one another.
        """
        operators = self.graph.operators
        for recomputed in reversed(operators[: operator.index + 1]):
            if recomputed.layer != operator.layer or recomputed.index in self._recomputed:
                break
            self._recomputed.add(recomputed.index)
            self._keep(recomputed, recompute=False)

    def _add_gradients(self, value: Value, layout: Layout, where: str, more: int) -> int:
        """Add up the gradients of a tensor that have arrived, and update the peak.

        The peak counts all gradients that have arrived, the buffers of the largest move, and the sum if several
        gradients have arrived. Afterwards ``underway`` no longer counts the gradients; the caller counts the sum.

        Args:
            value: the tensor.
            layout: the layout of the sum, to which the gradients move first.
            where: the name of the operator, for the peak.
            more: further bytes that are alive meanwhile.

        Returns:
            The bytes of the sum; 0 if no gradient has arrived.
        """
        arrived = self.arrived.pop(value.index, [])
        if not arrived:
            return 0
        total = _nbytes(value, layout)
        moving_bytes = max(
            self.moving(value, src, layout) for src in {src.canonical: src for src in arrived}.values()
        )
        self.update_peak(where, more + moving_bytes + (total if len(arrived) > 1 else 0))
        self.underway -= sum(_nbytes(value, src) for src in arrived)
        return total

    def _free_stored(self, operator: Operator) -> None:
        """Free the arrays that the tape stored for an operator's gradient and no other gradient still needs.

        An input of the program that no operator copied to another layout is not freed: it moves from ``stored`` back
        to ``living``, because the program still refers to it.
        """
        for key in self.stored_keys.pop(operator.index, ()):
            self.storing_operators[key].discard(operator.index)
            if not self.storing_operators[key] and key in self.stored:
                tensor, copying_operator = key
                # Without a copying operator, the array is the tensor itself, not a copy in another layout.
                if self.graph.values[tensor].kind == "input" and copying_operator is None:
                    self.living.put(key, self.stored[key])
                self.stored.drop(key)

    def _complete_gradient(self, value: Value, where: str) -> None:
        """Reduce a parameter's complete gradient, or let it wait for a shared message.

        - If addends arrived in several layouts, or :func:`message_kind` returns None, the gradient is reduced alone.
        - Otherwise it waits in the bucket of its kind. When a bucket reaches :data:`BUCKET_BYTES`, its message is
          sent.

        Args:
            value: the parameter; at least one gradient must have arrived.
            where: the name of the operator, for the peak.
        """
        target = self.choice.layouts[value.index].dual()
        layouts = {src.canonical: src for src in self.arrived[value.index]}
        src = next(iter(layouts.values()))
        merge = message_kind(self.settings, src, target, value.shape) if len(layouts) == 1 else None
        if merge is None:
            self.gradients += self._add_gradients(value, target, where, 0)
            return
        total = self._add_gradients(value, src, where, 0)
        self.underway += total
        key = merge, moved_itemsize(src, value.itemsize)
        self.buckets.setdefault(key, []).append((value, src))
        self.bucket_bytes[key] = self.bucket_bytes.get(key, 0) + total
        if self.bucket_bytes[key] >= BUCKET_BYTES:
            self._send(key, where)

    def _send(self, key: tuple[Merge, int], where: str) -> None:
        """Reduce the gradients that wait for one message, and empty their bucket; update the peak.

        A bucket with one gradient needs no joined buffer, so it is reduced alone. The reduced gradients count as
        ``gradients`` from then on, no longer as ``underway``.

        Args:
            key: the kind of the message and the bytes of an element.
            where: the name of the operator, for the peak.
        """
        bucket, total, (merge, itemsize) = self.buckets.pop(key), self.bucket_bytes.pop(key), key
        moves = [
            Move("gradient", value, None, src, self.choice.layouts[value.index].dual())
            for value, src in bucket
        ]
        if len(bucket) == 1:
            self.update_peak(where, self.moving(moves[0].value, moves[0].src, moves[0].dst))
        else:
            steps = GradientMessage(merge, tuple(moves), self.settings.machine).steps
            # First the gradients and the buffer into which they are joined exist, then the buffer and what its steps
            # need. ``underway`` counts the gradients already, which are as large as the buffer.
            self.update_peak(where, max(total, _message_peak(steps, itemsize) - total))
        self.underway -= total
        self.gradients += sum(stored_bytes(self.choice, value.index) for value, _ in bucket)

    def update(self) -> None:
        """Account for the end of the step.

        First the messages that still wait in ``buckets`` are sent, at the first operator that a gradient reaches.
        Then the parameters are updated. This needs as many further bytes as the largest parameter's shard.
        """
        # The backward pass runs from the last operator to the first one that a gradient reaches.
        last_backward_operator = next(
            (o.name for o in self.graph.operators if o.index in self.graph.reached), ""
        )
        for key in [*self.buckets]:
            self._send(key, last_backward_operator)
        parameter_bytes = [stored_bytes(self.choice, value.index) for value in self.graph.parameters]
        self.update_peak("update", max(parameter_bytes, default=0))
