"""Tensors as Paddle's programs have them: whole on every rank until an operator takes its piece, with ``stop_gradient``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdsim import arrays as ours
from spmdsim.core import Layout, Mesh, Partial, Placement, Shard
from spmdsim.core.tape import MoveNode
from spmdsim.core.tensor import Meta
from spmdsim.dialects.host import TYPE_NAMES, ends, equal_on_all_ranks, host, known_values, nested
from spmdsim.dialects.missing import NotCovered, expand_words, not_covered, refuse
from spmdsim.dialects.paddle.process_mesh import ProcessMesh
from spmdsim.dialects.session import current_world
from spmdsim.dialects.torch import with_words
from spmdsim.errors import UsageTypeError
from spmdsim.layout.element_type import has_gradient
from spmdsim.worlds.base import World

#: Element types by their names.
TYPES = {name: np.dtype(name) for name in TYPE_NAMES}
#: What to use instead of a method that resembles none here.
NEAREST = expand_words({
    "register_hook": "grad after backward()",
    "set_value": "paddle.assign: tensors are values, parameters have set_value",
})  # fmt: skip


class Shape(tuple[int, ...]):
    """A shape that equals and prints like the list that Paddle's shapes are."""

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
    """Where ranks compute: on their CPUs, whatever is asked for."""

    def __init__(self, id: int = 0) -> None: ...

    def __repr__(self) -> str:
        return "Place(cpu)"


CPUPlace = CUDAPlace = CUDAPinnedPlace = Place


class Tensor(ours.Tensor):
    """A tensor with Paddle's words; maybe a recorded program's value with a ``key``, or that of a parameter, its ``owner``.

    Attributes:
        is_rank_shard: whether Paddle's program sees the rank's own shard alone, as after ``split(..., gather_out=False)``.
            ``shape``, ``size``, ``numpy()`` and ``tolist()`` are then the shard's (in lock step the first rank's). Layouts,
            ``full()`` and operators are the global tensor's.
    """

    __slots__ = ("is_rank_shard", "key", "owner")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.key: int | None = None
        self.owner: Any = None
        self.is_rank_shard = False

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient is computed for it, nor through it. Setting it cuts the tensor from what computed it."""
        return not self.requires_grad

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        if value:
            self.node = None
        self.requires_grad = not value
        if self.owner is not None:
            self.owner.trainable = not value

    @property
    def shape(self) -> Shape:
        """Global shape; of a rank's shard the local one."""
        meta = self.meta
        return Shape(
            meta.layout.local_shape(meta.shape, self.world.ranks[0]) if self.is_rank_shard else meta.shape
        )

    size = property(lambda self: math.prod(self.shape), doc="Number of elements.")

    def numpy(self) -> np.ndarray:
        """The whole tensor as an array of the caller's own, which all ranks must ask for; of a rank's shard that shard."""
        return np.array(self.shards[0]) if self.is_rank_shard else self.full()

    is_leaf = property(lambda self: self.node is None, doc="Whether nothing with a gradient made it.")
    place = property(lambda self: Place(), doc="``Place(cpu)``.")
    persistable = property(lambda self: False, doc="It is no parameter.")

    def backward(self, grad_tensor: Any = None, retain_graph: bool = False) -> None:
        """Gradients of all that this was computed from, into ``grad``; every element counts with 1 unless given."""
        check_needs_gradient(self, "backward()")
        if grad_tensor is None and self.size != 1:
            grad_tensor = np.ones(self.shape, self.dtype)
        gradient = None if grad_tensor is None else everywhere(grad_tensor, self.layout.mesh)
        super().backward(gradient, retain_graph=retain_graph)

    def gradient(self) -> np.ndarray | None:
        """The gradient as an array; None before ``backward()``."""
        return None if self.grad is None else self.grad.full()

    def clear_gradient(self, set_to_zero: bool = True) -> None:
        """Forget the gradient."""
        self.grad = None

    clear_grad = clear_gradient

    def detach(self) -> Tensor:
        """The same values without a history."""
        detached = dressed(super().detach(), fresh=True)
        detached.is_rank_shard = self.is_rank_shard
        return detached

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """An array, where every rank holds all of it: nothing is communicated."""
        text = "a tensor of which ranks hold parts is no array by itself; call numpy() on all ranks"
        refuse({text: has_shards(self.layout)}, UsageTypeError)
        return np.array(self.full(), dtype)

    @property
    def process_mesh(self) -> ProcessMesh:
        """The mesh that it is laid out on."""
        mesh = self.layout.mesh
        return ProcessMesh(shape=mesh.shape, process_ids=mesh.rank_list, dim_names=mesh.axes)

    placements = property(lambda self: [*map(with_words, self.layout.placements)], doc="One per mesh dim.")
    _local_shape = property(lambda self: list(self.shards[0].shape), doc="The (first) rank's piece's.")

    def __repr__(self) -> str:
        """Its values, as far as this process has them."""
        return _shown(self) if self.world.has_data else super().__repr__()

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a tensor has no attribute {name!r}")
        raise NotCovered(str(not_covered("spmdsim.dialects.paddle.Tensor", name, dir(type(self)), NEAREST)))


