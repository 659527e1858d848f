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
    """Return ``datatype`` if its values can be packed in the format "external32".

    Args:
        datatype: the type of the values.
        datarep: the name of the format; must be "external32".

    Raises:
        MPIError: If the format has another name, if the type has parts of several types, or if a basic type has
            another size in the format: long, unsigned long, long double and its complex type.
    """
    if datarep != "external32":
        raise MPIError("ERR_ARG", f"datarep must be 'external32', got {datarep!r}")
    dtype = datatype.dtype
    # Bytes with an alignment are the parts of a struct, whose types are not known any more.
    if dtype == BYTE_DTYPE and datatype.alignment > 1:
        raise _unsupported(datatype, "it has parts of several types")
    basic_types = [dtype] if dtype.fields is None else [field[0] for field in dtype.fields.values()]
    if any(basic_type.char in _OTHER_SIZE for basic_type in basic_types):
        raise _unsupported(datatype, "longs have 4 bytes in this format and long doubles 16; use INT64_T")
    return datatype


def _unsupported(datatype: Datatype, reason: str) -> MPIError:
    """Return the error for a type that cannot be packed in the format "external32"."""
    return MPIError("ERR_TYPE", f"{datatype} is not supported in the format 'external32': {reason}")


def pack(datatype: Datatype, inbuf: Any, outbuf: Any, position: int, swapped: bool = False) -> int:
    """Copy all complete values of ``inbuf`` to the bytes of ``outbuf`` from byte ``position`` on.

    Padding is not copied. If ``inbuf`` ends within a value, this value is left out.

    Args:
        datatype: the type of the values.
        inbuf: contiguous memory with the values, such as an array or a bytearray.
        outbuf: contiguous, writeable memory.
        position: the first byte of ``outbuf`` to write.
        swapped: True to store values in big-endian order.

    Returns:
        The position after the last byte written.

    Raises:
        BufferError: If memory is not contiguous, or ``outbuf`` is read-only.
        MPIError: If ``outbuf`` has too few bytes after ``position``, or the type is not committed.
        TypeError: If ``inbuf`` or ``outbuf`` is no buffer.
    """
    source, target = _complete_values(datatype, inbuf), receive_buffer([outbuf, BYTE])
    values = _big_endian(source.copy()) if swapped else source.copy()
    bytes_of_values = values.view(BYTE_DTYPE).reshape(-1, datatype.dtype.itemsize)
    data = bytes_of_values[:, data_byte_positions(datatype.dtype)].reshape(-1)
    _section(target, position, data.size).write(data)
    return position + int(data.size)


def unpack(datatype: Datatype, inbuf: Any, position: int, outbuf: Any, swapped: bool = False) -> int:
    """Fill all complete values of ``outbuf`` from the bytes of ``inbuf`` from byte ``position`` on.

    The size of ``outbuf`` decides how many values are read. Padding in ``outbuf`` stays unchanged.

    Args:
        datatype: the type of the values.
        inbuf: contiguous memory with packed bytes.
        position: the first byte of ``inbuf`` to read.
        outbuf: contiguous, writeable memory for the values.
        swapped: True to read values in big-endian order.

    Returns:
        The position after the last byte read.

    Raises:
        BufferError: If memory is not contiguous, or ``outbuf`` is read-only.
        MPIError: If ``inbuf`` has too few bytes after ``position``, or the type is not committed.
        TypeError: If ``inbuf`` or ``outbuf`` is no buffer.
    """
    receive_buffer([outbuf, BYTE])  # raises an error for read-only memory
    target, data_positions = _complete_values(datatype, outbuf), data_byte_positions(datatype.dtype)
    nbytes = target.elements * len(data_positions)
    packed = _section(message_buffer([inbuf, BYTE]), position, nbytes)
    values = target.copy()
    bytes_of_values = values.view(BYTE_DTYPE).reshape(-1, datatype.dtype.itemsize)
    bytes_of_values[:, data_positions] = packed.read().reshape(-1, len(data_positions))
    target.write(_big_endian(values) if swapped else values)
    return position + nbytes


def _big_endian(values: np.ndarray) -> np.ndarray:
    """Swap the bytes of values on a little-endian machine; a second call restores them."""
    return values.byteswap() if sys.byteorder == "little" else values


def _complete_values(datatype: Datatype, memory: Any) -> MessageBuffer:
    """Return the buffer of all complete values of a type that fit in memory from its start.

    A type with an extent of 0 gives an empty buffer. Raises the errors of :func:`message_buffer`.
    """
    nbytes = message_buffer([memory, BYTE]).nbytes
    return message_buffer([memory, nbytes // datatype.extent if datatype.extent else 0, datatype])


def _section(packed: MessageBuffer, position: int, nbytes: int) -> MessageBuffer:
    """Return the buffer of some bytes of a packed buffer; memory is shared.

    Args:
        packed: a buffer of the type BYTE.
        position: the first byte.
        nbytes: number of bytes.

    Raises:
        MPIError: If these bytes are not all inside the packed buffer: ERR_ARG for a negative position, else
            ERR_TRUNCATE.
    """
    last = position + nbytes
    if position < 0 or last > packed.nbytes:
        reason = f"the packed buffer has {packed.nbytes} bytes, but bytes {position} to {last} are needed"
        raise MPIError("ERR_TRUNCATE" if position >= 0 else "ERR_ARG", reason)
    return packed.select_elements(position, nbytes)
