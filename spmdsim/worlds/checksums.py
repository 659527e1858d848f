"""Compute checksums of arrays, which ranks compare."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

#: Bytes up to which all are in a checksum of samples; of more, so many samples of so many bytes.
SMALL, SAMPLES, SAMPLE = 1 << 16, 16, 1 << 12
#: Bytes that a checksum copies at a time where an array is not contiguous.
BLOCK = 1 << 22
#: Bytes of a longdouble that hold its value. Calculations leave anything in the last six bytes of x86's 80-bit format.
LONGDOUBLE_BYTES = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize


def checksum(array: np.ndarray) -> int:
    """Return the CRC-32 of all bytes of an array in C order."""
    if array.flags.c_contiguous or array.nbytes <= BLOCK:
        return crc(array.ravel())
    rows, number = max(BLOCK * len(array) // array.nbytes, 1), 0
    for first in range(0, len(array), rows):
        number = crc(array[first : first + rows].ravel(), number)
    return number


def sampled(array: np.ndarray, turn: int = 0) -> int:
    """Return the checksum of a small array, or of samples of an array of more than 64 KiB.

    Each ``turn`` takes other samples.
    """
    if array.nbytes <= SMALL:
        return checksum(array)
    flat: Any = array.ravel() if array.flags.c_contiguous else array.flat
    count, stride = max(SAMPLE // array.itemsize, 1), array.size / SAMPLES
    last = array.size - count
    first = [min(int((k + turn * 0.381966 % 1) * stride), last) for k in range(SAMPLES)]
    return crc(np.concatenate([np.asarray(flat[k : k + count]) for k in first]))


def crc(flat: np.ndarray, number: int = 0) -> int:
    """Return the CRC-32 of the bytes of a 1-D array, continued from that of earlier bytes, ``number``.

    Bytes of extended-precision numbers that are not part of their value do not count.
    """
    data: Any = flat.view(np.uint8)
    if flat.dtype.char in "gG":
        numbers = data.reshape(-1, np.dtype(np.longdouble).itemsize)
        data = np.ascontiguousarray(numbers[:, :LONGDOUBLE_BYTES])
    return zlib.crc32(data, number) if flat.size else number
