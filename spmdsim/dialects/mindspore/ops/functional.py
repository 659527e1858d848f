"""Functions of ``mindspore.ops``: each is a primitive without a strategy, hence data parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.host import host
from spmdsim.dialects.mindspore.gradient import grad, value_and_grad
from spmdsim.dialects.mindspore.ops import more, primitives
from spmdsim.dialects.mindspore.ops.primitives import PLAIN
from spmdsim.dialects.mindspore.primitive import shape_of
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor

#: Functions that are a primitive of another name, applied to their arguments.
_SAME = {
    "abs": "Abs", "add": "Add", "ceil": "Ceil", "cos": "Cos", "div": "Div", "elu": "Elu", "equal": "Equal",
    "exp": "Exp", "expm1": "Expm1", "floor": "Floor", "floor_div": "FloorDiv", "gelu": "GeLU", "greater": "Greater",
    "greater_equal": "GreaterEqual", "less": "Less", "less_equal": "LessEqual", "log": "Log", "log1p": "Log1p",
    "logical_and": "LogicalAnd", "logical_not": "LogicalNot", "logical_or": "LogicalOr", "maximum": "Maximum",
    "minimum": "Minimum", "mul": "Mul", "neg": "Neg", "not_equal": "NotEqual", "pow": "Pow", "relu": "ReLU",
    "relu6": "ReLU6", "rsqrt": "Rsqrt", "select": "Select", "sigmoid": "Sigmoid", "silu": "SiLU", "sin": "Sin",
    "sqrt": "Sqrt", "square": "Square", "stop_gradient": "StopGradient", "sub": "Sub", "subtract": "Sub",
    "multiply": "Mul", "divide": "Div", "negative": "Neg", "tanh": "Tanh", "tensor_add": "Add", "where": "Select",
}  # fmt: skip


def _same(name: str, primitive: str) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        return PLAIN[primitive]()(*operands)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{primitive}`` without a strategy."
    return call


globals().update({name: _same(name, primitive) for name, primitive in _SAME.items()})


def matmul(a: Any, b: Any) -> Any:
    """Matrix product over the last two dims."""
    return primitives.MatMul()(a, b)


def bmm(a: Any, b: Any) -> Any:
    """Matrix products over leading dims."""
    return primitives.BatchMatMul()(a, b)


def softmax(x: Any, axis: int = -1) -> Any:
    """Softmax along an axis."""
    return primitives.Softmax(axis)(x)


def log_softmax(logits: Any, axis: int = -1) -> Any:
    """Logarithm of the softmax along an axis."""
    return primitives.LogSoftmax(axis)(logits)


def reduce_sum(x: Any, axis: Any = (), keep_dims: bool = False) -> Any:
    """Sum over axes."""
    return primitives.ReduceSum(keep_dims)(x, () if axis is None else axis)


def sum(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Sum over dims."""
    return reduce_sum(input, dim, keepdim)


