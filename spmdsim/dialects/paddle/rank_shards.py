"""Tensors of which a Paddle program sees the rank's own shard: results of ``split(..., gather_out=False)`` and of later
calls.

In this file, a rank's shard is such a tensor; the global tensor is what the library computes with. Paddle computes from
the shard alone. Operators here compute from the global tensor, so each result is compared with Paddle's: its shard must
have Paddle's shape, no further sum over the shards may be pending, and ranks must not have communicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.tensor import Meta, MoveNode
from spmdsim.dialects.missing import NotCovered
from spmdsim.dialects.paddle.tensors import Shape, Tensor, has_shards, with_methods
from spmdsim.dialects.session import use_world
from spmdsim.dialects.table import find_instances, map_nested
from spmdsim.worlds.lockstep_world import ShapeOnly
from spmdsim.worlds.trace.recorder import record, unseen


def wrap_rank_shard(x: CoreTensor) -> Tensor:
    """Return a tensor of which the program sees the rank's own shard; unmarked if it is replicated."""
    tensor = with_methods(x)
    tensor.is_rank_shard = has_shards(tensor.layout)
    return tensor


def compute_from_shards(function: Callable[..., Any], args: Any, options: Any) -> Any:
    """Return the result of a function, some of whose operands are the ranks' own shards.

    A rank's own shard is a tensor of which the program sees the rank's shard alone. The function gets the global
    tensors. Tensors of the result that are not replicated are ranks' shards, too; its other values stay.

    Args:
        function: the function or the bound method.
        args: the tuple of its positional arguments; tensors may be nested in them.
        options: the dict of its named arguments; tensors may be nested in them.

    Raises:
        NotCovered: If Paddle's result, which is computed from the rank's shard alone, differs
            (:func:`_check_equals_paddles`). Methods of layers with ``takes_rank_shards`` are not checked, because these
            layers sum over the shards in Paddle, too.
    """
    shards: list[Tensor] = []
    operands = map_nested((args, options), lambda x: _as_global(x, shards))
    with record() as trace:
        result = function(*operands[0], **operands[1])
    if not getattr(getattr(function, "__self__", None), "takes_rank_shards", False):
        _check_equals_paddles(function, (args, options), shards, result, trace.counts())
    return map_nested(result, lambda x: wrap_rank_shard(x) if isinstance(x, CoreTensor) else x)


def _as_global(x: Any, shards: list[Tensor]) -> Any:
    """Return the global tensor of a rank's shard, and append the shard to ``shards``.

    The global tensor is a new object; gradients pass back to the shard.
    """
    if not isinstance(x, Tensor) or not x.is_rank_shard:
        return x
    shards.append(x)
    tensor = with_methods(x, fresh=True)
    tensor.owner = x.owner
    if x.requires_grad and x.node is None:
        tensor.node = MoveNode(x)
    return tensor


def _check_equals_paddles(
    function: Callable[..., Any],
    operands: Any,
    shards: list[Tensor],
    result: Any,
    communicated: dict[str, int],
) -> None:
    """Raise NotCovered if a result differs from Paddle's result of one rank's shard alone.

    spmdsim computes from global tensors, Paddle from the shard of the rank. Nothing is checked if ranks have not
    communicated and each result has the shape and layout of one of ``shards``. Otherwise ``function`` is called with
    the first rank's shards, in a world without data: this gives the shapes of Paddle's results. A result is then
    refused in each of these cases:

    * ranks have communicated;
    * it has a pending reduction over an axis that no shard has pending;
    * it is replicated;
    * its shard on the first rank has another shape than Paddle's result.

    Results that are no tensors are ignored.

    Args:
        function: the function.
        operands: its positional and named arguments, as a pair; tensors may be nested in them.
        shards: the operands that are shards of ranks, at least one.
        result: the result; tensors may be nested in it.
        communicated: number of calls of each collective in the calculation; empty if there were none.

    Raises:
        NotCovered: If a result is refused. The text has both shapes and the names of the collectives.
    """
    world, partial_axes = ShapeOnly(1), {axis for shard in shards for axis in shard.layout.partial_axes}
    results = find_instances(result, CoreTensor)
    if communicated or not all(_has_operand_layout(x, shards) for x in results):
        args, options = map_nested(operands, lambda x: _shard_alone(x, world))
        with use_world(world), unseen():
            paddle_results = find_instances(function(*args, **options), CoreTensor)
        for ours, paddles in zip(results, paddle_results):
            shape = ours.layout.local_shape(ours.meta.shape, ours.world.ranks[0])
            new_partial_axes = {*ours.layout.partial_axes} - partial_axes
            if communicated or new_partial_axes or shape != paddles.meta.shape or not has_shards(ours.layout):
                reason = " and a pending sum" if new_partial_axes else ""
                _refuse(function, shards[0], paddles, shape, reason, communicated)


def _has_operand_layout(x: CoreTensor, shards: list[Tensor]) -> bool:
    """Return True if a result has the shape and layout of one of ``shards``.

    It was then computed element by element.
    """
    return any(x.meta.layout == shard.meta.layout and x.meta.shape == shard.meta.shape for shard in shards)


def _refuse(
    function: Callable[..., Any],
    shard: Tensor,
    paddles: CoreTensor,
    shape: Any,
    further: str,
    communicated: dict[str, int],
) -> None:
    """Raise NotCovered: Paddle's result for one rank's shard differs from the global tensor's.

    The text has the shapes of both results.
    """
    steps = f" by {', '.join(communicated)}" if communicated else ""
    rank, name = shard.world.ranks[0], function.__name__.strip("_")
    raise NotCovered(
        f"{name} of rank {rank}'s shard {shard.shape} of {Shape(shard.meta.shape)} is not covered by this dialect: Paddle "
        f"computes {Shape(paddles.meta.shape)} from the shard alone, the global tensor gives {[*shape]}{further}{steps}; "
        "nearest: gather_out=True"
    )


def _shard_alone(x: Any, world: ShapeOnly) -> Any:
    """Return an operand as one shard without data: the shard of the first rank of this process."""
    tensor = x.value if hasattr(x, "as_operand") else x
    if not isinstance(tensor, CoreTensor):
        return x
    shape = tensor.layout.local_shape(tensor.meta.shape, tensor.world.ranks[0])
    layout = Layout.replicated(Mesh((1,), ("rank",)), len(shape))
    return Tensor(
        world, Meta.of(layout, shape, tensor.dtype), [world.empty(shape, tensor.meta.storage_dtype)]
    )
