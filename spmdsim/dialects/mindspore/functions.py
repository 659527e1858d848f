"""Functions of ``mindspore.ops`` and ``mint``: from the operator table, from rows over our functions, and a few written
out.

Rows take arrays and parameters as data parallel tensors, like any operator without a strategy. Results keep the
layout of our function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, creation, fft, linalg
from spmdsim.arrays import ops as core
from spmdsim.core import Layout
from spmdsim.dialects.functions import NETWORK, TORCH, as_number_tuple, dims_of, with_names
from spmdsim.dialects.mindspore import cells
from spmdsim.dialects.mindspore.operators import TABLE, written_functions
from spmdsim.dialects.mindspore.parameter import Parameter, finish_call, next_seed
from spmdsim.dialects.mindspore.primitive import function, place, primitive, shape_of, to_tensor
from spmdsim.dialects.mindspore.tensors import to_host_array
from spmdsim.dialects.mindspore.training import grad, value_and_grad
from spmdsim.dialects.table import Row, adapt_class, flat, map_nested, same_rows
from spmdsim.errors import InputError
from spmdsim.nn.gradients import squared_modulus
from spmdsim.wrong_calls import explained


def lift_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return ``function``, which takes spmdsim's tensors, as one that takes MindSpore's.

    The operands of a call are its MindSpore tensors, parameters and whole arrays, also in lists, tuples and dicts.
    They become spmdsim's tensors:

    * If one of them is a tensor, all others move to the mesh of the first tensor; see `_move_to_mesh`.
    * If none is a tensor, the arrays are split along dim 0 over all ranks.

    Other arguments are passed on unchanged.

    The result is MindSpore's tensor, or a tuple of tensors if ``function`` returns a list or tuple. A call raises
    InputError if the ranks have different arrays. Errors of ``function`` name the call ``name``.

    Args:
        function: the function of spmdsim's own tensors.
        name: its name in error messages.
    """

    @wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        values = [*operands, *options.values()]
        mesh = next((x.layout.mesh for x in flat(values) if isinstance(x, Tensor)), None)
        values = [map_nested(x, lambda item: _move_to_mesh(item, mesh)) for x in values]
        result = function(*values[: len(operands)], **dict(zip(options, values[len(operands) :])))
        return finish_call([], tuple(result) if isinstance(result, (list, tuple)) else result)

    call.__name__ = call.__qualname__ = name
    return explained(call, name)


def _move_to_mesh(x: Any, mesh: Any) -> Any:
    """Return a tensor, parameter or array as a tensor on a mesh; other values unchanged.

    A tensor on ``mesh`` keeps its layout, and so does a parameter that has values. Tensors of another mesh, arrays and
    parameters without values are replicated on ``mesh``.
    """
    if not isinstance(x, (Tensor, Parameter, np.ndarray)):
        return x
    if mesh is None:
        return to_tensor(x)
    replicated = Layout.replicated(mesh, x.ndim)
    if not isinstance(x, Tensor):
        return place(x, replicated)
    return x if x.layout.mesh == mesh else x.to(replicated)


# -- rows over ours ----------------------------------------------------------------------------------------------


