"""Networks: modules, layers, losses, optimisers. No communication in here: layouts decide it."""

from typing import TYPE_CHECKING

from spmdsim import wrong_calls
from spmdsim.nn.attention import *
from spmdsim.nn.gradients import *
from spmdsim.nn.layers import *
from spmdsim.nn.losses import *
from spmdsim.nn.module import *
from spmdsim.nn.optimisers import *
from spmdsim.nn.transformer import *

__all__ = sorted(name for name, value in vars().items() if callable(value))

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __getattr__ = wrong_calls.refuse_names(__name__, __all__)
