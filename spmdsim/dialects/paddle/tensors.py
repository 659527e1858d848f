"""Tensors of Paddle's programs: whole on every rank until an operator takes its shard, with ``stop_gradient``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdsim import arrays as ours
from spmdsim.core import Layout, Mesh, Partial, Placement, Shard
from spmdsim.core.tensor import Meta, MoveNode
from spmdsim.dialects.host import (
    TYPE_NAMES,
    equal_on_all_ranks,
    format_nested,
    keep_ends,
    read_known_values,
    to_host,
)
from spmdsim.dialects.missing import NotCovered, expand_words, not_covered, refuse
from spmdsim.dialects.paddle.process_mesh import ProcessMesh
from spmdsim.dialects.session import current_world
from spmdsim.dialects.torch import with_words
from spmdsim.errors import UsageTypeError
from spmdsim.layout.element_type import has_gradient
from spmdsim.worlds.base import World

#: Element types by their names.
TYPES = {name: np.dtype(name) for name in TYPE_NAMES}
#: Unsupported methods -> suggestion, if no similar name exists.
NEAREST = expand_words({
    "register_hook": "grad after backward()",
    "set_value": "paddle.assign: tensors are values, parameters have set_value",
})  # fmt: skip


class Shape(tuple[int, ...]):
    """Shape that equals, and prints like, a list, which Paddle's shapes are."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Any) -> Any:
        return [*self, *other] if isinstance(other, list) else (*self, *other)

    def __radd__(self, other: Any) -> Any:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr([*self])


class Place:
    """Device of the ranks: always their CPUs."""

    def __init__(self, id: int = 0) -> None: ...

    def __repr__(self) -> str:
        return "Place(cpu)"


CPUPlace = CUDAPlace = CUDAPinnedPlace = Place


class Tensor(ours.Tensor):
    """Tensor with Paddle's methods.

    Attributes:
        key: number of the value in a recorded program, or None.
        owner: parameter whose value it is, or None.
        is_rank_shard: True if Paddle's program sees the rank's own shard alone, as after ``split(...,
            gather_out=False)``. ``shape``, ``size``, ``numpy()`` and ``tolist()`` are then the shard's (in lock step
            the first rank's). Layouts, ``full()`` and operators refer to the global tensor.
    """

    __slots__ = ("is_rank_shard", "key", "owner")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.key: int | None = None
        self.owner: Any = None
        self.is_rank_shard = False

    @property
    def stop_gradient(self) -> bool:
        """True if no gradient is computed for the tensor or through it; True also drops its history."""
        return not self.requires_grad

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        """Set the flag, also of the parameter whose value this is.

        Args:
            value: True drops the tensor's history; False makes it collect a gradient.
        """
        if value:
            self.node = None
        self.requires_grad = not value
        if self.owner is not None:
            self.owner.trainable = not value

    @property
    def shape(self) -> Shape:
        """Global shape; the shape of the first rank's shard if :attr:`is_rank_shard`."""
        meta = self.meta
        return Shape(
            meta.layout.local_shape(meta.shape, self.world.ranks[0]) if self.is_rank_shard else meta.shape
        )

    size = property(lambda self: math.prod(self.shape), doc="Number of elements.")

    def numpy(self) -> np.ndarray:
        """Return a copy of the whole tensor as an array; all ranks must call it.

        If :attr:`is_rank_shard`, return a copy of the first rank's shard, without communication.
        """
        return np.array(self.shards[0]) if self.is_rank_shard else self.full()

    is_leaf = property(lambda self: self.node is None, doc="True if no recorded operator computed it.")
    place = property(lambda self: Place(), doc="``Place(cpu)``.")
    persistable = property(lambda self: False, doc="False: it is no parameter.")

    def backward(self, grad_tensor: Any = None, retain_graph: bool = False) -> None:
        """Compute the gradients of all tensors that this one depends on, into ``grad``.

        All ranks must call it.

        Args:
            grad_tensor: gradient of this tensor; None for ones.
            retain_graph: keep the history for another call.

        Raises:
            UsageTypeError: If ``stop_gradient`` is True.
        """
        check_needs_gradient(self, "backward()")
        if grad_tensor is None and self.size != 1:
            grad_tensor = np.ones(self.shape, self.dtype)
        gradient = None if grad_tensor is None else as_replicated(grad_tensor, self.layout.mesh)
        super().backward(gradient, retain_graph=retain_graph)

    def gradient(self) -> np.ndarray | None:
        """Return the gradient as an array; None before ``backward()``."""
        return None if self.grad is None else self.grad.full()

    def clear_gradient(self, set_to_zero: bool = True) -> None:
        """Drop the gradient; ``set_to_zero`` is ignored."""
        self.grad = None

    clear_grad = clear_gradient

    def detach(self) -> Tensor:
        """Return the values without a history."""
        detached = with_methods(super().detach(), fresh=True)
        detached.is_rank_shard = self.is_rank_shard
        return detached

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the values as an array, without communication.

        Raises UsageTypeError if ranks own only shards.
        """
        text = "a tensor of which ranks hold parts is no array by itself; call numpy() on all ranks"
        refuse({text: has_shards(self.layout)}, UsageTypeError)
        return np.array(self.full(), dtype)

    @property
    def process_mesh(self) -> ProcessMesh:
        """Mesh of the tensor."""
        mesh = self.layout.mesh
        return ProcessMesh(shape=mesh.shape, process_ids=mesh.rank_list, dim_names=mesh.axes)

    placements = property(
        lambda self: [*map(with_words, self.layout.placements)], doc="Placements, one per mesh dim."
    )
    _local_shape = property(lambda self: list(self.shards[0].shape), doc="Shape of the first rank's shard.")

    def __repr__(self) -> str:
        """Return the values that this process has, in Paddle's form."""
        return _format_tensor(self) if self.world.has_data else super().__repr__()

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a tensor has no attribute {name!r}")
        raise NotCovered(str(not_covered("spmdsim.dialects.paddle.Tensor", name, dir(type(self)), NEAREST)))


