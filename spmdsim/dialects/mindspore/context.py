"""Settings that decide how a program runs in parallel, for the whole program or for one ``AutoParallel``.

MindSpore differentiates the sum of all ranks' losses. A loss that every rank computes from its own rows
(``CrossEntropyLoss``: no operator sums it) adds up to the number of ranks times the global mean. A loss that every
rank computes from all rows is first divided by the number of ranks that repeat it (``loss_repeated_mean``). A
parameter's gradient is then summed over the ranks with equal slices of it, and divided by their number only with
``gradients_mean``. Many other settings are accepted without effect.
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
from spmdsim.dialects.mindspore.layout import MindSporeLayout, from_cuts, is_integer
from spmdsim.dialects.mindspore.tensors import with_methods
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, many, unknown
from spmdsim.wrong_calls import explained

GRAPH_MODE, PYNATIVE_MODE = 0, 1
#: Names of losses that each rank computes from its own rows.
LOCAL_MEAN, LOCAL_SUM = "mean of a rank's rows", "sum of a rank's rows"


class ParallelMode:
    """Names of ``parallel_mode``."""

    STAND_ALONE, DATA_PARALLEL, HYBRID_PARALLEL = "stand_alone", "data_parallel", "hybrid_parallel"
    SEMI_AUTO_PARALLEL, AUTO_PARALLEL = "semi_auto_parallel", "auto_parallel"


@dataclass(frozen=True)
class Sharing:
    """Settings of ``hsdp``: parameters and optimiser state are split further along dim 0.

    Attributes:
        size: number of ranks that share a slice; -1 for all that need it.
        threshold: size in KB (1024 bytes) of the whole parameter below which it stays whole.
        level: 1: gradients stay whole until the optimiser takes its shard. 2: they are reduced by reduce_scatter.
            3: also, gathered parameters are gathered again for the backward pass.
    """

    size: int = -1
    threshold: int = 64
    level: int = 1

    def storage_layout(self, layout: Layout, shape: Sequence[int], itemsize: int) -> Layout:
        """Return the layout in which a parameter is stored: slices are split further along dim 0.

        If several ranks own equal slices in ``layout``, each of them stores only a part of the slice's rows. The
        attribute ``size`` is the number of ranks that share a slice; -1 means all ranks with equal slices. For a
        smaller number, neighbouring ranks share, and a mesh axis with more ranks is cut in two.

        For example, 8 ranks along axis "dp" all need a parameter with 16 rows. With size -1 each rank stores 2 rows.
        With size 2 the mesh becomes dp=4, dp'=2: even ranks store rows 0 to 7, odd ranks rows 8 to 15.

        The result is ``layout`` itself in each of these cases:

        * the whole parameter has no dims, or is smaller than the attribute ``threshold`` (in KiB);
        * only one rank would share a slice;
        * the mesh's axes cannot be cut for this number of ranks, or dim 0 would be split unevenly.

        Args:
            layout: layout that the operator needs. Its own split of dim 0 stays the major one.
            shape: global shape.
            itemsize: bytes of an element.

        Raises:
            InputError: If ``size`` does not divide the number of ranks with equal slices. A parameter below
                ``threshold`` is not checked.
        """
        mesh, copies = layout.mesh, count_copies(layout)
        sharing_ranks = copies if self.size == -1 else self.size
        if not shape or sharing_ranks == 1 or math.prod(shape) * itemsize < self.threshold * 1024:
            return layout
        if copies % sharing_ranks:
            raise InputError(
                f"hsdp: shard_size must divide the number of ranks that need the same slice, {copies}, got "
                f"{sharing_ranks}"
            )
        axes: list[tuple[str, int]] = []
        shared: list[str] = []
        remaining = sharing_ranks  # the ranks over which axes of the loop still have to split
        for axis, size in reversed([*zip(mesh.axes, mesh.shape)]):
            factor = 1 if axis in layout.split_axes else math.gcd(remaining, size)
            remaining //= factor
            if 1 < factor < size:  # Cut the axis in two: the ranks along the minor part share a slice.
                new_axes = [(axis, size // factor), (f"{axis}'", factor)]
            else:
                new_axes = [(axis, size)]
            axes[:0] = new_axes
            if factor > 1:
                shared.insert(0, new_axes[-1][0])
        rows = (*layout.dims[0], *shared)
        if remaining > 1 or shape[0] % math.prod(dict(axes)[axis] for axis in rows):
            return layout
        return Layout(
            Mesh([n for _, n in axes], [axis for axis, _ in axes], mesh.ranks), [rows, *layout.dims[1:]]
        )


@dataclass(frozen=True)
class Parallel:
    """Settings of one program.

    Attributes:
        dataset_strategy: ``"data_parallel"``: a rank passes its rows of the batch. ``"full_batch"``: every rank
            passes the whole batch. Cuts or a layout per input: a rank passes its slice.
        gradients_mean: True to average a parameter's gradient over the ranks with equal slices; False to sum it.
        loss_repeated_mean: True if a loss that several ranks compute from equal rows counts once; False if it counts
            once per rank.
        sharing: settings of ``hsdp``, or None.
    """

    dataset_strategy: Any = "data_parallel"
    gradients_mean: bool = False
    loss_repeated_mean: bool = True
    sharing: Sharing | None = None

    def loss_factor(self, loss: Tensor) -> int:
        """Return how often the global loss counts in the differentiated sum of all ranks' losses.

        * A mean over each rank's own rows counts once per rank.
        * A sum over each rank's own rows counts once.
        * Any other loss counts once, or, without ``loss_repeated_mean``, once per rank that has a copy of it.

        Args:
            loss: the loss, whose ``name`` is `LOCAL_MEAN` or `LOCAL_SUM` if each rank computes it from its own rows.
        """
        if loss.name == LOCAL_MEAN:
            return loss.world.size
        if loss.name == LOCAL_SUM or self.loss_repeated_mean:
            return 1
        return count_copies(loss.layout)

    def gradient_divisor(self, layout: Layout) -> int:
        """Return the number that divides the gradient of a parameter with this layout."""
        return count_copies(layout) if self.gradients_mean else 1

    def to_global(self, inputs: Sequence[Any]) -> list[Any]:
        """Return a network's inputs as global tensors; all ranks must call it.

        The result depends on the attribute ``dataset_strategy``:

        * ``"data_parallel"``: each array has this rank's rows of the input. With 4 ranks and arrays of shape (8, 3),
          the tensor has shape (32, 3).
        * Cuts or a layout per input: each array is this rank's slice, see `_join_slices`.
        * ``"full_batch"``: all inputs are returned unchanged.

        Inputs that are no arrays, and arrays without dims, are always returned unchanged.

        Args:
            inputs: arguments of the network.

        Raises:
            InputError: If the strategy has more or fewer entries than there are inputs, or slices do not fit together.
            LayoutError: If the product of the cuts does not divide the number of ranks.
        """
        strategy, size = self.dataset_strategy, current_world().size
        if strategy == "full_batch":
            return list(inputs)
        arrays = [isinstance(x, np.ndarray) and x.ndim > 0 for x in inputs]
        if strategy == "data_parallel":
            strategy = [(size, *[1] * (x.ndim - 1)) if array else None for x, array in zip(inputs, arrays)]
        elif len(strategy) != len(inputs):
            raise InputError(
                "dataset_strategy must have one entry per input of the network, got "
                f"{many(len(strategy), 'entry', 'entries')} for {many(len(inputs), 'input')}"
            )
        return [_join_slices(x, cuts) if array else x for x, cuts, array in zip(inputs, strategy, arrays)]


def count_copies(layout: Layout) -> int:
    """Return the number of ranks with equal slices."""
    return layout.mesh.size // layout.mesh.axis_size(*layout.split_axes)


def _join_slices(array: np.ndarray, cuts: Any) -> Tensor:
    """Return the global tensor of which every rank passes its slice; all ranks must call.

    If there are more ranks than slices, the ranks repeat them in order, and ranks with one slice must pass equal
    arrays. For example, 4 ranks pass arrays of shape (8, 3) with cuts (2, 1). The tensor then has shape (16, 3): ranks
    0 and 2 pass its rows 0 to 7, ranks 1 and 3 its rows 8 to 15.

    Args:
        array: the slice of this process; in lock step it is the slice of every rank.
        cuts: number of blocks per dim of the global tensor, whose product divides the number of running ranks; or a
            layout over all running ranks.

    Raises:
        InputError: If the layout has another number of ranks or dims, slices differ in shape or element type, or ranks
            that own one slice pass different arrays.
        LayoutError: If the product of the cuts does not divide the number of ranks.
    """
    world = current_world()
    layout = cuts.of(array.ndim) if isinstance(cuts, MindSporeLayout) else from_cuts(cuts, world.size, "left")
    refuse({
        f"dataset_strategy has a device matrix of {many(layout.mesh.size, 'device')}, but {many(world.size, 'rank is', 'ranks are')} running":
            layout.mesh.size != world.size,
        f"dataset_strategy {cuts} has {many(layout.ndim, 'dim')}, but the input of shape {array.shape} has {array.ndim}":
            layout.ndim != array.ndim,
    })  # fmt: skip
    shape = tuple(n * parts for n, parts in zip(array.shape, layout.cuts))
    description, checksum = (
        f"{array.dtype.name} {array.shape}",
        zlib.crc32(np.ascontiguousarray(array).tobytes()),
    )
    own_descriptions = [(description, layout.shard_index(rank), checksum) for rank in world.ranks]
    facts = world.gather_objects(own_descriptions, "a comparison of batches")
    first: dict[int, int] = {}
    for rank, (text, slice_index, checksum) in enumerate(facts):
        first_rank = first.setdefault(slice_index, rank)
        refuse({
            f"all ranks must pass slices of equal shape and type, but rank 0 has {facts[0][0]} and rank {rank} has {text}; nearest: "
            "batch(..., drop_remainder=True)": text != facts[0][0],
            f"ranks {first_rank} and {rank} own the same slice of the input, so their arrays must be equal, but they differ; nearest: one shard_id "
            "for both": facts[first_rank][2] != checksum,
        })  # fmt: skip
    return with_methods(
        Tensor.from_local([array.view(np.ndarray)] * len(world.ranks), layout, world, shape=shape)
    )


#: The settings of the programs that are running, the innermost last.
entered: list[Parallel] = []
#: Settings of ``set_auto_parallel_context`` with their defaults.
DEFAULTS: dict[str, Any] = {
    "parallel_mode": "stand_alone", "search_mode": "recursive_programming", "gradients_mean": False,
    "loss_repeated_mean": True, "full_batch": False, "dataset_strategy": "data_parallel", "device_num": None,
    "global_rank": None,
}  # fmt: skip
chosen: dict[str, Any] = dict(DEFAULTS)


def parallel() -> Parallel | None:
    """Return the parallel settings in force, or None if the program is stand-alone.

    They are the settings of the innermost `AutoParallel` that is running, or else of the whole program.
    """
    if entered:
        return entered[-1]
    if chosen["parallel_mode"] == "stand_alone":
        return None
    return Parallel(**{name: chosen[name] for name in Parallel.__dataclass_fields__ if name in chosen})


@contextmanager
def use_settings(settings: Parallel) -> Iterator[None]:
    """Run the ``with`` block with these settings; then restore the settings before the block."""
    entered.append(settings)
    try:
        yield
    finally:
        entered.pop()


def call_outermost(call: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Call a network with its inputs, joined to global tensors in a parallel program.

    The inputs of the outermost call are the ranks' slices by the program's dataset strategy. They are joined to global
    tensors, so all ranks must make this call. Calls inside, and stand-alone programs, pass inputs on unchanged.

    Args:
        call: the network.
        inputs: its positional arguments.
        options: its arguments by name, which are passed on unchanged.

    Raises:
        InputError: If slices do not fit together; see `Parallel.to_global`.
    """
    settings = None if entered else parallel()
    if settings is None:
        return call(*inputs, **options)
    with use_settings(settings):
        return call(*settings.to_global(inputs), **options)


