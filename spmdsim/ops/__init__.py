"""The operators, each declared once by a rule and a local function.

Element types are numpy's. Functions that make fractions of whole numbers (``sigmoid``, ``gelu``, ``softmax``, ``reciprocal``,
...) give what ``numpy.exp`` gives: float16, float32 or float64 by the integer's width. bfloat16 takes in integers of any
width and meets float16 in float32, as in torch and JAX. What needs an order, or is not defined for a type, is refused.
"""

from spmdsim.ops.contract import einsum, matmul
from spmdsim.ops.declare import cast
from spmdsim.ops.dropout import dropout
from spmdsim.ops.elementwise import (
    absolute,
    add,
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
from spmdsim.ops.functions import (
    add_n,
    arctan2,
    bias_add,
    ceil,
    cos,
    elu,
    expm1,
    floor,
    floor_divide,
    greater_equal,
    identity,
    less_equal,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    prelu,
    reciprocal,
    relu6,
    remainder,
    rint,
    rsqrt,
    sign,
    silu,
    sin,
    softplus,
    square,
    squared_difference,
)
from spmdsim.ops.index import embedding, one_hot, padded_embedding, pick
from spmdsim.ops.keywords import with_other_names
from spmdsim.ops.linear import linear
from spmdsim.ops.lookup import gather
from spmdsim.ops.losses import softmax_cross_entropy, sparse_softmax_cross_entropy
from spmdsim.ops.methods import install
from spmdsim.ops.normalise import cross_entropy, layer_norm, log_softmax, softmax
from spmdsim.ops.norms import l2_normalize, rms_norm
from spmdsim.ops.order import argmax, argmin
from spmdsim.ops.reduce import all, any, max, mean, min, prod, sum
from spmdsim.ops.shape import broadcast_to, flatten, flip, reshape, transpose
from spmdsim.ops.slicing import concat, pad, slice_, split
from spmdsim.ops.spread import std, var
from spmdsim.ops.windows import slice_update, window

install()

__all__ = [
    "absolute",
    "add",
    "add_n",
    "all",
    "any",
    "arctan2",
    "argmax",
    "argmin",
    "bias_add",
    "broadcast_to",
    "cast",
    "ceil",
    "concat",
    "cos",
    "cross_entropy",
    "divide",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "equal",
    "exp",
    "expm1",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "gather",
    "gelu",
    "greater",
    "greater_equal",
    "identity",
    "l2_normalize",
    "layer_norm",
    "less",
    "less_equal",
    "linear",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "one_hot",
    "pad",
    "padded_embedding",
    "pick",
    "power",
    "prelu",
    "prod",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "reshape",
    "rint",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "slice_",
    "slice_update",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "sparse_softmax_cross_entropy",
    "split",
    "sqrt",
    "square",
    "squared_difference",
    "std",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "var",
    "where",
    "window",
]

globals().update({name: with_other_names(globals()[name]) for name in __all__})
