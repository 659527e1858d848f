"""What a caller hands over: an array, or [array, count, displacement, datatype] in all its forms; or any Python object."""

from __future__ import annotations

import pickle
from itertools import accumulate
from typing import Any

import numpy as np

from spmdsim.errors import many
from spmdsim.simulation.data.constants import ANY_SOURCE, IN_PLACE, PROC_NULL, MPIError
from spmdsim.simulation.data.derived_types import BYTE, BYTE_DTYPE, PACKED, Datatype, of_dtype

NO_ORDER, ROWS, COLUMNS = 0, 1, 2
OBJECT = "object"  # the dtype of a pickled message


class MessageBuffer:
    """A region of a rank's memory that a message is read from or written to.

    Attributes:
        array: the memory: an array of any shape, in memory order, or 1-D elements when a datatype picks from it.
        dtype: the basic numpy dtype of one element.
        elements: number of basic elements in the message.
        nbytes: their bytes.
        index: which elements a derived datatype picks, or None.
        loose: whether it was declared as bytes, which match anything.
        order: how an array of more than one dimension lies in memory, ROWS or COLUMNS; else NO_ORDER.
    """

    __slots__ = ("array", "dtype", "elements", "index", "loose", "nbytes", "order")

    def __init__(self, array: Any, dtype: Any, elements: int, index: Any = None) -> None:
        self.array = array
        self.dtype = dtype
        self.elements = elements
        self.nbytes = elements * dtype.itemsize
        self.index = index
        self.loose = False
        self.order = NO_ORDER

    def read(self) -> Any:
        """Return the elements as a 1-D array, a view where possible."""
        if self.index is not None:
            return self.array[self.index]
        return self.array.reshape(-1, order="A")

    def copy(self) -> Any:
        """Return the elements as a new 1-D array."""
        data = self.read()
        return data if self.index is not None else data.copy()

    def write(self, data: Any) -> None:
        """Write 1-D elements of the buffer's dtype at its start."""
        count = len(data)
        if self.index is not None:
            self.array[self.index[:count]] = data
        elif count == self.elements:
            self.read()[...] = data
        else:
            self.read()[:count] = data

    def part(self, start: int, count: int) -> MessageBuffer:
        """Return the buffer of ``count`` elements from ``start`` on."""
        if self.index is not None:
            piece = MessageBuffer(self.array, self.dtype, count, self.index[start : start + count])
        else:
            piece = MessageBuffer(self.read()[start : start + count], self.dtype, count)
        piece.loose = self.loose
        return piece


def simple(spec: Any) -> MessageBuffer:
    """Return the buffer of a message to or from one rank.

    Raises:
        BufferError: If the memory is not contiguous.
        MPIError: If the memory does not hold the counts, or the datatype is not committed.
        TypeError: If ``spec`` is no buffer.
        ValueError: If ``spec`` has too many items, or no count and a size that is no multiple of the extent.
    """
    if type(spec) is np.ndarray:
        flags = spec.flags
        rows, columns = flags.c_contiguous, flags.f_contiguous
        if not (rows or columns):
            raise BufferError(_not_contiguous(spec))
        whole = MessageBuffer(spec, spec.dtype, spec.size)
        if rows is not columns:
            whole.order = ROWS if rows else COLUMNS
        return whole
    memory, count, start, datatype = _unpack(spec)
    flat, datatype, order = _elements(memory, datatype)
    if count is None:
        count = _whole(len(flat) - start, datatype)
    return _piece(flat, count, start, datatype, order)


def outgoing(spec: Any, dest: int) -> MessageBuffer:
    """Return the buffer of a message to a rank; None is accepted for PROC_NULL."""
    return simple([None, 0] if spec is None and dest == PROC_NULL else spec)


def writable(spec: Any, source: int = ANY_SOURCE) -> MessageBuffer:
    """Return a buffer to receive into; None is accepted for PROC_NULL."""
    buffer = outgoing(spec, source)
    if not buffer.array.flags.writeable:
        raise BufferError("the receive buffer is read-only")
    return buffer


def blocks(spec: Any, parts: int) -> list[MessageBuffer]:
    """Return equal, consecutive buffers, one per rank."""
    memory, count, start, datatype = _unpack(spec)
    flat, datatype, order = _elements(memory, datatype)
    if count is None:
        count = _share(len(flat) - start, datatype, parts)
    return [_piece(flat, count, start + i * count * datatype.stride, datatype, order) for i in range(parts)]


