"""Status: the source, tag and size of a received message."""

from __future__ import annotations

from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, SUCCESS, UNDEFINED
from spmdsim.simulation.data.derived_types import BYTE, Datatype, count_data_bytes


class Status:
    """The result of a receive: source, tag and size of its message."""

    def __init__(self, status: Status | None = None) -> None:
        self.fill(ANY_SOURCE, ANY_TAG, 0)
        if status is not None:
            vars(self).update(vars(status))

    def fill(self, source: int, tag: int, nbytes: int, dtype: Any = None) -> None:
        """Set source, tag and size in bytes, and reset the error and the mark of cancelled requests.

        If ``dtype`` is a numpy dtype with fields, the padding between its fields is subtracted from ``nbytes``.
        """
        if getattr(dtype, "fields", None) is not None:  # a pickled object has no numpy dtype
            nbytes = nbytes // dtype.itemsize * count_data_bytes(dtype)
        self.source, self.tag, self.nbytes = source, tag, nbytes
        self.error, self.cancelled = SUCCESS, False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and vars(self) == vars(other)

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
        return self.cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Set the mark of cancelled requests."""
        self.cancelled = flag

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
            statuses[position].__dict__.update(vars(status))
        elif isinstance(statuses, list):
            statuses.append(status)
