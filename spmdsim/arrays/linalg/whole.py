"""Functions of whole matrices, each declared by a rule that keeps the matrix's dims whole and a local function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.ops.arrange import matrix_transpose
from spmdsim.arrays.ops.declare import Array, Arrays, cast, unbroadcast
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import conjugated
from spmdsim.core import Rule
from spmdsim.errors import RuleError

__all__ = ["det", "eig", "eigh", "eigvals", "eigvalsh", "slogdet"]


def hermitian(x: Array) -> Array:
    """Return the conjugate transpose of matrices."""
    turned: Array = np.conj(np.swapaxes(x, -1, -2))
    return turned


def square(name: str, x: Tensor) -> Tensor:
    """Return a tensor of square matrices of floats. Raise an error for other shapes."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuleError(f"{name} takes square matrices [..., n, n], but the shape is {x.shape}")
    return in_fractions(x)


def _lower(name: str, x: Tensor, triangle: str) -> Tensor:
    """Return square matrices whose lower triangle is the one to be read; ``"U"`` transposes and conjugates them."""
    if triangle not in ("L", "U"):
        raise RuleError(f"{name} reads the triangle 'L' or 'U', but got {triangle!r}")
    matrices = square(name, x)
    return matrices if triangle == "L" else conjugated(matrix_transpose(matrices))


def in_fractions(x: Tensor) -> Tensor:
    """Convert a tensor to a type with division; whole numbers become float64, as in numpy.linalg."""
    return x if x.dtype.kind in "fcV" else cast(x, np.float64)


def _op(name: str, text: str, forward: Callable[..., Any], vjp: Any, **more: Any) -> Op:
    rule = Rule.parse(text, whole="m n", work="passes")
    return Op(name, rule, forward, vjp, saves_result=True, **more)


def _real(x: np.dtype) -> np.dtype:
    return np.dtype(f"f{x.itemsize // 2}") if x.kind == "c" else x


def _complex(x: np.dtype) -> np.dtype:
    return np.result_type(x, np.complex64)


def _diagonals(values: Array) -> Array:
    """Return matrices with these diagonals."""
    matrices: Array = values[..., None] * np.eye(values.shape[-1], dtype=values.dtype)
    return matrices


def _det_vjp(dy: Array, xs: Arrays, y: Array) -> tuple[Array]:
    """Compute cofactors from singular values with each left out in turn, which works for singular matrices, too."""
    u, s, v = np.linalg.svd(xs[0])
    n = s.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, s[..., None, :]).prod(-1)
    turn = np.linalg.det(u @ v)[..., None, None]
    cofactors = np.conj(turn) * ((u * others[..., None, :]) @ v)
    return (dy[..., None, None] * cofactors,)


def _slogdet_vjp(dys: Sequence[Any], xs: Arrays, _ys: Any) -> tuple[Array]:
    """Compute the gradient of the logarithm; the sign of a real matrix has no gradient."""
    if dys[1] is None:
        return (np.zeros_like(xs[0]),)
    return (dys[1][..., None, None] * hermitian(np.linalg.inv(xs[0])),)


def _eigh_vjp(dys: Sequence[Any], xs: Arrays, ys: Arrays) -> tuple[Array]:
    (values, vectors), (dvalues, dvectors) = ys, dys
    inner = np.zeros_like(vectors) if dvalues is None else _diagonals(dvalues).astype(vectors.dtype)
    if dvectors is not None:
        gaps = values[..., None, :] - values[..., :, None]
        inner = inner + np.where(gaps == 0, 0, hermitian(vectors) @ dvectors / np.where(gaps == 0, 1, gaps))
    slope = vectors @ inner @ hermitian(vectors)
    return ((slope + hermitian(slope)) / 2,)


def _eigvalsh_vjp(dy: Array, xs: Arrays, _y: Array) -> tuple[Array]:
    vectors = np.linalg.eigh(xs[0])[1]
    return ((vectors * dy[..., None, :]) @ hermitian(vectors),)


def _solve_vjp(dy: Array, xs: Arrays, y: Array) -> tuple[Array, Array]:
    back = np.linalg.solve(hermitian(xs[0]), dy)
    return unbroadcast(-back @ hermitian(y), xs[0].shape), unbroadcast(back, xs[1].shape)


def _svd_vjp(dys: Sequence[Any], xs: Arrays, ys: Arrays) -> tuple[Array]:
    """Compute the gradient of the reduced decomposition of matrices with distinct singular values, none of them 0."""
    (u, s, vh), (du, ds, dvh), dtype = ys, dys, xs[0].dtype
    v = hermitian(vh)
    squares = s[..., None, :] ** 2 - s[..., :, None] ** 2
    f = np.where(squares == 0, 0, 1 / np.where(squares == 0, 1, squares))
    inner = np.zeros((*s.shape, s.shape[-1]), dtype) if ds is None else _diagonals(ds).astype(dtype)
    outside, inverse = np.zeros(xs[0].shape, dtype), 1 / s
    if du is not None:
        left = f * (hermitian(u) @ du)
        inner = inner + (left + hermitian(left)) * s[..., None, :]
        rest = du - u @ (hermitian(u) @ du)
        outside = outside + (rest * inverse[..., None, :]) @ vh
        if dtype.kind == "c":
            turned = hermitian(u) @ du
            inner = inner + _diagonals(1j * np.imag(np.diagonal(turned, axis1=-2, axis2=-1)) * inverse)
    if dvh is not None:
        dv = hermitian(dvh)
        right = f * (vh @ dv)
        inner = inner + s[..., :, None] * (right + hermitian(right))
        rest = dv - v @ (vh @ dv)
        outside = outside + (u * inverse[..., None, :]) @ hermitian(rest)
    return (u @ inner @ vh + outside,)