def vector(spec: Any, parts: int) -> list[MessageBuffer]:
    """Return buffers of given counts at given displacements, one per rank."""
    memory, counts, places, datatype = _items(spec, "[data, counts, displs, datatype]", tuple)
    flat, datatype, order = _elements(memory, datatype)
    if counts is None:
        counts = _share(len(flat), datatype, parts)
    if np.ndim(counts) == 0:
        counts = [int(counts)] * parts
    sizes = [int(value) for value in counts]
    if places is None:
        places = list(accumulate(sizes, initial=0))[:-1]
    elif np.ndim(places) == 0:
        places = [i * int(places) for i in range(parts)]
    if len(sizes) != parts or len(places) != parts:
        raise ValueError(
            f"{many(len(sizes), 'count')} and {many(len(places), 'displacement')} for {many(parts, 'rank')}: one each is needed"
        )
    return [_piece(flat, n, int(at) * datatype.stride, datatype, order) for n, at in zip(sizes, places)]


def _whole(elements: int, datatype: Datatype) -> int:
    """Return the number of values of a type in a buffer whose count was not written."""
    stride, size = max(datatype.stride, 1), datatype.dtype.itemsize
    if elements > 0 and elements % stride:
        raise ValueError(
            f"no count was written, and {elements * size:,} bytes are no multiple of the extent of {datatype}, "
            f"{stride * size:,} bytes"
        )
    return elements // stride


def _share(elements: int, datatype: Datatype, parts: int) -> int:
    """Return the number of values of a buffer that each rank gets."""
    values = _whole(elements, datatype)
    if parts and values % parts:
        raise ValueError(
            f"the buffer holds {many(values, 'element')}, which cannot be shared out to {many(parts, 'rank')}"
        )
    return values // max(parts, 1)


