"""``paddle.nn.initializer``."""

from spmdsim.dialects.paddle.attributes import Assign, Constant, Normal, Uniform, XavierUniform

__all__ = ["Assign", "Constant", "Normal", "Uniform", "XavierUniform"]
