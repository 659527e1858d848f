"""Functions of a rank's own arrays as operators on global tensors, and what such a function may call.

A function written for ``jax.shard_map`` is written down here line by line: :func:`local_map` runs it on every rank's
pieces, and inside of it ranks have coordinates (:func:`axis_rank`) and collectives by axis (:func:`psum`, ...).
"""

from typing import TYPE_CHECKING

from spmdsim import wrong_calls
from spmdsim.arrays.local.axis_collectives import *
from spmdsim.arrays.local.axis_ranks import *
from spmdsim.arrays.local.function import *
from spmdsim.arrays.local.overlap import *

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __all__ = sorted(name for name, value in vars().items() if callable(value))
    __getattr__ = wrong_calls.refuse_names("spmdsim.local", __all__)
