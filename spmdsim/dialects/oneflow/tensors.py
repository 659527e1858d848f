"""Local and global tensors, and the way between them, as OneFlow has them.

A local tensor is what one rank holds. In a world in which this process owns several ranks it is one array per
owned rank. Symbols are numpy's, applied to every rank's array, or our operators of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import getitem
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays import ops as core
from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.core.tape import OpNode
from spmdsim.dialects.layouts import GradientMove
from spmdsim.dialects.missing import expand_words, not_covered, refuse
from spmdsim.dialects.oneflow import OF_TENSORS, placements
from spmdsim.dialects.oneflow.dtypes import dtype as ElementType
from spmdsim.dialects.oneflow.placements import device
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.printing import shown, without_values
from spmdsim.dialects.oneflow.rank_agreement import (
    check_placement,
    check_same,
    facts_of,
    same_code,
    transition,
)
from spmdsim.dialects.oneflow.sbp import TO_GLOBAL, OneFlowError
from spmdsim.dialects.session import current_world, tracking
from spmdsim.dialects.table import in_place
from spmdsim.errors import UsageTypeError

_NEAREST = expand_words(OF_TENSORS)


class Size(tuple[int, ...]):
    """A shape, printed as OneFlow prints it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"oneflow.Size({list(self)})"


def method(name: str) -> Callable[..., Any]:
    """A method of tensors that is made from the table of operators, or NotCovered."""
    from spmdsim.dialects.oneflow.operators import METHODS

    if name in METHODS:
        return METHODS[name]
    if name.startswith("_"):
        raise AttributeError(f"a tensor has no attribute {name!r}")
    raise not_covered("spmdsim.dialects.oneflow.Tensor", name, [*METHODS, *vars(GlobalTensor)], _NEAREST)


def _as(kind: type[Any]) -> Any:
    """The only element, as a number of Python's."""
    return lambda self: kind(self.item())


class TensorSymbols(NDArrayOperatorsMixin):
    """What both kinds of tensors have: ``x + 1``, ``-x``, ``x @ w``, ``x > 0`` ask for numpy's functions of that meaning."""

    __hash__ = object.__hash__
    __bool__, __float__, __int__ = _as(bool), _as(float), _as(int)
    shape: Any
    item: Any
    permute: Any
    _apply: Any

    def __init_subclass__(cls) -> None:
        in_place(cls)

    def __getattr__(self, name: str) -> Any:
        return partial(method(name), self)

    def __getitem__(self, key: Any) -> Any:
        return self._apply(getitem, self, key)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        return NotImplemented if method != "__call__" or options else self._apply(ufunc, *operands)

    def __format__(self, spec: str) -> str:
        """A tensor of one element prints as its number, as in OneFlow."""
        return format(self.item() if not self.ndim else str(self), spec)

    def __len__(self) -> int:
        if not self.ndim:
            raise UsageTypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    ndim = property(lambda self: len(self.shape), doc="Number of dims.")
    T = property(lambda self: self.permute(*range(self.ndim)[::-1]), doc="Its dims in reverse order.")


