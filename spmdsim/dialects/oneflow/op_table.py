"""The rows of OneFlow's signatures, by the name that programs know."""

from functools import partial

from spmdsim.imitated import imitation

__getattr__ = partial(getattr, imitation("signature table", "oneflow"))
