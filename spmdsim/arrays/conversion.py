"""Conversion of numbers, lists and arrays, also of other libraries, to tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.creation import check_device, choose_layout_and_world
from spmdsim.arrays.program_tensor import Tensor
from spmdsim.arrays.symbols import ops
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import as_array, number_type
from spmdsim.reading import one_line
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from spmdsim.core import Layout
    from spmdsim.worlds.base import World


@explained
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
        obj: the values; nested lists may contain tensors. These are stacked on all ranks, by communication if needed.
        dtype: element type of the result; None: that of the values.
        device: ``"cpu"`` or None.
        copy: what happens to a tensor that already has the wanted dtype and layout, and to other values:

            - None: this tensor itself is returned; everything else is copied.
            - True: everything is copied. The copy of this tensor may share its memory, which never changes.
            - False: this tensor itself is returned; everything else raises an error. Numbers, lists and arrays always
              need a copy.
        layout: layout of the result; None: a tensor keeps its own, every rank owns all of other values.
        world: the world of the ranks; by default :func:`spmdsim.world`. A tensor, or a list with tensors, stays in
            the tensors' world.

    Raises:
        InputError: If ``copy`` is False and a copy is needed, the element type is no number, or the device is
            unknown.
        UsageTypeError: If the values are no numbers.
        LayoutError: If the layout has another number of dimensions.
        WorldError: If the ranks pass different values.

    >>> from spmdsim import Mesh
    >>> asarray([1, 2, 3], layout=Mesh((2,), ("x",))("x")).local(0)
    array([1, 2])
    """
    check_device(device)
    kind = None if dtype is None else number_type(dtype, "a tensor cannot have")
    # Compare with None first, because np.dtype("float64") equals None.
    keeps_type = isinstance(obj, Tensor) and (kind is None or kind == obj.dtype)
    if copy is False and not (keeps_type and layout in (None, obj.layout)):
        raise InputError(
            "asarray: obj must be a tensor that already has dtype and layout if copy is False, got "
            f"{one_line(repr(obj), 60)}; pass copy=None"
        )
    if isinstance(obj, Tensor):
        result = obj if layout is None else obj.to(layout)
        # A tensor may get new values in place, which must not change its copy: return another object.
        if keeps_type:
            return result if result is not obj or not copy else _copy_tensor(obj)
        return ops.cast(result, obj.dtype if kind is None else kind)
    if isinstance(obj, (list, tuple)) and (like := _find_tensor(obj)) is not None:
        return asarray(_stack_nested(obj, like), dtype=kind, layout=layout)
    array = as_array(obj)
    if array.dtype == object:
        raise UsageTypeError(
            f"asarray: obj must be a number, a list of numbers, an array or a tensor, got {type(obj).__name__}"
        )
    layout, world = choose_layout_and_world(layout, world, array.ndim)
    return Tensor.from_global(array, layout, world, dtype=kind)


def _find_tensor(values: Any) -> Tensor | None:
    """Return the first tensor in nested lists, or None."""
    items = values if isinstance(values, (list, tuple)) else ()
    tensors = (tensor for item in items if (tensor := _find_tensor(item)) is not None)
    return values if isinstance(values, Tensor) else next(tensors, None)


def _stack_nested(values: Any, like: Tensor) -> Tensor:
    """Stack nested lists that contain tensors; ``like`` determines the world of other values."""
    if not isinstance(values, (list, tuple)):
        return asarray(values, world=like.world)
    return ops.stack([_stack_nested(item, like) for item in values])


def _copy_tensor(x: Tensor) -> Tensor:
    """Return a new tensor object with equal values and layout; the values may share memory.

    A tensor that requires a gradient and was not computed by an operator (a leaf) goes through ``identity``: its
    gradient flows through the copy. The copy of any other tensor takes over the recorded operator of ``x``.
    """
    if x.requires_grad and x.node is None:
        return ops.identity(x)
    copy = Tensor.from_tensor(x, x.requires_grad)
    copy.node, copy.output = x.node, x.output
    return copy


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
    """Create a tensor from an array of another library, which every rank has.

    Args:
        x: an object with ``__dlpack__``, such as an array of another library; or a tensor.
        device: ``"cpu"`` or None, for the array API standard.
        copy: for a tensor as in :func:`asarray`; not used for other values, which may be copied in any case.
        layout: layout of the result; None: a tensor keeps its own, every rank owns all of an array.
        world: the world of the ranks; by default :func:`spmdsim.world`. A tensor stays in its own world.

    Raises:
        InputError: If the element type is no number, or the device is unknown; or ``copy`` is False and a tensor
            needs a copy.
        LayoutError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh
    >>> from_dlpack(np.arange(4), layout=Mesh((2,), ("x",))("x")).local(1)
    array([2, 3])
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy, layout=layout)
    check_device(device)
    return asarray(np.from_dlpack(x), layout=layout, world=world)