class LocalTensor(TensorSymbols):
    """One array per rank that this process owns, in a world (the current one if left out), on devices of a kind."""

    is_global, is_local = False, True
    requires_grad, grad, is_leaf = False, None, True

    def __init__(self, shards: Sequence[np.ndarray], world: Any = None, kind: str = "cpu") -> None:
        self.world = world or current_world()
        self.shards = [np.asarray(shard) for shard in shards]
        self.kind = kind

    shape = property(lambda self: Size(self.shards[0].shape), doc="Shape of the first owned rank's array.")
    dtype = property(lambda self: ElementType(self.shards[0].dtype), doc="Element type.")
    device = property(lambda self: device(self.kind, self.world.ranks[0]), doc="The first owned rank's.")

    def to(self, where: Any) -> LocalTensor:
        """On devices of another type, as far as its name says, or with other elements."""
        if isinstance(where, str | device):
            return LocalTensor(self.shards, self.world, device(where).type)
        return LocalTensor([x.astype(np.dtype(where)) for x in self.shards], self.world, self.kind)

    def clone(self) -> LocalTensor:
        """Arrays of its own."""
        return LocalTensor([x.copy() for x in self.shards], self.world, self.kind)

    def _apply(self, function: Any, *operands: Any) -> LocalTensor:
        text = "a local and a global tensor cannot be combined; nearest: to_global or to_local first"
        refuse({text: any(isinstance(x, GlobalTensor) for x in operands)}, OneFlowError)
        columns = [x.shards if isinstance(x, LocalTensor) else repeat(x) for x in operands]
        return LocalTensor([*map(function, *columns)], self.world, self.kind)

    def become(self, other: LocalTensor) -> LocalTensor:
        """Other values of the same shape from now on."""
        check_same_shape(self.shape, other.shape)
        self.shards = [new.astype(old.dtype) for new, old in zip(other.shards, self.shards)]
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("placement", "sbp"):
            raise OneFlowError(f"Only global tensors have {name!r}; nearest: {TO_GLOBAL}")
        return super().__getattr__(name)

    def requires_grad_(self, on: bool = True) -> LocalTensor:
        """Refused: gradients go through global tensors."""
        if on:
            raise OneFlowError(f"local tensors have no gradients here; nearest: {TO_GLOBAL}.requires_grad_()")
        return self

    def backward(self, gradient: Any = None) -> None:
        """Refused: it has no gradient."""
        raise OneFlowError(
            f"element 0 of tensors does not require grad and does not have a grad_fn; nearest: {TO_GLOBAL}.requires_grad_()"
        )

    def item(self) -> Any:
        """The only element of the first owned rank's array."""
        if self.shards[0].size != 1:
            raise OneFlowError(f"item() needs a tensor of one element, but the shape is {self.shape}")
        return self.shards[0].item()

    def numpy(self, rank: int | None = None) -> np.ndarray:
        """The array of a rank (this process's first one if left out)."""
        return self.shards[0 if rank is None else self.world.ranks.index(rank)]

    def to_local(self) -> LocalTensor:
        """Refused: it is local already."""
        raise OneFlowError("Expected global tensor for to_local but got local tensor!")

    def to_global(
        self, placement: Any = None, sbp: Any = None, *, check_meta: bool = True, copy: bool = False
    ) -> GlobalTensor:
        """Take the local tensors as components of a global one.

        The only communication is along broadcast axes, from the first rank of each group, whose values
        overwrite the other ranks' unless ``copy``.

        Raises:
            RuntimeError: no placement or sbp, ranks that passed different ones, or local shapes that do not fit
                together.
        """
        text = "Converting a local tensor to global tensor must have placement and sbp parameters."
        refuse({text: placement is None or sbp is None}, OneFlowError)
        check_agreed(placement, sbp, self.world)
        layout = placements.layout(placement, sbp, self.shards[0].ndim)
        shape = self._logical_shape(placement, sbp, check_meta)
        sent = _from_first(self, layout, shape)
        if not copy:
            ranked = zip(self.world.ranks, self.shards, sent)
            self.shards = [b if r in layout.mesh and a.shape == b.shape else a for r, a, b in ranked]
        return GlobalTensor(CoreTensor.from_local(sent, layout, self.world, shape=shape), placement)

    def _logical_shape(self, placement: Placement, sbp: Any, check_meta: bool) -> tuple[int, ...]:
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
        """One rank's array; in a process that plays several ranks each with its device."""
        on = [f"{self.kind}:{rank}" for rank in self.world.ranks]
        texts = [shown(x, [f"device='{d}'"] if self.kind != "cpu" else []) for d, x in zip(on, self.shards)]
        return texts[0] if len(texts) == 1 else "\n".join(f"{d}: {text}" for d, text in zip(on, texts))


def check_agreed(placement: Placement, sbp: Any, world: Any, data: Any = None) -> None:
    """Refuse a placement on ranks that the job does not have, and ranks that were given different ones, sbp or data."""
    placements.check_kind(placement)
    check_placement(placement, world)
    check_same(world, [facts_of(placement, sbp, data)] * len(world.ranks))


def check_one_placement(*placements: Placement | None, about: str = "") -> None:
    """Refuse tensors on different placements, the first of which is told ``about``; None is any."""
    one = placements[0]
    for other in placements[1:]:
        if other not in (None, one):
            raise OneFlowError(
                f"Expected all tensors to be on the same placement, but found at least two placements, {one} and {other}{about}!"
            )


