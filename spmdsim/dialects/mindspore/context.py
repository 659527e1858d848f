"""Settings: what decides how a program runs in parallel, for all of it or for one ``AutoParallel``; many mean nothing here.

MindSpore differentiates what all ranks' losses add up to. A loss that every rank computes of its own rows
(``CrossEntropyLoss``: no operator sums it) adds up to ranks times the global mean; one that every rank computes whole is
first divided by the ranks that repeat it (``loss_repeated_mean``). A parameter's gradient is then added up over the ranks
that hold the same slice of it, and divided by their number only with ``gradients_mean``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.mindspore.layout import MindSporeLayout, from_cuts, is_whole
from spmdsim.dialects.mindspore.tensors import dressed
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, many, unknown

GRAPH_MODE, PYNATIVE_MODE = 0, 1
#: The names of losses that each rank computes of its own rows.
LOCAL_MEAN, LOCAL_SUM = "mean of a rank's rows", "sum of a rank's rows"


class ParallelMode:
    """The names of ``parallel_mode``."""

    STAND_ALONE, DATA_PARALLEL, HYBRID_PARALLEL = "stand_alone", "data_parallel", "hybrid_parallel"
    SEMI_AUTO_PARALLEL, AUTO_PARALLEL = "semi_auto_parallel", "auto_parallel"


@dataclass(frozen=True)
class Sharing:
    """A parameter's slice and the optimiser's state, split again along dim 0 over the ranks that need it (``hsdp``)."""

    size: int = -1  # so many ranks share; all that need the slice if -1
    threshold: int = 64  # smaller parameters stay whole, in KB
    #: 1: gradients stay whole until the optimiser takes its piece; 2: they are scattered as they are added up; 3: besides,
    #: what was gathered for an operator is gathered again for the backward pass.
    level: int = 1

    def stored(self, layout: Layout, shape: Sequence[int], itemsize: int) -> Layout:
        """Where a parameter of this layout is kept: as it is, if it is too small or its dim 0 does not divide.

        The operator's split is the major one. Fewer ranks than need the slice are those next to one another.
        """
        mesh = layout.mesh
        left = copies(layout) if self.size == -1 else self.size
        if not shape or left == 1 or math.prod(shape) * itemsize < self.threshold * 1024:
            return layout
        if copies(layout) % left:
            raise InputError(
                f"hsdp: shard_size {left} does not divide the "
                f"{many(copies(layout), 'rank that needs', 'ranks that need')} the same slice"
            )
        axes: list[tuple[str, int]] = []
        shared: list[str] = []
        for axis, size in reversed([*zip(mesh.axes, mesh.shape)]):
            part = 1 if axis in layout.split_axes else math.gcd(left, size)
            left //= part
            parts = [(axis, size // part), (f"{axis}'", part)] if 1 < part < size else [(axis, size)]
            axes[:0] = parts
            shared[:0] = [parts[-1][0]] if part > 1 else []
        rows = (*layout.dims[0], *shared)
        if left > 1 or shape[0] % math.prod(dict(axes)[axis] for axis in rows):
            return layout
        return Layout(
            Mesh([n for _, n in axes], [axis for axis, _ in axes], mesh.ranks), [rows, *layout.dims[1:]]
        )


@dataclass(frozen=True)
class Parallel:
    """The settings of one program."""

    #: ``"data_parallel"``: what a rank is given is its rows of the batch; ``"full_batch"``: every rank is given the whole
    #: batch; cuts or a layout per input: what a rank is given is its slice.
    dataset_strategy: Any = "data_parallel"
    gradients_mean: bool = False  # a parameter's gradient is the mean over the ranks that hold the same slice
    loss_repeated_mean: bool = True  # a loss that all ranks compute whole counts once, not once per rank
    sharing: Sharing | None = None  # how parameters are shared out among the ranks that need the same slice

    def factor(self, loss: Tensor) -> int:
        """How often the global loss counts in what is differentiated."""
        if loss.name in (LOCAL_MEAN, LOCAL_SUM):
            return loss.world.size if loss.name == LOCAL_MEAN else 1
        return 1 if self.loss_repeated_mean else copies(loss.layout)

    def divisor(self, layout: Layout) -> int:
        """What the gradient of a parameter of this layout is divided by."""
        return copies(layout) if self.gradients_mean else 1

    def placed(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of a network as global tensors, as the dataset strategy says; whole ones stay as they are."""
        strategy, size = self.dataset_strategy, current_world().size
        if strategy == "full_batch":
            return list(inputs)
        arrays = [isinstance(x, np.ndarray) and x.ndim > 0 for x in inputs]
        if strategy == "data_parallel":
            strategy = [(size, *[1] * (x.ndim - 1)) if array else None for x, array in zip(inputs, arrays)]
        elif len(strategy) != len(inputs):
            raise InputError(
                f"dataset_strategy has {many(len(strategy), 'strategy', 'strategies')}, but the network is given "
                f"{many(len(inputs), 'input')}"
            )
        return [_slice(x, cuts) if array else x for x, cuts, array in zip(inputs, strategy, arrays)]


