"""Linear algebra on global tensors, with the names and arguments of ``numpy.linalg`` and the array API standard.

Products, norms and diagonals stay where their operands are. Tall matrices that are split by rows are factored without being
gathered (:func:`qr`, :func:`svd`, :func:`svdvals`, :func:`pinv`, :func:`matrix_rank`), and so are positive definite ones
(:func:`cholesky`) and systems of equations (:func:`solve`, :func:`inv`). Everything else works on whole matrices: batches of them, and right sides, may be split; a matrix that is
split itself is brought together, which the plan says and a warning tells with its bytes.
"""

from typing import TYPE_CHECKING

from spmdsim import wrong_calls
from spmdsim.linalg.by_panels import *
from spmdsim.linalg.norms import *
from spmdsim.linalg.tall import *
from spmdsim.linalg.vector_products import *
from spmdsim.linalg.whole import *
from spmdsim.ops import matmul as matmul
from spmdsim.ops import matrix_transpose as matrix_transpose
from spmdsim.ops import tensordot as tensordot
from spmdsim.ops import vecdot as vecdot

__all__ = sorted(name for name, value in vars().items() if callable(value))

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __getattr__ = wrong_calls.refuse_names(__name__, __all__)
