"""Declare functions with PyTorch's parameters, one row each, for OneFlow, MindSpore's ``mint`` and others.

Systems that call ``dim`` ``axis`` and ``input`` ``x`` take these rows through :func:`with_names`. Semantics:
https://docs.pytorch.org/docs/stable/torch.html. Where PyTorch differs from numpy, the rows follow PyTorch: the median
of an even number of elements and the order of a mesh grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from spmdsim import nn
from spmdsim.arrays import Tensor, linalg
from spmdsim.arrays import ops as core
from spmdsim.arrays.ops.declare import declare_unary
from spmdsim.arrays.ops.dim_reductions import attach_gradient, normalise_dims, to_sum_type, to_type
from spmdsim.dialects.layouts import plus_bias
from spmdsim.dialects.table import Row, rows, same_rows, with_parameters
from spmdsim.errors import InputError
from spmdsim.layout.element_type import has_gradient, promote_types


class FunctionError(InputError, RuntimeError):
    """Error of an argument that PyTorch's function refuses.

    PyTorch raises RuntimeError, so this is one too.
    """


class ValuesAndIndices(NamedTuple):
    """Values along a dim, and their indices in that dim."""

    values: Any
    indices: Any


def with_names(table: Mapping[str, Row], words: str, **names: str) -> dict[str, Row]:
    """Return rows of a table for a system that gives the parameters other names.

    A row is an operator's function, and perhaps its layer. For example, ``with_names(TORCH, "roll", axis="dims")``
    returns the row of ``roll`` whose parameter ``dims`` is called ``axis``.

    Args:
        table: rows by function name.
        words: names of the rows to return, separated by spaces. ``theirs=ours`` returns row ``ours`` as ``theirs``.
        names: the new name of a parameter -> its name in the table; rows without this parameter ignore it.

    Returns:
        The new rows by the other system's names, in the order of ``words``. The rows of ``table`` are not changed.

    Raises:
        KeyError: If ``table`` has no row of a name.
    """
    back = {ours: theirs for theirs, ours in names.items()}
    renamed = {}
    for word in words.split():
        theirs, _, ours = word.partition("=")
        row = table[ours or theirs]
        options = {back.get(name, name): value for name, value in row.options.items()}
        renamed[theirs] = replace(row, call=with_parameters(row.call, names), options=options)
    return renamed


def as_number_tuple(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the numbers of ``f(2, 3)`` or ``f((2, 3))`` as one tuple.

    ``args`` are the positional arguments.
    """
    return tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int | np.integer) else args


def dims_of(dim: Any) -> Any:
    """Return ``dim``, or None for an empty list: PyTorch then reduces over all dims, unlike numpy."""
    return None if isinstance(dim, (list, tuple)) and not dim else dim


def _reduction_row(function: Callable[..., Any]) -> Row:
    """Return the row of a reduction with parameters ``(input, dim=None, keepdim=False)``."""
    return Row(lambda input, dim=None, keepdim=False: function(input, dims_of(dim), keepdims=keepdim))


