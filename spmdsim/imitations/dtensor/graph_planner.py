"""DTensor's planner for layouts whose axes split a dim in another than the mesh's order.

Such layouts take a shortest path (PyTorch's ``DTensorRedistributePlanner``, graph based; prices of
``_collective_utils.py``: latency and bandwidth inside one host). Axes join and leave a dim at its inner end. Cutting
costs nothing; an exchange between two dims is priced above a gather of a small tensor, which is then cut again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from spmdsim.core import Layout, Shard
from spmdsim.errors import PlanError

#: Microseconds of a collective, of each hop, and per byte; the last decides between equal numbers of steps.
_LATENCY, _HOP, _BYTE, _STEP = 6.6, 0.6, 1e6 / 87.7e9, 1e-9
#: What an exchange between two dims costs more, so that small tensors are gathered and cut instead.
_EXCHANGE = 0.5


class OrderedStep(NamedTuple):
    """A transition along one mesh axis.

    Attributes:
        axis: number of the mesh axis.
        collective: what runs, or ``"slice"``.
        layout: the layout after it.
    """

    axis: int
    collective: str
    layout: Layout


def in_mesh_order(layout: Layout) -> bool:
    """Whether placements alone say the layout."""
    return Layout.from_placements(layout.mesh, layout.placements, layout.ndim) == layout


def ordered_steps(src: Layout, dst: Layout, nbytes: int = 1) -> list[OrderedStep]:
    """The cheapest path of gathers, cuts and reductions between two layouts of one mesh.

    Args:
        src: the layout before.
        dst: the layout after.
        nbytes: bytes of the whole tensor.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> [f"{s.collective} over {mesh.axes[s.axis]}" for s in ordered_steps(mesh(("b", "a")), mesh("a"))]
    ['all_gather over a', 'all_gather over b', 'slice over a']

    Raises:
        PlanError: a target that is pending where the source is not.
    """
    if set(dst.partial) - set(src.partial):
        raise PlanError(f"DTensor does not turn {src} into {dst}")
    best: dict[Layout, float] = {src: 0.0}
    heap: list[tuple[float, tuple[int, ...], int, Layout, list[OrderedStep]]] = [(0.0, (), 0, src, [])]
    pushed = 1
    while heap:
        cost, path, _, layout, steps = heapq.heappop(heap)
        if layout == dst:
            return steps
        if cost > best.get(layout, math.inf):
            continue
        for price, step in transitions(layout, nbytes):
            total = cost + price
            if total < best.get(step.layout, math.inf) - 1e-12:
                best[step.layout] = total
                heapq.heappush(heap, (total, (*path, step.axis), pushed, step.layout, [*steps, step]))
                pushed += 1
    raise PlanError(f"DTensor has no way from {src} to {dst}")


def transitions(layout: Layout, nbytes: int) -> Iterator[tuple[float, OrderedStep]]:
    """Every transition from a layout, with its price in microseconds."""
    mesh, local = layout.mesh, nbytes / layout.shard_count
    partial = dict(layout.partial)
    for number, axis in enumerate(mesh.axes):
        n = mesh.axis_size(axis)
        once = _LATENCY + _HOP * (n - 1) + _STEP
        if axis in partial:
            rest = {a: op for a, op in layout.partial if a != axis}
            moved = local * (n - 1) / n * _BYTE
            twice = once + _HOP * (n - 1) + 2 * moved
            yield twice, OrderedStep(number, "all_reduce", layout.with_partial(rest))
            for dims in _appended(layout, axis):
                yield once + moved, OrderedStep(number, "reduce_scatter", Layout(mesh, dims, rest))
        elif axis not in layout.split_axes:
            for dims in _appended(layout, axis):
                yield _STEP, OrderedStep(number, "slice", Layout(mesh, dims, layout.partial))
        elif any(entry[-1:] == (axis,) for entry in layout.dims):
            kept = [entry[:-1] if entry[-1:] == (axis,) else entry for entry in layout.dims]
            gathered = Layout(mesh, kept, layout.partial)
            yield once + local * (n - 1) * _BYTE, OrderedStep(number, "all_gather", gathered)
            exchanged = once + local * (n - 1) / n * _BYTE + _EXCHANGE
            for dims in _appended(gathered, axis):
                yield exchanged, OrderedStep(number, "all_to_all", Layout(mesh, dims, layout.partial))


def _appended(layout: Layout, axis: str) -> Iterator[list[tuple[str, ...]]]:
    """The dims with an axis more at the inner end of one of them."""
    for dim in range(layout.ndim):
        yield [(*entry, axis) if d == dim else entry for d, entry in enumerate(layout.dims)]


def short(layout: Layout) -> str:
    """The layout in DTensor's short form; axes that split one dim together carry their place in it.

    >>> from spmdsim.core import Mesh
    >>> short(Mesh((2, 2, 2), ("a", "b", "c"))(("b", "a"), None))
    'S(0)[1]S(0)[0]R'
    """
    out = []
    for axis, placement in zip(layout.mesh.axes, layout.placements):
        place = ""
        if isinstance(placement, Shard) and len(layout.dims[placement.dim]) > 1:
            place = f"[{layout.dims[placement.dim].index(axis)}]"
        out.append(f"{placement}{place}")
    return "".join(out)
