"""Functions of ``mindspore.ops``: those of the table of operators, rows over ours, and a few written out.

Arrays and parameters come into rows data parallel, as into any operator without a strategy; results lie where ours leave them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

import spmdsim.fft as fft
import spmdsim.linalg as linalg
import spmdsim.ops as core
from spmdsim.core import Layout
from spmdsim.dialects.functions import NETWORK, TORCH, numbers, with_names
from spmdsim.dialects.mindspore.gradient import grad, value_and_grad
from spmdsim.dialects.mindspore.losses import CrossEntropyLoss
from spmdsim.dialects.mindspore.operators import TABLE, written_functions
from spmdsim.dialects.mindspore.parameter import Parameter, finished, next_seed
from spmdsim.dialects.mindspore.primitive import function, place, primitive, shape_of, to_tensor
from spmdsim.dialects.mindspore.tensors import host
from spmdsim.dialects.missing import told
from spmdsim.dialects.table import Row, same
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor


def lifted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Our function, of tensors, parameters and whole arrays, on the mesh of the first tensor that has one."""

    @wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        given = [*operands, *options.values()]
        flat = [x for y in given for x in (y if isinstance(y, (list, tuple)) else [y])]
        mesh = next((x.layout.mesh for x in flat if isinstance(x, Tensor)), None)
        values = [_beside(x, mesh) for x in given]
        result = function(*values[: len(operands)], **dict(zip(options, values[len(operands) :])))
        return finished([], tuple(result) if isinstance(result, (list, tuple)) else result)

    return _called(call, name)


