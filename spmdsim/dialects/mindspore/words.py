"""The methods of MindSpore's tensors: of global ones, of whole arrays before an operator takes its piece, and of parameters.

Functions of ``ops`` are methods under the same name. What has other arguments as a method is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from spmdsim.dialects.host import HostTensor
from spmdsim.dialects.host import host as plain_host
from spmdsim.dialects.mindspore.printing import shown
from spmdsim.dialects.missing import each, not_covered


def _ops() -> Any:
    from spmdsim.dialects.mindspore import ops

    return ops


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike."""
    return tuple(given[0]) if len(given) == 1 and not isinstance(given[0], (int, np.integer)) else given


def _view(x: Any, *shape: Any) -> Any:
    return _ops().reshape(x, _sizes(shape))


def _transpose(x: Any, *axes: Any) -> Any:
    return _ops().transpose(x, _sizes(axes) or tuple(range(x.ndim))[::-1])


def _flatten(x: Any, order: str = "C", *, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % max(1, x.ndim), end_dim % max(1, x.ndim)
    return _ops().reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def _to(kind: Any) -> Callable[[Any], Any]:
    return lambda x: _ops().cast(x, np.dtype(kind))


#: Methods that are no functions of ``ops``, or have other arguments.
METHODS: dict[str, Callable[..., Any]] = {
    "view": _view, "reshape": _view, "transpose": _transpose, "permute": _transpose, "flatten": _flatten,
    "mean": lambda x, axis=None, keep_dims=False, **more: _ops().mean(x, axis, more.get("keepdims", keep_dims)),
    "view_as": lambda x, other: _view(x, other.shape), "reshape_as": lambda x, other: _view(x, other.shape),
    "expand_as": lambda x, other: _ops().broadcast_to(x, tuple(other.shape)), "copy": lambda x: x, "clone": lambda x: x,
    "dim": lambda x: x.ndim, "numel": lambda x: x.size, "tolist": lambda x: x.asnumpy().tolist(), "value": lambda x: x,
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
NEAREST = each({
    "assign_value set_data fill copy_ index_fill fill_": "Parameter.set_data: tensors are values",
    "add_ sub_ mul_ div_ zero_": "the same word without _, which gives a new tensor",
    "asnumpy_of_slice_persistent_data "
    "register_hook requires_grad_ requires_grad grad backward": "mindspore.value_and_grad",
    "data_ptr storage flush_from_cache offload": "asnumpy()",
    "cuda cpu npu move_to to_": "asnumpy(): every rank computes on its CPU",
})  # fmt: skip


def known() -> list[str]:
    """All methods by name."""
    ops = _ops()
    functions = {*ops.written_functions(), *ops.functional.__all__, *ops.composed.FUNCTIONS} - _NO_METHODS
    return sorted({*METHODS, *functions})


def method(x: Any, name: str) -> Any:
    """A method of a tensor.

    Raises:
        AttributeError: there is none; it names what is nearest.
    """
    if name.startswith("_"):
        raise AttributeError(f"a tensor has no attribute {name!r}")
    if name in METHODS:
        return partial(METHODS[name], x)
    if name in known():
        return partial(getattr(_ops(), name), x)
    raise not_covered(
        "spmdsim.dialects.mindspore.Tensor", name, [*known(), "asnumpy", "astype", "item"], NEAREST
    )


class Array(HostTensor):
    """A whole array with the methods of MindSpore's tensors; those that numpy does not have give global tensors."""

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        """Another shape; an element type or a class as numpy has it."""
        numbers = shape and all(isinstance(n, (int, np.integer, tuple, list)) for n in shape)
        return self.reshape(_sizes(shape)) if numbers else super().view(*shape)

    def mean(self, axis: Any = None, keep_dims: bool = False, **options: Any) -> Any:  # type: ignore[override]
        """The mean over axes."""
        return super().mean(axis, keepdims=options.pop("keepdims", keep_dims), **options)

    def to(self, dtype: Any) -> Any:
        """Another element type."""
        return self.astype(dtype)

    def item(self, *index: Any) -> Any:
        """The only element, or the one at an index.

        Raises:
            InputError: more than one element.
        """
        if not index and self.size != 1:
            from spmdsim.errors import InputError

            raise InputError(f"item() needs a tensor of one element, but the shape is {self.shape}")
        return super().item(*index)

    def __getattr__(self, name: str) -> Any:
        return method(self, name)

    def __repr__(self) -> str:
        return shown(self)


def host(data: Any, dtype: Any = None) -> Array:
    """Numbers, lists or arrays as an array with MindSpore's words."""
    array: Array = plain_host(data, dtype).view(Array)
    return array
