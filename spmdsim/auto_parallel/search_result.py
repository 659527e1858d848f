"""The result of a search: the strategies, their costs, and comparisons with other strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from spmdsim.auto_parallel.baselines import baselines
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.evaluate import Evaluation, Move, evaluate_choice
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.peak_memory import Memory, peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.optimum import bound_seconds, build_choice_model, find_optimum
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.core.step import LOCAL_STEPS
from spmdsim.cost.machine import Machine
from spmdsim.errors import unknown
from spmdsim.pictured import ShortRepr

#: Relative differences of times up to this one are rounding.
ROUNDING = 1e-5
#: Most operators of a program, and most axes of a mesh, for which the gap to the optimum is computed.
MOST_GAP_OPERATORS, MOST_GAP_AXES = 2000, 3


@dataclass(frozen=True, repr=False)
class SearchResult(ShortRepr):
    """A program's strategies and their costs.

    Attributes:
        choice: the strategies and layouts.
        settings: the assumptions of the cost model.
        method: name of the search that returned them.
        remarks: sentences about the search for the report.
        optimal: True if they are the optimum under the model on this mesh, up to the share :attr:`within`.
        considered: mesh and seconds of the best solution on each mesh that was tried.
        rivals: the meshes on which a heuristic's result is compared with the optimum, beside its own mesh.
        limit: the bytes that a rank may use, or None.
        least: a proven lower bound on the seconds of every choice on this mesh, or None.
    """

    choice: StrategyChoice
    settings: Settings
    method: str
    remarks: tuple[str, ...] = ()
    optimal: bool = False
    considered: tuple[tuple[str, float], ...] = ()
    rivals: tuple[Mesh, ...] = ()
    limit: float | None = None
    least: float | None = None
    _prices: MovePrices | None = field(default=None, repr=False, compare=False)
    _models: Mapping[Mesh, ChoiceModel] = field(default_factory=dict, repr=False, compare=False)

    @property
    def within(self) -> float | None:
        """Largest share by which the optimum may be faster, 0 if proven optimal; None if unknown.

        It is seconds / least - 1; shares up to :data:`ROUNDING` are 0. A search prices messages that gradients of
        parameters share by straight lines of their bytes. These prices may be above the costs of a run.
        """
        if not self.optimal or self.least is None:
            return None
        open_share = self.seconds / self.least - 1.0 if self.least else float(self.seconds > 0)
        return open_share if open_share > ROUNDING else 0.0

    @property
    def graph(self) -> Graph:
        """The program."""
        return self.choice.graph

    @property
    def mesh(self) -> Mesh:
        """The mesh of the strategies."""
        return self.choice.mesh

    @cached_property
    def moves(self) -> MovePrices:
        """Prices and plans of redistributions, those of the search included."""
        return self._prices or MovePrices(self.settings)

    def collectives_of(self, move: Move) -> tuple[str, ...]:
        """Return the names of the collectives of a redistribution that communicate, in order."""
        steps = self.moves.plan(*move.price_key).steps
        return tuple(step.collective for step in steps if step.collective not in LOCAL_STEPS)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Seconds of every operator and redistribution, by their plans."""
        return evaluate_choice(self.choice, self.settings, self.moves)

    @property
    def seconds(self) -> float:
        """Modelled seconds of one step."""
        return self.evaluation.seconds

    @cached_property
    def memory(self) -> Memory:
        """Peak memory of the busiest rank."""
        return peak_memory(self.choice, self.settings, self.moves)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the first rank of the mesh receives in one training step, forward and backward.

        Where the number depends on data, its expected value counts.
        """
        rank = self.mesh.rank_at(0)
        received = sum(message.nbytes(rank) for message in self.evaluation.messages)
        received += sum(step.nbytes(rank) for step in self.evaluation.inner)
        alone = self.evaluation.alone
        return received + sum(move.times * self.moves.plan(*move.price_key).nbytes(rank) for move in alone)

    @cached_property
    def collectives(self) -> dict[str, int]:
        """Number of collectives of each kind in one training step, such as ``{"all_reduce": 3}``.

        * A redistribution counts as often as it happens.
        * A message that several gradients share counts once.
        * Collectives inside operators count, too.
        * Local steps, and kinds that do not occur, are left out.
        """
        counts: dict[str, int] = {}
        for move in self.evaluation.alone:
            for name in self.collectives_of(move):
                counts[name] = counts.get(name, 0) + move.times
        shared_steps = [step for message in self.evaluation.messages for step in message.steps]
        for step in (*shared_steps, *(inner.step for inner in self.evaluation.inner)):
            if step.collective not in LOCAL_STEPS:
                counts[step.collective] = counts.get(step.collective, 0) + 1
        return counts

    @cached_property
    def combined(self) -> dict[str, int]:
        """Number of collectives of each kind if those of parameters are combined, as compilers do.

        Collectives of parameters and of their gradients count together as one if they have equal names, equal mesh
        axes, and gather or scatter equal dims. So the all_reduces of 12 gradients over "dp" count as 1. Each other
        redistribution counts as often as it happens. Collectives inside operators are left out.
        """
        counts: dict[str, int] = {}
        combined_keys: set[tuple[object, ...]] = set()
        for move, _ in self.evaluation.moves:
            partial, parameter = move.src.partial_axes, move.value.kind == "parameter"
            # The axes along which the move reduces, or which it gathers, and the dims that they split.
            moving = frozenset(partial or set(move.src.split_axes) - set(move.dst.split_axes))
            dims = (move.dst if partial else move.src).dims
            where = frozenset(d for d, entry in enumerate(dims) if moving & set(entry))
            for name in self.collectives_of(move):
                key = (name, moving, where)
                if not parameter or key not in combined_keys:
                    counts[name] = counts.get(name, 0) + move.times
                if parameter:
                    combined_keys.add(key)
        return counts

    def strategy(self, operator: str) -> Strategy:
        """Return the strategy of the operator with this name.

        Raises:
            InputError: If the program has no operator of this name.
        """
        return self.choice.strategies[self.graph.operator(operator).index]

    def layout(self, name: str) -> Layout:
        """Return the layout of an input, a parameter or an operator's result by its name.

        Raises:
            InputError: If the program has no tensor of this name.
        """
        for value, layout in zip(self.graph.values, self.choice.layouts):
            if value.name == name:
                return layout
        names = [value.name for value in self.graph.values]
        raise unknown(f"no tensor is called {name!r} in {self.graph.name}", str(name), names)

    @cached_property
    def comparison(self) -> dict[str, SearchResult]:
        """Results of hand-written strategies for the program on these ranks, by name.

        The names are "data parallel", "fully sharded" and one such as "Megatron 2x4": of the grids of
        data-parallel times tensor-parallel ranks only the fastest is included. Strategies that these ranks do not
        allow are missing; see :attr:`not_possible`.
        """
        results = {
            name: replace(self, choice=choice, method=name, remarks=(), optimal=False, least=None)
            for name, choice in self._baselines[0].items()
        }
        grids = {name: result for name, result in results.items() if name.startswith("Megatron")}
        best = min(grids, key=lambda name: grids[name].seconds, default=None)
        return {name: result for name, result in results.items() if name not in grids or name == best}

    @property
    def not_possible(self) -> dict[str, str]:
        """Reasons why hand-written strategies are not possible on these ranks, by name.

        >>> from spmdsim.auto_parallel.search import search
        >>> search("mlp", 4, layers=1, hidden=8, batch=2, axes=1).not_possible
        {'data parallel': 'fc0 has 2 rows in the batch, fewer than 4', 'fully sharded': 'fc0 has 2 rows in the batch, fewer than 4'}
        """
        return self._baselines[1]

    @cached_property
    def _baselines(self) -> tuple[dict[str, StrategyChoice], dict[str, str]]:
        """Hand-written choices by name, and the reasons why others are not possible, by name."""
        return baselines(self.graph, self.mesh.size, self.settings, self.moves)

    @cached_property
    def gap(self) -> float | None:
        """Largest relative distance of a heuristic's result from the optimum: 0.02 is 2 %; None if unknown.

        It is 0 for an optimal result. Otherwise the unknown optimum is replaced by the smallest proven lower bound on
        this mesh and on :attr:`rivals`; meshes of more than :data:`MOST_GAP_AXES` (3) axes do not count. For example,
        a result of 1.02 s with the bound 1 s has the gap 0.02. If the bound is 0 s, the gap is 1, or 0 if the result
        takes no time. The gap is unknown if

        - the program has more than :data:`MOST_GAP_OPERATORS` (2000) operators;
        - the search had a memory limit;
        - no mesh counts, or the bound on one of them cannot be computed.
        """
        if self.optimal:
            return 0.0
        if len(self.graph.operators) > MOST_GAP_OPERATORS or self.limit is not None:
            return None
        all_meshes = dict.fromkeys((*self.rivals, self.mesh))
        meshes = [mesh for mesh in all_meshes if len(mesh.axes) <= MOST_GAP_AXES]
        proven = [
            bound_seconds(self.graph, mesh, self.settings, self.moves, self._models.get(mesh))
            for mesh in meshes
        ]
        bounds = [least for least in proven if least is not None]
        if not bounds or len(bounds) < len(proven):
            return None
        return self.seconds / min(bounds) - 1.0 if min(bounds) else float(self.seconds > 0)

    def why(self, operator: str, strategy: Any) -> WhyNot:
        """Search again with a given strategy for one operator; return both results.

        All other strategies are chosen again on this mesh, without a limit on memory. Repeats of a layer may get
        different strategies.

        Args:
            operator: its name.
            strategy: cuts, a mapping of factors to axes, or a strategy.

        Raises:
            InputError: If the program has no operator of this name, or no operator can use the mesh.
            RuleError: If the strategy does not fit the operator.
        """
        settings = replace(self.settings, tie=False)
        model = build_choice_model(
            self.graph.configure(**{operator: strategy}), self.mesh, settings, self.moves
        )
        solution = find_optimum(model)
        method = f"with {operator} given"
        least = model.least(solution)
        choice = model.choice(solution.states)
        forced = SearchResult(choice, settings, method, optimal=least is not None, least=least)
        return WhyNot(self.graph.operator(operator), self, forced)

    def to_dict(self) -> dict[str, Any]:
        """Return all results as a dict that can be written as JSON.

        Times are modelled seconds of one step, sizes are bytes of a rank:

        * ``seconds``, and ``interval``, the seconds of :meth:`Machine.between` or None without them;
        * ``optimal`` and ``within``, as the attributes;
        * ``nbytes`` and ``collectives``, the bytes that the first rank receives and the number of collectives by
          kind;
        * ``memory``, the parts of the peak, and ``peak_memory``, their sum;
        * ``operators``, the rows of :func:`operator_rows`;
        * ``strategies``, ``layouts`` and ``mesh``;
        * the names ``program``, ``method`` and ``machine``, the ``remarks``, and ``parameter_elements``, the elements
          of all parameters.
        """
        from spmdsim.auto_parallel.search_report import operator_rows

        machine = self.settings.machine
        return {
            "program": self.graph.name,
            "mesh": _mesh_dict(self.mesh),
            "method": self.method,
            "machine": machine.name,
            "optimal": self.optimal,
            "within": self.within,
            "seconds": self.seconds,
            "interval": machine.between(self.seconds) if isinstance(machine, Machine) else None,
            "nbytes": self.nbytes,
            "collectives": self.collectives,
            "peak_memory": self.memory.peak,
            "memory": asdict(self.memory),
            "parameter_elements": self.graph.parameter_count,
            "remarks": list(self.remarks),
            "operators": operator_rows(self),
            "strategies": list(map(_strategy_dict, self.graph.operators, self.choice.strategies)),
            "layouts": list(map(_layout_dict, self.graph.values, self.choice.layouts)),
        }

    def __str__(self) -> str:
        from spmdsim.auto_parallel.search_report import format_search

        return format_search(self)


@dataclass(frozen=True, repr=False)
class WhyNot(ShortRepr):
    """Two search results that differ by one operator's strategy.

    Attributes:
        operator: the operator.
        best: the result of the search.
        other: the result of a search with the given strategy of the operator.
    """

    operator: Operator
    best: SearchResult
    other: SearchResult

    @property
    def difference(self) -> float:
        """Seconds by which a step takes longer with the given strategy."""
        return self.other.seconds - self.best.seconds

    def __str__(self) -> str:
        from spmdsim.auto_parallel.search_report import why_report

        return why_report(self)


def _strategy_dict(operator: Operator, strategy: Strategy) -> dict[str, Any]:
    """Return an operator's strategy as a dict of plain types for JSON.

    * ``operator``: the name. ``mesh``: the mesh as a dict.
    * ``splits``: the axes that split each factor, such as ``{"k": ["tp"]}``.
    * ``passed``: ``[axis, operands, reduction]`` for each pending reduction that passes from operands to the
      result, such as ``["tp", [0], "sum"]``.
    """
    return {
        "operator": operator.name,
        "splits": {factor: list(axes) for factor, axes in strategy.splits},
        "passed": [[axis, sorted(operands), op] for axis, operands, op in strategy.passed],
        "mesh": _mesh_dict(strategy.mesh),
    }


def _layout_dict(value: Value, layout: Layout) -> dict[str, Any]:
    """Return the layout of a tensor (``value``) as a dict of plain types for JSON.

    * ``name``: the tensor's name. ``mesh``: the mesh as a dict.
    * ``dims``: the axes that split each dim, such as ``[["dp"], []]``.
    * ``partial``: the pending reduction by axis, such as ``{"tp": "sum"}``.
    """
    return {
        "name": value.name,
        "dims": [list(entry) for entry in layout.dims],
        "partial": dict(layout.partial),
        "mesh": _mesh_dict(layout.mesh),
    }


def _mesh_dict(mesh: Mesh) -> dict[str, Any]:
    """Return a mesh as a dict of plain types."""
    return {"shape": list(mesh.shape), "axes": list(mesh.axes)}
