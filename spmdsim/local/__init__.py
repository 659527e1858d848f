"""Functions of a rank's own arrays as operators on global tensors, and what such a function may call.

A function written for ``jax.shard_map`` is written down here line by line: :func:`local_map` runs it on every rank's
pieces, and inside of it ranks have coordinates (:func:`axis_rank`) and collectives by axis (:func:`psum`, ...).
"""

from spmdsim.local.axis_collectives import all_gather as all_gather
from spmdsim.local.axis_collectives import all_to_all as all_to_all
from spmdsim.local.axis_collectives import axis_index as axis_index
from spmdsim.local.axis_collectives import axis_rank as axis_rank
from spmdsim.local.axis_collectives import axis_size as axis_size
from spmdsim.local.axis_collectives import pmax as pmax
from spmdsim.local.axis_collectives import pmean as pmean
from spmdsim.local.axis_collectives import pmin as pmin
from spmdsim.local.axis_collectives import ppermute as ppermute
from spmdsim.local.axis_collectives import psum as psum
from spmdsim.local.axis_collectives import psum_scatter as psum_scatter
from spmdsim.local.function import LocalFunction as LocalFunction
from spmdsim.local.function import local_map as local_map
from spmdsim.local.overlap import map_overlap as map_overlap

__all__ = sorted(name for name, value in vars().items() if callable(value))
