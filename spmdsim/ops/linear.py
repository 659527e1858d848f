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

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.linear(x, x).full().tolist()
    [[11.0, 7.0], [14.0, 18.0]]
    """
    y = matmul(x, weight)
    if bias is None:
        return y
    return add(y.to(y.layout.reduced), bias)
