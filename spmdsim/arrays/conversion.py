"""Tensors of values that a program has: numbers, lists, arrays, arrays of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.creation import check_device, with_default_layout
from spmdsim.arrays.program_tensor import Tensor
from spmdsim.arrays.symbols import ops
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import as_array, number_type
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from spmdsim.core import Layout
    from spmdsim.worlds.base import World


def asarray(
    obj: Any,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    copy: bool | None = None,
    layout: Layout | None = None,
    world: World | None = None,
) -> Tensor:
    """Create a tensor from a number, nested lists, an array (which every rank has) or a tensor.

    Args:
        obj: the values; tensors may stand in the lists.
        dtype: another element type.
        device: ``"cpu"``.
        copy: False refuses what cannot be done without copying. Tensors are values, and share what is equal.
        layout: where the pieces go; a tensor stays where it is, and all ranks have all of what is none, if left out.
        world: the world.

    Raises:
        InputError: ``copy=False``, and a copy would be needed.

    >>> from spmdsim import Mesh
    >>> asarray([1, 2, 3], layout=Mesh((2,), ("x",))("x")).local(0)
    array([1, 2])
    """
    check_device(device)
    kind = None if dtype is None else number_type(dtype, "a tensor cannot have")
    # numpy's float64 equals None.
    typed = isinstance(obj, Tensor) and (kind is None or kind == obj.dtype)
    if copy is False and not (typed and layout in (None, obj.layout)):
        raise InputError(
            "asarray takes its pieces out of what it is given: without a copy it takes tensors only"
        )
    if isinstance(obj, Tensor):
        moved = obj if layout is None else obj.to(layout)
        # In place, a tensor becomes another value; a copy does not.
        if typed:
            return moved if moved is not obj or not copy else _again(obj)
        return ops.cast(moved, obj.dtype if kind is None else kind)
    if isinstance(obj, (list, tuple)) and (like := _tensor_in(obj)) is not None:
        return asarray(_stacked(obj, like), dtype=kind, layout=layout)
    array = as_array(obj)
    if array.dtype == object:
        raise UsageTypeError(
            f"asarray takes numbers, lists of them, arrays and tensors, but got {type(obj).__name__}"
        )
    layout, world = with_default_layout(layout, world, array.ndim)
    return Tensor.from_global(array, layout, world, dtype=kind)


def _tensor_in(values: Any) -> Tensor | None:
    """The first tensor in nested lists."""
    parts = values if isinstance(values, (list, tuple)) else ()
    tensors = (tensor for part in parts if (tensor := _tensor_in(part)) is not None)
    return values if isinstance(values, Tensor) else next(tensors, None)


def _stacked(values: Any, like: Tensor) -> Tensor:
    """Nested lists with tensors among them as one."""
    if not isinstance(values, (list, tuple)):
        return asarray(values, world=like.world)
    return ops.stack([_stacked(part, like) for part in values])


def _again(x: Tensor) -> Tensor:
    """The same values as another tensor; a copy of a leaf hands gradients on to it."""
    if x.requires_grad and x.node is None:
        return ops.identity(x)
    same = Tensor(x.world, x.meta, x.held, x.requires_grad, x.name, x.origin)
    same.node, same.output = x.node, x.output
    return same


@explained
def from_dlpack(
    x: Any,
    /,
    *,
    device: str | None = None,
    copy: bool | None = None,
    layout: Layout | None = None,
    world: World | None = None,
) -> Tensor:
    """Create a tensor from the array of another library, which every rank has.

    Args:
        x: an object with ``__dlpack__``, such as an array of another library; or a tensor.
        device: ``"cpu"`` or None, for the array API standard.
        copy: for a tensor as in :func:`asarray`; other values may be copied in any case.
        layout: layout of the tensor; by default a tensor keeps its own, every rank owns all of an array.
        world: the world of the ranks; by default :func:`spmdsim.world`.

    Raises:
        InputError: a negative size, an element type that is no number, another device.
        LayoutError: a layout for another number of dimensions.

    >>> from spmdsim import Mesh
    >>> from_dlpack(np.arange(4), layout=Mesh((2,), ("x",))("x")).local(1)
    array([2, 3])
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy, layout=layout)
    check_device(device)
    return asarray(np.from_dlpack(x), layout=layout, world=world)
