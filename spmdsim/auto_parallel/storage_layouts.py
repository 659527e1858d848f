"""In which layouts a tensor with several readers, or a parameter, may be kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from spmdsim.auto_parallel.costs.move_prices import shared
from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Value
from spmdsim.auto_parallel.strategy_choice import States, StorageStates, configured_result
from spmdsim.core import Layout, Mesh

#: Up to so many layouts of one tensor are all considered.
MOST_LAYOUTS = 700


class StorageLayouts:
    """Finds the states of tensors that have a variable of their own."""

    def __init__(self, graph: Graph, mesh: Mesh, settings: Settings, operators: Sequence[States]) -> None:
        self.graph, self.mesh, self.settings, self.operators = graph, mesh, settings, operators

    def states(self, value: Value) -> StorageStates:
        """Every pair of a layout to keep the tensor in and one to add its gradients in."""
        fixed = self._fixed(value)
        if fixed is not None:
            base: tuple[Layout, ...] = (fixed,)
        elif (len(value.shape) + 1) ** len(self.mesh.axes) <= MOST_LAYOUTS:
            base = simple_layouts(self.mesh, value.shape, self.settings.nested, self.settings.even)
        else:
            base = self._seen_layouts(value)
        if self.graph.recorded and fixed is None:
            whole = self._whole_dims(value)
            base = tuple(layout for layout in base if not any(layout.dims[d] for d in whole))
        readers = len(self.graph.consumers[value.index])
        if not value.needs_gradient or not readers:
            return StorageStates(base, base)
        if readers == 1:
            return self._alone(value, base)
        sums = self._seen_sums(value)
        pairs = [(layout, total) for layout in base for total in (layout, *sums.get(layout.dims, ()))]
        if value.kind == "parameter" and self.settings.sharded_parameters and value.layout is None:
            totals = dict.fromkeys(total for _, total in pairs)
            pairs = [(fine, total) for total in totals for fine in base if _refines(fine, total.reduced)]
        return StorageStates(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    def _fixed(self, value: Value) -> Layout | None:
        """The layout that a user fixed for a tensor, or for the result of a configured operator."""
        if value.layout is not None:
            return value.layout.canonical
        if value.producer is None or value.output:
            return None
        operator = self.graph.operators[value.producer]
        return configured_result(operator, self.operators[operator.index].strategies[0])

    def _alone(self, value: Value, base: Sequence[Layout]) -> StorageStates:
        """With one reader there is nothing to add up; but a parameter's gradient may share a message.

        The gradient of a result in a fixed layout goes from where it arrives to where the result was computed.
        """
        reader, operand = self.graph.consumers[value.index][0]
        if value.kind != "parameter":
            sums = tuple(dict.fromkeys(self.operators[reader].gradients[operand]))
            return (
                StorageStates((base[0],) * len(sums), sums)
                if self._fixed(value)
                else StorageStates(tuple(base), tuple(base))
            )
        if self.stored_apart(value):
            used = dict.fromkeys(self.operators[reader].inputs[operand])
            pieces = (piece for layout in used for piece in self.pieces(layout, value.shape))
            base = tuple(dict.fromkeys((*used, *pieces)))
        pairs = [(layout, layout) for layout in base]
        if self.settings.merges:
            arriving = [g for g in dict.fromkeys(self.operators[reader].gradients[operand]) if g.partial]
            every = itertools.product(base, arriving)
            pairs += [pair for pair in every if shared(self.settings, pair[1], pair[0], value.shape)]
        return StorageStates(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    def stored_apart(self, value: Value) -> bool:
        """Whether a parameter with one reader may be stored more finely split than it is used."""
        single = value.kind == "parameter" and len(self.graph.consumers[value.index]) == 1
        return single and value.needs_gradient and value.layout is None and self.settings.sharded_parameters

    def pieces(self, layout: Layout, shape: tuple[int, ...]) -> Iterator[Layout]:
        """A layout split further, by every choice of the axes it leaves free.

        Which dim takes an axis makes no difference in price, so it is the first one that stays even.
        """
        free = [axis for axis in layout.replicated_axes if self.mesh.axis_size(axis) > 1]
        for count in range(1, len(free) + 1):
            for axes in itertools.combinations(free, count):
                finer = split_further(layout, axes, shape, self.settings.nested)
                if finer is not None:
                    yield finer

    def _seen_layouts(self, value: Value) -> tuple[Layout, ...]:
        """Layouts in which the tensor is computed or read: what is tried where all layouts are too many."""
        layouts: dict[Layout, None] = {}
        if value.producer is not None:
            produced = self.operators[value.producer].outputs[value.output]
            layouts.update(dict.fromkeys(layout.reduced for layout in produced))
        for reader, operand in self.graph.consumers[value.index]:
            layouts.update(dict.fromkeys(layout.reduced for layout in self.operators[reader].inputs[operand]))
        return tuple(layouts)

    def _whole_dims(self, value: Value) -> set[int]:
        """The dims that some reader must have whole."""
        dims: set[int] = set()
        for reader, operand in self.graph.consumers[value.index]:
            bound = self.graph.operators[reader].bound
            dims |= {d for d, factors in enumerate(bound.inputs[operand]) if bound.rule.whole & set(factors)}
        return dims

    def _seen_sums(self, value: Value) -> dict[tuple[tuple[str, ...], ...], tuple[Layout, ...]]:
        """Partial layouts in which the readers' gradients may arrive, by how they are split."""
        sums: dict[tuple[tuple[str, ...], ...], dict[Layout, None]] = {}
        for reader, operand in self.graph.consumers[value.index]:
            for layout in self.operators[reader].gradients[operand]:
                if layout.partial:
                    sums.setdefault(layout.dims, {})[layout] = None
        return {dims: tuple(layouts) for dims, layouts in sums.items()}


