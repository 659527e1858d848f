"""Functions of the array API standard that have no NumPy name here: element types and the namespace's description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.conversion import asarray
from spmdsim.arrays.creation import DEVICE, check_device
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import element_type, is_float, promote_types
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained

NAMES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float32", "float64", "complex64", "complex128"),
)

KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "fV",
    "complex floating": "c",
    "numeric": "iufVc",
}
"""The standard's kinds of element types, and the letters of NumPy's ``dtype.kind`` that belong to each kind."""


def dtype_of(value: Any) -> np.dtype:
    """Return the element type of a tensor, or the element type that a type or its name stands for."""
    return value.dtype if hasattr(value, "dtype") and not isinstance(value, type) else element_type(value)


@dataclass(frozen=True)
class FloatInfo(Pictured):
    """Limits of a floating type.

    Attributes:
        bits: size of a number in bits.
        eps: distance of 1 to the next larger number.
        max: the largest number.
        min: the smallest, negative number.
        smallest_normal: the smallest positive normal number.
        dtype: the type; for a complex type the type of its components.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclass(frozen=True)
class IntegerInfo(Pictured):
    """Limits of an integer type.

    Attributes:
        bits: size of a number in bits.
        max: the largest number.
        min: the smallest number.
        dtype: the type.
    """

    bits: int
    max: int
    min: int
    dtype: np.dtype


@explained
def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a floating type, or of a complex type's components.

    Args:
        type: an element type, its name, or a tensor.

    Raises:
        UsageTypeError: If the type is neither floating nor complex.
        InputError: If no type has this name.

    >>> finfo("float32").eps == 2.0**-23, finfo("bfloat16").bits
    (True, 16)
    """
    dtype = dtype_of(type)
    if not (is_float(dtype) or dtype.kind == "c"):
        raise UsageTypeError(
            f"finfo: type must be a floating or complex type, got {dtype}; use iinfo for integers"
        )
    import ml_dtypes  # It supports NumPy's types and bfloat16.

    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    eps, largest, least = float(info.eps), float(info.max), float(info.min)
    return FloatInfo(int(info.bits), eps, largest, least, float(info.smallest_normal), np.dtype(info.dtype))


@explained
def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer type, or of a tensor's type.

    Args:
        type: an element type, its name, or a tensor.

    Raises:
        UsageTypeError: If the type is not an integer type; bool is none.
        InputError: If no type has this name.

    >>> iinfo(np.int16).max
    32767
    """
    dtype = dtype_of(type)
    if dtype.kind not in "iu":
        raise UsageTypeError(
            f"iinfo: type must be an integer type, got {dtype}; use finfo for floating types"
        )
    info = np.iinfo(dtype)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)


@explained
def isdtype(dtype: Any, kind: Any) -> bool:
    """Return True if an element type equals ``kind`` or belongs to the kind of that name.

    Args:
        dtype: the element type, its name, or a tensor.
        kind: an element type, a kind such as ``"real floating"`` (see ``KINDS``), or a tuple of them, one of which must
            fit. A text is always a kind, never the name of a type.

    Raises:
        InputError: If the standard has no such kind, or no type is called ``dtype``.

    >>> isdtype(np.dtype("int16"), "integral"), isdtype(np.dtype("int16"), ("bool", "real floating"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, alternative) for alternative in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dtype_of(dtype).kind in KINDS[kind]
    if isinstance(kind, str):
        raise InputError(f"isdtype: kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    return dtype_of(dtype) == dtype_of(kind)


@explained
def astype(x: Tensor, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert a tensor to another element type.

    Args:
        x: the tensor.
        dtype: the element type, or its name. A conversion from complex to real numbers drops the imaginary part.
        copy: False to return ``x`` itself if it has this type already; True to return a new tensor object.
        device: ``"cpu"`` or None.

    Raises:
        InputError: If the element type is not one of numbers, or the device is another one.

    >>> import spmdsim.array_api as xp
    >>> from spmdsim import Mesh
    >>> xp.astype(xp.arange(3, layout=Mesh((2,), ("x",))("x")), xp.float32).full()
    array([0., 1., 2.], dtype=float32)
    """
    return asarray(x, dtype=dtype, copy=copy or None, device=device)


@explained
def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Permute dimensions; see :func:`spmdsim.ops.transpose`.

    >>> import spmdsim.array_api as xp
    >>> from spmdsim import Mesh
    >>> xp.permute_dims(xp.zeros((2, 3), layout=Mesh((2,), ("x",))("x", None)), (1, 0)).layout.placement_text()
    'S(1)'
    """
    return ops.transpose(x, axes)


@explained
def can_cast(from_: Any, to: Any, /) -> bool:
    """Return True if elements of one type can become another type without loss.

    Args:
        from_: an element type, its name, or a tensor.
        to: an element type or its name.

    >>> can_cast("int8", "int16"), can_cast("float64", "float32")
    (True, False)
    """
    source, target = dtype_of(from_), dtype_of(to)
    if "V" in (source.kind, target.kind):  # bfloat16, which NumPy does not know
        return bool(promote_types(source, target) == target)
    return bool(np.can_cast(source, target))


@explained
def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """Return the type to which tensors, element types and numbers are promoted.

    Args:
        arrays_and_dtypes: tensors, element types, their names, or Python numbers. A Python number has no type of its
            own: it only adds a kind of numbers, such as "complex".

    Raises:
        ValueError: If there are no arguments, or only Python numbers.

    >>> result_type("int8", "uint8"), result_type("float32", 2.5)
    (dtype('int16'), dtype('float32'))
    """
    python_types = (bool, int, float, complex)
    numbers = [value for value in arrays_and_dtypes if isinstance(value, python_types)]
    common = promote_types(
        *[dtype_of(value) for value in arrays_and_dtypes if not isinstance(value, python_types)]
    )
    if not numbers:
        return common
    if common.kind == "V":  # bfloat16, which NumPy does not know: only complex numbers change it
        return promote_types(common, *[np.dtype("c8") for value in numbers if isinstance(value, complex)])
    return np.result_type(common, *numbers)


class NamespaceInfo(Pictured):
    """Description of the namespace: its capabilities, device and element types."""

    def capabilities(self) -> dict[str, Any]:
        """Return the standard's table of capabilities."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the only device, main memory."""
        return DEVICE

    def devices(self) -> list[str]:
        """Return the list of devices: main memory alone."""
        return [DEVICE]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Return the default element type of each kind.

        Raises InputError if ``device`` is another device.
        """
        check_device(device)
        names = {"real floating": "f8", "complex floating": "c16", "integral": "i8", "indexing": "i8"}
        return {kind: np.dtype(name) for kind, name in names.items()}

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype]:
        """Return element types by name.

        Args:
            device: ``"cpu"`` or None.
            kind: a kind or several kinds, such as ``"integral"``; None: all element types.
        """
        check_device(device)
        by_name = {name: np.dtype(name) for name in NAMES}
        wanted = tuple(KINDS) if kind is None else kind
        return {name: dtype for name, dtype in by_name.items() if isdtype(dtype, wanted)}


def __array_namespace_info__() -> NamespaceInfo:
    """Return the description of this namespace.

    >>> __array_namespace_info__().default_device()
    'cpu'
    """
    return NamespaceInfo()
