"""Time against memory over meshes: the strategies that no others beat in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.search import candidate_meshes
from spmdsim.auto_parallel.search_report import size_text, text_table
from spmdsim.auto_parallel.solvers.pareto import pareto_filter, solutions
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Mesh
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False)
class TradeOff(ShortRepr):
    """One trade-off.

    Attributes:
        mesh: the mesh.
        seconds: modelled time of a step.
        memory: bytes of a rank: parameters with gradients and optimiser state, and kept activations.
        choice: the strategies.
    """

    mesh: Mesh
    seconds: float
    memory: float
    choice: StrategyChoice


def frontier(
    graph: Graph, where: int | Mesh | Sequence[Mesh], settings: Settings, most: int = 10
) -> list[TradeOff]:
    """All trade-offs of time and memory over the given or searched meshes, fastest first.

    Parameters may be stored in pieces (fully sharded) where that saves memory.
    """
    points: list[TradeOff] = []
    tie = any(operator.layer is not None for operator in graph.operators)
    open_settings = replace(settings, sharded_parameters=True, tie=tie)
    for mesh in candidate_meshes(graph, where, 2):
        model = ChoiceModel(graph, mesh, open_settings)
        for one in solutions(model.problem, most, step=0.04, gap=1e-3):
            points.append(TradeOff(mesh, one.seconds, one.memory, model.choice(one.states)))
    kept = set(pareto_filter((p.seconds, p.memory) for p in points))
    best: dict[tuple[float, float], TradeOff] = {}
    for point in points:
        if (point.seconds, point.memory) in kept:
            best.setdefault((point.seconds, point.memory), point)
    return [best[pair] for pair in sorted(best)]


def frontier_table(points: Sequence[TradeOff]) -> str:
    """The frontier as a table."""
    rows = [[f"{p.seconds * 1e3:.4g}", size_text(p.memory), str(p.mesh)] for p in points]
    return text_table(["ms", "memory/rank", "mesh"], rows, right=(0, 1))
