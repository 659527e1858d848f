"""Networks: modules, layers, losses, optimisers. No communication in here: layouts decide it."""

from spmdsim.nn.gradients import backward as backward
from spmdsim.nn.gradients import clip as clip
from spmdsim.nn.gradients import global_norm as global_norm
from spmdsim.nn.layers import GPT as GPT
from spmdsim.nn.layers import MLP as MLP
from spmdsim.nn.layers import Attention as Attention
from spmdsim.nn.layers import Embedding as Embedding
from spmdsim.nn.layers import LayerNorm as LayerNorm
from spmdsim.nn.layers import Linear as Linear
from spmdsim.nn.layers import TransformerBlock as TransformerBlock
from spmdsim.nn.losses import binary_cross_entropy as binary_cross_entropy
from spmdsim.nn.losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from spmdsim.nn.losses import cross_entropy as cross_entropy
from spmdsim.nn.losses import l1_loss as l1_loss
from spmdsim.nn.losses import mse_loss as mse_loss
from spmdsim.nn.losses import nll_loss as nll_loss
from spmdsim.nn.losses import smooth_l1_loss as smooth_l1_loss
from spmdsim.nn.module import Module as Module
from spmdsim.nn.module import ModuleList as ModuleList
from spmdsim.nn.module import Normal as Normal
from spmdsim.nn.module import Parameter as Parameter
from spmdsim.nn.module import Sequential as Sequential
from spmdsim.nn.module import Uniform as Uniform
from spmdsim.nn.module import ones as ones
from spmdsim.nn.module import zeros as zeros
from spmdsim.nn.optimisers import SGD as SGD
from spmdsim.nn.optimisers import Adam as Adam
from spmdsim.nn.optimisers import Optimiser as Optimiser
from spmdsim.nn.optimisers import sharded_over as sharded_over

__all__ = sorted(name for name, value in vars().items() if callable(value))