def copies(layout: Layout) -> int:
    """How many ranks hold the same slice."""
    return layout.mesh.size // layout.mesh.axis_size(*layout.split_axes)


def _slice(array: np.ndarray, cuts: Any) -> Tensor:
    """The global tensor of which every rank was given its slice."""
    world = current_world()
    layout = cuts.of(array.ndim) if isinstance(cuts, MindSporeLayout) else from_cuts(cuts, world.size, "left")
    refuse({
        f"dataset_strategy has a device matrix of {many(layout.mesh.size, 'device')}, but {many(world.size, 'rank is', 'ranks are')} running":
            layout.mesh.size != world.size,
        f"dataset_strategy {cuts} has {many(layout.ndim, 'dim')}, but the input of shape {array.shape} has {array.ndim}":
            layout.ndim != array.ndim,
    })  # fmt: skip
    shape = tuple(n * parts for n, parts in zip(array.shape, layout.cuts))
    told, checksum = f"{array.dtype.name} {array.shape}", zlib.crc32(np.ascontiguousarray(array).tobytes())
    mine = [(told, layout.shard_index(rank), checksum) for rank in world.ranks]
    facts = world.gather_objects(mine, "a comparison of batches")
    first: dict[int, int] = {}
    for rank, (text, place, checksum) in enumerate(facts):
        other = first.setdefault(place, rank)
        refuse({
            f"every rank is given a slice of the same shape, but rank 0 has {facts[0][0]} and rank {rank} has {text}; nearest: "
            "batch(..., drop_remainder=True)": text != facts[0][0],
            f"ranks {other} and {rank} hold the same slice of the input, but were given different arrays; nearest: one shard_id "
            "for both": facts[other][2] != checksum,
        })  # fmt: skip
    return dressed(Tensor.from_local([array.view(np.ndarray)] * len(world.ranks), layout, world, shape=shape))


#: The settings of the programs that are running, the innermost last.
entered: list[Parallel] = []
#: What ``set_auto_parallel_context`` can set, with its default.
DEFAULTS: dict[str, Any] = {
    "parallel_mode": "stand_alone", "search_mode": "recursive_programming", "gradients_mean": False,
    "loss_repeated_mean": True, "full_batch": False, "dataset_strategy": "data_parallel", "device_num": None,
    "global_rank": None,
}  # fmt: skip
chosen: dict[str, Any] = dict(DEFAULTS)


def parallel() -> Parallel | None:
    """The settings in force: of the ``AutoParallel`` around, else of the whole program; none if it is not parallel."""
    if entered:
        return entered[-1]
    if chosen["parallel_mode"] == "stand_alone":
        return None
    return Parallel(**{name: chosen[name] for name in Parallel.__dataclass_fields__ if name in chosen})


@contextmanager
def within(settings: Parallel) -> Iterator[None]:
    """Programs inside run with these settings."""
    entered.append(settings)
    try:
        yield
    finally:
        entered.pop()


