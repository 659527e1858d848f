"""The cost of a choice of strategies, operator by operator, exactly as the program runs.

Every redistribution that the runtime will do is listed once: operands forward, results after their operators,
gradients backward (gradients in equal layouts are added first and moved once), and gradients of parameters, some of
which share a message. This list is the reference: the report prints it, and a run's trace is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.arrays import Tensor
from spmdsim.arrays.stepped import SteppedRule
from spmdsim.auto_parallel.costs.move_prices import Moved, MovePrices, message_kind, moved_itemsize
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.step import Step
from spmdsim.core.tensor import Meta
from spmdsim.cost.machine import CostModel, Machine
from spmdsim.cost.roofline import forward_work, gradient_work
from spmdsim.layout.element_type import element_type
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.plans.merge import Merge, common_replica_axes, fill_buckets, shard_elements
from spmdsim.redistribution.price import price_step, steps_seconds
from spmdsim.worlds import ShapeOnly
from spmdsim.worlds.trace import record

if TYPE_CHECKING:
    import numpy as np

#: Phases of a step in which a tensor moves: "gradient" is the reduction of a parameter's gradient.
PHASES = ("forward", "backward", "gradient")


def work_seconds(
    operator: Operator,
    strategy: Strategy,
    itemsizes: Sequence[int],
    gradients: Sequence[bool],
    machine: CostModel,
    recompute: bool = False,
) -> float:
    """Return the modelled seconds of an operator's work on the busiest rank, without communication.

    F is the time of :func:`~spmdsim.cost.roofline.forward_work` on the machine, and B that of
    :func:`~spmdsim.cost.roofline.gradient_work`. Without gradients the result is F; with gradients it is F + n B, or
    2 F + n B with ``recompute``. For a contraction, n is the number of operands with a gradient, because each
    gradient costs as much as the contraction. For other operators n is 1, because the rule states the cost of all
    gradients together. For example, F and B of a matrix product are 1 ms, and both operands have gradients: the
    result is 1 + 2 = 3 ms, or 4 ms with ``recompute``.

    Args:
        operator: the operator.
        strategy: its strategy.
        itemsizes: bytes per element of each operand.
        gradients: for each operand, True if its gradient is computed.
        machine: the cost model.
        recompute: True if the forward work is done twice in training.
    """
    bound = operator.bound
    forward = forward_work(bound, strategy, itemsizes).seconds(machine)
    if not any(gradients):
        return forward
    passes = sum(gradients) if bound.contraction else 1
    backward = gradient_work(bound, strategy, itemsizes).seconds(machine)
    return forward * (1 + recompute) + backward * passes


class InnerStep(NamedTuple):
    """A collective inside an operator.

    Attributes:
        step: the collective.
        dtype: the type of the communicated elements.
        operator: name of the operator that runs it, which for gradients may be another one; None if unknown.
    """

    step: Step
    dtype: np.dtype
    operator: str | None = None

    def nbytes(self, rank: int) -> int:
        """Return the bytes that a rank receives; the expected bytes if they depend on data."""
        return self.step.nbytes(rank, self.dtype.itemsize)


@lru_cache(maxsize=1024)
def _inner_steps(bound: BoundRule, strategy: Strategy, backward: bool = False) -> tuple[InnerStep, ...]:
    """Return the collectives inside an operator's local function, or inside its gradients; cached.

    The collectives of the local function are declared by its rule. Those of the gradients are recorded: the gradient
    function runs on tensors without data, and gets a gradient for each result whose type is a float or complex.

    The tuple is empty if the operator has no inner collectives. For gradients it is also empty if the operator has no
    gradient function, or no result of a float or complex type.

    Args:
        bound: the operator's rule, bound to its shapes.
        strategy: its strategy.
        backward: True for the collectives of the gradients. Only these have names of operators.
    """
    if not isinstance(bound, SteppedRule) or not backward:
        return tuple(InnerStep(*step_and_dtype) for step_and_dtype in bound.steps(strategy) or ())
    op, params = bound.op, dict(bound.params)
    # The world has all ranks of the mesh, whose numbers need not start at 0.
    world = ShapeOnly(1 + max(strategy.mesh.rank_list))
    dtypes = op.result_dtype(bound.dtypes, params)
    layouts, shapes = bound.output_layouts(strategy), bound.output_shapes

    def tensors(*facts: Sequence[Any]) -> list[Tensor]:
        return [Tensor(world, meta, world.empties(meta)) for meta in map(Meta.of, *facts)]

    operands = tensors(bound.input_layouts(strategy), bound.shapes, bound.dtypes)
    results = tensors(layouts, shapes, dtypes if isinstance(dtypes, tuple) else (dtypes,) * len(shapes))
    dys = tensors([layout.dual() for layout in layouts], shapes, [result.dtype for result in results])
    gradients = [dy if dy.dtype.kind in "fcV" else None for dy in dys]
    if op.adjoint is None or not any(dy is not None for dy in gradients):
        return ()
    with record() as trace:
        op.adjoint(gradients, operands, results, **params)
    return tuple(
        InnerStep(event.step, element_type(event.dtype), event.operator) for event in trace.collectives
    )


def inner_steps(
    operator: Operator, strategy: Strategy, gradients: Sequence[bool], recompute: bool = False
) -> list[InnerStep]:
    """Return the collectives inside an operator in one training step.

    They are listed with the operators that run them.

    Args:
        operator: the operator.
        strategy: its strategy.
        gradients: for each operand, True if its gradient is computed.
        recompute: True if the forward collectives run twice in training.
    """
    forward = _inner_steps(operator.bound, strategy)
    backward = _inner_steps(operator.bound, strategy, backward=True) if any(gradients) else ()
    forward_steps = [step._replace(operator=operator.name) for step in forward]
    return [*forward_steps * (1 + (recompute and any(gradients))), *backward]


@dataclass(frozen=True)
class Move:
    """Redistribution of a tensor in a run.

    Attributes:
        phase: one of :data:`PHASES`; "backward" moves the gradient of a result, "gradient" that of a parameter.
        value: the tensor.
        operator: index of the operator during which it happens; None for a parameter's gradient.
        src: the layout before.
        dst: the layout after.
        times: how often it happens in a step: 2 if the backward pass repeats it to compute activations again.
    """

    phase: str
    value: Value
    operator: int | None
    src: Layout
    dst: Layout
    times: int = 1

    @property
    def price_key(self) -> Moved:
        """The arguments of :meth:`MovePrices.plan` that determine its price."""
        return self.src, self.dst, self.value.shape, self.value.itemsize, self.value.kind == "result"


@dataclass(frozen=True)
class GradientMessage:
    """Message in which gradients of several parameters are reduced together."""

    merge: Merge
    moves: tuple[Move, ...]
    machine: CostModel | None = None

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """Number of elements of each gradient on a rank."""
        return tuple(shard_elements(move.src, move.value.shape) for move in self.moves)

    @property
    def itemsize(self) -> int:
        """Bytes per element of the reduced gradients."""
        return moved_itemsize(self.moves[0].src, self.moves[0].value.itemsize)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The collectives of the message.

        On a real machine, ranks with replicas of all gradients may share the work, which takes several collectives.
        Published cost models have one collective.
        """
        machine = self.machine if isinstance(self.machine, Machine) else None
        copies = common_replica_axes(move.src for move in self.moves) if machine is not None else ()
        return self.merge.steps(sum(self.elements), copies, self.itemsize, machine)

    def nbytes(self, rank: int) -> int:
        """Return the bytes that a rank receives."""
        return sum(step.nbytes(rank, self.itemsize) for step in self.steps)

    def seconds(self, prices: MovePrices) -> float:
        """Return the modelled seconds; ``prices`` are used for published cost models."""
        if isinstance(self.machine, Machine):
            return sum(price_step(step, self.itemsize, self.machine)[1] for step in self.steps)
        return prices.message_seconds(self.merge, self.itemsize * sum(self.elements))


