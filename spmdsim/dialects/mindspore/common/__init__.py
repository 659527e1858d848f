"""``mindspore.common``."""

from spmdsim.dialects.mindspore.common import dtype, initializer
from spmdsim.dialects.mindspore.parameter import set_seed

__all__ = ["dtype", "initializer", "set_seed"]
