"""``oneflow.nn``: modules whose parameters become global by ``to_global``."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.oneflow.nn import functional
from spmdsim.dialects.oneflow.nn.layers import LAYERS, Dropout, Embedding, LayerNorm, Linear
from spmdsim.dialects.oneflow.nn.module import Module, ModuleList, Parameter, Sequential

globals().update(LAYERS)

__all__ = [
    "Dropout", "Embedding", "LayerNorm", "Linear", "Module", "ModuleList", "Parameter", "Sequential", "functional",
    *LAYERS,
]  # fmt: skip

#: What to use instead of a name that resembles none here.
NEAREST = {
    "Graph": "calling the module: programs run eagerly",
    "parallel": "sbp.split(0) of the input, sbp.broadcast of the parameters",
    **dict.fromkeys(("Conv2d", "MaxPool2d", "BatchNorm2d"), "Linear over reshaped patches"),
    "MultiheadAttention": "spmdsim.nn.Attention",
    "init": "Parameter(global_tensor)",
}
__getattr__ = refusal(__name__, __all__, NEAREST)
