"""The heuristic searches: sharding propagation and the double recursion, and the local search that improves them.

Propagation goes breadth first from each configured operator, to the readers of its results and then to the producers
of its operands. A neighbour takes the candidate with the smallest tuple (communication of the shared tensors, local
copying of them, the operator's own communication without that of its parameters, order of the candidates). An
operator with several operands waits until all of them are decided. If two configured operators disagree, both keep
their strategies. The tensor between them is redistributed, and a remark reports it. An operator that is not connected
to a configured operator takes its first candidate.

Source: ``StrategyPropagate`` and ``BFS`` of MindSpore's ``graph_costmodel.cc``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spmdsim.auto_parallel.baselines import complete_choice
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
    """Result of the propagation.

    Attributes:
        strategies: one per operator.
        remarks: one sentence per pair of configured operators that disagree.
        order: indices of the operators that the propagation reached, in this order.
    """

    strategies: tuple[Strategy, ...]
    remarks: tuple[str, ...]
    order: tuple[int, ...]


def propagate(graph: Graph, mesh: Mesh, settings: Settings | None = None) -> Propagation:
    """Spread the configured strategies over the whole graph.

    Raises:
        InputError: If no operator is configured.
    """
    return _Spread(graph, mesh, settings or Settings()).run()


class _Spread:
    """State of one propagation over a graph.

    ``chosen`` maps the index of each decided operator to its candidates and the number of the chosen one.
    """

    def __init__(self, graph: Graph, mesh: Mesh, settings: Settings) -> None:
        self.graph, self.mesh, self.settings = graph, mesh, settings
        self.moves = MovePrices(settings)
        self.chosen: dict[int, tuple[States, int]] = {}
        self.order: dict[int, None] = {}
        self.remarks: list[str] = []
        self.configured = [o for o in graph.operators if o.configured is not None]
        self._best: dict[tuple[object, ...], int] = {}
        self._edges: dict[tuple[object, ...], tuple[float, float]] = {}
        self._own_seconds: dict[tuple[object, ...], float] = {}
        if not self.configured:
            raise InputError(
                "sharding propagation starts from configured operators, but none is configured; give at least one "
                "operator a strategy with .shard(...)"
            )

    def run(self) -> Propagation:
        """Return the strategies of all operators, spread from the configured ones; call it once.

        1. Configured operators keep their strategies; a disagreement of two neighbours becomes a remark.
        2. From each configured operator, in the order of the graph, the strategies spread to the operators connected
           with it.
        3. An operator that is not reached gets its first candidate.

        Raises:
            RuleError: If a configured strategy does not fit its operator.
        """
        for operator in self.configured:
            strategy = configured_strategy(operator, self.mesh)
            self.chosen[operator.index] = (states_of(operator.bound, (strategy,)), 0)
        self._compare_configured()
        for operator in self.configured:
            self._spread_from(operator)
        for operator in self.graph.operators:
            if operator.index not in self.chosen:
                self.chosen[operator.index] = (self._states(operator), 0)
        chosen = (self.chosen[operator.index] for operator in self.graph.operators)
        strategies = tuple(states.strategies[k] for states, k in chosen)
        return Propagation(strategies, tuple(self.remarks), tuple(self.order))

    def _spread_from(self, start: Operator) -> None:
        """Choose the strategies of the operators connected to a configured one, breadth first.

        From each operator, the readers of its results are visited first, then the producers of its operands. Each
        operator is visited once. But a reader is skipped while a producer of one of its operands is undecided; the
        last of them visits it again. A configured operator keeps its strategy, and the visits go on from it.

        Args:
            start: the configured operator.
        """
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
        """Return the indices of the operators that read an operator's results, each once, in order."""
        pairs = (pair for value in operator.outputs for pair in self.graph.consumers[value])
        return list(dict.fromkeys(reader for reader, _ in pairs))

    def _producers(self, operator: Operator) -> list[int]:
        """Return the indices of the operators that compute an operator's operands.

        Each is listed once, in order.
        """
        producers = (self.graph.values[value].producer for value in operator.inputs)
        return list(dict.fromkeys(producer for producer in producers if producer is not None))

    def _states(self, operator: Operator) -> States:
        """Return the candidate strategies of an operator."""
        return states_of(operator.bound, candidates(operator, self.mesh, self.settings))

    def _choose(self, operator: Operator) -> None:
        """Choose the candidate of an operator with the smallest costs, and the first of equal ones.

        The costs are the tuples of :meth:`_price_candidate`, given the strategies of the decided neighbours: a later
        cost counts only if the earlier ones are equal. The choice goes into ``chosen``. It is cached, because repeated
        layers have equal candidates, equal layouts at the neighbours and equal facts of their tensors.
        """
        states = self._states(operator)
        links = self._list_links(operator)
        facts = self._list_cost_facts(operator)
        key = (id(states), facts, tuple((slot, layout, read) for slot, _, layout, read in links))
        best = self._best.get(key)
        if best is None:
            scores = [
                (*self._price_candidate(operator, states, k, links), k) for k in range(len(states.strategies))
            ]
            best = self._best[key] = min(scores)[-1]
        self.chosen[operator.index] = (states, best)

    def _list_links(self, operator: Operator) -> list[tuple[int, Value, Layout, bool]]:
        """Return one link for each tensor that connects an operator with a decided neighbour.

        A neighbour computes an operand of the operator or reads a result of it. Links of operands come first. A result
        has one link per decided reader.

        Returns:
            ``(slot, tensor, layout, reads)`` per link:

            - ``slot``: the number of the operand or result of ``operator``;
            - ``layout``: the layout of the tensor at the neighbour;
            - ``reads``: True if ``operator`` reads the tensor, False if it computes it.
        """
        links = []
        for slot, index in enumerate(operator.inputs):
            value = self.graph.values[index]
            if value.producer in self.chosen:
                states, k = self.chosen[value.producer]
                links.append((slot, value, self._output_layout(value, states, k), True))
        for k, index in enumerate(operator.outputs):
            for reader, operand in self.graph.consumers[index]:
                if reader in self.chosen:
                    states, state = self.chosen[reader]
                    links.append((k, self.graph.values[index], states.inputs[operand][state], False))
        return links

    def _output_layout(self, value: Value, states: States, k: int) -> Layout:
        """Return the layout in which a decided operator returns a result.

        ``states`` are the candidates of its producer and ``k`` is the number of the chosen one.
        """
        operator = self.graph.operators[value.producer or 0]
        fixed = None if value.output else configured_result(operator, states.strategies[k])
        return states.outputs[value.output][k].reduced if fixed is None else fixed

    def _price_candidate(
        self, operator: Operator, states: States, k: int, links: list[tuple[int, Value, Layout, bool]]
    ) -> tuple[float, float, float]:
        """Return three costs of candidate ``k`` in seconds, the most important one first.

        Args:
            operator: the operator.
            states: its candidates.
            k: the number of the candidate in ``states``.
            links: the tensors shared with decided neighbours, from :meth:`_list_links`.

        Returns:
            ``(communication, copying, own)``: the communication of the tensors in ``links``, the copying of them, and
            the operator's own communication.
        """
        communication, copying = 0.0, 0.0
        for slot, value, neighbour_layout, read in links:
            if read:
                src, dst = neighbour_layout, states.inputs[slot][k]
            else:
                src, dst = states.outputs[slot][k].reduced, neighbour_layout
            communicated, copied = self._price_edge(src, dst, value)
            communication += communicated
            copying += copied
        return communication, copying, self._own_communication(operator, states, k)

    def _price_edge(self, src: Layout, dst: Layout, value: Value) -> tuple[float, float]:
        """Return ``(communication, copying)``, the seconds of moving a tensor between two layouts.

        If the tensor needs a gradient, the move of the gradient back is included. All seconds of a move with
        communication count as communication, those of a move without it as copying.

        Args:
            src: the layout before.
            dst: the layout after; equal layouts cost nothing.
            value: the tensor.
        """
        if src == dst:
            return 0.0, 0.0
        key = (src, dst, value.shape, value.itemsize, value.needs_gradient)
        prices = self._edges.get(key)
        if prices is None:
            redistributions = [(src, dst), (dst.dual(), src.dual())] if value.needs_gradient else [(src, dst)]
            communication = total = 0.0
            for before, after in redistributions:
                seconds = self.moves.seconds(before, after, value.shape, value.itemsize)
                total += seconds
                if before.mesh != after.mesh or self.moves.communicates(
                    before, after, value.shape, value.itemsize
                ):
                    communication += seconds
            prices = self._edges[key] = (communication, total - communication)
        return prices

    def _own_communication(self, operator: Operator, states: States, k: int) -> float:
        """Return the seconds of reducing an operator's results and its operands' gradients.

        Only pending reductions are priced: each as the move from its layout to the layout without them. Gradients
        count only for operands that are results of other operators and need a gradient, not for inputs and parameters.
        The sum is cached.

        Args:
            operator: the operator.
            states: its candidates.
            k: the number of the candidate in ``states``.
        """
        key = (id(states), k, self._list_cost_facts(operator))
        total = self._own_seconds.get(key)
        if total is None:
            total = 0.0
            for slot, index in enumerate(operator.outputs):
                produced, value = states.outputs[slot][k], self.graph.values[index]
                total += self.moves.seconds(produced, produced.reduced, value.shape, value.itemsize)
            for slot, index in enumerate(operator.inputs):
                value, gradient = self.graph.values[index], states.gradients[slot][k]
                if value.kind == "result" and value.needs_gradient:
                    total += self.moves.seconds(gradient, gradient.reduced, value.shape, value.itemsize)
            self._own_seconds[key] = total
        return total

    def _list_cost_facts(self, operator: Operator) -> tuple[tuple[str, int, bool], ...]:
        """Return the facts of an operator's tensors on which its costs depend, beside its candidates.

        Returns:
            ``(kind, itemsize, needs_gradient)`` of each operand, then of each result.
        """
        values = [self.graph.values[index] for index in (*operator.inputs, *operator.outputs)]
        return tuple((value.kind, value.itemsize, value.needs_gradient) for value in values)

    def _compare_configured(self) -> None:
        """Add a remark for each pair of configured neighbours that disagree on a layout.

        Neighbours are a producer and a reader of one tensor. They disagree if the producer returns the tensor in
        another layout than the one in which the reader needs it. A remark names both operators, the tensor and the
        numbers of blocks per dim; it goes into ``remarks``.

        Call it while ``chosen`` has only the configured operators.
        """
        for operator in self.configured:
            for slot, index in enumerate(operator.inputs):
                value = self.graph.values[index]
                if value.producer is None or value.producer not in self.chosen:
                    continue
                producer_states, k = self.chosen[value.producer]
                src, dst = (
                    self._output_layout(value, producer_states, k),
                    self.chosen[operator.index][0].inputs[slot][0],
                )
                if src.mesh != dst.mesh or src != dst:
                    producer = self.graph.operators[value.producer].name
                    self.remarks.append(
                        f"{producer} and {operator.name} are both configured and disagree about {value.name} "
                        f"({src.cuts} against {dst.cuts} pieces): it is redistributed between them"
                    )


