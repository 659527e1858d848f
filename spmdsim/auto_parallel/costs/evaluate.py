"""What a choice of strategies costs, operator by operator, exactly as the program runs.

Every redistribution that the runtime will do is listed once: operands forward, results handed on, gradients backward
(equal layouts are added first and moved once), and gradients of parameters, with those that share a message. Where two
numbers could differ (a search's table and the run), this list decides: the report prints it, and a run's trace is
compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.arrays import Tensor
from spmdsim.arrays.stepped import SteppedRule
from spmdsim.auto_parallel.costs.move_prices import Moved, MovePrices, moved_itemsize, shared
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
from spmdsim.redistribution.plans.merge import Merge, buckets, elements_held, shared_copies
from spmdsim.redistribution.price import price_step, steps_seconds
from spmdsim.worlds import ShapeOnly
from spmdsim.worlds.trace import record

if TYPE_CHECKING:
    import numpy as np

#: Why a tensor moves.
PHASES = ("forward", "backward", "gradient")


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
    gradients = [dy if dy.dtype.kind in "fcV" else None for dy in dys]
    if op.adjoint is None or not any(dy is not None for dy in gradients):
        return ()
    with record() as trace:
        op.adjoint(gradients, operands, results, **params)
    return tuple(InnerStep(one.step, element_type(one.dtype), one.operator) for one in trace.collectives)


def inner_steps(
    operator: Operator, strategy: Strategy, gradients: Sequence[bool], recompute: bool = False
) -> list[InnerStep]:
    """The collectives in the middle of an operator in one step of training, with who runs them."""
    forward = _inner_steps(operator.bound, strategy)
    backward = _inner_steps(operator.bound, strategy, True) if any(gradients) else ()
    named = [one._replace(operator=operator.name) for one in forward]
    return [*named * (1 + (recompute and any(gradients))), *backward]


@dataclass(frozen=True)
class Move:
    """One redistribution of a run."""

    phase: str  # one of PHASES: backward of a result, gradient of a parameter
    value: Value
    operator: int | None  # during which it happens; None for a parameter's gradient
    src: Layout
    dst: Layout
    times: int = 1  # 2 for what is computed again

    @property
    def priced(self) -> Moved:
        """What its price depends on."""
        return self.src, self.dst, self.value.shape, self.value.itemsize, self.value.kind == "result"


@dataclass(frozen=True)
class GradientMessage:
    """Gradients of parameters that are reduced in one call."""

    merge: Merge
    moves: tuple[Move, ...]
    machine: CostModel | None = None

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """Elements that a rank holds of each gradient."""
        return tuple(elements_held(move.src, move.value.shape) for move in self.moves)

    @property
    def itemsize(self) -> int:
        """Bytes per element of what is reduced."""
        return moved_itemsize(self.moves[0].src, self.moves[0].value.itemsize)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The one collective, or those in which ranks with copies help; published models know only the one."""
        machine = self.machine if isinstance(self.machine, Machine) else None
        copies = shared_copies(move.src for move in self.moves) if machine is not None else ()
        return self.merge.steps(sum(self.elements), copies, self.itemsize, machine)

    def nbytes(self, rank: int) -> int:
        """Bytes that a rank receives."""
        return sum(step.nbytes(rank, self.itemsize) for step in self.steps)

    def seconds(self, prices: MovePrices) -> float:
        """Modelled time."""
        if isinstance(self.machine, Machine):
            return sum(price_step(step, self.itemsize, self.machine)[1] for step in self.steps)
        return prices.together(self.merge, self.itemsize * sum(self.elements))


def moves_of(choice: StrategyChoice, settings: Settings) -> tuple[Move, ...]:
    """All redistributions of one step, forward in program order, then backward in reverse."""
    return (*_forward(choice, settings), *(_backward(choice) if choice.graph.training else ()))


def _forward(choice: StrategyChoice, settings: Settings) -> Iterator[Move]:
    graph = choice.graph
    for operator in graph.operators:
        own = choice.operator_layouts[operator.index]
        again = settings.recompute and graph.training
        for operand, wanted in zip(operator.inputs, own.inputs):
            value = graph.values[operand]
            times = 2 if again and value.kind != "input" else 1
            if choice.layouts[operand].canonical != wanted.canonical:
                yield Move("forward", value, operator.index, choice.layouts[operand], wanted, times)
        for result, produced in zip(operator.outputs, own.outputs):
            if choice.layouts[result].canonical != produced.canonical:
                value, wanted = graph.values[result], choice.layouts[result]
                yield Move("forward", value, operator.index, produced, wanted, 1 + again)


