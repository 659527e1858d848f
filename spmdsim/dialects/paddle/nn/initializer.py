"""``paddle.nn.initializer``."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.attributes import Assign, Constant, Normal, Uniform, XavierNormal, XavierUniform

__all__ = ["Assign", "Constant", "Normal", "Uniform", "XavierNormal", "XavierUniform"]
__getattr__ = refusal(
    __name__, __all__, {"TruncatedNormal": "Normal", "KaimingNormal": "Normal", "Orthogonal": "Assign"}
)