def _extreme(name: str) -> Row:
    """Return the table row of ``max`` or ``min``.

    The row's function ``(input, axis=None, keepdims=False)`` returns, depending on ``axis``:

    * an int: the extremes along that dim, and their indices (int64);
    * None: the extreme of all elements and, as in MindSpore, the index 0 (int32), both without dims;
    * a tensor: the elementwise extreme of ``input`` and that tensor, without an index.

    ``keepdims`` counts only for an int ``axis``.

    Args:
        name: ``"max"`` or ``"min"``.
    """

    def call(input: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        extreme = TORCH[name].call(input, axis, keepdims)
        if axis is not None:
            return extreme
        return extreme, creation.zeros_like(extreme, dtype=np.int32)

    return Row(call)


def _svd(input: Any, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """Compute the SVD as ``(values, left, right)``; right vectors are columns, unlike numpy's.

    Without ``compute_uv``, return the values only.
    """
    if not compute_uv:
        return linalg.svdvals(input)
    left, values, right = linalg.svd(input, full_matrices)
    return values, left, linalg.matrix_transpose(right)


def _flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """Flatten dims by rows (``order="C"``), or by columns (``"F"``): with all dims in reverse.

    Args:
        input: the tensor.
        order: "C" or "F".
        start_dim: the first dim to flatten.
        end_dim: the last dim to flatten.

    Raises:
        InputError: If ``order`` is another text.
    """
    if order not in ("C", "F"):
        raise InputError(f"flatten: order must be 'C' (by rows) or 'F' (by columns), got {order!r}")
    return TORCH["flatten"].call(input if order == "C" else core.transpose(input), start_dim, end_dim)


def _cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """Compute the cross product along ``dim``; by default the first dim of size 3, else the last."""
    first = next((d for d, size in enumerate(input.shape) if size == 3), -1)
    return linalg.cross(input, other, axis=first if dim is None else dim)


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
        "normalize pad selu softplus softsign glu binary_cross_entropy",
        **_NAMES, logits="input", labels="target", label="target", inputs="input", padding="pad",
        input_x="input",
    ),
    **same_rows(linalg, "cholesky inverse=inv det matrix_power pinv qr slogdet trace"),
    "svd": Row(_svd),
    **same_rows(core, "einsum hypot"),
    **same_rows(core, "tile", "input dims"),
    **with_names(TORCH, "split stack", axis="dim"),
    "argmax": Row(lambda x, dim=None, keepdim=False: core.argmax(x, dim, keepdims=keepdim)),
    "binary_cross_entropy_with_logits": Row(lambda logits, label, weight=None, pos_weight=None, reduction="mean": (
        NETWORK["binary_cross_entropy_with_logits"].call(logits, label, weight, reduction, pos_weight))),
    "count_nonzero": Row(lambda x, axis=(), keep_dims=False, dtype=np.int32: (
        core.cast(core.count_nonzero(x, dims_of(axis), keep_dims), dtype))),
    "cross": Row(_cross),
    "flatten": Row(_flatten),
    "full_like": Row(lambda input, fill_value: creation.full_like(input, fill_value)),
    "leaky_relu": Row(lambda input, alpha=0.2: NETWORK["leaky_relu"].call(input, alpha)),
    "max": _extreme("max"),
    "median": Row(lambda input, axis=-1, keepdims=False: TORCH["median"].call(input, axis, keepdims)),
    "meshgrid": Row(lambda *inputs, indexing="xy": core.meshgrid(*inputs, indexing=indexing)),
    "min": _extreme("min"),
    "norm": Row(lambda A, ord=None, dim=None, keepdim=False: linalg.norm(A, ord, dim, keepdim)),
    "repeat_interleave": Row(lambda input, repeats, axis=None: core.repeat(input, repeats, axis)),
    "smooth_l1_loss": Row(lambda input, target, beta=1.0, reduction="none": NETWORK["smooth_l1_loss"].call(input, target, reduction, beta)),
    "std": Row(lambda input, axis=None, ddof=0, keepdims=False: core.std(input, axis, keepdims=keepdims, correction=int(ddof))),
    "unique": Row(lambda x: TORCH["unique"].call(x, return_inverse=True)),
    "var": Row(lambda input, axis=None, ddof=0, keepdims=False: core.var(input, axis, keepdims=keepdims, correction=int(ddof))),
    **same_rows(fft, "fft ifft rfft irfft hfft ihfft", "input n dim norm"),
}  # fmt: skip


# -- functions that are not one primitive, nor one of ours -----------------------------------------------------------


