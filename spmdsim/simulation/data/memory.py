"""Memory: blocks of bytes (``MPI.buffer``), and addresses."""

from __future__ import annotations

import ctypes
from operator import index
from typing import Any

import numpy as np

from spmdsim.simulation.data.array_views import as_bytes, is_on_device


class buffer(np.ndarray[Any, Any]):
    """A block of bytes: of an object with the buffer protocol, or new ones (``allocate``)."""

    obj: Any = None
    _released = _is_on_device = False
    format = "B"

    def __new__(cls, *buf: Any) -> buffer:
        """Return the bytes of an object; an empty block without argument.

        Raises:
            TypeError: If the object does not have the buffer protocol.
        """
        return cls.frombuffer(*buf) if buf else cls._view(np.zeros(0, np.uint8), None, released=True)

    @classmethod
    def _view(cls, array: Any, obj: Any, readonly: bool = False, released: bool = False) -> buffer:
        """Return an array of bytes as a block that belongs to an object.

        Args:
            array: the array.
            obj: the object, or None.
            readonly: True to forbid changes.
            released: True for an empty handle.
        """
        block: buffer = array.view(cls)
        block.obj, block._released = obj, released
        if readonly:
            block.flags.writeable = False
        return block

    @classmethod
    def allocate(cls, nbytes: int, clear: bool = False) -> buffer:
        """Return a new block of ``nbytes`` bytes, which are 0; ``clear`` is not used."""
        if index(nbytes) < 0:
            raise ValueError(f"allocate: nbytes must be 0 or more, got {nbytes}")
        memory = bytearray(nbytes)
        return cls._view(np.frombuffer(memory, np.uint8), memory)

    @classmethod
    def frombuffer(cls, buf: Any, readonly: bool = False) -> buffer:
        """Return the bytes of an object with memory; ``readonly`` forbids to change them.

        The memory of an object that names a device can be sent and received, but not read here.
        """
        block = cls._view(as_bytes(buf), buf, readonly)
        block._is_on_device = is_on_device(buf)
        return block

    def _check_host(self) -> None:
        """Raise BufferError if the memory belongs to a device."""
        if self._is_on_device:
            raise BufferError("the memory belongs to a device; copy it to an array of the host")

    @classmethod
    def fromaddress(cls, address: int, nbytes: int, readonly: bool = False) -> buffer:
        """Return the bytes at an address of this process; ``readonly`` forbids to change them.

        Raises:
            ValueError: If ``nbytes`` is negative, or not 0 at the address 0.
        """
        if nbytes < 0 or (nbytes and not address):
            raise ValueError(
                f"fromaddress: nbytes must be 0 or more at an address, got {nbytes} at {address}"
            )
        memory = (ctypes.c_ubyte * nbytes).from_address(address) if nbytes else bytearray()
        return cls._view(np.frombuffer(memoryview(memory), np.uint8), None, readonly)

    @property
    def address(self) -> int:
        """The address of the first byte; 0 for an empty handle."""
        return 0 if self._released else int(self.ctypes.data)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return 0 if self._released else int(self.size)

    @property
    def readonly(self) -> bool:
        """True if the bytes must not be changed."""
        return not self._released and not self.flags.writeable

    def cast(self, format: str, shape: Any = None) -> memoryview:
        """Return the bytes as values of a format of ``struct``, with a shape."""
        self._check_host()
        array: Any = self
        view: Any = memoryview(array)
        values: memoryview = view.cast(format) if shape is None else view.cast(format, shape)
        return values

    def tobytes(self, order: Any = None) -> bytes:
        """Return a copy of the bytes."""
        self._check_host()
        return super().tobytes()

    def toreadonly(self) -> buffer:
        """Return a block of these bytes that must not be changed."""
        return self._view(self.view(np.ndarray), self.obj, readonly=True)

    def release(self) -> None:
        """Give the memory up: the block is empty."""
        self.obj, self._released = None, True

    def __getitem__(self, item: Any) -> Any:
        self._check_host()
        value = super().__getitem__(_check_item(item))
        return value if isinstance(value, buffer) else int(value)

    def __setitem__(self, item: Any, value: Any) -> None:
        self._check_host()
        if self.readonly:
            raise TypeError("the memory is read-only")
        if not isinstance(value, int | np.ndarray):
            value = np.frombuffer(value, np.uint8)
        if (
            isinstance(item, slice)
            and isinstance(value, np.ndarray)
            and len(self.view(np.ndarray)[item]) != len(value)
        ):
            raise ValueError("the value must have as many bytes as the slice")
        super().__setitem__(_check_item(item), value)

    def __delitem__(self, item: Any) -> None:
        raise NotImplementedError("bytes cannot be deleted")

    def __bool__(self) -> bool:
        return len(self) > 0

    def __eq__(self, other: object) -> Any:
        return self is other

    def __ne__(self, other: object) -> Any:
        return self is not other

    __hash__ = None
    __repr__ = __str__ = object.__repr__


def _check_item(item: Any) -> Any:
    """Return a subscript of a block.

    Args:
        item: an index, or a slice with a step of 1; other subscripts raise an error.

    Raises:
        IndexError: If the step is another one.
    """
    if isinstance(item, slice):
        if item.step not in (None, 1):
            raise IndexError("a slice must have the step 1")
        return item
    return index(item)


def find_address(location: Any) -> int:
    """Return the address of the memory of an object.

    Args:
        location: the object; BOTTOM and None have the address 0.
    """
    if location is None or isinstance(location, int):
        return int(location or 0)
    if isinstance(location, buffer):
        return location.address
    return int(as_bytes(location).ctypes.data)
