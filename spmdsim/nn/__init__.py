"""Networks: modules, layers, losses, optimisers. No communication in here: layouts decide it."""

from spmdsim.nn.attention import *
from spmdsim.nn.gradients import *
from spmdsim.nn.layers import *
from spmdsim.nn.losses import *
from spmdsim.nn.module import *
from spmdsim.nn.optimisers import *
from spmdsim.nn.transformer import *

__all__ = sorted(name for name, value in vars().items() if callable(value))
