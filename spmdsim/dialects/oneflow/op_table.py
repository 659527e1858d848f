"""The rows of OneFlow's signatures, by the name that programs know."""

from __future__ import annotations

from functools import partial

from spmdsim.imitated import imitation

__getattr__ = partial(getattr, imitation("signature table", "oneflow"))
