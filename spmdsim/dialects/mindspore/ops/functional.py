"""Functions of ``mindspore.ops`` that are not one primitive applied to its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.functions import numbers
from spmdsim.dialects.mindspore.gradient import grad, value_and_grad
from spmdsim.dialects.mindspore.parameter import next_seed
from spmdsim.dialects.mindspore.primitive import place, primitive, shape_of, to_tensor
from spmdsim.dialects.mindspore.words import host
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor


def reshard(tensor: Any, layout: Any) -> Tensor:
    """Redistribute a tensor inside a network."""
    return tensor.to(layout) if isinstance(tensor, Tensor) else place(tensor, layout)


def argmax(x: Any, dim: int | None = None) -> Any:
    """Where the largest element along a dim stands, or among all elements."""
    flat = primitive("Reshape")()(x, (-1,)) if dim is None else x
    return primitive("Argmax")(-1 if dim is None else dim, np.int64)(flat)


def flatten(x: Any, start_dim: int = 1) -> Any:
    """All dims from one on as one."""
    shape = shape_of(x)
    return primitive("Reshape")()(x, (*shape[:start_dim], math.prod(shape[start_dim:])))


def stack(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after the other along a new axis."""
    return primitive("Concat")(axis)([primitive("ExpandDims")()(x, axis) for x in tensors])


def tile(input: Any, dims: Sequence[int]) -> Any:
    """The tensor repeated so many times along its dims (leading ones are added)."""
    repeated, times = input, tuple(dims)
    for _ in range(len(times) - len(shape_of(input))):
        repeated = primitive("ExpandDims")()(repeated, 0)
    for axis, count in enumerate(times, len(shape_of(repeated)) - len(times)):
        repeated = primitive("Concat")(axis)([repeated] * count) if count > 1 else repeated
    return repeated


def split(tensor: Any, split_size_or_sections: int, axis: int = 0) -> tuple[Any, ...]:
    """Pieces of one size along an axis."""
    size, wanted = shape_of(tensor)[axis], split_size_or_sections
    if not isinstance(wanted, int) or size % wanted:
        raise InputError(
            f"ops.split takes a size that divides axis {axis} of size {size}, not {wanted}; "
            "nearest: ops.StridedSlice"
        )
    pieces: tuple[Any, ...] = primitive("Split")(axis, size // wanted)(tensor)
    return pieces


def shape(input_x: Any) -> tuple[int, ...]:
    """Global shape."""
    return shape_of(input_x)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """A host tensor of numbers at equal distances."""
    return host(np.arange(0, start, step) if end is None else np.arange(start, end, step), dtype)


def layer_norm(x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """Normalised over the last dims, scaled and shifted."""
    begin = len(shape_of(x)) - len(tuple(normalized_shape))
    return primitive("LayerNorm")(begin, begin, eps)(x, weight, bias)[0]


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """Drop a share of the elements, the same in every layout."""
    return primitive("Dropout")(1 - p)(x)[0] if training and p else x


def cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Cross entropy with class numbers, or with probabilities."""
    from spmdsim.dialects.mindspore.nn import CrossEntropyLoss

    return CrossEntropyLoss(weight, ignore_index, reduction, label_smoothing)(input, target)


def _like(name: str, x: Any, dtype: Any) -> Any:
    filled = primitive(name)()(x)
    return filled if dtype is None else primitive("Cast")()(filled, dtype)


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Zeros in another tensor's shape."""
    return _like("ZerosLike", x, dtype)


def ones_like(x: Any, dtype: Any = None) -> Any:
    """Ones in another tensor's shape."""
    return _like("OnesLike", x, dtype)


def zeros(size: Any, dtype: Any = np.float32) -> Any:
    """A host tensor of zeros."""
    return host(np.zeros(size, dtype))


def ones(size: Any, dtype: Any = np.float32) -> Any:
    """A host tensor of ones."""
    return host(np.ones(size, dtype))


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A host tensor of one value."""
    return host(np.full(size, fill_value), dtype)


def eye(n: int, m: int | None = None, dtype: Any = np.float32) -> Any:
    """A host tensor with ones on its diagonal."""
    return host(np.eye(n, m), dtype)


def linspace(start: float, end: float, steps: int) -> Any:
    """A host tensor of so many numbers at equal distances, both ends included."""
    return host(np.linspace(start, end, steps), np.float32)


def _random(*size: int, dtype: Any = np.float32, draw: str = "random") -> Any:
    """A host tensor of random numbers, the same on every rank: ``set_seed`` says where they begin."""
    return host(getattr(np.random.default_rng(next_seed()), draw)(numbers(size)), dtype)


rand, randn = _random, partial(_random, draw="standard_normal")


def randint(low: int, high: int, size: Any, *, dtype: Any = np.int64) -> Any:
    """A host tensor of random whole numbers from ``low`` to below ``high``, the same on every rank."""
    return host(np.random.default_rng(next_seed()).integers(low, high, size), dtype)


def clip_by_global_norm(
    x: Sequence[Any], clip_norm: float = 1.0, use_norm: None = None
) -> tuple[Tensor, ...]:
    """Gradients scaled down together so that their global norm is at most ``clip_norm``."""
    if use_norm is not None:
        raise InputError(f"use_norm is None, in MindSpore as here, not {use_norm!r}")
    tensors = [to_tensor(g) for g in x]
    squares = [float(core.sum(core.multiply(g, g)).item()) for g in tensors]
    norm = float(np.sqrt(np.sum(squares)))
    return tuple(tensors) if norm <= clip_norm else tuple(core.multiply(g, clip_norm / norm) for g in tensors)


__all__ = [
    "arange", "argmax", "clip_by_global_norm", "cross_entropy", "dropout", "eye", "flatten", "full", "grad", "layer_norm",
    "linspace", "ones", "ones_like", "rand", "randint", "randn", "reshard", "shape", "split", "stack", "tile", "to_tensor", "value_and_grad", "zeros", "zeros_like",
]  # fmt: skip
