"""OneFlow's spelling.

>>> from spmdsim.dialects import oneflow as flow
>>> placement = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
>>> flow.layout(placement, (flow.sbp.broadcast, flow.sbp.split(0)), ndim=2).local_shape((4, 8), 1)
(2, 8)
"""

from __future__ import annotations

from spmdsim.dialects.missing import ModuleWords, declare_modules

_FILE, _OURS, _RATE = "spmdsim.arrays.checkpoint", "spmdsim.ops", "optimiser.rate, set before each step"
_NEW, _WHOLE = "the same word without _, which gives a new tensor", "x.numpy(), the whole array"
_BOXING = "x.to_global(placement, sbp), which inserts the collectives"
_PATCHES = "Linear over reshaped patches"
_RANKS = {"get_rank get_world_size get_local_rank=get_rank": ".session"}

_HOMES = {
    "placement layout broadcast_groups can_merge check_sizes local_range local_shape logical_shape logical_shape_of sbp_of "
    "device": "placements",
    "sbp": "sbp",
    "GlobalTensor LocalTensor Size": "tensors",
    "Tensor arange as_tensor empty eye from_numpy full is_floating_point is_tensor linspace manual_seed numel ones ones_like "
    "rand randint randn randperm tensor zeros zeros_like": "creation",
    "cast cat concat": "operators",
    "enable_grad inference_mode=no_grad is_grad_enabled=tracking no_grad set_grad_enabled": ".session",
    "bool double dtype float float16 float32 float64 half int int8 int32 int64 long uint8": "dtypes",
}  # fmt: skip
_NEAREST = {
    "erfinv scatter scatter_add scatter_nd nms in_top_k mish selu softsign softplus unfold as_strided stride "
    "storage_offset element_size bernoulli normal new_ones": _WHOLE,
    "floor_ sin_": _NEW,
    "seed initial_seed get_rng_state set_rng_state": "manual_seed",
    "clone": "x.detach()",
    "logical_slice": "x[...]",
    "save load": _FILE,
    "autograd": "no_grad",
    "cuda": "device",
    "one_embedding": "nn.Embedding",
    "profiler": "spmdsim.record",
    "compile jit": "calling the module: programs run eagerly",
    "vmap": "a loop in Python",
    "utils": "a loop over arrays, each to_global",
    "framework onnx hub": "the same word of oneflow",
    "mv baddbmm": "matmul",
    "bincount hypot histc kron logaddexp": _OURS,
    "set_printoptions": "numpy.set_printoptions and x.numpy()",
    "set_default_dtype get_default_dtype": "dtype= of each call",
    "equal": "eq, and all",
    "is_nonzero": "x.item()",
    "broadcast_like": "expand_as",
    "repeat": "tile",
    "comm": "to_global, which inserts the collectives",
    "set_num_threads": "OMP_NUM_THREADS",
}  # fmt: skip
#: What to use instead of a tensor's words that are not covered.
OF_TENSORS = _NEAREST | {
    "add_ clamp_ clip_ copy_ div_ erfinv_ fill_ mul_ normal_ sub_ uniform_ zeros_": _NEW,
    "is_cuda get_device to_consistent": "x.to_global(placement, sbp)",
    "grad_fn is_lazy is_contiguous register_hook retain_grad data": "x.detach()",
    "pin_memory share_memory_ scatter_": _WHOLE,
    "H": "T",
}  # fmt: skip
_NO_LAYERS = {
    "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d MaxPool1d MaxPool2d MaxPool3d ConstantPad1d "
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AvgPool1d AvgPool2d AvgPool3d ConstantPad2d ConstantPad3d "
    "ZeroPad2d PixelShuffle Upsample UpsamplingBilinear2d UpsamplingNearest2d": _PATCHES,
    "PReLU Softshrink Threshold": "Module with its own forward",
    "BatchNorm1d BatchNorm2d BatchNorm3d FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d GroupNorm "
    "InstanceNorm1d InstanceNorm2d InstanceNorm3d": "LayerNorm",
    "CTCLoss CombinedMarginLoss KLDivLoss MarginRankingLoss TripletMarginLoss": "CrossEntropyLoss or MSELoss",
    "ModuleDict ParameterList ParameterDict": "ModuleList",
    "parallel": "sbp.split(0) of the input, sbp.broadcast of the parameters",
    "TransformerEncoderLayer TransformerDecoderLayer": "spmdsim.nn.TransformerBlock",
    "LSTM GRU RNN": "a loop over matmul and tanh",
    "Graph graph": "calling the module: programs run eagerly",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "init": "Parameter(global_tensor)",
    "utils": "spmdsim.nn.clip",
}  # fmt: skip
_NO_FUNCTIONS = {
    "conv1d conv2d conv3d avg_pool2d max_pool2d interpolate": _PATCHES,
    "prelu group_norm dropout": _OURS,
    "scaled_dot_product_attention": "spmdsim.nn.Attention",
}
_NO_COLLECTIVES = {
    "all_reduce all_gather all_gather_into_tensor all_to_all broadcast barrier gather reduce reduce_scatter "
    "reduce_scatter_tensor recv scatter send": _BOXING,
    "init_process_group": "get_world_size: the world is there already",
}
_NO_SETTINGS = {
    "all_device_placement": "oneflow.placement.all(type)",
    "get_node_size": "spmdsim doctor",
    "init_rdma rdma_is_initialized": "the settings of MPI",
}

__getattr__ = declare_modules(__name__, {
    "": ModuleWords(_HOMES, _NEAREST, "operators.FUNCTIONS"),
    "distributed": ModuleWords(_RANKS, _NO_COLLECTIVES),
    "env": ModuleWords(_RANKS, _NO_SETTINGS),
    "linalg": ModuleWords(nearest={"matrix_norm": "norm"}, tables="operators.LINALG"),
    "nn": ModuleWords({"Module ModuleList Parameter Sequential": "modules"}, _NO_LAYERS, "modules.LAYERS"),
    "nn.functional": ModuleWords(nearest=_NO_FUNCTIONS, tables="operators.NETWORK_FUNCTIONS"),
    "optim": ModuleWords({"SGD Adam AdamW": "optim"}, {"lr_scheduler": _RATE, "Adagrad LAMB RMSprop LBFGS Optimizer": "Adam or SGD"}),
    "sbp": ModuleWords({"OneFlowError Sbp as_tuple broadcast from_placement parse parse_one partial_sum split text": "sbp"}, {"partial sum P partial_max": "partial_sum", "replicate B": "broadcast"}),
})  # fmt: skip
