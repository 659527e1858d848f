"""``mindspore.common.initializer``."""

from spmdsim.dialects.mindspore.parameter import initializer

__all__ = ["initializer"]
