"""Tensors of MindSpore's programs: whole arrays before an operator takes its shard, and global tensors.

Functions of ``ops`` are methods of the same name; methods with other arguments are written out. Texts follow
``mindspore/core/ir/tensor.cc``: ``repr`` as ``Tensor(shape=[2], dtype=Float32, value= [...])``, ``str`` as numpy's
arrays. If a tensor is split, a rank shows its own shard, as in MindSpore.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout
from spmdsim.dialects.functions import as_number_tuple
from spmdsim.dialects.host import HostTensor, format_nested, keep_ends, read_known_values
from spmdsim.dialects.host import to_host as plain_host
from spmdsim.dialects.missing import expand_words, not_covered, refuse
from spmdsim.errors import InputError, UsageTypeError

float16, float32, float64 = map(np.dtype, ("f2", "f4", "f8"))
int8, int16, int32, int64 = map(np.dtype, ("i1", "i2", "i4", "i8"))
bool_ = np.dtype("?")

#: Arrays with more than THRESHOLD elements are summarised: EDGEITEMS elements remain at each end of a long dim.
THRESHOLD, EDGEITEMS = 1000, 3
#: Width and digits behind the point, per floating type.
_FLOATS = {"f2": (11, 4), "f4": (15, 8), "f8": (15, 8)}


def format_type(dtype: np.dtype) -> str:
    """Return MindSpore's name of a type: ``Float32``, ``Int64``, ``UInt8``, ``Bool``."""
    name = dtype.name.capitalize()
    return f"UI{name[2:]}" if dtype.kind == "u" else name


def format_tensor(x: Any) -> str:
    """Return the text of a tensor or a whole array in MindSpore's form; nothing is communicated.

    For a split tensor, the text has the shard of this process's rank and its index range. If there are more than
    THRESHOLD (1000) elements, each dim of more than 6 elements shows EDGEITEMS (3) at each end, with "..." between.

    Args:
        x: a tensor, or an array.

    >>> format_tensor(np.float32([1, 2]))
    'Tensor(shape=[2], dtype=Float32, value= [ 1.00000000e+00,  2.00000000e+00])'
    """
    values, which = read_known_values(x) if isinstance(x, Tensor) else (np.asarray(x), "")
    array, cut = keep_ends(values, EDGEITEMS, THRESHOLD)
    kind, size = array.dtype.str[1:], max((len(str(value)) for value in array.flat), default=0)

    def format_number(value: Any) -> str:
        """Format one number."""
        if not values.ndim:
            return f"{value:g}" if kind in _FLOATS else f"{value}"
        if kind in _FLOATS:
            width, digits = _FLOATS[kind]
            return f"{value:{width}.{digits}e}"
        return f"{value}".rjust(5 if kind == "b1" else size)

    text = format_nested(array, cut, 0, format_number, lambda _indent: max(1, array.size), EDGEITEMS)
    separator = "\n" if values.ndim > 1 else " "
    description = (
        f"Tensor(shape={list(np.shape(x))}, dtype={format_type(values.dtype)}, value={separator}{text}"
    )
    return f"{description}, {which})" if which else f"{description})"


def _ops() -> Any:
    """Return the module ``ops``, imported on first use because it imports this one."""
    from spmdsim.dialects.mindspore import ops

    return ops


def _view(x: Any, *shape: Any) -> Any:
    """Reshape; sizes come as one tuple or as several numbers."""
    return _ops().reshape(x, as_number_tuple(shape))


def _transpose(x: Any, *axes: Any) -> Any:
    """Transpose to the order ``axes``, by default reversed."""
    return _ops().transpose(x, as_number_tuple(axes) or tuple(range(x.ndim))[::-1])


