"""Functions of matrices that are not split, each declared by a rule and a local function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.ops.arrange import matrix_transpose
from spmdsim.arrays.ops.declare import Array, Arrays, cast, unbroadcast
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import conjugate_if_complex
from spmdsim.core import Rule
from spmdsim.errors import RuleError

__all__ = ["det", "eig", "eigh", "eigvals", "eigvalsh", "slogdet"]


def hermitian(x: Array) -> Array:
    """Return the conjugate transpose of matrices."""
    transposed: Array = np.conj(np.swapaxes(x, -1, -2))
    return transposed


def require_square(name: str, x: Tensor) -> Tensor:
    """Return square matrices in a type with division; integers become float64.

    Raises:
        RuleError: If the last two dims differ in size.
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuleError(f"{name}: x must be square matrices [..., n, n], got shape {x.shape}")
    return to_division_type(x)


def _move_to_lower_triangle(name: str, x: Tensor, triangle: str) -> Tensor:
    """Return square matrices whose lower triangle has the numbers of the wanted triangle.

    For ``"U"`` they are the conjugate transposes.

    Raises:
        RuleError: If ``triangle`` is neither "L" nor "U", or the matrices are not square.
    """
    if triangle not in ("L", "U"):
        raise RuleError(f"{name}: UPLO must be 'L' or 'U', got {triangle!r}")
    matrices = require_square(name, x)
    return matrices if triangle == "L" else conjugate_if_complex(matrix_transpose(matrices))


def to_division_type(x: Tensor) -> Tensor:
    """Convert a tensor to a type with division; whole numbers become float64, as in numpy.linalg."""
    return x if x.dtype.kind in "fcV" else cast(x, np.float64)


def _declare_matrix_operator(name: str, text: str, forward: Callable[..., Any], vjp: Any, **more: Any) -> Op:
    """Return an operator on matrices ``[..., m, n]`` whose rows and columns must not be split."""
    rule = Rule.parse(text, whole="m n", work="passes")
    return Op(name, rule, forward, vjp, saves_result=True, **more)


def _find_real_type(x: np.dtype) -> np.dtype:
    """Return the type of real and imaginary part; a real type is returned itself."""
    return np.dtype(f"f{x.itemsize // 2}") if x.kind == "c" else x


def _find_complex_type(x: np.dtype) -> np.dtype:
    """Return the complex type of a type."""
    return np.result_type(x, np.complex64)


def _make_diagonal_matrices(values: Array) -> Array:
    """Return matrices with these diagonals."""
    matrices: Array = values[..., None] * np.eye(values.shape[-1], dtype=values.dtype)
    return matrices


