"""Handles of MPI's objects: what makes one of them the same as another."""

from __future__ import annotations


class Handle:
    """What a program has of a datatype, an operation, a request: equal to itself, and null to every null one of its kind.

    ``bool`` says whether it is not null.
    """

    def __eq__(self, other: object) -> bool:
        if not (isinstance(other, type(self)) or isinstance(self, type(other))):
            return NotImplemented
        return self is other or not (self or other)

    def __hash__(self) -> int:
        return id(self)
