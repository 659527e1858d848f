"""Status: the source, tag and size of a received message."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, SUCCESS, UNDEFINED
from spmdsim.simulation.data.derived_types import BYTE, Datatype, count_data_bytes


class Status(ctypes.Structure):
    """The result of a receive: source, tag and size of its message, and an error class.

    Its memory is that of a status in C or Fortran: ``F_STATUS_SIZE`` integers.
    """

    source: int
    tag: int
    error: int
    _cancelled: int
    nbytes: int

    _fields_ = (
        ("source", ctypes.c_int),
        ("tag", ctypes.c_int),
        ("error", ctypes.c_int),
        ("_cancelled", ctypes.c_int),
        ("nbytes", ctypes.c_size_t),
    )

    def __init__(self, status: Status | None = None) -> None:
        super().__init__()
        self.fill(ANY_SOURCE, ANY_TAG, 0)
        if status is not None:
            if not isinstance(status, Status):
                raise TypeError(f"Status: status must be a Status or None, got {type(status).__name__}")
            self.copy_from(status)

    def copy_from(self, status: Status) -> None:
        """Set all fields to those of another status."""
        self.tomemory()[:] = status.tomemory()

    def tomemory(self) -> memoryview:
        """Return the memory of the status as integers, which can be changed."""
        memory: Any = self
        words: Any = np.frombuffer(memory, np.intc)
        return memoryview(words)

    def py2f(self) -> list[int]:
        """Return the integers of the status in Fortran."""
        return self.tomemory().tolist()

    @classmethod
    def f2py(cls, arg: Sequence[int]) -> Status:
        """Return the status with the integers ``arg``, as :meth:`py2f` returns them."""
        status = cls()
        for position, word in enumerate(arg):
            status.tomemory()[position] = word
        return status

    def fill(self, source: int, tag: int, nbytes: int, dtype: Any = None) -> None:
        """Set source, tag and size in bytes, and reset the error and the mark of cancelled requests.

        If ``dtype`` is a numpy dtype with fields, the padding between its fields is subtracted from ``nbytes``.
        """
        if getattr(dtype, "fields", None) is not None:  # a pickled object has no numpy dtype
            nbytes = nbytes // dtype.itemsize * count_data_bytes(dtype)
        self.source, self.tag, self.nbytes = source, tag, nbytes
        self.error, self._cancelled = SUCCESS, 0

    def __reduce__(self) -> Any:
        return type(self).f2py, (self.py2f(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and self.py2f() == other.py2f()

    __hash__ = None  # type: ignore[assignment]

    def Get_source(self) -> int:
        """Return the rank that sent the message."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the source."""
        self.source = source

    def Get_tag(self) -> int:
        """Return the tag of the message."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Set the tag."""
        self.tag = tag

    def Get_error(self) -> int:
        """Return the error class: SUCCESS unless ``Set_error`` changed it."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set the error class."""
        self.error = error

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Return the number of values of a datatype in the message; UNDEFINED if they do not fit evenly.

        It is 0 for a datatype without elements.
        """
        size = datatype.require_type().Get_size()
        if size == 0:
            return 0
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the number of basic elements of a datatype in the message.

        It is UNDEFINED if the message does not have a whole number of elements. A pair is one element, as in Open
        MPI.
        """
        size = count_data_bytes(datatype.require_type().dtype)
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the size of the message to that of ``count`` values of a datatype."""
        self.nbytes = datatype.require_type().Get_size() * count

    def Is_cancelled(self) -> bool:
        """Return True if the request was cancelled."""
        return bool(self._cancelled)

    def Set_cancelled(self, flag: bool) -> None:
        """Set the mark of cancelled requests."""
        self._cancelled = bool(flag)

    cancelled = property(Is_cancelled, Set_cancelled)

    count = property(lambda self: self.nbytes, lambda self, value: setattr(self, "nbytes", value))


def fill_statuses(statuses: Any, filled: list[Status]) -> None:
    """Copy statuses in place into the sequence that a program passed.

    The first status overwrites the first entry, and so on; further entries stay as they are. A list with fewer
    entries than statuses gets the other statuses appended. Another sequence gets only as many as it has entries.

    Args:
        statuses: the program's sequence of Status objects; None: do nothing.
        filled: the statuses to copy.
    """
    if statuses is None:
        return
    for position, status in enumerate(filled):
        if position < len(statuses):
            statuses[position].copy_from(status)
        elif isinstance(statuses, list):
            statuses.append(status)
