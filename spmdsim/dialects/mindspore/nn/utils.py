"""``mindspore.nn.utils``."""

from spmdsim.dialects.mindspore.parameter import no_init_parameters

__all__ = ["no_init_parameters"]
