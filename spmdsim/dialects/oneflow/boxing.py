"""What OneFlow does between two sbp, by the name that programs know."""

from functools import partial

from spmdsim.imitated import imitation

__getattr__ = partial(getattr, imitation("boxing", "oneflow"))