#: Methods with trivial results: every rank computes on its CPU, and all tensors are contiguous and have layouts.
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("cpu", "cuda", "pin_memory", "contiguous"), lambda self: self),
    **dict.fromkeys(("is_contiguous", "is_dist"), lambda self: True),
    "dim": lambda self: self.ndim,
    "element_size": lambda self: int(self.dtype.itemsize),
    "tolist": lambda self: self.numpy().tolist(),
    "_local_value": lambda self: to_host(self.shards[0]),
}
for _name, _word in _WORDS.items():
    setattr(Tensor, _name, _word)


def check_needs_gradient(x: Any, what: str) -> None:
    """Raise UsageTypeError if a backward pass starts from a tensor with ``stop_gradient=True``.

    ``what`` names the call in the message.
    """
    refuse({
        f"{what} starts from a tensor with stop_gradient=True: nothing that it was computed from needs a gradient; "
        "nearest: a parameter, or to_tensor(..., stop_gradient=False)": not x.requires_grad
    }, UsageTypeError)  # fmt: skip


def check_has_gradient(dtype: np.dtype, stopped: bool) -> None:
    """Raise UsageTypeError if a gradient of integers or bools is asked for (``stopped`` is False)."""
    text = f"a tensor of {dtype} has no gradient, so stop_gradient must be True; nearest: dtype='float32'"
    refuse({text: not stopped and not has_gradient(dtype)}, UsageTypeError)


def with_methods(x: Any, *, fresh: bool = False) -> Tensor:
    """Return our tensor as Paddle's class, with its history; no copy of the data.

    A tensor of this class is returned itself unless ``fresh``. Otherwise the result is a new object. If ``x`` is a leaf
    that requires a gradient, gradients of the new object pass back to it, unless ``fresh``.

    Args:
        x: the tensor; it is not changed.
        fresh: always return a new object, to which a leaf ``x`` is not connected.
    """
    if type(x) is Tensor and not fresh:
        return x
    tensor = Tensor.from_tensor(x, x.requires_grad)
    tensor.node, tensor.output = x.node, x.output
    if x.requires_grad and x.node is None and not fresh:
        tensor.node = MoveNode(x)
    return tensor


def shape_only(x: ours.Tensor, world: World) -> Tensor:
    """Return the tensor without data, in ``world``."""
    shards = [world.empty(x.layout.local_shape(x.shape, rank), x.meta.storage_dtype) for rank in world.ranks]
    shapes = Tensor(world, x.meta, shards, x.requires_grad, x.name)
    shapes.is_rank_shard = getattr(x, "is_rank_shard", False)
    return shapes


def has_shards(layout: Layout) -> bool:
    """Return True if ranks own shards of the tensor or addends of it, not all of it each."""
    return bool(layout.partial) or any(parts > 1 for parts in layout.cuts)


def _is_whole(x: ours.Tensor) -> bool:
    """Return True if every rank of the world has all of the tensor."""
    return x.layout.mesh.size == x.world.size and not has_shards(x.layout)


