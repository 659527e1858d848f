"""Functions of ``mindspore.ops`` that are several operators, or one without a strategy: one row each.

Arrays and parameters come in data parallel, as into any operator without a strategy; results lie where ours leave them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

import spmdsim.fft as fft
import spmdsim.linalg as linalg
import spmdsim.ops as core
from spmdsim.core import Layout
from spmdsim.dialects.functions import NETWORK, TORCH, with_names
from spmdsim.dialects.mindspore.gathering import finished
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.primitive import place, to_tensor
from spmdsim.dialects.missing import told
from spmdsim.dialects.table import Row, same
from spmdsim.tensor import Tensor


def lifted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Our function, of tensors, parameters and whole arrays, on the mesh of the first tensor that has one."""

    @wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        given = [*operands, *options.values()]
        flat = [x for y in given for x in (y if isinstance(y, (list, tuple)) else [y])]
        mesh = next((x.layout.mesh for x in flat if isinstance(x, Tensor)), None)
        values = [_each(x, mesh) for x in given]
        result = function(*values[: len(operands)], **dict(zip(options, values[len(operands) :])))
        return finished([], tuple(result) if isinstance(result, (list, tuple)) else result)

    call.__name__ = call.__qualname__ = name
    return told(call, name)


def _each(x: Any, mesh: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(_each(part, mesh) for part in x)
    if not isinstance(x, (Tensor, Parameter, np.ndarray)):
        return x
    if mesh is None:
        return to_tensor(x)
    there = Layout.replicated(mesh, x.ndim)
    if not isinstance(x, Tensor):
        return place(x, there)
    return x if x.layout.mesh == mesh else x.to(there)


def _spread(function: Callable[..., Any]) -> Row:
    def call(input: Any, axis: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        return function(input, axis, keepdims=keepdims, correction=int(ddof))

    return Row(call)


def _extreme(name: str) -> Row:
    """The element and its index along an axis; of all elements the index is 0, as MindSpore's is."""

    def call(input: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        extreme = TORCH[name].call(input, axis, keepdims)
        return (
            extreme
            if axis is not None
            else (extreme, core.cast(core.multiply(extreme.detach(), 0), np.int32))
        )

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

FUNCTIONS: dict[str, Callable[..., Any]] = {name: lifted(row.call, name) for name, row in ROWS.items()}
