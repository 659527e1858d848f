"""Collectives such as ``ops.AllReduce``: the ranks' own arrays take part, not the global tensor.

A rank's array is its shard of a tensor, or the array that it passes. Each operator is a redistribution over the
group's ranks between two readings of these arrays: addends of a pending sum, blocks of a dim, or replicas. The result
is the global tensor of the ranks' new arrays. Ranks outside of the group own nothing of it, and need not call.

Gradients are MindSpore's: the transposed operator is applied to the ranks' own gradients. In MindSpore, every rank
has a gradient of its own for a replica; here, it is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.core import Layout, Mesh
from spmdsim.core.tape import reduce_gradients
from spmdsim.core.tensor import Gradients, Meta, Node
from spmdsim.dialects.mindspore.communication import get_process_group_ranks, own_member
from spmdsim.dialects.mindspore.layout import is_integer
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError

Attrs = dict[str, Any]
AXIS = "rank"


class ReduceOp:
    """Names of the reductions."""

    SUM, MAX, MIN, PROD = "sum", "max", "min", "prod"


def check_attributes(attrs: Any) -> None:
    """Raise an error for a wrong attribute of a collective.

    Args:
        attrs: attributes by name: ``group``, and for some collectives ``op``, ``split_count``, ``split_dim``,
            ``concat_dim`` or ``root_rank``. Others are not checked, nor whether the group exists.

    Raises:
        InputError: If ``op`` is an unknown word.
        UsageTypeError: If ``op`` or ``group`` is no text, or a number is no integer.
    """
    reductions = [value for word, value in vars(ReduceOp).items() if word.isupper()]
    if attrs.get("op", "sum") not in reductions:
        kind = InputError if isinstance(attrs["op"], str) else UsageTypeError
        raise kind(f"op must be one of ReduceOp's {', '.join(reductions)}, got {attrs['op']!r}")
    if not isinstance(attrs["group"], str):
        raise UsageTypeError(
            f"group must be the name of a group, got {attrs['group']!r}; nearest: create_group(name, ranks), then "
            "group=name"
        )
    for name in ("split_count", "split_dim", "concat_dim", "root_rank"):
        if not is_integer(attrs.get(name, 0)):
            raise UsageTypeError(f"{name} must be an integer, got {attrs[name]!r}")


class _Back(Node):
    """Backward step of a collective on the ranks' own arrays.

    ``back`` maps a result's gradient to the operand's.
    """

    __slots__ = ("back",)

    def __init__(self, operand: Tensor, back: Callable[[Tensor], Tensor]) -> None:
        super().__init__(operand)
        self.back = back

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Run the transposed collective; return ``[[gradient of the ranks' arrays]]``.

        The outer list has one entry per operand, the inner list the addends of its gradient. Where ranks have copies of
        a shard, each has a gradient of its own; the gradient is their mean, as a pending reduction.

        Args:
            gradients: one list with the addends of the result's gradient. It is returned itself if the list is empty.
        """
        if not gradients[0]:
            return gradients
        dy = reduce_gradients(gradients[0], gradients[0][0].layout.dual())
        local, layout = self.back(dy.detach()).stored_shards, self.meta.layout
        copies = Layout(layout.mesh, layout.dims, dict.fromkeys(layout.replicated_axes, "avg"))
        meta = Meta.of(copies, self.meta.shape, self.meta.dtype)
        return [[Tensor(self.world, meta, [np.asarray(shard, meta.storage_dtype) for shard in local])]]