def as_replicated(x: Any, mesh: Mesh | None = None, *, requires_grad: bool = False) -> Any:
    """Return an array, a parameter or a tensor as Paddle's tensor.

    * An array, number or list becomes replicated. It must be equal on all ranks, and all ranks must call it; see
      `equal_on_all_ranks`.
    * A tensor that every rank has in full moves to ``mesh``, without communication. If it belongs to another world and
      needs no gradient, its values move to the current world.
    * A split or partial tensor keeps its layout.
    * A parameter is treated like its tensor.

    Args:
        x: array, number, list, parameter or tensor.
        mesh: mesh of the result. None: a tensor keeps its own, and an array gets a mesh of one axis over all ranks. A
            tensor keeps its mesh, too, if ``mesh`` has not all ranks.
        requires_grad: True to collect a gradient of an array; integers and bools have none.

    Raises:
        InputError: If the ranks have different arrays.
        UsageTypeError: If the array has no numbers.
    """
    x = x.value if hasattr(x, "as_operand") else x
    world = current_world()
    if not isinstance(x, ours.Tensor):
        array = equal_on_all_ranks(
            to_host(x) if isinstance(x, (list, tuple, bool, int, float, complex)) else x, world
        )
        layout = Layout.replicated(mesh or Mesh((world.size,), ("rank",)), array.ndim)
        tracked = requires_grad and has_gradient(array.dtype)
        return Tensor.from_global(array, layout, world, requires_grad=tracked)
    if not _is_whole(x):
        return with_methods(x)
    if x.world is not world and x.world.has_data and world.has_data and not x.requires_grad:
        return as_replicated(np.asarray(x.stored_shards[0]), mesh)  # made before the world was entered
    if mesh is None or x.layout.mesh == mesh or mesh.size != x.world.size:
        return with_methods(x)
    meta = Meta.of(Layout.replicated(mesh, x.ndim), x.shape, x.dtype)
    moved = Tensor(x.world, meta, x.stored_shards, x.requires_grad, x.name, x.provenance_number)
    moved.node = MoveNode(x) if x.requires_grad else None
    return moved


def to_one_mesh(values: list[Any]) -> list[Any]:
    """Return the operands of one operator as Paddle's tensors on one mesh, where possible.

    Arrays and replicated tensors move to the mesh of the first tensor that is split; without one, to the mesh of the
    first tensor. Values that are no tensors or arrays stay.
    """
    tensors = [x for x in values if isinstance(x, ours.Tensor)]
    meshes = [x.layout.mesh for x in sorted(tensors, key=_is_whole)]  # split tensors come first
    mesh = meshes[0] if meshes else None
    return [as_replicated(x, mesh) if isinstance(x, (ours.Tensor, np.ndarray)) else x for x in values]


_PREFIX = "Tensor("
_PRECISION, _THRESHOLD, _EDGEITEMS, _WIDTH = 8, 1000, 3, 80


def _format_tensor(x: Any) -> str:
    """Return the printed text of a tensor in Paddle's form.

    The form is that of ``python/paddle/tensor/to_string.py``. Numbers have eight digits; tensors of more than 1,000
    elements are summarised. Unlike in Paddle, a rank shows its own shard of a split tensor, so that one rank alone may
    print: nothing is communicated.

    Args:
        x: the tensor.
    """
    place_text = f"Place(cpu), stop_gradient={x.stop_gradient}"
    header = f"{_PREFIX}shape={list(x.shape)}, dtype={x.dtype.name}, place={place_text},"
    values, which = read_known_values(x)
    if x.is_rank_shard:
        values, header = x.shards[0], f"{header} shard of rank {x.world.ranks[0]} of {list(x.meta.shape)},"
    elif has_shards(x.layout):
        mesh = x.layout.mesh
        names, kinds = ", ".join(mesh.axes), ", ".join(map(_format_placement, x.layout.placements))
        header += f" process_mesh={{shape: {list(mesh.shape)}, process_ids: {list(mesh.rank_list)}, dim_names: [{names}]}},"
        header += f" placements=[{kinds}], " + (f"{which}, DenseTensor=" if which else "GlobalDenseTensor=")
    return f"{header}\n{' ' * len(_PREFIX)}{_format_numbers(values)})"


def _format_placement(placement: Placement) -> str:
    """Return the text of a placement."""
    if isinstance(placement, Shard):
        return f"Shard(dim={placement.dim})"
    return f"Partial(reduce_type={placement.op})" if isinstance(placement, Partial) else "Replicate()"


def _format_numbers(array: np.ndarray) -> str:
    """Return numbers in nested brackets in Paddle's form, all of one width.

    * Floats have eight digits; a whole number ends in a point, such as ``1.``.
    * Numbers are filled up with blanks at the end. If a number is negative, non-negative numbers that are shorter than
      the longest have a blank in front, so that digits align.
    * Of more than 1,000 numbers, dims longer than 6 show three elements at each end.
    * Lines end before column 80; the text begins in column 7, after "Tensor(".

    Args:
        array: the numbers. Without dims, the text is the number alone.

    >>> print(_format_numbers(np.float32([1, -2.5])))
    [ 1.        , -2.50000000]
    """
    array, cut = keep_ends(array, _EDGEITEMS, _THRESHOLD)
    width = max((len(_format_number(value)) for value in array.flat), default=0)
    signed = bool((array < 0).any())

    def format_number(value: Any) -> str:
        """Format one number."""
        text = _format_number(value)
        if width <= len(text):
            return text
        return f" {text.ljust(width - 1)}" if signed and not value < 0 else text.ljust(width)

    return format_nested(
        array, cut, len(_PREFIX), format_number, lambda used: (_WIDTH - used) // (width + 2), _EDGEITEMS
    )


def _format_number(value: Any) -> str:
    """Format one number: floats with eight digits, whole ones with a point at the end."""
    if value.dtype.kind != "f":
        return f"{value}"
    return f"{value:.0f}." if np.ceil(value) == value else f"{value:.{_PRECISION}f}"