#: Words that ask for little. (Every rank computes on its CPU, where all is contiguous, and all tensors are laid out.)
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("cpu", "cuda", "pin_memory", "contiguous"), lambda self: self),
    **dict.fromkeys(("is_contiguous", "is_dist"), lambda self: True),
    "dim": lambda self: self.ndim,
    "element_size": lambda self: int(self.dtype.itemsize),
    "tolist": lambda self: self.numpy().tolist(),
    "_local_value": lambda self: host(self.shards[0]),
}
for _name, _word in _WORDS.items():
    setattr(Tensor, _name, _word)


def check_needs_gradient(x: Any, what: str) -> None:
    """Refuse to go back from a tensor with ``stop_gradient=True``."""
    refuse({
        f"{what} starts from a tensor with stop_gradient=True: nothing that it was computed from needs a gradient; "
        "nearest: a parameter, or to_tensor(..., stop_gradient=False)": not x.requires_grad
    }, UsageTypeError)  # fmt: skip


def check_has_gradient(dtype: np.dtype, stopped: bool) -> None:
    """Refuse a gradient of whole numbers and truth values."""
    text = f"a tensor of {dtype} has no gradient, so stop_gradient must be True; nearest: dtype='float32'"
    refuse({text: not stopped and not has_gradient(dtype)}, UsageTypeError)


def dressed(x: Any, *, fresh: bool = False) -> Tensor:
    """A tensor of ours with Paddle's words; a ``fresh`` one is a leaf that nobody else has."""
    if type(x) is Tensor and not fresh:
        return x
    tensor = Tensor(x.world, x.meta, x.held, x.requires_grad, x.name, x.origin)
    tensor.node, tensor.output = x.node, x.output
    if x.requires_grad and x.node is None and not fresh:
        tensor.node = MoveNode(x)
    return tensor


def shape_only(x: ours.Tensor, world: World) -> Tensor:
    """The same tensor without its data."""
    shards = [world.empty(x.layout.local_shape(x.shape, rank), x.meta.held) for rank in world.ranks]
    shapes = Tensor(world, x.meta, shards, x.requires_grad, x.name)
    shapes.is_rank_shard = getattr(x, "is_rank_shard", False)
    return shapes


def has_shards(layout: Layout) -> bool:
    """Return True if ranks own shards of the tensor or addends of it, not all of it each."""
    return bool(layout.partial) or any(parts > 1 for parts in layout.cuts)


def _is_whole(x: ours.Tensor) -> bool:
    return x.layout.mesh.size == x.world.size and not has_shards(x.layout)


