"""``AutoParallel``: run a program in parallel with the strategies of its operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

from spmdsim.arrays import Tensor
from spmdsim.auto_parallel.execute import Parallelised
from spmdsim.dialects.mindspore.context import Parallel, Sharing, check_strategy, use_settings
from spmdsim.dialects.mindspore.layout import is_integer
from spmdsim.dialects.mindspore.tensors import to_host_array
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.wrong_calls import wrong_arguments

#: Values of ``optimizer_level`` and of ``parallel_mode``.
LEVELS = ("level1", "level2", "level3")
MODES = ("semi_auto", "sharding_propagation", "recursive_programming")

#: Methods that change only speed; they are accepted without effect.
_IGNORED = (
    "comm_fusion", "disable_gradient_fp32_sync", "enable_fp32_communication", "no_init_parameters_in_compile",
    "transformer_opt",
)  # fmt: skip


class AutoParallel(DialectObject):
    """Runner of a training step, a function or a cell, in parallel.

    Raises InputError if ``parallel_mode`` is unknown. Modes:

    - ``"semi_auto"``: configured operators use their strategies, all others are data parallel.
    - ``"sharding_propagation"``: the strategies of configured operators spread to their neighbours.
    - ``"recursive_programming"``: double recursion finds all strategies.

    In the last two modes, the first call runs replicated and is recorded; later calls use the strategies.

    If all ranks read equal rows and the loss is a mean over a rank's rows (``CrossEntropyLoss``), MindSpore's defaults
    sum the n gradients of n ranks. So a training step is n times the single process's step. To repeat it in one
    process, multiply the learning rate by n. ``docs/losses.md`` derives the factor; :meth:`enable_gradients_mean`
    changes it.
    """

    ORIGINAL = "mindspore.AutoParallel"

    def __init__(self, network: Callable[..., Any], parallel_mode: str = "semi_auto") -> None:
        if parallel_mode not in MODES:
            raise unknown(f"no parallel_mode is called {parallel_mode!r}", str(parallel_mode), MODES)
        self.program = network
        self.network = network if parallel_mode == "semi_auto" else Parallelised(network, parallel_mode)
        self.parallel_mode, self.settings = parallel_mode, Parallel()

    def dataset_strategy(self, config: Any) -> None:
        """State which part of the global input each rank passes.

        Args:
            config: ``"data_parallel"`` (default): each rank passes rows of its own, and the global batch has the rows
                of all ranks. ``"full_batch"``: every rank passes the whole batch. A tuple with cuts or a Layout per
                input: each rank passes its slice.

        Raises:
            InputError: If ``config`` is None or another word.
            UsageTypeError: If it has another type.
        """
        self._set(dataset_strategy=check_strategy(config))

    def enable_gradients_mean(self) -> None:
        """Average the gradients of parameters over the ranks with equal slices; by default they are summed."""
        self._set(gradients_mean=True)

    def disable_loss_repeated_mean(self) -> None:
        """Count a loss that all ranks compute from the whole batch once per rank; by default it counts once."""
        self._set(loss_repeated_mean=False)

    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Split parameters and the optimiser's state further, over the ranks that need equal slices.

        The setting counts for parameters that get their values later, not for those that have values already. A
        parameter is gathered for each operator that uses it. It stays whole if dim 0 would be split unevenly.

        Args:
            shard_size: number of ranks that share a slice; -1 for all that need it.
            threshold: size in KB (1024 bytes) of the whole parameter below which it stays whole.
            optimizer_level: ``"level1"``: gradients are summed as wholes, of which each rank takes its shard.
                ``"level2"``: they are reduced by reduce_scatter. ``"level3"``: gathered parameters are also dropped
                after their operator, and gathered again for the backward pass.

        Raises:
            InputError: If an argument is out of range.
        """
        size = current_world().size
        refuse({
            f"shard_size must be -1 or in 1..{size}, the number of ranks, got {shard_size!r}":
                not is_integer(shard_size) or (shard_size != -1 and not 1 <= shard_size <= size),
            f"threshold must be an integer of 0 or more (KB), got {threshold!r}": not is_integer(threshold) or threshold < 0,
            f"optimizer_level must be one of {', '.join(LEVELS)}, got {optimizer_level!r}": optimizer_level not in LEVELS,
        })  # fmt: skip
        self._set(sharing=Sharing(shard_size, threshold, LEVELS.index(optimizer_level) + 1))

    def pipeline(self, stages: int = 1, *_: Any, **__: Any) -> None:
        """Accept one stage. Raise InputError if ``stages`` is not 1: programs run as one stage here."""
        if not is_integer(stages) or stages != 1:
            raise InputError(
                f"AutoParallel.pipeline: stages must be 1, because a program runs as one stage here, got {stages!r}; "
                "nearest: pipeline(stages=1)"
            )

    def wrap(self, network: Callable[..., Any]) -> AutoParallel:
        """Return an AutoParallel of another network with equal settings."""
        wrapper = AutoParallel(network, self.parallel_mode)
        wrapper.settings = self.settings
        return wrapper

    def _set(self, **changes: Any) -> None:
        """Replace fields of the settings."""
        self.settings = replace(self.settings, **changes)

    def __getattr__(self, name: str) -> Any:
        if name in _IGNORED:
            return lambda *arguments, **options: None
        network = vars(self).get("network")
        return getattr(network, name) if hasattr(network, name) else super().__getattr__(name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the network once; results of one element are returned as numbers, equal on every rank.

        All ranks must call it. Inputs by name are passed on by their place.

        Raises:
            UsageTypeError: If the inputs do not fit the network, or one of them can be passed by name only.
        """
        if named:
            called = getattr(self.program, "construct", self.program)
            try:
                bound = signature(called).bind(*inputs, **named)
            except TypeError as error:
                raise wrong_arguments(called, inputs, named, error) from None
            if bound.kwargs:
                raise UsageTypeError(
                    "AutoParallel passes inputs by their place, but the function accepts "
                    f"{', '.join(bound.kwargs)} by name only; nearest: a function with positional parameters"
                )
            inputs = bound.args
        with use_settings(self.settings):
            result = self.network(*self.settings.to_global(inputs))
        return numbers(result)


def numbers(value: Any) -> Any:
    """Convert tensors of one element to numbers, equal on every rank; all ranks must call it.

    Elements of tuples are converted, too; all other values stay.
    """
    if isinstance(value, Tensor) and value.size == 1:
        return to_host_array(value.full().reshape(()))
    return tuple(map(numbers, value)) if isinstance(value, tuple) else value
