"""Open files as arrays: the name of :mod:`spmdsim.arrays.files` before 0.2."""

from spmdsim.arrays.files import open_array, open_arrays, open_tokens

__all__ = ["open_array", "open_arrays", "open_tokens"]
