"""The operators, each declared once by a rule and a local function."""

from spmdsim.ops.contract import einsum, matmul
from spmdsim.ops.elementwise import (
    absolute,
    add,
    cast,
    divide,
    equal,
    exp,
    gelu,
    greater,
    less,
    log,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    relu,
    sigmoid,
    sqrt,
    subtract,
    tanh,
    where,
)
from spmdsim.ops.index import embedding, one_hot, padded_embedding, pick
from spmdsim.ops.linear import linear
from spmdsim.ops.methods import install
from spmdsim.ops.normalise import cross_entropy, layer_norm, log_softmax, softmax
from spmdsim.ops.reduce import all, any, max, mean, min, prod, sum
from spmdsim.ops.shape import broadcast_to, concat, flatten, pad, reshape, slice_, split, transpose

install()

__all__ = [
    "absolute",
    "add",
    "all",
    "any",
    "broadcast_to",
    "cast",
    "concat",
    "cross_entropy",
    "divide",
    "einsum",
    "embedding",
    "equal",
    "exp",
    "flatten",
    "gelu",
    "greater",
    "layer_norm",
    "less",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "one_hot",
    "pad",
    "padded_embedding",
    "pick",
    "power",
    "prod",
    "relu",
    "reshape",
    "sigmoid",
    "slice_",
    "softmax",
    "split",
    "sqrt",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "where",
]
