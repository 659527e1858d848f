"""Linear algebra on global tensors, with the names and arguments of ``numpy.linalg`` and the array API standard.

Products, norms and diagonals stay where their operands are. Tall matrices that are split by rows are factored without
being gathered (:func:`qr`, :func:`svd`, :func:`svdvals`, :func:`pinv`, :func:`matrix_rank`), and so are positive
definite ones (:func:`cholesky`) and systems of equations (:func:`solve`, :func:`inv`). Everything else works on whole
matrices: batches of them, and right sides, may be split; a matrix that is split itself is brought together, which the
plan says and a warning tells with its bytes.
"""

from typing import TYPE_CHECKING

from spmdsim import wrong_calls
from spmdsim.arrays.linalg.by_panels import *
from spmdsim.arrays.linalg.norms import *
from spmdsim.arrays.linalg.tall import *
from spmdsim.arrays.linalg.vector_products import *
from spmdsim.arrays.linalg.whole import *
from spmdsim.arrays.ops import matmul as matmul
from spmdsim.arrays.ops import matrix_transpose as matrix_transpose
from spmdsim.arrays.ops import tensordot as tensordot
from spmdsim.arrays.ops import vecdot as vecdot

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __all__ = sorted(name for name, value in vars().items() if callable(value))
    __getattr__ = wrong_calls.refuse_names("spmdsim.linalg", __all__)
