"""The public search: from a program to strategies for all its operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.heuristics import (
    Watch,
    expressing_meshes,
    ignore_label,
    search_by_propagation,
    search_by_recursion,
)
from spmdsim.auto_parallel.optimum import TIE_ABOVE, check_usable, find_optimum, quick_model
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
from spmdsim.cost.machine import CostModel, Machine, require_machine
from spmdsim.errors import InputError, UsageTypeError, many, unknown
from spmdsim.redistribution.plans.planner import MOST_ELEMENTS
from spmdsim.worlds.current import find_current_nodes
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
#: The methods that do not search for the optimum.
HEURISTICS = ("propagation", "double_recursion")
#: Most axes of a device matrix; only so many have names.
MOST_AXES = 4
#: Most ranks for which uneven blocks are searched beside even ones, by default on meshes of up to two axes.
MOST_UNEVEN_RANKS = 16
#: Most axes of the mesh of prime factors on which configured cuts are combined.
MOST_BINARY_AXES = 4


def choose_machine(mesh_or_ranks: int | Mesh | Sequence[Mesh]) -> Machine:
    """Return the cost model of a search that names none.

    It is a laptop's. If the current world has the ranks of the search and is on several nodes, it is a cluster's, with
    the ranks on these nodes.

    >>> from spmdsim import LockStep
    >>> with LockStep(4, nodes="a:2,b:2"):
    ...     print(choose_machine(4).nodes, choose_machine(8).name)
    a: ranks 0, 1; b: ranks 2, 3 laptop

    Args:
        mesh_or_ranks: the mesh of the search, several meshes of one size, or a number of ranks.
    """
    if isinstance(mesh_or_ranks, Sequence):
        sizes = {mesh.size for mesh in mesh_or_ranks}
        size = sizes.pop() if len(sizes) == 1 else 0
    else:
        size = mesh_or_ranks.size if isinstance(mesh_or_ranks, Mesh) else mesh_or_ranks
    nodes = find_current_nodes(size)
    return Machine.laptop() if nodes is None else Machine.cluster().placed(nodes)


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

    The optimum has the fewest modelled seconds of one step.

    - In programs of more than :data:`TIE_ABOVE` operators, the repeats of a layer get equal strategies.
    - Without ``memory``, a search for the optimum also tries blocks of unequal size if the mesh is small and the cost
      model is a :class:`Machine`; see :attr:`Settings.even`.

    Args:
        program: a graph, the name of a built-in program, or a function of global tensors, which is recorded.
        mesh_or_ranks: a mesh, several to choose from, or a number of ranks (then device matrices are searched).
        method: ``"auto"`` and ``"exact"`` both find the optimum. ``"sharding_propagation"`` continues the strategies of
            configured operators. ``"recursive_programming"`` is MindSpore's double recursion, which uses only the number
            of ranks of a mesh.
        machine: the cost model; None: :func:`choose_machine`. Ignored if ``settings`` are given.
        memory: bytes a rank may use at the peak; None: no limit. With it, parameters may be stored in shards, and the
            repeats of a layer get equal strategies.
        version: the version of the double recursion, ``"r1.0"`` or ``"2.x"``.
        polish: improve the strategies of a heuristic by a local search.
        settings: all assumptions of the cost model, instead of ``machine``; None: the defaults, with sums that may
            stay pending.
        axes: the largest number of axes of the device matrices that are searched for a number of ranks. If None, it
            is three where that is quick, else two; with ``memory`` it is two.
        watch: called with a label before each stage of the work, such as a mesh.
        **sizes: sizes of a built-in program, whose batch has at least one row per rank if left out. For a function,
            the arguments of ``record_program``, such as ``inputs``.

    Raises:
        InputError: If the method or program is unknown, a size or ``axes`` is not possible, ``memory`` goes with a
            heuristic, or no operator can use the ranks.
        RuleError: If a configured strategy does not fit its operator.
        UsageTypeError: If ``mesh_or_ranks`` is neither a number nor a mesh nor a list of meshes.
        DoesNotFitError: If no choice fits into ``memory``; the error names the lowest peak of all choices tried.

    >>> found = search("mlp", 4, layers=2, hidden=64, batch=4096)
    >>> found.mesh.shape, str(found.strategy("fc0"))
    ((4,), '.0:dp')
    """
    if machine is not None:
        require_machine(machine, "search")
    if memory is not None and not (isinstance(memory, Real) and memory > 0):
        raise InputError(f"search: memory must be a number of bytes above 0, got {memory!r:.60}")
    if method not in METHODS:
        raise unknown(f"no search is called {method!r}", method, METHODS)
    if axes is not None and isinstance(mesh_or_ranks, int):
        _check_axes(axes, mesh_or_ranks)
    graph = as_graph(program, mesh_or_ranks, sizes)
    settings = settings or Settings(machine=machine or choose_machine(mesh_or_ranks), partial=True)
    settings = _adapt_settings(settings, graph, memory is not None)
    if memory is not None:
        axes = axes or 2  # The integer program is slow, so try few meshes.
    kind = METHODS[method]
    if memory is not None and kind in HEURISTICS:
        raise InputError(f"search: method must be 'auto' or 'exact' with memory, got {method!r}")
    if kind == "double_recursion":
        return search_by_recursion(graph, _count_ranks(mesh_or_ranks), settings, version, polish, watch)
    meshes = candidate_meshes(graph, mesh_or_ranks, axes)
    if kind == "propagation":
        return search_by_propagation(graph, meshes, settings, polish, watch)
    return _search_optimum(graph, meshes, settings, memory, axes or 2, watch)