det_op = _op("det", "... m n -> ...", np.linalg.det, _det_vjp)
inv_op = _op(
    "inv", "... m n -> ... m n", np.linalg.inv, lambda dy, _xs, y: (-hermitian(y) @ dy @ hermitian(y),)
)
slogdet_op = _op(
    "slogdet",
    "... m n -> ..., ...",
    lambda x: tuple(np.linalg.slogdet(x)),
    _slogdet_vjp,
    dtype=lambda x: (x, _real(x)),
)
solve_op = _op("solve", "... m n, ... n k -> ... n k", np.linalg.solve, _solve_vjp)
eigh_op = _op(
    "eigh",
    "... m n -> ... n, ... m n",
    lambda x: tuple(np.linalg.eigh(x)),
    _eigh_vjp,
    dtype=lambda x: (_real(x), x),
)
_eig_op = _op(
    "eig",
    "... m n -> ... n, ... m n",
    lambda x: tuple(part.astype(_complex(x.dtype)) for part in np.linalg.eig(x)),
    None,
    dtype=lambda x: (_complex(x), _complex(x)),
)
_eigvals_op = _op(
    "eigvals",
    "... m n -> ... n",
    lambda x: np.linalg.eigvals(x).astype(_complex(x.dtype)),
    None,
    dtype=lambda x: _complex(x),
)
eigvalsh_op = _op("eigvalsh", "... m n -> ... n", np.linalg.eigvalsh, _eigvalsh_vjp, dtype=_real)


svd_op = Op(
    "svd",
    lambda x: (
        Rule.parse("... m n -> ... m k, ... k, ... k n", whole="m n k", work="passes"),
        {"k": min(x[-2:])},
    ),
    lambda x: tuple(np.linalg.svd(x, full_matrices=False)),
    _svd_vjp,
    dtype=lambda x: (x, _real(x), x),
    saves_result=True,
)


@of_tensors
def det(x: Tensor) -> Tensor:
    """Compute determinants of matrices ``[..., n, n]``.

    Other matrices are refused by a RuleError.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> round(linalg.det(w).item(), 4)
    8.0
    """
    return det_op(square("det", x))


class SignAndLogarithm(NamedTuple):
    """The result of :func:`slogdet`."""

    sign: Tensor
    logabsdet: Tensor


class Eigen(NamedTuple):
    """The result of :func:`eigh` and :func:`eig`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@of_tensors
def slogdet(x: Tensor) -> SignAndLogarithm:
    """Compute signs of determinants and logarithms of their absolute values; see :func:`det`.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> round(linalg.slogdet(w).logabsdet.item(), 4)
    2.0794
    """
    return SignAndLogarithm(*slogdet_op.results(square("slogdet", x)))


@of_tensors
def eigh(x: Tensor, UPLO: str = "L") -> Eigen:
    """Compute eigenvalues and eigenvectors of Hermitian matrices ``[..., n, n]``.

    Eigenvalues ascend; the columns of the second result are the vectors.

    Args:
        x: the tensor.
        UPLO: the triangle that is read, ``"L"`` for the lower one or ``"U"`` for the upper one.

    Raises:
        RuleError: matrices that are not square, or another triangle.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> linalg.eigh(w).eigenvalues.full().round(4).tolist()
    [1.4384, 5.5616]
    """
    return Eigen(*eigh_op.results(_lower("eigh", x, UPLO)))


@of_tensors
def eigvalsh(x: Tensor, UPLO: str = "L") -> Tensor:
    """Compute the eigenvalues of :func:`eigh`.

    Args:
        x: the tensor.
        UPLO: the triangle that is read, ``"L"`` or ``"U"``.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> linalg.eigvalsh(w).full().round(4).tolist()
    [1.4384, 5.5616]
    """
    return eigvalsh_op(_lower("eigvalsh", x, UPLO))


@of_tensors
def eig(x: Tensor) -> Eigen:
    """Compute eigenvalues and eigenvectors of square matrices.

    Both are complex, in no order, and have no gradients. The columns of the second result are the vectors.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> sorted(linalg.eig(w).eigenvalues.full().real.round(4).tolist())
    [1.4384, 5.5616]
    """
    return Eigen(*_eig_op.results(square("eig", x).detach()))


@of_tensors
def eigvals(x: Tensor) -> Tensor:
    """Compute the eigenvalues of :func:`eig`.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> sorted(linalg.eigvals(w).full().real.round(4).tolist())
    [1.4384, 5.5616]
    """
    return _eigvals_op(square("eigvals", x).detach())