def _layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise over the last dims by mean and variance; apply ``weight`` and ``bias``.

    Args:
        x: tensor, parameter or array.
        normalized_shape: sizes of the last dims, which are normalised together.
        weight: factor of this shape; None is 1.
        bias: addend of this shape; None is 0.
        eps: number added to the variance.
    """
    sizes = tuple(normalized_shape)
    begin = len(shape_of(x)) - len(sizes)
    scale = np.ones(sizes, x.dtype) if weight is None else weight
    shift = np.zeros(sizes, x.dtype) if bias is None else bias
    return primitive("LayerNorm")(begin, begin, eps)(x, scale, shift)[0]


def _clip_by_global_norm(x: Sequence[Any], clip_norm: float = 1.0, use_norm: None = None) -> Any:
    """Scale gradients by one factor so that their global norm is at most ``clip_norm``.

    All ranks must call it. The global norm is the square root of the sum of the squares of all elements.

    Args:
        x: the gradients: tensors, parameters or arrays.
        clip_norm: the largest norm.
        use_norm: must be None.

    Returns:
        The tuple of scaled tensors; unscaled if their norm is small enough.

    Raises:
        InputError: If ``use_norm`` is not None; MindSpore refuses it too.
    """
    if use_norm is not None:
        raise InputError(f"clip_by_global_norm: use_norm must be None, as in MindSpore, got {use_norm!r}")
    tensors = [to_tensor(g) for g in x]
    norm = math.sqrt(sum(float(core.sum(squared_modulus(g)).item()) for g in tensors))
    return tuple(tensors) if norm <= clip_norm else tuple(core.multiply(g, clip_norm / norm) for g in tensors)


def _like_function(name: str) -> Callable[..., Any]:
    """Return a function such as ``ones_like``: primitive ``name``, then a cast unless ``dtype`` is None."""
    return lambda x, dtype=None: (
        primitive(name)()(x) if dtype is None else primitive("Cast")()(primitive(name)()(x), dtype)
    )


def _random() -> np.random.Generator:
    """Return a generator with the next seed, equal on every rank; ``set_seed`` sets the first."""
    return np.random.default_rng(next_seed())


OWN: dict[str, Callable[..., Any]] = {
    "arange": lambda start=0, end=None, step=1, dtype=None: to_host_array(
        np.arange(0, start, step) if end is None else np.arange(start, end, step), dtype),
    "clip_by_global_norm": _clip_by_global_norm,
    "cross_entropy": lambda input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0: (
        cells.CrossEntropyLoss(weight, ignore_index, reduction, label_smoothing)(input, target)),
    "dropout": lambda x, p=0.5, training=True: primitive("Dropout")(1 - p)(x)[0] if training and p else x,
    "eye": lambda n, m=None, dtype=np.float32: to_host_array(np.eye(n, m), dtype),
    "full": lambda size, fill_value, *, dtype=None: to_host_array(np.full(size, fill_value), dtype),
    "grad": grad,
    "layer_norm": _layer_norm,
    "linspace": lambda start, end, steps: to_host_array(np.linspace(start, end, steps), np.float32),
    "ones": lambda size, dtype=np.float32: to_host_array(np.ones(size, dtype)),
    "ones_like": _like_function("OnesLike"),
    "rand": lambda *size, dtype=np.float32: to_host_array(_random().random(as_number_tuple(size)), dtype),
    "randint": lambda low, high, size, *, dtype=np.int64: to_host_array(_random().integers(low, high, size), dtype),
    "randn": lambda *size, dtype=np.float32: to_host_array(_random().standard_normal(as_number_tuple(size)), dtype),
    "reshard": lambda tensor, layout: tensor.to(layout) if isinstance(tensor, Tensor) else place(tensor, layout),
    "shape": lambda input_x: shape_of(input_x),
    "to_tensor": to_tensor,
    "value_and_grad": value_and_grad,
    "zeros": lambda size, dtype=np.float32: to_host_array(np.zeros(size, dtype)),
    "zeros_like": _like_function("ZerosLike"),
}  # fmt: skip
for _name, _function in OWN.items():
    _function.__name__ = _function.__qualname__ = _name

#: Functions that are not made from the operator table.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: lift_function(row.call, name) for name, row in ROWS.items()},
    **OWN,
}


def functions() -> dict[str, Callable[[], Any]]:
    """Return a function per name of ``ops`` that creates the function."""
    from_table = {name: partial(function, *of) for name, of in written_functions().items()}
    return {**{name: partial(FUNCTIONS.get, name) for name in FUNCTIONS}, **from_table}


def primitives() -> dict[str, Callable[[], Any]]:
    """Return a function per name of ``ops`` that creates the primitive's class."""
    return {name: partial(primitive, name) for row in TABLE.values() for name in row.primitives}


