"""Megatron's mappings between regions, by the name that programs know."""

from functools import partial

from spmdsim.imitated import imitation

__getattr__ = partial(getattr, imitation("region mappings", "megatron"))