def everywhere(x: Any, mesh: Mesh | None = None, *, requires_grad: bool = False) -> Any:
    """An array as a tensor that every rank has whole; a tensor as it is, on ``mesh`` if every rank has it whole."""
    x = x.value if hasattr(x, "as_operand") else x
    world = current_world()
    if not isinstance(x, ours.Tensor):
        array = equal_on_all_ranks(
            host(x) if isinstance(x, (list, tuple, bool, int, float, complex)) else x, world
        )
        layout = Layout.replicated(mesh or Mesh((world.size,), ("rank",)), array.ndim)
        tracked = requires_grad and has_gradient(array.dtype)
        return Tensor.from_global(array, layout, world, requires_grad=tracked)
    if not _is_whole(x):
        return dressed(x)
    if x.world is not world and x.world.has_data and world.has_data and not x.requires_grad:
        return everywhere(np.asarray(x.held[0]), mesh)  # made before the world was entered
    if mesh is None or x.layout.mesh == mesh or mesh.size != x.world.size:
        return dressed(x)
    meta = Meta.of(Layout.replicated(mesh, x.ndim), x.shape, x.dtype)
    moved = Tensor(x.world, meta, x.held, x.requires_grad, x.name, x.origin)
    moved.node = MoveNode(x) if x.requires_grad else None
    return moved


def together(values: list[Any]) -> list[Any]:
    """Operands of one operator: those that every rank has whole come to the mesh of those that are split."""
    tensors = [x for x in values if isinstance(x, ours.Tensor)]
    meshes = [x.layout.mesh for x in sorted(tensors, key=_is_whole)]
    mesh = meshes[0] if meshes else None
    return [everywhere(x, mesh) if isinstance(x, (ours.Tensor, np.ndarray)) else x for x in values]


_PREFIX = "Tensor("
_PRECISION, _THRESHOLD, _EDGEITEMS, _WIDTH = 8, 1000, 3, 80


def _shown(x: Any) -> str:
    """A tensor as ``python/paddle/tensor/to_string.py`` prints it: eight digits, summarised above 1,000 elements.

    Of a tensor of which ranks hold parts, Paddle gathers the values; here a rank says which it has, so that one alone may
    print.
    """
    place = f"Place(cpu), stop_gradient={x.stop_gradient}"
    told = f"{_PREFIX}shape={list(x.shape)}, dtype={x.dtype.name}, place={place},"
    values, which = known_values(x)
    if x.is_rank_shard:
        values, told = x.shards[0], f"{told} shard of rank {x.world.ranks[0]} of {list(x.meta.shape)},"
    elif has_shards(x.layout):
        mesh = x.layout.mesh
        names, kinds = ", ".join(mesh.axes), ", ".join(map(_placement, x.layout.placements))
        told += f" process_mesh={{shape: {list(mesh.shape)}, process_ids: {list(mesh.rank_list)}, dim_names: [{names}]}},"
        told += f" placements=[{kinds}], " + (f"{which}, DenseTensor=" if which else "GlobalDenseTensor=")
    return f"{told}\n{' ' * len(_PREFIX)}{_numbers(values)})"


def _placement(one: Placement) -> str:
    if isinstance(one, Shard):
        return f"Shard(dim={one.dim})"
    return f"Partial(reduce_type={one.op})" if isinstance(one, Partial) else "Replicate()"


def _numbers(array: np.ndarray) -> str:
    array, cut = ends(array, _EDGEITEMS, _THRESHOLD)
    width, signed = max((len(_number(value)) for value in array.flat), default=0), bool((array < 0).any())

    def written(value: Any) -> str:
        text = _number(value)
        if width <= len(text):
            return text
        return f" {text.ljust(width - 1)}" if signed and not value < 0 else text.ljust(width)

    return nested(array, cut, len(_PREFIX), written, lambda used: (_WIDTH - used) // (width + 2), _EDGEITEMS)


def _number(value: Any) -> str:
    if value.dtype.kind != "f":
        return f"{value}"
    return f"{value:.0f}." if np.ceil(value) == value else f"{value:.{_PRECISION}f}"
