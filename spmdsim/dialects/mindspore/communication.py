"""``mindspore.communication``: which ranks there are."""

from __future__ import annotations

from spmdsim.dialects.session import current_world


def init(backend_name: str | None = None) -> None:
    """Join the job. The world is there already; ``backend_name`` is accepted and ignored."""
    current_world()


def get_rank() -> int:
    """This process's (first) rank."""
    return current_world().ranks[0]


def get_group_size() -> int:
    """Number of ranks."""
    return current_world().size
