"""The public search: a program in, strategies for all its operators out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.heuristics import Watch, by_propagation, by_recursion, expressing, ignore_label
from spmdsim.auto_parallel.optimum import TIE_ABOVE, check_usable, quick_model, solve
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.auto_parallel.solvers.choice_problem import Solution
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError
from spmdsim.auto_parallel.strategy_choice import (
    binary_mesh,
    configured_strategy,
    device_matrices,
    has_uneven_pieces,
    searched_axes,
)
from spmdsim.core import Mesh, Strategy
from spmdsim.core.notation.layouts import MOST_RANKS
from spmdsim.cost.machine import CostModel, Machine
from spmdsim.errors import InputError, SpmdError, UsageTypeError, many, unknown
from spmdsim.redistribution.plans.planner import MOST_ELEMENTS
from spmdsim.wrong_calls import explained

#: Names of the searches; the second names are MindSpore's.
METHODS = {
    "auto": "exact",
    "exact": "exact",
    "propagation": "propagation",
    "sharding_propagation": "propagation",
    "double_recursion": "double_recursion",
    "recursive_programming": "double_recursion",
}
#: Those that look for no optimum.
HEURISTICS = ("propagation", "double_recursion")
#: Axes of a device matrix that have names.
MOST_AXES = 4
#: Up to so many ranks uneven pieces are searched beside equal ones, on meshes of two axes if nothing else is asked for.
MOST_UNEVEN_RANKS = 16
#: Configured cuts meet on the mesh of prime factors as long as it has so many axes.
MOST_BINARY_AXES = 4


@explained
def search(
    program: Graph | Callable[..., object] | str,
    mesh_or_ranks: int | Mesh | Sequence[Mesh],
    *,
    method: str = "auto",
    machine: CostModel | None = None,
    memory: float | None = None,
    version: str = "2.x",
    polish: bool = True,
    settings: Settings | None = None,
    axes: int | None = None,
    watch: Watch = ignore_label,
    **sizes: object,
) -> SearchResult:
    """Find a strategy for every operator and a layout for every tensor of a program.

    Args:
        program: a graph, the name of a built-in program, or a function of global tensors, which is recorded.
        mesh_or_ranks: a mesh, several to choose from, or a number of ranks (then device matrices are searched).
        method: ``"auto"`` or ``"exact"`` for the optimum, ``"sharding_propagation"`` from configured operators,
            ``"recursive_programming"`` for the double recursion.
        machine: the cost model; a laptop's if left out.
        memory: bytes a rank may use at the peak; parameters are then stored in pieces where that helps.
        version: which double recursion, ``"r1.0"`` or ``"2.x"``.
        polish: improve what a heuristic found by a local search.
        settings: all assumptions at once, instead of ``machine``.
        axes: how many axes the device matrices may have that are searched for a number of ranks; three where that is
            quick and two otherwise, if left out.
        watch: called with a label before each part of the work, such as a mesh.
        **sizes: sizes of a built-in program, whose batch has at least one row per rank if left out, or ``inputs=...`` of a
            recorded one.

    Raises:
        InputError: an unknown method or program, ranks that no operator can use.
        DoesNotFitError: nothing was found that fits into ``memory``; the lowest peak that was found is named.

    >>> found = search("mlp", 4, layers=2, hidden=64, batch=4096)
    >>> found.mesh.shape, str(found.strategy("fc0"))
    ((4,), '.0:dp')
    """
    if method not in METHODS:
        raise unknown(f"no search is called {method!r}", method, METHODS)
    if axes is not None and isinstance(mesh_or_ranks, int):
        most = min(MOST_AXES, len(binary_mesh(_ranks(mesh_or_ranks)).axes))
        if not 1 <= axes <= most:
            raise InputError(
                f"axes is {axes}; device matrices of {many(mesh_or_ranks, 'rank')} have from 1 to {most}"
            )
    graph = as_graph(program, mesh_or_ranks, sizes)
    settings = settings or Settings(machine=machine or Machine.laptop(), partial=True)
    if graph.recorded:
        # Functions of several operators reduce what is pending between them, so nothing pends across operators.
        settings = replace(settings, partial=False)
    if memory is not None:
        # The integer programme takes its time: few meshes, and repeated layers alike.
        layers = any(operator.layer is not None for operator in graph.operators)
        settings = replace(settings, sharded_parameters=True, tie=settings.tie or layers)
        axes = axes or 2
    if len(graph.operators) > TIE_ABOVE:
        settings = replace(settings, tie=True)
    kind = METHODS[method]
    if memory is not None and kind in HEURISTICS:
        raise InputError(f"memory goes with the methods auto and exact: {method} does not look for what fits")
    if kind == "double_recursion":
        return by_recursion(graph, _ranks(mesh_or_ranks), settings, version, polish, watch)
    meshes = candidate_meshes(graph, mesh_or_ranks, axes)
    if kind == "propagation":
        return by_propagation(graph, meshes, settings, polish, watch)
    moves = MovePrices(settings)
    best = _best_mesh(graph, meshes, settings, memory, moves, watch)
    uneven = [mesh for mesh in meshes if len(mesh.axes) <= (axes or 2) and _has_uneven(graph, mesh, settings)]
    if memory is None and settings.even is None and best.settings.even is None and uneven:
        other = _best_mesh(graph, uneven, replace(settings, even=False), memory, moves, watch)
        best = min(best, other, key=lambda one: one.seconds)
    return best


def _has_uneven(graph: Graph, mesh: Mesh, settings: Settings) -> bool:
    """Return True if uneven pieces are tried on a mesh: it is small, and an axis does not divide all sizes."""
    small = mesh.size <= MOST_UNEVEN_RANKS and isinstance(settings.machine, Machine)
    return small and has_uneven_pieces(graph, mesh)


def as_graph(program: Graph | Callable[..., Any] | str, mesh_or_ranks: Any, sizes: dict[str, Any]) -> Graph:
    """The program as a graph.

    Args:
        program: a graph, which is given back, a function to be recorded, or the name of a known network.
        mesh_or_ranks: where a function is recorded: a mesh, several, or a number of ranks.
        sizes: arguments of the function or the network; empty for a graph. The batch of a network has at least one row
            per rank unless it is given.

    Raises:
        InputError: sizes of a graph, or a tensor with more elements than are counted exactly.

    >>> str(as_graph("mlp", 4, {"layers": 1, "hidden": 8, "batch": 8}))
    'mlp 1 x 8: 3 operators, 2 parameters with 72 elements'
    """
    if isinstance(program, str):
        from spmdsim.auto_parallel.programs.networks import build_program, default_sizes

        defaults = default_sizes(program)
        if "batch" in defaults:
            sizes = {"batch": max(defaults["batch"], _ranks(mesh_or_ranks)), **sizes}
        graph = build_program(program, **sizes)
    elif isinstance(program, Graph):
        if sizes:
            raise InputError(f"a graph takes no sizes, but got {', '.join(sizes)}")
        graph = program
    else:
        from spmdsim.auto_parallel.programs.record_program import record_program

        graph = record_program(program, _ranks(mesh_or_ranks), **sizes)
    for value in graph.values:
        if (elements := math.prod(value.shape)) > MOST_ELEMENTS:
            raise InputError(
                f"{value.name} of shape {value.shape} has {elements:,} elements, too many to count exactly: "
                f"at most {MOST_ELEMENTS:,}"
            )
    return graph


def _ranks(mesh_or_ranks: int | Mesh | Sequence[Mesh]) -> int:
    if isinstance(mesh_or_ranks, int):
        if mesh_or_ranks < 1:
            raise InputError(f"{many(mesh_or_ranks, 'rank')} cannot be used; there has to be at least 1")
        if mesh_or_ranks > MOST_RANKS:
            raise InputError(f"{mesh_or_ranks:,} ranks cannot be used; at most {MOST_RANKS:,}")
        return mesh_or_ranks
    meshes = [mesh_or_ranks] if isinstance(mesh_or_ranks, Mesh) else mesh_or_ranks
    if not isinstance(meshes, Sequence) or not meshes or not all(isinstance(mesh, Mesh) for mesh in meshes):
        raise UsageTypeError(
            f"search: mesh_or_ranks must be a mesh, a list of meshes or a number of ranks, got {mesh_or_ranks!r}"
        )
    size: int = meshes[0].size
    return size


def candidate_meshes(
    graph: Graph, mesh_or_ranks: int | Mesh | Sequence[Mesh], axes: int | None = None
) -> tuple[Mesh, ...]:
    """The meshes a search tries: the given ones, or those of a number of ranks.

    Args:
        graph: the program; operators with strategies of their own say which meshes fit them.
        mesh_or_ranks: a mesh, several, or a number of ranks.
        axes: most axes of a mesh for a number of ranks; three where that is quick, else two, if left out.

    >>> graph = as_graph("mlp", 4, {"layers": 1, "hidden": 8, "batch": 8})
    >>> [str(mesh) for mesh in candidate_meshes(graph, 4)]
    ['dp=4', 'dp=2 tp=2']
    """
    if isinstance(mesh_or_ranks, Mesh):
        return (mesh_or_ranks,)
    if not isinstance(mesh_or_ranks, int):
        return tuple(mesh_or_ranks)
    ranks = _ranks(mesh_or_ranks)
    if any(operator.configured is not None for operator in graph.operators):
        own = [o.configured.mesh for o in graph.operators if isinstance(o.configured, Strategy)]
        if own:
            return (own[0],)
        # Cuts of different operators meet on some device matrix, or else on that with one axis per prime factor.
        expressible = expressing(graph, ranks)
        if expressible:
            return expressible
        binary = binary_mesh(ranks)
        return (binary if len(binary.axes) <= MOST_BINARY_AXES else _coarse_mesh(graph, binary),)
    return device_matrices(ranks, axes or searched_axes(graph, ranks))


def _coarse_mesh(graph: Graph, binary: Mesh) -> Mesh:
    """For many ranks: the device matrix of the operator whose configuration cuts most."""
    cuts = []
    for operator in graph.operators:
        if operator.configured is not None:
            strategy = configured_strategy(operator, binary)
            parts = [strategy.parts(factor) for factor in operator.bound.sizes]
            cuts.append([n for n in parts if n > 1])
    sizes = max(cuts, key=len)
    rest = binary.size // math.prod(sizes)
    shape = [*sizes, rest] if rest > 1 else sizes
    return Mesh(shape, [f"d{k}" for k in range(len(shape))])


def _best_mesh(
    graph: Graph,
    meshes: Sequence[Mesh],
    settings: Settings,
    memory: float | None,
    moves: MovePrices,
    watch: Watch = ignore_label,
) -> SearchResult:
    """Return the optimum on the best of some meshes; with uneven pieces where none of them has even ones."""
    models = []
    for mesh in meshes:
        watch(f"prices on {mesh}")
        models.append(_usable(graph, mesh, settings, moves, memory))
    if settings.even is not False and not any(isinstance(model, ChoiceModel) for model in models):
        models = [_usable(graph, mesh, replace(settings, even=False), moves, memory) for mesh in meshes]
    best: tuple[ChoiceModel, Solution] | None = None
    considered: list[tuple[str, float]] = []
    problem: SpmdError | None = None
    for mesh, model in zip(meshes, models):
        if isinstance(model, InputError):
            problem = problem or model
            continue
        watch(f"optimum on {mesh}")
        try:
            solution = solve(model, memory)
        except DoesNotFitError as error:
            if not isinstance(problem, DoesNotFitError) or error.least < problem.least:
                problem = error
            continue
        except InputError as error:
            problem = problem or error
            continue
        considered.append((str(mesh), solution.seconds))
        if best is None or solution.seconds < best[1].seconds * (1 - 1e-9):
            best = model, solution
    if best is None:
        raise problem or InputError("no mesh was given to search on")
    model, solution = best
    choice, tried = model.choice(solution.states), tuple(considered)
    least = model.least(solution)
    proven = least is not None
    return SearchResult(
        choice, settings, solution.method, (), proven, tried, limit=memory, least=least, _prices=moves
    )


def search_mesh(graph: Graph, mesh: Mesh, settings: Settings, memory: float | None = None) -> SearchResult:
    """The optimum on one mesh: by elimination, or as an integer programme where memory is limited.

    Args:
        graph: the program.
        mesh: where it runs.
        settings: what the cost of a plan is made of.
        memory: bytes a rank may use at the peak; None for no limit.

    >>> from spmdsim.auto_parallel.costs.search_settings import Settings
    >>> from spmdsim.core import Mesh
    >>> graph = as_graph("mlp", 2, {"layers": 1, "hidden": 8, "batch": 8})
    >>> search_mesh(graph, Mesh((2,), ("dp",)), Settings()).optimal
    True
    """
    return _best_mesh(graph, (mesh,), settings, memory, MovePrices(settings))


def _usable(
    graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices, memory: float | None
) -> ChoiceModel | InputError:
    """The choices on a mesh, or why there are none."""
    try:
        if memory is None:
            model = quick_model(graph, mesh, settings, moves)
        else:  # a slower strategy may need less memory
            model = ChoiceModel(graph, mesh, settings, moves=moves)
        check_usable(model)
    except InputError as error:
        return error
    return model
