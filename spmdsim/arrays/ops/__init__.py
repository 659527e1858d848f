"""The operators, each declared once by a rule and a local function.

Element types are numpy's. Functions that make fractions of whole numbers (``sigmoid``, ``gelu``, ``softmax``,
``reciprocal``, ...) give what ``numpy.exp`` gives: float16, float32 or float64 by the integer's width. bfloat16 takes
in integers of any width and meets float16 in float32, as in torch and JAX. What needs an order, or is not defined for
a type, is refused.
"""

from typing import TYPE_CHECKING

from spmdsim import wrong_calls
from spmdsim.arrays.ops.activations import *
from spmdsim.arrays.ops.along import *
from spmdsim.arrays.ops.arrange import *
from spmdsim.arrays.ops.assign import *
from spmdsim.arrays.ops.class_losses import *
from spmdsim.arrays.ops.contract import *
from spmdsim.arrays.ops.declare import *
from spmdsim.arrays.ops.dim_reductions import *
from spmdsim.arrays.ops.einstein_sums import *
from spmdsim.arrays.ops.elementwise import *
from spmdsim.arrays.ops.indexing import *
from spmdsim.arrays.ops.lookup import *
from spmdsim.arrays.ops.normalise import *
from spmdsim.arrays.ops.operators import OperatorFunction
from spmdsim.arrays.ops.places import *
from spmdsim.arrays.ops.scans import *
from spmdsim.arrays.ops.scatter import *
from spmdsim.arrays.ops.selecting import *
from spmdsim.arrays.ops.shape import *
from spmdsim.arrays.ops.slicing import *
from spmdsim.arrays.ops.sorting import *
from spmdsim.arrays.ops.statistics import *
from spmdsim.arrays.ops.variance import *
from spmdsim.arrays.ops.windowed import *

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    #: All operators by name; x[index] and x[index] = value are written so.
    __all__ = sorted(
        name for name, value in vars().items() if isinstance(value, OperatorFunction) and name != "setitem"
    )
    __getattr__ = wrong_calls.refuse_names("spmdsim.ops", __all__)
