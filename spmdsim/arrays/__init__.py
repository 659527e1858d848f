"""Create, check, save, index and compute global tensors.

Its operators accept operands that are no tensors, and strategies as users write them.
"""

from spmdsim.arrays.program_tensor import Tensor
from spmdsim.core.cuts import ShardedOp
from spmdsim.core.operator import Op
from spmdsim.core.operator_context import Context

__all__ = ["Context", "Op", "ShardedOp", "Tensor"]