def jit(function: Any = None, **options: Any) -> Any:
    """Return ``function`` with the inputs of an outermost network; without a function, a decorator.

    Options change only speed in MindSpore and are ignored.
    """
    return partial(jit, **options) if function is None else wraps(function)(partial(call_outermost, function))


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
#: Further settings of MindSpore's contexts, which change only speed or files.
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
    """Check and store settings of MindSpore's context by name; programs always run eagerly.

    ``mode`` and ``device_target`` are checked, other values are not. After an error, none is stored. No setting has an
    effect.

    Args:
        settings: values by name of setting.

    Raises:
        InputError: If MindSpore has no such setting, mode or device.
    """
    for name, value in settings.items():
        if name not in _KNOWN.split() and name not in _other:
            raise unknown(f"no context setting is called {name!r}", name, sorted({*_KNOWN.split(), *_other}))
        if name == "mode" and value not in (GRAPH_MODE, PYNATIVE_MODE):
            raise InputError(f"mode must be GRAPH_MODE (0) or PYNATIVE_MODE (1), got {value!r}")
        if name == "device_target" and value not in _TARGETS:
            raise unknown(f"no device_target is called {value!r}", str(value), _TARGETS)
    _other.update(settings)


@explained
def get_context(attr_key: str) -> Any:
    """Return a setting, or its default. Raises InputError if it was not set."""
    return _get_setting(_other, attr_key, "no setting {!r} was made")


