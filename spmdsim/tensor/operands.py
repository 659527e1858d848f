"""Operands that are no tensors yet: numbers, arrays and parameters beside tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from spmdsim.core import Layout, apply
from spmdsim.core.meta import Meta
from spmdsim.core.operator import Op
from spmdsim.core.tensor import Tensor
from spmdsim.errors import InputError, RuleError, UsageTypeError
from spmdsim.layout.element_type import promoted
from spmdsim.tensor.element_types import as_array

T = TypeVar("T", bound=Tensor)


def operands(op: Op, given: Sequence[Any]) -> list[Any]:
    """Operands that are no tensors yet as tensors beside the others.

    Raises:
        UsageTypeError: none of them says in which world that is.
    """
    tensors = {i: x if isinstance(x, Tensor) else x.value for i, x in enumerate(given) if _placed(x)}
    if not tensors:
        kinds = ", ".join(type(x).__name__ for x in given)
        raise UsageTypeError(
            f"{op.name} takes tensors, but got {kinds}; make one with Tensor.from_global(array, layout)"
        )
    like = next(iter(tensors.values()))
    return [tensors[i] if i in tensors else as_operand(x, like) for i, x in enumerate(given)]


apply.operands_of.append(operands)


def _placed(operand: Any) -> bool:
    """A tensor, or a parameter that has its values."""
    return isinstance(operand, Tensor) or isinstance(getattr(operand, "tensor", None), Tensor)


def as_operand(value: Any, like: T) -> Any:
    """A number or array as a tensor replicated where ``like`` lives; a tensor stays as it is.

    A Python number takes ``like``'s element type where it fits, as in numpy.
    """
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "as_operand"):  # a parameter
        return value.as_operand(like)
    if isinstance(value, (bool, int, float, complex)):
        dtype = _with_number(like.dtype, value)
        world = like.world
        try:
            number = np.asarray(value, dtype)
        except OverflowError:
            limits = np.iinfo(dtype)
            raise InputError(
                f"{value} is no {dtype.name}, which goes from {limits.min} to {limits.max}; convert the tensor first, "
                "such as x.astype('int64')"
            ) from None
        held = number if world.has_data else world.empty((), dtype)
        meta = Meta.of(Layout.replicated(like.layout.mesh, 0), (), dtype)
        return type(like)(world, meta, [held] * len(world.ranks))
    array = as_array(value)
    if array.dtype == object:
        raise RuleError(f"an operand must be a tensor, an array or a number, not {type(value).__name__}")
    return type(like).from_global(array, Layout.replicated(like.layout.mesh, array.ndim), like.world)


def _with_number(dtype: np.dtype, value: complex) -> np.dtype:
    """The type of a Python number beside elements of a type: theirs where it fits, as in numpy."""
    if dtype.kind != "V":
        return np.result_type(dtype, value)
    return promoted(dtype, np.dtype("complex64")) if isinstance(value, complex) else dtype