def extreme_row(name: str, *, tied: bool = False) -> Row:
    """Return the row of ``max`` or ``min``; its second argument selects one of three forms.

    - None, as in ``max(x)``: the extreme of all elements. ``keepdim`` is ignored.
    - an int, as in ``max(x, 0)``: `ValuesAndIndices`, the extremes along this dim and their indices.
    - a tensor (anything else), as in ``max(x, y)``: the elementwise extreme of both. ``keepdim`` is ignored.

    The row (an operator's function) has the parameters ``(input, dim=None, keepdim=False)``.

    Args:
        name: ``"max"`` or ``"min"``.
        tied: for an int, share the gradient among all elements equal to the extreme. By default the element whose index
            is returned gets all of it.
    """
    reduce_extreme, find_index, elements = (
        getattr(core, word) for word in (name, f"arg{name}", f"{name}imum")
    )

    def call(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        """Compute the extreme; see `extreme_row` for the three forms of ``dim``."""
        if dim is None:
            return reduce_extreme(input)
        if not isinstance(dim, int):
            return elements(input, dim)
        index = find_index(input, dim, True)
        indexed_only = input.requires_grad and not tied
        values = reduce_extreme(input.detach() if indexed_only else input, dim, keepdims=keepdim)
        if indexed_only:  # only the element whose index is returned gets the gradient
            shape = [-1 if d == dim % input.ndim else 1 for d in range(input.ndim)]
            is_indexed = core.equal(index, np.arange(input.shape[dim]).reshape(shape))
            values = with_mask_gradient(values, input, is_indexed, dim, keepdim)
        return ValuesAndIndices(values, index if keepdim else core.squeeze(index, dim))

    return Row(call)


def with_mask_gradient(result: Any, x: Any, mask: Any, dims: Any, keepdim: bool) -> Any:
    """Return an extreme whose gradient goes, undivided, to each element of ``x`` that a mask selects.

    Args:
        result: the extreme of ``x`` along ``dims``.
        x: the operand.
        mask: True for the elements that receive the gradient, in the shape of ``x``.
        dims: the reduced dims; None for all.
        keepdim: True if ``result`` keeps the reduced dims.
    """
    return attach_gradient(result, x, core.cast(mask, x.dtype), normalise_dims(dims, x.ndim), keepdim)


def _deviation_row(function: Callable[..., Any]) -> Row:
    """Return the table row of ``std`` or ``var``, which has PyTorch's parameters.

    The row's function takes ``(input, dim=None, unbiased=True, keepdim=False)``. It divides by n - 1, or by n if
    ``unbiased=False``. ``dim`` None or an empty list reduces over all dims.

    Args:
        function: `ops.std` or `ops.var`, which take ``keepdims`` and ``correction`` (the number subtracted from n).
    """

    def call(input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
        return function(input, dims_of(dim), keepdims=keepdim, correction=int(unbiased))

    return Row(call)


def _select(input: Any, dim: int, index: Any) -> Any:
    """Return the elements of ``input`` at ``index`` (an int or a slice) of one dim."""
    return core.getitem(input, (slice(None),) * (dim % input.ndim) + (index,))


def _median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median: of an even number of elements, the smaller of the two in the middle.

    Args:
        input: the tensor. Its nan count as larger than all numbers; PyTorch returns nan instead.
        dim: None for the median of all elements, a scalar tensor. Otherwise the result is `ValuesAndIndices` along this
            dim.
        keepdim: keep ``dim`` with size 1; ignored without ``dim``.
    """
    if dim is None:
        return core.getitem(core.sort(core.reshape(input, -1)), (input.size - 1) // 2)
    middle = (input.shape[dim] - 1) // 2
    at = slice(middle, middle + 1) if keepdim else middle
    return ValuesAndIndices(
        *[_select(sorted_part, dim, at) for sorted_part in core.sort_with_indices(input, dim)]
    )


def _rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it computes 16-bit floats in float32 and rounds only the result.

    If an argument is a tensor of 16-bit floats, all tensors among the arguments are converted by `to_sum_type`. The
    result gets the type to which the arguments' types are promoted. Without such an argument, the call is passed on
    unchanged.

    Args:
        function: takes tensors and other values, by position or name, and returns one tensor.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        kinds = [x.dtype for x in (*args, *options.values()) if isinstance(x, Tensor)]
        if not any(has_gradient(kind) and kind.itemsize < 4 for kind in kinds):
            return function(*args, **options)
        values = [to_sum_type(x) if isinstance(x, Tensor) else x for x in (*args, *options.values())]
        result = function(*values[: len(args)], **dict(zip(options, values[len(args) :])))
        return to_type(result, promote_types(*kinds))

    return call


@_rounded_once
def _norm(input: Any, p: Any = 2.0, dim: Any = None, keepdim: bool = False) -> Any:
    """Compute the vector norm of order ``p`` over ``dim`` (None: all); p None or ``"fro"`` is order 2."""
    order = 2.0 if p in (None, "fro") else float(p)
    return linalg.vector_norm(input, axis=dim, keepdims=keepdim, ord=order)


def _squeeze(input: Any, dim: Any = None) -> Any:
    """Remove the dims of size 1 that ``dim`` names, or all dims of size 1 if it is None.

    Named dims of another size stay.
    """
    named = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return core.squeeze(input, tuple(d % input.ndim for d in named if input.shape[d] == 1))


def _flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge the dims from ``start_dim`` to ``end_dim`` (inclusive) into one; a scalar becomes a vector."""
    ndim = max(1, input.ndim)
    start, end, shape = start_dim % ndim, end_dim % ndim, tuple(input.shape)
    return core.reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def _expand(input: Any, *sizes: Any) -> Any:
    """Broadcast to ``sizes``; -1 keeps the size of that dim."""
    new_sizes = as_number_tuple(sizes)
    sizes_before = [1] * (len(new_sizes) - input.ndim) + list(input.shape)
    return core.broadcast_to(input, tuple(k if n == -1 else n for n, k in zip(new_sizes, sizes_before)))


def _t(input: Any) -> Any:
    """Transpose a matrix; return vectors and scalars unchanged.

    Raise FunctionError for more than 2 dims.
    """
    if input.ndim > 2:
        raise FunctionError(f"t() expects a tensor with <= 2 dimensions, but input tensor is {input.ndim}D")
    return core.transpose(input)


def _gelu(input: Any, approximate: str = "none") -> Any:
    """Compute gelu; ``approximate`` is ``"none"`` or ``"tanh"``, else raise FunctionError."""
    if approximate not in ("none", "tanh"):
        raise FunctionError("the approximate argument should be 'none' or 'tanh'")
    return core.gelu(input, approximate)


def _are_integers(values: Any) -> bool:
    """Return True if ``values`` is a list, tuple or array of integers."""
    is_list = isinstance(values, (list, tuple, np.ndarray))
    return is_list and all(isinstance(value, (int, np.integer)) for value in values)


def _split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> list[Any]:
    """Split one dim into consecutive blocks; return them as a list.

    For example, a dim of size 5 split by 2 has blocks of 2, 2 and 1; split by ``[1, 4]``, blocks of 1 and 4.

    Args:
        tensor: the tensor to split.
        split_size_or_sections: size of the blocks (the last one may be smaller), or the list of their sizes. With one
            size, a dim of size 0 has no blocks: the list is empty.
        dim: the dim to split; negative numbers count from the end.

    Raises:
        FunctionError: If sizes are not integers, the one size is less than 1, or listed sizes do not add up to the size of
            the dim. Signs of listed sizes are not checked.
    """
    cuts, size = split_size_or_sections, tensor.shape[dim]
    if not isinstance(cuts, int) and not _are_integers(cuts):
        raise FunctionError(
            f"split: split_size_or_sections must be an integer or a list of integers, got {cuts!r}"
        )
    if isinstance(cuts, int) and cuts < 1:
        raise FunctionError(
            f"split: split_size_or_sections must be 1 or more, got {cuts}; give the size of a block, or a list of "
            "sizes"
        )
    sizes = [min(cuts, size - k) for k in range(0, size, cuts)] if isinstance(cuts, int) else list(cuts)
    if sum(sizes) != size:
        raise FunctionError(
            f"split: sizes must add up to {size}, the size of dim {dim}, got {sizes}; give other sizes"
        )
    return [_select(tensor, dim, slice(end - n, end)) for n, end in zip(sizes, accumulate(sizes))]


def _chunk(input: Any, chunks: int, dim: int = 0) -> list[Any]:
    """Split a dim into at most ``chunks`` equal blocks; the last one may be smaller.

    For example, a dim of size 10 in 4 chunks has blocks of 3, 3, 3 and 1; in 6 chunks, five blocks of 2.

    Args:
        input: the tensor.
        chunks: the largest number of blocks.
        dim: the dim; negative numbers count from the end.

    Raises:
        FunctionError: If ``chunks`` is no integer of 1 or more.
    """
    if not isinstance(chunks, int) or chunks < 1:
        raise FunctionError(
            f"chunk: chunks must be an integer of 1 or more, got {chunks!r}; give the number of blocks"
        )
    return _split(input, max(1, -(-input.shape[dim] // chunks)), dim)


def _concat(tensors: Any, dim: int = 0) -> Any:
    """Concatenate a list or tuple of tensors along ``dim``.

    Args:
        tensors: the list or tuple; sizes of other dims must be equal.
        dim: the dim; negative numbers count from the end.

    Raises:
        FunctionError: If ``tensors`` is neither a list nor a tuple, such as a single tensor.
    """
    if not isinstance(tensors, (list, tuple)):
        raise FunctionError(
            f"tensors must be a list or tuple of tensors, got a {type(tensors).__name__}; nearest: [x, x], {dim}"
        )
    return core.concat(tensors, dim)


def _equal_split_row(dim: int) -> Row:
    """Return the row of ``hsplit`` or ``vsplit``.

    A row is an operator's function. Its parameters are ``(input, indices_or_sections)``; it returns the list of blocks.
    An int asks for this number of equal blocks. A list states the indices where blocks end, in ascending order, which
    is not checked: ``[2, 5]`` splits size 6 into ``[0:2]``, ``[2:5]`` and ``[5:6]``. The function raises FunctionError
    if the int is less than 1 or does not divide the size of the dim.

    Args:
        dim: the dim to split (1 for ``hsplit``, 0 for ``vsplit``); of a vector, dim 0 is split.
    """

    def call(input: Any, indices_or_sections: Any) -> list[Any]:
        """Split the tensor into blocks of equal size, or at indices."""
        at = 0 if input.ndim == 1 else dim
        size = input.shape[at]
        if not isinstance(indices_or_sections, int):
            if not _are_integers(indices_or_sections):
                raise FunctionError(
                    f"indices_or_sections must be an integer or a list of integers, got {indices_or_sections!r}"
                )
            return _split(input, [*np.diff([0, *indices_or_sections, size])], at)
        count = indices_or_sections
        if count < 1 or size % count:
            raise FunctionError(
                f"indices_or_sections must be 1 or more and divide {size}, the size of dim {at}, got {count}; "
                "give a divisor, or a list of indices"
            )
        return _split(input, size // count, at)

    return Row(call)


def _diag(input: Any, diagonal: int = 0) -> Any:
    """Return a diagonal of a matrix, or the square matrix that has the vector ``input`` on it.

    Args:
        input: a vector of n elements gives a matrix of n + abs(diagonal) rows, 0 elsewhere. Otherwise the result is the
            diagonal of the last two dims.
        diagonal: position relative to the main diagonal; positive numbers are above it.
    """
    if input.ndim != 1:
        return linalg.diagonal(input, offset=diagonal)
    matrix = core.where(np.eye(input.size, dtype=bool), core.expand_dims(input, 1), np.zeros((), input.dtype))
    above, below = max(diagonal, 0), max(-diagonal, 0)
    return core.pad(matrix, (below, above), (above, below))


def _unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """Return the sorted distinct elements, or a tuple with inverse indices and counts.

    The result is a tuple if ``return_inverse`` or ``return_counts`` is True; it then has only the parts that are asked
    for. ``sorted`` is ignored: the elements are always sorted.

    Returns:
        The distinct elements, a vector; the index of each element of ``input`` in this vector, in the shape of
        ``input``; and how often each distinct element occurs.
    """
    values = core.unique_values(input)
    more = [core.reshape(core.unique_inverse(input)[1], tuple(input.shape))] if return_inverse else []
    more += [core.unique_counts(input)[1]] if return_counts else []
    return (values, *more) if more else values


_quiet_log = np.errstate(divide="ignore")(np.log)
#: Logarithm with slope 0 at 0, which is the sum of no terms.
_log = declare_unary(
    "log", _quiet_log, lambda x: np.where(x == 0, 0, 1 / np.where(x == 0, 1, x)), says="log(x)"
)


def _logsumexp(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Compute log(sum(exp(input))) over dims, shifted so that exp does not overflow.

    An infinite or nan maximum is not subtracted. If all elements are -inf, the result is -inf and its gradient 0.

    Args:
        input: the tensor.
        dim: an int or a tuple of ints; None or an empty list for all dims.
        keepdim: keep the reduced dims with size 1.
    """
    dim = dims_of(dim)
    shift = core.max(input.detach(), dim, keepdims=True)
    shift = core.where(core.isfinite(shift), shift, 0)
    total = core.add(_log(core.sum(core.exp(core.subtract(input, shift)), dim, keepdims=True)), shift)
    return total if keepdim else _squeeze(total, dim)


def _softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """Compute softplus(beta x) / beta; elements with beta x > threshold are returned unchanged."""
    scaled = core.multiply(input, beta)
    return core.where(core.greater(scaled, threshold), input, core.divide(core.softplus(scaled), beta))


def _elu(input: Any, alpha: float = 1.0) -> Any:
    """Compute elu: x where x > 0, else alpha (exp(x) - 1)."""
    return core.where(core.greater(input, 0), input, core.multiply(core.expm1(core.minimum(input, 0)), alpha))


def _hardsigmoid(input: Any) -> Any:
    """Compute relu6(x + 3) / 6."""
    return core.divide(core.relu6(core.add(input, 3.0)), 6.0)


def open_clip(input: Any, min: Any = None, max: Any = None) -> Any:
    """Clip elements to ``[min, max]``.

    As in PyTorch, only elements strictly between the limits pass a gradient.

    Args:
        input: the tensor.
        min: the lower limit, a number or tensor; None is no limit.
        max: the upper limit; None is no limit.
    """
    clipped = core.clip(input.detach(), min, max)
    if not input.requires_grad:
        return clipped
    inside = [f(input, x) for f, x in ((core.greater, min), (core.less, max)) if x is not None]
    return core.where(reduce(core.logical_and, inside), input, clipped) if inside else core.identity(input)


def _glu(input: Any, dim: int = -1) -> Any:
    """Compute a * sigmoid(b), where a and b are the first and second half of ``dim``.

    Args:
        input: the tensor.
        dim: the dim that is halved; negative numbers count from the end.

    Raises:
        FunctionError: If the size of ``dim`` is odd or 0.
    """
    size = input.shape[dim]
    if size % 2:
        raise FunctionError(f"glu: dim {dim} must have an even size, got {size}; split another dim")
    values, gate = _split(input, size // 2, dim)
    return core.multiply(values, core.sigmoid(gate))


def _pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
    """Pad the last dims of a tensor with a constant.

    Args:
        input: the tensor.
        pad: two numbers (before, after) for each padded dim, from the last dim on. For example, ``(1, 2, 0, 3)`` adds 1
            column before and 2 after, and 3 rows after.
        mode: "constant"; the other modes are not supported.
        value: the constant.

    Raises:
        FunctionError: If ``pad`` has an odd number of elements or more pairs than ``input`` has dims, or for another
            mode.
    """
    if mode != "constant" or len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise FunctionError(
            f"pad: pad must have two numbers per dim and mode must be 'constant', got {pad} and {mode!r}; give "
            "(before, after) for the last dims"
        )
    untouched = [0] * (input.ndim - len(pad) // 2)
    return core.pad(input, [*untouched, *pad[-2::-2]], [*untouched, *pad[::-2]], value)


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise over the last dims by mean and variance; apply weight and bias.

    Args:
        input: the tensor.
        normalized_shape: sizes of the last dims, which are normalised together; an int is one dim.
        weight: factor of this shape; None is 1.
        bias: addend of this shape; None is 0.
        eps: number added to the variance.

    Raises:
        FunctionError: If the last dims of ``input`` do not have this shape.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(input.shape[-len(shape) :]) != shape:
        raise FunctionError(
            f"Given normalized_shape is {list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], but got "
            f"input shape {list(input.shape)}"
        )
    scale: Any = np.ones(shape, input.dtype) if weight is None else weight
    shift: Any = np.zeros(shape, input.dtype) if bias is None else bias
    return core.layer_norm(input, scale, shift, eps, -len(shape))


#: Functions and methods by their names.
TORCH: dict[str, Row] = {
    **same_rows(
        core,
        "abs=absolute absolute matmul add acos=arccos acosh=arccosh arccos arccosh arcsin arcsinh arctan arctanh "
        "asin=arcsin asinh=arcsinh atan=arctan atan2=arctan2 atanh=arctanh bitwise_and bitwise_not=bitwise_invert "
        "bitwise_or bitwise_xor ceil cos cosh div=divide divide eq=equal erf exp expm1 floor floor_divide "
        "ge=greater_equal greater_equal greater gt=greater isfinite isinf isnan le=less_equal less_equal less log "
        "log10 log1p log2 logical_and logical_not logical_or logical_xor lt=less maximum minimum mul=multiply "
        "multiply ne=not_equal not_equal neg=negative negative reciprocal relu:ReLU relu6:ReLU6 remainder "
        "round=rint rsqrt sigmoid:Sigmoid sign silu:SiLU sin sinh sqrt square sub=subtract subtract tan tanh:Tanh "
        "trunc",
        "input other",
    ),
    **same_rows(core, "bmm=matmul mm=matmul", "input mat2"),
    **same_rows(core, "pow=power", "input exponent"),
    **same_rows(core, "where", "condition input other"),
    **same_rows(core, "einsum"),
    **same_rows(core, "stack", "tensors"),
    **same_rows(core, "swapaxes swapdims=swapaxes transpose=swapaxes", "input dim0 dim1"),
    **same_rows(core, "movedim=moveaxis", "input"),
    **same_rows(core, "tensordot", "a b dims"),
    **same_rows(core, "tril triu", "input diagonal"),
    **same_rows(linalg, "outer", "input vec2"),
    **same_rows(core, "clamp=clip clip", "input"),
    **same_rows(core, "softmax:Softmax log_softmax:LogSoftmax argsort", "input dim"),
    **{f"a{name}": _reduction_row(getattr(core, name)) for name in ("max", "min")},
    **rows(_chunk, _diag, _logsumexp, _median, _norm, _select, _split, _squeeze, _t, _unique),
    **{name: extreme_row(name) for name in ("max", "min")},
    **{name: _deviation_row(getattr(core, name)) for name in ("std", "var")},
    **dict.fromkeys(("argwhere", "nonzero"), Row(
        lambda input, as_tuple=False: core.nonzero(input) if as_tuple else core.stack(core.nonzero(input), 1))),
    **dict.fromkeys(("broadcast_to", "expand"), Row(_expand)),
    **dict.fromkeys(("cat", "concat"), Row(_concat)),
    **{name: _equal_split_row(dim) for dim, name in enumerate(("vsplit", "hsplit"))},
    **{name: _reduction_row(getattr(core, name)) for name in ("all", "any", "argmax", "argmin", "mean", "prod", "sum")},
    "addcmul": Row(lambda input, tensor1, tensor2, value=1: core.add(input, core.multiply(core.multiply(tensor1, tensor2), value))),
    "addmm": Row(lambda input, mat1, mat2, beta=1, alpha=1: core.add(core.multiply(input, beta), core.multiply(core.matmul(mat1, mat2), alpha))),
    "cumprod": Row(lambda input, dim: core.cumulative_prod(input, dim)),
    "cumsum": Row(lambda input, dim: core.cumulative_sum(input, dim)),
    "diagonal": Row(lambda input, offset=0, dim1=0, dim2=1: linalg.diagonal(core.moveaxis(input, (dim1, dim2), (-2, -1)), offset=offset)),
    "dot": Row(lambda input, other: core.vecdot(input, other)),
    "erfc": Row(lambda input: core.subtract(1.0, core.erf(input))),
    "flatten": Row(_flatten, "Flatten", {"start_dim": 1}),
    "flip": Row(lambda input, dims: core.flip(input, dims)),
    "fmod": Row(lambda input, other: core.subtract(input, core.multiply(core.trunc(core.divide(input, other)), other))),
    "gather": Row(lambda input, dim, index: core.take_along_axis(input, index, dim)),
    "gelu": Row(_gelu, "GELU"),
    "index_select": Row(lambda input, dim, index: core.take(input, index, dim)),
    "masked_fill": Row(lambda input, mask, value: core.where(mask, value, input)),
    "masked_select": Row(lambda input, mask: core.getitem(input, mask)),
    "meshgrid": Row(lambda *tensors, indexing="ij": core.meshgrid(*tensors, indexing=indexing)),
    "narrow": Row(lambda input, dim, start, length: _select(input, dim, slice(start, start + length))),
    "permute": Row(lambda input, *dims: core.transpose(input, as_number_tuple(dims))),
    "reshape": Row(lambda input, *shape: core.reshape(input, as_number_tuple(shape))),
    "roll": Row(lambda input, shifts, dims=None: core.roll(input, shifts, dims)),
    "searchsorted": Row(lambda sorted_sequence, values, right=False: core.searchsorted(sorted_sequence, values, "right" if right else "left")),
    "sort": Row(lambda input, dim=-1, descending=False: ValuesAndIndices(*core.sort_with_indices(input, dim, descending))),
    "tile": Row(lambda input, *dims: core.tile(input, as_number_tuple(dims))),
    "topk": Row(lambda input, k, dim=-1, largest=True, sorted=True: ValuesAndIndices(*core.topk(input, k, -1 if dim is None else dim, largest))),
    "unbind": Row(lambda input, dim=0: list(core.unstack(input, dim))),
    "unsqueeze": Row(lambda input, dim: core.expand_dims(input, dim)),
}  # fmt: skip

#: Functions of ``nn.functional``, and the layers that apply them.
NETWORK: dict[str, Row] = {
    **same_rows(
        nn,
        "binary_cross_entropy:BCELoss binary_cross_entropy_with_logits:BCEWithLogitsLoss cross_entropy:CrossEntropyLoss "
        "l1_loss:L1Loss mse_loss:MSELoss nll_loss:NLLLoss smooth_l1_loss:SmoothL1Loss",
        "input target",
    ),
    "celu": Row(lambda input, alpha=1.0: core.where(core.greater(input, 0), input, core.multiply(
        core.expm1(core.minimum(core.divide(input, alpha), 0)), alpha)), "CELU"),
    "cosine_similarity": Row(_rounded_once(lambda x1, x2, dim=1, eps=1e-8: core.divide(
        core.sum(core.multiply(x1, x2), dim), core.multiply(*(core.maximum(_norm(x, 2.0, dim), eps) for x in (x1, x2)))))),
    "elu": Row(_elu, "ELU"),
    "embedding": Row(lambda input, weight, padding_idx=None: core.embedding(
        input, weight, padding=None if padding_idx is None else padding_idx % weight.shape[0])),
    "glu": Row(_glu, "GLU"),
    "hardsigmoid": Row(_hardsigmoid, "Hardsigmoid"),
    "hardswish": Row(lambda input: core.multiply(input, _hardsigmoid(input)), "Hardswish"),
    "hardtanh": Row(lambda input, min_val=-1.0, max_val=1.0: open_clip(input, min_val, max_val), "Hardtanh"),
    "identity": Row(lambda input: input, "Identity"),
    "leaky_relu": Row(lambda input, negative_slope=0.01: core.where(
        core.greater(input, 0), input, core.multiply(input, negative_slope)), "LeakyReLU"),
    "linear": Row(lambda input, weight, bias=None: plus_bias(core.matmul(input, weight, transpose_b=True), bias)),
    "logsigmoid": Row(lambda input: core.negative(core.softplus(core.negative(input))), "LogSigmoid"),
    "mish": Row(lambda input: core.multiply(input, core.tanh(core.softplus(input))), "Mish"),
    "normalize": Row(_rounded_once(
        lambda input, p=2.0, dim=1, eps=1e-12: core.divide(input, core.maximum(_norm(input, p, dim, True), eps)))),
    "one_hot": Row(lambda input, num_classes: core.one_hot(input, num_classes, np.int64)),
    **rows(_layer_norm, _pad),
    "selu": Row(lambda input: core.multiply(_elu(input, 1.6732632423543772), 1.0507009873554805), "SELU"),
    "softplus": Row(_softplus, "Softplus"),
    "softsign": Row(lambda input: core.divide(input, core.add(core.absolute(input), 1.0)), "Softsign"),
}  # fmt: skip
