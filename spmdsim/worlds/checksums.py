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
    """Return the CRC-32 of all elements of an array in C order.

    The element type and the shape do not count, nor do padding bytes of extended-precision numbers. An array that is
    not contiguous and larger than :data:`BLOCK` bytes is copied in blocks of about that size.

    >>> checksum(np.arange(4)) == checksum(np.arange(4).reshape(2, 2))
    True
    """
    if array.flags.c_contiguous or array.nbytes <= BLOCK:
        return crc(array.ravel())
    rows, number = max(BLOCK * len(array) // array.nbytes, 1), 0
    for first in range(0, len(array), rows):
        number = crc(array[first : first + rows].ravel(), number)
    return number


def sample_checksum(array: np.ndarray, turn: int = 0) -> int:
    """Return the checksum of an array of at most 64 KiB, or of samples of a larger array.

    The samples are 16 stretches of 4 KiB at equal distances. Other ``turn`` values shift all of them.

    Args:
        array: the array.
        turn: a number from 0, such as how often the array was sampled before.
    """
    if array.nbytes <= SMALL:
        return checksum(array)
    flat: Any = array.ravel() if array.flags.c_contiguous else array.flat
    count, stride = max(SAMPLE // array.itemsize, 1), array.size / SAMPLES
    last = array.size - count
    # The golden ratio spreads the starts of successive turns evenly.
    starts = [min(int((k + turn * 0.381966 % 1) * stride), last) for k in range(SAMPLES)]
    return crc(np.concatenate([np.asarray(flat[start : start + count]) for start in starts]))


def crc(flat: np.ndarray, number: int = 0) -> int:
    """Return the CRC-32 of the bytes of a 1-D array.

    Padding bytes of extended-precision numbers do not count, because they are not a part of the value.

    Args:
        flat: the array.
        number: the CRC-32 of bytes that precede the array; it is continued.
    """
    data: Any = flat.view(np.uint8)
    if flat.dtype.char in "gG":
        numbers = data.reshape(-1, np.dtype(np.longdouble).itemsize)
        data = np.ascontiguousarray(numbers[:, :LONGDOUBLE_BYTES])
    return zlib.crc32(data, number) if flat.size else number
