"""Packed data: the values that a datatype picks from a buffer, one after the other as bytes in another one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import BYTE, BYTE_DTYPE, Datatype, data_bytes
from spmdsim.simulation.data.message_buffers import MessageBuffer, simple, writable

#: Basic types of other sizes in ``external32`` than here, by numpy's characters.
OTHERWISE = "lLgG"


def external(datatype: Datatype, datarep: str) -> Datatype:
    """Return the type if its values can be packed as ``external32``; raise an MPI error otherwise."""
    dtype, mixed = datatype.dtype, datatype.dtype == BYTE_DTYPE and datatype.alignment > 1
    parts = [dtype] if dtype.fields is None else [part[0] for part in dtype.fields.values()]
    if datarep != "external32":
        raise MPIError("ERR_ARG", f"data is packed as 'external32', not as {datarep!r}")
    if mixed or any(part.char in OTHERWISE for part in parts):
        why = (
            "it has parts of several types"
            if mixed
            else "longs have 4 bytes there and long doubles 16: take INT64_T"
        )
        raise MPIError("ERR_TYPE", f"{datatype} is not packed as 'external32' here, as {why}")
    return datatype


def pack(datatype: Datatype, inbuf: Any, outbuf: Any, position: int, swapped: bool = False) -> int:
    """Copy all complete values of ``inbuf`` to the bytes of ``outbuf`` from ``position`` on; return their end."""
    source, target = _values(datatype, inbuf), writable([outbuf, BYTE])
    values = source.copy()
    data = (
        (_big_endian(values) if swapped else values)
        .view(BYTE_DTYPE)
        .reshape(-1, datatype.dtype.itemsize)[:, data_bytes(datatype.dtype)]
    )
    _section(target, position, data.size, "hold").write(data.reshape(-1))
    return position + int(data.size)


def unpack(datatype: Datatype, inbuf: Any, position: int, outbuf: Any, swapped: bool = False) -> int:
    """Fill all complete values of ``outbuf`` from the bytes of ``inbuf`` from ``position`` on; return their end."""
    writable([outbuf, BYTE])
    target, kept = _values(datatype, outbuf), data_bytes(datatype.dtype)
    nbytes = target.elements * len(kept)
    values = target.copy()
    rows = values.view(BYTE_DTYPE).reshape(-1, datatype.dtype.itemsize)
    rows[:, kept] = _section(simple([inbuf, BYTE]), position, nbytes, "bring").read().reshape(-1, len(kept))
    target.write(_big_endian(values) if swapped else values)
    return position + nbytes


def _big_endian(values: np.ndarray) -> np.ndarray:
    """Return the values with bytes swapped if the machine is little-endian; the operation is its own inverse."""
    return values.byteswap() if sys.byteorder == "little" else values


def _values(datatype: Datatype, memory: Any) -> MessageBuffer:
    """Return the buffer of all complete values of the type that fit in the memory."""
    nbytes = simple([memory, BYTE]).nbytes
    return simple([memory, nbytes // datatype.extent if datatype.extent else 0, datatype])


def _section(packed: MessageBuffer, position: int, nbytes: int, does: str) -> MessageBuffer:
    last = position + nbytes
    if position < 0 or last > packed.nbytes:
        reason = f"{packed.nbytes} bytes do not {does} bytes {position} to {last}"
        raise MPIError("ERR_TRUNCATE" if position >= 0 else "ERR_ARG", reason)
    return packed.part(position, nbytes)