@explained
def set_device(device_target: str, device_id: int | None = None) -> None:
    """Check and store the device; every rank computes on its CPU."""
    set_context(device_target=device_target, device_id=device_id or 0)


def set_auto_parallel_context(**settings: Any) -> None:
    """Apply settings of :class:`AutoParallel` to the whole program, in MindSpore's older form.

    * ``parallel_mode``: in ``"stand_alone"`` (default) the settings of the next item have no effect; in the other modes
      they have. Operators use their strategies in every mode, and are data parallel without one. ``"auto_parallel"`` is
      refused: it needs :class:`AutoParallel` around the searched function.
    * ``dataset_strategy``, ``gradients_mean`` and ``loss_repeated_mean``: see :class:`Parallel`.
    * ``full_batch``: True sets ``dataset_strategy`` to ``"full_batch"``, False to ``"data_parallel"``. In return, a
      ``dataset_strategy`` sets ``full_batch``.
    * Settings that change only speed or files are ignored.

    For example, ``set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)``.

    Args:
        settings: values by name of setting, applied in order. If one is wrong, those before it stay set.

    Raises:
        InputError: If a setting or a value is not supported.
        UsageTypeError: If a bool is needed, or a dataset strategy has a wrong type.
    """
    for name, value in settings.items():
        if name in _NEAREST and value not in (1, False, None, ""):
            raise InputError(f"{name}={value!r} is not covered by this dialect; nearest: {_NEAREST[name]}")
        _check_setting(name, value)
        if name not in (*_IGNORED.split(), *_NEAREST):
            _get_setting(DEFAULTS, name)
            chosen[name] = value
        if name == "full_batch":
            chosen["dataset_strategy"] = "full_batch" if value else "data_parallel"
        elif name == "dataset_strategy":
            chosen["full_batch"] = value == "full_batch"


