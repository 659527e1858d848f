"""Megatron's mappings between tensor-parallel regions, each as a move of a global tensor from one layout to another.

Megatron-LM (``megatron/core/tensor_parallel/mappings.py``) writes a forward and a backward collective for each;
Paddle's ``c_identity``, ``c_split``, ``c_concat`` and ``mp_allreduce_sum`` are the same. Here a mapping says where the
tensor is before and after, and what its gradient looks like when it arrives. Both collectives follow: forward from
the first layout to the second, backward from the arriving one to the dual of the first.

>>> from spmdsim.core import Mesh
>>> mesh = Mesh((4,), ("tp",))
>>> f = MAPPINGS["copy_to_region"]
>>> f.collectives(mesh, "tp", (8, 16))
((), ('all_reduce',))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.redistribution import plan
from spmdsim.redistribution.planner import Plan

#: A layout of a tensor of so many dims, on a mesh, for one of its axes.
Where = Callable[[Mesh, str, int], Layout]


def _placed(place: str, mesh: Mesh, axis: str, ndim: int) -> Layout:
    """Every rank along the axis holds the tensor, a term of a sum, or a part of dim 0 or the last dim."""
    dims: list[str | None] = [None] * ndim
    if place in _CUT:
        dims[_CUT[place]] = axis
    return Layout(mesh, dims, {axis: "sum"} if place == "unreduced" else {})


#: The dim that the axis splits: the sequence or the hidden one.
_CUT = {"first": 0, "last": -1}
whole, unreduced, first, last = (partial(_placed, place) for place in ("whole", "unreduced", "first", "last"))


@dataclass(frozen=True)
class Mapping:
    """One mapping by Megatron's name: where the tensor is, where it goes, and how its gradient arrives from there."""

    name: str
    before: Where
    after: Where
    arriving: Where

    def forward(self, mesh: Mesh, axis: str, shape: Sequence[int], dtype: str = "float32") -> Plan:
        """The plan of the forward move."""
        source, target = (where(mesh, axis, len(shape)) for where in (self.before, self.after))
        return plan(source, target, tuple(shape), dtype)

    def backward(self, mesh: Mesh, axis: str, shape: Sequence[int], dtype: str = "float32") -> Plan:
        """The plan of the gradient's move: to the dual of where the tensor was."""
        source, target = (where(mesh, axis, len(shape)) for where in (self.arriving, self.before))
        return plan(source, target.dual(), tuple(shape), dtype)

    def collectives(
        self, mesh: Mesh, axis: str, shape: Sequence[int]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the collectives forward and backward; a local slice is called split."""
        plans = (self.forward(mesh, axis, shape), self.backward(mesh, axis, shape))
        named = (["split" if s.collective == "slice" else s.collective for s in p.steps] for p in plans)
        forward, backward = map(tuple, named)
        return forward, backward

    def __call__(self, x: Tensor, axis: str) -> Tensor:
        """Apply it to a tensor; its gradient takes the backward move by itself."""
        return x.to(self.after(x.layout.mesh, axis, x.ndim))


#: All of them by name. The last dim is the hidden one, dim 0 the sequence.
MAPPINGS: dict[str, Mapping] = {
    mapping.name: mapping
    for mapping in (
        Mapping("copy_to_region", whole, whole, unreduced),
        Mapping("reduce_from_region", unreduced, whole, whole),
        Mapping("scatter_to_region", whole, last, last),
        Mapping("gather_from_region", last, whole, whole),
        Mapping("scatter_to_sequence_region", whole, first, first),
        Mapping("gather_from_sequence_region", first, whole, unreduced),
        Mapping("gather_from_sequence_region_replicated_grad", first, whole, whole),
        Mapping("reduce_scatter_to_sequence_region", unreduced, first, first),
        Mapping("all_to_all_sequence_to_hidden", first, last, last),
        Mapping("all_to_all_hidden_to_sequence", last, first, first),
    )
}

#: Paddle's operators and autograd functions that are the same mappings.
PADDLE: dict[str, str] = {
    "c_identity": "copy_to_region",
    "mp_allreduce_sum": "reduce_from_region",
    "c_split": "scatter_to_region",
    "c_concat": "gather_from_region",
    "ScatterOp": "scatter_to_sequence_region",
    "GatherOp": "gather_from_sequence_region_replicated_grad",
    "AllGatherOp": "gather_from_sequence_region",
    "ReduceScatterOp": "reduce_scatter_to_sequence_region",
}