# -- functions and cells with torch's arguments: ``mindspore.mint`` ----------------------------------------------------

#: Functions of ``ops``, and functions with other names or parameters: ``ours: theirs(parameters)``.
_MINT = (
    "abs add amax amin arange bmm broadcast_to ceil cos div divide equal exp expm1 floor greater greater_equal less "
    "less_equal log log1p logical_and logical_not logical_or matmul maximum minimum mul multiply neg negative not_equal ones "
    "ones_like pow reshape rsqrt sigmoid sin softmax sqrt square sub tanh tile where zeros zeros_like"
)
_MINT_WRITTEN = (
    "greater: gt", "greater_equal: ge", "less: lt", "less_equal: le",
    "equal: eq", "not_equal: ne", "sum: sum(input, dim=None, keepdim=False)",
    "mean: mean(input, dim=None, keepdim=False)", "cat: cat(tensors, dim=0)", "cat: concat(tensors, dim=0)",
    "expand_dims: unsqueeze(input, dim)", "squeeze: squeeze(input, dim=())", "transpose: permute(input, dims)",
)  # fmt: skip
_NETWORK = "cross_entropy dropout elu gelu layer_norm relu relu6 sigmoid silu tanh"
_NETWORK_WRITTEN = ("softmax: softmax(input, dim=-1)", "log_softmax: log_softmax(input, dim=-1)")


def _mint(rows: dict[str, Row], same: str, written: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """Return functions without arguments that create the functions of ``mint``, by name.

    If a name has several sources, the last one counts: ``rows``, then ``same``, then ``written``.

    Args:
        rows: rows with PyTorch's parameters, by name in ``mint``.
        same: names, separated by spaces, of functions that are equal in ``mint`` and ``ops``.
        written: functions of ``ops`` with another name or other parameters in ``mint``, as ``"name in ops: name"`` or
            ``"name in ops: name(parameters)"``, such as ``"softmax: softmax(input, dim=-1)"``.

    Raises:
        KeyError: If ``ops`` lacks a function of ``same`` or ``written``.
    """
    creators: dict[str, Callable[[], Any]] = {
        name: partial(lift_function, row.call, name) for name, row in rows.items()
    }
    of_ops = functions()
    creators.update({name: of_ops[name] for name in same.split()})
    for text in written:
        name_in_ops, declaration = text.split(": ")
        name = declaration.partition("(")[0]
        creators[name] = partial(function, written_functions()[name_in_ops][0], declaration)
    return creators


def mint_functions() -> dict[str, Callable[[], Any]]:
    """Return a function per name of ``mint`` that creates the function."""
    return _mint(TORCH, _MINT, _MINT_WRITTEN)


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Compute ``input @ weight.T + bias``."""
    product = primitive("MatMul")(transpose_b=True)(input, weight)
    return product if bias is None else primitive("Add")()(product, bias)


def mint_network_functions() -> dict[str, Callable[[], Any]]:
    """Return a function per name of ``mint.nn.functional`` that creates the function.

    OneHot is float32 here.
    """
    one_hot = partial(function, written_functions()["one_hot"][0], "one_hot(tensor, num_classes)")
    return {**_mint(NETWORK, _NETWORK, _NETWORK_WRITTEN), "linear": lambda: _linear, "one_hot": one_hot}


Linear = adapt_class("Linear", cells.Dense, lambda in_features, out_features, bias=True, weight_init=None, bias_init=None,
                 dtype="float32": dict(
    in_channels=in_features, out_channels=out_features, has_bias=bias, weight_init=weight_init, bias_init=bias_init,
    dtype=dtype))  # fmt: skip
Dropout = adapt_class("Dropout", cells.Dropout, lambda p=0.5: dict(p=p))
Embedding = adapt_class("Embedding", cells.Embedding, lambda num_embeddings, embedding_dim, dtype="float32": dict(
    vocab_size=num_embeddings, embedding_size=embedding_dim, dtype=dtype))  # fmt: skip
GELU = cells.cell_of(TABLE["GeluExt"], "GELU")
