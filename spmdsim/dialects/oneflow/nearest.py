"""What to use instead of OneFlow's words that are not covered, where no name here resembles them."""

from __future__ import annotations

from spmdsim.dialects.missing import each

_FILE, _OURS, _RATE = "spmdsim.tensor.checkpoint", "spmdsim.ops", "optimiser.rate, set before each step"
_NEW, _WHOLE = "the same word without _, which gives a new tensor", "x.numpy(), the whole array"
_PATCHES = "Linear over reshaped patches"

#: Of the package.
TOP = each({
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
    "set_default_dtype get_default_dtype": "dtype= of each call",
    "equal": "eq, and all",
    "is_nonzero": "x.item()",
    "broadcast_like": "expand_as",
    "repeat": "tile",
    "comm": "to_global, which inserts the collectives",
    "set_num_threads": "OMP_NUM_THREADS",
})  # fmt: skip
#: Of tensors.
TENSOR = TOP | each({
    "add_ clamp_ clip_ copy_ div_ erfinv_ fill_ mul_ normal_ sub_ uniform_ zeros_": _NEW,
    "is_cuda get_device to_consistent": "x.to_global(placement, sbp)",
    "grad_fn is_lazy is_contiguous register_hook retain_grad data": "x.detach()",
    "pin_memory share_memory_ scatter_": _WHOLE,
    "H": "T",
})  # fmt: skip
#: Of modules.
MODULE = each({
    "half float double type": "Parameter(x.to(dtype))",
    "register_buffer register_parameter buffers named_buffers": "an attribute",
    "register_forward_hook register_forward_pre_hook": "a module around it",
    "get_parameter": "dict(named_parameters())",
    "to_consistent": "to_global",
})  # fmt: skip
#: Of ``nn``.
NN = each({
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
})  # fmt: skip
#: Of ``nn.functional``.
FUNCTIONAL = each({
    "conv1d conv2d conv3d avg_pool2d max_pool2d interpolate": _PATCHES,
    "prelu group_norm dropout": _OURS,
    "scaled_dot_product_attention": "spmdsim.nn.Attention",
})  # fmt: skip
#: Of ``optim``.
OPTIM = each({"lr_scheduler": _RATE, "Adagrad LAMB RMSprop LBFGS Optimizer": "Adam or SGD"})
