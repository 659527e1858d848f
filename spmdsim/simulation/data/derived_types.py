"""MPI datatypes: a basic numpy dtype and, for derived types, the offsets of the elements that a value picks.

A derived type is a list of element offsets and an extent. Both are counted in elements of one basic dtype, which is
bytes if the type has parts of several types. So packing and unpacking is one indexed copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.errors import many
from spmdsim.simulation.data.attributes import AttributeHolder
from spmdsim.simulation.data.constants import ORDER_C, MPIError
from spmdsim.simulation.data.distributed_arrays import owned_indices
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.open_handles import remove_handle
from spmdsim.simulation.data.type_contents import TypeContents
from spmdsim.simulation.data.type_lookups import NAMED, TypeLookups

BYTE_DTYPE = np.dtype(np.uint8)


def count_data_bytes(dtype: np.dtype) -> int:
    """Return the bytes of data in one basic value, without the padding of pairs."""
    fields = dtype.fields
    return dtype.itemsize if fields is None else sum(field[0].itemsize for field in fields.values())


def data_byte_positions(dtype: np.dtype) -> Any:
    """Return the positions of the data bytes in one basic value, without the padding of pairs."""
    parts = [(0, dtype.itemsize)]
    if dtype.fields is not None:
        parts = [(field[1], field[0].itemsize) for field in dtype.fields.values()]
    return np.concatenate([np.arange(start, start + size) for start, size in parts])


class Datatype(TypeContents, TypeLookups, AttributeHolder, Handle):
    """MPI datatype.

    Attributes:
        word: the printed name, without the MPI prefix.
        label: the name that the program set, or None.
        dtype: the basic numpy dtype.
        offsets: offsets of the picked elements, in elements; None for ``length`` elements from 0 on.
        length: number of elements if ``offsets`` is None.
        stride: the extent: distance of consecutive values, in elements.
        committed: True if messages may use the type.
        lower: the lower bound, in elements.
        alignment: extents are multiples of this number of bytes; the largest alignment of a basic type in it.
        resized: True if the program set the bounds; the bounds of types built from it then depend on these bounds
            only.
    """

    word = "DATATYPE_NULL"
    label: str | None = None
    dtype: np.dtype = BYTE_DTYPE
    offsets: Any = None
    length = 1
    stride = 1
    committed = False
    lower = 0
    alignment = 1
    resized = False

    @classmethod
    def make(
        cls, name: str, dtype: Any, offsets: Any = None, stride: int = 1, committed: bool = True
    ) -> Datatype:
        """Return a new type.

        Args:
            name: the printed name, the attribute ``word``.
            dtype: the basic numpy dtype.
            offsets: offsets of the picked elements; None for one element.
            stride: the extent in elements.
            committed: True if messages may use the type.
        """
        self = cls()
        self.word = name
        self.dtype = np.dtype(dtype)
        self.offsets = None if offsets is None else np.asarray(offsets, dtype=np.int64)
        self.stride = stride
        self.committed = committed
        self.alignment = self.dtype.alignment
        return self

    def __repr__(self) -> str:
        return f"MPI.{self.word}"

    def __bool__(self) -> bool:
        return self.word != "DATATYPE_NULL"

    def require_type(self) -> Datatype:
        """Return this type; raise an MPI error if it is null."""
        if not self:
            raise MPIError("ERR_TYPE", "the datatype is DATATYPE_NULL")
        return self

    @property
    def elements(self) -> int:
        """Number of basic elements in one value."""
        return self.length if self.offsets is None else len(self.offsets)

    def Get_size(self) -> int:
        """Return the bytes of data in one value, without padding."""
        return self.elements * count_data_bytes(self.dtype)

    def Get_extent(self) -> tuple[int, int]:
        """Return the lower bound and the extent in bytes."""
        return self.lower * self.dtype.itemsize, self.stride * self.dtype.itemsize

    def Get_true_extent(self) -> tuple[int, int]:
        """Return the position of the first data byte of a value, and how many bytes the data spans.

        For two floats of 8 bytes at elements 1 and 3 it is ``(8, 24)``.

        Returns:
            The position of the first data byte; the number of bytes from the first to the last data byte, both
            included. Both numbers are 0 for a type without elements.
        """
        if not self.elements:
            return 0, 0
        if self.offsets is None and self.dtype.fields is None:
            return 0, self.elements * self.dtype.itemsize
        starts = self.element_offsets() * self.dtype.itemsize
        first, last = int(starts.min()), int(starts.max() + data_byte_positions(self.dtype)[-1])
        return first, last + 1 - first

    size = property(Get_size)
    lb = property(lambda self: self.Get_extent()[0])
    extent = property(lambda self: self.Get_extent()[1])
    ub = property(lambda self: sum(self.Get_extent()))
    true_lb = property(lambda self: self.Get_true_extent()[0])
    true_extent = property(lambda self: self.Get_true_extent()[1])
    true_ub = property(lambda self: sum(self.Get_true_extent()))
    itemsize = size
    is_basic = property(lambda self: self.offsets is None and self.length == 1)

    @property
    def typechar(self) -> str:
        """The NumPy character of a basic type; "V" for others."""
        if not self.is_basic:
            return "V"
        return "c" if self.dtype.kind == "S" else self.dtype.char  # NumPy's code of one character is "c"

    @property
    def typestr(self) -> str:
        """The NumPy text of a basic type, such as "f8"; "V" and the extent for others."""
        return self.dtype.str.lstrip("<>|=") if self.is_basic else f"V{self.extent}"

    def tocode(self) -> str:
        """Return the NumPy character of a basic type; raise ValueError for others."""
        if not self or not self.is_basic or self.dtype.fields is not None:
            raise ValueError(f"cannot map {self} to a character code")
        return self.typechar

    def Get_name(self) -> str:
        """Return the name: MPI's, or the one that the program set."""
        if self.label is None:
            return f"MPI_{self.word}" if self.is_named else ""
        return self.label

    def Set_name(self, name: str) -> None:
        """Set the name."""
        self.label = name

    name = property(Get_name, Set_name)

    def Commit(self) -> Datatype:
        """Allow the type in messages."""
        self.require_type()
        self.committed = True
        return self

    def require_committed(self) -> Datatype:
        """Return this type; raise an MPI error if messages must not use it."""
        self.require_type()
        if not self.committed:
            raise MPIError("ERR_TYPE", f"{self} must be committed; call Commit() first")
        return self

    def Free(self) -> None:
        """Free a derived type: the handle becomes null. Attributes are deleted.

        Raises an MPI error for a predefined or a null type.
        """
        if self.is_predefined or not self:
            raise MPIError("ERR_TYPE", f"{self} is a type of MPI's own, which cannot be freed")
        self._delete_attributes()
        remove_handle(self)
        # Open requests may still use the elements of the type.
        self.word, self.committed, self.label = "DATATYPE_NULL", False, None

    def Dup(self) -> Datatype:
        """Return a new type with equal contents; the copy functions of keys decide on attributes."""
        duplicate = Datatype(self.require_type())
        duplicate._number = 0
        self._copy_attributes(duplicate)
        duplicate.label = f"Dup {self.name}"
        return duplicate.set_origin("DUP", self)

    def Create_dup(self) -> Datatype:
        """Return a new type with equal contents, as ``Dup`` does."""
        return self.Dup()

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Copy the values of ``inbuf`` into ``outbuf``; return the position after the last byte written.

        Only complete values are copied, without padding.

        Args:
            inbuf: contiguous memory with values of this type.
            outbuf: contiguous, writeable memory.
            position: the first byte of ``outbuf`` to write.
            comm: not used: mpi4py has it.

        Raises:
            BufferError: If memory is not contiguous, or ``outbuf`` is read-only.
            MPIError: If ``outbuf`` has too few bytes after ``position``, or the type is not committed.
        """
        from spmdsim.simulation.data.packing import pack

        return pack(self, inbuf, outbuf, position)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Fill ``outbuf`` from packed bytes of ``inbuf``; return the position after the last byte read.

        Args:
            inbuf: contiguous memory with packed bytes.
            position: the first byte of ``inbuf`` to read.
            outbuf: contiguous, writeable memory for values of this type; its size decides how many are read.
            comm: not used: mpi4py has it.

        Raises:
            BufferError: If memory is not contiguous, or ``outbuf`` is read-only.
            MPIError: If ``inbuf`` has too few bytes after ``position``, or the type is not committed.
        """
        from spmdsim.simulation.data.packing import unpack

        return unpack(self, inbuf, position, outbuf)

    def Pack_size(self, count: int, comm: Any) -> int:
        """Return the bytes that ``count`` packed values need, without padding; ``comm`` is not used."""
        return count * self.Get_size()

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Pack values as ``Pack`` does, in the portable format "external32"."""
        from spmdsim.simulation.data.packing import check_external, pack

        return pack(check_external(self, datarep), inbuf, outbuf, position, swapped=True)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        """Unpack values as ``Unpack`` does, from the portable format "external32"."""
        from spmdsim.simulation.data.packing import check_external, unpack

        return unpack(check_external(self, datarep), inbuf, position, outbuf, swapped=True)

    def Pack_external_size(self, datarep: str, count: int) -> int:
        """Return the bytes that ``count`` values need in the format "external32"."""
        from spmdsim.simulation.data.packing import check_external

        return count * check_external(self, datarep).Get_size()

    def element_offsets(self) -> Any:
        """Return the offsets of the elements of one value, in elements."""
        return np.arange(self.length) if self.offsets is None else self.offsets

    @property
    def is_dense(self) -> bool:
        """True if values of the type follow one another without gaps, in order."""
        return self.offsets is None and self.length == self.stride and self.dtype.fields is None

    def byte_offsets(self) -> Any:
        """Return the offsets of the data bytes of one value, in bytes."""
        starts = self.element_offsets()[:, None] * self.dtype.itemsize
        return (starts + data_byte_positions(self.dtype)).reshape(-1)

    def _in_bytes(self) -> Datatype:
        """Return a type of the bytes of this type's elements."""
        item = self.dtype.itemsize
        derived = Datatype.make(
            self.word, BYTE_DTYPE, self.byte_offsets(), self.stride * item, committed=False
        )
        derived.lower, derived.alignment, derived.resized = self.lower * item, self.alignment, self.resized
        return derived

    def _aligned(self, *positions: int) -> Datatype:
        """Return this type if positions in bytes are multiples of its elements, else its type of bytes."""
        is_aligned = all(position % self.dtype.itemsize == 0 for position in positions)
        return self if is_aligned else self._in_bytes()

    def _repeat_at(self, name: str, starts: Any) -> Datatype:
        """Return a new, uncommitted type with one value of this type at each start.

        For a type of elements 0 and 1, the starts 0 and 4 give elements 0, 1, 4 and 5. :meth:`_set_bounds` derives the
        lower bound and the extent of the new type from the smallest and the largest start. Without starts the new type
        has no elements, and its extent is 0.

        Args:
            name: the printed name of the new type.
            starts: positions of the values, in elements of the basic dtype: an array or list of integers, of any
                shape, which is read row by row.
        """
        starts = np.asarray(starts, dtype=np.int64).reshape(-1)
        offsets = (starts[:, None] + self.element_offsets()[None, :]).reshape(-1)
        derived = Datatype.make(name, self.dtype, offsets, committed=False)
        return derived._set_bounds(
            [(int(starts.min()), self), (int(starts.max()), self)] if len(starts) else []
        )

    def _set_bounds(self, members: Sequence[tuple[int, Datatype]]) -> Datatype:
        """Set the lower bound, the extent and the alignment of this type in place; return this type.

        The bounds enclose all members that have elements; without such members they are 0. The extent is the distance
        between them, rounded up to a multiple of the largest alignment of a member, as a C compiler pads a struct.
        For example, a double at byte 0 and an int at byte 8 end at byte 12; the extent is 16, because a double is
        aligned to 8 bytes.

        If a member has bounds that the program set itself (``Create_resized``), only members with set bounds count,
        and nothing is rounded. This type then counts as resized, too (``resized``), in the types built from it.

        Args:
            members: pairs of a start, in elements of this type's dtype, and the type of the value at this start.
        """
        size = self.dtype.itemsize
        self.resized = any(member.resized for _, member in members)
        self.alignment = max((member.alignment for _, member in members), default=1)
        lows, highs = [], []
        for start, member in members:
            is_counted = member.resized if self.resized else member.elements > 0
            if is_counted:
                low = start + member.lower * member.dtype.itemsize // size
                lows.append(low)
                highs.append(low + member.stride * member.dtype.itemsize // size)
        self.lower = min(lows, default=0)
        self.stride = max(highs, default=0) - self.lower
        if not self.resized and self.alignment > size:
            self.stride += -self.stride % (self.alignment // size)
        return self

    def Create_contiguous(self, count: int) -> Datatype:
        """Return a new, uncommitted type of ``count`` consecutive values of this type."""
        if self.offsets is None and self.length == self.stride and not self.resized:
            derived = Datatype.make("contiguous", self.dtype, stride=count * self.stride, committed=False)
            derived.length, derived.alignment = count * self.length, self.alignment
        else:
            derived = self._repeat_at("contiguous", np.arange(count) * self.stride)
        return derived.set_origin("CONTIGUOUS", self, count=count)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return a new, uncommitted type of ``count`` blocks of ``blocklength`` values.

        Args:
            count: number of blocks.
            blocklength: number of values of this type in each block.
            stride: distance of the starts of neighbouring blocks, counted in extents of this type.
        """
        starts = np.arange(count)[:, None] * stride + np.arange(blocklength)[None, :]
        vector = self._repeat_at("vector", starts * self.stride)
        return vector.set_origin("VECTOR", self, count=count, blocklength=blocklength, stride=stride)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return a new, uncommitted type of blocks, as ``Create_vector`` does, with the stride in bytes.

        Args:
            count: number of blocks.
            blocklength: number of values of this type in each block.
            stride: distance of the starts of neighbouring blocks, in bytes.
        """
        base = self._aligned(stride)
        step = stride // base.dtype.itemsize
        starts = np.arange(count)[:, None] * step + np.arange(blocklength)[None, :] * base.stride
        hvector = base._repeat_at("hvector", starts)
        return hvector.set_origin("HVECTOR", self, count=count, blocklength=blocklength, stride=stride)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return a new, uncommitted type of blocks of given lengths at given positions.

        Args:
            blocklengths: number of values of this type in each block.
            displacements: position of each block, counted in extents of this type.

        Raises:
            ValueError: If the lists have different lengths.
        """
        lengths, positions = _equal_lists(blocklengths, displacements)
        starts = [d + i for d, n in zip(positions, lengths) for i in range(n)]
        indexed = self._repeat_at("indexed", np.asarray(starts, dtype=np.int64) * self.stride)
        return indexed.set_origin("INDEXED", self, blocklengths=lengths, displacements=positions)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return a new, uncommitted type of blocks of given lengths at given positions in bytes.

        For example, lengths [2, 1] and displacements [0, 32] pick the floats 0, 1 and 4 of 8 bytes each.

        Args:
            blocklengths: number of values of this type in each block.
            displacements: position of each block, in bytes.

        Raises:
            ValueError: If the lists have different lengths.
        """
        lengths, positions = _equal_lists(blocklengths, displacements)
        hindexed = self._blocks_at(lengths, positions)
        return hindexed.set_origin("HINDEXED", self, blocklengths=lengths, displacements=positions)

    def _blocks_at(self, lengths: list[int], positions: list[int]) -> Datatype:
        """Return a type of blocks of given lengths at given positions in bytes."""
        base = self._aligned(*(position for position, length in zip(positions, lengths) if length))
        starts = [
            position // base.dtype.itemsize + i * base.stride
            for position, length in zip(positions, lengths)
            for i in range(length)
        ]
        return base._repeat_at("hindexed", starts)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Return a new, uncommitted type of blocks of one length, as ``Create_hindexed`` does.

        Args:
            blocklength: number of values of this type in each block.
            displacements: position of each block, in bytes.
        """
        positions = [int(position) for position in displacements]
        block = self._blocks_at([blocklength] * len(positions), positions)
        return block.set_origin("HINDEXED_BLOCK", self, blocklength=blocklength, displacements=positions)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Return a new, uncommitted type of blocks of one length, as ``Create_indexed`` does.

        Args:
            blocklength: number of values of this type in each block.
            displacements: position of each block, counted in extents of this type.
        """
        positions = [int(position) for position in displacements]
        block = self.Create_indexed([blocklength] * len(positions), positions)
        return block.set_origin("INDEXED_BLOCK", self, blocklength=blocklength, displacements=positions)

    def Create_subarray(
        self,
        sizes: Sequence[int],
        subsizes: Sequence[int],
        starts: Sequence[int],
        order: int = ORDER_C,
    ) -> Datatype:
        """Return the uncommitted type of a box inside an array; its extent is the whole array.

        For example, the box of shape (2, 2) at (1, 1) of a (3, 4) array picks elements 5, 6, 9 and 10 in order C. The
        three lists should have equal lengths, which is not checked.

        Args:
            sizes: the array's shape, counted in values of this type.
            subsizes: the box's shape.
            starts: the first index of the box in each dimension.
            order: ORDER_C if the array is stored row by row; any other number is ORDER_F, column by column.

        Raises:
            MPIError: If the box is not inside the array.
        """
        for size, subsize, start in zip(sizes, subsizes, starts):
            if start < 0 or start + subsize > size:
                raise MPIError("ERR_ARG", f"[{start}, {start + subsize}) is not in [0, {size})")
        total = int(np.prod(sizes))
        layout = "C" if order == ORDER_C else "F"
        cells = np.arange(total).reshape(tuple(sizes), order=layout)  # type: ignore[call-overload]
        box = cells[tuple(slice(s, s + n) for s, n in zip(starts, subsizes))]
        subarray = self._repeat_at("subarray", box.reshape(-1, order=layout) * self.stride)
        subarray.lower, subarray.stride, subarray.resized = 0, total * self.stride, True
        lists = {"sizes": [*sizes], "subsizes": [*subsizes], "starts": [*starts]}
        return subarray.set_origin("SUBARRAY", self, **lists, order=order)

    def Create_darray(
        self,
        size: int,
        rank: int,
        gsizes: Sequence[int],
        distribs: Sequence[int],
        dargs: Sequence[int],
        psizes: Sequence[int],
        order: int = ORDER_C,
    ) -> Datatype:
        """Return the uncommitted type of a rank's part of a distributed array; its extent is the whole array.

        Args:
            size: number of ranks.
            rank: the rank; the last dimension of the grid of ranks varies fastest.
            gsizes: the array's shape, counted in values of this type.
            distribs: DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC or DISTRIBUTE_NONE of each dimension.
            dargs: the block length of each dimension, or DISTRIBUTE_DFLT_DARG.
            psizes: the shape of the grid of ranks.
            order: ORDER_C if the array is stored row by row; any other number is ORDER_F, column by column.

        Raises:
            MPIError: If the grid does not have ``size`` ranks, or blocks are too short.
        """
        layout = "C" if order == ORDER_C else "F"
        cells = np.arange(int(np.prod(gsizes))).reshape(tuple(gsizes), order=layout)  # type: ignore[call-overload]
        owned_cells = cells[np.ix_(*owned_indices(size, rank, gsizes, distribs, dargs, psizes))]
        darray = self._repeat_at("darray", owned_cells.reshape(-1, order=layout) * self.stride)
        darray.lower, darray.stride, darray.resized = 0, cells.size * self.stride, True
        lists = {"gsizes": [*gsizes], "distribs": [*distribs], "dargs": [*dargs], "psizes": [*psizes]}
        return darray.set_origin("DARRAY", self, size=size, rank=rank, **lists, order=order)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Return an uncommitted type of this type's elements with another lower bound and extent.

        For example, a column of an array with an extent of one element: then consecutive values are consecutive
        columns.

        Args:
            lb: the lower bound, in bytes.
            extent: the distance of consecutive values, in bytes; may be smaller than the type.
        """
        base = self._aligned(lb, extent)
        item = base.dtype.itemsize
        resized = Datatype.make("resized", base.dtype, base.offsets, extent // item, committed=False)
        resized.length, resized.lower = base.length, lb // item
        resized.alignment, resized.resized = self.alignment, True
        return resized.set_origin("RESIZED", self, lb=lb, extent=extent)

    Resized = Create_resized

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Any]
    ) -> Datatype:
        """Return an uncommitted type of blocks of several types, like a C struct.

        The three lists have one entry per block. The basic dtype of the result is the byte. The padding of pairs such as FLOAT_INT is not part of the type.

        Args:
            blocklengths: number of values in each block.
            displacements: position of each block, in bytes.
            datatypes: the type of each block's values.

        Raises:
            ValueError: If the lists have different lengths.

        A double and an int have 12 bytes; the extent is 16 bytes, because a double is aligned to 8 bytes:

        >>> struct = Datatype.Create_struct([1, 1], [0, 8], [NAMED["DOUBLE"], NAMED["INT"]])
        >>> struct.Get_size(), struct.Get_extent()
        (12, (0, 16))
        """
        types = list(datatypes)
        lengths, positions = _equal_lists(blocklengths, displacements)
        if len(types) != len(lengths):
            raise ValueError(
                f"datatypes must have {many(len(lengths), 'item')}, one per block, got {len(types)}"
            )
        offsets: list[Any] = []
        members: list[tuple[int, Datatype]] = []
        for length, displacement, datatype in zip(lengths, positions, types):
            item = datatype.dtype.itemsize
            elements = (np.arange(length)[:, None] * datatype.stride + datatype.element_offsets()).reshape(-1)
            bytes_of_block = elements[:, None] * item + data_byte_positions(datatype.dtype)
            offsets.append(displacement + bytes_of_block.reshape(-1))
            if length:
                # The first and the last value of a block decide the bounds of the block.
                last = displacement + (length - 1) * datatype.stride * item
                members += [(displacement, datatype), (last, datatype)]
        all_offsets = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
        struct = cls.make("struct", BYTE_DTYPE, all_offsets, committed=False)._set_bounds(members)
        own_types = [datatype.own_handle() for datatype in types]
        lists = {"blocklengths": lengths, "displacements": positions, "datatypes": own_types}
        return struct.set_origin("STRUCT", None, **lists)


def _equal_lists(blocklengths: Sequence[int], displacements: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the lengths and the positions of blocks as lists.

    Args:
        blocklengths: one length per block.
        displacements: one position per block.

    Raises:
        ValueError: If their numbers differ.
    """
    lengths, positions = [int(length) for length in blocklengths], [int(start) for start in displacements]
    if len(lengths) != len(positions):
        raise ValueError(
            f"blocklengths and displacements must be one each per block, got {len(lengths)} and {len(positions)}"
        )
    return lengths, positions


def _pair_dtype(first: str) -> Any:
    """Return the dtype of a value of type ``first`` with an int, with the padding of C."""
    return np.dtype([("f0", first), ("f1", "i4")], align=True)


#: Names without the MPI prefix, by the numpy type that they stand for.
_NAMES = {
    "u1": "BYTE PACKED UINT8_T",
    "S1": "CHAR CHARACTER",
    "U1": "WCHAR",
    "b": "SIGNED_CHAR INT8_T SINT8_T INTEGER1 LOGICAL1",
    "B": "UNSIGNED_CHAR",
    "h": "SHORT INT16_T SIGNED_SHORT SINT16_T INTEGER2 LOGICAL2",
    "H": "UNSIGNED_SHORT UINT16_T",
    "i": "INT INT32_T INTEGER SIGNED_INT SINT32_T INTEGER4 LOGICAL LOGICAL4",
    "I": "UNSIGNED UNSIGNED_INT UINT32_T",
    "l": "LONG SIGNED_LONG",
    "L": "UNSIGNED_LONG",
    "q": "LONG_LONG OFFSET COUNT SIGNED_LONG_LONG",
    "Q": "UNSIGNED_LONG_LONG",
    "i8": "INT64_T SINT64_T INTEGER8 LOGICAL8",
    "u8": "UINT64_T",
    "e": "FLOAT16_T REAL2",
    "f": "FLOAT FLOAT32_T REAL REAL4",
    "d": "DOUBLE FLOAT64_T DOUBLE_PRECISION REAL8",
    "g": "LONG_DOUBLE REAL16",
    "?": "C_BOOL CXX_BOOL BOOL",
    "F": "C_COMPLEX C_FLOAT_COMPLEX CXX_FLOAT_COMPLEX COMPLEX COMPLEX8",
    "D": "C_DOUBLE_COMPLEX CXX_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16",
    "G": "C_LONG_DOUBLE_COMPLEX CXX_LONG_DOUBLE_COMPLEX COMPLEX32",
    "p": "AINT",
}
#: Pairs of a value and an int.
_PAIRS = {
    "f4": "FLOAT_INT",
    "f8": "DOUBLE_INT",
    "i8": "LONG_INT",
    "i4": "TWOINT",
    "i2": "SHORT_INT",
    "g": "LONG_DOUBLE_INT",
}
NAMED.update(
    {
        name: Datatype.make(name, dtype)
        for kinds, as_dtype in ((_NAMES, np.dtype), (_PAIRS, _pair_dtype))
        for code, names in kinds.items()
        for dtype in [as_dtype(code)]
        for name in names.split()
    }
)
#: Types that do not exist here: NumPy has no such numbers.
NAMED.update(
    {name: Datatype() for name in ("DATATYPE_NULL", "INTEGER16", "LOGICAL16", "COMPLEX4", "BFLOAT16_T")}
)
#: Other names of types.
_ALIASES = {
    "INT_INT": "TWOINT",
    "F_BOOL": "LOGICAL",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}
NAMED.update({alias: NAMED[name] for alias, name in _ALIASES.items()})
BYTE = NAMED["BYTE"]
PACKED = NAMED["PACKED"]
_PREFERRED = (
    "DOUBLE FLOAT INT LONG UNSIGNED UNSIGNED_LONG SHORT UNSIGNED_SHORT SIGNED_CHAR UNSIGNED_CHAR C_BOOL "
    "C_FLOAT_COMPLEX C_DOUBLE_COMPLEX FLOAT16_T LONG_DOUBLE CHAR WCHAR"
)
BY_DTYPE = {NAMED[name].dtype: NAMED[name] for name in reversed(_PREFERRED.split())}


def datatype_of(dtype: Any) -> Datatype:
    """Return the datatype of a NumPy dtype; create one if MPI has none."""
    datatype = BY_DTYPE.get(dtype)
    if datatype is None:
        datatype = BY_DTYPE[dtype] = Datatype.make(str(dtype), dtype)
    return datatype