def moves_of(choice: StrategyChoice, settings: Settings) -> tuple[Move, ...]:
    """Return all redistributions of one step.

    They are in program order for the forward pass, then in reverse order for the backward pass.
    """
    return (*_forward_moves(choice, settings), *(_backward_moves(choice) if choice.graph.training else ()))


def _forward_moves(choice: StrategyChoice, settings: Settings) -> Iterator[Move]:
    """Yield the redistributions of operands and results in the forward pass.

    An operand moves from its stored layout to the one in which the operator reads it. A result moves from the layout
    in which it is computed to its stored layout. Operators are in program order; of each, operands come before
    results. Moves between equal layouts are left out. If training recomputes, all moves but those of inputs count
    twice.

    Args:
        choice: the strategies and layouts.
        settings: the assumptions of the cost model; only ``recompute`` counts.
    """
    graph = choice.graph
    for operator in graph.operators:
        operator_layouts = choice.operator_layouts[operator.index]
        recomputed = settings.recompute and graph.training
        for operand, wanted in zip(operator.inputs, operator_layouts.inputs):
            value = graph.values[operand]
            times = 2 if recomputed and value.kind != "input" else 1
            if choice.layouts[operand].canonical != wanted.canonical:
                yield Move("forward", value, operator.index, choice.layouts[operand], wanted, times)
        for result, produced in zip(operator.outputs, operator_layouts.outputs):
            if choice.layouts[result].canonical != produced.canonical:
                value, wanted = graph.values[result], choice.layouts[result]
                yield Move("forward", value, operator.index, produced, wanted, 1 + recomputed)


