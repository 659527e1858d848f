"""``mindspore.parallel.auto_parallel``: a program with the strategies its operators were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdsim.auto_parallel.execute import Parallelised
from spmdsim.dialects.host import host
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor

#: How strategies are decided.
MODES = ("semi_auto", "sharding_propagation", "recursive_programming")

#: Methods that change speed, files or logs only.
_IGNORED = (
    "comm_fusion", "disable_strategy_file_only_for_trainable_params", "dump_local_norm", "enable_device_local_norm",
    "enable_fp32_communication", "enable_gradients_mean", "print_local_norm", "set_group_ckpt_save_file",
    "disable_loss_repeated_mean", "transformer_opt",
)  # fmt: skip
_NEAREST = {
    "hsdp": "spmdsim.nn.sharded_over(axis), the optimiser state split by layout",
    "pipeline": "one stage",
    "load_param_strategy_file": ".shard on the primitives",
    "save_param_strategy_file": "spmdsim search --save",
    "load_operator_strategy_file": ".shard on the primitives",
    "save_operator_strategy_file": "spmdsim search --save",
    "no_init_parameters_in_compile": "no_init_parameters",
}


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

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("network", "parallel_mode"):
            raise AttributeError(name)
        if name in _IGNORED:
            return lambda *arguments, **options: None
        inner = self.__dict__["network"]
        if name not in _NEAREST and hasattr(inner, name):
            return getattr(inner, name)
        from spmdsim.dialects.missing import not_covered

        raise not_covered("mindspore.AutoParallel", name, ("dataset_strategy", *_IGNORED), _NEAREST)

    def __call__(self, *inputs: Any) -> Any:
        """One call; results of one element come back as numbers, the same on every rank."""
        return _numbers(self.network(*inputs))


def _numbers(value: Any) -> Any:
    if isinstance(value, Tensor) and value.size == 1:
        return host(value.full().reshape(()))
    if isinstance(value, tuple):
        return tuple(_numbers(item) for item in value)
    return value