class CallGroup:
    """Ranks that take part in one call of a collective, and the array of each.

    Args:
        name: name of the operator, for messages.
        operand: tensor, parameter or array.
        attrs: attributes of the call, with ``"group"``.

    Attributes:
        ranks: ranks of the group.
        mesh: mesh of these ranks with one axis.
        tensor: the operand as a tensor without pending reductions; None for an array.
        arrays: array of each rank that this process plays.
        shape: shape of a rank's array.

    Raises:
        InputError: If no rank of this process is in the group, a rank of it owns nothing of the tensor, or ranks have
            arrays of different shapes or types.
        UsageTypeError: If the operand has no numbers.
    """

    def __init__(self, name: str, operand: Any, attrs: Attrs) -> None:
        self.name, self.attrs, self.world, group = name, attrs, current_world(), attrs["group"]
        self.ranks = get_process_group_ranks(group)
        self.size = len(self.ranks)
        own_member(self.ranks, group)
        all_ranks = self.ranks == [*range(self.world.size)]
        self.mesh = Mesh((self.size,), (AXIS,), None if all_ranks else self.ranks)
        operand = operand.everywhere() if isinstance(operand, Parameter) else operand
        self.tensor: Tensor | None = None
        if isinstance(operand, Tensor):
            self.tensor = operand.to(operand.layout.reduced)
            missing_ranks = [rank for rank in self.ranks if rank not in operand.layout.mesh]
            if missing_ranks:
                raise InputError(
                    f"{name}: every rank of group {group!r} must own a shard of the tensor, but rank "
                    f"{missing_ranks[0]} owns none; nearest: a group of the ranks of the tensor's mesh"
                )
            self.arrays: list[Any] = self.tensor.stored_shards
            self.shape = self.tensor.layout.local_shape(self.tensor.shape, self.ranks[0])
        else:
            array = np.asarray(operand)
            self.arrays, self.shape = [array] * len(self.world.ranks), array.shape
            self._compare(f"{array.dtype.name} {array.shape}")
        self.dtype = np.dtype(self.arrays[0].dtype)
        if self.dtype.kind not in "iufcV":
            raise UsageTypeError(f"{name}: the tensor must have numbers, got {self.dtype.name}")

    def _compare(self, description: str) -> None:
        """Raise InputError unless all ranks of the group have this description of their array.

        All ranks of the group must call it. The error is equal on them: it names the first rank that differs from the
        group's first.
        """
        texts = self.world.gather_on(self.ranks, description)
        first = texts[self.ranks[0]]
        for rank, text in texts.items():
            if text != first:
                raise InputError(
                    f"{self.name}: all ranks must pass arrays of equal shape and type, but rank {self.ranks[0]} "
                    f"has {first} and rank {rank} has {text}"
                )

    def check_dim(self, number: int, what: str = "the dim", divides: bool = False) -> int:
        """Check a dim of a rank's array; return it as a number >= 0.

        Args:
            number: the dim; negative numbers count from the end.
            what: name of the argument, for messages.
            divides: also check that the number of ranks of the group divides the size of the dim.

        Raises:
            InputError: If the dim is out of range, or the ranks do not divide its size.
        """
        if not -len(self.shape) <= number < len(self.shape):
            raise InputError(
                f"{self.name}: {what} must be in -{len(self.shape)}..{len(self.shape) - 1} for a rank's array of "
                f"shape {self.shape}, got {number}"
            )
        if divides and self.shape[number] % self.size:
            raise InputError(
                f"{self.name}: the size of dim {number % len(self.shape)} of a rank's array must be a multiple of "
                f"the {self.size} ranks of the group, got {self.shape[number]}"
            )
        return number % len(self.shape)

    def layout(self, split: int | None = None, partial: str | None = None, ndim: int | None = None) -> Layout:
        """Return a layout of a tensor on the group's ranks: split, partial or replicated.

        Args:
            split: dim that the ranks split; None for no dim.
            partial: pending reduction over the ranks, or None.
            ndim: number of dims; by default that of a rank's array.
        """
        dims = [AXIS if d == split else None for d in range(len(self.shape) if ndim is None else ndim)]
        return Layout(self.mesh, dims, {AXIS: partial} if partial else {})

    def redistribute(
        self, source: Layout, target: Layout, shape: Sequence[int], local: Sequence[int] = ()
    ) -> Tensor:
        """Redistribute the tensor whose shards are the ranks' arrays; return the result.

        Args:
            source: layout in which the arrays are the shards.
            target: layout of the result.
            shape: global shape of the tensor.
            local: shape to which each array is reshaped first; by default it stays.
        """
        meta = Meta.of(source, tuple(shape), self.dtype)
        arrays = [np.asarray(x, meta.storage_dtype) for x in self.arrays]
        return self.tensor_of(meta, arrays, local or self.shape).to(target)

    def tensor_of(self, meta: Meta, arrays: Sequence[Any], local: Sequence[int]) -> Tensor:
        """Return a tensor on the group's ranks whose shards are the ranks' arrays.

        Ranks outside of the group own nothing. Nothing is communicated, and the arrays' types are not checked.

        Args:
            meta: layout, shape and type of the tensor.
            arrays: one array per rank that this process plays, in order; those of ranks outside are not used.
            local: shape of a shard; each array is reshaped to it.
        """
        shards = [
            array.reshape(local)
            if rank in meta.layout.mesh
            else np.empty((0,) * len(local), meta.storage_dtype)
            for rank, array in zip(self.world.ranks, arrays)
        ]
        return Tensor(self.world, meta, shards, provenance_number=self.world.number_tensor(meta))

    def result(self, tensor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the result of a collective, with a backward step if the operand needs a gradient.

        Args:
            tensor: the result.
            back: function that returns the gradient of the ranks' arrays from the gradient of the result.
        """
        if self.tensor is not None and (self.tensor.requires_grad or self.tensor.node is not None):
            tensor = tensor.detach()
            tensor.node, tensor.requires_grad = _Back(self.tensor, back), True
        return tensor

    def run_on(self, collective: Callable[[CallGroup], Tensor], dy: Tensor, **attrs: Any) -> Tensor:
        """Run a collective of this module on the ranks' gradients ``dy``, as a step of a backward pass.

        The ranks and attributes are those of this call; ``attrs`` replace attributes.
        """
        return collective(CallGroup(self.name, dy, {**self.attrs, **attrs}))


def all_reduce(group: CallGroup) -> Tensor:
    """Return the ranks' arrays, reduced by the attribute ``op``, on all ranks of the group.

    Gradients are summed over the ranks. The gradient of a maximum or minimum goes to all elements that equal it. The
    gradient of a product is nan where an element is 0.

    Args:
        group: the group, its arrays, and the attributes.
    """
    op = group.attrs["op"]
    reduced = group.redistribute(group.layout(partial=op), group.layout(), group.shape)

    def back(dy: Tensor) -> Tensor:
        total = group.run_on(all_reduce, ops.multiply(dy, reduced) if op == "prod" else dy, op="sum")
        if op == "sum":
            return total
        own_arrays = Tensor(group.world, reduced.meta, group.arrays)
        if op == "prod":  # the derivative of a product by one factor is the product, divided by the factor
            return ops.divide(total, own_arrays)
        return ops.multiply(total, ops.cast(ops.equal(own_arrays, reduced), total.dtype))

    return group.result(reduced, back)


def all_gather(group: CallGroup) -> Tensor:
    """Return the ranks' arrays, concatenated along dim 0, on all ranks."""
    group.check_dim(0)
    shape = (group.size * group.shape[0], *group.shape[1:])
    gathered = group.redistribute(group.layout(0), group.layout(), shape)
    return group.result(gathered, lambda dy: group.run_on(reduce_scatter, dy, op="sum"))


def reduce_scatter(group: CallGroup) -> Tensor:
    """Return on each rank its block of rows of the sum of the arrays, or of the reduction ``op``.

    Only a sum has a gradient. Raises InputError if the number of ranks does not divide the number of rows.
    """
    op = group.attrs["op"]
    group.check_dim(0, divides=True)
    rows = group.redistribute(group.layout(partial=op), group.layout(0), group.shape)
    return group.result(rows, lambda dy: group.run_on(all_gather, dy)) if op == "sum" else rows


def all_to_all(group: CallGroup) -> Tensor:
    """Return on rank k the k-th block of every rank, concatenated.

    Arrays are split along ``split_dim``, and the blocks concatenated along ``concat_dim``. Blocks are in the order of
    the group's ranks. The gradient is exchanged in the opposite direction.

    Args:
        group: the group, its arrays, and the attributes.

    Raises:
        InputError: If ``split_count`` is not the number of ranks, this number does not divide the split dim, or a dim
            is out of range.
    """
    count, concat = group.attrs["split_count"], group.check_dim(group.attrs["concat_dim"], "concat_dim")
    if count != group.size:
        raise InputError(
            f"AlltoAll: split_count must be {group.size}, the number of ranks of the group, got {count}"
        )
    split = group.check_dim(group.attrs["split_dim"], "split_dim", divides=True)
    shape = list(group.shape)
    if split == concat:  # Make the number of the block a dim of its own during the exchange.
        head, tail = shape[:split], [count, shape[split] // count, *shape[split + 1 :]]
        source, target = (group.layout(dim, ndim=len(shape) + 2) for dim in (split, split + 1))
        moved = group.redistribute(source, target, [*head, count, *tail], [*head, 1, *tail])
        blocks_shape = (*head, count * shape[split], *shape[split + 1 :])
        blocks = group.tensor_of(
            Meta.of(group.layout(split), blocks_shape, group.dtype), moved.stored_shards, shape
        )
    else:
        shape[concat] *= count
        blocks = group.redistribute(group.layout(concat), group.layout(split), shape)
    return group.result(blocks, lambda dy: group.run_on(all_to_all, dy, split_dim=concat, concat_dim=split))


def broadcast(group: CallGroup) -> Tensor:
    """Return the array of the root on all ranks of a group.

    Its gradient is summed on the root, and 0 on other ranks.

    Args:
        group: the group, its arrays, and the attributes. ``root_rank`` is a rank of the job, not a position in the
            group.

    Raises:
        InputError: If the root is not in the group.
    """
    root = group.attrs["root_rank"]
    if root not in group.ranks:
        raise InputError(f"Broadcast: root_rank must be one of the group's ranks {group.ranks}, got {root}")

    def back(dy: Tensor) -> Tensor:
        total = group.run_on(all_reduce, dy, op="sum")
        gradients = [
            x if rank == root else np.zeros_like(x) for rank, x in zip(group.world.ranks, total.stored_shards)
        ]
        return Tensor(group.world, total.meta, gradients)

    source = Layout.replicated(Mesh((1,), (AXIS,), [root]), len(group.shape))
    return group.result(group.redistribute(source, group.layout(), group.shape), back)


def make_run(collective: Callable[[CallGroup], Tensor]) -> Callable[..., Tensor]:
    """Return the function that a primitive runs, for a collective of one operand."""
    return lambda primitive, operands, attrs: collective(
        CallGroup(type(primitive).__name__, operands[0], attrs)
    )


def run_broadcast(primitive: Any, operands: Sequence[Any], attrs: Attrs) -> tuple[Tensor, ...]:
    """Return the root's array on all ranks, for each tensor of a tuple.

    Args:
        primitive: the primitive, whose class is named in errors.
        operands: the tuple of tensors is the first one.
        attrs: the primitive's attributes, with the root's rank.

    Raises:
        UsageTypeError: If the first operand is no tuple and no list.
    """
    name, tensors = type(primitive).__name__, operands[0]
    if not isinstance(tensors, (tuple, list)):
        raise UsageTypeError(
            f"{name}: the operand must be a tuple of tensors, got a {type(tensors).__name__}; nearest: (x,)"
        )
    return tuple(broadcast(CallGroup(name, x, attrs)) for x in tensors)
