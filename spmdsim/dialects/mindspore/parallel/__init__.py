"""``mindspore.parallel``."""

from spmdsim.dialects.mindspore.layout import Layout
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel

__all__ = ["AutoParallel", "Layout"]
