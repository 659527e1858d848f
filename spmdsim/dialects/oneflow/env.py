"""``oneflow.env``: who takes part."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.session import current_world


def get_rank() -> int:
    """This process's (first) rank."""
    return current_world().ranks[0]


def get_world_size() -> int:
    """Number of ranks."""
    return current_world().size


get_local_rank = get_rank

__all__ = ["get_local_rank", "get_rank", "get_world_size"]
__getattr__ = refusal(
    __name__,
    __all__,
    {
        "all_device_placement": "oneflow.placement.all(type)",
        "get_node_size": "spmdsim.doctor",
        "init_rdma rdma_is_initialized": "the settings of MPI",
    },
)