def _search_optimum(
    graph: Graph, meshes: Sequence[Mesh], settings: Settings, memory: float | None, axes: int, watch: Watch
) -> SearchResult:
    """Return the result with the fewest modelled seconds on all meshes."""
    moves = MovePrices(settings)
    best = _best_mesh(graph, meshes, settings, memory, moves, watch)
    uneven = [mesh for mesh in meshes if len(mesh.axes) <= axes and _has_uneven(graph, mesh, settings)]
    if memory is None and settings.even is None and best.settings.even is None and uneven:
        uneven_best = _best_mesh(graph, uneven, replace(settings, even=False), memory, moves, watch)
        best = min(best, uneven_best, key=lambda result: result.seconds)
    return best


def _check_axes(axes: int, ranks: int) -> None:
    """Raise InputError if no device matrix of ``ranks`` ranks has ``axes`` axes.

    They have at least one axis, at most one per prime factor, and at most :data:`MOST_AXES`.
    """
    most = min(MOST_AXES, len(binary_mesh(_count_ranks(ranks)).axes))
    if not 1 <= axes <= most:
        raise InputError(f"search: axes must be 1 to {most} for {many(ranks, 'rank')}, got {axes}")


def _adapt_settings(settings: Settings, graph: Graph, has_limit: bool) -> Settings:
    """Return the caller's settings, changed for the search of a program:

    * In a recorded program no sum may stay pending (``partial=False``).
    * With a limit on memory, parameters may be stored in shards, and repeated layers are tied: all repeats of a
      layer get equal strategies.
    * With more than :data:`TIE_ABOVE` operators, repeated layers are tied, too.
    """
    if graph.recorded:
        # Functions of several operators reduce partial results between them.
        settings = replace(settings, partial=False)
    if has_limit:
        # The integer program is slow, so tie the strategies of repeated layers.
        has_layers = any(operator.layer is not None for operator in graph.operators)
        settings = replace(settings, sharded_parameters=True, tie=settings.tie or has_layers)
    return replace(settings, tie=True) if len(graph.operators) > TIE_ABOVE else settings


def _has_uneven(graph: Graph, mesh: Mesh, settings: Settings) -> bool:
    """Return True if uneven blocks are searched on a mesh.

    They are searched if the mesh has at most :data:`MOST_UNEVEN_RANKS` ranks, the cost model is a machine, and an
    axis does not divide all sizes.
    """
    small = mesh.size <= MOST_UNEVEN_RANKS and isinstance(settings.machine, Machine)
    return small and has_uneven_pieces(graph, mesh)


def as_graph(program: Graph | Callable[..., Any] | str, mesh_or_ranks: Any, sizes: dict[str, Any]) -> Graph:
    """Convert a program to a graph.

    Args:
        program: a graph, which is returned, a function to be recorded, or the name of a built-in program.
        mesh_or_ranks: a mesh, several meshes, or a number of ranks: the world in which a function is recorded.
        sizes: arguments of ``record_program`` or of the built-in program; empty for a graph. The batch of a built-in
            program has at least one row per rank unless it is given.

    Raises:
        InputError: If a graph gets sizes, a built-in program or its size is unknown, a function cannot be recorded,
            or a tensor has more than :data:`MOST_ELEMENTS` elements, which cannot be counted exactly.

    >>> str(as_graph("mlp", 4, {"layers": 1, "hidden": 8, "batch": 8}))
    'mlp 1 x 8: 3 operators, 2 parameters with 72 elements'
    """
    if isinstance(program, str):
        from spmdsim.auto_parallel.programs.networks import build_program, default_sizes

        defaults = default_sizes(program)
        if "batch" in defaults:
            sizes = {"batch": max(defaults["batch"], _count_ranks(mesh_or_ranks)), **sizes}
        graph = build_program(program, **sizes)
    elif isinstance(program, Graph):
        if sizes:
            raise InputError(f"search: sizes must not be passed with a Graph, got {', '.join(sizes)}")
        graph = program
    elif not callable(program):
        forms = "a function, a Graph or the name of a built-in program"
        raise UsageTypeError(f"search: program must be {forms}, got {program!r:.60}")
    else:
        from spmdsim.auto_parallel.programs.record_program import record_program

        graph = record_program(program, _count_ranks(mesh_or_ranks), **sizes)
    for value in graph.values:
        if (elements := math.prod(value.shape)) > MOST_ELEMENTS:
            raise InputError(
                f"{value.name} of shape {value.shape} has {elements:,} elements, too many to count exactly: "
                f"at most {MOST_ELEMENTS:,}"
            )
    return graph


