"""The optimum of a graph on one mesh, as most tests of searches ask for it."""

from __future__ import annotations

from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.search import search
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.core import Mesh


def search_mesh(graph: Graph, mesh: Mesh, settings: Settings, memory: float | None = None) -> SearchResult:
    """With these assumptions, and maybe a limit of bytes at the peak."""
    return search(graph, mesh, settings=settings, memory=memory)
