"""What MindSpore makes of a strategy, and refuses, by the names that programs know."""

from functools import partial

from spmdsim.imitated import imitation

__getattr__ = partial(getattr, imitation("sharding rules", "mindspore"))
