"""Attributes: values that a program stores with an object of MPI, under keys that it creates."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import count
from typing import Any

from spmdsim.simulation.data.constants import KEYVAL_INVALID, MPIError

#: The first key of a program; smaller numbers are keys of MPI.
_FIRST_KEYVAL = 1000
_keyvals = count(_FIRST_KEYVAL)
#: The copy and the delete function of each key.
_functions: dict[int, tuple[Any, Any]] = {}


class AttributeHolder:
    """A handle of an object with attributes; all handles of the object share them."""

    _attributes: dict[int, Any] | None = None

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        """Return a new key for attributes.

        Args:
            copy_fn: decides if a copy of the object gets the attribute: True, or a function of the object, the key
                and the value that returns the value of the copy, or NotImplemented. None and False: no copy has it.
            delete_fn: function of the object, the key and the value that is called before the attribute is deleted.
            nopython: not used: mpi4py has it.
        """
        keyval = next(_keyvals)
        _functions[keyval] = copy_fn, delete_fn
        return keyval

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free a key, and return KEYVAL_INVALID; attributes with this key stay.

        Raises an MPI error (ERR_KEYVAL) for a key that the program did not create.
        """
        if keyval not in _functions:
            raise MPIError("ERR_KEYVAL", f"keyval must be the result of Create_keyval, got {keyval}")
        return KEYVAL_INVALID

    def Get_attr(self, keyval: int) -> Any:
        """Return the attribute of a key, or None; raise an MPI error for KEYVAL_INVALID."""
        if keyval == KEYVAL_INVALID:
            raise MPIError("ERR_KEYVAL", "Get_attr: keyval must not be KEYVAL_INVALID")
        return (self._attributes or {}).get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Set the attribute of a key; the previous one is deleted.

        Args:
            keyval: the key.
            attrval: the value.

        Raises:
            MPIError: If the program did not create the key.
        """
        if keyval not in _functions:
            raise MPIError("ERR_KEYVAL", f"keyval must be the result of Create_keyval, got {keyval}")
        if self._attributes is None:
            self._attributes = {}
        if keyval in self._attributes:
            self.Delete_attr(keyval)
        self._attributes[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        """Delete an attribute, and call the delete function of its key.

        Args:
            keyval: the key; nothing happens if it has no attribute.

        Raises:
            MPIError: If the delete function fails; the attribute is deleted.
        """
        if self._attributes is None or keyval not in self._attributes:
            return
        value = self._attributes.pop(keyval)
        delete_fn = _functions[keyval][1]
        if delete_fn is not None:
            _call(delete_fn, self, keyval, value)

    def _copy_attributes(self, copied: AttributeHolder) -> None:
        """Set the attributes of a copy of this object, as the copy functions of the keys decide.

        Args:
            copied: the copy.
        """
        copied._attributes = {}
        for keyval, value in [*(self._attributes or {}).items()]:
            copy_fn = _functions[keyval][0]
            if callable(copy_fn):
                value = _call(copy_fn, self, keyval, value)
            elif not copy_fn:
                continue
            if value is not NotImplemented:
                copied._attributes[keyval] = value

    def _delete_attributes(self) -> None:
        """Delete all attributes, the newest first."""
        for keyval in [*(self._attributes or {})][::-1]:
            self.Delete_attr(keyval)


def _call(function: Callable[[Any, int, Any], Any], holder: Any, keyval: int, value: Any) -> Any:
    """Return the result of a copy or delete function; print its exception.

    Args:
        function: the function.
        holder: the object.
        keyval: the key.
        value: the attribute.

    Raises:
        MPIError: If the function raises an exception.
    """
    try:
        return function(holder, keyval, value)
    except Exception:
        traceback.print_exc()
        raise MPIError("ERR_OTHER", "a function of Create_keyval raised an exception") from None