@lru_cache(maxsize=4096)
def simple_layouts(
    mesh: Mesh, shape: tuple[int, ...], nested: bool = True, even: bool = True
) -> tuple[Layout, ...]:
    """Every layout in which each axis splits one dim, or none; pieces that need not be ``even`` must not be empty."""
    partial_dims: list[list[list[str]]] = [[[] for _ in shape]]
    for axis, size in zip(mesh.axes, mesh.shape):
        if size == 1:
            continue
        grown = []
        for dims in partial_dims:
            grown.append(dims)
            for d, n in enumerate(shape):
                parts = mesh.axis_size(*dims[d]) * size
                fits = n % parts == 0 if even else n >= parts
                if fits and (nested or not dims[d]):
                    grown.append([[*e, axis] if k == d else e for k, e in enumerate(dims)])
        partial_dims = grown
    return tuple(Layout(mesh, [tuple(e) for e in dims]) for dims in partial_dims)


def _refines(fine: Layout, coarse: Layout) -> bool:
    """Whether one layout splits every dim at least as the other does."""
    return all(a[: len(b)] == b for a, b in zip(fine.dims, coarse.dims))


def split_further(layout: Layout, axes: Sequence[str], shape: Sequence[int], nested: bool) -> Layout | None:
    """A layout split by some more axes, each in the first dim that stays even; None if there is no such dim.

    Without ``nested``, dims that no axis splits yet come first.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> [split_further(mesh("tp", None), ("dp",), (8, 8), nested).dims for nested in (True, False)]
    [(('tp', 'dp'), ()), (('tp',), ('dp',))]
    """
    dims = [list(entry) for entry in layout.dims]
    for axis in axes:
        order = range(len(dims)) if nested else sorted(range(len(dims)), key=lambda d: bool(dims[d]))
        size = layout.mesh.axis_size
        fitting = [d for d in order if shape[d] % (size(*dims[d]) * size(axis)) == 0]
        if not fitting:
            return None
        dims[fitting[0]].append(axis)
    return Layout(layout.mesh, [tuple(entry) for entry in dims], layout.partial)
