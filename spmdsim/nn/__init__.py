"""Networks: modules, layers, losses, optimisers. No communication in here: layouts decide it."""

from spmdsim.nn.gradients import backward, clip, global_norm
from spmdsim.nn.layers import GPT, MLP, Attention, Embedding, LayerNorm, Linear, TransformerBlock
from spmdsim.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from spmdsim.nn.module import Module, ModuleList, Normal, Parameter, Sequential, Uniform, ones, zeros
from spmdsim.nn.optimisers import SGD, Adam, Optimiser, sharded_over

__all__ = [
    "GPT",
    "MLP",
    "SGD",
    "Adam",
    "Attention",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "Normal",
    "Optimiser",
    "Parameter",
    "Sequential",
    "TransformerBlock",
    "Uniform",
    "backward",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "clip",
    "cross_entropy",
    "global_norm",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "ones",
    "sharded_over",
    "smooth_l1_loss",
    "zeros",
]