def _det_vjp(dy: Array, xs: Arrays, y: Array) -> tuple[Array]:
    """Return the gradient of a determinant: ``dy`` times the cofactors of the matrix.

    The cofactors follow from products of all singular values but one, so they are right for singular matrices, too.

    Args:
        dy: the gradient of the determinants.
        xs: a list with the matrices ``[..., n, n]``.
        y: the determinants; not used, the interface has them.
    """
    u, s, v = np.linalg.svd(xs[0])
    n = s.shape[-1]
    products_of_others = np.where(np.eye(n, dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = np.linalg.det(u @ v)[..., None, None]
    cofactors = np.conj(sign) * ((u * products_of_others[..., None, :]) @ v)
    return (dy[..., None, None] * cofactors,)


def _slogdet_vjp(dys: Sequence[Any], xs: Arrays, _ys: Any) -> tuple[Array]:
    """Return the gradient of a matrix, from the logarithm's gradient; that of the sign is ignored."""
    if dys[1] is None:
        return (np.zeros_like(xs[0]),)
    return (dys[1][..., None, None] * hermitian(np.linalg.inv(xs[0])),)


def _eigh_vjp(dys: Sequence[Any], xs: Arrays, ys: Arrays) -> tuple[Array]:
    """Return the gradient of a Hermitian matrix, from those of its eigenvalues and eigenvectors.

    The result is Hermitian. The eigenvectors' contribution divides by differences of eigenvalues; pairs of equal
    eigenvalues contribute 0.

    Args:
        dys: the gradients of eigenvalues and eigenvectors; None for one that is not used.
        xs: the matrices; not used, the interface has them.
        ys: eigenvalues ``[..., n]`` and eigenvectors ``[..., n, n]``.
    """
    (values, vectors), (dvalues, dvectors) = ys, dys
    inner = (
        np.zeros_like(vectors) if dvalues is None else _make_diagonal_matrices(dvalues).astype(vectors.dtype)
    )
    if dvectors is not None:
        gaps = values[..., None, :] - values[..., :, None]
        inner = inner + np.where(gaps == 0, 0, hermitian(vectors) @ dvectors / np.where(gaps == 0, 1, gaps))
    slope = vectors @ inner @ hermitian(vectors)
    return ((slope + hermitian(slope)) / 2,)


def _eigvalsh_vjp(dy: Array, xs: Arrays, _y: Array) -> tuple[Array]:
    """Return the gradient of a Hermitian matrix, from the gradient ``dy`` of its eigenvalues."""
    vectors = np.linalg.eigh(xs[0])[1]
    return ((vectors * dy[..., None, :]) @ hermitian(vectors),)


def _solve_vjp(dy: Array, xs: Arrays, y: Array) -> tuple[Array, Array]:
    """Return the gradients of the matrices and of the right sides."""
    back = np.linalg.solve(hermitian(xs[0]), dy)
    return unbroadcast(-back @ hermitian(y), xs[0].shape), unbroadcast(back, xs[1].shape)


def _svd_vjp(dys: Sequence[Any], xs: Arrays, ys: Arrays) -> tuple[Array]:
    """Return the gradient of a matrix, from those of its reduced singular value decomposition.

    The gradient is right if all singular values differ and none is 0. Two equal singular values leave the directions of
    their vectors open; their pair adds 0 to the gradient. A singular value of 0 gives inf or nan.

    Args:
        dys: the gradients of ``u``, singular values and ``v^H``; None for a result that is not used.
        xs: a list with the matrices ``[..., m, n]``.
        ys: ``u``, singular values and ``v^H``.
    """
    (u, s, vh), (du, ds, dvh), dtype = ys, dys, xs[0].dtype
    v = hermitian(vh)
    gaps = s[..., None, :] ** 2 - s[..., :, None] ** 2
    # The inverse differences of squared singular values, 0 for equal ones.
    inverse_gaps = np.where(gaps == 0, 0, 1 / np.where(gaps == 0, 1, gaps))
    inner = (
        np.zeros((*s.shape, s.shape[-1]), dtype) if ds is None else _make_diagonal_matrices(ds).astype(dtype)
    )
    # The result is ``u inner v^H + outside``; the second part follows from changes orthogonal to the vectors.
    outside, inverse = np.zeros(xs[0].shape, dtype), 1 / s
    if du is not None:
        left = inverse_gaps * (hermitian(u) @ du)
        inner = inner + (left + hermitian(left)) * s[..., None, :]
        complement = du - u @ (hermitian(u) @ du)
        outside = outside + (complement * inverse[..., None, :]) @ vh
        if dtype.kind == "c":  # Complex vectors also have phases: Wan and Zhang, 2019.
            inner_product = hermitian(u) @ du
            inner = inner + _make_diagonal_matrices(
                1j * np.imag(np.diagonal(inner_product, axis1=-2, axis2=-1)) * inverse
            )
    if dvh is not None:
        dv = hermitian(dvh)
        right = inverse_gaps * (vh @ dv)
        inner = inner + s[..., :, None] * (right + hermitian(right))
        complement = dv - v @ (vh @ dv)
        outside = outside + (u * inverse[..., None, :]) @ hermitian(complement)
    return (u @ inner @ vh + outside,)


det_op = _declare_matrix_operator("det", "... m n -> ...", np.linalg.det, _det_vjp)
inv_op = _declare_matrix_operator(
    "inv", "... m n -> ... m n", np.linalg.inv, lambda dy, _xs, y: (-hermitian(y) @ dy @ hermitian(y),)
)
slogdet_op = _declare_matrix_operator(
    "slogdet",
    "... m n -> ..., ...",
    lambda x: tuple(np.linalg.slogdet(x)),
    _slogdet_vjp,
    dtype=lambda x: (x, _find_real_type(x)),
)
solve_op = _declare_matrix_operator("solve", "... m n, ... n k -> ... n k", np.linalg.solve, _solve_vjp)
eigh_op = _declare_matrix_operator(
    "eigh",
    "... m n -> ... n, ... m n",
    lambda x: tuple(np.linalg.eigh(x)),
    _eigh_vjp,
    dtype=lambda x: (_find_real_type(x), x),
)
_eig_op = _declare_matrix_operator(
    "eig",
    "... m n -> ... n, ... m n",
    lambda x: tuple(result.astype(_find_complex_type(x.dtype)) for result in np.linalg.eig(x)),
    None,
    dtype=lambda x: (_find_complex_type(x), _find_complex_type(x)),
)
_eigvals_op = _declare_matrix_operator(
    "eigvals",
    "... m n -> ... n",
    lambda x: np.linalg.eigvals(x).astype(_find_complex_type(x.dtype)),
    None,
    dtype=lambda x: _find_complex_type(x),
)
eigvalsh_op = _declare_matrix_operator(
    "eigvalsh", "... m n -> ... n", np.linalg.eigvalsh, _eigvalsh_vjp, dtype=_find_real_type
)


svd_op = Op(
    "svd",
    lambda x: (
        Rule.parse("... m n -> ... m k, ... k, ... k n", whole="m n k", work="passes"),
        {"k": min(x[-2:])},
    ),
    lambda x: tuple(np.linalg.svd(x, full_matrices=False)),
    _svd_vjp,
    dtype=lambda x: (x, _find_real_type(x), x),
    saves_result=True,
)


@of_tensors
def det(x: Tensor) -> Tensor:
    """Compute determinants of square matrices ``[..., n, n]``.

    Args:
        x: matrices ``[..., n, n]``. Split rows and columns are gathered first; integers become float64.

    Returns:
        ``[...]``.

    Raises:
        RuleError: If the matrices are not square.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> round(linalg.det(w).item(), 4)
    8.0
    """
    return det_op(require_square("det", x))


class SignAndLogarithm(NamedTuple):
    """The result of :func:`slogdet`: sign, and logarithm of the absolute value."""

    sign: Tensor
    logabsdet: Tensor


class Eigen(NamedTuple):
    """The result of :func:`eigh` and :func:`eig`: eigenvalues and eigenvectors."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@of_tensors
def slogdet(x: Tensor) -> SignAndLogarithm:
    """Compute signs of determinants and logarithms of their absolute values.

    Args:
        x: matrices ``[..., n, n]``, as in :func:`det`.

    Returns:
        The named tuple ``(sign, logabsdet)``, each ``[...]``. The sign of a complex matrix is a number of size 1.

    Raises:
        RuleError: If the matrices are not square.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> round(linalg.slogdet(w).logabsdet.item(), 4)
    2.0794
    """
    return SignAndLogarithm(*slogdet_op.results(require_square("slogdet", x)))


@of_tensors
def eigh(x: Tensor, UPLO: str = "L") -> Eigen:
    """Compute eigenvalues, ascending, and eigenvectors of Hermitian matrices ``[..., n, n]``.

    The columns of the second result are the vectors.

    Args:
        x: matrices ``[..., n, n]``. Split rows and columns are gathered first; integers become float64.
        UPLO: the triangle that is read, ``"L"`` for the lower one or ``"U"`` for the upper one.

    Returns:
        The named tuple ``(eigenvalues, eigenvectors)``: ``[..., n]``, real, and ``[..., n, n]``. The columns are the
        vectors.

    Raises:
        RuleError: If matrices are not square, or the triangle is unknown.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> linalg.eigh(w).eigenvalues.full().round(4).tolist()
    [1.4384, 5.5616]
    """
    return Eigen(*eigh_op.results(_move_to_lower_triangle("eigh", x, UPLO)))


@of_tensors
def eigvalsh(x: Tensor, UPLO: str = "L") -> Tensor:
    """Compute the eigenvalues of :func:`eigh`.

    Args:
        x: matrices ``[..., n, n]``, as in :func:`eigh`.
        UPLO: the triangle that is read, ``"L"`` or ``"U"``.

    Returns:
        ``[..., n]``, real and ascending.

    Raises:
        RuleError: If matrices are not square, or the triangle is unknown.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> linalg.eigvalsh(w).full().round(4).tolist()
    [1.4384, 5.5616]
    """
    return eigvalsh_op(_move_to_lower_triangle("eigvalsh", x, UPLO))


@of_tensors
def eig(x: Tensor) -> Eigen:
    """Compute eigenvalues and eigenvectors of square matrices.

    Both are complex, in no order, and have no gradients. The columns of the second result are the vectors.

    Args:
        x: matrices ``[..., n, n]``. Split rows and columns are gathered first.

    Returns:
        The named tuple ``(eigenvalues, eigenvectors)``: ``[..., n]`` and ``[..., n, n]``.

    Raises:
        RuleError: If matrices are not square.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> sorted(linalg.eig(w).eigenvalues.full().real.round(4).tolist())
    [1.4384, 5.5616]
    """
    return Eigen(*_eig_op.results(require_square("eig", x).detach()))


@of_tensors
def eigvals(x: Tensor) -> Tensor:
    """Compute the eigenvalues of :func:`eig`, without gradient.

    Args:
        x: matrices ``[..., n, n]``.

    Returns:
        ``[..., n]``, complex and in no order.

    Raises:
        RuleError: If matrices are not square.

    >>> from spmdsim import Mesh, Tensor, linalg
    >>> w = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))(None, None))
    >>> sorted(linalg.eigvals(w).full().real.round(4).tolist())
    [1.4384, 5.5616]
    """
    return _eigvals_op(require_square("eigvals", x).detach())
