"""``paddle.distributed.fleet``: join the job, and set the number of ranks over which layers are split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spmdsim.dialects.missing import refuse
from spmdsim.dialects.session import current_world, hint_more_ranks
from spmdsim.errors import many

_joined = [False]
_degrees = {"dp_degree": 0, "mp_degree": 0}


@dataclass
class DistributedStrategy:
    """Options of :func:`init`: ``hybrid_configs`` with ``dp_degree`` and ``mp_degree``."""

    hybrid_configs: dict[str, Any] = field(default_factory=dict)
    tensor_parallel_configs: dict[str, Any] = field(default_factory=dict)


def init(role_maker: Any = None, is_collective: bool = False, strategy: Any = None, **options: Any) -> None:
    """Join the job; later parallel layers are split over ``mp_degree`` ranks, by default all.

    The degrees must satisfy ``dp_degree * mp_degree == number of ranks``. If one of them is missing, 0 or
    negative, it is computed: with 8 ranks and ``mp_degree`` 4, ``dp_degree`` is 2. If both are, ``mp_degree`` is the number
    of ranks.

    Args:
        role_maker: not used: the interface has it.
        is_collective: not used.
        strategy: a `DistributedStrategy`, whose ``hybrid_configs`` have the degrees; or None.
        options: not used.

    Raises:
        InputError: If ``pp_degree``, ``sharding_degree`` or ``sep_degree`` is not 1 or -1, or the other degrees do not
            multiply to the number of ranks.
    """
    size = current_world().size
    degrees = getattr(strategy, "hybrid_configs", None) or {}
    refuse({
        f"{name}={degrees[name]} is not covered by this dialect; nearest: {name}=1 with dp_degree and mp_degree": degrees[name] not in (1, -1)
        for name in ("pp_degree", "sharding_degree", "sep_degree") if name in degrees
    })  # fmt: skip
    model, data = (max(0, int(degrees.get(name, 0))) for name in ("mp_degree", "dp_degree"))
    model = model or (size // data if data else size)
    data = data or size // model
    fits = data * model == size
    refuse(
        {
            f"dp_degree * mp_degree is {data} * {model}, but {many(size, 'rank is', 'ranks are')} running{hint_more_ranks()}": not fits
        }
    )
    _joined[0] = True
    # 0 without degrees: :func:`model_parts` then takes all ranks of the world in which it is called.
    _degrees.update(dp_degree=data, mp_degree=model if degrees else 0)


def is_initialised() -> bool:
    """Return True if :func:`init` was called."""
    return _joined[0]


def model_parts() -> int:
    """Return the number of ranks over which layers are split.

    It is the ``mp_degree`` of :func:`init`. Without one, or if it does not divide the number of ranks, it is this
    number.
    """
    size = current_world().size
    degree = _degrees["mp_degree"]
    return degree if degree and size % degree == 0 else size


class HybridCommunicateGroup:
    """Position of this process's first rank in the data- and model-parallel groups."""

    def get_model_parallel_world_size(self) -> int:
        """Return the number of shards of a layer."""
        return model_parts()

    def get_model_parallel_rank(self) -> int:
        """Return the number of this rank's shard."""
        return current_world().ranks[0] % model_parts()

    def get_data_parallel_world_size(self) -> int:
        """Return the number of ranks with equal shards."""
        return current_world().size // model_parts()

    def get_data_parallel_rank(self) -> int:
        """Return this rank's position among the ranks with equal shards."""
        return current_world().ranks[0] // model_parts()


def distributed_model(model: Any) -> Any:
    """Return the model itself: its layers have layouts."""
    return model


def distributed_optimizer(optimizer: Any, strategy: Any = None) -> Any:
    """Return the optimiser itself: layouts decide how gradients are reduced."""
    return optimizer


def is_first_worker() -> bool:
    """Return True if this process has rank 0."""
    return current_world().ranks[0] == 0
