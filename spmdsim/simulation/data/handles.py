"""Handles: what all objects of MPI have in common: equality, numbers, pickling."""

from __future__ import annotations

import sys
from itertools import count
from typing import Any, TypeVar

Self = TypeVar("Self", bound="Handle")


class Handle:
    """A handle of an object of MPI, such as a datatype, an operation or a request.

    Several handles may refer to one object: ``Datatype(MPI.INT)`` is a second handle of INT. Handles are equal if they
    refer to one object, and all null handles of a kind are equal. A null handle is false.
    """

    _numbers = count(1)
    #: Objects by number, of those whose number a program has asked for.
    _numbered: dict[int, Handle] = {}  # noqa: RUF012
    #: Names of predefined objects by number, such as "INT".
    _names: dict[int, str] = {}  # noqa: RUF012
    _number = 0
    _number_in_memory: Any = None

    def __new__(cls: type[Self], other: Handle | None = None, /) -> Self:
        """Return another handle of an object; a null handle without argument.

        Raises:
            TypeError: If ``other`` is no handle of this kind.
        """
        self = object.__new__(cls)
        if other is not None:
            kind = next(base for base in cls.__mro__ if base.__module__.startswith("spmdsim.simulation."))
            if not (isinstance(other, kind) or (issubclass(kind, type(other)) and not other)):
                raise TypeError(
                    f"{cls.__name__}: the argument must be of this class, got {type(other).__name__}"
                )
            other._identity()
            self.__dict__.update(other.__dict__)
            self.__dict__.pop("_predefined_name", None)
        return self

    def _identity(self) -> int:
        """Return the number of the object, which all its handles share; 0 for a null handle."""
        if not self:
            return 0
        if not self._number:
            self._number = next(Handle._numbers)
        return self._number

    def __eq__(self, other: object) -> bool:
        if not (isinstance(other, type(self)) or isinstance(self, type(other))):
            return NotImplemented
        return self is other or self._identity() == other._identity()  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    @property
    def handle(self) -> int:
        """The number of the object: 0 for a null handle."""
        number = self._identity()
        if number:
            Handle._numbered.setdefault(number, self)
        return number

    def toint(self) -> int:
        """Return the number of the object as C code gets it."""
        return self.handle

    def py2f(self) -> int:
        """Return the number of the object as Fortran code gets it."""
        return self.handle

    @classmethod
    def fromhandle(cls: type[Self], handle: int) -> Self:
        """Return a handle of the object with a number; a null handle for another number."""
        numbered = Handle._numbered.get(handle)
        return type(numbered)(numbered) if isinstance(numbered, cls) else cls()

    @classmethod
    def fromint(cls: type[Self], arg: int, /) -> Self:
        """Return a handle of the object with a number that ``toint`` returned."""
        return cls.fromhandle(arg)

    @classmethod
    def f2py(cls: type[Self], arg: int, /) -> Self:
        """Return a handle of the object with a number that ``py2f`` returned."""
        return cls.fromhandle(arg)

    def name_as_predefined(self, name: str) -> None:
        """Let pickles store this object by its name in ``mpi4py.MPI``; the first name counts."""
        self.__dict__.setdefault("_predefined_name", name)  # a null handle has no number
        if self:
            Handle._names.setdefault(self._identity(), name)

    def free(self) -> None:
        """Free the object if the handle is not null; predefined objects stay as they are."""
        if not self or "_predefined_name" in self.__dict__:
            return
        if self._identity() in Handle._names:
            self.__dict__.clear()
        else:
            self._release()

    def _release(self) -> None:
        """Free an object that is not predefined: call ``Free`` if its class has this method."""
        getattr(self, "Free", self.__dict__.clear)()

    def _contents(self) -> tuple[Any, ...]:
        """Return a function and its arguments that create an equal object in another process.

        Raises:
            ValueError: If objects of this kind cannot be pickled.
        """
        raise ValueError(f"cannot pickle {type(self).__name__} object")

    def __reduce__(self) -> Any:
        name = self.__dict__.get("_predefined_name")
        if name is not None and predefined_object(name) is self:
            return predefined_object, (name,)
        name = Handle._names.get(self._identity()) if self else None
        if name is not None or not self:
            return _copy_predefined, (type(self), name)
        return self._contents()


def predefined_object(name: str) -> Any:
    """Return the predefined object of a name in ``mpi4py.MPI``."""
    return getattr(sys.modules.get("mpi4py.MPI"), name, None)


def _copy_predefined(cls: type[Handle], name: str | None) -> Handle:
    """Return a new handle of the predefined object of a name; a null handle for None."""
    return cls(None if name is None else predefined_object(name))
