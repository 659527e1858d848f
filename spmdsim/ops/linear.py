"""The linear layer as a function."""

from __future__ import annotations

from spmdsim.ops.contract import matmul
from spmdsim.ops.elementwise import add
from spmdsim.ops.operators import operator
from spmdsim.tensor import Tensor


@operator()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight + bias``.

    A weight split by columns gives a result split by columns, with a bias split alike; a weight split by
    rows gives a partial product, which is reduced before the bias is added, so that it is added once.

    Args:
        x: ``[..., n]``.
        weight: ``[n, m]``.
        bias: ``[m]``.

    Returns:
        ``[..., m]``.
    """
    y = matmul(x, weight)
    if bias is None:
        return y
    return add(y.to(y.layout.reduced), bias)
