"""Classes in Python whose objects have memory: ``memoryview(object)`` calls their method ``__buffer__``."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

#: Flags and number of a slot in Python's C interface: "Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE", "Py_bf_getbuffer".
_BASE_CLASS, _GET_BUFFER = 1 << 10, 1


class _Slot(ctypes.Structure):
    """A function of a class in C (PyType_Slot)."""

    _fields_ = (("number", ctypes.c_int), ("function", ctypes.c_void_p))


class _Specification(ctypes.Structure):
    """A class in C (PyType_Spec)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


_fill_view = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_create_class = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Specification))(
    ("PyType_FromSpec", ctypes.pythonapi)
)


def _get_buffer(owner: Any, view: int, flags: int) -> int:
    """Fill a view in C with the memory that the method ``__buffer__`` of an object returns.

    An object that raises an error gets no bytes: an error cannot pass through ctypes.

    Args:
        owner: the object.
        view: address of the view.
        flags: what the caller accepts, such as memory that is read-only.
    """
    try:
        memory = owner.__buffer__(flags)
    except Exception:
        memory = memoryview(bytearray())
    return int(_fill_view(memory, view, flags))


#: The function in C, which exists as long as its class.
_BUFFER_FUNCTION = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
    _get_buffer
)


def _create_base() -> type:
    """Return a class without members, whose subclasses have memory below Python 3.12, too."""
    function = ctypes.cast(_BUFFER_FUNCTION, ctypes.c_void_p).value
    slots = (_Slot * 2)(_Slot(_GET_BUFFER, function), _Slot(0, None))
    name = f"{__name__}.Exporter".encode()
    base: type = _create_class(_Specification(name, object.__basicsize__, 0, _BASE_CLASS, slots))
    return base


#: Base class of objects with memory. From Python 3.12 on, the method ``__buffer__`` alone is enough.
Exporter: Any = object if sys.version_info >= (3, 12) else _create_base()