def _backward(choice: StrategyChoice) -> Iterator[Move]:
    graph = choice.graph
    for operator in reversed(graph.operators):
        if operator.index not in graph.reached:
            continue
        for result, produced in zip(operator.outputs, choice.operator_layouts[operator.index].outputs):
            for src in _gradients(choice, result):
                if src.canonical != produced.dual().canonical:
                    yield Move("backward", graph.values[result], operator.index, src, produced.dual())
    for value in _arriving(graph):
        for src in _gradients(choice, value.index):
            if src.canonical != choice.layouts[value.index].dual().canonical:
                yield Move("gradient", value, None, src, choice.layouts[value.index].dual())


def _arriving(graph: Graph) -> list[Value]:
    """Parameters in the order in which the backward pass reaches their last readers."""
    backwards = (operator for operator in reversed(graph.operators) if operator.index in graph.reached)
    read = (operand for operator in backwards for operand in operator.inputs)
    return [graph.values[i] for i in dict.fromkeys(read) if graph.values[i].kind == "parameter"]


def messages_of(moves: Iterator[Move] | tuple[Move, ...], settings: Settings) -> tuple[GradientMessage, ...]:
    """The messages that gradients share, each of two gradients at least."""
    arriving: dict[int, list[Move]] = {}
    for move in moves:
        if move.phase == "gradient":
            arriving.setdefault(move.value.index, []).append(move)
    waiting: dict[tuple[Merge, int], list[tuple[Move, int]]] = {}
    for alike in arriving.values():
        merge = shared(settings, alike[0].src, alike[0].dst, alike[0].value.shape)
        if len(alike) == 1 and merge is not None:
            size = moved_itemsize(alike[0].src, alike[0].value.itemsize)
            held = size * elements_held(alike[0].src, alike[0].value.shape)
            waiting.setdefault((merge, size), []).append((alike[0], held))
    return tuple(
        GradientMessage(merge, tuple(bucket), settings.machine)
        for (merge, _), group in waiting.items()
        for bucket in buckets(group)
        if len(bucket) > 1
    )


def _gradients(choice: StrategyChoice, value: int) -> list[Layout]:
    """The distinct layouts in which the gradients of a tensor arrive from its readers."""
    readers, own = choice.graph.gradient_readers[value], choice.operator_layouts
    return list(dict.fromkeys([own[reader].gradients[operand].canonical for reader, operand in readers]))


@dataclass
class OperatorSeconds:
    """Modelled seconds of one operator, one step."""

    compute: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    gradient: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute + self.forward + self.backward + self.gradient


@dataclass(repr=False)
class Evaluation(ShortRepr):
    """Modelled seconds of a choice.

    A parameter's gradient is counted at the parameter's first reader; of a shared message, each move has its part.
    """

    operators: list[OperatorSeconds]
    moves: list[tuple[Move, float]]
    messages: tuple[GradientMessage, ...] = ()
    inner: tuple[InnerStep, ...] = ()

    @cached_property
    def alone(self) -> tuple[Move, ...]:
        """The redistributions that share no message."""
        together = {id(move) for message in self.messages for move in message.moves}
        return tuple(move for move, _ in self.moves if id(move) not in together)

    @property
    def seconds(self) -> float:
        """Total of one step."""
        return sum(cost.seconds for cost in self.operators)


def evaluate(choice: StrategyChoice, settings: Settings, prices: MovePrices) -> Evaluation:
    """Seconds of every operator and redistribution."""
    graph = choice.graph
    machine = settings.machine
    costs, inner = [], list[InnerStep]()
    # Repeated layers share their rules, so an operator is known by the identity of its rule, which the graph keeps alive.
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
    moves = moves_of(choice, settings)
    messages = messages_of(moves, settings)
    parts: dict[int, float] = {}
    for message in messages:
        total, held = message.seconds(prices), sum(message.elements)
        parts |= {id(m): total * n / held for m, n in zip(message.moves, message.elements)}
    priced = []
    for move in moves:
        seconds = parts[id(move)] if id(move) in parts else move.times * prices.seconds(*move.priced)
        if move.phase == "gradient":
            seconds *= 1.0 - settings.overlap
        owner = move.operator if move.operator is not None else graph.consumers[move.value.index][0][0]
        cost = costs[owner]
        setattr(cost, move.phase, getattr(cost, move.phase) + seconds)
        priced.append((move, seconds))
    return Evaluation(costs, priced, messages, tuple(inner))
