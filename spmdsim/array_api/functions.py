"""What the array API standard has besides functions of arrays: element types, and what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim import ops
from spmdsim.array_api.dtypes import KINDS, NAMES, dtype_of
from spmdsim.array_api.dtypes import finfo as finfo
from spmdsim.array_api.dtypes import iinfo as iinfo
from spmdsim.array_api.dtypes import isdtype as isdtype
from spmdsim.layout.element_type import promoted
from spmdsim.pictured import Pictured
from spmdsim.tensor import Tensor
from spmdsim.tensor.creation import DEVICE, asarray, check_device

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def astype(x: Tensor, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The tensor with another element type; the same one if it has it already and ``copy`` is false.

    Args:
        x: the tensor.
        dtype: the element type, or its name. Of complex numbers that become real ones the imaginary part is lost.
        copy: give another tensor even if the type is the same.
        device: ``"cpu"`` or None, for the array API standard.

    Returns:
        A tensor of the same shape and layout.

    Raises:
        InputError: an element type that is no number, another device.

    >>> import spmdsim.array_api as xp
    >>> from spmdsim import Mesh
    >>> xp.astype(xp.arange(3, layout=Mesh((2,), ("x",))("x")), xp.float32).full()
    array([0., 1., 2.], dtype=float32)
    """
    return asarray(x, dtype=dtype, copy=copy or None, device=device)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """The tensor with its dims in another order; see :func:`spmdsim.ops.transpose`.

    >>> import spmdsim.array_api as xp
    >>> from spmdsim import Mesh
    >>> xp.permute_dims(xp.zeros((2, 3), layout=Mesh((2,), ("x",))("x", None)), (1, 0)).layout.short()
    'S(1)'
    """
    return ops.transpose(x, axes)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether elements of one type (or of a tensor) can become another without losing anything.

    >>> can_cast("int8", "int16"), can_cast("float64", "float32")
    (True, False)
    """
    source, target = dtype_of(from_), dtype_of(to)
    if "V" in (source.kind, target.kind):
        return bool(promoted(source, target) == target)
    return bool(np.can_cast(source, target))


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The type in which tensors, element types and numbers meet.

    >>> result_type("int8", "uint8"), result_type("float32", 2.5)
    (dtype('int16'), dtype('float32'))
    """
    numbers = [value for value in arrays_and_dtypes if isinstance(value, (bool, int, float, complex))]
    common = promoted(
        *[dtype_of(value) for value in arrays_and_dtypes if not any(value is n for n in numbers)]
    )
    if not numbers:
        return common
    if common.kind == "V":
        return promoted(common, *[np.dtype("c8") for value in numbers if isinstance(value, complex)])
    return np.result_type(common, *numbers)


class NamespaceInfo(Pictured):
    """What the namespace offers."""

    def capabilities(self) -> dict[str, Any]:
        """Whether results whose size depends on values are there, and how many dims a tensor may have."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": hasattr(ops, "unique_values"),
            "max dimensions": 64,
        }

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
        known = {name: np.dtype(name) for name in NAMES}
        wanted = tuple(KINDS) if kind is None else kind
        return {name: dtype for name, dtype in known.items() if isdtype(dtype, wanted)}


def __array_namespace_info__() -> NamespaceInfo:
    """What the namespace offers.

    >>> __array_namespace_info__().default_device()
    'cpu'
    """
    return NamespaceInfo()