#: Most axes of a mesh on which strategies are improved; meshes of more axes have too many strategies.
POLISH_AXES = 3
#: Most operators of a program that is improved; those of a repeated layer count once.
MOST_OPERATORS = 2000
#: Number of meshes, the most promising ones, on which the local search after the double recursion runs.
MOST_IMPROVED = 4


#: Called with the label of a stage of the work before the stage begins.
Watch = Callable[[str], object]


def ignore_label(label: str) -> None:
    """Do nothing with the label of a stage of the work."""


def search_by_propagation(
    graph: Graph,
    meshes: Sequence[Mesh],
    settings: Settings,
    polish: bool,
    watch: Watch = ignore_label,
) -> SearchResult:
    """Run the sharding propagation on each of some meshes and return the fastest result.

    On each mesh the configured strategies spread to the other operators (:func:`propagate`), and layouts are added.
    The fastest result is the one with the fewest seconds in the cost model; of equal ones, the first. The memory is
    not limited. An error on one mesh ends the search.

    Args:
        graph: the program; at least one operator must be configured.
        meshes: the meshes to try, at least one.
        settings: the assumptions of the cost model.
        polish: True to improve each result by a local search; the result before it stays a candidate.
        watch: called with a label before each mesh.

    Raises:
        InputError: If no operator is configured.
        RuleError: If a configured strategy does not fit its operator on a mesh.
    """
    answers, moves = [], MovePrices(settings)
    models: dict[Mesh, ChoiceModel] = {}
    for mesh in meshes:
        watch(f"strategies on {mesh}")
        propagated = propagate(graph, mesh, settings)
        start = complete_choice(graph, mesh, propagated.strategies, settings, moves=moves)
        answer = SearchResult(
            choice=start,
            settings=settings,
            method="sharding propagation",
            remarks=propagated.remarks,
            rivals=tuple(meshes),
            _prices=moves,
            _models=models,
        )
        answers.append((answer.seconds, answer))
        if polish:
            answers.append(_improve_result(answer, mesh, propagated.strategies, models))
    return _fastest_result(answers)


