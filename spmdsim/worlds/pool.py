"""A pool that reuses the memory of large arrays, because the page faults of fresh memory cost up to twice a copy.

The memory of every large array belongs to an `ArrayOwner`. NumPy keeps the owner alive as long as any view of the array
exists. The finalizer of the owner then gives the memory back to the pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

#: Bytes from which arrays come from the pool. The allocator reuses smaller ones by itself.
SMALLEST = 256 * 1024
#: Bytes of free memory that a pool keeps.
LIMIT = 256 * 1024 * 1024
#: Bytes that NumPy allocates at once for small buffers. NumPy asks the system for huge pages from 4 MiB on.
CHUNK = 32 * 1024 * 1024
#: Buffers in a chunk start at multiples of a page. Copies between other offsets are up to a tenth slower.
PAGE = 4096
#: Chunks start with a cache line. Vector instructions that write 64 bytes across two lines take twice as long.
CACHE_LINE = 64

#: Takes memory back, and its array interface.
Release = Callable[[np.ndarray, dict[str, Any]], None]


class ArrayOwner:
    """The owner of an array's memory. NumPy refers to it from the array and from all views of the array.

    Args:
        memory: the memory.
        interface: its array interface, which takes long to derive.
        release: is called with both when no array refers to the memory any more.
    """

    __slots__ = ("__array_interface__", "memory", "release")

    def __init__(self, memory: np.ndarray, interface: dict[str, Any], release: Release) -> None:
        self.memory, self.__array_interface__, self.release = memory, interface, release

    def __del__(self) -> None:
        self.release(self.memory, self.__array_interface__)


def allocate_aligned(nbytes: int) -> np.ndarray:
    """Return ``nbytes`` bytes of new memory that starts with a cache line of 64 bytes.

    It is uninitialised.
    """
    memory = np.empty(nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + nbytes]


class Chunk:
    """Memory from which buffers are cut. It returns to the system with the last buffer."""

    def __init__(self) -> None:
        self._memory, self._start = np.empty(0, np.uint8), 0

    def cut(self, nbytes: int) -> np.ndarray:
        """Return unused, uninitialised memory, from a new chunk if the current one is too small.

        Memory of more than an eighth of a chunk (4 MiB) is allocated by itself.

        Args:
            nbytes: the bytes.
        """
        if nbytes > CHUNK // 8:
            return allocate_aligned(nbytes)
        if self._start + nbytes > self._memory.nbytes:
            self._memory, self._start = allocate_aligned(CHUNK), 0
        start = self._start
        self._start += -(-nbytes // PAGE) * PAGE  # whole pages
        return self._memory[start : start + nbytes]


class Pool:
    """Free memory by size, for arrays of `SMALLEST` bytes or more.

    Args:
        limit: bytes of free memory kept at most. Larger arrays are not pooled.

    Attributes:
        nbytes: bytes of free memory.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.nbytes = 0
        self._chunk = Chunk()
        #: Free memory, with its array interface, by bytes. The size that was requested last is at the end.
        self._free: dict[int, list[tuple[np.ndarray, dict[str, Any]]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised C-ordered array, from memory that is used again.

        - From :data:`SMALLEST` bytes (256 KiB) up to the pool's limit, the memory comes from an earlier array of
          equally many bytes, if one is free, else from new memory. It is free again when no view of the array exists.
        - A smaller or larger array is NumPy's own, and its memory does not come back to the pool.

        Args:
            shape: the shape.
            dtype: the element type.
        """
        element_type = np.dtype(dtype)
        nbytes = math.prod(shape) * element_type.itemsize
        if nbytes < SMALLEST or nbytes > self.limit:
            return np.empty(shape, element_type)
        memories = self._free.pop(nbytes, [])
        if memories:
            memory, interface = memories.pop()
            self.nbytes -= nbytes
            # At the end, because the last sizes are dropped last. A finalizer may have run in between.
            self._free.setdefault(nbytes, []).extend(memories)
        else:
            memory = self._chunk.cut(nbytes)
            interface = memory.__array_interface__
        return np.ndarray(shape, element_type, np.asarray(ArrayOwner(memory, interface, self._release)))

    def allocator(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
        """Return a function without arguments that calls :meth:`take_buffer`.

        It always passes this shape and element type.
        """
        return partial(self.empty, shape, np.dtype(dtype))

    def _release(self, memory: np.ndarray, interface: dict[str, Any]) -> None:
        """Take back the memory of an array that no longer exists.

        If the pool then has more than ``limit`` bytes, memory of the least recently requested sizes is freed.

        Args:
            memory: the memory.
            interface: its array interface.
        """
        self._free.setdefault(memory.nbytes, []).append((memory, interface))
        self.nbytes += memory.nbytes
        if self.nbytes <= self.limit:
            return
        for nbytes, memories in [*self._free.items()]:
            while memories and self.nbytes > self.limit:
                memories.pop()
                self.nbytes -= nbytes
            if not memories:
                self._free.pop(nbytes, None)

    def clear(self) -> None:
        """Drop all free memory."""
        self._free.clear()
        self.nbytes = 0


_pool = Pool()


def take_buffer(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised C-ordered array from this process's pool."""
    return _pool.empty(shape, dtype)


def allocator(shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
    """Return a function without arguments that calls :func:`take_buffer`.

    It always passes this shape and element type.
    """
    return _pool.allocator(shape, dtype)


class Surroundings:
    """Memory for an array with room around it, to which all views of the array refer.

    Attributes:
        shape: the shape with the room.
        filled: the parts of the room that have values.
        block: returns the array, if a tensor has its block in this memory, else None.
        inner: returns the array of :func:`allocate_with_margins` in this memory; None if there is none, or it does not
            exist any more.
        margins: for each dimension, the numbers of elements before and after the array that ``inner`` returns.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._buffer = take_buffer((math.prod(shape) * dtype.itemsize,), np.uint8)
        self.__array_interface__ = self._buffer.__array_interface__
        self.shape = shape
        self.filled: list[tuple[slice, ...]] = []
        self.block: Callable[[], np.ndarray | None] = lambda: None
        self.inner: Callable[[], np.ndarray | None] = lambda: None
        self.margins: tuple[tuple[int, int], ...] = ()


def surroundings(array: np.ndarray) -> Surroundings | None:
    """Return the memory with room around an array; None if there is no room."""
    under = getattr(array.base, "base", None)
    return under if isinstance(under, Surroundings) else None


def allocate_with_margins(
    shape: tuple[int, ...], margins: tuple[tuple[int, int], ...], dtype: np.dtype
) -> np.ndarray:
    """Return an uninitialised array with room around it, which a caller can pad without a copy.

    :func:`find_padded` returns the array with this room, but only for the very array returned here (no view of it) and
    equal ``margins``.

    Args:
        shape: the shape of the array.
        margins: the numbers of elements before and after the array in each dimension.
        dtype: the element type.
    """
    memory = Surroundings(tuple([a + n + b for n, (a, b) in zip(shape, margins)]), dtype)
    padded: np.ndarray = np.ndarray(memory.shape, dtype, np.asarray(memory))
    inner = padded[tuple([slice(a, a + n) for n, (a, _) in zip(shape, margins)])]
    # The reference is weak, because inner refers to memory.
    memory.inner, memory.margins = ref(inner), margins
    return inner


def find_padded(array: np.ndarray, margins: tuple[tuple[int, int], ...]) -> np.ndarray | None:
    """Return an array of :func:`allocate_with_margins` with the room around it.

    The room is uninitialised until the caller fills it. Return None if ``array`` is another array than the returned
    one, such as a view of it, or has other margins.

    Args:
        array: the array.
        margins: the numbers of elements before and after the array in each dimension.
    """
    memory = surroundings(array)
    if memory is None or memory.inner() is not array or memory.margins != margins:
        return None
    padded: np.ndarray = np.ndarray(memory.shape, array.dtype, array.base)
    return padded


def pool() -> Pool:
    """Return this process's pool."""
    return _pool
