"""OneFlow's local and global tensors, and conversions between them.

A local tensor is the array of one rank; if this process plays several ranks, one array per rank. Operators such as
``+`` are numpy's on every rank's array, or our operators of the same names on global tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import getitem
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

# The package's own lookup of `placements` would load its operators, which need this module.
import spmdsim.dialects.oneflow.placements as placements
from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays import ops as core
from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.core.tape import OpNode
from spmdsim.dialects.layouts import GradientMove
from spmdsim.dialects.missing import expand_words, not_covered, refuse
from spmdsim.dialects.oneflow import OF_TENSORS
from spmdsim.dialects.oneflow.dtypes import dtype as ElementType
from spmdsim.dialects.oneflow.placements import device
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.printing import format_array, without_values
from spmdsim.dialects.oneflow.rank_agreement import (
    check_placement,
    check_same,
    list_call_facts,
    report_different_code,
    report_unsupported_transition,
)
from spmdsim.dialects.oneflow.sbp import TO_GLOBAL, OneFlowError
from spmdsim.dialects.session import current_world, is_recording
from spmdsim.dialects.table import add_in_place_operators
from spmdsim.errors import UsageTypeError

_NEAREST = expand_words(OF_TENSORS)


class Size(tuple[int, ...]):
    """Shape with OneFlow's text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"oneflow.Size({list(self)})"


def find_method(name: str) -> Callable[..., Any]:
    """Return a method of tensors that the table of operators defines, as a function of the tensor.

    Raises:
        NotCovered: (an AttributeError) If no such method exists; the text has the nearest name. A name with an
            underscore in front raises a plain AttributeError.
    """
    from spmdsim.dialects.oneflow.operators import METHODS

    if name in METHODS:
        return METHODS[name]
    if name.startswith("_"):
        raise AttributeError(f"a tensor has no attribute {name!r}")
    raise not_covered("spmdsim.dialects.oneflow.Tensor", name, [*METHODS, *vars(GlobalTensor)], _NEAREST)


def _number_method(kind: type[Any]) -> Any:
    """Return a method that converts a tensor's only element to a Python number of type ``kind``."""
    return lambda self: kind(self.item())


class TensorSymbols(NDArrayOperatorsMixin):
    """Operators of local and global tensors: ``x + 1``, ``-x`` and ``x > 0`` call numpy's functions."""

    __hash__ = object.__hash__
    __bool__, __float__, __int__ = _number_method(bool), _number_method(float), _number_method(int)
    shape: Any
    item: Any
    permute: Any
    _apply: Any

    def __init_subclass__(cls) -> None:
        add_in_place_operators(cls)

    def __getattr__(self, name: str) -> Any:
        return partial(find_method(name), self)

    def __getitem__(self, key: Any) -> Any:
        return self._apply(getitem, self, key)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        return NotImplemented if method != "__call__" or options else self._apply(ufunc, *operands)

    def __format__(self, spec: str) -> str:
        """Format a tensor of one element like its number, as in OneFlow."""
        return format(self.item() if not self.ndim else str(self), spec)

    def __len__(self) -> int:
        if not self.ndim:
            raise UsageTypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    ndim = property(lambda self: len(self.shape), doc="Number of dims.")
    T = property(
        lambda self: self.permute(*range(self.ndim)[::-1]), doc="The tensor with dims in reverse order."
    )


