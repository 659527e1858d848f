"""View the memory of a program's object as an array: buffer protocol, CUDA array interface, DLPack.

Objects with the CUDA array interface or DLPack may name a device; their memory must be memory of this process.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import numpy as np

_HOST, _VERSION, _READ_ONLY = 1, 1, 1
#: NumPy kinds of the type codes of DLPack; other codes are read as unsigned integers.
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
#: The types of the items of a CUDA array interface, and the items that may be omitted or None.
_ITEMS: dict[str, type] = {"data": tuple, "typestr": str, "shape": tuple, "strides": tuple, "descr": list}
_OPTIONAL = ("strides", "descr")


class _Tensor(ctypes.Structure):
    """A tensor of DLPack, as in its C header."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _VersionedTensor(ctypes.Structure):
    """A tensor of DLPack with a version and flags, as in its C header."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def is_on_device(memory: Any) -> bool:
    """Return True if an object says that its memory belongs to a device."""
    if hasattr(memory, "__dlpack_device__"):
        return bool(_device_of(memory)[0] != _HOST)
    return not hasattr(memory, "__array_interface__") and hasattr(memory, "__cuda_array_interface__")


def as_array(memory: Any) -> Any:
    """Return an array that shares memory with an object of the program.

    The object needs the buffer protocol, ``__array_interface__``, ``__array__``, ``__dlpack__`` or
    ``__cuda_array_interface__``. An object with ``__array__`` alone may return a copy, which does not share memory.

    Args:
        memory: the object. bytes and bytearray give an array of uint8.

    Raises:
        TypeError: If the object has none of them, or describes its memory by values of wrong types.
        KeyError, ValueError, BufferError: If the description is incomplete or not supported.
    """
    if isinstance(memory, np.ndarray):
        return memory.view(np.ndarray)  # subclasses select and reshape in other ways
    try:
        view = memoryview(memory)
    except TypeError:
        pass
    else:
        array = np.asarray(view)
        return array.view(np.uint8) if isinstance(memory, bytes | bytearray) else array
    if hasattr(memory, "__array_interface__") or hasattr(memory, "__array__"):
        return np.asarray(memory)
    if hasattr(memory, "__dlpack__"):
        return _view_tensor(memory)
    if hasattr(memory, "__cuda_array_interface__"):
        return _view_interface(memory.__cuda_array_interface__)
    raise TypeError(
        f"a buffer must be a numpy array or similar, got {type(memory).__name__}; "
        "the lower-case call sends any Python object"
    )


def require_contiguous(array: Any) -> Any:
    """Return an array; raise BufferError if its memory is not contiguous."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferError(
            f"a buffer must be contiguous, got an array of shape {array.shape} with strides of {array.strides} "
            "bytes; send a copy, or a derived datatype"
        )
    return array


def as_bytes(memory: Any) -> Any:
    """Return the bytes of an object's contiguous memory as a 1-D array that shares it; see `as_array`."""
    return require_contiguous(as_array(memory)).reshape(-1, order="A").view(np.uint8)


# ---------------------------------------------------------------------- arrays at an address


