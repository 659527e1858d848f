"""Values that never change: equal and hashed by the arguments that make them."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.pictured import Pictured


class Immutable(Pictured):
    """An immutable value: equal and hashed by the arguments that make it, which caches look up."""

    __slots__ = ("__dict__", "_hash", "made_of")

    made_of: tuple[object, ...]
    _hash: int

    def _settle(self, names: Sequence[str], *values: object) -> None:
        for name, value in zip((*names, "made_of", "_hash"), (*values, values, hash(values))):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return (type(self), self.made_of)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Immutable) or type(self) is not type(other):
            return NotImplemented
        return self._hash == other._hash and self.made_of == other.made_of
