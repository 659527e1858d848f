"""``paddle.distributed.fleet``: joining the job."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.session import current_world

_joined = [False]


def init(role_maker: Any = None, is_collective: bool = False, strategy: Any = None) -> None:
    """Join the job."""
    current_world()
    _joined[0] = True


def initialised() -> bool:
    """Whether :func:`init` was called."""
    return _joined[0]


def worker_index() -> int:
    """This process's (first) rank."""
    return current_world().ranks[0]


def worker_num() -> int:
    """Number of ranks."""
    return current_world().size
