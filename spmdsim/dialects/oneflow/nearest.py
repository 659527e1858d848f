"""What to use instead of OneFlow's words that are not covered, where no name here resembles them."""

from __future__ import annotations


def _instead(**words: str) -> dict[str, str]:
    """Word -> what to use, from what to use (a key of :data:`USE`) -> words."""
    return {word: USE[use] for use, names in words.items() for word in names.split()}


#: What there is to use, by a short name.
USE = {
    "array": "x.numpy(), the whole array",
    "new": "the same word without _, which gives a new tensor",
    "seed": "manual_seed",
    "apart": "x.detach()",
    "slices": "x[...]",
    "where": "x.to_global(placement, sbp)",
    "file": "spmdsim.tensor.checkpoint",
    "ours": "spmdsim.ops",
    "patches": "Linear over reshaped patches",
    "layer": "Module with its own forward",
    "loss": "CrossEntropyLoss or MSELoss",
    "norm": "LayerNorm",
    "list": "ModuleList",
    "rate": "optimiser.rate, set before each step",
    "split": "sbp.split(0) of the input, sbp.broadcast of the parameters",
}

_ALIKE = """erfinv scatter scatter_add scatter_nd nms in_top_k mish selu softsign softplus unfold as_strided stride
storage_offset element_size bernoulli normal new_ones"""

#: Of the package.
TOP = {
    **_instead(
        array=_ALIKE,
        new="floor_ sin_",
        seed="seed initial_seed get_rng_state set_rng_state",
        apart="clone",
        slices="logical_slice",
        file="save load",
    ),
    "autograd": "no_grad",
    "cuda": "device",
    "one_embedding": "nn.Embedding",
    "profiler": "spmdsim.record",
    **dict.fromkeys(("compile", "jit"), "calling the module: programs run eagerly"),
    "vmap": "a loop in Python",
    **dict.fromkeys(("mv", "baddbmm"), "matmul"),
    **dict.fromkeys(("bincount", "hypot", "histc", "kron", "logaddexp"), "spmdsim.ops"),
    **dict.fromkeys(("set_default_dtype", "get_default_dtype"), "dtype= of each call"),
    "equal": "eq, and all",
    "is_nonzero": "x.item()",
    "broadcast_like": "expand_as",
    "repeat": "tile",
    "comm": "to_global, which inserts the collectives",
    "set_num_threads": "OMP_NUM_THREADS",
}
#: Of tensors.
TENSOR = {
    **TOP,
    **_instead(
        new="add_ clamp_ clip_ copy_ div_ erfinv_ fill_ mul_ normal_ sub_ uniform_ zeros_",
        where="is_cuda get_device to_consistent",
        apart="grad_fn is_leaf is_lazy is_contiguous register_hook retain_grad data",
        array="pin_memory share_memory_ scatter_",
    ),
    "H": "T",
}
#: Of modules.
MODULE = {
    **dict.fromkeys(("half", "float", "double", "type"), "Parameter(x.to(dtype))"),
    **dict.fromkeys(("register_buffer", "register_parameter", "buffers", "named_buffers"), "an attribute"),
    **dict.fromkeys(("register_forward_hook", "register_forward_pre_hook"), "a module around it"),
    "get_parameter": "dict(named_parameters())",
    "to_consistent": "to_global",
}
#: Of ``nn``.
NN = {
    **_instead(
        patches="Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d MaxPool1d MaxPool2d MaxPool3d "
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AvgPool1d AvgPool2d AvgPool3d ConstantPad1d ConstantPad2d "
        "ConstantPad3d ZeroPad2d PixelShuffle Upsample UpsamplingBilinear2d UpsamplingNearest2d",
        layer="PReLU Softshrink Threshold",
        norm="BatchNorm1d BatchNorm2d BatchNorm3d FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d GroupNorm "
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
        loss="CTCLoss CombinedMarginLoss KLDivLoss MarginRankingLoss TripletMarginLoss",
        list="ModuleDict ParameterList ParameterDict",
        split="parallel",
    ),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), "spmdsim.nn.TransformerBlock"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "a loop over matmul and tanh"),
    "Graph": "calling the module: programs run eagerly",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "init": "Parameter(global_tensor)",
    "utils": "spmdsim.nn.clip",
}
#: Of ``nn.functional``.
FUNCTIONAL = _instead(
    patches="conv1d conv2d conv3d avg_pool2d max_pool2d interpolate",
    ours="prelu group_norm dropout",
) | {"scaled_dot_product_attention": "spmdsim.nn.Attention"}
#: Of ``optim``.
OPTIM = {
    **_instead(rate="lr_scheduler"),
    **dict.fromkeys(("Adagrad", "LAMB", "RMSprop", "LBFGS", "Optimizer"), "Adam or SGD"),
}
