"""Save and load tensors: the name of :mod:`spmdsim.arrays.checkpoint` before 0.2."""

from spmdsim.arrays.checkpoint import load, save

__all__ = ["load", "save"]