def _view_address(
    address: int, shape: tuple[int, ...], strides: Any, dtype: Any, is_readonly: bool, owner: Any
) -> Any:
    """Return the array at an address of this process.

    Args:
        address: the first byte.
        shape: the lengths of the dimensions.
        strides: the distances of elements in each dimension, in bytes; None: row by row.
        dtype: the dtype of the elements.
        is_readonly: True to forbid changes.
        owner: an object that lives as long as the array.

    Raises:
        BufferError: If a length is negative.
    """
    if any(length < 0 for length in shape):
        raise BufferError(f"a buffer must have lengths of 0 or more, got shape {shape}")
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    block = (ctypes.c_ubyte * nbytes).from_address(address) if nbytes else bytearray()
    if nbytes:
        block.owner = owner  # type: ignore[union-attr]
    elements = np.frombuffer(block, np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(elements, shape, strides, writeable=not is_readonly)


def _view_interface(interface: Any) -> Any:
    """Return the array that a CUDA array interface describes.

    Args:
        interface: the value of ``__cuda_array_interface__``.

    Raises:
        BufferError: If the byte order is not the machine's, or the array has a mask.
        KeyError, TypeError, ValueError: If an item is missing or wrong.
    """
    if not isinstance(interface, dict):
        raise TypeError(f"__cuda_array_interface__ must be a dict, got {type(interface).__name__}")
    for name, kind in _ITEMS.items():
        value = interface.get(name) if name in _OPTIONAL else interface[name]
        if not isinstance(value, kind) and not (name in _OPTIONAL and value is None):
            raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")
    if interface.get("mask") is not None:
        raise BufferError("a buffer must be an array without a mask")
    typestr, descr = interface["typestr"], interface.get("descr")
    if descr not in (None, [("", typestr)]):
        warnings.warn("__cuda_array_interface__: the item descr is ignored", RuntimeWarning, stacklevel=2)
    if typestr[:1] not in ("|", np.dtype("i4").str[:1]):
        raise BufferError(f"a buffer must have the byte order of this machine, got typestr {typestr!r}")
    address, is_readonly = interface["data"]
    shape, strides = interface["shape"], interface.get("strides")
    kind, itemsize = typestr[1:2], int(typestr[2:])
    dtype = np.dtype(f"{kind if kind in 'biufcSU' else 'V'}{itemsize}")
    return _view_address(int(address or 0), shape, strides, dtype, bool(is_readonly), None)


def _device_of(memory: Any) -> tuple[int, int]:
    """Return the type and the number of the device to which ``memory`` belongs.

    Raises TypeError or ValueError if its answer has another form.
    """
    device = memory.__dlpack_device__()
    if not isinstance(device, tuple):
        raise TypeError(f"__dlpack_device__ must return a tuple, got {device!r}")
    kind, number = device
    if not isinstance(kind, int) or not isinstance(number, int):
        raise TypeError(f"__dlpack_device__ must return integers, got {device!r}")
    return kind, number


def _view_tensor(memory: Any) -> Any:
    """Return the array that ``memory`` describes with its method ``__dlpack__``.

    Raises:
        BufferError: If the answer is no unused tensor of DLPack 0 or 1, or its dimensions are wrong.
    """
    arguments = {} if _device_of(memory)[0] == _HOST else {"stream": -1}
    try:
        capsule = memory.__dlpack__(max_version=(_VERSION, 0), copy=False, **arguments)
    except TypeError:  # an object of DLPack 0 has no such arguments
        capsule = memory.__dlpack__(**arguments)
    tensor, is_readonly = _open_capsule(capsule)
    if tensor.ndim < 0 or (tensor.ndim and not tensor.shape):
        raise BufferError(f"a tensor must have a shape of 0 or more dimensions, got {tensor.ndim}")
    nbytes = tensor.bits * tensor.lanes // 8
    kind = _KINDS.get(tensor.code, "u") if tensor.lanes == 1 else "u"
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = None
    if tensor.ndim and tensor.strides:
        strides = tuple(step * nbytes for step in tensor.strides[: tensor.ndim])
    address = (tensor.data or 0) + tensor.byte_offset
    return _view_address(address, shape, strides, np.dtype(f"{kind}{nbytes}"), is_readonly, capsule)


def _open_capsule(capsule: Any) -> tuple[Any, bool]:
    """Return the tensor in a capsule of DLPack, and True if its memory must not be changed.

    Raises:
        BufferError: If the capsule has no unused tensor of DLPack 0 or 1.
    """
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _VersionedTensor.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major != _VERSION:
            raise BufferError(f"a tensor must have version {_VERSION} of DLPack, got {versioned.major}")
        return versioned.tensor, bool(versioned.flags & _READ_ONLY)
    if _is_capsule(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer_of(capsule, b"dltensor")), False
    raise BufferError("__dlpack__ must return a tensor that has not been used")
