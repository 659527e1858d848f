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
    "whole": "amax and argmax, amin and argmin",
    "ours": "spmdsim.ops",
    "patches": "Linear over reshaped patches",
    "layer": "Module with its own forward",
    "loss": "CrossEntropyLoss or MSELoss",
    "norm": "LayerNorm",
    "list": "ModuleList",
    "rate": "optimiser.rate, set before each step",
    "split": "sbp.split(0) of the input, sbp.broadcast of the parameters",
}

_ALIKE = """acos acosh arccos arccosh addcmul asin asinh arcsin arcsinh atan atanh arctan arctanh atan2 cosh erfc
erfinv fmod isinf isnan logical_xor log2 sinh tan median argsort sort topk cumprod cumsum diag diagonal meshgrid roll
searchsorted tensordot tril triu addmm dot scatter scatter_add scatter_nd argwhere nonzero is_nonzero norm nms in_top_k
mish selu softsign softplus broadcast_like unfold any equal as_strided stride storage_offset element_size repeat tile
expand expand_as index_select masked_select bernoulli normal new_ones masked_fill"""

#: Of the package.
TOP = {
    **_instead(
        array=_ALIKE,
        new="floor_ sin_",
        seed="seed initial_seed get_rng_state set_rng_state",
        apart="no_grad set_grad_enabled enable_grad is_grad_enabled inference_mode autograd clone",
        slices="hsplit vsplit narrow select logical_slice",
        file="save load",
        whole="max min",
    ),
    "comm": "to_global, which inserts the collectives",
    "movedim": "permute",
    "set_num_threads": "OMP_NUM_THREADS",
    "round": "spmdsim.ops.rint",
    "flip": "spmdsim.ops.flip",
    "gather": "spmdsim.ops.gather",
}
#: Of tensors.
TENSOR = {
    **TOP,
    **_instead(
        new="add_ clamp_ clip_ copy_ div_ erfinv_ fill_ mul_ normal_ sub_ uniform_ zeros_",
        where="is_cuda get_device to_consistent",
        apart="grad_fn is_leaf is_lazy is_contiguous register_hook retain_grad data",
    ),
}
#: Of ``nn``.
NN = {
    **_instead(
        patches="Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d MaxPool1d MaxPool2d MaxPool3d "
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AvgPool1d AvgPool2d AvgPool3d ConstantPad1d ConstantPad2d "
        "ConstantPad3d ZeroPad2d PixelShuffle Upsample UpsamplingBilinear2d UpsamplingNearest2d",
        layer="ELU Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid PReLU SELU CELU Mish Softplus Softshrink Softsign "
        "Threshold GLU LogSoftmax",
        norm="BatchNorm1d BatchNorm2d BatchNorm3d FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d GroupNorm "
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
        loss="BCELoss BCEWithLogitsLoss CTCLoss CombinedMarginLoss KLDivLoss L1Loss MarginRankingLoss NLLLoss SmoothL1Loss "
        "TripletMarginLoss",
        list="ModuleDict ParameterList ParameterDict",
        split="parallel",
    ),
    "Graph": "calling the module: programs run eagerly",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "init": "Parameter(global_tensor)",
    "utils": "spmdsim.nn.clip",
}
#: Of ``nn.functional``.
FUNCTIONAL = _instead(
    patches="conv1d conv2d conv3d avg_pool2d max_pool2d pad interpolate",
    ours="hardtanh relu6 elu selu leaky_relu prelu glu logsigmoid softplus mish one_hot normalize cosine_similarity "
    "layer_norm group_norm linear dropout embedding",
    loss="l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits",
)
#: Of ``optim``.
OPTIM = {
    **_instead(rate="lr_scheduler"),
    **dict.fromkeys(("Adagrad", "LAMB", "RMSprop", "Optimizer"), "Adam or SGD"),
}
