"""Info: sets of hints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.handles import Handle

_Items = Mapping[str, str] | Iterable[tuple[str, str]] | None
_REQUIRED = object()


class Info(Handle):
    """A set of hints, which have no effect: texts by keys."""

    _hints: dict[str, str] | None = None

    def __bool__(self) -> bool:
        return self._hints is not None

    def _contents(self) -> tuple[Any, ...]:
        """Return a function and its arguments that create an equal set of hints."""
        return type(self).Create, (self.items(),)

    @property
    def _all(self) -> dict[str, str]:
        """The hints. Raises an MPI error for a null handle."""
        if self._hints is None:
            raise MPIError("ERR_INFO", "the info is INFO_NULL")
        return self._hints

    @classmethod
    def Create(cls, items: _Items = None) -> Info:
        """Create a set of hints from ``items``, a mapping or pairs; without items it is empty."""
        info = cls()
        info._hints = {str(key): str(value) for key, value in dict(items or {}).items()}
        return info

    @classmethod
    def Create_env(cls, args: Any = None) -> Info:
        """Create a set of hints on how the program was started, which is empty; ``args`` is not used."""
        return cls.Create()

    def Set(self, key: str, value: str) -> None:
        """Add a hint."""
        self._all[key] = value

    def Get(self, key: str) -> str | None:
        """Return a hint, or None."""
        return self._all.get(key)

    def Delete(self, key: str) -> None:
        """Remove a hint; raise an MPI error (ERR_INFO_NOKEY) if it does not exist."""
        if key not in self._all:
            raise MPIError("ERR_INFO_NOKEY", f"Delete: key must be one of {self.keys()}, got {key!r}")
        del self._all[key]

    def Dup(self) -> Info:
        """Return a copy of the hints."""
        return type(self).Create(self._all)

    def Free(self) -> None:
        """Free the hints: the handle becomes null."""
        if "_predefined_name" in self.__dict__ or not self:
            raise MPIError("ERR_INFO", "INFO_NULL and INFO_ENV cannot be freed")
        self.__dict__.clear()

    def Get_nkeys(self) -> int:
        """Return the number of hints."""
        return len(self._all)

    def Get_nthkey(self, n: int) -> str:
        """Return the key of hint ``n``, counted from 0."""
        keys = [*self._all]
        if not 0 <= n < len(keys):
            raise MPIError("ERR_ARG", f"Get_nthkey: n must be 0 to {len(keys) - 1}, got {n}")
        return keys[n]

    # ------------------------------------------------------------------ methods of a dict

    def __len__(self) -> int:
        return len(self._hints or {})

    def __contains__(self, value: str) -> bool:
        return value in (self._hints or {})

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, item: str) -> str:
        return (self._hints or {})[item]

    def __setitem__(self, item: str, value: str) -> None:
        if not self:
            raise KeyError(item)
        self._all[item] = value

    def __delitem__(self, item: str) -> None:
        del (self._hints or {})[item]

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return a hint; ``default`` if it does not exist."""
        return (self._hints or {}).get(key, default)

    def keys(self) -> list[str]:
        """Return the keys."""
        return [*(self._hints or {})]

    def values(self) -> list[str]:
        """Return the texts."""
        return [*(self._hints or {}).values()]

    def items(self) -> list[tuple[str, str]]:
        """Return pairs of a key and its text."""
        return [*(self._hints or {}).items()]

    def update(self, items: _Items = (), **kwds: str) -> None:
        """Add hints from ``items``, a mapping or pairs, and from keyword arguments."""
        if not self:
            raise KeyError("update: the info is INFO_NULL")
        self._all.update(items or {}, **kwds)

    def pop(self, key: str, default: Any = _REQUIRED) -> Any:
        """Remove and return a hint; ``default`` if it does not exist."""
        hints = self._hints or {}
        return hints.pop(key) if default is _REQUIRED else hints.pop(key, default)

    def popitem(self) -> tuple[str, str]:
        """Remove and return the newest key and its text."""
        return (self._hints or {}).popitem()

    def copy(self) -> Info:
        """Return a copy of the hints; a null handle for a null handle."""
        return self.Dup() if self else type(self)()

    def clear(self) -> None:
        """Remove all hints."""
        (self._hints or {}).clear()


INFO_NULL = Info()
INFO_ENV = Info.Create()
