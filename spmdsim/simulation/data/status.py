"""Status: what a completed receive tells about its message."""

from __future__ import annotations

from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, SUCCESS, UNDEFINED
from spmdsim.simulation.data.derived_types import BYTE, Datatype, data_nbytes


class Status:
    """Source, tag and size of a received message."""

    def __init__(self, status: Status | None = None) -> None:
        self.fill(ANY_SOURCE, ANY_TAG, 0)
        if status is not None:
            vars(self).update(vars(status))

    def fill(self, source: int, tag: int, nbytes: int, dtype: Any = None) -> None:
        """Take over what a message says; bytes that only align the parts of pairs are not counted."""
        if getattr(dtype, "fields", None) is not None:  # of an object there is none
            nbytes = nbytes // dtype.itemsize * data_nbytes(dtype)
        self.source, self.tag, self.nbytes = source, tag, nbytes
        self.error, self.cancelled = SUCCESS, False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def Get_source(self) -> int:
        """Rank that sent the message."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Change the source."""
        self.source = source

    def Get_tag(self) -> int:
        """Tag of the message."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Change the tag."""
        self.tag = tag

    def Get_error(self) -> int:
        """Error class, SUCCESS here."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Change the error."""
        self.error = error

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Values of a datatype in the message; UNDEFINED when they do not fit evenly."""
        size = datatype.Get_size()
        if size == 0:
            return 0
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Basic elements of a datatype in the message; a pair is one, as in Open MPI; UNDEFINED when they do not fit evenly."""
        size = data_nbytes(datatype.dtype)
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Change the size of the message."""
        self.nbytes = datatype.Get_size() * count

    def Is_cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return self.cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Change the mark."""
        self.cancelled = flag

    count = property(lambda self: self.nbytes, lambda self, value: setattr(self, "nbytes", value))


def fill_statuses(statuses: Any, filled: list[Status]) -> None:
    """Put statuses into the list a caller gave, which grows as needed."""
    if statuses is None:
        return
    for position, status in enumerate(filled):
        if position < len(statuses):
            statuses[position].__dict__.update(vars(status))
        elif isinstance(statuses, list):
            statuses.append(status)
