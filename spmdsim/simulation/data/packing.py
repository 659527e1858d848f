"""Pack the values that a datatype picks from a buffer into consecutive bytes of another buffer, and unpack them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import BYTE, BYTE_DTYPE, Datatype, data_byte_positions
from spmdsim.simulation.data.message_buffers import MessageBuffer, message_buffer, receive_buffer

#: NumPy characters of the basic types that have another size in ``external32``.
_OTHER_SIZE = "lLgG"


def check_external(datatype: Datatype, datarep: str) -> Datatype:
    """Return the type if its values can be packed in the format ``datarep``, which must be "external32".

    Raises:
        MPIError: If the format has another name, the type has parts of several types, or a basic type has another
            size in the format, as longs and long doubles do.
    """
    dtype, mixed = datatype.dtype, datatype.dtype == BYTE_DTYPE and datatype.alignment > 1
    parts = [dtype] if dtype.fields is None else [field[0] for field in dtype.fields.values()]
    if datarep != "external32":
        raise MPIError("ERR_ARG", f"datarep must be 'external32', got {datarep!r}")
    if mixed or any(field.char in _OTHER_SIZE for field in parts):
        why = (
            "it has parts of several types"
            if mixed
            else "longs have 4 bytes in this format and long doubles 16; use INT64_T"
        )
        raise MPIError("ERR_TYPE", f"{datatype} is not supported in the format 'external32': {why}")
    return datatype


def pack(datatype: Datatype, inbuf: Any, outbuf: Any, position: int, swapped: bool = False) -> int:
    """Copy all complete values of ``inbuf`` to the bytes of ``outbuf`` from byte ``position`` on.

    Padding is not copied. ``swapped`` stores values in big-endian order.

    Returns:
        The position after the last byte written.
    """
    source, target = _complete_values(datatype, inbuf), receive_buffer([outbuf, BYTE])
    values = source.copy()
    data = (
        (_big_endian(values) if swapped else values)
        .view(BYTE_DTYPE)
        .reshape(-1, datatype.dtype.itemsize)[:, data_byte_positions(datatype.dtype)]
    )
    _section(target, position, data.size).write(data.reshape(-1))
    return position + int(data.size)


def unpack(datatype: Datatype, inbuf: Any, position: int, outbuf: Any, swapped: bool = False) -> int:
    """Fill all complete values of ``outbuf`` from the bytes of ``inbuf`` from byte ``position`` on.

    ``swapped`` reads values in big-endian order.

    Returns:
        The position after the last byte read.
    """
    receive_buffer([outbuf, BYTE])
    target, data_positions = _complete_values(datatype, outbuf), data_byte_positions(datatype.dtype)
    nbytes = target.elements * len(data_positions)
    values = target.copy()
    rows = values.view(BYTE_DTYPE).reshape(-1, datatype.dtype.itemsize)
    rows[:, data_positions] = (
        _section(message_buffer([inbuf, BYTE]), position, nbytes).read().reshape(-1, len(data_positions))
    )
    target.write(_big_endian(values) if swapped else values)
    return position + nbytes


def _big_endian(values: np.ndarray) -> np.ndarray:
    """Swap the bytes of values on a little-endian machine; a second call restores them."""
    return values.byteswap() if sys.byteorder == "little" else values


def _complete_values(datatype: Datatype, memory: Any) -> MessageBuffer:
    """Return the buffer of all complete values of the type that fit in the memory."""
    nbytes = message_buffer([memory, BYTE]).nbytes
    return message_buffer([memory, nbytes // datatype.extent if datatype.extent else 0, datatype])


def _section(packed: MessageBuffer, position: int, nbytes: int) -> MessageBuffer:
    """Return the buffer of ``nbytes`` bytes of a packed buffer, from byte ``position`` on.

    Raises:
        MPIError: If these bytes are not all inside the packed buffer.
    """
    last = position + nbytes
    if position < 0 or last > packed.nbytes:
        reason = f"the packed buffer has {packed.nbytes} bytes, but bytes {position} to {last} are needed"
        raise MPIError("ERR_TRUNCATE" if position >= 0 else "ERR_ARG", reason)
    return packed.select_elements(position, nbytes)