def outermost(call: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Call a network. The outermost one is given its inputs as the program's dataset strategy says."""
    settings = None if entered else parallel()
    if settings is None:
        return call(*inputs, **options)
    with within(settings):
        return call(*settings.placed(inputs), **options)


def jit(function: Any = None, **options: Any) -> Any:
    """Functions run as they are; with or without options, which change speed only."""
    return partial(jit, **options) if function is None else wraps(function)(partial(outermost, function))


# -- settings of the whole program ------------------------------------------------------------------------------

#: Settings that change speed or files only, and are accepted.
_IGNORED = (
    "all_reduce_fusion_config auto_parallel_search_mode comm_fusion enable_alltoall group_ckpt_save_file "
    "parameter_broadcast strategy_ckpt_config strategy_ckpt_save_file"
)
_NEAREST = {
    "enable_parallel_optimizer": "spmdsim.nn.sharded_over(axis), the optimiser state split by layout",
    "pipeline_stages": "one stage (1)",
    "strategy_ckpt_load_file": ".shard on the primitives",
    "auto_parallel_context": "set_auto_parallel_context",
}
_other: dict[str, Any] = {"mode": PYNATIVE_MODE, "device_target": "CPU", "device_id": 0}
#: What MindSpore's contexts know besides, and what changes speed or files only.
_KNOWN = (
    "aoe_config aoe_tune_mode ascend_config check_bprop compile_cache_path dataset_broadcast_opt_level "
    "debug_level deterministic disable_format_transform enable_compile_cache enable_dump enable_graph_kernel "
    "enable_mem_reuse enable_profiling enable_reduce_precision enable_sparse env_config_path exec_order "
    "gpu_config grad_for_scalar graph_kernel_flags graph_memory_max_size host_scheduling_max_threshold "
    "inter_op_parallel_num jit_config jit_enable_inplace_ops jit_level jit_syntax_level load_compile_cache "
    "max_call_depth max_device_memory memory_offload memory_optimize_level mempool_block_size op_timeout "
    "precompile_only print_file_path pynative_synchronize reserve_class_name_in_scope runtime_num_threads "
    "save_compile_cache save_dump_path save_graphs save_graphs_path support_binary variable_memory_max_size"
)
_TARGETS = ("Ascend", "GPU", "CPU", "Davinci")


def set_context(**settings: Any) -> None:
    """Checked and remembered: there is one mode, and it is eager.

    A setting that MindSpore does not have, another mode or device is an InputError.
    """
    for name, value in settings.items():
        if name not in _KNOWN.split() and name not in _other:
            raise unknown(f"no context setting is called {name!r}", name, sorted({*_KNOWN.split(), *_other}))
        if name == "mode" and value not in (GRAPH_MODE, PYNATIVE_MODE):
            raise InputError(f"mode is GRAPH_MODE (0) or PYNATIVE_MODE (1), not {value!r}")
        if name == "device_target" and value not in _TARGETS:
            raise unknown(f"no device_target is called {value!r}", str(value), _TARGETS)
    _other.update(settings)


def get_context(attr_key: str) -> Any:
    """What was set, or a default; an InputError for another name."""
    return _looked_up(_other, attr_key, "no setting {!r} was made")


def set_device(device_target: str, device_id: int | None = None) -> None:
    """Checked and remembered: every rank computes on its CPU."""
    set_context(device_target=device_target, device_id=device_id or 0)


def set_auto_parallel_context(**settings: Any) -> None:
    """The older way to say what :class:`AutoParallel` says.

    ``parallel_mode="semi_auto_parallel"`` is what every program does here: operators run with their strategies,
    all others are data parallel. ``"auto_parallel"`` needs :class:`AutoParallel` around the function that is
    searched. ``dataset_strategy``, ``full_batch``, ``gradients_mean`` and ``loss_repeated_mean`` have MindSpore's effect
    on programs that are not stand-alone. A setting that is not covered, or a value that cannot be had, is an InputError.
    """
    for name, value in settings.items():
        if name in _NEAREST and value not in (1, False, None, ""):
            raise InputError(f"{name}={value!r} is not covered by this dialect; nearest: {_NEAREST[name]}")
        _check(name, value)
        if name not in (*_IGNORED.split(), *_NEAREST):
            _looked_up(DEFAULTS, name)
            chosen[name] = value
        if name == "full_batch":
            chosen["dataset_strategy"] = "full_batch" if value else "data_parallel"
        elif name == "dataset_strategy":
            chosen["full_batch"] = value == "full_batch"


def get_auto_parallel_context(attr_key: str) -> Any:
    """What was set, or the default; an InputError for another name."""
    value = _looked_up(chosen, attr_key)
    return current_world().size if attr_key == "device_num" and value is None else value


def reset_auto_parallel_context() -> None:
    """All defaults again."""
    chosen.update(DEFAULTS)


def _looked_up(settings: dict[str, Any], name: str, refusal: str = "no setting is called {!r}") -> Any:
    if name not in settings:
        raise InputError(f"{refusal.format(name)}; there are {', '.join(settings)}")
    return settings[name]


def _check(name: str, value: Any) -> None:
    modes = [mode for word, mode in vars(ParallelMode).items() if not word.startswith("_")]
    if name == "parallel_mode" and value not in modes:
        raise unknown(f"no parallel_mode is called {value!r}", str(value), modes)
    ranks = current_world().size
    refuse({
        "parallel_mode='auto_parallel' is not set for a whole program here; nearest: "
        'AutoParallel(train_step, parallel_mode="recursive_programming")':
            name == "parallel_mode" and value == ParallelMode.AUTO_PARALLEL,
        f"device_num is {value}, but {many(ranks, 'rank is', 'ranks are')} running": name == "device_num" and value not in (None, ranks),
    })  # fmt: skip
    if isinstance(DEFAULTS.get(name), bool) and not isinstance(value, bool):
        raise UsageTypeError(f"{name} is True or False, not {value!r}")
    if name == "dataset_strategy":
        checked_strategy(value)


def checked_strategy(config: Any) -> Any:
    """A dataset strategy: None or another word is a ValueError, anything else that it cannot be a TypeError."""
    if config is None or (isinstance(config, str) and config not in ("full_batch", "data_parallel")):
        raise InputError(f"dataset_strategy is 'full_batch', 'data_parallel' or a tuple, not {config!r}")
    if not isinstance(config, str | tuple):
        raise UsageTypeError(f"dataset_strategy is a str or a tuple, but got a {type(config).__name__}")
    for entry in () if isinstance(config, str) else config:
        if not isinstance(entry, Layout) and not (isinstance(entry, tuple) and all(map(is_whole, entry))):
            raise UsageTypeError(
                f"dataset_strategy has a tuple of cuts or a Layout per input, but got {entry!r}"
            )
    return config


__all__ = [
    "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context", "jit",
    "reset_auto_parallel_context", "set_auto_parallel_context", "set_context", "set_device",
]  # fmt: skip
