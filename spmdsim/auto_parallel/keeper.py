"""In which layouts a tensor with several readers, or a parameter, may be kept."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.auto_parallel.choice import Kept, States
from spmdsim.auto_parallel.graph import Graph, Value
from spmdsim.auto_parallel.messages import shared
from spmdsim.auto_parallel.moves import simple_layouts
from spmdsim.auto_parallel.settings import Settings
from spmdsim.layout import Layout, Mesh

#: Up to so many layouts of one tensor are all considered.
MOST_LAYOUTS = 700


class Keeper:
    """Finds the states of tensors that have a variable of their own.

    Args:
        graph: the program.
        mesh: the mesh.
        settings: the assumptions.
        operators: the states of every operator.
    """

    def __init__(self, graph: Graph, mesh: Mesh, settings: Settings, operators: Sequence[States]) -> None:
        self.graph, self.mesh, self.settings, self.operators = graph, mesh, settings, operators

    def states(self, value: Value) -> Kept:
        """Every pair of a layout to keep the tensor in and one to add its gradients in."""
        if value.layout is not None:
            base: tuple[Layout, ...] = (value.layout.canonical,)
        elif (len(value.shape) + 1) ** len(self.mesh.axes) <= MOST_LAYOUTS:
            base = simple_layouts(self.mesh, value.shape, self.settings.nested)
        else:
            base = self._seen_layouts(value)
        if self.graph.recorded and value.layout is None:
            whole = self._whole_dims(value)
            base = tuple(layout for layout in base if not any(layout.dims[d] for d in whole))
        if not value.needs_gradient:
            return Kept(base, base)
        if len(self.graph.consumers[value.index]) < 2:
            return self._alone(value, base)
        sums = self._seen_sums(value)
        pairs = [(layout, total) for layout in base for total in (layout, *sums.get(layout.dims, ()))]
        if value.kind == "parameter" and self.settings.sharded_parameters and value.layout is None:
            totals = dict.fromkeys(total for _, total in pairs)
            pairs = [
                (layout, total) for total in totals for layout in base if _refines(layout, total.reduced)
            ]
        return Kept(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    def _alone(self, value: Value, base: Sequence[Layout]) -> Kept:
        """With one reader there is nothing to add up; but a parameter's gradient may share a message."""
        pairs = [(layout, layout) for layout in base]
        if value.kind == "parameter" and self.settings.merges and self.graph.consumers[value.index]:
            reader, operand = self.graph.consumers[value.index][0]
            arriving = dict.fromkeys(self.operators[reader].gradients[operand])
            pairs += [
                (layout, total)
                for layout in base
                for total in arriving
                if total.partial and shared(self.settings, total, layout, value.shape)
            ]
        return Kept(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    def _seen_layouts(self, value: Value) -> tuple[Layout, ...]:
        """Layouts in which the tensor is computed or read: what is tried where all layouts are too many."""
        found: dict[Layout, None] = {}
        if value.producer is not None:
            made = self.operators[value.producer].outputs[value.output]
            found.update(dict.fromkeys(layout.reduced for layout in made))
        for reader, operand in self.graph.consumers[value.index]:
            found.update(dict.fromkeys(layout.reduced for layout in self.operators[reader].inputs[operand]))
        return tuple(found)

    def _whole_dims(self, value: Value) -> set[int]:
        """The dims that some reader must have whole."""
        found: set[int] = set()
        for reader, operand in self.graph.consumers[value.index]:
            bound = self.graph.operators[reader].bound
            found |= {d for d, factors in enumerate(bound.inputs[operand]) if bound.rule.whole & set(factors)}
        return found

    def _seen_sums(self, value: Value) -> dict[tuple[tuple[str, ...], ...], tuple[Layout, ...]]:
        """Partial layouts in which the readers' gradients may arrive, by how they are split."""
        found: dict[tuple[tuple[str, ...], ...], dict[Layout, None]] = {}
        for reader, operand in self.graph.consumers[value.index]:
            for layout in self.operators[reader].gradients[operand]:
                if layout.partial:
                    found.setdefault(layout.dims, {})[layout] = None
        return {dims: tuple(layouts) for dims, layouts in found.items()}


def _refines(fine: Layout, coarse: Layout) -> bool:
    """Whether one layout splits every dim at least as the other does."""
    return all(a[: len(b)] == b for a, b in zip(fine.dims, coarse.dims))
