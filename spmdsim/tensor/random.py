"""Draw tensors of random numbers: the name of :mod:`spmdsim.arrays.random` before 0.2."""

from spmdsim.arrays.random import normal, uniform

__all__ = ["normal", "uniform"]
