"""Paddle's operators, one row each, for functions, methods and layers. Arrays are whole on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays import creation, linalg
from spmdsim.arrays import fft as fourier
from spmdsim.arrays import ops as core
from spmdsim.arrays.ops.declare import declare_binary
from spmdsim.arrays.ops.dim_reductions import normalise_dims
from spmdsim.dialects.functions import (
    NETWORK,
    TORCH,
    as_number_tuple,
    dims_of,
    open_clip,
    with_mask_gradient,
    with_names,
)
from spmdsim.dialects.host import in_default_type, to_numpy_dtype
from spmdsim.dialects.layouts import plus_bias
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.paddle.static import Variable, call_recorded, seeds
from spmdsim.dialects.paddle.tensors import Tensor, as_replicated, to_one_mesh
from spmdsim.dialects.table import (
    ARITHMETIC,
    Row,
    find_instances,
    map_nested,
    network_functions,
    rows,
    same_rows,
    with_parameters,
)
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.nn.losses import (
    check_weight,
    classes_last,
    reduce_losses,
    reduce_weighted_losses,
    times_counts,
    weigh_labels,
)
from spmdsim.wrong_calls import explained


def lift_function(function: Callable[..., Any], called: str = "") -> Callable[..., Any]:
    """Return ``function``, which takes spmdsim's tensors, as one that takes Paddle's.

    A call takes tensors, parameters and whole arrays, also in lists, tuples and dicts:

    * Arrays and replicated operands move to the mesh of the split ones.
    * If no operand is a tensor, the first one becomes a tensor, unless it is a list or a text.
    * A result of float64 becomes float32 as in `in_default_type`.
    * While a static program is built, the call is recorded in the program.
    * The argument ``name`` is ignored.

    Args:
        function: the function of spmdsim's own tensors.
        called: its name in error messages; empty for the function's own.
    """

    @wraps(function)
    def run(*operands: Any, **options: Any) -> Any:
        """Run the function on the operands' values, on one mesh where possible."""
        values = map_nested([*operands, *options.values()], _unwrap)
        if values and not find_instances(values, CoreTensor) and not isinstance(values[0], (list, str)):
            values[0] = as_replicated(values[0])
        flat = find_instances(values, object)
        # Replace the flat operands by the moved ones, in the same order, inside of lists, tuples and dicts.
        moved = iter(to_one_mesh(flat))
        values = map_nested(values, lambda _: next(moved))
        result = function(*values[: len(operands)], **dict(zip(options, values[len(operands) :])))
        return result if isinstance(result, (list, tuple)) else in_default_type(result, flat)

    run.__name__ = called or function.__name__

    @wraps(function)
    def call(*operands: Any, name: str | None = None, **options: Any) -> Any:
        return call_recorded(run, *operands, **options)

    return explained(call, run.__name__)


def _unwrap(x: Any) -> Any:
    """Return the value of a parameter, a Python number for numpy's, else ``x``."""
    return x.value if hasattr(x, "as_operand") else x.item() if isinstance(x, np.number) else x


