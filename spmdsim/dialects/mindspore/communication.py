"""``mindspore.communication``: which ranks there are."""

from __future__ import annotations

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError

GlobalComm = type("GlobalComm", (), {"WORLD_COMM_GROUP": "world_group", "__doc__": "Names of groups."})


def init(backend_name: str | None = None) -> None:
    """Join the job. The world is there already; ``backend_name`` is accepted and ignored."""
    current_world()


def release() -> None:
    """Accepted and ignored: the job ends with the program."""


def get_rank(group: str | None = None) -> int:
    """This process's (first) rank."""
    _whole(group)
    return current_world().ranks[0]


def get_group_size(group: str | None = None) -> int:
    """Number of ranks."""
    _whole(group)
    return current_world().size


get_local_rank, get_local_rank_size = get_rank, get_group_size


def _whole(group: str | None) -> None:
    if group not in (None, GlobalComm.WORLD_COMM_GROUP):  # type: ignore[attr-defined]
        raise InputError(
            f"there is no group {group!r}: groups follow from layouts; nearest: the world, without a name"
        )


__all__ = [
    "GlobalComm", "get_group_size", "get_local_rank", "get_local_rank_size", "get_rank", "init", "release",
]  # fmt: skip
__getattr__ = refusal(__name__, __all__, {"create_group": "Mesh.groups of a Layout's mesh"})
