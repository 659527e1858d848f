"""``mindspore.parallel.auto_parallel``: a program with the strategies its operators were given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spmdsim.auto_parallel.execute import Parallelised
from spmdsim.dialects.host import host
from spmdsim.dialects.mindspore.settings import Parallel, checked_strategy, within
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor

#: How strategies are decided.
MODES = ("semi_auto", "sharding_propagation", "recursive_programming")

#: Methods that change speed, files or logs only.
_IGNORED = (
    "comm_fusion", "disable_gradient_fp32_sync", "disable_strategy_file_only_for_trainable_params",
    "enable_fp32_communication", "transformer_opt",
)  # fmt: skip
_NEAREST = {
    **dict.fromkeys(
        ("dump_local_norm", "enable_device_local_norm", "print_local_norm"), "spmdsim.nn.global_norm"
    ),
    "set_group_ckpt_save_file": "Mesh.groups of a Layout's mesh",
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
        self.program = network
        if parallel_mode != "semi_auto":
            network = Parallelised(network, parallel_mode)
        self.network = network
        self.parallel_mode = parallel_mode
        self.settings = Parallel()

    def dataset_strategy(self, config: Any) -> None:
        """How data is given to each rank.

        Args:
            config: ``"data_parallel"``, where nothing is said: what a rank is given is its rows of a batch that is as
                many times as long as there are ranks. ``"full_batch"``: every rank is given the whole batch and keeps its
                piece. A tuple of cuts or a Layout per input: what a rank is given is its slice of the input.

        Raises:
            ValueError: None, or another word.
            TypeError: anything else.
        """
        self._set(dataset_strategy=checked_strategy(config))

    def enable_gradients_mean(self) -> None:
        """Gradients of parameters are means over the ranks that hold the same slice, not sums."""
        self._set(gradients_mean=True)

    def disable_loss_repeated_mean(self) -> None:
        """A loss that all ranks compute whole counts once per rank."""
        self._set(loss_repeated_mean=False)

    def around(self, network: Callable[..., Any]) -> AutoParallel:
        """Another network with the same settings."""
        other = AutoParallel(network, self.parallel_mode)
        other.settings = self.settings
        return other

    def _set(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("network", "parallel_mode", "program", "settings"):
            raise AttributeError(name)
        if name in _IGNORED:
            return lambda *arguments, **options: None
        inner = self.__dict__["network"]
        if name not in _NEAREST and hasattr(inner, name):
            return getattr(inner, name)
        from spmdsim.dialects.missing import not_covered

        raise not_covered(
            "mindspore.AutoParallel",
            name,
            (*(word for word in dir(type(self)) if word[0] != "_"), *_IGNORED),
            _NEAREST,
        )

    def __call__(self, *inputs: Any) -> Any:
        """One call; results of one element come back as numbers, the same on every rank."""
        with within(self.settings):
            return numbers(self.network(*self.settings.given(inputs)))


def numbers(value: Any) -> Any:
    """Tensors of one element as numbers, the same on every rank."""
    if isinstance(value, Tensor) and value.size == 1:
        return host(value.full().reshape(()))
    if isinstance(value, tuple):
        return tuple(numbers(item) for item in value)
    return value
