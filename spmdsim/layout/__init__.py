"""Where tensors live (pure): meshes, layouts, and how one explains the other."""

from spmdsim.layout.blocks import split_block
from spmdsim.layout.layout import Bounds, Layout
from spmdsim.layout.mesh import Mesh
from spmdsim.layout.placements import REDUCE_OPS, Partial, Placement, Replicate, Shard

__all__ = [
    "REDUCE_OPS",
    "Bounds",
    "Layout",
    "Mesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "split_block",
]
