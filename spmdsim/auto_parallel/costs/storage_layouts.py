"""The layouts in which a tensor with several readers, or a parameter, may be stored."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from spmdsim.auto_parallel.costs.gradient_sums import GradientSums, Price, fits_table, gradient_sums
from spmdsim.auto_parallel.costs.move_prices import message_kind
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, Value
from spmdsim.auto_parallel.strategy_choice import States, StorageStates, configured_result
from spmdsim.core import Layout, Mesh

#: Most layouts of a tensor that are all considered; with more, only layouts that operators use are considered.
MOST_LAYOUTS = 700


class StorageLayouts:
    """Finder of the states of tensors that have a variable of their own.

    ``operators`` are the states of all operators of the graph.
    """

    def __init__(self, graph: Graph, mesh: Mesh, settings: Settings, operators: Sequence[States]) -> None:
        self.graph, self.mesh, self.settings, self.operators = graph, mesh, settings, operators

    def states(self, value: Value, price: Price) -> StorageStates:
        """Return the layouts in which a tensor may be stored, and the ways to add its gradients.

        The layouts are those of the first of these cases that holds:

        1. The user fixed a layout: this layout.
        2. The tensor is a parameter with one reader that may be stored apart (:meth:`stored_apart`): the layouts in
           which it is used, and finer ones.
        3. There are at most :data:`MOST_LAYOUTS` (700) layouts: all of them; uneven ones only if
           ``settings.even`` is False.
        4. Otherwise: the layouts in which the tensor is computed or read.

        In cases 3 and 4 of a recorded program, layouts that split a dim which a reader needs unsplit are left out.

        Args:
            value: the tensor.
            price: returns the seconds of moving the tensor's gradient between two layouts.
        """
        fixed = self._fixed(value)
        if fixed is not None:
            base: tuple[Layout, ...] = (fixed,)
        elif self.stored_apart(value):
            base = self._used_or_finer(value)
        elif (len(value.shape) + 1) ** len(self.mesh.axes) <= MOST_LAYOUTS:
            base = simple_layouts(
                self.mesh, value.shape, self.settings.nested, self.settings.even is not False
            )
        else:
            base = self._used_layouts(value)
        if self.graph.recorded and fixed is None and not self.stored_apart(value):
            unsplit_dims = self._unsplit_dims(value)
            base = tuple(layout for layout in base if not any(layout.dims[d] for d in unsplit_dims))
        return self._with_sums(value, base, price)

    def _with_sums(self, value: Value, base: tuple[Layout, ...], price: Price) -> StorageStates:
        """Combine the layouts of a parameter with the ways to reduce its gradients over the ranks.

        There are two kinds of states:

        * a layout with the layouts in which the gradients of several readers are added;
        * a layout with the one partial layout in which the gradient joins a message of several gradients.

        Tensors other than parameters with gradients get the layouts only.

        Args:
            value: the tensor.
            base: the layouts.
            price: returns the seconds of moving the gradient between two layouts.
        """
        gradient_readers = self.graph.gradient_readers[value.index]
        if value.kind != "parameter" or not gradient_readers:
            return StorageStates(base)
        arriving = [self.operators[reader].gradients[operand] for reader, operand in gradient_readers]
        joint = len(gradient_readers) > 1 and fits_table([len(base), *map(len, arriving)])
        no_sums = GradientSums(base, ((),) * len(base))
        sums = no_sums if joint else gradient_sums(arriving, base, price)
        states = [(layout, summed, False) for layout, summed in zip(sums.targets, sums.shared)]
        partial = dict.fromkeys(layout for layouts in arriving for layout in layouts if layout.partial)
        for layout, partial_layout in itertools.product(base, partial if self.settings.merges else ()):
            if message_kind(self.settings, partial_layout, layout, value.shape):
                states.append((layout, (partial_layout,), True))
        layouts, sum_layouts, shares_message = zip(*states)
        return StorageStates(layouts, sum_layouts, shares_message, joint, sums.complete)

    def _fixed(self, value: Value) -> Layout | None:
        """Return the layout that the user fixed for ``value``; None if the search may choose it.

        The user fixes a layout for an input or parameter, or for the first result of an operator. Other results
        are free.
        """
        if value.layout is not None:
            return value.layout.canonical
        if value.producer is None or value.output:
            return None
        operator = self.graph.operators[value.producer]
        return configured_result(operator, self.operators[operator.index].strategies[0])

    def _used_or_finer(self, value: Value) -> tuple[Layout, ...]:
        """Return the layouts in which the only reader of a parameter needs it, and all finer ones."""
        reader, operand = self.graph.consumers[value.index][0]
        used = dict.fromkeys(self.operators[reader].inputs[operand])
        finer = (layout for source in used for layout in self.finer_layouts(source, value.shape))
        return tuple(dict.fromkeys((*used, *finer)))

    def stored_apart(self, value: Value) -> bool:
        """Return True if a parameter with one reader may be stored with finer splits than it is used."""
        single = value.kind == "parameter" and len(self.graph.consumers[value.index]) == 1
        return single and value.needs_gradient and value.layout is None and self.settings.sharded_parameters

    def finer_layouts(self, layout: Layout, shape: tuple[int, ...]) -> Iterator[Layout]:
        """Yield layouts that split a layout further, one for each set of unused axes.

        Small sets come first; axes of size 1 are left out. Each axis splits the first dim whose blocks stay
        equal, because the price does not depend on the dim. A set is skipped if one of its axes finds no such
        dim.

        Args:
            layout: the layout.
            shape: the global shape of the tensor.
        """
        free = [axis for axis in layout.replicated_axes if self.mesh.axis_size(axis) > 1]
        for count in range(1, len(free) + 1):
            for axes in itertools.combinations(free, count):
                finer = split_further(layout, axes, shape, self.settings.nested)
                if finer is not None:
                    yield finer

    def _used_layouts(self, value: Value) -> tuple[Layout, ...]:
        """Return the layouts in which operators compute or read a tensor (``value``), each once.

        Pending reductions are taken off. The search stores the tensor in one of these layouts if there are too
        many layouts to consider all.
        """
        layouts: dict[Layout, None] = {}
        if value.producer is not None:
            produced = self.operators[value.producer].outputs[value.output]
            layouts.update(dict.fromkeys(layout.reduced for layout in produced))
        for reader, operand in self.graph.consumers[value.index]:
            layouts.update(dict.fromkeys(layout.reduced for layout in self.operators[reader].inputs[operand]))
        return tuple(layouts)

    def _unsplit_dims(self, value: Value) -> set[int]:
        """Return the numbers of the dims of ``value`` that at least one reader needs unsplit.

        A reader needs a dim unsplit if its rule forbids to split a factor of the dim (``Rule.whole``).
        """
        dims: set[int] = set()
        for reader, operand in self.graph.consumers[value.index]:
            bound = self.graph.operators[reader].bound
            dims |= {d for d, factors in enumerate(bound.inputs[operand]) if bound.rule.whole & set(factors)}
        return dims


@lru_cache(maxsize=4096)
def simple_layouts(
    mesh: Mesh, shape: tuple[int, ...], nested: bool = True, even: bool = True
) -> tuple[Layout, ...]:
    """Return every layout in which each axis splits at most one dim, the replicated one first.

    For example, on the axes x and y of size 2, a vector of 8 elements has four layouts: replicated, split by y, by x,
    and by both; the last one only if ``nested``.

    Args:
        mesh: the mesh; axes of size 1 split nothing.
        shape: the shape of the tensor.
        nested: allow several axes to split one dim.
        even: allow only blocks of equal size; otherwise blocks may differ by one element, but must not be empty.
    """
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


def split_further(layout: Layout, axes: Sequence[str], shape: Sequence[int], nested: bool) -> Layout | None:
    """Split a layout by more axes, each in the first dim whose blocks stay equal, or return None.

    Args:
        layout: the layout.
        axes: the axes to add, in this order; they must not split the layout yet.
        shape: the global shape.
        nested: False to try dims that no axis splits yet first.

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