class LocalTensor(TensorSymbols):
    """Local tensor: the arrays of the ranks that this process plays, one per rank.

    Args:
        shards: the arrays.
        world: the world; by default the current one.
        kind: device type.
    """

    is_global, is_local = False, True
    requires_grad, grad, is_leaf = False, None, True

    def __init__(self, shards: Sequence[np.ndarray], world: Any = None, kind: str = "cpu") -> None:
        self.world = world or current_world()
        self.shards = [np.asarray(shard) for shard in shards]
        self.kind = kind

    shape = property(lambda self: Size(self.shards[0].shape), doc="Shape of the first rank's array.")
    dtype = property(lambda self: ElementType(self.shards[0].dtype), doc="Element type.")
    device = property(lambda self: device(self.kind, self.world.ranks[0]), doc="Device of the first rank.")

    def to(self, where: Any) -> LocalTensor:
        """Return the tensor on another device type, which is only a name, or with another element type."""
        if isinstance(where, str | device):
            return LocalTensor(self.shards, self.world, device(where).type)
        return LocalTensor([x.astype(np.dtype(where)) for x in self.shards], self.world, self.kind)

    def clone(self) -> LocalTensor:
        """Return a copy."""
        return LocalTensor([x.copy() for x in self.shards], self.world, self.kind)

    def _apply(self, function: Any, *operands: Any) -> LocalTensor:
        """Apply a function to every rank's arrays. Raises OneFlowError if an operand is global."""
        text = "a local and a global tensor cannot be combined; nearest: to_global or to_local first"
        refuse({text: any(isinstance(x, GlobalTensor) for x in operands)}, OneFlowError)
        columns = [x.shards if isinstance(x, LocalTensor) else repeat(x) for x in operands]
        return LocalTensor([*map(function, *columns)], self.world, self.kind)

    def become(self, source: LocalTensor) -> LocalTensor:
        """Take the values of a tensor of equal shape, and return this tensor; its element type stays."""
        check_same_shape(self.shape, source.shape)
        self.shards = [new.astype(old.dtype) for new, old in zip(source.shards, self.shards)]
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("placement", "sbp"):
            raise OneFlowError(f"Only global tensors have {name!r}; nearest: {TO_GLOBAL}")
        return super().__getattr__(name)

    def requires_grad_(self, on: bool = True) -> LocalTensor:
        """Raise OneFlowError if a gradient is asked for: gradients need global tensors."""
        if on:
            raise OneFlowError(f"local tensors have no gradients here; nearest: {TO_GLOBAL}.requires_grad_()")
        return self

    def backward(self, gradient: Any = None) -> None:
        """Raise OneFlowError: a local tensor has no gradient."""
        raise OneFlowError(
            f"element 0 of tensors does not require grad and does not have a grad_fn; nearest: {TO_GLOBAL}.requires_grad_()"
        )

    def item(self) -> Any:
        """Return the only element of the array of the first rank that this process plays.

        Raises:
            OneFlowError: If the array has several elements.
        """
        if self.shards[0].size != 1:
            raise OneFlowError(
                f"item(): the tensor must have one element, got shape {self.shape}; reduce it first"
            )
        return self.shards[0].item()

    def numpy(self, rank: int | None = None) -> np.ndarray:
        """Return the array of a rank, by default of this process's first rank."""
        return self.shards[0 if rank is None else self.world.ranks.index(rank)]

    def to_local(self) -> LocalTensor:
        """Raise OneFlowError: the tensor is local already."""
        raise OneFlowError("Expected global tensor for to_local but got local tensor!")

    def to_global(
        self, placement: Any = None, sbp: Any = None, *, check_meta: bool = True, copy: bool = False
    ) -> GlobalTensor:
        """Return the global tensor whose shards are the local tensors; all ranks must call it.

        Values are communicated only along broadcast axes, from the first rank of each group. They also replace the
        other ranks' local values unless ``copy``.

        Args:
            placement: placement of the global tensor.
            sbp: split, broadcast or partial_sum, per mesh axis of the placement.
            check_meta: True to compare all ranks' shapes and types; False to assume equal shapes.
            copy: True to leave the local tensors unchanged.

        Raises:
            OneFlowError: (a RuntimeError) If placement or sbp is missing, ranks pass different ones, or local shapes do
                not fit.
        """
        text = "Converting a local tensor to global tensor must have placement and sbp parameters."
        refuse({text: placement is None or sbp is None}, OneFlowError)
        check_agreement(placement, sbp, self.world)
        layout = placements.layout(placement, sbp, self.shards[0].ndim)
        shape = self._logical_shape(placement, sbp, check_meta)
        sent = _broadcast_from_first(self, layout, shape)
        if not copy:
            self.shards = [
                new if rank in layout.mesh and new.shape == old.shape else old
                for rank, old, new in zip(self.world.ranks, self.shards, sent)
            ]
        return GlobalTensor(CoreTensor.from_local(sent, layout, self.world, shape=shape), placement)

    def _logical_shape(self, placement: Placement, sbp: Any, check_meta: bool) -> tuple[int, ...]:
        """Return the global shape that the ranks' local shapes imply.

        All ranks of the world must call it, also those outside the placement.

        Args:
            placement: device type, and ranks as a mesh.
            sbp: split, broadcast or partial_sum, per mesh axis of the placement.
            check_meta: True to join the shapes of all ranks of the placement; False to assume that all shapes equal the
                shape of its first rank.

        Raises:
            OneFlowError: If ``check_meta`` is set, and shapes do not fit together or types differ.
        """
        facts = self.world.gather_objects([(x.shape, x.dtype.name) for x in self.shards], "to_global")
        shapes, dtypes = zip(*(facts[rank] for rank in placement.order))
        if not check_meta:
            return placements.logical_shape(placement, sbp, shapes[0])
        if len(kinds := sorted({*dtypes})) > 1:
            raise OneFlowError(
                f"Expected all tensors on each rank to be the same dtype, but found at least two dtypes, {' and '.join(kinds)}"
            )
        return placements.logical_shape_of(placement, sbp, shapes)

    def __repr__(self) -> str:
        """Return the text of each rank's array; with its device if this process plays several ranks."""
        on = [f"{self.kind}:{rank}" for rank in self.world.ranks]
        texts = [
            format_array(x, [f"device='{d}'"] if self.kind != "cpu" else []) for d, x in zip(on, self.shards)
        ]
        return texts[0] if len(texts) == 1 else "\n".join(f"{d}: {text}" for d, text in zip(on, texts))


