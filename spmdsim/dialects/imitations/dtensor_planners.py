"""Reproduce the redistribution plans of DTensor's two planners, for two layouts of one mesh.

The greedy planner (default of PyTorch 2.13, ``_redistribute.py``) runs one collective per mesh axis. If the source is
split at all, each axis, from the innermost to the outermost, takes the target's placement at once. There is one
exception: if the outer axes that split the axis's new dim now are not those that split it in the target, the axis
becomes Replicate first. A second pass, from the outermost axis inwards, completes the rest. The planner does not count
bytes.

The graph planner (``DTensorRedistributePlanner``) handles layouts whose axes split a dim in another order than the
mesh's. It takes a cheapest path, with the prices of ``_collective_utils.py`` (latency and bandwidth inside one host).
Axes join and leave a dim at its inner end. A local slice costs nothing. An exchange between two dims is priced above
a gather of a small tensor and a slice.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from spmdsim.core import Layout, Partial, Placement, Replicate, Shard
from spmdsim.errors import PlanError
from spmdsim.redistribution.plans.plan_table import bytes_text
from spmdsim.redistribution.plans.planner import Plan

#: Microseconds per collective, per hop and per byte, and a small cost per step, so that fewer steps win ties.
_LATENCY, _HOP, _BYTE, _STEP = 6.6, 0.6, 1e6 / 87.7e9, 1e-9
#: Extra cost of an exchange between two dims, so that small tensors are gathered and sliced instead.
_EXCHANGE = 0.5


class AxisTransition(NamedTuple):
    """Step of a plan of DTensor: a change of one mesh axis.

    Attributes:
        axis: number of the mesh axis.
        collective: name of the collective, or ``"slice"`` for a local slice.
        layout: layout after the step.
    """

    axis: int
    collective: str
    layout: Layout


def in_mesh_order(layout: Layout) -> bool:
    """Return True if the axes of each dim are in mesh order, so that placements define the layout."""
    return Layout.from_placements(layout.mesh, layout.placements, layout.ndim) == layout


def ordered_steps(src: Layout, dst: Layout, nbytes: int = 1) -> list[AxisTransition]:
    """Return the steps of the graph planner between two layouts of one mesh, in order.

    They are the cheapest path by the prices of `transitions`, found by Dijkstra's algorithm. Of equally cheap paths,
    the one found first counts; lower numbers of axes are tried first. The list is empty for equal layouts.

    Args:
        src: layout before.
        dst: layout after.
        nbytes: bytes of the whole tensor.

    Raises:
        PlanError: If ``dst`` has a pending reduction that ``src`` lacks, or no path exists.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> [f"{s.collective} over {mesh.axes[s.axis]}" for s in ordered_steps(mesh(("b", "a")), mesh("a"))]
    ['all_gather over a', 'all_gather over b', 'slice over a']
    """
    if set(dst.partial) - set(src.partial):
        raise PlanError(f"DTensor does not turn {src} into {dst}")
    best: dict[Layout, float] = {src: 0.0}
    heap: list[tuple[float, tuple[int, ...], int, Layout, list[AxisTransition]]] = [(0.0, (), 0, src, [])]
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
    raise PlanError(f"DTensor cannot redistribute {src} to {dst}; choose another layout")


def transitions(layout: Layout, nbytes: int) -> Iterator[tuple[float, AxisTransition]]:
    """Yield ``(price in microseconds, step)`` for each step that the graph planner allows.

    A partial axis may be reduced, with or without a scatter. An unused axis may split any dim, as its innermost
    axis. The innermost axis of a dim may be gathered, or exchanged to any dim. The price depends on the n ranks
    along the axis, and on the s bytes of a shard before the step, as if evenly split:

    - all_gather: ``6.6 + 0.6 * (n - 1) + s * (n - 1) / 87700 + 1e-9``;
    - reduce_scatter: ``6.6 + 0.6 * (n - 1) + s * (n - 1) / n / 87700 + 1e-9``;
    - all_reduce: as a reduce_scatter, with twice the terms of ``0.6`` and of ``s``;
    - all_to_all (exchange): as a reduce_scatter, and 0.5 more;
    - slice: 1e-9.

    Args:
        layout: layout before the step.
        nbytes: bytes of the whole tensor.
    """
    mesh, local = layout.mesh, nbytes / layout.shard_count
    partial = dict(layout.partial)
    for number, axis in enumerate(mesh.axes):
        n = mesh.axis_size(axis)
        base_price = _LATENCY + _HOP * (n - 1) + _STEP
        if axis in partial:
            other_reductions = {a: op for a, op in layout.partial if a != axis}
            moved = local * (n - 1) / n * _BYTE
            reduce_price = base_price + _HOP * (n - 1) + 2 * moved
            yield reduce_price, AxisTransition(number, "all_reduce", layout.with_partial(other_reductions))
            for dims in _appended(layout, axis):
                yield (
                    base_price + moved,
                    AxisTransition(number, "reduce_scatter", Layout(mesh, dims, other_reductions)),
                )
        elif axis not in layout.split_axes:
            for dims in _appended(layout, axis):
                yield _STEP, AxisTransition(number, "slice", Layout(mesh, dims, layout.partial))
        elif any(entry[-1:] == (axis,) for entry in layout.dims):
            gathered_dims = [entry[:-1] if entry[-1:] == (axis,) else entry for entry in layout.dims]
            gathered = Layout(mesh, gathered_dims, layout.partial)
            yield base_price + local * (n - 1) * _BYTE, AxisTransition(number, "all_gather", gathered)
            exchange_price = base_price + local * (n - 1) / n * _BYTE + _EXCHANGE
            for dims in _appended(gathered, axis):
                yield exchange_price, AxisTransition(number, "all_to_all", Layout(mesh, dims, layout.partial))


def _appended(layout: Layout, axis: str) -> Iterator[list[tuple[str, ...]]]:
    """Yield the entries of ``layout`` with ``axis`` appended at the inner end of one dim, for each dim."""
    for dim in range(layout.ndim):
        yield [(*entry, axis) if d == dim else entry for d, entry in enumerate(layout.dims)]


def format_dtensor_layout(layout: Layout) -> str:
    """Return DTensor's short text of a layout: one placement per mesh axis.

    A placement is ``S(dim)``, ``R`` or ``P(op)``. Axes that split one dim together show their index in it. Index 0 is
    the major axis of the dim.

    >>> from spmdsim.core import Mesh
    >>> format_dtensor_layout(Mesh((2, 2, 2), ("a", "b", "c"))(("b", "a"), None))
    'S(0)[1]S(0)[0]R'
    """
    out = []
    for axis, placement in zip(layout.mesh.axes, layout.placements):
        position = ""
        if isinstance(placement, Shard) and len(layout.dims[placement.dim]) > 1:
            position = f"[{layout.dims[placement.dim].index(axis)}]"
        out.append(f"{placement}{position}")
    return "".join(out)


def greedy_steps(src: Layout, dst: Layout) -> list[AxisTransition]:
    """Return the steps of the greedy planner, in order, between two layouts of one mesh.

    - The first pass goes from the innermost to the outermost axis, and gives each the target's placement. But
      if the outer axes that split its new dim now are not those that split it in the target, the axis becomes
      Replicate. The pass is left out if the source splits no dim.
    - The second pass goes from the outermost axis inwards, and gives the target's placement to all axes that
      lack it.

    In the example, dim 0 is split along a and dim 1 along b, and the axes shall be exchanged. Axis b becomes
    Replicate first, because a splits dim 0 still, but not in the target.

    The list is empty for equal placements. The order of axes inside a dim is not looked at: it must be the
    order of the mesh.

    Raises:
        PlanError: If ``dst`` has a pending reduction that ``src`` lacks.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> [f"{s.collective} over {mesh.axes[s.axis]}" for s in greedy_steps(mesh("a", "b"), mesh("b", "a"))]
    ['all_gather over b', 'all_to_all over a', 'slice over b']
    """
    current, target, steps = list(src.placements), dst.placements, list[AxisTransition]()

    def change_axis(axis: int, placement: Placement) -> None:
        """Append the step that gives an axis a placement, unless the axis has it."""
        if current[axis] != placement:
            name = _collective(current[axis], placement)
            current[axis] = placement
            steps.append(AxisTransition(axis, name, Layout.from_placements(src.mesh, current, src.ndim)))

    if any(isinstance(placement, Shard) for placement in current):
        for axis in reversed(range(len(current))):
            wanted = target[axis]
            outer_axes_now = [k for k in range(axis) if current[k] == wanted]
            outer_axes_after = [k for k in range(axis) if target[k] == wanted]
            differ = isinstance(wanted, Shard) and outer_axes_now != outer_axes_after
            change_axis(axis, Replicate() if differ else wanted)
    for axis, placement in enumerate(target):
        change_axis(axis, placement)
    return steps


def _collective(before: Placement, after: Placement) -> str:
    """Return the name of the collective that changes an axis between two different placements.

    * From Replicate: ``"slice"``.
    * From Partial: ``"reduce_scatter"`` to a Shard, ``"all_reduce"`` to Replicate.
    * From Shard: ``"all_to_all"`` to another Shard, ``"all_gather"`` to Replicate.
    """
    if isinstance(after, Partial):
        raise PlanError(f"DTensor does not turn {before} into {after}")
    if isinstance(before, Replicate):
        return "slice"
    if isinstance(before, Partial):
        return "reduce_scatter" if isinstance(after, Shard) else "all_reduce"
    return "all_to_all" if isinstance(after, Shard) else "all_gather"


@dataclass(frozen=True)
class DTensorPlan:
    """Plan of one of DTensor's planners; ``str(plan)`` compares it with this package's plan.

    Attributes:
        src: layout before.
        dst: layout after.
        shape: global shape of the tensor.
        itemsize: bytes of an element.
        ours: this package's plan for the redistribution.
    """

    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    itemsize: int
    ours: Plan

    @property
    def planner(self) -> str:
        """Name of the planner: ``"greedy"``, or ``"graph"`` if the axes of a dim are not in mesh order."""
        return "greedy" if in_mesh_order(self.src) and in_mesh_order(self.dst) else "graph"

    @property
    def steps(self) -> list[AxisTransition]:
        """Transitions of the plan, in order."""
        if self.planner == "graph":
            return ordered_steps(self.src, self.dst, math.prod(self.shape) * self.itemsize)
        return greedy_steps(self.src, self.dst)

    @property
    def trace(self) -> str:
        """Text of the layouts in DTensor's short form, such as ``S(0)R->S(0)S(1)``."""
        return "->".join(map(format_dtensor_layout, [self.src, *(step.layout for step in self.steps)]))

    @property
    def received_elements(self) -> float:
        """Number of elements a rank receives, by the textbook volumes for evenly split sizes.

        It is the sum over the steps. With ``local`` elements of the shard before a step, and n ranks along its axis, a
        step receives:

        * all_gather: ``local * (n - 1)``
        * all_reduce: ``2 * local * (n - 1) / n``
        * slice: 0
        * all others: ``local * (n - 1) / n``
        """
        total, local = 0.0, math.prod(self.shape) / self.src.shard_count
        for step in self.steps:
            n = self.src.mesh.shape[step.axis]
            shares = {"all_gather": n - 1, "all_reduce": 2 * (n - 1) / n, "slice": 0}
            total += local * shares.get(step.collective, (n - 1) / n)
            local *= {"all_gather": n, "reduce_scatter": 1 / n, "slice": 1 / n}.get(step.collective, 1)
        return total

    @property
    def nbytes(self) -> float:
        """Number of bytes a rank receives."""
        return self.received_elements * self.itemsize

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict of numbers, texts and lists, for JSON.

        Its keys are ``style`` ("dtensor"), ``planner``, ``trace``, ``steps`` (a dict with ``collective`` and ``axis``
        each), ``nbytes`` (received by a rank) and ``ours``, the dict of this package's plan.
        """
        mesh = self.src.mesh
        return {
            "style": "dtensor",
            "planner": self.planner,
            "trace": self.trace,
            "steps": [{"collective": step.collective, "axis": mesh.axes[step.axis]} for step in self.steps],
            "nbytes": self.nbytes,
            "ours": self.ours.to_dict(),
        }

    def __str__(self) -> str:
        mesh = self.src.mesh
        names = [f"{step.collective} over {mesh.axes[step.axis]}" for step in self.steps] or ["nothing"]
        ours = self.ours.max_nbytes
        much = f", {self.nbytes / ours:.3g} times less" if 0 < ours < self.nbytes else ""
        return (
            f"DTensor's {'default' if self.planner == 'greedy' else 'graph'} planner: {', '.join(names)}\n"
            f"  {self.trace}\n  received {bytes_text(self.nbytes)}\n"
            f"this package receives {bytes_text(ours)}{much}:\n{self.ours}"
        )


def dtensor_plan(ours: Plan) -> DTensorPlan:
    """Return the plan that DTensor makes for the redistribution of a plan of this package.

    Args:
        ours: this package's plan, which states layouts, shape and element size.

    Raises:
        PlanError: If the meshes differ, or DTensor does not support the redistribution.
    """
    if ours.src.mesh != ours.dst.mesh:
        raise PlanError(
            f"DTensor redistributes within one mesh only, got {ours.src} and {ours.dst}; give both layouts one mesh"
        )
    theirs = DTensorPlan(ours.src, ours.dst, ours.shape, ours.itemsize, ours)
    _ = theirs.steps  # refused at once
    return theirs
