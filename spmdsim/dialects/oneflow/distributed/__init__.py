"""``oneflow.distributed``: how a program is started, and who takes part."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.oneflow.env import get_local_rank, get_rank, get_world_size

__all__ = ["get_local_rank", "get_rank", "get_world_size"]

_BOXING = "x.to_global(placement, sbp), which inserts the collectives"
_COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor all_to_all broadcast barrier gather reduce reduce_scatter "
    "reduce_scatter_tensor recv scatter send"
)
__getattr__ = refusal(
    __name__,
    [*__all__, "launch"],
    dict.fromkeys(_COLLECTIVES.split(), _BOXING)
    | {"init_process_group": "get_world_size: the world is there already"},
)
