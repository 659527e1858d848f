"""``paddle.distributed``: split, and who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

import spmdsim.tensor as ours
from spmdsim.dialects.missing import Worded, each, not_covered, tell
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.paddle.distributed.placing import (
    dtensor_from_fn,
    reshard,
    shard_layer,
    shard_optimizer,
    shard_tensor,
    unshard_dtensor,
)
from spmdsim.dialects.paddle.process_mesh import Partial, ProcessMesh, ReduceType, Replicate, Shard
from spmdsim.dialects.paddle.process_mesh import layout as layout_of
from spmdsim.dialects.paddle.tensors import Tensor, dressed
from spmdsim.dialects.session import current_world


class ParallelEnv(Worded):
    """This process's place in the job."""

    ORIGINAL = "paddle.distributed.ParallelEnv"
    NEAREST = each({
        "current_endpoint trainer_endpoints": "rank and world_size: ranks have no addresses here",
        "device_type": "paddle.get_device()",
        "nrings pg_timeout": "the settings of MPI",
    })  # fmt: skip

    @property
    def rank(self) -> int:
        """The first rank this process owns."""
        return current_world().ranks[0]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return current_world().size

    dev_id = device_id = local_rank = rank
    nranks = world_size


def get_rank() -> int:
    """This process's (first) rank."""
    return ParallelEnv().rank


get_world_size = fleet.worker_num


def init_parallel_env() -> ParallelEnv:
    """Join the job; the world is there already."""
    return ParallelEnv()


def dtensor_from_local(local_tensor: Any, mesh: ProcessMesh, placements: Sequence[Any]) -> Tensor:
    """A tensor put together from each rank's own piece (a list with one piece per rank in lock step)."""
    pieces = local_tensor if isinstance(local_tensor, list) else [local_tensor] * len(current_world().ranks)
    where = layout_of(mesh, placements, np.ndim(pieces[0]))
    return dressed(ours.Tensor.from_local([np.asarray(x) for x in pieces], where, current_world()))


__all__ = [
    "ParallelEnv", "Partial", "ProcessMesh", "ReduceType", "Replicate", "Shard", "dtensor_from_fn", "dtensor_from_local",
    "fleet", "get_rank", "get_world_size", "init_parallel_env", "reshard", "shard_layer", "shard_optimizer", "shard_tensor",
    "split", "unshard_dtensor", "with_padding_rows",
]  # fmt: skip

_COLLECTIVES = (
    "all_gather all_reduce alltoall alltoall_single barrier broadcast gather irecv isend recv reduce reduce_scatter scatter "
    "send stream wait dtensor_to_local"
)
#: What to use instead of a name that resembles none here.
NEAREST = {
    **dict.fromkeys(_COLLECTIVES.split(), "reshard(tensor, mesh, placements), which inserts the collectives"),
    **dict.fromkeys(("launch", "spawn", "rpc"), "spmdsim launch"),
    **dict.fromkeys(("InMemoryDataset", "QueueDataset"), "paddle.to_tensor of each batch"),
    **dict.fromkeys(
        ("new_group", "get_group", "destroy_process_group", "set_mesh", "get_mesh"), "ProcessMesh"
    ),
    **dict.fromkeys(("parallelize", "to_static", "Strategy", "DistAttr"), "shard_tensor per parameter"),
    "shard_dataloader": "shard_tensor of each batch",
    **dict.fromkeys(
        ("all_gather_object", "broadcast_object_list", "scatter_object_list"),
        "spmdsim's world.gather_objects",
    ),
    "ReduceOp": "Partial(op)",
    **dict.fromkeys(("save_state_dict", "load_state_dict"), "spmdsim.tensor.checkpoint"),
    "sharding": "spmdsim.nn.sharded_over",
    **dict.fromkeys(("is_initialized", "is_available", "get_backend"), "get_world_size"),
}


tell(__name__, __all__)


def __getattr__(name: str) -> Any:
    if name in ("split", "with_padding_rows"):  # which need layers, which need fleet
        module = import_module("spmdsim.dialects.paddle.split_operation")
        tell(module.__name__, [name])
        return getattr(module, name)
    raise not_covered(__name__, name, __all__, NEAREST)


def __dir__() -> list[str]:
    return sorted(__all__)
