"""``oneflow.linalg``: linear algebra."""

from __future__ import annotations

from spmdsim import linalg as ours
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.oneflow.local import GlobalTensor
from spmdsim.dialects.oneflow.operators import FUNCTIONS, lifted

_OURS = "cross det inv vector_norm"

__all__ = sorted(["diagonal", "norm", *_OURS.split()])
globals().update({name: lifted(getattr(ours, name)) for name in _OURS.split()})
norm = FUNCTIONS["norm"]


def diagonal(A: GlobalTensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> GlobalTensor:
    """The diagonals of matrices."""
    diagonals: GlobalTensor = FUNCTIONS["diagonal"](A, offset, dim1, dim2)
    return diagonals


__getattr__ = refusal(__name__, __all__, {"matrix_norm": "norm"})