def _called(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return told(function, name)


def _beside(x: Any, mesh: Any) -> Any:
    """An operand on a mesh, where one has a mesh already."""
    if isinstance(x, (list, tuple)):
        return type(x)(_beside(part, mesh) for part in x)
    if not isinstance(x, (Tensor, Parameter, np.ndarray)):
        return x
    if mesh is None:
        return to_tensor(x)
    there = Layout.replicated(mesh, x.ndim)
    if not isinstance(x, Tensor):
        return place(x, there)
    return x if x.layout.mesh == mesh else x.to(there)


# -- rows over ours ----------------------------------------------------------------------------------------------


def _spread(function: Callable[..., Any]) -> Row:
    def call(input: Any, axis: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        return function(input, axis, keepdims=keepdims, correction=int(ddof))

    return Row(call)


def _extreme(name: str) -> Row:
    """The element and its index along an axis; of all elements the index is 0, as MindSpore's is."""

    def call(input: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        extreme = TORCH[name].call(input, axis, keepdims)
        if axis is not None:
            return extreme
        return extreme, core.cast(core.multiply(extreme.detach(), 0), np.int32)

    return Row(call)


def _fourier(name: str) -> Row:
    return Row(lambda input, n=None, dim=-1, norm=None: getattr(fft, name)(input, n, dim, norm))


_NAMES = {"axis": "dim", "x": "input", "keepdims": "keepdim", "keep_dims": "keepdim"}

#: By MindSpore's names.
ROWS: dict[str, Row] = {
    **with_names(
        TORCH,
        "acos acosh addcmul addmm all any argmin argsort argwhere asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or "
        "bitwise_xor chunk clamp clip clip_by_value=clamp cosh cumprod cumsum diag diagonal dot erfc expand flip floor_divide "
        "fmod gather_d=gather gather_elements=gather hsplit index_select inner=dot isfinite isinf isnan log10 log2 logical_xor "
        "logsumexp masked_fill masked_select mm movedim narrow nonzero outer permute remainder roll round searchsorted "
        "sign sinh sort swapaxes swapdims=swapaxes t tan tensor_dot=tensordot topk tril triu trunc unbind unstack=unbind "
        "unsqueeze vsplit",
        **_NAMES, axes="dims",
    ),
    **with_names(
        NETWORK,
        "celu cosine_similarity dense=linear hardsigmoid hardswish hardtanh logsigmoid mish mse_loss l1_loss nll_loss "
        "normalize pad selu softplus softsign glu binary_cross_entropy binary_cross_entropy_with_logits",
        **_NAMES, logits="input", labels="target", label="target", inputs="input", padding="pad",
        input_x="input",
    ),
    **same(linalg, "cholesky cross inverse=inv det matrix_power pinv qr slogdet trace"),
    "svd": Row(lambda input, full_matrices=False: linalg.svd(input, full_matrices)),
    **same(core, "count_nonzero einsum hypot"),
    "full_like": Row(lambda input, fill_value: core.add(core.multiply(input.detach(), 0), fill_value)),
    "leaky_relu": Row(lambda input, alpha=0.2: NETWORK["leaky_relu"].call(input, alpha)),
    "max": _extreme("max"),
    "median": Row(lambda input, axis=-1, keepdims=False: TORCH["median"].call(input, axis, keepdims)),
    "meshgrid": Row(lambda *inputs, indexing="xy": core.meshgrid(*inputs, indexing=indexing)),
    "min": _extreme("min"),
    "norm": Row(lambda A, ord=None, dim=None, keepdim=False: linalg.norm(A, ord, dim, keepdim)),
    "repeat_interleave": Row(lambda input, repeats, axis=None: core.repeat(input, repeats, axis)),
    "smooth_l1_loss": Row(lambda input, target, beta=1.0, reduction="none": NETWORK["smooth_l1_loss"].call(input, target, reduction, beta)),
    "std": _spread(core.std),
    "unique": Row(lambda x: TORCH["unique"].call(x, return_inverse=True)),
    "var": _spread(core.var),
    **{name: _fourier(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
}  # fmt: skip


# -- functions that are not one primitive, nor one of ours -----------------------------------------------------------


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
    return CrossEntropyLoss(weight, ignore_index, reduction, label_smoothing)(input, target)


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


def _like(name: str) -> Callable[..., Any]:
    """The primitive, and another element type if one is named."""
    return lambda x, dtype=None: (
        primitive(name)()(x) if dtype is None else primitive("Cast")()(primitive(name)()(x), dtype)
    )


def _random() -> np.random.Generator:
    """Random numbers, the same on every rank: ``set_seed`` says where they begin."""
    return np.random.default_rng(next_seed())


#: What gives whole arrays, and what is short.
_SHORT: dict[str, Callable[..., Any]] = {
    "arange": lambda start=0, end=None, step=1, dtype=None: host(np.arange(0, start, step) if end is None else np.arange(start, end, step), dtype),
    "eye": lambda n, m=None, dtype=np.float32: host(np.eye(n, m), dtype),
    "full": lambda size, fill_value, *, dtype=None: host(np.full(size, fill_value), dtype),
    "linspace": lambda start, end, steps: host(np.linspace(start, end, steps), np.float32),
    "ones": lambda size, dtype=np.float32: host(np.ones(size, dtype)),
    "ones_like": _like("OnesLike"),
    "rand": lambda *size, dtype=np.float32: host(_random().random(numbers(size)), dtype),
    "randint": lambda low, high, size, *, dtype=np.int64: host(_random().integers(low, high, size), dtype),
    "randn": lambda *size, dtype=np.float32: host(_random().standard_normal(numbers(size)), dtype),
    "shape": lambda input_x: shape_of(input_x),
    "zeros": lambda size, dtype=np.float32: host(np.zeros(size, dtype)),
    "zeros_like": _like("ZerosLike"),
}  # fmt: skip
_LONG = (
    argmax, clip_by_global_norm, cross_entropy, dropout, flatten, grad, layer_norm, reshard, split, stack, tile, to_tensor,
    value_and_grad,
)  # fmt: skip

#: Those that no row of the table of operators makes.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: lifted(row.call, name) for name, row in ROWS.items()},
    **{name: _called(short, name) for name, short in _SHORT.items()},
    **{one.__name__: one for one in _LONG},
}


def functions() -> dict[str, Callable[[], Any]]:
    """What makes each function of ``ops``."""
    from_table = {name: partial(function, *of) for name, of in written_functions().items()}
    return {**{name: partial(FUNCTIONS.get, name) for name in FUNCTIONS}, **from_table}


def primitives() -> dict[str, Callable[[], Any]]:
    """What makes each primitive of ``ops``."""
    return {name: partial(primitive, name) for row in TABLE.values() for name in row.primitives}


def everything() -> dict[str, Callable[[], Any]]:
    """Both."""
    return {**functions(), **primitives()}
