"""What a search returns: the strategies, what they cost, and the ways to look at them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spmdsim.auto_parallel.baselines import baselines
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.evaluate import Evaluation, Move, evaluate
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.peak_memory import Memory, peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.optimum import least_on, model_on, solve
from spmdsim.auto_parallel.programs.graph import Graph, Operator, Value
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.core.step import LOCAL_STEPS
from spmdsim.cost.machine import Machine
from spmdsim.errors import InputError
from spmdsim.pictured import ShortRepr
from spmdsim.reading import read_json, readable

FORMAT = "spmdsim strategy 1"
#: Shares of a time that are rounding.
NOTHING = 1e-5


@dataclass(frozen=True, repr=False)
class SearchResult(ShortRepr):
    """A program's strategies and their costs.

    Attributes:
        optimal: whether they are the optimum under the model, on this mesh, but for what :attr:`within` leaves open.
        considered: seconds of the best solution per mesh that was tried.
        rivals: the meshes on which a heuristic's answer is compared with the optimum; its own one if left out.
        limit: the bytes that a rank may use, if they were limited.
        least: seconds that every choice on this mesh takes at least, as far as that is proven.
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
        """By what share an optimum may be quicker at most, 0 if not at all; None where that is unknown.

        A search prices messages that gradients of parameters share by straight lines of their bytes, which may be
        above what they cost in a run.
        """
        if not self.optimal or self.least is None:
            return None
        open_share = self.seconds / self.least - 1.0 if self.least else float(self.seconds > 0)
        return open_share if open_share > NOTHING else 0.0

    @property
    def graph(self) -> Graph:
        """The program."""
        return self.choice.graph

    @property
    def mesh(self) -> Mesh:
        """The mesh the strategies are on."""
        return self.choice.mesh

    @cached_property
    def moves(self) -> MovePrices:
        """Prices of redistributions, and their plans; those that the search knows already."""
        return self._prices or MovePrices(self.settings)

    def collectives_of(self, move: Move) -> tuple[str, ...]:
        """The names of a redistribution's collectives that communicate, in order."""
        steps = self.moves.plan(*move.priced).steps
        return tuple(step.collective for step in steps if step.collective not in LOCAL_STEPS)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Seconds of every operator and redistribution, by their plans."""
        return evaluate(self.choice, self.settings, self.moves)

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
        """Bytes the first rank receives in one step."""
        rank = self.mesh.rank_at(0)
        together = sum(message.nbytes(rank) for message in self.evaluation.messages)
        together += sum(one.nbytes(rank) for one in self.evaluation.inner)
        alone = self.evaluation.alone
        return together + sum(move.times * self.moves.plan(*move.priced).nbytes(rank) for move in alone)

    @cached_property
    def collectives(self) -> dict[str, int]:
        """How many collectives of each kind one step runs; gradients that share a message count once."""
        counts: dict[str, int] = {}
        for move in self.evaluation.alone:
            for name in self.collectives_of(move):
                counts[name] = counts.get(name, 0) + move.times
        together = [step for message in self.evaluation.messages for step in message.steps]
        for step in (*together, *(one.step for one in self.evaluation.inner)):
            if step.collective not in LOCAL_STEPS:
                counts[step.collective] = counts.get(step.collective, 0) + 1
        return counts

    @cached_property
    def combined(self) -> dict[str, int]:
        """How many collectives there are if parameters' go together where they can, as compilers combine them.

        These are gathered, or their gradients are reduced, along the same axes and over the same dim.
        """
        counts: dict[str, int] = {}
        seen: set[tuple[object, ...]] = set()
        for move, _ in self.evaluation.moves:
            partial, parameter = move.src.partial_axes, move.value.kind == "parameter"
            moving = frozenset(partial or set(move.src.split_axes) - set(move.dst.split_axes))
            dims = (move.dst if partial else move.src).dims
            where = frozenset(d for d, entry in enumerate(dims) if moving & set(entry))
            for name in self.collectives_of(move):
                key = (name, moving, where)
                if not parameter or key not in seen:
                    counts[name] = counts.get(name, 0) + move.times
                if parameter:
                    seen.add(key)
        return counts

    def strategy(self, operator: str) -> Strategy:
        """The strategy of an operator, by name."""
        return self.choice.strategies[self.graph.operator(operator).index]

    def layout(self, name: str) -> Layout:
        """The layout of an input, parameter or result, by name."""
        for value, layout in zip(self.graph.values, self.choice.layouts):
            if value.name == name:
                return layout
        raise InputError(f"no tensor is called {name!r} in {self.graph.name}")

    @cached_property
    def comparison(self) -> dict[str, SearchResult]:
        """The layouts people configure by hand, for the same program and ranks; the fastest Megatron-style grid.

        Layouts that these ranks do not allow are missing: see :attr:`not_possible`.
        """
        results = {
            name: replace(self, choice=choice, method=name, remarks=(), optimal=False, least=None)
            for name, choice in self._baselines[0].items()
        }
        grids = {name: one for name, one in results.items() if name.startswith("Megatron")}
        best = min(grids, key=lambda name: grids[name].seconds, default=None)
        return {name: one for name, one in results.items() if name not in grids or name == best}

    @property
    def not_possible(self) -> dict[str, str]:
        """By name, reasons why layouts people configure by hand are not possible on so many ranks.

        >>> from spmdsim.auto_parallel.search import search
        >>> search("mlp", 4, layers=1, hidden=8, batch=2, axes=1).not_possible
        {'data parallel': 'fc0 has 2 rows in the batch, fewer than 4', 'fully sharded': 'fc0 has 2 rows in the batch, fewer than 4'}
        """
        return self._baselines[1]

    @cached_property
    def _baselines(self) -> tuple[dict[str, StrategyChoice], dict[str, str]]:
        return baselines(self.graph, self.mesh.size, self.settings, self.moves)

    @cached_property
    def gap(self) -> float | None:
        """How far a heuristic's answer is from the optimum at most, 0.02 for 2 %; None where that is unknown.

        The optimum is the best one on the meshes that a search of it would try, and on this one, as far as it is proven.
        """
        if self.optimal:
            return 0.0
        if len(self.graph.operators) > 2000 or self.limit is not None:
            return None
        meshes = [mesh for mesh in dict.fromkeys((*self.rivals, self.mesh)) if len(mesh.axes) <= 3]
        proven = [
            least_on(self.graph, mesh, self.settings, self.moves, self._models.get(mesh)) for mesh in meshes
        ]
        bounds = [least for least in proven if least is not None]
        if not bounds or len(bounds) < len(proven):
            return None
        return self.seconds / min(bounds) - 1.0 if min(bounds) else float(self.seconds > 0)

    def why(self, operator: str, strategy: Any) -> WhyNot:
        """What the total would be with another strategy for one operator, cuts or a mapping, all others chosen anew."""
        settings = replace(self.settings, tie=False)
        model = model_on(self.graph.configure(**{operator: strategy}), self.mesh, settings, self.moves)
        solution = solve(model)
        method = f"with {operator} given"
        least = model.least(solution)
        choice = model.choice(solution.states)
        other = SearchResult(choice, settings, method, optimal=least is not None, least=least)
        return WhyNot(self.graph.operator(operator), self, other)

    # -- files --------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types."""
        from spmdsim.auto_parallel.search_report import operator_rows

        machine = self.settings.machine
        return {
            "format": FORMAT,
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

    def save(self, path: str | Path) -> None:
        """Write the strategies to a JSON file that :func:`load_choice` reads."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        from spmdsim.auto_parallel.search_report import report

        return report(self)


@dataclass(frozen=True, repr=False)
class WhyNot(ShortRepr):
    """Two solutions that differ by one strategy given for an operator: without it, and with it."""

    operator: Operator
    best: SearchResult
    other: SearchResult

    @property
    def difference(self) -> float:
        """Seconds that the given strategy costs more."""
        return self.other.seconds - self.best.seconds

    def __str__(self) -> str:
        from spmdsim.auto_parallel.search_report import why_report

        return why_report(self)


def _strategy_dict(operator: Operator, strategy: Strategy) -> dict[str, Any]:
    return {
        "operator": operator.name,
        "splits": {factor: list(axes) for factor, axes in strategy.splits},
        "passed": [[axis, sorted(operands), op] for axis, operands, op in strategy.passed],
        "mesh": _mesh_dict(strategy.mesh),
    }


def _layout_dict(value: Value, layout: Layout) -> dict[str, Any]:
    return {
        "name": value.name,
        "dims": [list(entry) for entry in layout.dims],
        "partial": dict(layout.partial),
        "mesh": _mesh_dict(layout.mesh),
    }


def _mesh_dict(mesh: Mesh) -> dict[str, Any]:
    return {"shape": list(mesh.shape), "axes": list(mesh.axes)}


def load_choice(path: str | Path, graph: Graph) -> StrategyChoice:
    """The strategies of a file written by :meth:`SearchResult.save`, for the same program."""
    data = read_json(path, "strategies")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path} is not a file of strategies (its format is not {FORMAT!r})")
    with readable(path, "strategies"):
        return _choice(data, graph, path)


def _choice(data: dict[str, Any], graph: Graph, path: str | Path) -> StrategyChoice:
    names = [_unnumbered(entry["operator"]) for entry in data["strategies"]]
    if names != [_unnumbered(o.name) for o in graph.operators] or len(data["layouts"]) != len(graph.values):
        raise InputError(
            f"{path} holds strategies of {data['program']!r}, whose operators are not those of {graph.name}"
        )
    strategies = tuple(
        Strategy.of(
            _mesh(entry["mesh"]),
            entry["splits"],
            [(axis, frozenset(operands), op) for axis, operands, op in entry["passed"]],
        )
        for entry in data["strategies"]
    )
    for operator, strategy in zip(graph.operators, strategies):
        operator.bound.check(strategy)
    entries = (
        (_mesh(entry["mesh"]), map(tuple, entry["dims"]), entry["partial"]) for entry in data["layouts"]
    )
    layouts = tuple(Layout(mesh, [*dims], partial) for mesh, dims, partial in entries)
    return StrategyChoice(graph, _mesh(data["mesh"]), strategies, layouts)


def _unnumbered(name: str) -> str:
    """An operator's name without numbers: parameters may be numbered anew."""
    return re.sub(r"\d+", "", name)


def _mesh(entry: dict[str, Any]) -> Mesh:
    return Mesh(tuple(entry["shape"]), tuple(entry["axes"]))
