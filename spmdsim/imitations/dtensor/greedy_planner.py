"""What DTensor's default planner would do: one collective per mesh axis, inner axes first.

The rule (PyTorch 2.13, ``_redistribute.py``): if the source is split at all, every axis, the innermost first, takes
the target's placement at once, unless that splits a dim which other outer axes split now than in the target; then it
goes through Replicate. What is left is finished from the outermost axis inwards. Volumes play no part. Layouts whose
axes split a dim in another than the mesh's order take another planner (``dtensor_orders``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.core import Layout, Partial, Placement, Replicate, Shard
from spmdsim.errors import PlanError
from spmdsim.imitations.dtensor.graph_planner import OrderedStep, in_mesh_order, ordered_steps, short
from spmdsim.redistribution.plan_table import bytes_text
from spmdsim.redistribution.planner import Plan

Placements = tuple[Placement, ...]


@dataclass(frozen=True)
class GreedyStep:
    """A transition along one mesh axis.

    Attributes:
        axis: number of the mesh axis.
        collective: what runs, or ``"slice"``.
        state: all placements after it.
    """

    axis: int
    collective: str
    state: Placements


def greedy_steps(src: Sequence[Placement], dst: Sequence[Placement]) -> list[GreedyStep]:
    """The transitions of the greedy planner between two lists of placements.

    >>> S, R = Shard, Replicate()
    >>> [f"{s.collective} on axis {s.axis}" for s in greedy_steps((S(0), S(1)), (S(1), S(0)))]
    ['all_gather on axis 1', 'all_to_all on axis 0', 'slice on axis 1']
    """
    current, steps = list(src), []

    def go(axis: int, placement: Placement) -> None:
        if current[axis] != placement:
            name = _collective(current[axis], placement)
            current[axis] = placement
            steps.append(GreedyStep(axis, name, tuple(current)))

    split = any(isinstance(placement, Shard) for placement in src)
    for axis in reversed(range(len(current) if split else 0)):
        wanted = dst[axis]
        if isinstance(wanted, Shard):
            outer = [k for k in range(axis) if current[k] == wanted]
            if outer != [k for k in range(axis) if dst[k] == wanted]:
                wanted = Replicate()
        go(axis, wanted)
    for axis, placement in enumerate(dst):
        go(axis, placement)
    return steps


def _collective(before: Placement, after: Placement) -> str:
    if isinstance(after, Partial):
        raise PlanError(f"DTensor does not turn {before} into {after}")
    if isinstance(before, Replicate):
        return "slice"
    if isinstance(before, Partial):
        return "reduce_scatter" if isinstance(after, Shard) else "all_reduce"
    return "all_to_all" if isinstance(after, Shard) else "all_gather"


@dataclass(frozen=True)
class DTensorPlan:
    """The greedy plan; ``str(plan)`` sets it beside the plan of this package.

    Attributes:
        src: the layout before.
        dst: the layout after.
        shape: global shape.
        itemsize: bytes per element.
        ours: this package's plan for the same.
    """

    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    itemsize: int
    ours: Plan

    @property
    def planner(self) -> str:
        """``greedy``, or ``graph`` where axes split a dim in another than the mesh's order."""
        return "greedy" if in_mesh_order(self.src) and in_mesh_order(self.dst) else "graph"

    @property
    def steps(self) -> Sequence[GreedyStep | OrderedStep]:
        """Its transitions."""
        if self.planner == "graph":
            return ordered_steps(self.src, self.dst, math.prod(self.shape) * self.itemsize)
        return greedy_steps(self.src.placements, self.dst.placements)

    @property
    def trace(self) -> str:
        """The states in DTensor's short form, such as ``S(0)R->S(0)S(1)``."""
        states = [short(s.layout) if isinstance(s, OrderedStep) else _short(s.state) for s in self.steps]
        return "->".join([short(self.src), *states])

    @property
    def received(self) -> float:
        """Elements a rank receives, by the textbook's volumes for sizes that divide."""
        total, local = 0.0, math.prod(self.shape) / self.src.shard_count
        for step in self.steps:
            n = self.src.mesh.shape[step.axis]
            total += (
                local
                * {
                    "all_gather": n - 1,
                    "all_to_all": (n - 1) / n,
                    "reduce_scatter": (n - 1) / n,
                    "all_reduce": 2 * (n - 1) / n,
                    "slice": 0,
                }[step.collective]
            )
            local *= {"all_gather": n, "reduce_scatter": 1 / n, "slice": 1 / n}.get(step.collective, 1)
        return total

    @property
    def nbytes(self) -> float:
        """:attr:`received` in bytes."""
        return self.received * self.itemsize

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain types."""
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
        return "\n".join(
            [
                f"DTensor's {'default' if self.planner == 'greedy' else 'graph'} planner: {', '.join(names)}",
                f"  {self.trace}",
                f"  received {bytes_text(self.nbytes)}",
                f"this package receives {bytes_text(ours)}{much}:",
                str(self.ours),
            ]
        )


def _short(state: Placements) -> str:
    """The state as text; axes that split one dim together carry their place in it."""
    out = []
    for axis, placement in enumerate(state):
        place = f"[{state[:axis].count(placement)}]" if state.count(placement) > 1 else ""
        out.append(f"{placement}{place}" if isinstance(placement, Shard) else str(placement))
    return "".join(out)


def dtensor_plan(ours: Plan) -> DTensorPlan:
    """The plan of DTensor's planners for what a plan of this package does.

    Raises:
        PlanError: two meshes, or a target that is pending where the source is not.
    """
    if ours.src.mesh != ours.dst.mesh:
        raise PlanError(f"DTensor redistributes within one mesh only, not from {ours.src} to {ours.dst}")
    theirs = DTensorPlan(ours.src, ours.dst, ours.shape, ours.itemsize, ours)
    _ = theirs.steps
    return theirs
