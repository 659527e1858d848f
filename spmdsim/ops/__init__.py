"""The operators, each declared once by a rule and a local function.

Element types are numpy's. Functions that make fractions of whole numbers (``sigmoid``, ``gelu``, ``softmax``, ``reciprocal``,
...) give what ``numpy.exp`` gives: float16, float32 or float64 by the integer's width. bfloat16 takes in integers of any
width and meets float16 in float32, as in torch and JAX. What needs an order, or is not defined for a type, is refused.
"""

from typing import TYPE_CHECKING

from spmdsim import wrong_calls
from spmdsim.ops.activations import *
from spmdsim.ops.along import *
from spmdsim.ops.arrange import *
from spmdsim.ops.assign import *
from spmdsim.ops.class_losses import *
from spmdsim.ops.contract import *
from spmdsim.ops.declare import *
from spmdsim.ops.dim_reductions import *
from spmdsim.ops.einstein_sums import *
from spmdsim.ops.elementwise import *
from spmdsim.ops.indexing import *
from spmdsim.ops.lookup import *
from spmdsim.ops.normalise import *
from spmdsim.ops.operators import OperatorFunction
from spmdsim.ops.places import *
from spmdsim.ops.scans import *
from spmdsim.ops.scatter import *
from spmdsim.ops.selecting import *
from spmdsim.ops.shape import *
from spmdsim.ops.slicing import *
from spmdsim.ops.sorting import *
from spmdsim.ops.statistics import *
from spmdsim.ops.variance import *
from spmdsim.ops.windowed import *

#: All operators by name; x[index] and x[index] = value are written so.
__all__ = sorted(
    name for name, value in vars().items() if isinstance(value, OperatorFunction) and name != "setitem"
)

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __getattr__ = wrong_calls.refuse_names(__name__, __all__)
