"""Linear algebra on global tensors, with the names and arguments of ``numpy.linalg`` and the array API standard.

Products, norms and diagonals stay where their operands are. Tall matrices that are split by rows are factored without being
gathered (:func:`qr`, :func:`svd`, :func:`svdvals`, :func:`pinv`, :func:`matrix_rank`), and so are positive definite ones
(:func:`cholesky`) and systems of equations (:func:`solve`, :func:`inv`). Everything else works on whole matrices: batches of them, and right sides, may be split; a matrix that is
split itself is brought together, which the plan says and a warning tells with its bytes.
"""

from spmdsim.linalg.by_panels import cholesky as cholesky
from spmdsim.linalg.by_panels import inv as inv
from spmdsim.linalg.by_panels import solve as solve
from spmdsim.linalg.norms import cond as cond
from spmdsim.linalg.norms import lstsq as lstsq
from spmdsim.linalg.norms import matrix_norm as matrix_norm
from spmdsim.linalg.norms import matrix_rank as matrix_rank
from spmdsim.linalg.norms import norm as norm
from spmdsim.linalg.norms import pinv as pinv
from spmdsim.linalg.norms import vector_norm as vector_norm
from spmdsim.linalg.tall import qr as qr
from spmdsim.linalg.tall import svd as svd
from spmdsim.linalg.tall import svdvals as svdvals
from spmdsim.linalg.vector_products import cross as cross
from spmdsim.linalg.vector_products import diagonal as diagonal
from spmdsim.linalg.vector_products import matrix_power as matrix_power
from spmdsim.linalg.vector_products import outer as outer
from spmdsim.linalg.vector_products import trace as trace
from spmdsim.linalg.whole import det as det
from spmdsim.linalg.whole import eig as eig
from spmdsim.linalg.whole import eigh as eigh
from spmdsim.linalg.whole import eigvals as eigvals
from spmdsim.linalg.whole import eigvalsh as eigvalsh
from spmdsim.linalg.whole import slogdet as slogdet
from spmdsim.ops import matmul as matmul
from spmdsim.ops import matrix_transpose as matrix_transpose
from spmdsim.ops import tensordot as tensordot
from spmdsim.ops import vecdot as vecdot

__all__ = sorted(name for name, value in vars().items() if callable(value))