def _flatten(x: Any, order: str = "C", *, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Flatten dims into one, from dim 0 by default; the function ``ops.flatten`` starts at dim 1."""
    return _ops().flatten(x, order, start_dim=start_dim, end_dim=end_dim)


def _to(kind: Any) -> Callable[[Any], Any]:
    """Return a method that casts to a type."""
    return lambda x: _ops().cast(x, np.dtype(kind))


#: Methods that are no functions of ``ops``, or have other arguments.
METHODS: dict[str, Callable[..., Any]] = {
    "view": _view, "reshape": _view, "transpose": _transpose, "permute": _transpose, "flatten": _flatten,
    "view_as": lambda x, other: _view(x, other.shape), "reshape_as": lambda x, other: _view(x, other.shape),
    "expand_as": lambda x, other: _ops().broadcast_to(x, tuple(other.shape)), "copy": lambda x: x, "clone": lambda x: x,
    "dim": lambda x: x.ndim, "numel": lambda x: x.size, "value": lambda x: x,
    "half": _to("f2"), "float": _to("f4"), "double": _to("f8"), "int": _to("i4"), "long": _to("i8"), "bool": _to("?"),
    "is_floating_point": lambda x: x.dtype.kind == "f", "type_as": lambda x, other: _ops().cast(x, other.dtype),
    "contiguous": lambda x: x, "is_contiguous": lambda x: True, "mm": lambda x, other: _ops().matmul(x, other),
}  # fmt: skip
#: Functions of ``ops`` that are no methods.
_NO_METHODS = {
    "arange", "cat", "concat", "einsum", "eye", "full", "grad", "linspace", "meshgrid", "ones", "rand", "randint", "randn",
    "reshard", "shape", "stack", "to_tensor", "value_and_grad", "zeros",
}  # fmt: skip
#: What to use instead of a method that resembles none here.
NEAREST = expand_words({
    "assign_value set_data": "Parameter.set_data",
    "register_hook requires_grad grad backward": "mindspore.value_and_grad",
})  # fmt: skip


def find_method(x: Any, name: str) -> Any:
    """Return a method of a tensor by name, bound to the tensor.

    The name is searched in METHODS, and then among the functions of ``ops`` that take a tensor first. For example,
    ``find_method(x, "tanh")()`` computes ``ops.tanh(x)``.

    Args:
        x: the tensor or array.
        name: name of the method.

    Raises:
        AttributeError: If neither has the name. The text suggests the nearest name, unless the name starts with an
            underscore.
    """
    if name.startswith("_"):
        raise AttributeError(f"a tensor has no attribute {name!r}")
    if name in METHODS:
        return partial(METHODS[name], x)
    from spmdsim.dialects.mindspore import functions

    words = {*functions.functions()} - _NO_METHODS
    if name in words:
        return partial(getattr(_ops(), name), x)
    available = [*sorted({*METHODS, *words}), "asnumpy", "astype", "item"]
    raise not_covered("spmdsim.dialects.mindspore.Tensor", name, available, NEAREST)


class Array(HostTensor):
    """Whole array with the methods of MindSpore's tensors; methods that numpy lacks return global tensors."""

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        """Return the array in another shape, or like numpy with another element type or class."""
        if shape and all(isinstance(n, (int, np.integer, tuple, list)) for n in shape):
            return self.reshape(as_number_tuple(shape))
        return super().view(*shape)

    def mean(self, axis: Any = None, keep_dims: bool = False, **options: Any) -> Any:  # type: ignore[override]
        """Compute the mean over axes."""
        return super().mean(axis, keepdims=options.pop("keepdims", keep_dims), **options)

    def to(self, dtype: Any) -> Any:
        """Convert to another element type."""
        return self.astype(dtype)

    def item(self, *index: Any) -> Any:
        """Return the only element, or the element at an index.

        Raises InputError if it has several and no index is given.
        """
        if not index and self.size != 1:
            raise InputError(
                f"item(): the tensor must have one element, got shape {self.shape}; reduce it first"
            )
        return super().item(*index)

    __getattr__ = find_method
    __repr__ = format_tensor


def to_host_array(data: Any, dtype: Any = None) -> Array:
    """Return numbers, lists or arrays as an array with MindSpore's methods."""
    array: Array = plain_host(data, dtype).view(Array)
    return array


#: A size of memory.
_SIZE = re.compile(r"(\d+\.?\d*|0?\.\d+)GB")


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = "1024GB", optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Check the arguments and do nothing: arrays are in the CPU's memory.

    Args:
        init_size: a size such as ``"28GB"``, above 0.
        increase_size: a size above 0.
        max_size: a size above 0.
        optimize_level: ``"O0"`` or ``"O1"``.
        huge_page_reserve_size: a size of 0 or more.

    Raises:
        UsageTypeError: If a size is no text.
        InputError: If a size is no number with ``GB`` behind it, or the level is unknown.
    """
    sizes = dict(init_size=init_size, increase_size=increase_size, max_size=max_size)
    for name, value in dict(sizes, huge_page_reserve_size=huge_page_reserve_size).items():
        if not isinstance(value, str):
            raise UsageTypeError(f"{name} must be a str such as '2GB', got {value!r}")
        fits = _SIZE.fullmatch(value) and (name not in sizes or float(value[:-2]))
        refuse({f"{name} must be a size such as '2GB' or '0.5GB', got {value!r}": not fits})
    refuse(
        {f"optimize_level must be 'O0' or 'O1', got {optimize_level!r}": optimize_level not in ("O0", "O1")}
    )


class GlobalTensor(Tensor):
    """Tensor of a MindSpore program, with MindSpore's methods; operators on it return such tensors."""

    __slots__ = ()

    has_views = False

    __getattr__ = find_method

    def __repr__(self) -> str:
        """Return the values that this process has, in MindSpore's form."""
        return format_tensor(self) if self.world.has_data else super().__repr__()

    def __str__(self) -> str:
        """Return the values in numpy's form; of a split tensor also the index range."""
        if not self.world.has_data:
            return super().__str__()
        values, which = read_known_values(self)
        return f"{values} ({which} of {self.shape})" if which else str(values)

    def to(self, where: Any) -> Any:
        """Return the tensor in another layout, or with another element type."""
        return super().to(where) if isinstance(where, Layout) else self.astype(where)

    reshape, transpose, flatten = METHODS["reshape"], METHODS["transpose"], METHODS["flatten"]

    def mean(self, *args: Any, **options: Any) -> Any:
        """Compute the mean over axes."""
        ours = {"keepdims" if name == "keep_dims" else name: value for name, value in options.items()}
        return super().mean(*args, **ours)


class ParameterValue(GlobalTensor):
    """Value of a parameter; a call returns itself: ``parameter.value()``."""

    __slots__ = ()

    def __call__(self) -> ParameterValue:
        """Return the value itself."""
        return self


def with_methods(tensor: Tensor, kind: type[GlobalTensor] = GlobalTensor) -> GlobalTensor:
    """Return the tensor as MindSpore's class, with its gradient and history.

    The data are not copied. A tensor of this class is returned itself; otherwise the result is a new object.

    Args:
        tensor: the tensor; it is not changed.
        kind: the class.
    """
    if isinstance(tensor, kind):
        return tensor
    result = kind.from_tensor(tensor, tensor.requires_grad)
    result.node, result.output, result.grad = tensor.node, tensor.output, tensor.grad
    return result
