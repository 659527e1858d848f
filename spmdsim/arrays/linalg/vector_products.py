"""Products of vectors and matrices, and diagonals, from products and lookups."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.linalg.by_panels import inv
from spmdsim.arrays.linalg.whole import require_square
from spmdsim.arrays.operands import convert_operands
from spmdsim.arrays.ops.declare import convert_to_one_type
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import normalise_along_dim
from spmdsim.arrays.ops.slicing import slice_along
from spmdsim.core import Layout
from spmdsim.errors import RuleError

__all__ = ["cross", "diagonal", "matrix_power", "outer", "trace"]


@of_tensors
def outer(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``a[i] * b[j]`` of two vectors.

    Args:
        a: a vector.
        b: a vector.

    Returns:
        A matrix ``[len(a), len(b)]`` in the type to which both are promoted.

    Raises:
        RuleError: If an operand is no vector.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1, 2], Mesh((2,), ("dp",))("dp"))
    >>> outer(x, x).full().tolist()
    [[1, 2], [2, 4]]
    """
    if a.ndim != 1 or b.ndim != 1:
        raise RuleError(
            f"outer: a and b must have one dim, got shapes {a.shape} and {b.shape}; flatten them first"
        )
    return ops.einsum("i,j->ij", *convert_to_one_type("outer", a, b))


@of_tensors
def matrix_power(x: Tensor, n: int) -> Tensor:
    """Compute powers of square matrices by repeated squaring.

    A negative power is a power of the inverse. Other powers of integers are integers, which may overflow.

    Args:
        x: square matrices ``[..., n, n]``.
        n: the exponent, an int. 0 gives identity matrices on every rank, 1 the tensor itself.

    Returns:
        Matrices in the shape of ``x``.

    Raises:
        RuleError: If the matrices are not square.
        numpy.linalg.LinAlgError: If ``n`` is negative and a matrix is singular.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.matrix_power(s, 2).full().tolist()
    [[20.0, 14.0], [14.0, 13.0]]
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        require_square("matrix_power", x)
    if n == 0:
        identity = Tensor.from_global(
            np.eye(x.shape[-1], dtype=x.dtype), Layout.replicated(x.layout.mesh, 2), x.world
        )
        return ops.broadcast_to(identity, x.shape)
    if n < 0:
        return matrix_power(inv(x), -n)
    power: Tensor | None = None
    while True:
        if n % 2:
            power = x if power is None else ops.matmul(power, x)
        n //= 2
        if not n:
            assert power is not None
            return power
        x = ops.matmul(x, x)


@of_tensors
def diagonal(x: Tensor, *, offset: int = 0) -> Tensor:
    """Return diagonals of matrices ``[..., m, n]``.

    Each rank picks the entries of its own rows. If the diagonal does not go through all rows, the entries are then
    redistributed, so that each rank owns about as many as the others.

    Args:
        x: the tensor.
        offset: the number of columns to the right of the main diagonal; negative: to the left.

    Returns:
        ``[..., k]`` for diagonals of ``k`` elements, which may be 0. It is partial over the axes that split the
        columns.

    Raises:
        RuleError: If ``x`` has fewer than two dims.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.diagonal(s).full().tolist()
    [4.0, 3.0]
    """
    if x.ndim < 2:
        raise RuleError(f"diagonal: x must have at least two dims [..., m, n], got shape {x.shape}")
    rows, columns = x.shape[-2:]
    first = max(0, -offset)
    count = max(0, min(rows - first, columns - max(0, offset)))
    if not columns or not count:
        return ops.reshape(
            ops.slice_(x, [0] * x.ndim, [*x.shape[:-2], 0, 0], [1] * x.ndim), (*x.shape[:-2], 0)
        )
    # Rows that the diagonal does not meet look up any entry, which is cut off below.
    ids = np.clip(np.arange(rows) + offset, 0, columns - 1).reshape(*[1] * (x.ndim - 2), rows, 1)
    dims = [*[None] * (x.ndim - 2), x.layout.dims[-2], None]
    positions = Tensor.from_global(ids, Layout(x.layout.mesh, dims), x.world)
    diagonals = ops.take_along_axis(x, positions, -1)
    diagonals = ops.reshape(diagonals, diagonals.shape[:-1])
    if count == rows:
        return diagonals
    return slice_along(diagonals, -1, first, first + count)


@of_tensors
def trace(x: Tensor, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Compute the sums of :func:`diagonal`, partial over the axes that split it.

    Args:
        x: matrices ``[..., m, n]``.
        offset: the number of columns to the right of the main diagonal; negative: to the left.
        dtype: element type of the sums; None: as in :func:`spmdsim.ops.sum`.

    Returns:
        ``[...]``.

    Raises:
        RuleError: If ``x`` has fewer than two dimensions.
        InputError: If tensors do not support ``dtype``.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> linalg.trace(s).item()
    7.0
    """
    return ops.sum(diagonal(x, offset=offset), -1, dtype=dtype)


@of_tensors
def cross(a: Tensor, b: Tensor, *, axis: int = -1) -> Tensor:
    """Compute cross products along a dimension of three entries.

    Args:
        a: the left vectors; one of the operands may be an array.
        b: the right vectors; the other dims broadcast.
        axis: the dimension of the three entries, in both operands; negative numbers count from the end of each.

    Returns:
        Vectors of the broadcast shape, in the type to which both are promoted.

    Raises:
        RuleError: If the dimension is out of range or has another size. Vectors of two entries are not supported.

    >>> from spmdsim import Mesh, Tensor
    >>> x, y = (Tensor.from_global(v, Mesh((2,), ("dp",))(None)) for v in ([1, 0, 0], [0, 1, 0]))
    >>> cross(x, y).full().tolist()
    [0, 0, 1]
    """
    a, b = convert_operands("cross", (a, b))
    at = normalise_along_dim("cross", a, axis)
    if a.shape[at] != 3 or b.shape[normalise_along_dim("cross", b, axis)] != 3:
        raise RuleError(f"cross: dim {axis} of a and b must have size 3, got shapes {a.shape} and {b.shape}")
    a, b = convert_to_one_type("cross", a, b)

    def rotate(x: Tensor, by: int) -> Tensor:
        """Move the three entries ``by`` positions to the front, cyclically."""
        return ops.concat(
            [slice_along(x, axis, (k + by) % 3, (k + by) % 3 + 1) for k in range(3)], axis % x.ndim
        )

    return ops.subtract(ops.multiply(rotate(a, 1), rotate(b, 2)), ops.multiply(rotate(a, 2), rotate(b, 1)))
