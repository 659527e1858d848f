"""What OneFlow compares between ranks, by the name that programs know."""

from functools import partial

from spmdsim.imitated import imitation

__getattr__ = partial(getattr, imitation("agreement of ranks", "oneflow"))
