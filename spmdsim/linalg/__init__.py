"""Linear algebra on global tensors, with the names and arguments of ``numpy.linalg`` and the array API standard.

Products, norms and diagonals stay where their operands are. Tall matrices that are split by rows are factored without being
gathered (:func:`qr`, :func:`svd`, :func:`svdvals`, :func:`pinv`, :func:`matrix_rank`), and so are positive definite ones
(:func:`cholesky`). Everything else works on whole matrices: batches of them, and right sides, may be split; a matrix that is
split itself is brought together, which the plan says and a warning tells with its bytes.
"""

from spmdsim.linalg.cholesky import cholesky
from spmdsim.linalg.products import cross, diagonal, matrix_power, outer, trace
from spmdsim.linalg.sizes import cond, matrix_norm, matrix_rank, norm, pinv, vector_norm
from spmdsim.linalg.tall import qr, svd, svdvals
from spmdsim.linalg.whole import det, eigh, eigvalsh, inv, slogdet, solve
from spmdsim.ops import matmul, matrix_transpose, tensordot, vecdot

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