def check_agreement(placement: Placement, sbp: Any, world: Any, data: Any = None) -> None:
    """Raise OneFlowError if placement ranks are not running, or ranks pass different arguments.

    All ranks must call it, because they compare their arguments; see `facts_of` for ``data``.
    """
    placements.check_kind(placement)
    check_placement(placement, world)
    check_same(world, [list_call_facts(placement, sbp, data)] * len(world.ranks))


def check_one_placement(*placements: Placement | None, about: str = "") -> None:
    """Raise OneFlowError if a placement differs from the first one.

    Args:
        placements: the placements; None among the later ones stands for no placement and fits.
        about: end of the message, such as `` (parameter weight)``.
    """
    first = placements[0]
    for placement in placements[1:]:
        if placement not in (None, first):
            raise OneFlowError(
                f"Expected all tensors to be on the same placement, but found at least two placements, {first} and {placement}{about}!"
            )


def _broadcast_from_first(tensor: LocalTensor, layout: Layout, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return, per rank of this process, the array of the first rank along the broadcast axes.

    The broadcast axes are the replicated axes of ``layout`` with more than one rank. If there are none, the arrays are
    returned as they are, and nothing is communicated. Otherwise all ranks must call it. For example, if ranks 0 and 1
    own copies of one shard, both get the array of rank 0.

    The broadcast runs as an all_reduce ("sum", or "any" for bools) to which the other ranks contribute zeros. A rank
    outside of the mesh contributes an array without elements.

    Args:
        tensor: the local tensor.
        layout: layout of the global tensor whose shards the arrays are.
        shape: its global shape.
    """
    axes = tuple(a for a in layout.replicated_axes if layout.mesh.axis_size(a) > 1)
    if not axes:
        return list(tensor.shards)
    mesh, op = layout.mesh, "any" if tensor.dtype == bool else "sum"
    partial = Layout(mesh, layout.dims, [(axis, op) for axis in axes])
    first = {rank for rank in mesh.rank_list if mesh.group(rank, *axes)[0] == rank}
    contributions = [
        shard if rank in first else np.zeros(shard.shape if rank in mesh else (0,) * shard.ndim, shard.dtype)
        for rank, shard in zip(tensor.world.ranks, tensor.shards)
    ]
    step = Step("all_reduce", axes, partial, Layout(mesh, layout.dims), shape, op)
    return [*tensor.world.run(step, contributions)]


class GlobalTensor(TensorSymbols):
    """Global tensor with OneFlow's methods, which come from the table of operators."""

    is_global, is_local = True, False

    def __init__(self, value: CoreTensor, placement: Placement) -> None:
        self.value = value
        self.placement = placement

    def _apply(self, function: Any, *operands: Any) -> GlobalTensor:
        """Apply our operator with the name of a numpy function."""
        from spmdsim.dialects.oneflow.operators import lift_function

        return lift_function(getattr(core, function.__name__))(*operands)

    def become(self, source: GlobalTensor) -> GlobalTensor:
        """Take the values of a tensor of equal shape, in the present layout; return this tensor.

        All ranks must call it; see `update_value`. Results that were computed from the previous values keep them in
        their history.
        """
        self.value = update_value(self.value, source.value)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        raise UsageTypeError("tensors are values; nearest: flow.where(condition, value, x), a new one")

    def __iter__(self) -> Iterator[GlobalTensor]:
        return (self[k] for k in range(len(self)))

    shape = property(lambda self: Size(self.value.shape), doc="Global shape.")
    dtype = property(lambda self: ElementType(self.value.dtype), doc="Element type.")
    sbp = property(
        lambda self: placements.sbp_of(self.value.layout),
        doc="Sbp tuple, one entry per axis of the placement.",
    )
    requires_grad = property(lambda self: self.value.requires_grad, doc="True if it collects a gradient.")
    is_leaf = property(lambda self: self.value.node is None, doc="True if no recorded operator computed it.")

    @property
    def device(self) -> device:
        """Raise OneFlowError: a global tensor has a placement."""
        raise OneFlowError("Only local tensors have 'device'. Please use '.placement' for global tensors.")

    @property
    def grad(self) -> GlobalTensor | None:
        """Gradient after ``backward()``, or None."""
        gradient = self.value.grad
        return None if gradient is None else GlobalTensor(gradient, self.placement)

    def requires_grad_(self, on: bool = True) -> GlobalTensor:
        """Ask for a gradient, or not; return the tensor."""
        self.value.requires_grad = on
        return self

    def backward(self, gradient: GlobalTensor | None = None) -> None:
        """Compute the gradients of all tensors that this one depends on; all ranks must call it.

        Args:
            gradient: gradient of this tensor; None for 1 if it has one element.

        Raises:
            OneFlowError: (a RuntimeError) If no gradient is required, or the tensor has several elements and
                ``gradient`` is None.
        """
        if not self.value.requires_grad:
            raise OneFlowError("element 0 of tensors does not require grad and does not have a grad_fn")
        if gradient is None and self.value.size != 1:
            raise OneFlowError("Grad can be implicitly created only for scalar outputs")
        with report_different_code():
            self.value.backward(None if gradient is None else gradient.value)

    def to_global(
        self, placement: Placement | None = None, sbp: Any = None, *, grad_sbp: Any = None, check_meta: bool = False,
        copy: bool = False,
    ) -> GlobalTensor:  # fmt: skip
        """Return the tensor with another placement or sbp; all ranks must call it.

        If both are unchanged, the tensor itself is returned, unless ``copy`` is True or ``grad_sbp`` is given. For
        example, ``x.to_global(sbp=flow.sbp.broadcast)`` gathers a split tensor on its placement.

        Args:
            placement: new placement; None keeps it.
            sbp: new sbp; None keeps it.
            grad_sbp: sbp that the gradient gets in the backward pass; None for the library's choice.
            check_meta: not used: the interface has it.
            copy: always return a new tensor.

        Raises:
            OneFlowError: (a RuntimeError) If placement and sbp are None, ranks pass different ones, a dim is too short
                to be split, or the redistribution is not supported.
        """
        if placement is None and sbp is None:
            raise OneFlowError("Converting a global tensor needs a placement, an sbp or both.")
        where, value = placement or self.placement, self.value
        entries = self.sbp if sbp is None else sbp
        check_agreement(where, entries, value.world)
        layout = placements.layout(where, entries, value.ndim)
        if layout == value.layout and where == self.placement and grad_sbp is None and not copy:
            return self
        placements.check_sizes(where, entries, value.shape)
        with report_unsupported_transition(self, (where, entries)), report_different_code():
            moved = value.to(layout)
        if grad_sbp is not None and moved.requires_grad:
            before, moved = moved, CoreTensor.from_tensor(moved, requires_grad=True)
            moved.node = GradientMove(before, placements.layout(where, grad_sbp, value.ndim))
        return GlobalTensor(moved, where)

    def to(self, where: Any) -> GlobalTensor:
        """Return the tensor on devices of another type, or with another element type."""
        if isinstance(where, str | device):
            return self.to_global(Placement(device(where).type, self.placement.ranks))
        return cast(GlobalTensor, self.cast(np.dtype(where)))

    def to_local(self, *, copy: bool = False) -> LocalTensor:
        """Return each rank's shard as a local tensor; ``copy`` copies the shards."""
        return LocalTensor([x.copy() if copy else x for x in self.value.read_shards()], self.value.world)

    def numpy(self) -> np.ndarray:
        """Return the whole tensor, on every process; all ranks must call."""
        with report_different_code():
            return self.value.full()

    full = numpy

    def __repr__(self) -> str:
        """Return the values with placement and sbp; all ranks of the placement must call."""
        where, value = [f"placement={self.placement}", f"sbp={self.sbp}"], self.value
        operator = value.node.recipe.op.name if isinstance(value.node, OpNode) else "global_to_global"
        history = f"grad_fn=<{operator}_backward>" if value.node else "requires_grad=True"
        after = [history] * value.requires_grad
        if not value.world.has_data:
            return without_values(self.shape, value.dtype, [*where, *after])
        return format_array(self.numpy(), where, after)


def check_same_shape(old: Size, new: Size) -> None:
    """Raise OneFlowError if a tensor is to take values of another shape."""
    if old != new:
        raise OneFlowError(f"a new value must have the tensor's shape {old}, got {new}; reshape it first")


def update_value(old: CoreTensor, new: CoreTensor) -> CoreTensor:
    """Return the value of a tensor after an in-place operation.

    It is ``new`` in the type and layout of ``old``. If ``old`` requires a gradient and ``new`` does not, the result is a
    leaf that requires a gradient, with the ``grad`` of ``old``. All ranks must call it: values may be moved.

    Args:
        old: the value before; it is not changed.
        new: the result of the operation.

    Raises:
        OneFlowError: (a RuntimeError) If ``old`` is a leaf that requires a gradient and operators are recorded, or if
            the shapes differ.
    """
    if old.requires_grad and old.node is None and is_recording():
        raise OneFlowError(
            "a leaf Tensor that requires grad is being used in an in-place operation; nearest: x = x + y, or oneflow.no_grad()"
        )
    check_same_shape(Size(old.shape), Size(new.shape))
    value = (new if new.dtype == old.dtype else core.cast(new, old.dtype)).to(old.layout)
    if old.requires_grad and not value.requires_grad:
        value = CoreTensor.from_tensor(value, requires_grad=True, name=old.name)
        value.grad = old.grad
    return value
