"""Linear algebra on global tensors, with the names and arguments of ``numpy.linalg`` and the array API standard.

Products, norms and diagonals stay where their operands are. Tall matrices that are split by rows are factored without being
gathered (:func:`qr`, :func:`svd`, :func:`svdvals`, :func:`pinv`, :func:`matrix_rank`), and so are positive definite ones
(:func:`cholesky`) and systems of equations (:func:`solve`, :func:`inv`). Everything else works on whole matrices: batches of them, and right sides, may be split; a matrix that is
split itself is brought together, which the plan says and a warning tells with its bytes.
"""

from spmdsim.linalg.by_panels import cholesky, inv, solve
from spmdsim.linalg.norms import cond, lstsq, matrix_norm, matrix_rank, norm, pinv, vector_norm
from spmdsim.linalg.tall import qr, svd, svdvals
from spmdsim.linalg.vector_products import cross, diagonal, matrix_power, outer, trace
from spmdsim.linalg.whole import det, eig, eigh, eigvals, eigvalsh, slogdet
from spmdsim.ops import matmul, matrix_transpose, tensordot, vecdot

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
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
