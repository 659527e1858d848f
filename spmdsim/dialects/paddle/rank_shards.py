"""Tensors of which a program for Paddle sees the rank's own shard: ``split(..., gather_out=False)`` and what follows from it.

Paddle computes from the shard alone. Operators here compute from the global tensor, so a result is compared with Paddle's: its
shard has Paddle's shape, no sum over the shards is pending, and ranks did not communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.tape import MoveNode
from spmdsim.core.tensor import Meta
from spmdsim.dialects.missing import NotCovered
from spmdsim.dialects.paddle.tensors import Shape, Tensor, dressed, has_shards
from spmdsim.dialects.session import use_world
from spmdsim.dialects.table import by_part
from spmdsim.worlds.lockstep_world import ShapeOnly
from spmdsim.worlds.trace.recorder import record, unseen


def rank_shard(x: CoreTensor) -> Tensor:
    """Return a tensor of which the program sees the rank's own shard; unmarked, if every rank has it whole."""
    tensor = dressed(x)
    tensor.is_rank_shard = has_shards(tensor.layout)
    return tensor


def compute_from_shards(function: Callable[..., Any], args: Any, options: Any) -> Any:
    """Return a function's result, some of whose operands are shards of ranks.

    Raises:
        NotCovered: If Paddle's result, which is computed from the rank's shard alone, is another one.
    """
    shards: list[Tensor] = []
    operands = by_part((args, options), lambda x: _as_global(x, shards))
    with record() as trace:
        result = function(*operands[0], **operands[1])
    if not getattr(getattr(function, "__self__", None), "takes_rank_shards", False):
        _check_equals_paddles(function, (args, options), shards, result, trace.counts())
    return by_part(result, lambda x: rank_shard(x) if isinstance(x, CoreTensor) else x)


def _as_global(x: Any, shards: list[Tensor]) -> Any:
    """Return the global tensor of a rank's shard, which is added to ``shards``; anything else as it is."""
    if not isinstance(x, Tensor) or not x.is_rank_shard:
        return x
    shards.append(x)
    tensor = dressed(x, fresh=True)
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
    """Refuse a result whose shards are not what the operands' shards alone give: their shapes, no data of other ranks."""
    world, partial_axes = ShapeOnly(1), {axis for shard in shards for axis in shard.layout.partial_axes}
    results = _tensors(result)
    if communicated or not all(_lies_as_one(x, shards) for x in results):
        args, options = by_part(operands, lambda x: _shard_alone(x, world))
        with use_world(world), unseen():
            alone = _tensors(function(*args, **options))
        for ours, paddles in zip(results, alone):
            shape = ours.layout.local_shape(ours.meta.shape, ours.world.ranks[0])
            further = {*ours.layout.partial_axes} - partial_axes
            if communicated or further or shape != paddles.meta.shape or not has_shards(ours.layout):
                _refuse(
                    function, shards[0], paddles, shape, " and a pending sum" * bool(further), communicated
                )


def _lies_as_one(x: CoreTensor, shards: list[Tensor]) -> bool:
    """Return True if a result has the shape and layout of an operand: it was computed element by element."""
    return any(x.meta.layout == shard.meta.layout and x.meta.shape == shard.meta.shape for shard in shards)


def _refuse(
    function: Callable[..., Any],
    shard: Tensor,
    paddles: CoreTensor,
    shape: Any,
    further: str,
    communicated: dict[str, int],
) -> None:
    steps = f" by {', '.join(communicated)}" if communicated else ""
    rank, name = shard.world.ranks[0], function.__name__.strip("_")
    raise NotCovered(
        f"{name} of rank {rank}'s shard {shard.shape} of {Shape(shard.meta.shape)} is not covered by this dialect: Paddle "
        f"computes {Shape(paddles.meta.shape)} from the shard alone, the global tensor gives {[*shape]}{further}{steps}; "
        "nearest: gather_out=True"
    )


def _tensors(values: Any) -> list[CoreTensor]:
    tensors: list[CoreTensor] = []
    by_part(values, lambda x: tensors.append(x) if isinstance(x, CoreTensor) else None)
    return tensors


def _shard_alone(x: Any, world: ShapeOnly) -> Any:
    """Return a tensor of the first rank's shard's shape in a world of one rank; anything else as it is."""
    tensor = x.value if hasattr(x, "as_operand") else x
    if not isinstance(tensor, CoreTensor):
        return x
    shape = tensor.layout.local_shape(tensor.meta.shape, tensor.world.ranks[0])
    layout = Layout.replicated(Mesh((1,), ("rank",)), len(shape))
    return Tensor(world, Meta.of(layout, shape, tensor.dtype), [world.empty(shape, tensor.meta.held)])
