"""Tensors of MindSpore's programs: whole arrays before an operator takes its piece, and global ones.

Functions of ``ops`` are methods under the same name. What has other arguments as a method is written out. They print as
``mindspore/core/ir/tensor.cc`` does: ``repr`` as ``Tensor(shape=[2], dtype=Float32, value= [...])``, ``str`` as numpy's
arrays. Of a tensor of which ranks hold parts, a rank shows those that it has, as there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout
from spmdsim.dialects.functions import numbers
from spmdsim.dialects.host import HostTensor, ends, known_values, nested
from spmdsim.dialects.host import host as plain_host
from spmdsim.dialects.missing import expand_words, not_covered, refuse
from spmdsim.errors import InputError, UsageTypeError

float16, float32, float64 = map(np.dtype, ("f2", "f4", "f8"))
int8, int16, int32, int64 = map(np.dtype, ("i1", "i2", "i4", "i8"))
bool_ = np.dtype("?")

#: More elements than these are cut short, to so many at each end.
THRESHOLD, EDGEITEMS = 1000, 3
#: Numbers of a type: their width and the digits behind the point.
_FLOATS = {"f2": (11, 4), "f4": (15, 8), "f8": (15, 8)}


def type_name(dtype: np.dtype) -> str:
    """``Float32``, ``Int64``, ``UInt8``, ``Bool``."""
    name = dtype.name.capitalize()
    return f"UI{name[2:]}" if dtype.kind == "u" else name


def shown(x: Any) -> str:
    """A tensor or a whole array as MindSpore shows it."""
    values, which = known_values(x) if isinstance(x, Tensor) else (np.asarray(x), "")
    array, cut = ends(values, EDGEITEMS, THRESHOLD)
    kind, size = array.dtype.str[1:], max((len(str(value)) for value in array.flat), default=0)

    def written(value: Any) -> str:
        if not values.ndim:
            return f"{value:g}" if kind in _FLOATS else f"{value}"
        if kind in _FLOATS:
            width, digits = _FLOATS[kind]
            return f"{value:{width}.{digits}e}"
        return f"{value}".rjust(5 if kind == "b1" else size)

    text = nested(array, cut, 0, written, lambda _indent: max(1, array.size), EDGEITEMS)
    apart = "\n" if values.ndim > 1 else " "
    told = f"Tensor(shape={list(np.shape(x))}, dtype={type_name(values.dtype)}, value={apart}{text}"
    return f"{told}, {which})" if which else f"{told})"


def _ops() -> Any:
    from spmdsim.dialects.mindspore import ops

    return ops


def _view(x: Any, *shape: Any) -> Any:
    return _ops().reshape(x, numbers(shape))


def _transpose(x: Any, *axes: Any) -> Any:
    return _ops().transpose(x, numbers(axes) or tuple(range(x.ndim))[::-1])


def _flatten(x: Any, order: str = "C", *, start_dim: int = 0, end_dim: int = -1) -> Any:
    return _ops().flatten(x, order, start_dim=start_dim, end_dim=end_dim)


def _to(kind: Any) -> Callable[[Any], Any]:
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


def method(x: Any, name: str) -> Any:
    """A method of a tensor; an AttributeError names what is nearest."""
    if name.startswith("_"):
        raise AttributeError(f"a tensor has no attribute {name!r}")
    if name in METHODS:
        return partial(METHODS[name], x)
    from spmdsim.dialects.mindspore import functions

    words = {*functions.functions()} - _NO_METHODS
    if name in words:
        return partial(getattr(_ops(), name), x)
    there = [*sorted({*METHODS, *words}), "asnumpy", "astype", "item"]
    raise not_covered("spmdsim.dialects.mindspore.Tensor", name, there, NEAREST)


class Array(HostTensor):
    """A whole array with the methods of MindSpore's tensors; those that numpy does not have give global tensors."""

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        """Another shape; an element type or a class as numpy has it."""
        if shape and all(isinstance(n, (int, np.integer, tuple, list)) for n in shape):
            return self.reshape(numbers(shape))
        return super().view(*shape)

    def mean(self, axis: Any = None, keep_dims: bool = False, **options: Any) -> Any:  # type: ignore[override]
        """The mean over axes."""
        return super().mean(axis, keepdims=options.pop("keepdims", keep_dims), **options)

    def to(self, dtype: Any) -> Any:
        """Another element type."""
        return self.astype(dtype)

    def item(self, *index: Any) -> Any:
        """The only element, or the one at an index; an InputError for one of several without an index."""
        if not index and self.size != 1:
            raise InputError(f"item() needs a tensor of one element, but the shape is {self.shape}")
        return super().item(*index)

    __getattr__ = method
    __repr__ = shown


def host(data: Any, dtype: Any = None) -> Array:
    """Numbers, lists or arrays as an array with MindSpore's words."""
    array: Array = plain_host(data, dtype).view(Array)
    return array


#: A size of memory.
_SIZE = re.compile(r"(\d+\.?\d*|0?\.\d+)GB")


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = "1024GB", optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Check the sizes, such as ``"28GB"``, and do no more: arrays live in the memory of the CPU.

    A size that is no str is a TypeError, another text, or another level than ``O0`` or ``O1``, a ValueError.
    """
    sizes = dict(init_size=init_size, increase_size=increase_size, max_size=max_size)
    for name, value in dict(sizes, huge_page_reserve_size=huge_page_reserve_size).items():
        if not isinstance(value, str):
            raise UsageTypeError(f"{name} is a str such as '2GB', not {value!r}")
        fits = _SIZE.fullmatch(value) and (name not in sizes or float(value[:-2]))
        refuse({f"{name} is a size such as '2GB' or '0.5GB', not {value!r}": not fits})
    refuse({f"optimize_level is 'O0' or 'O1', not {optimize_level!r}": optimize_level not in ("O0", "O1")})


class GlobalTensor(Tensor):
    """A tensor of a MindSpore program, with MindSpore's words; so are the results and gradients of operators on it."""

    __slots__ = ()

    has_views = False

    __getattr__ = method

    def __repr__(self) -> str:
        """Its values, as far as this process has them."""
        return shown(self) if self.world.has_data else super().__repr__()

    def __str__(self) -> str:
        """The array as numpy prints it, and which part of the tensor it is, if it is not all."""
        if not self.world.has_data:
            return super().__str__()
        values, which = known_values(self)
        return f"{values} ({which} of {self.shape})" if which else str(values)

    def to(self, where: Any) -> Any:
        """In another layout, or with other elements."""
        return super().to(where) if isinstance(where, Layout) else self.astype(where)

    reshape, transpose, flatten = METHODS["reshape"], METHODS["transpose"], METHODS["flatten"]

    def mean(self, *args: Any, **options: Any) -> Any:
        """The mean over axes."""
        ours = {"keepdims" if name == "keep_dims" else name: value for name, value in options.items()}
        return super().mean(*args, **ours)


class ParameterValue(GlobalTensor):
    """A parameter's value, which MindSpore's programs call for: ``parameter.value()``."""

    __slots__ = ()

    def __call__(self) -> ParameterValue:
        """The value itself."""
        return self


def dressed(tensor: Tensor, kind: type[GlobalTensor] = GlobalTensor) -> GlobalTensor:
    """Return the tensor with MindSpore's words."""
    if isinstance(tensor, kind):
        return tensor
    result = kind(tensor.world, tensor.meta, tensor.held, tensor.requires_grad, tensor.name, tensor.origin)
    result.node, result.output, result.grad = tensor.node, tensor.output, tensor.grad
    return result
