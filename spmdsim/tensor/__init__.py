"""Names of :mod:`spmdsim.arrays` before 0.2; they go in 0.3."""

from spmdsim.arrays import Context, Op, ShardedOp, Tensor

__all__ = ["Context", "Op", "ShardedOp", "Tensor"]