def _split(x: Any, num_or_sections: Any, axis: int = 0) -> Any:
    """Split an axis into equal blocks, or into blocks of the given sizes; return them as a list.

    Args:
        x: the tensor.
        num_or_sections: number of blocks, or the list of their sizes, one of which may be -1 (the remaining size).
        axis: the axis; negative numbers count from the end.

    Raises:
        InputError: If the number of blocks is not positive or does not divide the size, or the sizes do not add up to
            it.
    """
    size, cut = x.shape[axis], num_or_sections
    if isinstance(cut, int):
        fits = cut > 0 and not size % cut
        refuse({f"split: num_or_sections must divide {size}, the size of dim {axis}, got {cut}": not fits})
        return TORCH["split"].call(x, size // cut, axis)
    remaining_size = size - sum(n for n in cut if n != -1)
    return TORCH["split"].call(x, [remaining_size if n == -1 else n for n in cut], axis)


def _dropout(
    x: Any, p: float = 0.5, axis: Any = None, training: bool = True, mode: str = "upscale_in_train"
) -> Any:
    """Zero a random share ``p`` of the elements in training; every call draws other elements.

    * ``"upscale_in_train"``: in training, the other elements are divided by 1 - p; in inference, ``x`` is returned.
    * ``"downscale_in_infer"``: in training, the other elements stay; in inference, ``x`` is multiplied by 1 - p.

    For example, with p = 0.5 the elements [2, 4] may become [4, 0] in training, and stay [2, 4] in inference. In the
    other mode they may become [2, 0] in training, and become [1, 2] in inference. If p is 1, all elements are zero in
    training.

    Args:
        x: the tensor.
        p: the share, in [0, 1].
        axis: must be None.
        training: False for inference.
        mode: one of the two modes.

    Raises:
        InputError: If ``p`` is not in [0, 1], ``mode`` is unknown, or ``axis`` is not None.
    """
    refuse({
        f"p argument should between 0 and 1, not {p!r}": isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1,
        f"mode argument should be 'downscale_in_infer' or 'upscale_in_train', not {mode!r}": mode not in ("upscale_in_train", "downscale_in_infer"),
        f"dropout drops elements, not whole parts along axis {axis!r}; nearest: axis=None": axis is not None,
    })  # fmt: skip
    scales_in_inference = mode == "downscale_in_infer"
    if not training:
        return core.multiply(x, 1 - p) if scales_in_inference else x
    if p == 1:
        return core.multiply(x, 1 - p)
    upscaled = core.dropout(x, p, seeds.next())
    return core.multiply(upscaled, 1 - p) if scales_in_inference else upscaled


def _extreme_row(find: Callable[..., Any]) -> Row:
    """Return the table row of ``max`` or ``min``: a function ``(x, axis=None, keepdim=False)``.

    Each element equal to the extreme gets the whole gradient; the rows of ``amax`` and ``amin`` divide it among these
    elements. ``axis`` None or an empty list reduces over all dims.

    Args:
        find: `ops.max` or `ops.min`.
    """

    def call(x: Any, axis: Any = None, keepdim: bool = False) -> Any:
        axis = dims_of(axis)
        if not x.requires_grad:
            return find(x, axis, keepdims=keepdim)
        extreme = find(x.detach(), axis, keepdims=True)
        result = extreme if keepdim else core.squeeze(extreme, normalise_dims(axis, x.ndim))
        return with_mask_gradient(result, x, core.equal(x.detach(), extreme), axis, keepdim)

    return Row(call)


def _second_gets_gradient(name: str, pick: Callable[..., Any]) -> Callable[..., Any]:
    """Return the elementwise function ``maximum`` or ``minimum`` of two operands.

    Where both are equal, the second operand gets the whole gradient.

    Args:
        name: ``"maximum"`` or ``"minimum"``.
        pick: function of both arrays that returns a bool array: True where the first operand is the result and the two
            differ (`np.greater` or `np.less`).
    """

    def vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of both operands: ``dy`` goes to the operand that wins."""
        first_wins = pick(*operands)
        return dy * first_wins, dy * ~first_wins

    return declare_binary(name, getattr(np, name), vjp)


def _unique(
    x: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """Return the sorted distinct elements, or a tuple of them and of the results that are asked for.

    Args:
        x: the tensor, which is flattened.
        return_index: append the index of the first occurrence of each element.
        return_inverse: append the index of each element of ``x`` among the distinct ones, as a vector.
        return_counts: append the number of times that each element occurs.
    """
    wanted = (True, return_index, return_inverse, return_counts)
    if not any(wanted[1:]):
        return core.unique_values(x)
    results = core.unique_all(core.reshape(x, -1))
    return tuple(result for result, is_wanted in zip(results, wanted) if is_wanted)


def _embedding(x: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False) -> Any:
    """Return rows of a table, with all sums complete.

    Args:
        x: the numbers of the rows.
        weight: the table.
        padding_idx: number of a row that gives zeros and gets no gradient; None for none. It may count from the end.
        sparse: ignored.
    """
    y = NETWORK["embedding"].call(x, weight, padding_idx)
    return y.to(y.layout.reduced)


def _gelu(x: Any, approximate: bool = False) -> Any:
    """Compute gelu, by tanh or exact. Raises UsageTypeError if ``approximate`` is no bool."""
    text = f"approximate is True (by tanh) or False (exact), not {approximate!r}"
    refuse({text: not isinstance(approximate, bool)}, UsageTypeError)
    return core.gelu(x, approximate)


def _cross_entropy(
    input: Any, label: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", soft_label: bool = False,
    axis: int = -1, use_softmax: bool = True, label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Return minus the log-probability of each label, reduced by ``reduction``.

    * ``"mean"`` divides by the sum of the weights of the rows that count, or by 1 if that sum is 0. Without ``weight``,
      a row has weight 1. So the mean of three rows, of which one has the label ``ignore_index``, divides by 2.
    * ``"none"`` returns the shape of the labels; with ``soft_label``, the dim of the classes then has size 1.

    Args:
        input: logits, or with ``use_softmax=False`` probabilities.
        label: class numbers, perhaps with a dim of size 1 at ``axis``; or probabilities with ``soft_label``.
        weight: weight per class, or None.
        ignore_index: class number of rows that do not count; not used with ``soft_label``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        soft_label: True if labels are probabilities.
        axis: dim of the classes.
        use_softmax: True to apply softmax first.
        label_smoothing: share of every label that is spread evenly over all classes.

    Raises:
        InputError: If the dims of input and label do not fit, or there is not one weight per class.
    """
    if label.ndim not in (input.ndim, input.ndim - 1) or (soft_label and label.ndim != input.ndim):
        raise InputError(
            f"Expected input_dims - 1 = label_dims or input_dims == label_dims (got input_dims {input.ndim}, label_dims "
            f"{label.ndim}, soft_label={soft_label})"
        )
    x, has_class_dim = classes_last(input, axis), label.ndim == input.ndim
    check_weight(weight, x.shape[-1])
    if soft_label:
        losses, counts = _soft_losses(x, classes_last(label, axis), weight, label_smoothing, use_softmax)
        losses = _multiply_factors(losses, counts)
    else:
        classes = core.squeeze(label, axis) if has_class_dim else label
        classes, counts = weigh_labels(classes, ignore_index, None if label_smoothing else weight, x)
        if label_smoothing:
            target = core.one_hot(classes, x.shape[-1], input.dtype)
            losses, weights = _soft_losses(x, target, weight, label_smoothing, use_softmax)
            counts = _multiply_factors(counts, weights)
        elif use_softmax:
            losses = core.cross_entropy(x, classes, "none")
        else:
            losses = core.negative(core.log(core.pick(x, classes)))
        losses = times_counts(losses, counts)
    if counts is not None and reduction == "mean":
        return reduce_weighted_losses(losses, counts, reduction, least=1)
    if has_class_dim and reduction == "none":
        return core.expand_dims(losses, axis)
    return reduce_losses(losses, reduction)


def _soft_losses(x: Any, target: Any, weight: Any, smoothing: float, use_softmax: bool) -> tuple[Any, Any]:
    """Return the unweighted cross entropy of each row with soft labels, and the weights of the rows.

    Soft labels are probabilities of the classes.

    Args:
        x: logits, or probabilities without ``use_softmax``; the classes are the last dim.
        target: probabilities, in the shape of ``x``.
        weight: weight per class, or None.
        smoothing: share of each label that is spread evenly over all classes.
        use_softmax: True to apply softmax to ``x`` first.

    Returns:
        The losses; the weight of each row (the sum of label times weight over the classes), or None without ``weight``.
    """
    logs = core.log_softmax(x) if use_softmax else core.log(x)
    if smoothing:
        target = core.add(core.multiply(target, 1 - smoothing), smoothing / x.shape[-1])
    losses = core.negative(core.sum(core.multiply(target, logs), -1))
    return losses, None if weight is None else core.sum(core.multiply(target, weight), -1)


def _multiply_factors(a: Any, b: Any) -> Any:
    """Return the product of two factors; None counts as 1, and the product of two None is None."""
    if a is None or b is None:
        return b if a is None else a
    return core.multiply(a, b)


_NAMES = {"x": "input", "axis": "dim"}
_LABELS = {**_NAMES, "label": "target", "logit": "input", "epsilon": "eps"}

#: Rows by Paddle's names.
TABLE: dict[str, Row] = {
    **same_rows(
        core,
        "abs=absolute add bmm=matmul ceil cos divide equal erf exp expm1 floor greater_equal greater_than=greater "
        "isfinite isinf isnan less_equal less_than=less log log10 log1p log2 logical_and logical_not logical_or "
        "multiply neg=negative not_equal pow=power reciprocal relu:ReLU rsqrt sigmoid:Sigmoid "
        "sign silu:Silu sin sqrt square subtract tan tanh:Tanh trunc",
        "x y",
    ),
    **same_rows(core, "mm=matmul", "input mat2"),
    **same_rows(core, "clone=identity repeat_interleave=repeat", "x"),
    **same_rows(core, "median", "x axis keepdim"),
    **same_rows(core, "sort", "x axis"),
    **same_rows(core, "matmul", "x y transpose_x transpose_y"),
    **{name: _extreme_row(getattr(core, name)) for name in ("max", "min")},
    **dict.fromkeys(("gather", "index_select"), Row(lambda x, index, axis=0: core.take(x, index, axis))),
    **same_rows(core, "where", "condition x y"),
    "maximum": Row(with_parameters(_second_gets_gradient("maximum", np.greater), {"x": "a", "y": "b"})),
    "minimum": Row(with_parameters(_second_gets_gradient("minimum", np.less), {"x": "a", "y": "b"})),
    **with_names(
        TORCH,
        "acos acosh all amax amin any argmax argmin argsort asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or "
        "bitwise_xor broadcast_to chunk concat cosh cumprod diag dot einsum expand floor_divide floor_mod=remainder "
        "log_softmax logical_xor logsumexp masked_fill masked_select mean mod=remainder moveaxis=movedim nonzero norm "
        "outer prod remainder round sinh softmax squeeze stack std t tile tril triu unbind unstack=unbind unsqueeze var",
        **_NAMES, offset="diagonal", y="other",
    ),
    **with_names(TORCH, "flip roll tensordot", x="input", axis="dims", axes="dims", y="b"),
    **with_names(TORCH, "diagonal", x="input", axis1="dim1", axis2="dim2"),
    **with_names(TORCH, "flatten", x="input", start_axis="start_dim", stop_axis="end_dim"),
    **with_names(TORCH, "addmm", x="mat1", y="mat2"),
    "add_n": Row(lambda inputs: reduce(core.add, inputs) if isinstance(inputs, (list, tuple)) else inputs),
    "allclose": Row(lambda x, y, rtol=1e-5, atol=1e-8: core.all(
        core.less_equal(core.absolute(core.subtract(x, y)), core.add(core.multiply(core.absolute(y), rtol), atol)))),
    "equal_all": Row(lambda x, y: core.all(core.equal(x, y)) if x.shape == y.shape else as_replicated(np.asarray(False))),
    "assign": Row(lambda x: x),
    "cast": Row(lambda x, dtype: core.cast(x, to_numpy_dtype(dtype))),
    "clip": Row(lambda x, min=None, max=None: open_clip(x, min, max)),
    "count_nonzero": Row(lambda x, axis=None, keepdim=False: core.count_nonzero(x, dims_of(axis), keepdim)),
    "cumsum": Row(lambda x, axis=None: core.cumulative_sum(core.flatten(x, 0) if axis is None else x, axis or 0)),
    "diff": Row(lambda x, n=1, axis=-1: core.diff(x, axis, n)),
    "full_like": Row(lambda x, fill_value: creation.full_like(x, fill_value)),
    "gelu": Row(_gelu, "GELU"),
    "meshgrid": Row(lambda *args: core.meshgrid(*as_number_tuple(args), indexing="ij")),
    "numel": Row(lambda x: as_replicated(np.asarray(x.size))),
    "ones_like": Row(lambda x: creation.ones_like(x)),
    "reshape": Row(lambda x, shape: core.reshape(x, shape)),
    "scale": Row(lambda x, scale=1.0, bias=0.0, bias_after_scale=True: core.add(core.multiply(x, scale), bias)
        if bias_after_scale else core.multiply(core.add(x, bias), scale)),
    "searchsorted": Row(lambda sorted_sequence, values, out_int32=False, right=False: core.searchsorted(
        sorted_sequence, values, "right" if right else "left")),
    "sum": Row(lambda x, axis=None, dtype=None, keepdim=False: core.sum(x, dims_of(axis), keepdims=keepdim, dtype=dtype)),
    "take_along_axis": Row(lambda arr, indices, axis: core.take_along_axis(arr, indices, axis)),
    "topk": Row(lambda x, k, axis=None, largest=True, sorted=True: core.topk(x, int(k), -1 if axis is None else axis, largest)),
    "trace": Row(lambda x, offset=0: linalg.trace(x, offset=offset)),
    "transpose": Row(lambda x, perm: core.transpose(x, perm)),
    **rows(_split, _unique),
    "zeros_like": Row(lambda x: creation.zeros_like(x)),
}  # fmt: skip
#: Rows of functions for networks only.
NETWORK_TABLE = {
    **with_names(
        NETWORK,
        "binary_cross_entropy binary_cross_entropy_with_logits celu cosine_similarity elu glu hardswish l1_loss layer_norm "
        "leaky_relu log_sigmoid=logsigmoid mish mse_loss nll_loss normalize selu softplus softsign",
        **_LABELS,
    ),
    "cross_entropy": Row(_cross_entropy, "CrossEntropyLoss"),
    **rows(_dropout, _embedding),
    "hardtanh": Row(lambda x, min=-1.0, max=1.0: open_clip(x, min, max), "Hardtanh"),
    "linear": Row(lambda x, weight, bias=None: plus_bias(core.matmul(x, weight), bias)),
    "one_hot": Row(lambda x, num_classes: core.one_hot(x, num_classes)),
    **same_rows(core, "relu6:ReLU6 swish=silu:Swish", "x"),
}


def _lift_all(functions: dict[str, Any], words: str) -> dict[str, Callable[..., Any]]:
    """Return lifted functions by name."""
    return {word: lift_function(functions[word], word) for word in words.split()}


#: Functions by Paddle's names, and those of ``nn.functional``, ``fft`` and ``linalg``.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: lift_function(row.call, name) for name, row in TABLE.items()
}
NETWORK_FUNCTIONS = network_functions(TABLE, NETWORK_TABLE, lift_function)
_FOURIER = "fft fft2 fftn rfft rfft2 rfftn ifft ifft2 ifftn irfft irfft2 irfftn hfft ihfft fftshift ifftshift"
FOURIER = _lift_all(vars(fourier), _FOURIER)
LINALG = {
    **_lift_all(vars(linalg), "cholesky cond cross det eigh eigvalsh inv matrix_power matrix_rank pinv qr slogdet solve"),
    **{name: FUNCTIONS[name] for name in ("matmul", "norm")},
    "svd": lift_function(lambda x, full_matrices=False: linalg.svd(x, full_matrices), "svd"),
}  # fmt: skip

#: Operators of tensors and of a program's variables.
SYMBOLS = f"{ARITHMETIC} eq ne"
_NO_METHODS = ("where", "concat", "stack", "einsum", "meshgrid")
_METHODS = {
    **{f"__{name}__": lift_function(getattr(CoreTensor, f"__{name}__")) for name in SYMBOLS.split()},
    **{name: call for name, call in FUNCTIONS.items() if name not in _NO_METHODS},
    "astype": FUNCTIONS["cast"],
    "__hash__": object.__hash__,  # == is element by element
}
for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
    setattr(Variable, _name, _method)