def mean(x: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """Mean over axes."""
    return primitives.ReduceMean(keep_dims)(x, () if axis is None else axis)


def amax(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Largest element over axes."""
    return primitives.ReduceMax(keepdims)(x, () if axis is None else axis)


def amin(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Smallest element over axes."""
    return primitives.ReduceMin(keepdims)(x, () if axis is None else axis)


def argmax(x: Any, dim: int | None = None) -> Any:
    """Where the largest element along a dim stands, or among all elements."""
    return more.Argmax(-1, np.int64)(reshape(x, (-1,))) if dim is None else more.Argmax(dim, np.int64)(x)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """Another shape."""
    return primitives.Reshape()(x, tuple(shape))


def flatten(x: Any, start_dim: int = 1) -> Any:
    """All dims from one on as one."""
    shape = shape_of(x)
    return reshape(x, (*shape[:start_dim], math.prod(shape[start_dim:])))


def transpose(x: Any, input_perm: Sequence[int]) -> Any:
    """Dims in another order."""
    return primitives.Transpose()(x, input_perm)


def expand_dims(x: Any, axis: int) -> Any:
    """A dim of size one at a place."""
    return more.ExpandDims()(x, axis)


def squeeze(x: Any, axis: Any = ()) -> Any:
    """Without dims of size one."""
    return more.Squeeze(() if axis is None else axis)(x)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """Repeated to a larger shape."""
    return more.BroadcastTo(shape)(x)


def concat(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after the other."""
    return more.Concat(axis)(tensors)


cat = concat


def stack(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after the other along a new axis."""
    return concat([expand_dims(x, axis) for x in tensors], axis)


def tile(input: Any, dims: Sequence[int]) -> Any:
    """The tensor repeated so many times along its dims (leading ones are added)."""
    found = input
    for _ in range(len(tuple(dims)) - len(shape_of(input))):
        found = expand_dims(found, 0)
    times = (1,) * (len(shape_of(found)) - len(tuple(dims))) + tuple(dims)
    for axis, count in enumerate(times):
        found = concat([found] * count, axis) if count > 1 else found
    return found


def shape(input_x: Any) -> tuple[int, ...]:
    """Global shape."""
    return shape_of(input_x)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """A host tensor of numbers at equal distances."""
    return host(np.arange(0, start, step) if end is None else np.arange(start, end, step), dtype)


def split(tensor: Any, split_size_or_sections: int, axis: int = 0) -> tuple[Any, ...]:
    """Pieces of one size along an axis."""
    size = shape_of(tensor)[axis]
    if not isinstance(split_size_or_sections, int) or size % split_size_or_sections:
        raise InputError(
            f"ops.split takes a size that divides axis {axis} of size {size}, not {split_size_or_sections}; "
            "nearest: ops.StridedSlice"
        )
    return more.Split(axis, size // split_size_or_sections)(tensor)


def cast(x: Any, dtype: Any) -> Any:
    """Another element type."""
    return primitives.Cast()(x, dtype)


def gather(params: Any, indices: Any, axis: int = 0) -> Any:
    """Entries of a table along an axis."""
    return primitives.Gather()(params, indices, axis)


def one_hot(indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Any:
    """One at the index, zero elsewhere."""
    return more.OneHot(axis)(indices, depth, on_value, off_value)


def layer_norm(x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """Normalised over the last dims, scaled and shifted."""
    begin = len(shape_of(x)) - len(tuple(normalized_shape))
    return more.LayerNorm(begin, begin, eps)(x, weight, bias)[0]


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """Drop a share of the elements, the same in every layout."""
    return more.Dropout(1 - p)(x)[0] if training and p else x


def cross_entropy(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """Cross entropy with class numbers."""
    from spmdsim.dialects.mindspore.nn import CrossEntropyLoss

    return CrossEntropyLoss(reduction=reduction)(logits, labels)


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Zeros in another tensor's shape."""
    found = more.ZerosLike()(x)
    return found if dtype is None else cast(found, dtype)


def ones_like(x: Any, dtype: Any = None) -> Any:
    """Ones in another tensor's shape."""
    found = more.OnesLike()(x)
    return found if dtype is None else cast(found, dtype)


def zeros(size: Any, dtype: Any = np.float32) -> Any:
    """A host tensor of zeros."""
    return host(np.zeros(size, dtype))


def ones(size: Any, dtype: Any = np.float32) -> Any:
    """A host tensor of ones."""
    return host(np.ones(size, dtype))


def clip_by_global_norm(x: Sequence[Tensor], clip_norm: float = 1.0) -> tuple[Tensor, ...]:
    """Gradients scaled down together so that their global norm is at most ``clip_norm``."""
    squares = [float(core.sum(core.multiply(g, g)).item()) for g in x]
    norm = float(np.sqrt(np.sum(squares)))
    return tuple(x) if norm <= clip_norm else tuple(core.multiply(g, clip_norm / norm) for g in x)


__all__ = [
    *_SAME, "amax", "amin", "arange", "argmax", "bmm", "broadcast_to", "cast", "cat", "clip_by_global_norm", "concat",
    "cross_entropy", "dropout", "expand_dims", "flatten", "gather", "grad", "layer_norm", "log_softmax", "matmul", "mean",
    "one_hot", "ones", "ones_like", "reduce_sum", "reshape", "shape", "softmax", "split", "squeeze", "stack", "sum",
    "tile", "transpose", "value_and_grad", "zeros", "zeros_like",
]  # fmt: skip
