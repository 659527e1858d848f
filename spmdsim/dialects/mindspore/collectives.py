"""``ops.AllReduce`` and its kin: what each rank of a group holds, not the global tensor, takes part.

A rank holds its shard of a tensor, or the array it is given. Each operator is a redistribution over the group's ranks between
two readings of what they hold: pending sums, pieces one after the other, or copies. The result is the global tensor of
what the ranks hold then; ranks outside of the group hold nothing of it, and need not call.

Gradients are MindSpore's: what the transposed operator makes of the ranks' own gradients. Of copies of one tensor, whose
gradients every rank has for itself there, it is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.core import Layout, Mesh
from spmdsim.core.tape import Gradients, Node, reduce_gradients
from spmdsim.core.tensor import Meta
from spmdsim.dialects.mindspore.communication import get_process_group_ranks, member
from spmdsim.dialects.mindspore.layout import is_whole
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, many

Attrs = dict[str, Any]
AXIS = "rank"


class ReduceOp:
    """How elements of several ranks become one."""

    SUM, MAX, MIN, PROD = "sum", "max", "min", "prod"


def check(attrs: Any) -> None:
    """Refuse a reduction that there is not, a group without a name, and numbers that are none."""
    reductions = [value for word, value in vars(ReduceOp).items() if word.isupper()]
    if attrs.get("op", "sum") not in reductions:
        kind = InputError if isinstance(attrs["op"], str) else UsageTypeError
        raise kind(f"op is one of ReduceOp's {', '.join(reductions)}, not {attrs['op']!r}")
    if not isinstance(attrs["group"], str):
        raise UsageTypeError(f"group is the name of a group, not {attrs['group']!r}")
    for name in ("split_count", "split_dim", "concat_dim", "root_rank"):
        if not is_whole(attrs.get(name, 0)):
            raise UsageTypeError(f"{name} is an integer, not {attrs[name]!r}")


class _Back(Node):
    """What a collective of what ranks hold does to the ranks' own gradients."""

    __slots__ = ("back",)

    def __init__(self, operand: Tensor, back: Callable[[Tensor], Tensor]) -> None:
        super().__init__(operand)
        self.back = back

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """The gradient of what each rank held."""
        if not gradients[0]:
            return gradients
        dy = reduce_gradients(gradients[0], gradients[0][0].layout.dual())
        local, layout = self.back(dy.detach()).held, self.meta.layout
        copies = Layout(layout.mesh, layout.dims, dict.fromkeys(layout.replicated_axes, "avg"))
        meta = Meta.of(copies, self.meta.shape, self.meta.dtype)
        return [[Tensor(self.world, meta, [np.asarray(x, meta.held) for x in local])]]