@explained
def get_auto_parallel_context(attr_key: str) -> Any:
    """Return a setting, or its default. Raises InputError if there is no such setting."""
    value = _get_setting(chosen, attr_key)
    return current_world().size if attr_key == "device_num" and value is None else value


def reset_auto_parallel_context() -> None:
    """Reset all settings to their defaults."""
    chosen.update(DEFAULTS)


def _get_setting(settings: dict[str, Any], name: str, refusal: str = "no setting is called {!r}") -> Any:
    """Return a setting by name. Raise InputError if there is none; its text is ``refusal`` with the name."""
    if name not in settings:
        raise InputError(f"{refusal.format(name)}; there are {', '.join(settings)}")
    return settings[name]


def _check_setting(name: str, value: Any) -> None:
    """Raise an error if a value does not fit a setting of `set_auto_parallel_context`.

    * ``parallel_mode`` must be one of `ParallelMode`, but not ``"auto_parallel"``.
    * ``device_num`` must be None or the number of ranks.
    * ``dataset_strategy`` must fit `check_strategy`.
    * A setting whose default is a bool must be a bool.

    Values of all other settings are accepted.

    Args:
        name: name of the setting.
        value: its value.

    Raises:
        InputError: If the mode is not supported, or the number of devices is neither None nor the number of ranks.
        UsageTypeError: If a bool is needed, or a dataset strategy has a wrong type.
    """
    modes = [mode for word, mode in vars(ParallelMode).items() if not word.startswith("_")]
    if name == "parallel_mode" and value not in modes:
        raise unknown(f"no parallel_mode is called {value!r}", str(value), modes)
    ranks = current_world().size
    refuse({
        "parallel_mode='auto_parallel' is not set for a whole program here; nearest: "
        'AutoParallel(train_step, parallel_mode="recursive_programming")':
            name == "parallel_mode" and value == ParallelMode.AUTO_PARALLEL,
        f"device_num must be {ranks}, the number of ranks, or None, got {value}": name == "device_num" and value not in (None, ranks),
    })  # fmt: skip
    if isinstance(DEFAULTS.get(name), bool) and not isinstance(value, bool):
        raise UsageTypeError(f"{name} must be True or False, got {value!r}")
    if name == "dataset_strategy":
        check_strategy(value)


def check_strategy(config: Any) -> Any:
    """Return a dataset strategy unchanged after a check.

    Args:
        config: ``"full_batch"``, ``"data_parallel"``, or a tuple with cuts (a tuple of ints) or a Layout per input.
            Sizes of cuts are not checked.

    Raises:
        InputError: If it is None or another word.
        UsageTypeError: If it has another type, or an entry is neither cuts nor a Layout.
    """
    if config is None or (isinstance(config, str) and config not in ("full_batch", "data_parallel")):
        raise InputError(f"dataset_strategy must be 'full_batch', 'data_parallel' or a tuple, got {config!r}")
    if not isinstance(config, str | tuple):
        raise UsageTypeError(f"dataset_strategy must be a str or a tuple, got a {type(config).__name__}")
    for entry in () if isinstance(config, str) else config:
        if not isinstance(entry, Layout) and not (isinstance(entry, tuple) and all(map(is_integer, entry))):
            raise UsageTypeError(
                f"dataset_strategy must have a tuple of cuts or a Layout per input, got {entry!r}"
            )
    return config


__all__ = [
    "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "get_auto_parallel_context", "get_context", "jit",
    "reset_auto_parallel_context", "set_auto_parallel_context", "set_context", "set_device",
]  # fmt: skip
