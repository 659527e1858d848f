"""Packed data: the values that a datatype picks from a buffer, one after the other as bytes in another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import BYTE, BYTE_DTYPE, Datatype
from spmdsim.simulation.data.message_buffers import MessageBuffer, simple, writable


def pack(datatype: Datatype, inbuf: Any, outbuf: Any, position: int) -> int:
    """Copy all whole values of ``inbuf`` to the bytes of ``outbuf`` from ``position`` on; returns where they end."""
    source, target = _values(datatype, inbuf), writable([outbuf, BYTE])
    data = source.copy().view(BYTE_DTYPE).reshape(-1, datatype.dtype.itemsize)[:, _kept(datatype.dtype)]
    _section(target, position, data.size, "hold").write(data.reshape(-1))
    return position + int(data.size)


def unpack(datatype: Datatype, inbuf: Any, position: int, outbuf: Any) -> int:
    """Fill all whole values of ``outbuf`` from the bytes of ``inbuf`` from ``position`` on; returns where they end."""
    writable([outbuf, BYTE])
    target, kept = _values(datatype, outbuf), _kept(datatype.dtype)
    nbytes = target.elements * len(kept)
    values = target.copy()
    rows = values.view(BYTE_DTYPE).reshape(-1, datatype.dtype.itemsize)
    rows[:, kept] = _section(simple([inbuf, BYTE]), position, nbytes, "bring").read().reshape(-1, len(kept))
    target.write(values)
    return position + nbytes


def _values(datatype: Datatype, memory: Any) -> MessageBuffer:
    """As many values as a buffer has extents of the type."""
    nbytes = simple([memory, BYTE]).nbytes
    return simple([memory, nbytes // datatype.extent if datatype.extent else 0, datatype])


def _kept(dtype: np.dtype) -> Any:
    """The bytes of a basic value that are data: all but those that align the parts of a pair."""
    parts = [(0, dtype.itemsize)]
    if dtype.fields is not None:
        parts = [(part[1], part[0].itemsize) for part in dtype.fields.values()]
    return np.concatenate([np.arange(start, start + size) for start, size in parts])


def _section(packed: MessageBuffer, position: int, nbytes: int, does: str) -> MessageBuffer:
    last = position + nbytes
    if position < 0 or last > packed.nbytes:
        reason = f"{packed.nbytes} bytes do not {does} bytes {position} to {last}"
        raise MPIError("ERR_TRUNCATE" if position >= 0 else "ERR_ARG", reason)
    return packed.part(position, nbytes)