def _from_first(tensor: LocalTensor, layout: Layout, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Every rank's component, taken from the first rank of its group along the broadcast axes.

    A broadcast from the first rank is a sum in which all other ranks hold zeros.
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
    """A global tensor with OneFlow's words; the methods are those of its table of operators."""

    is_global, is_local = True, False

    def __init__(self, value: CoreTensor, placement: Placement) -> None:
        self.value = value
        self.placement = placement

    def _apply(self, function: Any, *operands: Any) -> GlobalTensor:
        from spmdsim.dialects.oneflow.operators import lifted

        return lifted(getattr(core, function.__name__))(*operands)

    def become(self, other: GlobalTensor) -> GlobalTensor:
        """Other values from now on, where the tensor lives; those before are in the history of what was computed from them."""
        self.value = becoming(self.value, other.value)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        raise UsageTypeError("tensors are values; nearest: flow.where(condition, value, x), a new one")

    def __iter__(self) -> Iterator[GlobalTensor]:
        return (self[k] for k in range(len(self)))

    shape = property(lambda self: Size(self.value.shape), doc="Logical shape.")
    dtype = property(lambda self: ElementType(self.value.dtype), doc="Element type.")
    sbp = property(lambda self: placements.sbp_of(self.value.layout), doc="One entry per axis.")
    requires_grad = property(lambda self: self.value.requires_grad, doc="Whether it has a gradient.")
    is_leaf = property(lambda self: self.value.node is None, doc="Whether nothing with a gradient made it.")

    @property
    def device(self) -> device:
        """Refused: it has a placement."""
        raise OneFlowError("Only local tensors have 'device'. Please use '.placement' for global tensors.")

    @property
    def grad(self) -> GlobalTensor | None:
        """Its gradient after ``backward()``."""
        gradient = self.value.grad
        return None if gradient is None else GlobalTensor(gradient, self.placement)

    def requires_grad_(self, on: bool = True) -> GlobalTensor:
        """Ask for its gradient."""
        self.value.requires_grad = on
        return self

    def backward(self, gradient: GlobalTensor | None = None) -> None:
        """Gradients of everything it depends on; a RuntimeError where nothing needs one, or none is given for many elements."""
        if not self.value.requires_grad:
            raise OneFlowError("element 0 of tensors does not require grad and does not have a grad_fn")
        if gradient is None and self.value.size != 1:
            raise OneFlowError("Grad can be implicitly created only for scalar outputs")
        with same_code():
            self.value.backward(None if gradient is None else gradient.value)

    def to_global(
        self, placement: Placement | None = None, sbp: Any = None, *, grad_sbp: Any = None, check_meta: bool = False,
        copy: bool = False,
    ) -> GlobalTensor:  # fmt: skip
        """The same tensor elsewhere; ``grad_sbp`` is where its gradient is brought on the way back.

        The same place gives the tensor itself, unless a ``copy`` is asked for.

        Raises:
            RuntimeError: neither placement nor sbp; a dim too short to be split; a transition there is not.
        """
        if placement is None and sbp is None:
            raise OneFlowError("Converting a global tensor needs a placement, an sbp or both.")
        where, value = placement or self.placement, self.value
        entries = self.sbp if sbp is None else sbp
        check_agreed(where, entries, value.world)
        layout = placements.layout(where, entries, value.ndim)
        if layout == value.layout and where == self.placement and grad_sbp is None and not copy:
            return self
        placements.check_sizes(where, entries, value.shape)
        with transition(self, (where, entries)), same_code():
            moved = value.to(layout)
        if grad_sbp is not None and moved.requires_grad:
            before, moved = moved, CoreTensor(moved.world, moved.meta, moved.held, requires_grad=True)
            moved.node = GradientMove(before, placements.layout(where, grad_sbp, value.ndim))
        return GlobalTensor(moved, where)

    def to(self, where: Any) -> GlobalTensor:
        """On devices of another type, or with other elements."""
        if isinstance(where, str | device):
            return self.to_global(Placement(device(where).type, self.placement.ranks))
        return cast(GlobalTensor, self.cast(np.dtype(where)))

    def to_local(self, *, copy: bool = False) -> LocalTensor:
        """Each rank's component."""
        return LocalTensor([x.copy() if copy else x for x in self.value.shards], self.value.world)

    def numpy(self) -> np.ndarray:
        """The whole tensor, on every process."""
        with same_code():
            return self.value.full()

    full = numpy

    def __repr__(self) -> str:
        """Its values, which all ranks of the placement must ask for together, and where it lives."""
        where, value = [f"placement={self.placement}", f"sbp={self.sbp}"], self.value
        operator = value.node.recipe.op.name if isinstance(value.node, OpNode) else "global_to_global"
        history = f"grad_fn=<{operator}_backward>" if value.node else "requires_grad=True"
        after = [history] * value.requires_grad
        if not value.world.has_data:
            return without_values(self.shape, value.dtype, [*where, *after])
        return shown(self.numpy(), where, after)


def check_same_shape(old: Size, new: Size) -> None:
    """Refuse to become something of another shape."""
    if old != new:
        raise OneFlowError(f"a tensor of shape {old} cannot become one of shape {new}")


def becoming(old: CoreTensor, new: CoreTensor) -> CoreTensor:
    """What a tensor is after it was computed with in place; a RuntimeError for a leaf with a gradient or another shape."""
    if old.requires_grad and old.node is None and tracking():
        raise OneFlowError(
            "a leaf Tensor that requires grad is being used in an in-place operation; nearest: x = x + y, or oneflow.no_grad()"
        )
    check_same_shape(Size(old.shape), Size(new.shape))
    value = (new if new.dtype == old.dtype else core.cast(new, old.dtype)).to(old.layout)
    if old.requires_grad and not value.requires_grad:
        value = CoreTensor(value.world, value.meta, value.held, True, old.name, value.origin)
        value.grad = old.grad
    return value
