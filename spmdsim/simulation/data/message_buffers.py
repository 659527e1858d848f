"""Convert the buffer arguments of MPI calls to regions of memory that messages are read from and written to.

A buffer argument ``spec`` is an array, or a list ``[array, count, displacement, datatype]`` whose later items may be
omitted. Of three items, the last one is the datatype. A call with one block per rank takes counts and displacements as lists. Counts and displacements count values
of the datatype, which may have several elements of a basic numpy dtype. Lower-case calls send Python objects instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np

from spmdsim.errors import many
from spmdsim.simulation.data.array_views import as_array, as_bytes, require_contiguous
from spmdsim.simulation.data.constants import ANY_SOURCE, BOTTOM, IN_PLACE, PROC_NULL, MPIError
from spmdsim.simulation.data.derived_types import BYTE, BYTE_DTYPE, PACKED, Datatype, datatype_of
from spmdsim.simulation.data.memory import buffer
from spmdsim.simulation.data.pickles import PICKLE
from spmdsim.simulation.data.type_agreement import contradicts
from spmdsim.simulation.data.type_lookups import types_by_code

NO_ORDER, ROWS, COLUMNS = 0, 1, 2
OBJECT = "object"  # the dtype of a pickled message


class MessageBuffer:
    """A region of a rank's memory that a message is read from or written to.

    Attributes:
        array: the memory: a contiguous array of any shape, which is read in the order of the memory. With ``index``,
            the 1-D array of all elements of the memory.
        dtype: the basic numpy dtype of one element.
        elements: number of basic elements in the message.
        nbytes: their bytes.
        index: the positions in ``array`` of the elements that a derived datatype picks; None: all elements.
        loose: True if the datatype is BYTE or PACKED, which match any datatype.
        order: ROWS or COLUMNS for an array of several dimensions that is stored in this order; else NO_ORDER.
        contradiction: words for the array's dtype and the datatype, if the program's datatype contradicts the dtype;
            else None.
    """

    __slots__ = ("array", "contradiction", "dtype", "elements", "index", "loose", "nbytes", "order")

    def __init__(self, array: Any, dtype: Any, elements: int, index: Any = None) -> None:
        self.array = array
        self.dtype = dtype
        self.elements = elements
        self.nbytes = elements * dtype.itemsize
        self.index = index
        self.loose = False
        self.order = NO_ORDER
        self.contradiction: tuple[str, str] | None = None

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
        """Write elements to the memory from the buffer's start; later elements stay unchanged.

        Args:
            data: a 1-D array of the buffer's dtype with at most as many elements as the buffer, which is not checked.
        """
        count = len(data)
        if self.index is not None:
            self.array[self.index[:count]] = data
        elif count == self.elements:
            self.read()[...] = data
        else:
            self.read()[:count] = data

    def select_elements(self, start: int, count: int) -> MessageBuffer:
        """Return the buffer of some consecutive elements of this one; memory is shared.

        Bounds are not checked: the caller makes sure that the elements exist. The order of the new buffer is
        NO_ORDER.

        Args:
            start: the number of the first element.
            count: how many there are.
        """
        if self.index is not None:
            buffer = MessageBuffer(self.array, self.dtype, count, self.index[start : start + count])
        else:
            buffer = MessageBuffer(self.read()[start : start + count], self.dtype, count)
        buffer.loose = self.loose
        buffer.contradiction = self.contradiction
        return buffer


def message_buffer(spec: Any) -> MessageBuffer:
    """Return the memory of a message to or from one rank, from the program's buffer argument.

    Args:
        spec: an array or another object with memory, such as a bytearray; or a list ``[array, count, displacement,
            datatype]`` with later items omitted. Count and displacement count values of the datatype. Without a count
            the message extends to the end of the memory. IN_PLACE gives an empty buffer.

    Raises:
        BufferError: If the memory is not contiguous, or its numbers have the byte order of another machine.
        KeyError: If no datatype is named, and MPI has none for the array's dtype.
        MPIError: If the memory does not contain the elements, the count is negative, or the datatype is null or not
            committed.
        TypeError: If ``spec`` is no buffer, or None.
        ValueError: If ``spec`` has too many items, or no count and a size that is no multiple of the extent.

    Two values from position 3 on:

    >>> message_buffer([np.arange(6), (2, 3)]).read().tolist()
    [3, 4]
    """
    if type(spec) is np.ndarray:
        flags = spec.flags
        rows, columns = flags.c_contiguous, flags.f_contiguous
        if not (rows or columns):
            require_contiguous(spec)
        dtype = spec.dtype
        if dtype.isbuiltin != 1 or dtype.hasobject:
            _check_dtype(dtype)
        buffer = MessageBuffer(spec, dtype, spec.size)
        if rows is not columns:
            buffer.order = ROWS if rows else COLUMNS
        return buffer
    memory, count, start, datatype = _parse_message(spec)
    flat, datatype, order = _flatten(memory, datatype, count is None)
    if memory is not BOTTOM and start > len(flat):
        raise ValueError(f"the displacement must be inside the buffer, got element {start} of {len(flat)}")
    if count is None:
        count = _count_values(len(flat) - start, datatype)
    return _name_contradiction(memory, datatype, [_typed_buffer(flat, count, start, datatype, order)])[0]


def count_and_type(spec: Any, buffer: MessageBuffer) -> tuple[int, Datatype]:
    """Return the number of values of a message, and their datatype.

    Args:
        spec: the program's buffer argument.
        buffer: its `message_buffer`.

    >>> data = [np.arange(6.0), 2]
    >>> count_and_type(data, message_buffer(data))
    (2, MPI.DOUBLE)
    """
    _, count, _, datatype = _parse_message(spec)
    datatype = datatype or datatype_of(buffer.dtype)
    return buffer.elements // max(datatype.elements, 1) if count is None else count, datatype


def send_buffer(spec: Any, dest: int) -> MessageBuffer:
    """Return the buffer of a message to rank ``dest``; ``spec`` may be None for PROC_NULL."""
    return message_buffer([None, 0] if spec is None and dest == PROC_NULL else spec)


def receive_buffer(spec: Any, source: int = ANY_SOURCE) -> MessageBuffer:
    """Return the buffer of a message from rank ``source``; ``spec`` may be None for PROC_NULL.

    Raises:
        BufferError: If the memory is read-only or not contiguous.
    """
    buffer = send_buffer(spec, source)
    if not buffer.array.flags.writeable:
        raise BufferError("the receive buffer is read-only")
    return buffer


def split_equally(spec: Any, rank_count: int) -> list[MessageBuffer]:
    """Split a buffer into equal, consecutive blocks, one for each rank.

    Args:
        spec: as for :func:`message_buffer`. A count is the count of one block; without it the whole memory is
            divided.
        rank_count: number of ranks.

    Returns:
        The buffers in the order of ranks; they share the memory.

    Raises:
        ValueError: If ``spec`` has no count, and its number of values is no multiple of ``rank_count``. Also the
            errors of :func:`message_buffer`.
    """
    memory, count, start, datatype = _parse_message(spec)
    flat, datatype, order = _flatten(memory, datatype, count is None)
    if count is None:
        count = _values_per_rank(len(flat) - start, datatype, rank_count)
    blocks = [
        _typed_buffer(flat, count, start + i * count * datatype.stride, datatype, order)
        for i in range(rank_count)
    ]
    return _name_contradiction(memory, datatype, blocks)


def split_by_counts(spec: Any, rank_count: int) -> list[MessageBuffer]:
    """Split a buffer into blocks of given counts at given displacements, one for each rank.

    Args:
        spec: ``[data, counts, displs, datatype]`` with later items omitted. Counts and displacements count values of
            the datatype. A tuple ``(counts, displs)`` may stand for both items.
            - ``counts``: a list with one count per rank; or one number, the count of every block. If omitted, the
              whole memory is divided into equal blocks.
            - ``displs``: a list with the start of each block; or one number, the distance from each start to the
              next. If omitted, the blocks follow one another.
        rank_count: number of ranks.

    Returns:
        The buffers in the order of ranks; they share the memory. Overlapping blocks are not refused.

    Raises:
        ValueError: If the number of counts or displacements is not the number of ranks, or omitted counts cannot be
            equal.
        MPIError: If a block is not inside the memory, or a count is negative. Also the errors of
            :func:`message_buffer`.

    >>> [block.read().tolist() for block in split_by_counts([np.arange(6), [1, 3, 2]], 3)]
    [[0], [1, 2, 3], [4, 5]]
    >>> [block.read().tolist() for block in split_by_counts([np.arange(6), (1, 2)], 3)]
    [[0], [2], [4]]
    """
    memory, counts, displacements, datatype = _parse_spec(spec, "[data, counts, displs, datatype]", tuple)
    if counts is None and _has_memory(memory):
        _require_extent(datatype)
    flat, datatype, order = _flatten(memory, datatype, counts is None)
    if counts is None:
        counts = 0 if memory is BOTTOM else _values_per_rank(len(flat), datatype, rank_count)
    sizes = [index(counts)] * rank_count if np.ndim(counts) == 0 else [index(count) for count in counts]
    if displacements is None:
        starts = list(accumulate(sizes, initial=0))[:-1]
    elif np.ndim(displacements) == 0:
        starts = [i * index(displacements) for i in range(rank_count)]
    else:
        starts = [index(displacement) for displacement in displacements]
    if len(sizes) != rank_count or len(starts) != rank_count:
        raise ValueError(
            f"counts and displacements must be one each for {many(rank_count, 'rank')}, "
            f"got {many(len(sizes), 'count')} and {many(len(starts), 'displacement')}"
        )
    blocks = [
        _typed_buffer(flat, size, start * datatype.stride, datatype, order)
        for size, start in zip(sizes, starts)
    ]
    return _name_contradiction(memory, datatype, blocks)


def _count_values(elements: int, datatype: Datatype) -> int:
    """Return the number of values in a buffer without a count.

    For a type with an extent of 3 elements, 12 elements have 4 values. An extent of 0 counts as 1.

    Args:
        elements: number of basic elements from the start of the message to the end of the memory. It is negative if
            the message starts behind the end; then the result is negative, too.
        datatype: the type of the values.

    Raises:
        ValueError: If the buffer does not end at the end of a value.
    """
    stride, size = max(datatype.stride, 1), datatype.dtype.itemsize
    if elements > 0 and elements % stride:
        raise ValueError(_no_multiple(datatype, stride * size, elements * size))
    return elements // stride


def _no_multiple(datatype: Datatype, extent: int, nbytes: int) -> str:
    return (
        f"a buffer without a count must have a multiple of the extent of {datatype}, {many(extent, 'byte')}, "
        f"got {many(nbytes, 'byte')}"
    )


def _values_per_rank(elements: int, datatype: Datatype, rank_count: int) -> int:
    """Return the number of values for each rank in a buffer without a count.

    If ``rank_count`` is 0, return the number of all values.

    Args:
        elements: number of the buffer's basic elements.
        datatype: the type of the values.
        rank_count: number of ranks.

    Raises:
        ValueError: If the buffer does not end at the end of a value, or the number of values is not a multiple of the
            number of ranks.
    """
    values = _count_values(elements, datatype)
    if rank_count and values % rank_count:
        raise ValueError(
            f"a buffer without a count must have a multiple of {many(rank_count, 'element')}, one block for each rank, "
            f"got {many(values, 'element')}"
        )
    return values // max(rank_count, 1)


def split_by_types(spec: Any, rank_count: int) -> list[MessageBuffer]:
    """Split a buffer into one block for each rank; each block has its own datatype (Alltoallw).

    For example, ``[data, [1, 2], [0, 8], [MPI.DOUBLE, MPI.INT]]`` gives rank 0 one double in bytes 0 to 7, and rank 1
    two ints in bytes 8 to 15.

    Args:
        spec: ``[data, counts, displs, datatypes]`` with one entry per rank in each list, or a shorter form of
            :func:`_parse_typed`. Displacements are in bytes.
        rank_count: number of ranks.

    Returns:
        The buffers in the order of ranks; they share the memory.

    Raises:
        BufferError: If the memory is not contiguous.
        ValueError: If ``spec`` has another form, or another number of items than ranks.
        TypeError: If a count or displacement is no integer, or a datatype no MPI datatype.
        MPIError: If a block is not inside the memory, or a type is not committed.
    """
    memory, counts, displacements, types = _parse_typed(spec, rank_count)
    if not (len(counts) == len(displacements) == len(types) == rank_count):
        raise ValueError(
            f"counts, displacements and datatypes must be one each for {many(rank_count, 'rank')}, "
            f"got {len(counts)}, {len(displacements)} and {len(types)}"
        )
    buffers = []
    for count, displacement, datatype in zip(counts, displacements, types):
        flat, datatype, order = _flatten(memory, datatype, False)
        start, shift = divmod(displacement, datatype.dtype.itemsize)
        if shift and flat is not BOTTOM:
            flat = _flatten(as_bytes(memory)[shift:], datatype, False)[0]
        buffer = _typed_buffer(flat, count, start, datatype, order, shift)
        buffers += _name_contradiction(memory, datatype, [buffer])
    return buffers


def _as_type(value: Any) -> Datatype | None:
    """Return the datatype of an item of a buffer argument.

    Args:
        value: a datatype, a code such as "i" or "f8", or None, which stays None.

    Raises:
        KeyError: If there is no such code.
        TypeError: If the item is a list.
    """
    if value is None or isinstance(value, Datatype):
        return value
    if not isinstance(value, Hashable):
        raise TypeError(
            f"the third item of a buffer must be a datatype, got {value!r}; write [data, (counts, displacements)]"
        )
    codes: dict[Any, Datatype] = types_by_code()
    datatype = codes.get(value)
    if datatype is None:
        raise KeyError(f"a datatype must be an MPI datatype or a code such as 'i' or 'f8', got {value!r}")
    return datatype


def _parse_message(spec: Any) -> tuple[Any, int | None, int, Datatype | None]:
    """Return the items of the buffer argument of a message to one rank.

    Args:
        spec: as for :func:`message_buffer`.

    Returns:
        The memory, as the program passed it; the count of values, or None if omitted; the position of the first basic
        element; the datatype, or None if omitted.

    Raises:
        TypeError: If ``spec`` is None, or an item has a wrong type.
        ValueError: If ``spec`` has too many items.
    """
    memory, count, displacement, datatype = _parse_spec(
        spec, "[data, count, displacement, datatype]", (list, tuple)
    )
    count = None if count is None else index(count)
    displacement = index(displacement or 0)
    stride = 1 if datatype is None else datatype.stride if datatype else 0
    for name, number in (("count", count), ("displacement", displacement)):
        if number is not None and number < 0:
            raise ValueError(f"the {name} must be 0 or more, got {number}")
    if displacement or (count is None and _has_memory(memory)):
        _require_extent(datatype)
    if memory is None and count:
        raise ValueError(f"the count must be 0 for the buffer None, got {count}")
    if memory is BOTTOM and count is None:
        count = 0
    return memory, count, displacement * stride, datatype


def _require_extent(datatype: Datatype | None) -> None:
    """Raise ValueError if ``datatype`` is null, or its extent is not positive; None is accepted."""
    if datatype is not None and not (datatype and datatype.stride > 0):
        raise ValueError(
            f"{datatype} must have a positive extent in a buffer with a displacement or without a count"
        )


def _has_memory(memory: Any) -> bool:
    """Return True if an object has a byte or more."""
    return (
        memory is not None and memory is not BOTTOM and memory is not IN_PLACE and as_array(memory).size > 0
    )


def _parse_spec(spec: Any, form: str, pair_types: Any) -> tuple[Any, Any, Any, Datatype | None]:
    """Return memory, counts, displacements and datatype of a buffer argument, None if omitted.

    With an array ``a``, the forms are:

    - ``a``: the memory alone;
    - ``[a, 3]``: a count;
    - ``[a, (3, 1)]``: a pair of a count and a displacement, if ``pair_types`` has tuple;
    - each list with a datatype as a further last item. A second item is a datatype if it is a Datatype or text such as
      "f4"; a third one of three always is;
    - ``[a, 3, 1, datatype]``: all four.

    Args:
        spec: the caller's argument.
        form: the correct form, for the error.
        pair_types: the types of an item of length 2 that is a pair (counts, displacements). In calls whose counts are
            a list, a list is no pair.

    Raises:
        KeyError: If a text is no code of a datatype, or the last item no datatype.
        TypeError: If ``spec`` is None.
        ValueError: If ``spec`` has too few or too many items.

    >>> _parse_spec(["memory", (3, 1)], "", tuple)
    ('memory', 3, 1, None)
    """
    if spec is None:
        raise TypeError(
            f"a buffer must be an array or {form}, got None; None is accepted with PROC_NULL only"
        )
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"a message must be {form}, got {many(len(spec), 'item')}")
    memory, *items = spec
    has_datatype = len(items) > 1 or isinstance(items[0], Datatype | str)
    datatype = _as_type(items.pop()) if has_datatype else None
    if len(items) == 1 and isinstance(items[0], pair_types):
        counts, displacements = (
            items[0] if len(items[0]) == 2 or pair_types is not tuple else (items[0], None)
        )
        return memory, counts, displacements, datatype
    counts, displacements = [*items, None, None][:2]
    return memory, counts, displacements, datatype


def _parse_typed(spec: Any, rank_count: int) -> tuple[Any, list[int], list[int], list[Datatype]]:
    """Return memory, counts, byte displacements and datatypes of an alltoallw message.

    In each list, entry r is for rank r. The lengths of the lists are not compared.

    Args:
        spec: as mpi4py accepts it, in one of three forms:
            - ``[data, counts, displs, datatypes]``;
            - ``[data, (counts, displs), datatypes]``;
            - ``[data, datatypes]``: one value at byte 0 for each rank, so counts are 1 and displacements are 0. None
              for both means the same.
        rank_count: number of ranks, for the short form.

    Raises:
        ValueError: If ``spec`` has another form.
        TypeError: If a count or displacement is no integer, or a datatype no MPI datatype.
    """
    counts = displacements = None
    match spec if isinstance(spec, list | tuple) else ():
        case [memory, types]:
            pass
        case [memory, [counts, displacements], types]:
            pass
        case [memory, counts, displacements, types]:
            pass
        case _:
            raise ValueError(
                "a message with a datatype per rank must be [data, datatypes], [data, (counts, displs), datatypes] "
                f"or [data, counts, displs, datatypes], got {spec!r}"
            )
    if counts is None and displacements is None and memory is not BOTTOM:
        counts, displacements = [1] * rank_count, [0] * rank_count
    if memory is BOTTOM and (counts is None or displacements is None):
        raise ValueError("a message of BOTTOM must have counts and displacements")
    if not isinstance(types, Sequence) or not all(isinstance(value, Datatype) for value in types):
        raise TypeError(
            f"the datatypes must be a list of MPI datatypes such as MPI.DOUBLE, one for each rank, got {types!r}"
        )
    return memory, _as_integers("counts", counts), _as_integers("displacements", displacements), list(types)


def _as_integers(name: str, values: Any) -> list[int]:
    """Return counts or displacements as a list. Raise TypeError unless they are a sequence of integers."""
    try:
        return [index(value) for value in values]
    except TypeError:
        raise TypeError(f"the {name} must be a list of integers, one for each rank, got {values!r}") from None


def _flatten(memory: Any, datatype: Datatype | None, is_whole: bool) -> tuple[Any, Datatype, int]:
    """Return memory as a 1-D array of basic elements, their datatype, and the order in memory.

    For example, a 2 × 3 array of float32 stored row by row gives its 6 elements, FLOAT and ROWS. If the program names
    another datatype, the bytes are read as its basic elements; a remainder at the end is dropped: the 20 bytes of 5
    float32 numbers give 2 elements with DOUBLE.

    Args:
        memory: an array or another object with memory. None and IN_PLACE give an empty array.
        datatype: the type that the program named; None: the type of the array's dtype, or BYTE without an array.
        is_whole: True if the message has no count, so that a remainder is an error.

    Returns:
        The elements, which share the memory; the datatype; and ROWS or COLUMNS for an array of several dimensions
        that is stored in one of these orders only, else NO_ORDER.

    Raises:
        BufferError: If the memory is not contiguous, or its numbers have the byte order of another machine.
        KeyError: If no datatype is named, and MPI has none for the array's dtype.
        MPIError: If the datatype is null or not committed.
        TypeError: If ``memory`` is no buffer.
        ValueError: If ``is_whole``, and the memory does not end at the end of an element.
    """
    if datatype is not None and not datatype:
        raise MPIError("ERR_TYPE", "the datatype is MPI.DATATYPE_NULL; a type is null after Free()")
    if memory is BOTTOM:
        return memory, (datatype or BYTE).require_committed(), NO_ORDER
    if memory is None or memory is IN_PLACE:
        return np.zeros(0, BYTE_DTYPE), BYTE if datatype is None else datatype, NO_ORDER
    array = require_contiguous(as_array(memory))
    order = NO_ORDER
    if not (array.flags.c_contiguous and array.flags.f_contiguous):
        order = ROWS if array.flags.c_contiguous else COLUMNS
    flat = array.reshape(-1, order="A")
    if datatype is None:
        _check_dtype(array.dtype)
        return flat, datatype_of(array.dtype), order
    datatype.require_committed()
    if datatype.dtype != flat.dtype:
        raw = flat.view(BYTE_DTYPE)
        item = datatype.dtype.itemsize
        if is_whole and len(raw) % item:
            raise ValueError(_no_multiple(datatype, item, len(raw)))
        flat = raw[: len(raw) // item * item].view(datatype.dtype)
    return flat, datatype, order


def _check_dtype(dtype: Any) -> None:
    """Raise an error if mpi4py finds no datatype for a NumPy dtype.

    Raises:
        BufferError: If the numbers have the byte order of another machine, or are dates.
        KeyError: If the dtype has fields, is Python's object, or is text of several characters.
    """
    base = dtype.base
    if not base.isnative and base.names is None:
        raise BufferError(
            f"a buffer must have the byte order of this machine, got dtype {base.str}; "
            f"pass array.astype({base.newbyteorder('=').str!r})"
        )
    if base.kind in "mM":
        raise BufferError(f"a buffer must have numbers, got dtype {base}; pass array.view('i8')")
    if base.names is not None or base.hasobject or (base.kind in "SUV" and base != f"{base.kind}1"):
        words = "with fields" if base.names is not None else str(base)
        raise KeyError(
            f"a buffer of dtype {words} has no MPI datatype; pass [array, datatype], such as MPI.BYTE"
        )


def _typed_buffer(
    flat: Any, count: int, start: int, datatype: Datatype, order: int, shift: int = 0
) -> MessageBuffer:
    """Return the buffer of ``count`` values of a datatype, the first at position ``start``.

    It shares the memory. A basic type such as INT gives a slice of ``flat``; a derived type gives the positions of
    its elements. For example, a type of 2 elements with a gap of one has extent 3: ``count`` 2 from position 1 gives
    the positions 1, 2, 4, 5.

    Args:
        flat: the memory as a 1-D array of the datatype's basic dtype.
        count: number of values.
        start: position of the first value in ``flat``.
        datatype: the type of the values.
        order: the order in memory, copied into the buffer.
        shift: bytes to add to ``start`` if it is an address.

    Raises:
        MPIError: If the count is negative, or an element is outside ``flat``.
    """
    if count < 0:
        raise MPIError("ERR_COUNT", f"the count must be 0 or more, got {count}")
    if flat is BOTTOM:
        flat, start = _map_addresses(count, start, datatype, shift)
    if datatype.offsets is None and datatype.stride == 1:
        if start < 0 or start + count > len(flat):
            raise MPIError("ERR_BUFFER", _too_small(flat, start, start + count))
        buffer = MessageBuffer(flat[start : start + count], datatype.dtype, count)
    else:
        index = (start + np.arange(count)[:, None] * datatype.stride + datatype.element_offsets()).reshape(-1)
        if len(index) and (index.min() < 0 or index.max() >= len(flat)):
            raise MPIError("ERR_BUFFER", _too_small(flat, int(index.min()), int(index.max()) + 1))
        buffer = MessageBuffer(flat, datatype.dtype, len(index), index)
    buffer.loose = datatype in (BYTE, PACKED)
    buffer.order = order
    return buffer


def _name_contradiction(memory: Any, datatype: Datatype, blocks: list[MessageBuffer]) -> list[MessageBuffer]:
    """Return the blocks; set their ``contradiction`` if the datatype contradicts the array.

    Args:
        memory: the array, as the program passed it. Objects without a dtype have no contradiction.
        datatype: the type of the message.
        blocks: the blocks of the message.
    """
    dtype = getattr(memory, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype != datatype.dtype and contradicts(dtype, datatype):
        # The words must not have numpy's long form of a dtype with fields.
        words = [
            "values with fields" if d.names is not None else str(d.base) for d in (dtype, datatype.dtype)
        ]
        for block in blocks:
            block.contradiction = words[0], f"{datatype} of {words[1]}"
    return blocks


def _map_addresses(count: int, start: int, datatype: Datatype, shift: int) -> tuple[Any, int]:
    """Return the memory of a message whose displacements are addresses, and its start in this memory.

    Args:
        count: number of values of the datatype.
        start: address of the first value, in elements of the datatype.
        datatype: the type of the values; its offsets may be addresses, too.
        shift: bytes to add to ``start``.

    Returns:
        The memory as a 1-D array of the datatype's basic dtype; the start, in elements.
    """
    item, offsets = datatype.dtype.itemsize, datatype.element_offsets()
    if not count or not len(offsets):
        return np.zeros(0, datatype.dtype), 0
    span = (count - 1) * datatype.stride
    low = start + int(offsets.min()) + min(span, 0)
    length = start + int(offsets.max()) + max(span, 0) + 1 - low
    return buffer.fromaddress(low * item + shift, length * item).view(np.ndarray).view(
        datatype.dtype
    ), start - low


def _too_small(flat: Any, start: int, stop: int) -> str:
    return f"the message needs elements {start} to {stop}, but the buffer has {len(flat)}"


# ---------------------------------------------------------------------- Python objects

_IMMUTABLE = frozenset((int, float, complex, bool, type(None), str, bytes))


class ObjectPayload:
    """A Python object in a message; every receiver gets its own copy.

    Attributes:
        nbytes: bytes of the pickle; for a number 8, for text and bytes the length.
    """

    __slots__ = ("_object", "_pickled", "nbytes")
    dtype = OBJECT
    shape = ()
    elements = 1
    loose = False
    order = NO_ORDER
    contradiction = None

    def __init__(self, value: Any) -> None:
        kind = type(value)
        self._pickled: bytes | None = None
        self._object: Any = None
        if kind in _IMMUTABLE and PICKLE.is_default:
            self._object = value
            self.nbytes = len(value) if kind in (str, bytes) else 8
        else:
            self._pickled = PICKLE.dumps(value)
            self.nbytes = len(self._pickled)

    def load(self) -> Any:
        """Return a copy of the object for the running rank."""
        return self._object if self._pickled is None else PICKLE.loads(self._pickled)


#: Bytes of the buffer of ``irecv`` if the program passes none, as in mpi4py.
IRECV_BYTES = 1 << 15


class ObjectTarget:
    """The target of a lower-case receive, which returns its object instead of filling a buffer.

    Attributes:
        limit: the longest pickle that ``irecv`` accepts, in bytes; None: all.
    """

    __slots__ = ("limit",)
    dtype = OBJECT
    shape = ()
    elements = 1
    loose = False
    order = NO_ORDER
    contradiction = None
    nbytes = 0

    def __init__(self, buf: Any = None) -> None:
        self.limit: int | None = IRECV_BYTES
        if buf is not None:
            self.limit = buf if isinstance(buf, int) else memoryview(buf).nbytes


OBJECT_TARGET = ObjectTarget()
OBJECT_TARGET.limit = None