def search_by_recursion(
    graph: Graph,
    ranks: int,
    settings: Settings,
    version: str,
    polish: bool,
    watch: Watch = ignore_label,
) -> SearchResult:
    """Return the result of the double recursion, on a mesh with one axis per prime factor.

    With ``polish``, a local search starts from the result, and the fastest of all results is returned. It runs on:

    - the device matrices that express all configured strategies (:func:`expressing_meshes`). Of these, up to
      :data:`MOST_IMPROVED` (4) are used: those with the fewest seconds if every operator takes its quickest strategy
      and redistributions are free;
    - the mesh of the recursion, if there is no such matrix and it has at most :data:`POLISH_AXES` (3) axes.

    It does not run for programs with more than :data:`MOST_OPERATORS` (2000) operators; those of a repeated layer
    count once.

    Args:
        graph: the program.
        ranks: the number of ranks.
        settings: the assumptions of the cost model.
        version: version of the double recursion, "r1.0" or "2.x".
        polish: True to improve the result by a local search, too.
        watch: called with a label before each stage of the local search.

    Raises:
        InputError: If the version is unknown.
    """
    recursion = imitation("search", "double_recursion")
    strategies = recursion(graph, ranks, version).strategies()
    mesh, moves = binary_mesh(ranks), MovePrices(settings)
    models: dict[Mesh, ChoiceModel] = {}
    start = complete_choice(graph, mesh, strategies, settings, moves=moves)
    rivals = expressing_meshes(graph, ranks, searched_axes(graph, ranks))
    method = f"double recursion {version}"
    answer = SearchResult(start, settings, method, rivals=rivals, _prices=moves, _models=models)
    if not polish or sum(o.layer is None or o.layer[1] == 0 for o in graph.operators) > MOST_OPERATORS:
        return answer
    answers = [(answer.seconds, answer)]
    if not rivals and len(mesh.axes) <= POLISH_AXES:
        answers.append(_improve_result(answer, mesh, strategies, models))
    bounds: dict[Mesh, LeastWork] = {}
    for coarse in rivals:
        watch(f"least work on {coarse}")
        bounds[coarse] = least_work(graph, coarse, _with_tied_layers(graph, settings), moves)
    searched = tuple(sorted(rivals, key=lambda rival: bounds[rival].seconds)[:MOST_IMPROVED])
    answer = replace(answer, rivals=searched)
    for coarse in searched:
        watch(f"strategies on {coarse}")
        nearest = _convert_all_to_coarse(graph, strategies, coarse)
        answers.append(_improve_result(answer, coarse, nearest, models, bounds[coarse]))
    return _fastest_result(answers)


