"""Reference of Mesh TensorFlow's search for one layout of all named dims of a program.

Dims that operators link are one dim of the program with one name. A layout assigns at most one mesh axis to each dim and
at most one dim to each axis. So a dim has one split in all tensors, and only sums need communication. The layout with
the least peak memory wins. Of equal layouts, the layout with most axes wins.

Source: Shazeer et al., "Mesh-TensorFlow: Deep Learning for Supercomputers", 2018, and its ``auto_mtf``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.strategy_choice import StrategyChoice
from spmdsim.core import Layout, Mesh, Strategy
from spmdsim.errors import InputError

#: A layout: dim -> mesh axis.
Assignment = Mapping[str, str]


def assignments(dims: Sequence[str], axes: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield all assignments of distinct axes to any of the dims.

    >>> len(list(assignments(["a", "b", "c"], ["m1", "m2"])))
    13
    """
    for count in range(min(len(dims), len(axes)) + 1):
        for chosen in itertools.combinations(axes, count):
            for taken in itertools.permutations(dims, count):
                yield dict(zip(taken, chosen))


def written(layout: Assignment) -> str:
    """Return a layout in the notation of Mesh TensorFlow.

    >>> written({"c": "m1", "a": "m2"})
    'a:m2;c:m1'
    """
    return ";".join(f"{dim}:{axis}" for dim, axis in sorted(layout.items()))


@dataclass(frozen=True)
class NamedDims:
    """The named dims of a program.

    Attributes:
        graph: the program.
        of_values: for each tensor, the name of each dim.
        of_factors: for each operator, the name of each factor.
        sizes: the size of each name.
        unsplit: names of dims that must not be split.
    """

    graph: Graph
    of_values: tuple[tuple[str, ...], ...]
    of_factors: tuple[dict[str, str], ...]
    sizes: dict[str, int]
    unsplit: frozenset[str]

    def choice(self, layout: Assignment, mesh: Mesh) -> StrategyChoice:
        """Return the strategies and layouts on ``mesh`` that follow from a layout of the dims."""
        strategies = tuple(
            Strategy.of(mesh, {factor: layout[name] for factor, name in names.items() if name in layout})
            for names in self.of_factors
        )
        layouts = tuple(
            Layout(mesh, [(layout[name],) if name in layout else () for name in names])
            for names in self.of_values
        )
        return StrategyChoice(self.graph, mesh, strategies, layouts)

    def peak(self, layout: Assignment, mesh: Mesh, settings: Settings | None = None) -> int:
        """Return the peak memory of the rank with the largest peak, in bytes."""
        return peak_memory(self.choice(layout, mesh), settings or Settings()).peak

    def best(self, mesh: Mesh, settings: Settings | None = None) -> dict[str, str]:
        """Return the layout on ``mesh`` with the least peak memory in which each dim is cut evenly.

        ``settings`` are the search settings that define memory; None for the defaults.
        """
        least: tuple[int, int, str] | None = None
        answer: dict[str, str] = {}
        for layout in assignments([name for name in self.sizes if name not in self.unsplit], mesh.axes):
            if any(self.sizes[dim] % mesh.axis_size(axis) for dim, axis in layout.items()):
                continue
            score = (self.peak(layout, mesh, settings), -len(layout), written(layout))
            if least is None or score < least:
                least, answer = score, layout
        return answer


def named_dims(graph: Graph) -> NamedDims:
    """Return the named dims of the program ``graph``. Dims that a factor of an operator links are one dim.

    A dim has the name of its first factor. Further dims with an equal name get ``#`` and a number.

    Raises:
        InputError: If an operator splits or joins dims, because these dims have no single name.

    >>> from spmdsim.auto_parallel.programs.networks import chain
    >>> list(named_dims(chain((8, 4), batch=16)).sizes.items())
    [('.0', 16), ('k', 8), ('n', 4)]
    """
    parent: dict[tuple[str, int, object], tuple[str, int, object]] = {}

    def root(node: tuple[str, int, object]) -> tuple[str, int, object]:
        """Return the representative of all dims and factors that are linked with ``node``."""
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for operator in graph.operators:
        bound = operator.bound
        for factor in bound.sizes:
            root(("factor", operator.index, factor))
        values = (*operator.inputs, *operator.outputs)
        for value, term in zip(values, (*bound.inputs, *bound.outputs)):
            for dim, factors in enumerate(term):
                if len(factors) > 1:
                    raise InputError(
                        f"dims of one name cannot be split or joined, as the rule '{bound.rule}' does",
                        operator=operator.name,
                    )
                for factor in factors:
                    # The factor becomes the root, so dims get the names of factors.
                    parent[root(("value", value, dim))] = root(("factor", operator.index, factor))
    names: dict[tuple[str, int, object], str] = {}
    sizes: dict[str, int] = {}
    unsplit: set[str] = set()

    def name(node: tuple[str, int, object], wanted: str, size: int) -> str:
        top = root(node)
        if top not in names:
            number = sum(other_name.split("#")[0] == wanted for other_name in sizes)
            names[top] = f"{wanted}#{number}" if number else wanted
            sizes[names[top]] = size
        return names[top]

    of_factors = []
    for operator in graph.operators:
        bound = operator.bound
        dim_names = {f: name(("factor", operator.index, f), f, size) for f, size in bound.sizes.items()}
        unsplit.update(dim_names[f] for f in bound.sizes if f not in bound.splittable)
        of_factors.append(dim_names)
    of_values = tuple(
        tuple(name(("value", v.index, d), f"{v.name}.{d}", n) for d, n in enumerate(v.shape))
        for v in graph.values
    )
    return NamedDims(graph, of_values, tuple(of_factors), sizes, frozenset(unsplit))