def _backward_moves(choice: StrategyChoice) -> Iterator[Move]:
    """Yield the redistributions of gradients: of results in backward order, then of parameters.

    - The gradient of a result moves at the operator that computes the result (phase "backward"). The target is the
      dual of the layout in which the result is computed.
    - The gradient of a parameter moves after all operators (phase "gradient"). The target is the dual of the stored
      layout.

    Gradients of one tensor that arrive in equal layouts are added first and move once. Moves between equal layouts are
    left out.

    Args:
        choice: the strategies and layouts.
    """
    graph = choice.graph
    for operator in reversed(graph.operators):
        if operator.index not in graph.reached:
            continue
        for result, produced in zip(operator.outputs, choice.operator_layouts[operator.index].outputs):
            for src in _gradient_layouts(choice, result):
                if src.canonical != produced.dual().canonical:
                    yield Move("backward", graph.values[result], operator.index, src, produced.dual())
    for value in _parameters_by_gradient(graph):
        for src in _gradient_layouts(choice, value.index):
            if src.canonical != choice.layouts[value.index].dual().canonical:
                yield Move("gradient", value, None, src, choice.layouts[value.index].dual())


def _parameters_by_gradient(graph: Graph) -> list[Value]:
    """Return the parameters in the order in which their gradients become complete.

    A gradient is complete when the backward pass has passed all readers of the parameter.
    """
    backwards = (operator for operator in reversed(graph.operators) if operator.index in graph.reached)
    read = (operand for operator in backwards for operand in operator.inputs)
    return [graph.values[i] for i in dict.fromkeys(read) if graph.values[i].kind == "parameter"]


def messages_of(moves: Iterator[Move] | tuple[Move, ...], settings: Settings) -> tuple[GradientMessage, ...]:
    """Return the messages that gradients of parameters share; each has at least two gradients.

    Gradients can share a message if they have equal reductions and equal bytes per element. In the order of ``moves``
    they are put into buckets of :data:`BUCKET_BYTES`; a bucket of at least two gradients is a message. A gradient that
    arrives in several layouts shares no message. Only moves of the phase "gradient" are read.

    Args:
        moves: the redistributions of a step.
        settings: the assumptions of the cost model, with ``merge``.
    """
    arriving: dict[int, list[Move]] = {}
    for move in moves:
        if move.phase == "gradient":
            arriving.setdefault(move.value.index, []).append(move)
    waiting: dict[tuple[Merge, int], list[tuple[Move, int]]] = {}
    for move, *other_moves in arriving.values():
        merge = message_kind(settings, move.src, move.dst, move.value.shape)
        if merge is not None and not other_moves:
            size = moved_itemsize(move.src, move.value.itemsize)
            nbytes = size * shard_elements(move.src, move.value.shape)
            waiting.setdefault((merge, size), []).append((move, nbytes))
    return tuple(
        GradientMessage(merge, tuple(bucket), settings.machine)
        for (merge, _), group in waiting.items()
        for bucket in fill_buckets(group)
        if len(bucket) > 1
    )


def _gradient_layouts(choice: StrategyChoice, value: int) -> list[Layout]:
    """Return the distinct layouts in which a tensor's gradients arrive from its readers.

    ``value`` is the index of the tensor.
    """
    readers, layouts = choice.graph.gradient_readers[value], choice.operator_layouts
    return list(dict.fromkeys([layouts[reader].gradients[operand].canonical for reader, operand in readers]))


@dataclass
class OperatorSeconds:
    """Modelled seconds of one operator in one step.

    Attributes:
        compute: its work, forward and backward, and collectives inside it.
        forward: redistributions of its operands and results.
        backward: redistributions of its results' gradients.
        gradient: reductions of the gradients of the parameters that it reads first.
    """

    compute: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    gradient: float = 0.0

    @property
    def seconds(self) -> float:
        """Sum of all addends."""
        return self.compute + self.forward + self.backward + self.gradient