def _convert_all_to_coarse(graph: Graph, strategies: Sequence[Strategy], mesh: Mesh) -> list[Strategy]:
    """Convert the strategies of all operators to similar ones on a mesh of larger axes."""
    # Convert the strategy of each distinct operator once. Repeated layers share their rules, so equal ids of rules
    # mean equal operators; the graph keeps the rules alive.
    keys = [
        (id(operator.bound) if operator.configured is None else operator.index, strategy)
        for operator, strategy in zip(graph.operators, strategies)
    ]
    distinct = dict(zip(keys, graph.operators))
    on_mesh = {key: _convert_to_coarse(operator, key[1], mesh) for key, operator in distinct.items()}
    return [on_mesh[key] for key in keys]


def expressing_meshes(graph: Graph, ranks: int, least: int = 2) -> tuple[Mesh, ...]:
    """Return the device matrices (meshes) with the fewest axes that express all configured strategies.

    Numbers of axes are tried from ``least`` to :data:`POLISH_AXES` (3). For each number, the candidates are all
    matrices with at most this number of axes that express all configured strategies. The search ends at the first
    number for which a candidate is usable: each of its axes can split the operator with the most floating point
    operations. All candidates of this number are returned, also those that are not usable. If no number has a usable
    candidate, the candidates of the last number are returned, which may be none. If ``least`` is larger than 3, the
    result is empty.

    Args:
        graph: the program.
        ranks: the number of ranks.
        least: the smallest number of axes.

    Raises:
        RuleError: If a configured strategy does not fit its operator.
    """
    meshes: tuple[Mesh, ...] = ()
    configured = [operator for operator in graph.operators if operator.configured is not None]
    for axes in range(least, POLISH_AXES + 1):
        meshes = tuple(
            mesh
            for mesh in device_matrices(ranks, axes)
            if all(configured_strategy(operator, mesh).mesh == mesh for operator in configured)
        )
        if any(_uses_every_axis(graph, mesh) for mesh in meshes):
            break
    return meshes


