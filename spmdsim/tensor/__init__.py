"""The global tensor: made from pieces, moved between layouts, computed with, differentiated, checked."""

from spmdsim.tensor.operator import Context, Op, ShardedOp
from spmdsim.tensor.tensor import Tensor

__all__ = ["Context", "Op", "ShardedOp", "Tensor"]
