"""What MindSpore would insert, beside what this package plans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from spmdsim.core import Layout
from spmdsim.errors import PlanError
from spmdsim.imitations.mindspore.map_layouts import MapLayout, unify
from spmdsim.imitations.mindspore.map_operators import (
    MapCost,
    MapOperator,
    is_expandable,
    list_cost,
    names,
    operators,
    received_elements,
)
from spmdsim.redistribution.plan_table import bytes_text
from spmdsim.redistribution.planner import Plan


@dataclass(frozen=True)
class MindSporePlan:
    """The operators of MindSpore's inference; ``str(plan)`` sets them beside the plan of this package."""

    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    to_shape: tuple[int, ...]
    itemsize: int
    ours: Plan
    all2all: bool = True

    @property
    def before(self) -> MapLayout:
        """The layout before, in numbers."""
        return MapLayout.of(self.src, self.shape)

    @property
    def after(self) -> MapLayout:
        """The layout after, in numbers."""
        return MapLayout.of(self.dst, self.to_shape)

    def operators(self, rank: int | None = None) -> list[MapOperator]:
        """The operators of one rank (the first one if left out), from the shard it has to the one it wants.

        Several axes on one dim are dims of their own in between; the shards are reshaped to them and back.
        """
        rank = self.src.mesh.rank_at(0) if rank is None else rank
        inserted = operators(self.before, self.after, rank, self.src.mesh.rank_list, self.all2all)
        local_shape, wanted = (
            list(a.local_shape(s, rank)) for a, s in ((self.src, self.shape), (self.dst, self.to_shape))
        )
        if list(self.before.slice_shape) != local_shape and not (inserted and inserted[0].name == "Reshape"):
            inserted.insert(0, MapOperator("Reshape", list(self.before.slice_shape)))
        if list(self.after.slice_shape) != wanted:
            if inserted and inserted[-1].name == "Reshape":
                inserted.pop()
            inserted.append(MapOperator("Reshape", wanted))
        return [op for k, op in enumerate(inserted) if k or op != MapOperator("Reshape", local_shape)]

    def operator_names(self, rank: int | None = None) -> list[str]:
        """The operators that run, an AllConcat beyond dim 0 as AllGather, Split and Concat."""
        return names(self.operators(rank))

    def nbytes(self, rank: int | None = None) -> int:
        """Bytes the rank receives."""
        return received_elements(self.operators(rank), self.before.slice_shape) * self.itemsize

    def cost(self, rank: int | None = None) -> MapCost:
        """MindSpore's own cost of it, in bytes."""
        return list_cost(self.operators(rank), self.before.slice_shape, self.itemsize)

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain types."""
        cost = self.cost()
        rank = self.src.mesh.rank_at(0)
        return {
            "style": "mindspore",
            "expandable": is_expandable(self.before, self.after),
            "operators": {str(r): [op.plain() for op in self.operators(r)] for r in self.src.mesh.rank_list},
            "operator_names": self.operator_names(rank),
            "nbytes": self.nbytes(rank),
            "cost": {**cost._asdict(), "communication": cost.communication},
            "ours": self.ours.to_dict(),
        }

    def __str__(self) -> str:
        rank = self.src.mesh.rank_at(0)
        lines = [f"MindSpore inserts, on rank {rank}:"]
        shape = self.before.slice_shape
        for op in self.operators(rank):
            lines.append(f"  {op.name} {op.args}")
        if len(lines) == 1:
            lines.append("  nothing")
        if is_expandable(self.before, self.after):
            one, other = unify(self.before, self.after)
            lines.append(
                f"  on the common device matrix {one.matrix}, shape {one.shape}: map {one.map} -> {other.map}"
            )
        else:
            lines.append("  because the layouts have no common form, everything is gathered")
        cost = self.cost(rank)
        lines.append(
            f"  received {bytes_text(self.nbytes(rank))}; its own model: communication "
            f"{bytes_text(cost.forward)} forward and {bytes_text(cost.backward)} backward, "
            f"from slices of {math.prod(shape)} elements"
        )
        ours = self.ours.max_nbytes
        much = f", {self.nbytes(rank) / ours:.3g} times less" if 0 < ours < self.nbytes(rank) else ""
        lines += [f"this package receives {bytes_text(ours)}{much}:", str(self.ours)]
        return "\n".join(lines)


def mindspore_plan(ours: Plan) -> MindSporePlan:
    """The plan of MindSpore's inference for what a plan of this package does."""
    if ours.src.mesh.rank_list != ours.dst.mesh.rank_list:
        raise PlanError(
            f"MindSpore redistributes within one rank list only, not from {ours.src} to {ours.dst}"
        )
    theirs = MindSporePlan(ours.src, ours.dst, ours.shape, ours.shape_after, ours.itemsize, ours)
    for layout in (theirs.before, theirs.after):
        _ = layout.slice_shape
    return theirs
