"""Settings: what decides how a program runs in parallel, and many that have no meaning here."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

from spmdsim.dialects.mindspore.settings import DEFAULTS, checked_strategy, chosen, outermost
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, unknown

GRAPH_MODE = 0
PYNATIVE_MODE = 1


class ParallelMode:
    """The names of ``parallel_mode``."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"


#: Settings that change speed or files only, and are accepted.
_IGNORED = {
    "all_reduce_fusion_config", "auto_parallel_search_mode", "comm_fusion", "enable_alltoall", "group_ckpt_save_file",
    "parameter_broadcast", "strategy_ckpt_config", "strategy_ckpt_save_file",
}  # fmt: skip
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

    Raises:
        InputError: a setting that MindSpore does not have, another mode or device.
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
    """What was set, or a default.

    Raises:
        InputError: nothing of that name.
    """
    return _found(_other, attr_key, "no setting {!r} was made")


def set_device(device_target: str, device_id: int | None = None) -> None:
    """Checked and remembered: every rank computes on its CPU."""
    set_context(device_target=device_target, device_id=device_id or 0)


def set_auto_parallel_context(**settings: Any) -> None:
    """The older way to say what :class:`AutoParallel` says.

    ``parallel_mode="semi_auto_parallel"`` is what every program does here: operators run with their strategies,
    all others are data parallel. ``"auto_parallel"`` needs :class:`AutoParallel` around the function that is
    searched. ``dataset_strategy``, ``full_batch``, ``gradients_mean`` and ``loss_repeated_mean`` have MindSpore's effect
    (:mod:`spmdsim.dialects.mindspore.settings`) on programs that are not stand-alone.

    Raises:
        InputError: a setting that is not covered, or a value that cannot be had.
    """
    for name, value in settings.items():
        if name in _NEAREST and value not in (1, False, None, ""):
            raise InputError(f"{name}={value!r} is not covered by this dialect; nearest: {_NEAREST[name]}")
        _check(name, value)
        if name in DEFAULTS:
            chosen[name] = value
        elif name not in _IGNORED and name not in _NEAREST:
            _found(DEFAULTS, name)
        if name == "full_batch":
            chosen["dataset_strategy"] = "full_batch" if value else "data_parallel"
        elif name == "dataset_strategy":
            chosen["full_batch"] = value == "full_batch"


def get_auto_parallel_context(attr_key: str) -> Any:
    """What was set, or the default.

    Raises:
        InputError: nothing of that name.
    """
    value = _found(chosen, attr_key)
    return current_world().size if attr_key == "device_num" and value is None else value


def reset_auto_parallel_context() -> None:
    """All defaults again."""
    chosen.update(DEFAULTS)


def _found(settings: dict[str, Any], name: str, refusal: str = "no setting is called {!r}") -> Any:
    if name not in settings:
        raise InputError(f"{refusal.format(name)}; there are {', '.join(settings)}")
    return settings[name]


def _check(name: str, value: Any) -> None:
    """Refuse values that cannot be had."""
    modes = [mode for word, mode in vars(ParallelMode).items() if not word.startswith("_")]
    if name == "parallel_mode" and value not in modes:
        raise unknown(f"no parallel_mode is called {value!r}", str(value), modes)
    if name == "parallel_mode" and value == ParallelMode.AUTO_PARALLEL:
        raise InputError(
            "parallel_mode='auto_parallel' is not set for a whole program here; nearest: "
            'AutoParallel(train_step, parallel_mode="recursive_programming")'
        )
    if name == "device_num" and value is not None and value != current_world().size:
        raise InputError(f"device_num is {value}, but {current_world().size} ranks are running")
    if name in ("full_batch", "gradients_mean", "loss_repeated_mean") and not isinstance(value, bool):
        raise UsageTypeError(f"{name} is True or False, not {value!r}")
    if name == "dataset_strategy":
        checked_strategy(value)


def jit(function: Any = None, **options: Any) -> Any:
    """Functions run as they are; with or without options, which change speed only."""
    return partial(jit, **options) if function is None else wraps(function)(partial(outermost, function))


__all__ = [
    "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context", "jit",
    "reset_auto_parallel_context", "set_auto_parallel_context", "set_context", "set_device",
]  # fmt: skip
