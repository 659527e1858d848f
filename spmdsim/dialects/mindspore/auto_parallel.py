"""``AutoParallel``: a program with the strategies that its operators were given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

from spmdsim.arrays import Tensor
from spmdsim.auto_parallel.execute import Parallelised
from spmdsim.dialects.mindspore.context import Parallel, Sharing, checked_strategy, within
from spmdsim.dialects.mindspore.layout import is_whole
from spmdsim.dialects.mindspore.tensors import host
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, unknown
from spmdsim.wrong_calls import wrong_arguments

#: How strategies are decided.
LEVELS = ("level1", "level2", "level3")
MODES = ("semi_auto", "sharding_propagation", "recursive_programming")

#: Methods that change speed only.
_IGNORED = (
    "comm_fusion", "disable_gradient_fp32_sync", "enable_fp32_communication", "no_init_parameters_in_compile",
    "transformer_opt",
)  # fmt: skip


class AutoParallel(DialectObject):
    """Run a training step, a function or cell, in parallel; an InputError for another mode.

    ``"semi_auto"``: configured operators use their strategies, all others are data parallel. ``"sharding_propagation"``
    spreads the strategies of configured operators, and ``"recursive_programming"`` finds all by the double recursion: the
    first call runs replicated and is recorded, later calls run with what was found.

    With MindSpore's defaults, a training step on n ranks is n times the single process's if all ranks read the same rows and
    the loss is a mean over a rank's rows (``CrossEntropyLoss``): the n gradients are summed. To repeat it in one process,
    multiply the learning rate by n. ``docs/losses.md`` derives the factor; :meth:`enable_gradients_mean` changes it.
    """

    ORIGINAL = "mindspore.AutoParallel"

    def __init__(self, network: Callable[..., Any], parallel_mode: str = "semi_auto") -> None:
        if parallel_mode not in MODES:
            raise unknown(f"no parallel_mode is called {parallel_mode!r}", str(parallel_mode), MODES)
        self.program = network
        self.network = network if parallel_mode == "semi_auto" else Parallelised(network, parallel_mode)
        self.parallel_mode, self.settings = parallel_mode, Parallel()

    def dataset_strategy(self, config: Any) -> None:
        """How data is given to each rank; None or another word is a ValueError, anything else that it cannot be a TypeError.

        ``"data_parallel"``, where nothing is said: what a rank is given is its rows of a batch that is as many times as long
        as there are ranks. ``"full_batch"``: every rank is given the whole batch and keeps its piece. A tuple of cuts or a
        Layout per input: what a rank is given is its slice of the input.
        """
        self._set(dataset_strategy=checked_strategy(config))

    def enable_gradients_mean(self) -> None:
        """Gradients of parameters are means over the ranks that hold the same slice, not sums."""
        self._set(gradients_mean=True)

    def disable_loss_repeated_mean(self) -> None:
        """A loss that all ranks compute whole counts once per rank."""
        self._set(loss_repeated_mean=False)

    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Share parameters and the optimiser's state out among the ranks that need the same slice, or ``shard_size`` of them.

        They are gathered where they are used; those of fewer KB than ``threshold`` stay whole. ``"level1"``: gradients are added
        up as wholes, of which each rank takes its piece; ``"level2"``: they are scattered as they are added up; ``"level3"``:
        besides, what was gathered is dropped when its operator has run, and gathered again for the backward pass. Another
        value is a ValueError.
        """
        size = current_world().size
        refuse({
            f"shard_size is -1 or in 1..{size}, the number of ranks, not {shard_size!r}":
                not is_whole(shard_size) or (shard_size != -1 and not 1 <= shard_size <= size),
            f"threshold is a number of KB of at least 0, not {threshold!r}": not is_whole(threshold) or threshold < 0,
            f"optimizer_level is one of {', '.join(LEVELS)}, not {optimizer_level!r}": optimizer_level not in LEVELS,
        })  # fmt: skip
        self._set(sharing=Sharing(shard_size, threshold, LEVELS.index(optimizer_level) + 1))

    def pipeline(self, stages: int = 1, *_: Any, **__: Any) -> None:
        """Accepted with one stage; a ValueError for more."""
        if not is_whole(stages) or stages != 1:
            raise InputError(f"a program runs as one stage here, not {stages!r}; nearest: pipeline(stages=1)")

    def around(self, network: Callable[..., Any]) -> AutoParallel:
        """Another network with the same settings."""
        other = AutoParallel(network, self.parallel_mode)
        other.settings = self.settings
        return other

    def _set(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    def __getattr__(self, name: str) -> Any:
        if name in _IGNORED:
            return lambda *arguments, **options: None
        network = vars(self).get("network")
        return getattr(network, name) if hasattr(network, name) else super().__getattr__(name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """One call; results of one element come back as numbers, the same on every rank."""
        if named:
            called = getattr(self.program, "construct", self.program)
            try:
                inputs = signature(called).bind(*inputs, **named).args
            except TypeError as error:
                raise wrong_arguments(called, inputs, named, error) from None
        with within(self.settings):
            result = self.network(*self.settings.placed(inputs))
        return numbers(result)


def numbers(value: Any) -> Any:
    """Tensors of one element as numbers, the same on every rank."""
    if isinstance(value, Tensor) and value.size == 1:
        return host(value.full().reshape(()))
    return tuple(map(numbers, value)) if isinstance(value, tuple) else value
