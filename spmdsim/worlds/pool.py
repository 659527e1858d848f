"""Reusable buffers: a fresh array of many MiB costs page faults worth up to twice its copy.

The pool keeps the big arrays it made and hands one out again as soon as nobody else refers to it. Views keep
their base alive, so an array is free exactly when its base's reference count says that only the pool has it.
What is kept is bounded in bytes; sizes that nobody asked for lately go first.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from sys import getrefcount
from typing import Any
from weakref import ref

import numpy as np

#: Arrays below this size come from the allocator, which reuses them by itself.
SMALLEST = 256 * 1024
#: Bytes of a page and of a huge one.
PAGE, HUGE_PAGE = 4096, 2 * 1024 * 1024
#: Bytes that small buffers are cut from: what is left over at the end of it stays unused.
SHARED = 4 * HUGE_PAGE
#: Where in a page a buffer begins: as the system's allocator does it. Copies between buffers that begin at
#: different places of their pages are up to a tenth slower (stores and later loads seem to overlap).
OFFSET = 16
#: Bytes kept, in use or not.
LIMIT = 512 * 1024 * 1024


class Pages:
    """Memory in huge pages where the system has them; small buffers share one.

    In the small pages of the heap, copies between processes take up to twice as long.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._start = self._end = 0

    def cut(self, nbytes: int) -> np.ndarray:
        """A buffer of bytes; its memory goes back to the system with the last buffer cut from the same pages."""
        taken = -(-(nbytes + OFFSET) // PAGE) * PAGE
        if taken > HUGE_PAGE // 2:
            memory = self._map(taken)
            return self._array(memory, nbytes, self._first(memory))
        if self._memory is None or self._start + taken > self._end:
            trim_heap()
            self._memory = self._map(SHARED)
            self._start = self._first(self._memory)
            self._end = self._start + SHARED
        self._start += taken
        return self._array(self._memory, nbytes, self._start - taken)

    @staticmethod
    def _map(nbytes: int) -> mmap.mmap:
        """Untouched memory in which ``nbytes`` fit behind the first beginning of a huge page."""
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, nbytes + HUGE_PAGE)
        memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    @staticmethod
    def _first(memory: mmap.mmap) -> int:
        return -np.frombuffer(memory, np.uint8, 1).ctypes.data % HUGE_PAGE

    @staticmethod
    def _array(memory: mmap.mmap, nbytes: int, start: int) -> np.ndarray:
        return np.frombuffer(memory, np.uint8, nbytes, start + OFFSET)


def trim_heap() -> None:
    """Give the system back what the heap has free, which buffers cannot use, where the C library can (glibc)."""
    trim = getattr(ctypes.pythonapi, "malloc_trim", None)
    if trim is not None:
        trim(0)


class KeptBuffers(list[np.ndarray]):
    """The buffers of one size, and whether one was handed out since the pool was last full."""

    used = True


class Pool:
    """Buffers by size; those over the limit are made and forgotten.

    Args:
        limit: bytes kept at most.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.nbytes = 0
        self._by_size: OrderedDict[int, KeptBuffers] = OrderedDict()
        self._pages = Pages()
        # The references to an array that a list holds and a loop looks at; what the question adds depends on Python.
        self._alone = next(getrefcount(array) for array in [np.empty(1, np.uint8)])

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised C-ordered array that nobody else refers to, in a reused buffer if it is large."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes < SMALLEST or nbytes > self.limit:
            return np.empty(shape, kind)
        kept = self._by_size.get(nbytes)
        if kept is None:
            kept = self._by_size[nbytes] = KeptBuffers()
        for buffer in kept:
            if getrefcount(buffer) == self._alone:
                kept.used = True
                return np.ndarray(shape, kind, buffer)
        return np.ndarray(shape, kind, self._more(nbytes))

    def allocator(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
        """Return a function without arguments that calls :meth:`empty` with this shape and element type."""
        return partial(self.empty, shape, np.dtype(dtype))

    def _more(self, nbytes: int) -> np.ndarray:
        kept, buffer = self._by_size[nbytes], self._pages.cut(nbytes)
        kept.append(buffer)
        kept.used = True
        self.nbytes += nbytes
        self._by_size.move_to_end(nbytes)
        if self.nbytes > self.limit:
            self._shrink(nbytes)
        return buffer

    def _shrink(self, newest: int) -> None:
        """Forget buffers until the rest fits in the limit: first those of sizes that were not used since last time."""
        for unused in (True, False):
            for size, kept in self._by_size.items():
                if unused and (kept.used or size == newest):
                    continue
                while kept and self.nbytes > self.limit and (size != newest or len(kept) > 1):
                    del kept[0]
                    self.nbytes -= size
        for kept in self._by_size.values():
            kept.used = False

    def clear(self) -> None:
        """Forget all buffers; arrays in use stay valid."""
        for kept in self._by_size.values():
            kept.clear()
        self.nbytes = 0


_pool = Pool()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised C-ordered array from this process's pool."""
    return _pool.empty(shape, dtype)


def allocator(shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
    """Return a function without arguments that calls :func:`empty` with this shape and element type."""
    return _pool.allocator(shape, dtype)


class Surroundings:
    """Memory for an array with room around it, to which all views of it refer.

    ``filled`` are the parts of the room that have values, ``block`` is the array, if a tensor has it there, and ``inner``
    that around which margins were left, so much per dim before it and after it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._buffer = empty((math.prod(shape) * dtype.itemsize,), np.uint8)
        self.__array_interface__ = self._buffer.__array_interface__
        self.shape = shape
        self.filled: list[tuple[slice, ...]] = []
        self.block: Callable[[], np.ndarray | None] = lambda: None
        self.inner: Callable[[], np.ndarray | None] = lambda: None
        self.margins: tuple[tuple[int, int], ...] = ()


def surroundings(array: np.ndarray) -> Surroundings | None:
    """The memory with room in which an array lies, if it lies in any."""
    under = getattr(array.base, "base", None)
    return under if isinstance(under, Surroundings) else None


def in_margins(shape: tuple[int, ...], margins: tuple[tuple[int, int], ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array with room for more elements around it, which :func:`with_margins` finds."""
    here = Surroundings(tuple([a + n + b for n, (a, b) in zip(shape, margins)]), dtype)
    whole: np.ndarray = np.ndarray(here.shape, dtype, np.asarray(here))
    inner = whole[tuple([slice(a, a + n) for n, (a, _) in zip(shape, margins)])]
    here.inner, here.margins = ref(inner), margins
    return inner


def with_margins(array: np.ndarray, margins: tuple[tuple[int, int], ...]) -> np.ndarray | None:
    """The array with the elements around it, if exactly so many were left there."""
    here = surroundings(array)
    if here is None or here.inner() is not array or here.margins != margins:
        return None
    whole: np.ndarray = np.ndarray(here.shape, array.dtype, array.base)
    return whole


def pool() -> Pool:
    """This process's pool."""
    return _pool
