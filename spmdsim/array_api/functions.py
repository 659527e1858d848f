"""What the array API standard has besides functions of arrays: element types in its words, and what there is."""

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
"""The standard's kinds of element types, as numpy's letters."""


def dtype_of(value: Any) -> np.dtype:
    """Return the element type of a tensor, or the type that a name means."""
    return value.dtype if hasattr(value, "dtype") and not isinstance(value, type) else element_type(value)


@dataclass(frozen=True)
class FloatInfo(Pictured):
    """Limits of a floating type: bits, distance of 1 to the next number, largest, smallest, smallest normal number."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclass(frozen=True)
class IntegerInfo(Pictured):
    """Limits of an integer type: bits, largest and smallest number."""

    bits: int
    max: int
    min: int
    dtype: np.dtype


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a floating type, of the parts of a complex type, or of a tensor's type.

    >>> finfo("float32").eps == 2.0**-23, finfo("bfloat16").bits
    (True, 16)

    Raises:
        UsageTypeError: no floating type.
    """
    dtype = dtype_of(type)
    if not (is_float(dtype) or dtype.kind == "c"):
        raise UsageTypeError(f"finfo takes a floating type, but got {dtype}")
    import ml_dtypes  # knows numpy's types and those of 16 bits

    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    eps, largest, least = float(info.eps), float(info.max), float(info.min)
    return FloatInfo(int(info.bits), eps, largest, least, float(info.smallest_normal), np.dtype(info.dtype))


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer type, or of a tensor's type.

    Raises:
        UsageTypeError: no integer type.

    >>> iinfo(np.int16).max
    32767
    """
    dtype = dtype_of(type)
    if dtype.kind not in "iu":
        raise UsageTypeError(f"iinfo takes an integer type, but got {dtype}")
    info = np.iinfo(dtype)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return True if an element type equals another one, or is of a kind such as ``"real floating"``.

    A tuple of types and kinds means one of them.

    Raises:
        InputError: a kind that there is not.

    >>> isdtype(np.dtype("int16"), "integral"), isdtype(np.dtype("int16"), ("bool", "real floating"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dtype_of(dtype).kind in KINDS[kind]
    if isinstance(kind, str):
        raise InputError(f"kinds of element types are {', '.join(map(repr, KINDS))}, but got {kind!r}")
    return dtype_of(dtype) == dtype_of(kind)


def astype(x: Tensor, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert a tensor to another element type.

    Without ``copy`` a tensor of this type is returned as it is.

    Args:
        x: the tensor.
        dtype: the element type, or its name. Of complex numbers that become real ones the imaginary part is lost.
        copy: give another tensor even if the type is the same.
        device: ``"cpu"`` or None.

    Raises:
        InputError: an element type that is no number, another device.

    >>> import spmdsim.array_api as xp
    >>> from spmdsim import Mesh
    >>> xp.astype(xp.arange(3, layout=Mesh((2,), ("x",))("x")), xp.float32).full()
    array([0., 1., 2.], dtype=float32)
    """
    return asarray(x, dtype=dtype, copy=copy or None, device=device)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Permute dimensions; see :func:`spmdsim.ops.transpose`.

    >>> import spmdsim.array_api as xp
    >>> from spmdsim import Mesh
    >>> xp.permute_dims(xp.zeros((2, 3), layout=Mesh((2,), ("x",))("x", None)), (1, 0)).layout.short()
    'S(1)'
    """
    return ops.transpose(x, axes)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return True if elements of one type, or of a tensor, can become another type without loss.

    >>> can_cast("int8", "int16"), can_cast("float64", "float32")
    (True, False)
    """
    source, target = dtype_of(from_), dtype_of(to)
    if "V" in (source.kind, target.kind):
        return bool(promote_types(source, target) == target)
    return bool(np.can_cast(source, target))


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """Return the type to which tensors, element types and numbers are promoted.

    >>> result_type("int8", "uint8"), result_type("float32", 2.5)
    (dtype('int16'), dtype('float32'))
    """
    numbers = [value for value in arrays_and_dtypes if isinstance(value, (bool, int, float, complex))]
    common = promote_types(
        *[dtype_of(value) for value in arrays_and_dtypes if not any(value is n for n in numbers)]
    )
    if not numbers:
        return common
    if common.kind == "V":
        return promote_types(common, *[np.dtype("c8") for value in numbers if isinstance(value, complex)])
    return np.result_type(common, *numbers)


class NamespaceInfo(Pictured):
    """What the namespace offers."""

    def capabilities(self) -> dict[str, Any]:
        """Whether results whose size depends on values are there, and how many dims a tensor may have."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Main memory."""
        return DEVICE

    def devices(self) -> list[str]:
        """Main memory alone."""
        return [DEVICE]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The types of numbers where none is given."""
        check_device(device)
        names = {"real floating": "f8", "complex floating": "c16", "integral": "i8", "indexing": "i8"}
        return {kind: np.dtype(name) for kind, name in names.items()}

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype]:
        """Element types by name: all, or those of some kinds."""
        check_device(device)
        by_name = {name: np.dtype(name) for name in NAMES}
        wanted = tuple(KINDS) if kind is None else kind
        return {name: dtype for name, dtype in by_name.items() if isdtype(dtype, wanted)}


def __array_namespace_info__() -> NamespaceInfo:
    """What the namespace offers.

    >>> __array_namespace_info__().default_device()
    'cpu'
    """
    return NamespaceInfo()