def _uses_every_axis(graph: Graph, mesh: Mesh) -> bool:
    """Return True if the operator with the most work can be split by every axis of a mesh.

    Each axis must divide the size of a factor.
    """
    operator = max(graph.operators, key=lambda o: flops_of(o.bound))
    sizes = [operator.bound.sizes[factor] for factor in operator.bound.splittable]
    return all(any(size % axis == 0 for size in sizes) for axis in mesh.shape)


def _fastest_result(answers: Sequence[tuple[float, SearchResult]]) -> SearchResult:
    """Return the result with the fewest seconds."""
    return min(answers, key=lambda pair: pair[0])[1]


def _with_tied_layers(graph: Graph, settings: Settings) -> Settings:
    """Return settings that give the repeats of a layer equal strategies."""
    return replace(settings, tie=any(operator.layer is not None for operator in graph.operators))


def _improve_result(
    answer: SearchResult,
    mesh: Mesh,
    strategies: Sequence[Strategy],
    models: dict[Mesh, ChoiceModel],
    bound: LeastWork | None = None,
) -> tuple[float, SearchResult]:
    """Improve strategies on a mesh by a local search; return the seconds and the new result.

    Args:
        answer: the result whose program, settings and prices are used.
        mesh: the mesh.
        strategies: where the local search starts, one strategy per operator; one that is no candidate is replaced.
        models: choice models by mesh; that of this mesh is stored here.
        bound: the least work on the mesh; None to compute it.

    Returns:
        ``(seconds, result)``. The seconds are those of the choice problem, with the repeats of a layer tied.
    """
    graph, settings = answer.graph, _with_tied_layers(answer.graph, answer.settings)
    model = models[mesh] = quick_model(graph, mesh, settings, answer.moves, bound)
    solution = improve(model.problem, model.states_of(strategies), model.kept_states)
    method = f"{answer.method}, then local search"
    return solution.seconds, replace(answer, choice=model.choice(solution.states), method=method)


def _convert_to_coarse(operator: Operator, fine: Strategy, mesh: Mesh) -> Strategy:
    """Convert a strategy on a mesh with small axes to a similar one on a mesh with larger axes.

    The axes of ``mesh`` are assigned one by one, the largest first. An axis splits the factor that still needs the
    most blocks, among those whose number of missing blocks it divides; if there is none, the axis splits nothing. For
    example, 8 blocks of m and 2 of n on axes of 4, 2 and 2: the axis of 4 goes to m, then one axis of 2 to m and the
    other to n.

    If the rule rejects the result, the strategy without splits is returned. A configured operator gets its configured
    strategy (:func:`configured_strategy`), which may have a mesh of its own.

    Args:
        operator: the operator.
        fine: its strategy on the mesh with small axes.
        mesh: the mesh with larger axes.

    Raises:
        RuleError: If a configured strategy does not fit the operator.
    """
    if operator.configured is not None:
        return configured_strategy(operator, mesh)
    missing_blocks = {factor: fine.parts(factor) for factor, _ in fine.splits}
    splits: dict[str, tuple[str, ...]] = {}
    for axis, size in sorted(zip(mesh.axes, mesh.shape), key=lambda pair: -pair[1]):
        fitting_factors = [factor for factor, blocks in missing_blocks.items() if blocks % size == 0]
        if fitting_factors:
            factor = max(fitting_factors, key=lambda candidate: missing_blocks[candidate])
            missing_blocks[factor] //= size
            axes = (*splits.get(factor, ()), axis)
            splits[factor] = tuple(mesh_axis for mesh_axis in mesh.axes if mesh_axis in axes)  # in mesh order
    strategy = Strategy.of(mesh, splits)
    return strategy if operator.bound.allows(strategy) else Strategy.of(mesh, {})