def typed(spec: Any, parts: int) -> list[MessageBuffer]:
    """Return buffers of given counts, displacements in bytes and datatypes, one per rank."""
    memory, counts, places, types = _unpack_typed(spec, parts)
    if not (len(counts) == len(places) == len(types) == parts):
        raise ValueError(f"counts, displacements and datatypes must be {parts} each, one per rank")
    buffers = []
    for count, place, datatype in zip(counts, places, types):
        flat, datatype, order = _elements(memory, datatype)
        if place % datatype.dtype.itemsize:
            raise MPIError("ERR_ARG", f"byte displacement {place} does not fit {datatype}")
        buffers.append(_piece(flat, int(count), int(place) // datatype.dtype.itemsize, datatype, order))
    return buffers


def _is_type(value: Any) -> bool:
    return isinstance(value, Datatype | str | np.dtype) or (
        isinstance(value, type) and issubclass(value, np.generic)
    )


def _as_type(value: Any) -> Datatype | None:
    if value is None or isinstance(value, Datatype):
        return value
    return of_dtype(np.dtype(value))


def _unpack(spec: Any) -> tuple[Any, int | None, int, Datatype | None]:
    """Return memory, count, first element and datatype of a simple message."""
    memory, count, place, datatype = _items(spec, "[data, count, displacement, datatype]", (list, tuple))
    stride = datatype.stride if datatype is not None else 1
    return memory, None if count is None else int(count), int(place or 0) * stride, datatype


def _items(spec: Any, form: str, together: Any) -> tuple[Any, Any, Any, Datatype | None]:
    """Return memory, count or counts, displacements and datatype; omitted items are None.

    Args:
        spec: what a caller wrote.
        form: what is right, for an error.
        together: types of a pair of the second and the third that stands for both.
    """
    if spec is None:
        raise TypeError(
            f"None is no buffer: pass an array or {form}; it stands for nothing with PROC_NULL alone"
        )
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    memory, *rest = spec
    if len(rest) == 2 and rest[1] is None:
        rest.pop()
    datatype = _as_type(rest.pop()) if rest and (_is_type(rest[-1]) or len(rest) == 3) else None
    if len(rest) > 2:
        raise ValueError(f"a message is {form}, not {many(len(spec), 'item')}")
    counts, places = [*rest, None, None][:2]
    if len(rest) == 1 and isinstance(counts, together) and len(counts) == 2:
        counts, places = counts
    return memory, counts, places, datatype


def _unpack_typed(spec: Any, parts: int) -> tuple[Any, Any, Any, list[Datatype]]:
    """Return memory, counts, byte displacements and datatypes of a w-variant."""
    if not isinstance(spec, list | tuple) or len(spec) not in (2, 3, 4):
        raise ValueError("a message with a datatype per rank is [data, counts, displs, datatypes]")
    memory, *rest = spec
    types = [_as_type(value) or BYTE for value in rest.pop()]
    counts: Any = rest[0] if rest else [1] * parts
    places: Any = rest[1] if len(rest) > 1 else [0] * parts
    if len(rest) == 1 and isinstance(counts, tuple) and len(counts) == 2:
        counts, places = counts
    return memory, counts, places, types


def _elements(memory: Any, datatype: Datatype | None) -> tuple[Any, Datatype, int]:
    """Return the memory as 1-D elements of the basic dtype in memory order, the datatype and the order."""
    if memory is None or memory is IN_PLACE:
        return np.zeros(0, BYTE_DTYPE), datatype or BYTE, NO_ORDER
    array = memory if isinstance(memory, np.ndarray) else _as_array(memory)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferError(_not_contiguous(array))
    order = NO_ORDER
    if not (array.flags.c_contiguous and array.flags.f_contiguous):
        order = ROWS if array.flags.c_contiguous else COLUMNS
    flat = array.reshape(-1, order="A")
    if datatype is None:
        return flat, of_dtype(array.dtype), order
    if not datatype.committed:
        raise MPIError("ERR_TYPE", f"{datatype} is not committed: call Commit() first")
    if datatype.dtype != flat.dtype:
        raw = flat.view(BYTE_DTYPE)
        item = datatype.dtype.itemsize
        flat = raw[: len(raw) // item * item].view(datatype.dtype)
    return flat, datatype, order


def _as_array(memory: Any) -> Any:
    try:
        view = memoryview(memory)
    except TypeError:
        if hasattr(memory, "__array_interface__") or hasattr(memory, "__array__"):
            return np.asarray(memory)
        raise TypeError(
            f"a buffer is needed, such as a numpy array, but got {type(memory).__name__}; "
            "any Python object can be sent with the lower-case call"
        ) from None
    array = np.asarray(view)
    return array.view(BYTE_DTYPE) if isinstance(memory, bytes | bytearray) else array


def _piece(flat: Any, count: int, start: int, datatype: Datatype, order: int) -> MessageBuffer:
    """Return the buffer of ``count`` values of a datatype from element ``start`` on."""
    if count < 0:
        raise MPIError("ERR_COUNT", f"the count is {count}")
    if datatype.offsets is None and datatype.stride == 1:
        if start < 0 or start + count > len(flat):
            raise MPIError("ERR_BUFFER", _too_small(flat, start, start + count))
        piece = MessageBuffer(flat[start : start + count], datatype.dtype, count)
    else:
        index = (start + np.arange(count)[:, None] * datatype.stride + datatype._picked()).reshape(-1)
        if len(index) and (index.min() < 0 or index.max() >= len(flat)):
            raise MPIError("ERR_BUFFER", _too_small(flat, int(index.min()), int(index.max()) + 1))
        piece = MessageBuffer(flat, datatype.dtype, len(index), index)
    piece.loose = datatype is BYTE or datatype is PACKED
    piece.order = order
    return piece


def _too_small(flat: Any, start: int, stop: int) -> str:
    return f"elements {start} to {stop} are asked for, but the buffer holds {len(flat)}"


def _not_contiguous(array: Any) -> str:
    return f"a {'×'.join(map(str, array.shape))} array with strides {array.strides} is not contiguous: send a copy"


# ---------------------------------------------------------------------- Python objects

_IMMUTABLE = frozenset((int, float, complex, bool, type(None), str, bytes))


class ObjectPayload:
    """A Python object in a message; every receiver gets its own copy.

    Attributes:
        nbytes: bytes of the pickle, or of what it would hold for a simple value.
    """

    __slots__ = ("_object", "_pickled", "nbytes")
    dtype = OBJECT
    shape = ()
    elements = 1
    loose = False
    order = NO_ORDER

    def __init__(self, value: Any) -> None:
        kind = type(value)
        self._pickled: bytes | None = None
        self._object: Any = None
        if kind in _IMMUTABLE:
            self._object = value
            self.nbytes = len(value) if kind in (str, bytes) else 8
        else:
            self._pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            self.nbytes = len(self._pickled)

    def load(self) -> Any:
        """Return a copy of the object for the running rank."""
        return self._object if self._pickled is None else pickle.loads(self._pickled)


class ObjectTarget:
    """The target of a lower-case receive, which returns its object instead of filling a buffer."""

    __slots__ = ()
    dtype = OBJECT
    shape = ()
    elements = 1
    loose = False
    order = NO_ORDER
    nbytes = 0


OBJECT_TARGET = ObjectTarget()