def _count_ranks(mesh_or_ranks: int | Mesh | Sequence[Mesh]) -> int:
    """Return the number of ranks of a mesh, or of the first of several meshes.

    A number is returned itself. Whether several meshes have equally many ranks is not checked.

    Args:
        mesh_or_ranks: a number, a mesh, or a list of meshes that is not empty.

    Raises:
        InputError: If a number is below 1 or above :data:`MOST_RANKS`.
        UsageTypeError: If ``mesh_or_ranks`` is none of these.
    """
    if isinstance(mesh_or_ranks, int):
        if mesh_or_ranks < 1:
            raise InputError(f"search: the number of ranks must be 1 or more, got {mesh_or_ranks}")
        if mesh_or_ranks > MOST_RANKS:
            raise InputError(
                f"search: the number of ranks must be at most {MOST_RANKS:,}, got {mesh_or_ranks:,}"
            )
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
    """Return the meshes that a search tries: the given ones, or the meshes of a number of ranks.

    For a number of ranks, they depend on the program:

    * If no operator is configured by the user: the device matrices with up to ``axes`` axes.
    * Otherwise ``axes`` is not used, and the first of these that exists is returned: the mesh of the first configured
      :class:`~spmdsim.Strategy`; the device matrices on which all cuts can be expressed; the mesh with an axis per
      prime factor, if it has at most 4 axes; a mesh with an axis per factor that a configured operator splits.

    Args:
        graph: the program.
        mesh_or_ranks: a mesh, several, or a number of ranks.
        axes: most axes of a mesh for a number of ranks; None: three if that is quick, else two.

    Raises:
        InputError: If a number of ranks is below 1 or too large.

    >>> graph = as_graph("mlp", 4, {"layers": 1, "hidden": 8, "batch": 8})
    >>> [str(mesh) for mesh in candidate_meshes(graph, 4)]
    ['dp=4', 'dp=2 tp=2']
    """
    if isinstance(mesh_or_ranks, Mesh):
        return (mesh_or_ranks,)
    if not isinstance(mesh_or_ranks, int):
        return tuple(mesh_or_ranks)
    ranks = _count_ranks(mesh_or_ranks)
    if any(operator.configured is not None for operator in graph.operators):
        configured_meshes = [o.configured.mesh for o in graph.operators if isinstance(o.configured, Strategy)]
        if configured_meshes:
            return (configured_meshes[0],)
        # Prefer the device matrices that express the cuts of all operators. If there are none, the matrix with one
        # axis per prime factor expresses all cuts.
        expressible = expressing_meshes(graph, ranks)
        if expressible:
            return expressible
        binary = binary_mesh(ranks)
        return (binary if len(binary.axes) <= MOST_BINARY_AXES else _coarse_mesh(graph, binary),)
    return device_matrices(ranks, axes or searched_axes(graph, ranks))


def _coarse_mesh(graph: Graph, binary: Mesh) -> Mesh:
    """Return a mesh with one axis per factor that a configured operator splits.

    The operator is the one that splits the most factors, the first of equal ones. If it does not use all ranks, a
    last axis has the quotient. For example, if it splits ``m`` into 2 blocks and ``k`` into 3, then 12 ranks get
    the mesh ``d0=2, d1=3, d2=2``. This mesh replaces ``binary``, which has too many axes to be searched.

    Args:
        graph: the program; at least one operator must be configured.
        binary: the mesh with one axis per prime factor.
    """
    cuts = []
    for operator in graph.operators:
        if operator.configured is not None:
            strategy = configured_strategy(operator, binary)
            block_counts = [strategy.parts(factor) for factor in operator.bound.sizes]
            cuts.append([block_count for block_count in block_counts if block_count > 1])
    sizes = max(cuts, key=len)
    remaining_ranks = binary.size // math.prod(sizes)
    shape = [*sizes, remaining_ranks] if remaining_ranks > 1 else sizes
    return Mesh(shape, [f"d{k}" for k in range(len(shape))])


