"""The contents of a datatype: the call that created it, and its arguments."""

from __future__ import annotations

from typing import Any, TypeVar

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.open_handles import add_handle

_Type = TypeVar("_Type", bound="TypeContents")
#: Arguments that are addresses or displacements in bytes, by combiner.
_ADDRESSES = {
    "HVECTOR": ("stride",),
    "HINDEXED": ("displacements",),
    "HINDEXED_BLOCK": ("displacements",),
    "STRUCT": ("displacements",),
    "RESIZED": ("lb", "extent"),
}
#: Combiners whose integers begin with the number of blocks or dimensions, and the list that has this length.
_COUNTED = {
    "INDEXED": "blocklengths",
    "HINDEXED": "blocklengths",
    "STRUCT": "blocklengths",
    "INDEXED_BLOCK": "displacements",
    "HINDEXED_BLOCK": "displacements",
    "SUBARRAY": "sizes",
}
#: Combiners of types that MPI predefines, although a call returns them.
_PREDEFINED = ("F90_INTEGER", "F90_REAL", "F90_COMPLEX", "VALUE_INDEX")


class TypeContents:
    """The methods of a datatype that return how it was created.

    Attributes:
        origin: the name of the combiner, the type from which it was created or None, and the other arguments.
    """

    origin: tuple[str, Any, dict[str, Any]] = ("NAMED", None, {})

    def set_origin(self: _Type, combiner: str, base: Any, **arguments: Any) -> _Type:
        """Store how the program created the type; return the type."""
        self.origin = combiner, None if base is None else base.own_handle(), arguments
        add_handle(self, "datatype")
        return self

    def own_handle(self: _Type) -> _Type:
        """Return a handle that stays valid if the program frees this one; a predefined type itself."""
        cls: Any = type(self)
        handle: _Type = self if "_predefined_name" in self.__dict__ else cls(self)
        return handle

    @property
    def is_named(self) -> bool:
        """True for a type that MPI predefines by name."""
        return self.origin[0] == "NAMED"

    @property
    def is_predefined(self) -> bool:
        """True for a type that cannot be freed."""
        return self.is_named or self.origin[0] in _PREDEFINED

    @property
    def combiner(self) -> int:
        """The number of the call that created the type, such as COMBINER_VECTOR."""
        number: int = getattr(c, f"COMBINER_{self.origin[0]}")
        return number

    def _lists(self) -> tuple[list[int], list[int], list[int], list[Any]]:
        """Return the integers, addresses, counts and datatypes with which the type was created."""
        combiner, base, arguments = self.origin
        integers: list[int] = []
        addresses: list[int] = []
        types = [] if base is None else [base]
        if combiner in _COUNTED:
            integers.append(len(arguments[_COUNTED[combiner]]))
        for name, value in arguments.items():
            if name in ("datatypes", "value", "index"):
                types += value if isinstance(value, list) else [value]
                continue
            if combiner == "DARRAY" and name == "gsizes":
                integers.append(len(value))
            target = addresses if name in _ADDRESSES.get(combiner, ()) else integers
            target += value if isinstance(value, list) else [value]
        return integers, addresses, [], types

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of integers, addresses, counts and datatypes in the contents, and the combiner."""
        lists = self._lists()
        return len(lists[0]), len(lists[1]), len(lists[2]), len(lists[3]), self.combiner

    envelope = property(Get_envelope)

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Any]]:
        """Return the integers, addresses, counts and datatypes with which the type was created.

        Raises an MPI error for a type that MPI predefines.
        """
        if self.is_named:
            raise MPIError("ERR_TYPE", f"Get_contents: {self} must be a type that the program created")
        integers, addresses, counts, types = self._lists()
        return integers, addresses, counts, [_new_handle(datatype) for datatype in types]

    contents = property(Get_contents)

    def decode(self) -> tuple[Any, str, dict[str, Any]]:
        """Return the type from which this type was created, the name of the combiner, and the other arguments.

        A type without such a type gives itself if it is predefined, and DATATYPE_NULL if it is a struct.
        """
        cls: Any = type(self)
        start: Any
        combiner, base, arguments = self.origin
        if combiner in ("NAMED", *_PREDEFINED):
            start = self if combiner == "NAMED" else cls()
        else:
            start = cls() if base is None else _new_handle(base)
        copied = {
            name: [_new_handle(datatype) for datatype in value] if name == "datatypes" else _copy(value)
            for name, value in arguments.items()
        }
        return start, combiner, copied

    def _contents(self) -> tuple[Any, ...]:
        """Return a function and its arguments that create an equal type, for pickles."""
        return recreate, (type(self), *self.origin)


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _new_handle(datatype: Any) -> Any:
    """Return a handle that the program may free.

    Args:
        datatype: a type; if it is predefined, it is returned itself.
    """
    return (
        datatype
        if datatype.is_named and "_predefined_name" in datatype.__dict__
        else type(datatype)(datatype)
    )


def recreate(cls: Any, combiner: str, base: Any, arguments: dict[str, Any]) -> Any:
    """Return a type that is created by a combiner from another type and the other arguments."""
    prefix = "Get_" if combiner == "VALUE_INDEX" else "Create_"
    return getattr(cls if base is None else base, f"{prefix}{combiner.lower()}")(**arguments)
