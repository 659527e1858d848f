"""What a global tensor does beyond core: made from anything, checked, saved, filled with random numbers.

Here core learns what it asks for: operands that are no tensors, ``.shard`` cuts; element types come with the worlds.
"""

from spmdsim.layout.cuts import ShardedOp
from spmdsim.tensor import operator_calls as operator_calls
from spmdsim.tensor.program_operator import Context, Op
from spmdsim.tensor.program_tensor import Tensor

__all__ = ["Context", "Op", "ShardedOp", "Tensor"]
