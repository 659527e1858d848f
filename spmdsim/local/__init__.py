"""Functions of a rank's own arrays as operators on global tensors, and what such a function may call.

A function written for ``jax.shard_map`` is written down here line by line: :func:`local_map` runs it on every rank's
pieces, and inside of it ranks have coordinates (:func:`axis_rank`) and collectives by axis (:func:`psum`, ...).
"""

from spmdsim.local.axis_collectives import (
    all_gather,
    all_to_all,
    axis_index,
    axis_rank,
    axis_size,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_scatter,
)
from spmdsim.local.function import LocalFunction, local_map
from spmdsim.local.overlap import map_overlap

__all__ = [
    "LocalFunction",
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_rank",
    "axis_size",
    "local_map",
    "map_overlap",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
]
