"""``oneflow.nn``: modules whose parameters become global by ``to_global``."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.oneflow.nearest import NN
from spmdsim.dialects.oneflow.nn import functional
from spmdsim.dialects.oneflow.nn.layers import LAYERS, Dropout, Embedding, LayerNorm, Linear
from spmdsim.dialects.oneflow.nn.module import Module, ModuleList, Parameter, Sequential

globals().update(LAYERS)

__all__ = [
    "Dropout", "Embedding", "LayerNorm", "Linear", "Module", "ModuleList", "Parameter", "Sequential", "functional",
    *LAYERS,
]  # fmt: skip

NEAREST = NN
__getattr__ = refusal(__name__, __all__, NEAREST)
