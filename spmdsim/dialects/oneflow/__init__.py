"""OneFlow's notation: the modules of ``oneflow`` as tables of names.

>>> from spmdsim.dialects import oneflow as flow
>>> placement = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
>>> flow.layout(placement, (flow.sbp.broadcast, flow.sbp.split(0)), ndim=2).local_shape((4, 8), 1)
(2, 8)
"""

from __future__ import annotations

from spmdsim.dialects.missing import ModuleWords, declare_modules

_RANKS = {"get_rank get_world_size get_local_rank=get_rank": ".session"}

_HOMES = {
    "placement layout broadcast_groups can_merge check_sizes local_range local_shape logical_shape logical_shape_of sbp_of "
    "device": "placements",
    "sbp": "sbp",
    "GlobalTensor LocalTensor Size": "tensors",
    "Tensor arange as_tensor empty eye from_numpy full is_floating_point is_tensor linspace manual_seed numel ones ones_like "
    "rand randint randn randperm tensor zeros zeros_like": "creation",
    "cast cat concat": "operators",
    "enable_grad inference_mode=no_grad is_grad_enabled=is_recording no_grad set_grad_enabled": ".session",
    "bool double dtype float float16 float32 float64 half int int8 int32 int64 long uint8": "dtypes",
}  # fmt: skip
_NEAREST = {
    "seed initial_seed get_rng_state set_rng_state": "manual_seed",
    "clone": "x.detach()",
    "save load": "spmdsim.arrays.checkpoint",
    "one_embedding": "nn.Embedding",
    "profiler": "spmdsim.record",
    "compile jit": "calling the module: programs run eagerly",
    "mv baddbmm": "matmul",
    "bincount hypot histc kron logaddexp": "spmdsim.ops",
    "set_default_dtype get_default_dtype": "dtype= of each call",
    "equal": "eq, and all",
    "is_nonzero": "x.item()",
    "broadcast_like": "expand_as",
    "repeat": "tile",
    "comm": "to_global, which inserts the collectives",
}  # fmt: skip
#: Unsupported methods of tensors -> suggestion.
OF_TENSORS = _NEAREST | {"to_consistent": "x.to_global(placement, sbp)"}
_NO_LAYERS = {
    "parallel": "sbp.split(0) of the input, sbp.broadcast of the parameters",
    "TransformerEncoderLayer TransformerDecoderLayer": "spmdsim.nn.TransformerBlock",
    "Graph graph": "calling the module: programs run eagerly",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "init": "Parameter(global_tensor)",
    "utils": "spmdsim.nn.clip",
}  # fmt: skip
_NO_COLLECTIVES = {
    "all_reduce all_gather all_gather_into_tensor all_to_all broadcast barrier gather reduce reduce_scatter "
    "reduce_scatter_tensor recv scatter send": "x.to_global(placement, sbp), which inserts the collectives",
    "init_process_group": "get_world_size: the world is there already",
}

__getattr__ = declare_modules(__name__, {
    "": ModuleWords(_HOMES, _NEAREST, "operators.FUNCTIONS"),
    "distributed": ModuleWords(_RANKS, _NO_COLLECTIVES, submodules="launch"),
    "env": ModuleWords(_RANKS, {"all_device_placement": "oneflow.placement.all(type)"}),
    "linalg": ModuleWords(tables="operators.LINALG"),
    "nn": ModuleWords({"Module ModuleList Parameter Sequential": "modules"}, _NO_LAYERS, "modules.LAYERS"),
    "nn.functional": ModuleWords(
        nearest={"scaled_dot_product_attention": "spmdsim.nn.Attention"}, tables="operators.NETWORK_FUNCTIONS"
    ),
    "optim": ModuleWords({"SGD Adam AdamW": "optim"}, {"lr_scheduler": "optimiser.rate, set before each step"}),
    "sbp": ModuleWords({"OneFlowError Sbp as_tuple broadcast from_placement parse parse_one partial_sum split text": "sbp"}, {"partial sum P partial_max": "partial_sum", "replicate B": "broadcast"}),
})  # fmt: skip