class CallGroup:
    """The ranks that take part in one call of an operator of this name, and what each of them holds."""

    def __init__(self, name: str, operand: Any, attrs: Attrs) -> None:
        self.name, self.attrs, self.world, group = name, attrs, current_world(), attrs["group"]
        self.ranks = get_process_group_ranks(group)
        self.size = len(self.ranks)
        member(self.ranks, group)
        all_ranks = self.ranks == [*range(self.world.size)]
        self.mesh = Mesh((self.size,), (AXIS,), None if all_ranks else self.ranks)
        operand = operand.everywhere() if isinstance(operand, Parameter) else operand
        self.tensor: Tensor | None = None
        if isinstance(operand, Tensor):
            self.tensor = operand.to(operand.layout.reduced)
            apart = [rank for rank in self.ranks if rank not in operand.layout.mesh]
            if apart:
                raise InputError(
                    f"{name}: rank {apart[0]} is in group {group!r}, but holds nothing of the tensor"
                )
            self.held: list[Any] = self.tensor.held
            self.shape = self.tensor.layout.local_shape(self.tensor.shape, self.ranks[0])
        else:
            array = np.asarray(operand)
            self.held, self.shape = [array] * len(self.world.ranks), array.shape
            self._compare(f"{array.dtype.name} {array.shape}")
        self.dtype = np.dtype(self.held[0].dtype)
        if self.dtype.kind not in "iufcV":
            raise UsageTypeError(f"{name} takes a tensor of numbers, not of {self.dtype.name}")

    def _compare(self, mine: str) -> None:
        texts = self.world.gather_on(self.ranks, mine)
        first = texts[self.ranks[0]]
        for rank, text in texts.items():
            if text != first:
                raise InputError(
                    f"{self.name}: all ranks have tensors of one shape and type, but rank {self.ranks[0]} has {first} and "
                    f"rank {rank} has {text}"
                )

    def dim(self, number: int, what: str = "the dim", divides: bool = False) -> int:
        """A dim of what a rank holds, which may have to divide into as many parts as there are ranks."""
        if not -len(self.shape) <= number < len(self.shape):
            raise InputError(
                f"{self.name}: {what} is {number}, but a rank holds a tensor of shape {self.shape}"
            )
        if divides and self.shape[number] % self.size:
            raise InputError(
                f"{self.name}: dim {number % len(self.shape)} of what a rank holds has size {self.shape[number]}, which "
                f"{self.size} ranks do not divide"
            )
        return number % len(self.shape)

    def layout(self, split: int | None = None, partial: str | None = None, ndim: int | None = None) -> Layout:
        """One dim over the ranks, or what is pending over them, or copies."""
        dims = [AXIS if d == split else None for d in range(len(self.shape) if ndim is None else ndim)]
        return Layout(self.mesh, dims, {AXIS: partial} if partial else {})

    def over(self, source: Layout, target: Layout, shape: Sequence[int], local: Sequence[int] = ()) -> Tensor:
        """What the ranks hold, read as one layout of a tensor of ``shape`` and brought into another."""
        meta = Meta.of(source, tuple(shape), self.dtype)
        arrays = [np.asarray(x, meta.held) for x in self.held]
        return self.tensor_of(meta, arrays, local or self.shape).to(target)

    def tensor_of(self, meta: Meta, arrays: Sequence[Any], local: Sequence[int]) -> Tensor:
        """A tensor of which each rank of its mesh has an array, in this shape, and the others nothing."""
        held = [
            x.reshape(local) if rank in meta.layout.mesh else np.empty((0,) * len(local), meta.held)
            for rank, x in zip(self.world.ranks, arrays)
        ]
        return Tensor(self.world, meta, held, origin=self.world.origin(meta))

    def sent(self, source: int, target: Layout) -> Tensor:
        """What one rank holds, where a layout wants it."""
        return self.over(Layout.replicated(Mesh((1,), (AXIS,), [source]), target.ndim), target, self.shape)

    def result(self, tensor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """The result, with the way back if the operand has one."""
        if self.tensor is not None and (self.tensor.requires_grad or self.tensor.node is not None):
            tensor = tensor.detach()
            tensor.node, tensor.requires_grad = _Back(self.tensor, back), True
        return tensor

    def again(self, collective: Callable[[CallGroup], Tensor], dy: Tensor, **attrs: Any) -> Tensor:
        """Another collective of a gradient among these ranks."""
        return collective(CallGroup(self.name, dy, {**self.attrs, **attrs}))


def all_reduce(group: CallGroup) -> Tensor:
    """All ranks hold the sum, or the largest, smallest or product, of what they held."""
    op = group.attrs["op"]
    reduced = group.over(group.layout(partial=op), group.layout(), group.shape)

    def back(dy: Tensor) -> Tensor:
        total = group.again(all_reduce, ops.multiply(dy, reduced) if op == "prod" else dy, op="sum")
        if op == "sum":
            return total
        mine = Tensor(group.world, reduced.meta, group.held)
        if op == "prod":
            return ops.divide(total, mine)
        return ops.multiply(total, ops.cast(ops.equal(mine, reduced), total.dtype))

    return group.result(reduced, back)


def all_gather(group: CallGroup) -> Tensor:
    """All ranks hold what they held, one after the other along dim 0."""
    group.dim(0)
    shape = (group.size * group.shape[0], *group.shape[1:])
    gathered = group.over(group.layout(0), group.layout(), shape)
    return group.result(gathered, lambda dy: group.again(reduce_scatter, dy, op="sum"))


def reduce_scatter(group: CallGroup) -> Tensor:
    """Each rank holds its rows of the sum of what they held."""
    op = group.attrs["op"]
    group.dim(0, divides=True)
    rows = group.over(group.layout(partial=op), group.layout(0), group.shape)
    return group.result(rows, lambda dy: group.again(all_gather, dy)) if op == "sum" else rows


def all_to_all(group: CallGroup) -> Tensor:
    """The k-th rank holds everybody's k-th block along ``split_dim``, one after the other along ``concat_dim``."""
    count, concat = group.attrs["split_count"], group.dim(group.attrs["concat_dim"], "concat_dim")
    if count != group.size:
        raise InputError(f"AlltoAll: split_count is {count}, but the group has {many(group.size, 'rank')}")
    split = group.dim(group.attrs["split_dim"], "split_dim", divides=True)
    shape = list(group.shape)
    if split == concat:  # each block is a dim of its own for the way
        head, tail = shape[:split], [count, shape[split] // count, *shape[split + 1 :]]
        source, target = (group.layout(dim, ndim=len(shape) + 2) for dim in (split, split + 1))
        moved = group.over(source, target, [*head, count, *tail], [*head, 1, *tail])
        whole = (*head, count * shape[split], *shape[split + 1 :])
        blocks = group.tensor_of(Meta.of(group.layout(split), whole, group.dtype), moved.held, shape)
    else:
        shape[concat] *= count
        blocks = group.over(group.layout(concat), group.layout(split), shape)
    return group.result(blocks, lambda dy: group.again(all_to_all, dy, split_dim=concat, concat_dim=split))


def broadcast(groups: list[CallGroup], attrs: Attrs) -> Sequence[Tensor]:
    """All ranks hold what the root held."""
    return [_broadcast(group, attrs["root_rank"]) for group in groups]


def _broadcast(group: CallGroup, root: int) -> Tensor:
    if root not in group.ranks:
        raise InputError(f"Broadcast: root_rank {root} is not among the group's ranks {group.ranks}")

    def back(dy: Tensor) -> Tensor:
        total = group.again(all_reduce, dy, op="sum")
        kept = [x if rank == root else np.zeros_like(x) for rank, x in zip(group.world.ranks, total.held)]
        return Tensor(group.world, total.meta, kept)

    return group.result(group.sent(root, group.layout()), back)


def called(collective: Callable[[CallGroup], Tensor]) -> Callable[..., Tensor]:
    """What a primitive runs: the collective of what its ranks hold."""
    return lambda primitive, operands, attrs: collective(
        CallGroup(type(primitive).__name__, operands[0], attrs)
    )


def called_with_several(collective: Callable[..., Sequence[Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    """The same of a tuple of tensors, for which a tuple comes."""

    def run(primitive: Any, operands: Sequence[Any], attrs: Attrs) -> tuple[Tensor, ...]:
        name, tensors = type(primitive).__name__, operands[0]
        if not isinstance(tensors, (tuple, list)):
            raise UsageTypeError(f"{name} takes a tuple of tensors, not a {type(tensors).__name__}")
        return tuple(collective([CallGroup(name, x, attrs) for x in tensors], attrs))

    return run
