"""The heuristic searches: sharding propagation and the double recursion, and the local search that improves them.

Propagation goes breadth first from each configured operator, to the readers of its results and then to the producers of
its operands. A neighbour takes the candidate that is least in (communication on the shared tensors, local copying on
them, the operator's own communication but for its parameters, order of the candidates). An operator with several
operands waits until all of them are decided. A reshape takes a candidate without communication where there is one,
which the order above says already. Two configured operators that disagree are left as they are: the tensor between them
is redistributed, and a remark says so. Whatever is not connected to a configured operator takes its first candidate.

Source: ``StrategyPropagate`` and ``BFS`` of MindSpore's ``graph_costmodel.cc``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spmdsim.auto_parallel.baselines import complete
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel, candidates
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.optimum import LeastWork, least_work, quick_model
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.auto_parallel.solvers.elimination import improve
from spmdsim.auto_parallel.strategy_choice import (
    States,
    binary_mesh,
    configured_result,
    configured_strategy,
    device_matrices,
    searched_axes,
    states_of,
)
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.cost.roofline import flops_of
from spmdsim.errors import InputError
from spmdsim.imitated import imitation


@dataclass(frozen=True)
class Propagation:
    """What the propagation found: strategies, remarks, and operators as they were reached (others are missing)."""

    strategies: tuple[Strategy, ...]
    remarks: tuple[str, ...]
    order: tuple[int, ...]


def propagate(graph: Graph, mesh: Mesh, settings: Settings | None = None) -> Propagation:
    """Spread the configured strategies over the whole graph."""
    return _Spread(graph, mesh, settings or Settings()).run()


class _Spread:
    def __init__(self, graph: Graph, mesh: Mesh, settings: Settings) -> None:
        self.graph, self.mesh, self.settings = graph, mesh, settings
        self.moves = MovePrices(settings)
        self.chosen: dict[int, tuple[States, int]] = {}
        self.order: dict[int, None] = {}
        self.remarks: list[str] = []
        self.configured = [o for o in graph.operators if o.configured is not None]
        self._best: dict[tuple[object, ...], int] = {}
        self._edges: dict[tuple[object, ...], tuple[float, float]] = {}
        self._owns: dict[tuple[object, ...], float] = {}
        if not self.configured:
            raise InputError(
                "sharding propagation starts from configured operators, but none is configured; give at least one "
                "operator a strategy with .shard(...)"
            )

    def run(self) -> Propagation:
        """Spread, then give what was not reached its first candidate."""
        for operator in self.configured:
            strategy = configured_strategy(operator, self.mesh)
            self.chosen[operator.index] = (states_of(operator.bound, (strategy,)), 0)
        self._compare_configured()
        for operator in self.configured:
            self._spread(operator)
        for operator in self.graph.operators:
            if operator.index not in self.chosen:
                self.chosen[operator.index] = (self._states(operator), 0)
        chosen = (self.chosen[operator.index] for operator in self.graph.operators)
        strategies = tuple(states.strategies[k] for states, k in chosen)
        return Propagation(strategies, tuple(self.remarks), tuple(self.order))

    def _spread(self, start: Operator) -> None:
        self.order.setdefault(start.index)
        queue = deque([start.index])
        while queue:
            current = self.graph.operators[queue.popleft()]
            for neighbour in (*self._readers(current), *self._producers(current)):
                if neighbour in self.order:
                    continue
                operator = self.graph.operators[neighbour]
                if operator.configured is None:
                    if neighbour > current.index and not {*self._producers(operator)} <= self.chosen.keys():
                        continue
                    self._choose(operator)
                self.order[neighbour] = None
                queue.append(neighbour)

    def _readers(self, operator: Operator) -> list[int]:
        pairs = (pair for value in operator.outputs for pair in self.graph.consumers[value])
        return list(dict.fromkeys(reader for reader, _ in pairs))

    def _producers(self, operator: Operator) -> list[int]:
        producers = (self.graph.values[value].producer for value in operator.inputs)
        return list(dict.fromkeys(producer for producer in producers if producer is not None))

    def _states(self, operator: Operator) -> States:
        return states_of(operator.bound, candidates(operator, self.mesh, self.settings))

    def _choose(self, operator: Operator) -> None:
        states = self._states(operator)
        links = self._links(operator)
        key = (id(states), tuple((slot, layout, read) for slot, _, layout, read in links))
        best = self._best.get(key)
        if best is None:
            scores = [(*self._score(operator, states, k, links), k) for k in range(len(states.strategies))]
            best = self._best[key] = min(scores)[-1]
        self.chosen[operator.index] = (states, best)

    def _links(self, operator: Operator) -> list[tuple[int, Value, Layout, bool]]:
        """(operand or result, tensor, the other side's layout, whether we read it) of all decided neighbours."""
        links = []
        for slot, index in enumerate(operator.inputs):
            value = self.graph.values[index]
            if value.producer in self.chosen:
                states, k = self.chosen[value.producer]
                links.append((slot, value, self._handed_on(value, states, k), True))
        for k, index in enumerate(operator.outputs):
            for reader, operand in self.graph.consumers[index]:
                if reader in self.chosen:
                    states, state = self.chosen[reader]
                    links.append((k, self.graph.values[index], states.inputs[operand][state], False))
        return links

    def _handed_on(self, value: Value, states: States, k: int) -> Layout:
        """The layout in which a decided operator hands its result on."""
        operator = self.graph.operators[value.producer or 0]
        fixed = None if value.output else configured_result(operator, states.strategies[k])
        return states.outputs[value.output][k].reduced if fixed is None else fixed

    def _score(
        self, operator: Operator, states: States, k: int, links: list[tuple[int, Value, Layout, bool]]
    ) -> tuple[float, float, float]:
        communication, copying = 0.0, 0.0
        for slot, value, other, read in links:
            own = states.inputs[slot][k] if read else states.outputs[slot][k].reduced
            moved, copied = self._edge(*((other, own) if read else (own, other)), value)
            communication += moved
            copying += copied
        return communication, copying, self._own(operator, states, k)

    def _edge(self, src: Layout, dst: Layout, value: Value) -> tuple[float, float]:
        """Communication forward and backward, and copying, between two layouts of a tensor."""
        if src == dst:
            return 0.0, 0.0
        key = (src, dst, value.shape, value.itemsize, value.needs_gradient)
        prices = self._edges.get(key)
        if prices is None:
            ways = [(src, dst), (dst.dual(), src.dual())] if value.needs_gradient else [(src, dst)]
            what = (value.shape, value.itemsize)
            moving = [w for w in ways if w[0].mesh != w[1].mesh or self.moves.communicates(*w, *what)]
            moved = sum(self.moves.seconds(a, b, *what) for a, b in moving)
            total = sum(self.moves.seconds(a, b, *what) for a, b in ways)
            prices = self._edges[key] = (moved, total - moved)
        return prices

    def _own(self, operator: Operator, states: States, k: int) -> float:
        """The operator's own communication without parameters: its pending results, its operands' gradients."""
        key = (id(states), k, tuple(self.graph.values[i].kind == "parameter" for i in operator.inputs))
        total = self._owns.get(key)
        if total is None:
            total = 0.0
            for slot, index in enumerate(operator.outputs):
                produced, value = states.outputs[slot][k], self.graph.values[index]
                total += self.moves.seconds(produced, produced.reduced, value.shape, value.itemsize)
            for slot, index in enumerate(operator.inputs):
                value, gradient = self.graph.values[index], states.gradients[slot][k]
                if value.kind == "result" and value.needs_gradient:
                    total += self.moves.seconds(gradient, gradient.reduced, value.shape, value.itemsize)
            self._owns[key] = total
        return total

    def _compare_configured(self) -> None:
        for operator in self.configured:
            for slot, index in enumerate(operator.inputs):
                value = self.graph.values[index]
                if value.producer is None or value.producer not in self.chosen:
                    continue
                produced, k = self.chosen[value.producer]
                src, dst = self._handed_on(value, produced, k), self.chosen[operator.index][0].inputs[slot][0]
                if src.mesh != dst.mesh or src != dst:
                    producer = self.graph.operators[value.producer].name
                    self.remarks.append(
                        f"{producer} and {operator.name} are both configured and disagree about {value.name} "
                        f"({src.cuts} against {dst.cuts} pieces): it is redistributed between them"
                    )


#: Meshes of more axes have too many strategies to improve them.
POLISH_AXES = 3
#: So many operators, those of a repeated layer counted once, are not improved.
MOST_OPERATORS = 2000
#: The local search after the double recursion runs on so many meshes, the most promising ones.
MOST_IMPROVED = 4


#: Called with the label of a part of the work before it begins.
Watch = Callable[[str], object]


def ignore_label(label: str) -> None:
    """Ignore the label of a part of the work."""


def by_propagation(
    graph: Graph,
    meshes: Sequence[Mesh],
    settings: Settings,
    polish: bool,
    watch: Watch = ignore_label,
) -> SearchResult:
    """The sharding propagation on each of some meshes; the best answer."""
    answers, moves = [], MovePrices(settings)
    models: dict[Mesh, ChoiceModel] = {}
    for mesh in meshes:
        watch(f"strategies on {mesh}")
        propagated = propagate(graph, mesh, settings)
        start = complete(graph, mesh, propagated.strategies, settings, moves=moves)
        method, rivals = "sharding propagation", tuple(meshes)
        answer = SearchResult(
            start, settings, method, propagated.remarks, rivals=rivals, _prices=moves, _models=models
        )
        answers.append((answer.seconds, answer))
        if polish:
            answers.append(_improved(answer, mesh, propagated.strategies, models))
    return _best(answers)


def by_recursion(
    graph: Graph,
    ranks: int,
    settings: Settings,
    version: str,
    polish: bool,
    watch: Watch = ignore_label,
) -> SearchResult:
    """Return the answer of the double recursion, on a mesh with one axis per prime factor.

    The local search goes on from these cuts on the device matrices that a search for the optimum would try, on up to four
    of them: those on which the program takes least time if all its operators have their least work.
    """
    recursion = imitation("search", "double_recursion")
    strategies = recursion(graph, ranks, version).strategies()
    mesh, moves = binary_mesh(ranks), MovePrices(settings)
    models: dict[Mesh, ChoiceModel] = {}
    start = complete(graph, mesh, strategies, settings, moves=moves)
    rivals = expressing(graph, ranks, searched_axes(graph, ranks))
    method = f"double recursion {version}"
    answer = SearchResult(start, settings, method, rivals=rivals, _prices=moves, _models=models)
    if not polish or sum(o.layer is None or o.layer[1] == 0 for o in graph.operators) > MOST_OPERATORS:
        return answer
    answers = [(answer.seconds, answer)]
    if not rivals and len(mesh.axes) <= POLISH_AXES:
        answers.append(_improved(answer, mesh, strategies, models))
    # Repeated layers share their rules, which the graph keeps alive: the strategy of one operator is found for all.
    alike = [
        (id(o.bound) if o.configured is None else o.index, s) for o, s in zip(graph.operators, strategies)
    ]
    distinct = dict(zip(alike, graph.operators))
    bounds: dict[Mesh, LeastWork] = {}
    for coarse in rivals:
        watch(f"least work on {coarse}")
        bounds[coarse] = least_work(graph, coarse, _tied(graph, settings), moves)
    searched = tuple(sorted(rivals, key=lambda one: bounds[one].seconds)[:MOST_IMPROVED])
    answer = replace(answer, rivals=searched)
    for coarse in searched:
        watch(f"strategies on {coarse}")
        on_coarse = {key: _on_coarse(operator, key[1], coarse) for key, operator in distinct.items()}
        nearest = [on_coarse[key] for key in alike]
        answers.append(_improved(answer, coarse, nearest, models, bounds[coarse]))
    return _best(answers)


def expressing(graph: Graph, ranks: int, least: int = 2) -> tuple[Mesh, ...]:
    """The device matrices of as few axes as it takes to write every configured strategy on, at least ``least``."""
    meshes: tuple[Mesh, ...] = ()
    configured = [operator for operator in graph.operators if operator.configured is not None]
    for axes in range(least, POLISH_AXES + 1):
        every = device_matrices(ranks, axes)
        meshes = tuple(m for m in every if all(configured_strategy(o, m).mesh == m for o in configured))
        if any(_useful(graph, mesh) for mesh in meshes):
            break
    return meshes


def _useful(graph: Graph, mesh: Mesh) -> bool:
    """Whether the largest operator can use every axis: one of 6 ranks is of no use if only 2 divides the sizes."""
    operator = max(graph.operators, key=lambda o: flops_of(o.bound))
    sizes = [operator.bound.sizes[factor] for factor in operator.bound.splittable]
    return all(any(size % axis == 0 for size in sizes) for axis in mesh.shape)


def _best(answers: Sequence[tuple[float, SearchResult]]) -> SearchResult:
    return min(answers, key=lambda pair: pair[0])[1]


def _tied(graph: Graph, settings: Settings) -> Settings:
    """Return settings that give the repeats of a layer equal strategies."""
    return replace(settings, tie=any(operator.layer is not None for operator in graph.operators))


def _improved(
    answer: SearchResult,
    mesh: Mesh,
    strategies: Sequence[Strategy],
    models: dict[Mesh, ChoiceModel],
    bound: LeastWork | None = None,
) -> tuple[float, SearchResult]:
    """Return the seconds of what the local search makes of strategies on a mesh, and the result; keep the model."""
    graph, settings = answer.graph, _tied(answer.graph, answer.settings)
    model = models[mesh] = quick_model(graph, mesh, settings, answer.moves, bound)
    solution = improve(model.problem, model.states_of(strategies), model.kept_states)
    method = f"{answer.method}, then local search"
    return solution.seconds, replace(answer, choice=model.choice(solution.states), method=method)


def _on_coarse(operator: Operator, fine: Strategy, mesh: Mesh) -> Strategy:
    """The strategy on a mesh of larger axes that cuts an operator most nearly as a finer one does."""
    if operator.configured is not None:
        return configured_strategy(operator, mesh)
    wanted = {factor: fine.parts(factor) for factor, _ in fine.splits}
    done: dict[str, tuple[str, ...]] = {}
    for axis, size in sorted(zip(mesh.axes, mesh.shape), key=lambda pair: -pair[1]):
        fitting = [f for f, parts in wanted.items() if parts % size == 0]
        if fitting:
            factor = max(fitting, key=lambda f: wanted[f])
            wanted[factor] //= size
            done[factor] = tuple(a for a in mesh.axes if a in (*done.get(factor, ()), axis))
    strategy = Strategy.of(mesh, done)
    return strategy if operator.bound.allows(strategy) else Strategy.of(mesh, {})