def _best_mesh(
    graph: Graph,
    meshes: Sequence[Mesh],
    settings: Settings,
    memory: float | None,
    moves: MovePrices,
    watch: Watch = ignore_label,
) -> SearchResult:
    """Search the optimum on each of some meshes and return the one with the fewest seconds.

    * Meshes without solution are left out, as long as another one has one.
    * If no mesh can be used with blocks of equal size, uneven blocks are searched, unless ``settings.even`` is False
      already.
    * Of meshes whose seconds differ by a relative 1e-9 or less, the first wins.

    Args:
        graph: the program.
        meshes: the meshes.
        settings: the assumptions of the cost model.
        memory: bytes that a rank may use at its peak; None for no limit.
        moves: prices, shared by all meshes.
        watch: called with a label before each stage of the work.

    Raises:
        InputError: If no operator can use any mesh, or there is no mesh.
        DoesNotFitError: If no choice fits into ``memory``; of all meshes, the error with the lowest peak.
    """
    models = []
    for mesh in meshes:
        watch(f"prices on {mesh}")
        models.append(_model_or_error(graph, mesh, settings, moves, memory))
    if settings.even is not False and not any(isinstance(model, ChoiceModel) for model in models):
        uneven = replace(settings, even=False)
        models = [_model_or_error(graph, mesh, uneven, moves, memory) for mesh in meshes]
    solutions, errors = _solve_models(models, memory, watch)
    if not solutions:
        raise _most_helpful(errors) if errors else InputError("no mesh was given to search on")
    best = solutions[0]
    for model, solution in solutions[1:]:
        if solution.seconds < best[1].seconds * (1 - 1e-9):
            best = model, solution
    model, solution = best
    considered = tuple((str(tried.mesh), optimum.seconds) for tried, optimum in solutions)
    least = model.least(solution)
    return SearchResult(
        model.choice(solution.states),
        settings,
        solution.method,
        (),
        least is not None,
        considered,
        limit=memory,
        least=least,
        _prices=moves,
    )


def _solve_models(
    models: Sequence[ChoiceModel | InputError], memory: float | None, watch: Watch
) -> tuple[list[tuple[ChoiceModel, Solution]], list[InputError | DoesNotFitError]]:
    """Return the cheapest solution of each model that has one, and the errors of the others.

    Args:
        models: the models, or the errors that say why a mesh has none.
        memory: bytes that a rank may use at its peak; None for no limit.
        watch: called with a label before each model that is solved; not called for errors in ``models``.

    Returns:
        ``(solutions, errors)``, both in the order of ``models``; solutions are pairs with their model.
    """
    solutions: list[tuple[ChoiceModel, Solution]] = []
    errors: list[InputError | DoesNotFitError] = []
    for model in models:
        if isinstance(model, InputError):
            errors.append(model)
            continue
        watch(f"optimum on {model.mesh}")
        try:
            solutions.append((model, find_optimum(model, memory)))
        except (DoesNotFitError, InputError) as error:
            errors.append(error)
    return solutions, errors


def _most_helpful(problems: Sequence[InputError | DoesNotFitError]) -> InputError | DoesNotFitError:
    """Return the error with the lowest peak memory, or the first error if none is about memory."""
    misfits = [problem for problem in problems if isinstance(problem, DoesNotFitError)]
    return min(misfits, key=lambda misfit: misfit.least, default=problems[0])


def _model_or_error(
    graph: Graph, mesh: Mesh, settings: Settings, moves: MovePrices, memory: float | None
) -> ChoiceModel | InputError:
    """Return the model of the choices on a mesh, or the InputError that says why there is none.

    There is no model if it cannot be built, or if no operator can split anything over the mesh. The error is
    returned instead of raised, because other meshes may be usable.

    Args:
        graph: the program.
        mesh: the mesh.
        settings: the assumptions of the cost model.
        moves: prices of redistributions that earlier calls computed.
        memory: limit in bytes. If it is None, the model leaves out strategies that cannot be part of an optimum.
    """
    try:
        if memory is None:
            model = quick_model(graph, mesh, settings, moves)
        else:  # a slower strategy may need less memory
            model = ChoiceModel(graph, mesh, settings, moves=moves)
        check_usable(model)
    except InputError as error:
        return error
    return model