@dataclass(repr=False)
class Evaluation(ShortRepr):
    """Modelled seconds of a choice.

    A parameter's gradient is counted at the parameter's first reader. The seconds of a shared message are divided
    among its gradients by their sizes.

    Attributes:
        operators: the seconds of each operator.
        moves: each redistribution with its seconds.
        messages: the messages that gradients share.
        inner: the collectives inside operators.
    """

    operators: list[OperatorSeconds]
    moves: list[tuple[Move, float]]
    messages: tuple[GradientMessage, ...] = ()
    inner: tuple[InnerStep, ...] = ()

    @cached_property
    def alone(self) -> tuple[Move, ...]:
        """The redistributions that share no message."""
        shared_ids = {id(move) for message in self.messages for move in message.moves}
        return tuple(move for move, _ in self.moves if id(move) not in shared_ids)

    @property
    def seconds(self) -> float:
        """Modelled seconds of one step."""
        return sum(cost.seconds for cost in self.operators)


def _price_operators(
    choice: StrategyChoice, settings: Settings
) -> tuple[list[OperatorSeconds], list[InnerStep]]:
    """Return the seconds of each operator's work and inner collectives, and these collectives.

    An inner collective is one inside the operator's local function or its gradient. Redistributions are not counted
    yet.

    Args:
        choice: the strategies and layouts.
        settings: the assumptions of the cost model.

    Returns:
        ``(costs, inner)``: an entry per operator of the graph, and the collectives inside operators, in program
        order.
    """
    graph, machine = choice.graph, settings.machine
    costs, inner = [], list[InnerStep]()
    # Price equal operators once. Repeated layers share their rules, so equal ids of rules mean equal operators; the
    # graph keeps the rules alive. Operators with inner steps are priced one by one, because the steps name them.
    priced_rules: dict[tuple[object, ...], tuple[float, float, bool]] = {}
    for operator in graph.operators:
        gradients = graph.operand_gradients[operator.index]
        sizes = tuple([graph.values[i].itemsize for i in operator.inputs])
        strategy = choice.strategies[operator.index]
        key = (id(operator.bound), strategy, gradients, sizes)
        if key not in priced_rules or priced_rules[key][2]:
            seconds = work_seconds(operator, strategy, sizes, gradients, machine, settings.recompute)
            steps = inner_steps(operator, strategy, gradients, settings.recompute)
            priced_rules[key] = seconds, steps_seconds(steps, machine), bool(steps)
            inner += steps
        costs.append(OperatorSeconds(*priced_rules[key][:2]))
    return costs, inner


def evaluate_choice(choice: StrategyChoice, settings: Settings, prices: MovePrices) -> Evaluation:
    """Return the modelled seconds of every operator and redistribution of a choice.

    The seconds of an operator are its work, the collectives inside it, and its redistributions:

    - A redistribution counts at the operator during which it happens.
    - The reduction of a parameter's gradient counts at the parameter's first reader, with the share
      ``1 - settings.overlap`` of its seconds.
    - Gradients in a shared message divide its seconds in proportion to their elements: in a message of 4 ms,
      gradients of 300 and 100 elements count 3 ms and 1 ms.

    Args:
        choice: the strategies and layouts.
        settings: the assumptions of the cost model.
        prices: the prices of redistributions; extended.
    """
    graph = choice.graph
    costs, inner = _price_operators(choice, settings)
    moves = moves_of(choice, settings)
    messages = messages_of(moves, settings)
    # By id of a gradient's move, its part of the seconds of the message that it shares.
    shared_seconds: dict[int, float] = {}
    for message in messages:
        total, elements = message.seconds(prices), sum(message.elements)
        shared_seconds |= {id(m): total * n / elements for m, n in zip(message.moves, message.elements)}
    priced = []
    for move in moves:
        seconds = shared_seconds.get(id(move))
        if seconds is None:
            seconds = move.times * prices.seconds(*move.price_key)
        if move.phase == "gradient":
            seconds *= 1.0 - settings.overlap
        owner = move.operator if move.operator is not None else graph.consumers[move.value.index][0][0]
        cost = costs[owner]
        setattr(cost, move.phase, getattr(cost, move.phase) + seconds)
        priced.append((move, seconds))
    return Evaluation(costs, priced, messages, tuple(inner))
