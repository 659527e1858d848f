"""``mindspore.parallel.auto_parallel``: a program with the strategies its operators were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.auto_parallel.carry_out import Parallelised
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor

#: How strategies are decided.
MODES = ("semi_auto", "sharding_propagation", "recursive_programming")


class AutoParallel:
    """Run a training step in parallel.

    Args:
        network: a function or cell.
        parallel_mode: ``"semi_auto"``: configured operators use their strategies, all others are data parallel.
            ``"sharding_propagation"`` spreads the strategies of configured operators, and
            ``"recursive_programming"`` finds all by the double recursion: the first call runs replicated and is
            recorded, later calls run with what was found.

    Raises:
        InputError: another mode.
    """

    def __init__(self, network: Callable[..., Any], parallel_mode: str = "semi_auto") -> None:
        if parallel_mode not in MODES:
            raise InputError(f"no parallel_mode is called {parallel_mode!r}; there are {', '.join(MODES)}")
        if parallel_mode != "semi_auto":
            network = Parallelised(network, parallel_mode)
        self.network = network
        self.parallel_mode = parallel_mode

    def dataset_strategy(self, config: Any = "full_batch") -> None:
        """How data is given: ``"full_batch"`` (every rank is given the whole batch and keeps its piece).

        Raises:
            InputError: another strategy.
        """
        if config != "full_batch":
            raise InputError(
                f"data is given as 'full_batch', not {config!r}: every rank keeps its piece of it"
            )

    def __call__(self, *inputs: Any) -> Any:
        """One call; results of one element come back as numbers, the same on every rank."""
        return _numbers(self.network(*inputs))


def _numbers(value: Any) -> Any:
    if isinstance(value, Tensor) and value.size == 1:
        return value.full().reshape(())[()]
    if isinstance(value, tuple):
        return tuple(_numbers(item) for item in value)
    return value
